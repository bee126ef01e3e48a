//! Owns algorithms that are given step by step, in a file of their own or in the cluster file: their notation and its
//! reading. The simulator checks whether the steps carry out the collective.

use super::dynamics::Attachments;
use super::raw::{RawPlan, RawRules, RawStep, RawSteps};
use super::source::{Source, split_hint};
use super::{kind_by_name, suggest_kind};
use crate::diagnostic::Diagnostic;
use std::collections::BTreeMap;
use toml::Spanned;
use uniference_sim::collective::choose::{AlgorithmTable, algorithms_for};
use uniference_sim::collective::given::{Given, GivenStep, Plan};
use uniference_sim::program::CollectiveKind;

/// The algorithm of `kind` that a rule defines; `otherwise` serves groups of another size.
pub(super) fn algorithm(
    kind: CollectiveKind,
    steps: &Spanned<RawSteps>,
    otherwise: AlgorithmTable,
    attached: &Attachments,
    source: &Source,
) -> Result<Given, Diagnostic> {
    let raw = read(steps.get_ref(), attached).map_err(|problem| refuse(&problem, steps, source))?;
    let plan = plan(kind, &raw).map_err(|problem| refuse(&problem, steps, source))?;
    let name = plan.name;
    Given::new(plan, otherwise).map_err(|error| refuse(&format!("{name}: {error}"), steps, source))
}

fn refuse(problem: &str, steps: &Spanned<RawSteps>, source: &Source) -> Diagnostic {
    let (message, hint) = split_hint(problem);
    source.error(message, steps.span()).hint(hint.unwrap_or("see \"Cluster file\" in the documentation for an example"))
}

/// The content of a rule's steps; the file's name is the default name.
fn read(steps: &RawSteps, attached: &Attachments) -> Result<RawPlan, String> {
    match steps {
        RawSteps::Plan(plan) => Ok(plan.clone()),
        RawSteps::File(name) => {
            let text = attached.get(name).ok_or_else(|| format!("`{name}` was not loaded"))?;
            let plan: RawPlan = toml::from_str(text).map_err(|error| format!("{name}: {}", error.message()))?;
            Ok(RawPlan { name: plan.name.or_else(|| Some(name.clone())), ..plan })
        }
    }
}

fn plan(kind: CollectiveKind, raw: &RawPlan) -> Result<Plan, String> {
    let RawPlan { collective, name, blocks, rank } = raw;
    let name = name.as_deref().unwrap_or("steps");
    if kind_by_name(collective).is_none() {
        return Err(format!("{name}: unknown collective `{collective}`\nhint: {}", suggest_kind(collective)));
    }
    if kind.name() != collective {
        return Err(format!(
            "the algorithm in {name} is for {collective}, not {kind}\nhint: use it for {collective}, or give another file for {kind}"
        ));
    }
    if algorithms_for(kind).iter().any(|known| known.name() == name) {
        return Err(format!("duplicate algorithm name `{name}`\nhint: choose another name"));
    }
    let mut ranks = Vec::new();
    for (number, rank) in rank.iter().enumerate() {
        let step = |(index, step): (usize, &RawStep)| {
            given(index, *step).map_err(|problem| format!("{name}: rank {number}, step {index}: {problem}"))
        };
        ranks.push(rank.steps.iter().enumerate().map(step).collect::<Result<_, _>>()?);
    }
    // Names of algorithms live as long as the process, like built-in names; a cluster file has few of them.
    Ok(Plan { name: Box::leak(name.to_owned().into_boxed_str()), kind, blocks: *blocks, ranks })
}

fn given(index: usize, raw: RawStep) -> Result<GivenStep, String> {
    let RawStep { send, recv, block, count, combine, after } = raw;
    let (sends, peer) = match (send, recv) {
        (Some(peer), None) => (true, peer),
        (None, Some(peer)) => (false, peer),
        _ => return Err("a step needs either `send` or `recv`\nhint: give one of them, with the other rank".to_owned()),
    };
    if block.is_none() && (count.is_some() || combine) {
        return Err("a step needs at least one block\nhint: give the first block as `block` and the number of blocks as `count`".to_owned());
    }
    let count = count.unwrap_or(block.is_some().into());
    let after = after.unwrap_or(index as u32);
    Ok(GivenStep { sends, peer, block: block.unwrap_or(0), count, combine, after })
}

/// The files that rules name.
pub(super) fn files(rules: &BTreeMap<Spanned<String>, Spanned<RawRules>>) -> impl Iterator<Item = String> {
    let steps = rules.values().flat_map(|rules| &rules.get_ref().0).filter_map(|rule| rule.steps.as_ref());
    steps.filter_map(|steps| match steps.get_ref() {
        RawSteps::File(name) => Some(name.clone()),
        RawSteps::Plan(_) => None,
    })
}

