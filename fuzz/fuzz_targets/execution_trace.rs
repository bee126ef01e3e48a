//! Execution traces are read or refused for any bytes, and a trace that is read can be checked, shown and run to its
//! end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::stats::Stats;
use uniference_formats::chakra::write::Writer;
use uniference_formats::chakra::{dot, json};
use uniference_programs::chakra::feed::Feed;

fuzz_target!(|bytes: &[u8]| {
    let Ok(reader) = Reader::open(bytes) else { return };
    let _ = check(reader);
    let open = || Reader::open(bytes).expect("it was opened before");
    let _ = json::write(open(), &mut std::io::sink());
    let _ = dot::write(open(), &mut std::io::sink());
    let _ = Stats::of(open());
    write_again(open());
    run(Feed::new(open()));
});

/// Written nodes are read again unchanged.
fn write_again(mut reader: Reader<&[u8]>) {
    let mut writer = Writer::new(Vec::new(), &reader.metadata().clone()).expect("memory takes all");
    let mut nodes = Vec::new();
    while let Ok(Some(node)) = reader.next_node() {
        if writer.node(&node).is_ok() {
            nodes.push(node);
        }
    }
    let bytes = writer.finish().expect("memory takes all");
    let again: Vec<_> = Reader::open(&bytes[..]).expect("it was just written").map(Result::unwrap).collect();
    // NaN does not equal itself.
    assert_eq!(format!("{again:?}"), format!("{nodes:?}"));
}

/// Every node becomes ready, or the run reports a reason.
fn run(mut feed: Feed<Reader<&[u8]>>) {
    let mut free = Vec::new();
    loop {
        loop {
            match feed.plan() {
                Ok(Some((id, true))) => free.push(id),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        let Some(id) = free.pop() else { return assert!(feed.is_done()) };
        feed.complete(id, &mut |id| free.push(id));
    }
}
