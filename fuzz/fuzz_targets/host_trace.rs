//! PyTorch's host trace and the profiler's, one after the other with a line of dashes between: understood or refused; what is linked
//! has no cycle and no id twice.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::link::{DeviceTrace, HostTrace, link};
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::write::Writer;

fuzz_target!(|text: &str| {
    let (host, device) = text.split_once("\n---\n").unwrap_or((text, text));
    let (Ok(host), Ok(device)) = (HostTrace::parse(host), DeviceTrace::parse(device)) else { return };
    let Ok(linked) = link(&host, &device) else { return };
    let mut writer = Writer::new(Vec::new(), &linked.metadata).expect("memory takes all");
    linked.nodes.iter().for_each(|node| writer.node(node).expect("memory takes all"));
    let bytes = writer.finish().expect("memory takes all");
    check(Reader::open(&bytes[..]).expect("just written")).expect("it can be run");
});
