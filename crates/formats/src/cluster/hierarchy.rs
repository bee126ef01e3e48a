//! Owns hierarchical algorithms in cluster files: their chunks, the algorithm of each dimension, and the dimensions
//! along which a cluster's ranks lie. The simulator carries them out.

use super::Choices;
use super::raw::{RawCluster, RawRule};
use super::source::Source;
use crate::diagnostic::{Diagnostic, suggest};
use std::ops::Range;
use uniference_sim::cluster::Device;
use uniference_sim::collective::Grid;
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::collective::hierarchical::{DEFAULT_CHUNKS, Hierarchical, RowAlgorithm};
use uniference_sim::network::{GridDimension, Topology};

/// The algorithm's name in rules.
pub(super) const NAME: &str = "hierarchical";

/// Maximum number of chunks: each chunk has its own steps.
const MOST_CHUNKS: u32 = 4096;

/// The algorithm that a rule describes; `otherwise` serves groups outside of the grid. `None`: the rule names another
/// algorithm.
pub(super) fn algorithm(
    rule: &RawRule,
    otherwise: &AlgorithmTable,
    source: &Source,
) -> Result<Option<Hierarchical>, Diagnostic> {
    let RawRule { algorithm, chunks, dimensions, .. } = rule;
    if algorithm.as_ref().is_none_or(|name| name.get_ref() != NAME) {
        let keys = [
            ("chunks", chunks.as_ref().map(|key| key.span())),
            ("dimensions", dimensions.as_ref().map(|key| key.span())),
        ];
        return match keys.into_iter().find_map(|(key, span)| Some((key, span?))) {
            Some((key, span)) => {
                let message = format!("`{key}` requires the algorithm `{NAME}`");
                Err(source.error(message, span).hint(format!("remove it, or set algorithm = \"{NAME}\"")))
            }
            None => Ok(None),
        };
    }
    if let Some(chunks) = chunks.as_ref().filter(|chunks| !(1..=MOST_CHUNKS).contains(chunks.get_ref())) {
        let message = format!("invalid number of chunks {}", chunks.get_ref());
        return Err(source
            .error(message, chunks.span())
            .hint(format!("use a number from 1 (no splitting) to {MOST_CHUNKS}")));
    }
    let mut rows = Vec::new();
    for name in dimensions.iter().flat_map(|dimensions| dimensions.get_ref()) {
        let Some((_, row)) = RowAlgorithm::ALL.iter().find(|(known, _)| known == name.get_ref()) else {
            let message = format!("unknown algorithm `{}` for a dimension", name.get_ref());
            let known = RowAlgorithm::ALL.map(|(known, _)| known);
            return Err(source.error(message, name.span()).hint(suggest(name.get_ref(), "algorithms", known)));
        };
        rows.push(*row);
    }
    let chunks = chunks.as_ref().map_or(DEFAULT_CHUNKS, |chunks| *chunks.get_ref());
    Ok(Some(Hierarchical::new(rows, chunks, otherwise.clone())))
}

