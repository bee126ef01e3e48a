//! Keeps `docs/reference/hardware.md` equal to the tables of links, devices and named clusters.

use std::fmt::Write;
use std::{env, fs};
use uniference_formats::cluster::{known_links, named};
use uniference_formats::devices;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/hardware.md");

/// A text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn clusters() -> String {
    let mut table = "| cluster | the number counts | without a number | hardware |\n|---|---|---|---|\n".to_owned();
    for cluster in named::all() {
        let (name, noun, usual, about) = (cluster.name, cluster.unit.noun(), cluster.usual(), cluster.about());
        writeln!(table, "| `{name}` | {noun}s | {usual} | {} |", cell(about)).unwrap();
    }
    table
}

fn links() -> String {
    let head =
        "| link | hardware | bandwidth, each direction | latency | counted | source |\n|---|---|---|---|---|---|\n";
    let mut table = head.to_owned();
    for link in known_links() {
        let [hardware, counted, source] = [&link.hardware, &link.counted, &link.source].map(|text| cell(text));
        let (name, bandwidth, latency) = (&link.name, &link.bandwidth, &link.latency);
        writeln!(table, "| `{name}` | {hardware} | `{bandwidth}` | `{latency}` | {counted} | {source} |").unwrap();
    }
    table
}

fn devices() -> String {
    let columns = [
        ("memory", "memory"),
        ("memory_bandwidth", "memory bandwidth"),
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float8", "float8"),
        ("int8", "int8"),
        ("local links", "links"),
        ("local links, one direction", "links, one direction"),
        ("power, cap", "power"),
    ];
    let titles: String = columns.iter().map(|(_, title)| format!(" {title} |")).collect();
    let mut table = format!("| device |{titles} source |\n|---|{}---|\n", "---|".repeat(columns.len()));
    for device in devices::all() {
        let figures = device.figures();
        let figure = |(name, _): &(&str, &str)| {
            let value = figures.iter().find(|(figure, _)| figure == name).and_then(|(_, value)| value.clone());
            format!(" {} |", value.unwrap_or_default()).replace("  |", " |")
        };
        let values: String = columns.iter().map(figure).collect();
        writeln!(table, "| `{}` |{values} {} |", device.name, cell(&device.source)).unwrap();
    }
    table
}

/// With UPDATE_DOCUMENTATION set, the test updates the page.
#[test]
fn the_documentation_has_the_tables_of_hardware() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut written = page.clone();
    for (name, table) in [("clusters", clusters()), ("links", links()), ("devices", devices())] {
        let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let (head, rest) = written.split_once(&start).expect("a mark where the table begins");
        let (_, tail) = rest.split_once(&end).expect("a mark where the table ends");
        written = format!("{head}{start}{table}{end}{tail}");
    }
    if env::var_os("UPDATE_DOCUMENTATION").is_some() {
        fs::write(PAGE, &written).unwrap();
    }
    assert!(
        written == page || env::var_os("UPDATE_DOCUMENTATION").is_some(),
        "docs/reference/hardware.md is not what the tables say: run the test once more with UPDATE_DOCUMENTATION=1"
    );
}
