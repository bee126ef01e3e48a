//! Texts of PyTorch's recordings, separated by lines of dashes, the host trace first: accepted or refused; a linked
//! trace has no cycle and no duplicate id. The target `recording` makes valid recordings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::write::Writer;
use uniference_programs::chakra::link::{Iteration, Options, RankRecording, Recording, link};

fuzz_target!(|text: &str| {
    let (mut ranks, mut hosts) = (Vec::new(), Vec::new());
    for part in text.split("\n---\n").take(8) {
        match Recording::read(part.as_bytes()) {
            Ok(Recording::Profile(profile)) => {
                ranks.push(RankRecording { file: String::new(), named: None, profile, host: hosts.pop() });
            }
            Ok(Recording::Host(host)) => hosts.push(host),
            Err(_) => {}
        }
    }
    let forgiving = Options { iteration: Iteration::All, allow_mismatch: true, allow_unknown: true, repair: true };
    let Ok(job) = link(ranks, &forgiving) else { return };
    for linked in job.ranks.iter().take(8) {
        let mut writer = Writer::new(Vec::new(), &linked.metadata).expect("memory takes all");
        linked.nodes.iter().for_each(|node| writer.node(node).expect("memory takes all"));
        let bytes = writer.finish().expect("memory takes all");
        check(Reader::open(&bytes[..]).expect("just written")).expect("it can be run");
    }
});
