//! Owns names for usual links, in place of their figures in a cluster file.
//!
//! The table is data (`links.csv`), with the source of each row; `docs/reference/hardware.md` shows it.

use crate::diagnostic::suggest;
use crate::units::{Bandwidth, Duration};
use std::sync::LazyLock;

static TABLE: LazyLock<Vec<KnownLink>> = LazyLock::new(|| {
    let mut reader = csv::Reader::from_reader(include_str!("links.csv").as_bytes());
    reader.deserialize().map(|row| row.expect("the table has all columns")).collect()
});

/// A link of the table.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct KnownLink {
    /// `nvlink4`.
    pub name: String,
    /// The hardware, for people.
    pub hardware: String,
    /// Rate in each direction, with its unit.
    pub bandwidth: String,
    /// Latency between two hosts, or between two GPUs of a server, with its unit.
    pub latency: String,
    /// Whether the rate is raw, or the payload's share of the raw rate.
    pub counted: String,
    /// Source of the figures.
    pub source: String,
}

/// All links, in the order of the table.
pub fn known_links() -> &'static [KnownLink] {
    &TABLE
}

/// Rate in each direction and latency of the link called `name`.
///
/// # Errors
/// If there is no such link; the text lists the known links.
pub(super) fn link(name: &str) -> Result<(Bandwidth, Duration), String> {
    let Some(link) = TABLE.iter().find(|link| link.name == name) else {
        let known = suggest(name, "link types", TABLE.iter().map(|link| link.name.as_str()));
        let more = if known.ends_with('?') { "" } else { "; the page \"Clusters, links and devices by name\" has all" };
        return Err(format!("unknown link type `{name}`\nhint: {known}{more}"));
    };
    let (bandwidth, latency) = (link.bandwidth.parse(), link.latency.parse());
    Ok((bandwidth.expect("it is a rate"), latency.expect("it is a time")))
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;
    use crate::diagnostic::Diagnostic;

    const DEVICES: &str = "[[device]]\nname = \"a\"\ncount = 4\nhost = \"h\"\nper_host = 2\n";

    fn resolve(network: &str) -> Result<Resolved, Diagnostic> {
        ClusterFile::parse("c.toml", &format!("{DEVICES}[network]\n{network}\n"), &[])?.resolve(&Choices::default())
    }

    /// A name stands for its figures wherever a link is described; a figure next to the name overrides the name's.
    #[test]
    fn every_name_is_its_figures() {
        for KnownLink { name, bandwidth, latency, .. } in known_links() {
            let figures = format!("bandwidth = \"{bandwidth}\", latency = \"{latency}\"");
            let named = resolve(&format!("link = \"{name}\"\nlocal = \"{name}\"")).unwrap();
            let spelled = resolve(&format!("{}\nlocal = {{ {figures} }}", figures.replace(", ", "\n"))).unwrap();
            assert_eq!(named.toml, spelled.toml);
            let both = resolve(&format!("link = \"{name}\"\nlatency = \"9 ms\"\nlocal = \"{name}\"")).unwrap();
            assert_eq!(
                both.toml,
                resolve(&format!(
                    "{}\nlatency = \"9 ms\"\nlocal = {{ {figures} }}",
                    figures.split(", ").next().unwrap()
                ))
                .unwrap()
                .toml
            );
        }
        let rail = resolve("preset = \"rail\"\nper_server = 2\nfabric = \"nvlink4\"\nlink = \"infiniband_ndr\"");
        let figures =
            "bandwidth = \"400 Gbps\"\nlatency = \"2 us\"\nfabric = { bandwidth = \"360 GB/s\", latency = \"700 ns\" }";
        let spelled = resolve(&format!("preset = \"rail\"\nper_server = 2\n{figures}")).unwrap();
        assert_eq!(rail.unwrap().toml, spelled.toml);
    }

    /// Published names and figures stay as they are: other files and models depend on them.
    #[test]
    fn figures_of_established_names_do_not_change() {
        for (name, bandwidth, latency) in [
            ("ethernet_1g", "1 Gbps", "50 us"),
            ("ethernet_10g", "10 Gbps", "20 us"),
            ("ethernet_25g", "25 Gbps", "20 us"),
            ("infiniband_hdr", "200 Gbps", "2 us"),
            ("infiniband_ndr", "400 Gbps", "2 us"),
            ("pcie4_x16", "25 GB/s", "1 us"),
            ("nvlink3", "240 GB/s", "700 ns"),
            ("nvlink4", "360 GB/s", "700 ns"),
        ] {
            assert_eq!(link(name), Ok((bandwidth.parse().unwrap(), latency.parse().unwrap())), "{name}");
        }
    }

    /// Half of the lanes have half of the rate, and each generation doubles it; RoCE carries 4096 of 4178 bytes.
    #[test]
    fn rates_follow_from_standards() {
        let gigabytes = |name: &str| link(name).unwrap().0.0.bytes_per_second() / 1e9;
        for version in 3..=6 {
            let [half, whole] = [8, 16].map(|lanes| gigabytes(&format!("pcie{version}_x{lanes}")));
            assert!((half / whole - 0.5).abs() < 0.01, "PCIe {version}");
            // 0.8 of the rate after line coding: 128b/130b, and 242 B in flits of 256 B from version 6 on.
            let coding = if version < 6 { 128.0 / 130.0 } else { 242.0 / 256.0 };
            let raw = f64::from(1 << version) * 2.0 * coding;
            assert!((whole / (0.8 * raw) - 1.0).abs() < 0.02, "PCIe {version}: {whole} of {raw}");
        }
        for rate in [100, 200, 400, 800] {
            let payload = f64::from(rate) / 8.0 * 4096.0 / 4178.0;
            assert!((gigabytes(&format!("roce_{rate}g")) / payload - 1.0).abs() < 0.001, "{rate}");
        }
    }

    #[test]
    fn names_are_unique_and_rows_have_sources() {
        let names: std::collections::BTreeSet<&str> = known_links().iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names.len(), known_links().len());
        assert!(known_links().iter().all(|link| !link.source.is_empty() && !link.counted.is_empty()));
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        let refused = |name: &str| resolve(&format!("link = \"{name}\"")).err().unwrap().render(false);
        for (name, nearest) in [("nvlnk5", "nvlink5"), ("infiniband_xrd", "infiniband_xdr"), ("pcie5x16", "pcie5_x16")]
        {
            let error = refused(name);
            assert!(error.contains(&format!("unknown link type `{name}`")), "{error}");
            assert!(error.contains(&format!("hint: did you mean `{nearest}`?")), "{error}");
        }
    }
}
