//! Sweep files are accepted or refused; every point of an accepted file is a command.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use uniference_formats::sweep::{Sweep, Value};

fuzz_target!(|text: &str| {
    let Ok(sweep) = Sweep::parse("fuzz.toml", text) else { return };
    for share in [0.0, 0.5, 0.999] {
        let point: Vec<Value> = sweep.parameters.iter().map(|parameter| parameter.domain.at(share)).collect();
        assert!(!sweep.words(&point, Path::new("folder")).all(&[]).is_empty());
        let number = |name: &str| {
            let at = sweep.parameters.iter().position(|parameter| parameter.name == name)?;
            point[at].number()
        };
        let _ = sweep.condition.as_ref().and_then(|condition| condition.value(number));
    }
});
