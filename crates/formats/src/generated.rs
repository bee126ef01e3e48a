//! Owns the comparison of generated parts of files with their sources, for the tests of this crate. With
//! `UPDATE_DOCUMENTATION` set, the parts are written anew.

use std::path::Path;

/// Compares `text` with the part of a file of the repository between the two lines.
///
/// # Panics
/// If they differ, unless the part is written; and if the file lacks a line.
pub(crate) fn keep(file: &str, [begin, end]: [&str; 2], text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let whole = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("{begin}\n"), format!("{end}\n"));
    let (head, rest) = whole.split_once(&begin).unwrap_or_else(|| panic!("{file} lacks the line {begin}"));
    let (part, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("{file} lacks the line {end}"));
    if std::env::var_os("UPDATE_DOCUMENTATION").is_some() {
        std::fs::write(path, format!("{head}{begin}{text}{end}{tail}")).unwrap();
    } else {
        assert_eq!(part, text, "{file} is out of date: run the test once more with UPDATE_DOCUMENTATION=1");
    }
}
