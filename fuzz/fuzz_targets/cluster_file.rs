//! Cluster files are accepted or refused; an accepted file's description parses to the same cluster.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::cluster::{Choices, ClusterFile};

fuzz_target!(|text: &str| {
    let Ok(file) = ClusterFile::parse("fuzz.toml", text, &[]) else { return };
    let Ok(resolved) = file.resolve(&Choices::default()) else { return };
    let again = ClusterFile::parse("again.toml", &resolved.toml, &[]).expect("its own description");
    let again = again.resolve(&Choices::default()).expect("its own description");
    assert_eq!(again.toml, resolved.toml);
});