/// Gives hierarchical algorithms the layout of the ranks on the network.
///
/// # Errors
/// If an algorithm is hierarchical and the network has one dimension, or the algorithm's rows do not fit the network's
/// dimensions.
pub(super) fn lay_out(
    table: &mut AlgorithmTable,
    raw: &RawCluster,
    choices: &Choices,
    (topology, devices): (&Topology, &[Device]),
    source: &Source,
) -> Result<(), Diagnostic> {
    let is_hierarchical = |rule: &&RawRule| rule.algorithm.as_ref().is_some_and(|name| name.get_ref() == NAME);
    let rules =
        raw.collective.values().flat_map(|rules| rules.get_ref().0.iter().map(move |rule| (rules.span(), rule)));
    let said: Vec<(Range<usize>, &RawRule)> = rules.filter(|(_, rule)| is_hierarchical(rule)).collect();
    let forced = choices.algorithms.iter().find(|choice| choice.name == NAME);
    if said.is_empty() && forced.is_none() {
        return Ok(());
    }
    let one = |sizes: &str| format!("`{NAME}` needs ranks along at least two dimensions of the network; found {sizes}");
    let grid = match grid(topology, devices) {
        Some(grid) if grid.dimensions.iter().filter(|dimension| dimension.size > 1).count() > 1 => grid,
        found => {
            let message = one(if found.is_some() {
                "one"
            } else {
                "none (hosts differ in their number of ranks, or ranks are not in order)"
            });
            let hint = "use a network with several dimensions (preset = \"dimensions\", \"torus\", \"server\" or \"rail\", a full fat_tree, or hosts with several devices each), or another algorithm";
            return Err(match (said.first(), forced) {
                (_, Some(choice)) => {
                    let text = format!("{}={NAME}", choice.kind);
                    Diagnostic::new(message).at("--algorithm", &text, text.len() - NAME.len()..text.len()).hint(hint)
                }
                (Some((span, _)), None) => source.error(message, span.clone()).hint(hint),
                (None, None) => unreachable!("one of them names it"),
            });
        }
    };
    for rows in said.iter().filter_map(|(_, rule)| rule.dimensions.as_ref()) {
        if rows.get_ref().len() != grid.dimensions.len() {
            let sizes: Vec<String> = grid.dimensions.iter().map(|dimension| dimension.size.to_string()).collect();
            let message = format!("{} algorithms given for {} dimensions", rows.get_ref().len(), sizes.len());
            let hint = format!("give one algorithm per dimension (their sizes are {})", sizes.join(" x "));
            return Err(source.error(message, rows.span()).hint(hint));
        }
        for (name, dimension) in rows.get_ref().iter().zip(&grid.dimensions) {
            if name.get_ref() == "halving_doubling" && !dimension.size.is_power_of_two() {
                let message = format!("halving_doubling does not support a dimension of {} ranks", dimension.size);
                return Err(source.error(message, name.span()).hint("it requires a power of two; use ring or direct"));
            }
        }
    }
    table.lay_out(grid, devices.len() as u32);
    Ok(())
}

/// The ranks of a host, if it has several, are the first dimension; the network's dimensions follow. `None`: hosts have
/// different numbers of ranks, or ranks are not in the hosts' order.
fn grid(topology: &Topology, devices: &[Device]) -> Option<Grid> {
    let hosts = topology.dimensions();
    let count: u32 = hosts.iter().map(|dimension| dimension.size).product();
    let per_host = (devices.len() as u32).checked_div(count).filter(|per_host| *per_host > 0)?;
    let in_order = devices.iter().enumerate().all(|(rank, device)| device.host.0 == rank as u32 / per_host);
    let local = (per_host > 1).then_some(GridDimension { size: per_host, meshed: false });
    (in_order && per_host * count == devices.len() as u32)
        .then(|| Grid { dimensions: local.into_iter().chain(hosts).collect() })
}

#[cfg(test)]
mod tests {
    use super::super::{ClusterFile, Resolved};
    use super::*;
    use uniference_sim::ids::GroupRank;
    use uniference_sim::program::{Collective, CollectiveKind, DType, ReduceOp, Shape};

    fn resolve(device: &str, network: &str, rules: &str, choices: &Choices) -> Result<Resolved, Diagnostic> {
        let text = format!("[[device]]\nname = \"a\"\n{device}\n[network]\n{network}\n[collective]\n{rules}\n");
        ClusterFile::parse("c.toml", &text, &[])?.resolve(choices)
    }

    fn mistake(device: &str, network: &str, rules: &str) -> String {
        let error = resolve(device, network, rules, &Choices::default()).err().expect("a mistake");
        error.render(false)
    }

    const GRID: &str = "preset = \"dimensions\"\ndimensions = [{ kind = \"ring\", size = 4 }, { kind = \"fully_connected\", size = 3 }]";

