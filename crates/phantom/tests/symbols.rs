//! Checks that the built library exports every function in the tables of `symbols/`.

use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

#[test]
fn every_name_of_the_tables_is_exported() -> Result<(), Box<dyn Error>> {
    // Cargo builds the library in the folder of its tests.
    let library = std::env::current_exe()?.with_file_name("libuniference_phantom.so");
    let bytes = fs::read(&library)?;
    let file = object::File::parse(&*bytes)?;
    let exported: BTreeSet<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    let mut missing = Vec::new();
    let mut tables = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols"))? {
        let text = fs::read_to_string(entry?.path())?;
        let names = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
        missing.extend(names.filter(|name| !exported.contains(name)).map(str::to_owned));
        tables += 1;
    }
    assert_eq!(tables, uniference_abi::gpus::SONAMES.len(), "one table for each library");
    assert!(missing.is_empty(), "not exported: {missing:?}");
    Ok(())
}
