use super::*;
use crate::sink::tests::SmallDisk;
use proptest::prelude::*;
use uniference_sim::ids::{GroupId, GroupRank, QueueId, Site};
use uniference_sim::program::{Activity, Call, CallOp, Mark, Origin, Outcome, Work};
use uniference_sim::time::SimDuration;

fn header(world_size: u32) -> Header {
    Header { world_size, manifest: Manifest { seed: 3, command: vec!["uniference".to_owned()], ..Manifest::default() } }
}

fn compute(ps: u64) -> Request {
    let work = Work { duration: SimDuration::from_ps(ps), origin: Origin::Measured };
    Request::Issue { activity: Activity::Compute(work), queue: QueueId(0), after: Vec::new(), site: Site(1) }
}

fn mark(name: &str) -> Request {
    let activity = Activity::Mark(Mark::Begin(name.into()));
    Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }
}

/// Two ranks, the second with two tasks.
fn requests() -> Vec<(RankId, TaskId, Request)> {
    vec![
        (RankId(1), TaskId(0), compute(5)),
        (RankId(0), TaskId(0), mark("step")),
        (RankId(1), TaskId(1), Request::Now),
        (RankId(1), TaskId(0), Request::Exit(Outcome::Ok)),
        (RankId(0), TaskId(0), Request::Exit(Outcome::Failed)),
    ]
}

fn written() -> Vec<u8> {
    let mut writer = RecordWriter::new(Vec::new(), header(2));
    requests().iter().for_each(|(rank, task, request)| writer.request(*rank, *task, request));
    writer.finish(vec!["a.py:1".to_owned(), "a.py:2".to_owned()]).unwrap()
}

/// Reads all of it.
fn read(bytes: &[u8]) -> Result<Vec<(RankId, TaskId, Request)>, RecordError> {
    let mut reader = RecordReader::open(bytes)?;
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request()? {
        requests.push(request);
    }
    Ok(requests)
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut writer = RecordWriter { sink: Sink::new("frame", Vec::new()), requests: 0 };
    writer.frame(frame);
    writer.sink.finish().unwrap()
}

#[test]
fn what_is_written_is_read_back_in_order() {
    let bytes = written();
    assert_eq!(read(&bytes).unwrap(), requests());
    let reader = RecordReader::open(&bytes[..]).unwrap();
    assert_eq!(reader.header(), &header(2));
}

#[test]
fn each_rank_reads_its_own_requests_whoever_reads_first() {
    let bytes = written();
    let (mut ranks, rest) = RecordReader::open(&bytes[..]).unwrap().by_rank();
    let second: Vec<_> = ranks.pop().unwrap().collect();
    assert_eq!(second, [(TaskId(0), compute(5)), (TaskId(1), Request::Now), (TaskId(0), Request::Exit(Outcome::Ok))]);
    assert_eq!(ranks[0].next(), Some((TaskId(0), mark("step"))));
    assert_eq!(rest.finish().unwrap(), ["a.py:1", "a.py:2"]);
}

#[test]
fn a_record_that_was_cut_short_ends_early_and_says_so() {
    let bytes = written();
    let (mut ranks, rest) = RecordReader::open(&bytes[..bytes.len() - 40]).unwrap().by_rank();
    assert!(ranks.pop().unwrap().count() < 3);
    assert!(matches!(rest.finish(), Err(RecordError::CutShort { .. })));
}

#[test]
fn a_full_disk_is_an_error_and_not_a_shorter_record() {
    let mut writer = RecordWriter::new(SmallDisk(60), header(2));
    requests().iter().for_each(|(rank, task, request)| writer.request(*rank, *task, request));
    assert!(writer.failed());
    let error = writer.finish(Vec::new()).err().unwrap();
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn files_that_are_no_records_are_told_apart() {
    let with = |frames: &[Frame]| [&MAGIC[..], &frames.iter().flat_map(frame).collect::<Vec<_>>()].concat();
    let request = |rank, task| Frame::Request(RankId(rank), TaskId(task), Request::Now);
    let start = || Frame::Header(header(2));
    let files = [
        b"short".to_vec(),
        b"{\"version\": 1}".to_vec(),
        b"UNIREC\n\x09".to_vec(),
        written()[..30].to_vec(),
        with(&[request(0, 0)]),
        with(&[Frame::Header(header(u32::MAX))]),
        with(&[start(), request(2, 0)]),
        with(&[start(), request(0, 0), request(0, 2)]),
        with(&[start(), start()]),
        with(&[start(), Frame::End { requests: 7, lines: Vec::new() }]),
        [&MAGIC[..], &u32::MAX.to_le_bytes(), &[0; 4]].concat(),
        [&MAGIC[..], &[1, 0, 0, 0], &checksum(&[77]).to_le_bytes(), &[77]].concat(),
        {
            let mut flipped = written();
            let last = flipped.len() - 1;
            flipped[last] ^= 1;
            flipped
        },
    ];
    let shown = files.map(|file| read(&file).unwrap_err().to_string());
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn a_frame_is_no_longer_than_what_it_says() {
    let header = postcard::to_stdvec(&Frame::Header(header(2))).unwrap();
    let long = [&header[..], &[0]].concat();
    let file = [&MAGIC[..], &(long.len() as u32).to_le_bytes(), &checksum(&long).to_le_bytes(), &long].concat();
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("a frame has 1 bytes too many"), "{error}");
}

#[test]
fn no_call_is_larger_than_what_sums_of_sizes_allow() {
    let send = |bytes| {
        let op = CallOp::Send { to: GroupRank(0), tag: 0, bytes: Bytes(bytes) };
        let activity = Activity::Call(Call { group: GroupId(0), op });
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }
    };
    let record = |bytes| {
        let mut writer = RecordWriter::new(Vec::new(), header(1));
        writer.request(RankId(0), TaskId(0), &send(bytes));
        read(&writer.finish(Vec::new()).unwrap())
    };
    assert!(record(1 << 50).is_ok());
    assert!(matches!(record((1 << 50) + 1), Err(RecordError::Damaged { .. })));
}

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(tail: Vec<u8>, magic: bool) {
        let file = if magic { [&MAGIC[..], &tail].concat() } else { tail };
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn anything_after_the_end_is_an_error(tail in prop::collection::vec(any::<u8>(), 1..40)) {
        let file = [written(), tail].concat();
        let damaged = matches!(read(&file), Err(RecordError::Damaged { .. }));
        prop_assert!(damaged);
    }

    #[test]
    fn every_truncation_is_an_error(cut in 0..written().len()) {
        prop_assert!(read(&written()[..cut]).is_err());
    }

    #[test]
    fn every_changed_bit_is_an_error(at in 0..written().len(), bit in 0..8u8) {
        let mut file = written();
        file[at] ^= 1 << bit;
        prop_assert!(read(&file).is_err());
    }
}
