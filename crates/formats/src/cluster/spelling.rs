//! Owns the units of a resolved cluster for people: each quantity is spelled as in the user's text, if the text has the
//! same quantity.

use super::hardware::known_links;
use crate::units::{Bandwidth, Duration, Size};
use toml::{Table, Value};

/// The resolved cluster file `resolved` in the units of `text`, the user's file. It resolves to the same cluster.
pub fn in_units_of(resolved: &str, text: &str) -> String {
    let table: Table = text.parse().unwrap_or_default();
    let mut written = Vec::new();
    table.values().for_each(|value| collect(value, &mut written));
    let line = |line: &str| {
        let quoted = line.split_once(" = \"").and_then(|(key, rest)| Some((key, rest.strip_suffix('"')?)));
        match quoted.and_then(|(key, value)| Some((key, written.iter().find(|other| is_same(value, other))?))) {
            Some((key, value)) => format!("{key} = \"{value}\"\n"),
            None => format!("{line}\n"),
        }
    };
    resolved.lines().map(line).collect()
}

/// Appends all texts of a value, and the figures of links that it names.
fn collect<'a>(value: &'a Value, written: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => {
            written.push(text);
            let links = known_links().iter().filter(|link| link.name == *text);
            written.extend(links.flat_map(|link| [link.bandwidth.as_str(), &link.latency]));
        }
        Value::Array(elements) => elements.iter().for_each(|element| collect(element, written)),
        Value::Table(table) => table.values().for_each(|value| collect(value, written)),
        _ => {}
    }
}

/// Whether two texts are the same quantity.
fn is_same(a: &str, b: &str) -> bool {
    let bandwidth = |text: &str| text.parse::<Bandwidth>().ok();
    let time = |text: &str| text.parse::<Duration>().ok();
    let size = |text: &str| text.parse::<Size>().ok();
    (bandwidth(a).is_some() && bandwidth(a) == bandwidth(b))
        || (time(a).is_some() && time(a) == time(b))
        || (size(a).is_some() && size(a) == size(b))
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile};
    use super::*;

    #[test]
    fn quantities_keep_their_units() {
        let text = "[[device]]\nname = \"a\"\ncount = 2\nmemory = \"8192 MiB\"\n[network]\npreset = \"server\"\n\
                    per_server = 2\nfabric = { bandwidth = \"2880 Gbps\", latency = \"0.7 us\" }\nlink = \"infiniband_ndr\"\n";
        let resolve = |text: &str| ClusterFile::parse("c", text, &[]).unwrap().resolve(&Choices::default()).unwrap();
        let plain = resolve(text).toml;
        let spelled = in_units_of(&plain, text);
        for line in
            ["memory = \"8192 MiB\"", "bandwidth = \"2880 Gbps\"", "latency = \"0.7 us\"", "bandwidth = \"400 Gbps\""]
        {
            assert!(spelled.lines().any(|other| other == line), "{line} in\n{spelled}");
            assert!(!plain.lines().any(|other| other == line), "{line} in\n{plain}");
        }
        assert_eq!(resolve(&spelled).toml, plain);
    }
}
