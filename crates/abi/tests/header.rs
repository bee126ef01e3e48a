//! Writes the C++ header of the interface, and checks that the file in `cpp/` is up to date.

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use uniference_abi::calls::{Call, Memory, Text};
use uniference_abi::capture::{Functions, Launches};

const NOTICE: &str = "// Owns the numbers and structures that C++ shares with Rust. Generated from crates/abi: change the source there, then run
// UNIFERENCE_WRITE=1 cargo test -p uniference-abi";

/// Assertions that a structure has the same layout in C++.
macro_rules! layout {
    ($text:ident, $name:ident: $($field:ident)*) => {
        writeln!($text, "static_assert(sizeof({0}) == {1} && alignof({0}) == {2});", stringify!($name), size_of::<$name>(), align_of::<$name>()).unwrap();
        $(writeln!($text, "static_assert(offsetof({}, {}) == {});", stringify!($name), stringify!($field), offset_of!($name, $field)).unwrap();)*
    };
}

fn layouts() -> String {
    let mut text = "\n// Layouts of the structures in Rust.\n".to_owned();
    layout!(text, Text: data length);
    layout!(text, Memory: address bytes);
    layout!(text, Call: operation dtype reduction has_values group peer kernel elements input output site timeout stream first
        number);
    layout!(text, Launches: kernel launch copy record wait_event external_record external_wait capture graph_launch
        captured_call graph_resume host_function number running_operator launches);
    layout!(text, Functions: version take inside thread log is_compiling combine scale is_large site launches);
    text
}

fn header() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut config = cbindgen::Config {
        language: cbindgen::Language::Cxx,
        pragma_once: true,
        namespaces: Some(vec!["uniference".into(), "shared".into()]),
        header: Some(NOTICE.into()),
        no_includes: true,
        usize_is_size_t: true,
        sys_includes: ["cstddef", "cstdint"].map(String::from).to_vec(),
        documentation_style: cbindgen::DocumentationStyle::C99,
        line_length: 120,
        tab_width: 2,
        ..cbindgen::Config::default()
    };
    config.export.include =
        ["Tag", "ArgumentTag", "MemoryKind", "CopyKind", "Operation", "Call", "Functions", "CallOutcome"]
            .map(String::from)
            .to_vec();
    config.enumeration.prefix_with_name = false;
    config.constant.allow_constexpr = true;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["entries.rs", "calls.rs", "capture.rs"] {
        builder = builder.with_src(source.join(file));
    }
    let mut written = Vec::new();
    builder.generate().expect("the sources are valid").write(&mut written);
    let text = String::from_utf8(written).expect("C++ is UTF-8");
    // The assertions of layouts are inserted before the namespaces end.
    let end = text.find("\n}  // namespace").or_else(|| text.find("\n} // namespace")).expect("there are namespaces");
    let (body, end) = text.split_at(end);
    format!("{body}{}{end}", layouts())
}

#[test]
fn header_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cpp/abi.h");
    let header = header();
    if std::env::var_os("UNIFERENCE_WRITE").is_some() {
        return std::fs::write(path, header).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(
        found == header,
        "cpp/abi.h differs from crates/abi: write it with UNIFERENCE_WRITE=1 cargo test -p uniference-abi"
    );
}
