//! Owns the named clusters: cluster files of hardware that many people have, each for any number of servers, GPUs or
//! boards: `dgx-h100:8`.
//!
//! The files are data (`crates/formats/clusters`); a line of a file that depends on the number is written anew, so that
//! comments and all other lines stay as they are.

use crate::diagnostic::{Diagnostic, suggest};
use crate::units::counted;

/// Maximum number of devices of a named cluster; a cluster file has the same limit.
const MOST_DEVICES: u64 = super::devices::MOST_DEVICES;

/// A named cluster.
#[derive(Clone, Copy, Debug)]
pub struct NamedCluster {
    /// `dgx-h100`.
    pub name: &'static str,
    /// The thing that the number after the name counts.
    pub unit: Unit,
    /// The cluster file, for the number of devices that its `count` has.
    text: &'static str,
}

/// The thing that the number after the name of a cluster counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Servers or instances, each with the GPUs that `per_server` has.
    Server,
    /// Racks of which all GPUs are in one NVLink domain, each with the GPUs that `per_server` has.
    Rack,
    /// GPUs: fewer than a server has, or whole servers.
    Gpu,
    /// Boards or machines with one device each.
    Board,
}

impl Unit {
    /// The unit's noun.
    pub fn noun(self) -> &'static str {
        match self {
            Unit::Server => "server",
            Unit::Rack => "rack",
            Unit::Gpu => "GPU",
            Unit::Board => "board",
        }
    }
}

macro_rules! clusters {
    ($($name:literal: $unit:ident,)*) => {
        /// All named clusters, in the order in which they are listed.
        const CLUSTERS: &[NamedCluster] = &[$(NamedCluster {
            name: $name,
            unit: Unit::$unit,
            text: include_str!(concat!("../../clusters/", $name, ".toml")),
        },)*];
    };
}

clusters! {
    "dgx-a100": Server,
    "dgx-h100": Server,
    "hgx-h200": Server,
    "hgx-h20": Server,
    "hgx-h800": Server,
    "dgx-b200": Server,
    "dgx-b300": Server,
    "gb200-nvl72": Rack,
    "gb300-nvl72": Rack,
    "p4d.24xlarge": Server,
    "p5.48xlarge": Server,
    "p5en.48xlarge": Server,
    "g5.48xlarge": Server,
    "a3-high": Server,
    "a3-mega": Server,
    "h100-pcie": Gpu,
    "l40s-pcie": Gpu,
    "l4-pcie": Gpu,
    "rtx-4090": Gpu,
    "rtx-5090": Gpu,
    "mi300x": Gpu,
    "mi355x": Gpu,
    "dgx-spark": Board,
    "jetson-orin-nano": Board,
    "jetson-agx-orin": Board,
    "jetson-thor": Board,
    "raspberry-pi-5": Board,
}

/// All named clusters.
pub fn all() -> &'static [NamedCluster] {
    CLUSTERS
}

/// Whether `spec`, as `dgx-h100` or `dgx-h100:8`, starts with the name of a named cluster. Other texts are paths.
pub fn is_name(spec: &str) -> bool {
    CLUSTERS.iter().any(|cluster| cluster.name == split(spec).0)
}

/// The cluster file of `spec`.
///
/// # Errors
/// If there is no such cluster, or the number is none, zero, too large, or does not divide into whole servers.
pub fn text(spec: &str) -> Result<String, Diagnostic> {
    let (name, count) = split(spec);
    let Some(cluster) = CLUSTERS.iter().find(|cluster| cluster.name == name) else {
        let message = format!("there is no cluster named `{name}`");
        return Err(Diagnostic::new(message).hint(similar(name)));
    };
    let Some(count) = count else { return Ok(cluster.text.to_owned()) };
    let noun = cluster.unit.noun();
    let refuse = |message: String, hint: String| {
        Err(Diagnostic::new(message).at("--cluster", spec, spec.len() - count.len()..spec.len()).hint(hint))
    };
    let example = format!("write a number of {noun}s, for example {name}:{}", cluster.usual());
    let Ok(number) = count.parse::<u64>() else {
        return refuse(format!("`{count}` is not a number of {noun}s"), example);
    };
    match number.checked_mul(cluster.per_unit()) {
        Some(0) => refuse(format!("the number of {noun}s must be at least 1"), example),
        Some(devices) if devices <= MOST_DEVICES => cluster.with(devices).or_else(|servers| {
            let (below, above) = (devices / servers * servers, devices.div_ceil(servers) * servers);
            let message = format!("{} cannot be divided into servers of {servers}", counted(devices, noun));
            refuse(message, format!("write {name}:{below} or {name}:{above}, or up to {servers} {noun}s in one server"))
        }),
        _ => refuse(format!("{} are more than {MOST_DEVICES} devices", counted(number, noun)), example),
    }
}

/// The error for a word that is neither a file nor the name of a cluster.
pub fn unknown(spec: &str) -> Diagnostic {
    let name = split(spec).0;
    let message = format!("there is no cluster named `{name}`, and no file of this name");
    Diagnostic::new(message).hint(format!("{}; a cluster file is given by its path", similar(name)))
}

/// A hint with similar names of clusters.
fn similar(name: &str) -> String {
    let names = || CLUSTERS.iter().map(|cluster| cluster.name);
    let near = match names().find(|other| !name.is_empty() && other.starts_with(name)) {
        Some(longer) => format!("did you mean `{longer}`?"),
        None => suggest(name, "named clusters", names()),
    };
    let end = if near.ends_with('?') { "" } else { "." };
    format!("{near}{end} `uniference cluster list` shows all names")
}

