//! Generates a function for each name of `symbols/` that no file of `src/` defines: it reports its name once and
//! returns its library's error.
//!
//! A name counts as defined if it is a word of a file outside of comments and strings. `tests/symbols.rs` checks that
//! all names are exported.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src\ncargo::rerun-if-changed=symbols");
    // The libraries with NVIDIA's names, which the driver writes, refer to this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuniference_phantom.so");
    let mut words = BTreeSet::new();
    collect(Path::new("src"), &mut words)?;
    let mut tables =
        fs::read_dir("symbols")?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    tables.sort();
    let mut missing = String::new();
    for path in tables {
        let library =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split('.').next()).unwrap_or("?");
        let text = fs::read_to_string(&path)?;
        let error = text
            .lines()
            .find_map(|line| line.strip_prefix("# error ")?.split(' ').next())
            .ok_or("a table without its error")?;
        writeln!(missing, "missing! {{ \"{library}\";")?;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, kind) = line.split_once(' ').unwrap_or((line, ""));
            if !words.contains(name) {
                writeln!(missing, "    {name} {},", if kind.is_empty() { error } else { "0" })?;
            }
        }
        writeln!(missing, "}}")?;
    }
    Ok(fs::write(Path::new(&std::env::var("OUT_DIR")?).join("missing.rs"), missing)?)
}

/// Adds the words of all files below a folder, without comments and strings.
fn collect(folder: &Path, words: &mut BTreeSet<String>) -> Result<(), std::io::Error> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, words)?;
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let code = line.split("//").next().unwrap_or_default();
            let outside = code.split('"').step_by(2);
            let parts = outside.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'));
            words.extend(parts.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    Ok(())
}