    fn call() -> Collective {
        let shape = Shape::Even(1 << 20);
        Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::Float32,
            reduce: Some(ReduceOp::Sum),
            root: None,
            shape,
            kernel: None,
        }
    }

    /// Number of steps of a rank along each dimension: for C chunks, each has a reduce-scatter and an all-gather of 2
    /// (k - 1) steps.
    fn steps(resolved: &Resolved) -> Vec<usize> {
        let cluster = &resolved.cluster;
        let size = cluster.devices.len() as u32;
        let algorithm = cluster.backend.algorithms.algorithm(&call(), size);
        assert_eq!(algorithm.name(), "hierarchical");
        let first = algorithm.steps(&call(), size, GroupRank(1)).count();
        let others = algorithm.other_lanes(&call(), size, GroupRank(1)).into_iter().map(Iterator::count);
        std::iter::once(first).chain(others).collect()
    }

    #[test]
    fn ranks_lie_along_the_networks_dimensions() {
        let fabric = "preset = \"rail\"\nper_server = 4\nfabric = \"nvlink4\"";
        let cases = [
            ("count = 12", GRID, vec![4 * 12, 4 * 8]),
            ("count = 8", "preset = \"torus\"\ndims = [2, 2, 2]", vec![16, 16, 16]),
            ("count = 8", fabric, vec![4 * 12, 16]),
            ("count = 8", "preset = \"fat_tree\"\nhosts_per_leaf = 4\nspines = 2", vec![4 * 12, 16]),
            ("count = 6\nhost = \"h\"\nper_host = 3", "preset = \"switch\"", vec![4 * 8, 16]),
            ("count = 24\nhost = \"h\"\nper_host = 2", GRID, vec![16, 4 * 12, 4 * 8]),
        ];
        for (device, network, expected) in cases {
            let resolved = resolve(device, network, "all_reduce = \"hierarchical\"", &Choices::default()).unwrap();
            assert_eq!(steps(&resolved), expected, "{device} {network}");
            let again = ClusterFile::parse("again", &resolved.toml, &[]).unwrap().resolve(&Choices::default()).unwrap();
            assert_eq!((steps(&again), again.toml), (expected, resolved.toml));
        }
        let forced = Choices { algorithms: vec!["all_reduce=hierarchical".parse().unwrap()], ..Choices::default() };
        assert_eq!(steps(&resolve("count = 12", GRID, "", &forced).unwrap()), [4 * 12, 4 * 8]);
    }

    #[test]
    fn chunks_and_rows_are_kept_in_what_is_resolved() {
        let rules = "all_reduce = [{ up_to = \"1 KiB\", algorithm = \"ring\" }, { algorithm = \"hierarchical\", chunks = 2, dimensions = [\"halving_doubling\", \"ring\"] }]";
        let resolved = resolve("count = 12", GRID, rules, &Choices::default()).unwrap();
        // Halving and doubling of 4: 2 log2 4 steps each way.
        assert_eq!(steps(&resolved), [2 * 2 * 4, 2 * 2 * 4]);
        let again = ClusterFile::parse("again", &resolved.toml, &[]).unwrap().resolve(&Choices::default()).unwrap();
        assert_eq!((steps(&again), again.toml), (vec![16, 16], resolved.toml));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let grid = |rule: &str| mistake("count = 12", GRID, rule);
        let named = |more: &str| grid(&format!("all_reduce = {{ algorithm = \"hierarchical\", {more} }}"));
        let plain = "all_reduce = \"hierarchical\"";
        let forced = Choices { algorithms: vec!["all_gather=hierarchical".parse().unwrap()], ..Choices::default() };
        let shown = [
            mistake("count = 8", "preset = \"switch\"", plain),
            mistake("count = 8", "preset = \"torus\"\ndims = [8, 1]", plain),
            mistake("count = 3\nper_host = 2", "preset = \"switch\"", plain),
            resolve("count = 2", "preset = \"ring\"", "", &forced).err().unwrap().render(false),
            grid("broadcast = \"hierarchical\""),
            grid("all_reduce = { algorithm = \"ring\", chunks = 2 }"),
            named("chunks = 0"),
            named("dimensions = [\"ring\"]"),
            named("dimensions = [\"ring\", \"rnig\"]"),
            named("dimensions = [\"ring\", \"halving_doubling\"]"),
        ];
        insta::assert_snapshot!(shown.join("\n\n"));
    }
}