/// The name, and the number after the last colon.
fn split(spec: &str) -> (&str, Option<&str>) {
    spec.rsplit_once(':').map_or((spec, None), |(name, count)| (name, Some(count)))
}

impl NamedCluster {
    /// The hardware, from the file's first line, without its full stop.
    pub fn about(&self) -> &'static str {
        let line = self.text.lines().next().unwrap_or_default();
        line.trim_start_matches("# ").trim_end_matches('.')
    }

    /// The number of units in the file itself.
    pub fn usual(&self) -> u64 {
        self.number("count").expect("a named cluster has a count") / self.per_unit()
    }

    /// The number of devices that one unit has.
    fn per_unit(&self) -> u64 {
        match self.unit {
            Unit::Server | Unit::Rack => self.per_server(),
            Unit::Gpu | Unit::Board => 1,
        }
    }

    fn per_server(&self) -> u64 {
        self.number("per_server").unwrap_or(1)
    }

    /// The value of a key that stands at the start of a line.
    fn number(&self, key: &str) -> Option<u64> {
        let value = self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        value.split_whitespace().next()?.parse().ok()
    }

    /// The file for a number of devices. GPUs that are fewer than a server has are in one server, and share its NICs if
    /// they can be divided among them.
    ///
    /// # Errors
    /// The number of GPUs in a server, if the devices are no whole number of servers.
    fn with(&self, devices: u64) -> Result<String, u64> {
        let whole = self.per_server();
        let per_server = if self.unit == Unit::Gpu { whole.min(devices) } else { whole };
        if !devices.is_multiple_of(per_server) {
            return Err(whole);
        }
        let nics = self.number("nics").map(|nics| if per_server.is_multiple_of(nics) { nics } else { 1 });
        let values = [("count", Some(devices)), ("per_server", Some(per_server)), ("nics", nics)];
        let line = |line: &str| {
            let changed = values.iter().find_map(|(key, value)| {
                line.strip_prefix(key)?.strip_prefix(" = ")?;
                Some(format!("{key} = {}", (*value)?))
            });
            changed.unwrap_or_else(|| line.to_owned()) + "\n"
        };
        Ok(self.text.lines().map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;

    fn resolved(spec: &str) -> Resolved {
        let text = text(spec).unwrap_or_else(|error| panic!("{error}"));
        let file = ClusterFile::parse(spec, &text, &[]).unwrap_or_else(|error| panic!("{error}"));
        file.resolve(&Choices::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refused(spec: &str) -> String {
        text(spec).expect_err("a mistake").render(false)
    }

    /// Servers by number of GPUs.
    fn servers(resolved: &Resolved) -> Vec<usize> {
        let server = |rank: usize| resolved.cluster.topology.server(resolved.cluster.devices[rank].host);
        let ranks: Vec<u32> = (0..resolved.cluster.devices.len()).map(server).collect();
        ranks.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
    }

    #[test]
    fn every_file_is_a_cluster_with_a_source_in_any_number() {
        for cluster in all() {
            assert!(cluster.text.contains("\n# Source: "), "{}", cluster.name);
            assert!(cluster.text.contains(&format!("\nname = \"{}\"\n", cluster.name)), "{}", cluster.name);
            assert_eq!(cluster.text.matches("\ncount = ").count(), 1, "{}", cluster.name);
            let usual = resolved(cluster.name);
            assert!(usual.models.iter().all(Option::is_some), "{}", cluster.name);
            assert!(usual.cluster.devices.iter().all(|device| device.memory.is_some()), "{}", cluster.name);
            for number in [1, cluster.usual(), 8 * cluster.usual()] {
                let devices = resolved(&format!("{}:{number}", cluster.name)).cluster.devices.len() as u64;
                assert_eq!(devices, number * cluster.per_unit(), "{}:{number}", cluster.name);
            }
        }
    }

    #[test]
    fn the_number_counts_servers_gpus_or_boards() {
        assert_eq!(servers(&resolved("dgx-h100:8")), [8; 8]);
        assert_eq!(servers(&resolved("gb200-nvl72:2")), [72; 2]);
        assert_eq!(servers(&resolved("l40s-pcie:8")), [8]);
        assert_eq!(servers(&resolved("l40s-pcie:16")), [8; 2]);
        assert_eq!(servers(&resolved("rtx-4090:4")), [4]);
        // Three GPUs cannot be divided among two NICs.
        assert_eq!(servers(&resolved("l40s-pcie:3")), [3]);
        assert_eq!(servers(&resolved("jetson-orin-nano:8")), [1; 8]);
        // The file's text is kept, comments included.
        let text = text("dgx-h100:8").unwrap();
        assert!(text.starts_with("# NVIDIA DGX H100") && text.contains("\ncount = 64\n"), "{text}");
    }

    #[test]
    fn numbers_and_names_that_do_not_fit_are_refused() {
        let shown = [
            "dgx-h100:0",
            "dgx-h100:1e9",
            "dgx-h100:1000000000",
            "dgx-h100:99999999999999999999999",
            "dgx-h100:18446744073709551615",
            "dgx-h100:-1",
            "dgx-h100:",
            "l40s-pcie:12",
            "dgx-h10:8",
            "raspberry-pi:4",
            "",
        ]
        .map(refused);
        let no_file = unknown("dgx-h10:8").render(false);
        insta::assert_snapshot!(format!("{}\n\n{no_file}", shown.join("\n\n")));
        assert!(is_name("dgx-h100:x") && is_name("p5.48xlarge") && !is_name("dgx-h100.toml") && !is_name("H100"));
    }
}
