//! Owns names for usual links, in place of their figures in a cluster file. docs/reference/backends.md has the sources
//! of the figures.

use crate::diagnostic::suggest;
use crate::units::{Bandwidth, Duration};

/// Name, rate in each direction and latency between two hosts or devices.
const LINKS: [(&str, &str, &str); 8] = [
    ("ethernet_1g", "1 Gbps", "50 us"),
    ("ethernet_10g", "10 Gbps", "20 us"),
    ("ethernet_25g", "25 Gbps", "20 us"),
    ("infiniband_hdr", "200 Gbps", "2 us"),
    ("infiniband_ndr", "400 Gbps", "2 us"),
    ("pcie4_x16", "25 GB/s", "1 us"),
    ("nvlink3", "240 GB/s", "700 ns"),
    ("nvlink4", "360 GB/s", "700 ns"),
];

/// Rate in each direction and latency of the link called `name`.
///
/// # Errors
/// If there is no such link; the text lists the known links.
pub(super) fn link(name: &str) -> Result<(Bandwidth, Duration), String> {
    let Some((_, bandwidth, latency)) = LINKS.iter().find(|(known, ..)| *known == name) else {
        let known = suggest(name, "link types", LINKS.iter().map(|(known, ..)| *known));
        return Err(format!("unknown link type `{name}`: {known}"));
    };
    let (bandwidth, latency) = (bandwidth.parse(), latency.parse());
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
        for (name, bandwidth, latency) in LINKS {
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

    #[test]
    fn the_documentation_has_them_all() {
        let documentation = include_str!("../../../../docs/reference/backends.md");
        for (name, bandwidth, latency) in LINKS {
            let row = documentation.lines().find(|line| line.contains(&format!("`\"{name}\"`")));
            let row = row.unwrap_or_else(|| panic!("{name} is not documented"));
            assert!(row.contains(bandwidth) && row.contains(latency), "{row}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        let error = resolve("link = \"nvlink5\"").err().unwrap().render(false);
        assert!(error.contains("unknown link type `nvlink5`: did you mean `nvlink3`?"), "{error}");
    }
}