/// The rules with files' contents in place of their names. The files were read before.
pub(super) fn inline(rules: &RawRules, attached: &Attachments) -> RawRules {
    let mut rules = rules.clone();
    for steps in rules.0.iter_mut().filter_map(|rule| rule.steps.as_mut()) {
        let plan = read(steps.get_ref(), attached).expect("what was resolved can be read");
        *steps.get_mut() = RawSteps::Plan(plan);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;
    use uniference_sim::collective::Action;
    use uniference_sim::collective::choose::algorithm_by_name;
    use uniference_sim::ids::GroupRank;
    use uniference_sim::program::{Collective, DType, Shape};
    use uniference_sim::time::Bytes;

    const RING: &str = include_str!("../../../../examples/steps/ring-of-four.toml");

    fn resolve(rules: &str, steps: &str) -> Result<Resolved, Diagnostic> {
        let text = format!("[[device]]\nname = \"a\"\ncount = 4\n[network]\n[collective]\n{rules}\n");
        let mut file = ClusterFile::parse("c.toml", &text, &[])?;
        for name in file.files() {
            file.attach(name, steps.to_owned());
        }
        file.resolve(&Choices::default())
    }

    fn all_reduce(elements: u64) -> Collective {
        let kind = CollectiveKind::AllReduce;
        Collective { kind, dtype: DType::Float32, reduce: None, root: None, shape: Shape::Even(elements), kernel: None }
    }

    #[test]
    fn the_ring_of_the_examples_is_our_ring() {
        let rules =
            "all_reduce = [{ up_to = \"8 B\", algorithm = \"recursive_doubling\" }, { steps = \"ring-of-four.toml\" }]";
        let table = resolve(rules, RING).unwrap();
        let table = table.cluster.backend.algorithms;
        let ring = algorithm_by_name(CollectiveKind::AllReduce, "ring").unwrap();
        assert_eq!(table.choose(CollectiveKind::AllReduce, Bytes(8)).name(), "recursive_doubling");
        for elements in [3, 4, 1_000, 1_000_003] {
            let call = all_reduce(elements);
            let given = table.algorithm(&call, 4);
            assert_eq!(given.name(), "ring-of-four.toml");
            for me in (0..4).map(GroupRank) {
                assert!(given.steps(&call, 4, me).eq(ring.steps(&call, 4, me)), "{elements} elements, {me}");
            }
            assert_eq!(table.algorithm(&call, 3).name(), "gloo_ring");
        }
    }

    /// For 1,000 bytes per pair, ranks 0 and 2 send their own three blocks and forward four; ranks 1 and 3 send three
    /// blocks in two messages.
    #[test]
    fn the_all_to_all_of_the_examples_passes_blocks_on() {
        let plan = include_str!("../../../../examples/steps/two-hosts.toml");
        let table = resolve("all_to_all = { steps = \"two-hosts.toml\" }", plan).unwrap().cluster.backend.algorithms;
        let kind = CollectiveKind::AllToAll;
        let call =
            Collective { kind, dtype: DType::UInt8, reduce: None, root: None, shape: Shape::Even(1_000), kernel: None };
        let sent = |me: u32| {
            let steps = table.algorithm(&call, 4).steps(&call, 4, GroupRank(me));
            let sends = steps.filter_map(|step| match step.action {
                Action::Send { span, .. } => Some(span.len),
                Action::Recv { .. } => None,
            });
            sends.fold((0, 0), |(messages, bytes), len| (messages + 1, bytes + len))
        };
        assert_eq!([0, 1, 2, 3].map(sent), [(5, 7_000), (2, 3_000), (5, 7_000), (2, 3_000)]);
    }

    #[test]
    fn the_resolved_text_needs_no_file() {
        let first = resolve("all_reduce = { steps = \"ring-of-four.toml\" }", RING).unwrap();
        let file = ClusterFile::parse("again", &first.toml, &[]).unwrap();
        assert!(file.files().is_empty());
        assert_eq!(file.resolve(&Choices::default()).unwrap().toml, first.toml);
    }

    #[test]
    fn the_example_of_the_documentation_is_right() {
        let text = include_str!("../../../../docs/reference/cluster-file.md");
        let block = text.split("```toml steps\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        resolve("all_reduce = { steps = \"halves.toml\" }", block).map_err(|error| error.render(false)).unwrap();
    }

    #[test]
    fn mistakes_are_refused_with_a_hint() {
        let whole = "all_reduce = { steps = \"mine.toml\" }";
        let cases = [
            (whole, "collective = \"all_gather\"\nblocks = 4\nrank = []\n".to_owned()),
            (whole, "collective = \"all_red\"\nrank = []\n".to_owned()),
            (whole, RING.replacen("recv = 3", "get = 3", 1)),
            (whole, RING.replacen("send = 1, block = 3, after = 0", "send = 1, recv = 1, block = 3", 1)),
            (whole, RING.replacen("send = 1, block = 3,", "send = 1, count = 2,", 1)),
            (whole, RING.replacen(", combine = true", "", 1)),
            (whole, RING.replacen("blocks = 4", "name = \"ring\"\nblocks = 4", 1)),
            ("all_reduce = { algorithm = \"ring\", steps = \"mine.toml\" }", RING.to_owned()),
            ("all_reduce = [{ up_to = \"1 B\", steps = \"mine.toml\" }, { steps = \"mine.toml\" }]", RING.to_owned()),
        ];
        let shown: Vec<String> =
            cases.iter().map(|(rules, steps)| resolve(rules, steps).err().unwrap().render(false)).collect();
        insta::assert_snapshot!(shown.join("\n"));
    }
}
