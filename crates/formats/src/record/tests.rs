use super::index::{Start, TRAILER, trailer};
use super::*;
use crate::sink::tests::SmallDisk;
use proptest::prelude::*;
use std::cell::Cell;
use std::io::{Cursor, Write};
use uniference_sim::ids::{GroupId, GroupRank, QueueId, RankId, Site};
use uniference_sim::program::{Activity, Call, CallOp, Mark, NcclSettings, Origin, Outcome, Request, Work};
use uniference_sim::time::{Bytes, SimDuration};

type Steps = Vec<(TaskId, RecordedStep)>;

fn header(world_size: u32) -> Header {
    Header { world_size, manifest: Manifest { seed: 3, command: vec!["uniference".to_owned()], ..Manifest::default() } }
}

fn compute(ps: u64) -> RecordedStep {
    let work = Work::new(SimDuration::from_ps(ps), Origin::Measured);
    let activity = Activity::Compute(work);
    Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(1) }.into()
}

fn mark(name: &str) -> RecordedStep {
    marked(Mark::Begin(name.into()))
}

fn marked(mark: Mark) -> RecordedStep {
    Request::Issue { activity: Activity::Mark(mark), queue: QueueId(0), after: Vec::new(), site: Site(0) }.into()
}

/// Steps of two ranks, the second with two tasks.
fn steps() -> [Steps; 2] {
    let first = [mark("step"), RecordedStep::Named(GroupId(4)), Request::Exit(Outcome::Failed).into()];
    let second = [
        (TaskId(0), compute(5)),
        (TaskId(1), RecordedStep::After { task: TaskId(0), resumption: 1 }),
        (TaskId(1), Request::Now.into()),
        (TaskId(0), Request::Exit(Outcome::Ok).into()),
    ];
    [first.map(|step| (TaskId(0), step)).to_vec(), second.to_vec()]
}

#[test]
fn ranges_that_overlap_and_names_of_threads_are_read_as_they_were_written() {
    let name = Mark::Name("loader".into());
    let thread = TaskId(2);
    let enter = Mark::Enter { range: 4, thread, name: "forward".into() };
    let open = Mark::Open { range: 3, name: "request".into() };
    let marks = [open, Mark::End, Mark::Close { range: 3 }, name, enter, Mark::Leave { range: 4, thread }];
    let mut writer = RecordWriter::new(Vec::new(), &header(1));
    for mark in marks.clone() {
        writer.step(RankId(0), TaskId(0), &marked(mark), LINES[0]);
    }
    let (steps, _) = read(&writer.finish().unwrap()).unwrap();
    assert_eq!(steps[0], marks.map(|mark| (TaskId(0), marked(mark))));
}

#[test]
fn options_of_a_group_are_read_as_they_were_written() {
    let settings =
        NcclSettings { algorithms: [1, 2, 4, 1, 7], protocols: [7, 7, 1, 2, 4], channels: [2, 8], peer_access: false };
    let join = |settings, rendezvous| {
        RecordedStep::from(Request::JoinGroup { ranks: [RankId(0)].into(), sequence: 3, settings, rendezvous })
    };
    let joins = [join(None, false), join(Some(settings), false), join(None, true), join(Some(settings), true)];
    let mut writer = RecordWriter::new(Vec::new(), &header(1));
    for step in &joins {
        writer.step(RankId(0), TaskId(0), step, "");
    }
    let (steps, _) = read(&writer.finish().unwrap()).unwrap();
    assert_eq!(steps[0], joins.map(|step| (TaskId(0), step)));
}

/// Operators of a slice, and the slice's measured duration.
fn operators(operators: &[u8], ps: u64) -> RecordedStep {
    RecordedStep::Operators { operators: operators.to_vec(), measured: SimDuration::from_ps(ps) }
}

const LINES: [&str; 2] = ["a.py:1", "a.py:2"];

fn writer<W: Write>(out: W) -> RecordWriter<W> {
    let mut writer = RecordWriter::new(out, &header(2));
    for (rank, steps) in (0..).map(RankId).zip(steps()) {
        for (task, step) in steps {
            writer.step(rank, task, &step, step.site().map_or("", |site| LINES[site.index()]));
        }
    }
    writer
}

fn written() -> Vec<u8> {
    writer(Vec::new()).finish().unwrap()
}

/// Reads a whole record: the steps of each rank, and the lines.
fn read(bytes: &[u8]) -> Result<(Vec<Steps>, Vec<String>), RecordError> {
    let (ranks, rest) = RecordReader::open(Cursor::new(bytes))?.by_rank();
    let steps = ranks.into_iter().map(Iterator::collect).collect();
    Ok((steps, rest.finish()?))
}

/// A file of these frames.
fn file(version: u8, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [&MAGIC[..], &[version]].concat();
    for frame in frames {
        file.extend((frame.len() as u32).to_le_bytes());
        file.extend(checksum(frame).to_le_bytes());
        file.extend(frame);
    }
    file
}

fn bytes(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap()
}

#[test]
fn what_is_written_is_read_back_with_its_lines() {
    let file = written();
    assert_eq!(read(&file).unwrap(), (steps().to_vec(), LINES.map(str::to_owned).to_vec()));
    assert_eq!(RecordReader::open(Cursor::new(&file)).unwrap().header(), &header(2));
}

#[test]
fn a_line_is_known_once_a_rank_has_come_to_it() {
    let file = written();
    let (mut ranks, _rest) = RecordReader::open(Cursor::new(&file)).unwrap().by_rank();
    let (_, step) = ranks[1].next().unwrap();
    assert_eq!(&*ranks[1].line(&step), "a.py:2");
    // Only rank 0 has named the other line, and rank 0's steps were not read.
    assert_eq!(&*ranks[1].line(&mark("")), "");
}

#[test]
fn a_record_that_was_cut_short_gives_what_it_has_and_says_so() {
    let mut out = Vec::new();
    // A run that ends early: a dropped writer writes the buffered steps, but no end frame.
    drop(writer(&mut out));
    let (ranks, rest) = RecordReader::open(Cursor::new(&out)).unwrap().by_rank();
    let found: Vec<Steps> = ranks.into_iter().map(Iterator::collect).collect();
    assert_eq!(found, steps());
    assert!(matches!(rest.finish(), Err(RecordError::CutShort { steps: 7 })));
}

/// Counts the bytes that are read.
struct Counted<'a>(Cursor<&'a [u8]>, Rc<Cell<u64>>);

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.set(self.1.get() + read as u64);
        Ok(read)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_rank_far_behind_the_others_is_read_without_them() {
    let mut writer = RecordWriter::new(Vec::new(), &header(2));
    for ps in 0..200_000 {
        writer.step(RankId(0), TaskId(0), &compute(ps), "a.py:1");
    }
    writer.step(RankId(1), TaskId(0), &mark("late"), "a.py:2");
    let whole = writer.finish().unwrap();
    let cut = &whole[..whole.len() - TRAILER - 1];
    let pieces = whole.len() as u64 / (1 << 14) + 3;
    for file in [&whole[..], cut] {
        let read = Rc::new(Cell::new(0));
        let (mut ranks, _rest) = RecordReader::open(Counted(Cursor::new(file), Rc::clone(&read))).unwrap().by_rank();
        assert_eq!(ranks[1].next(), Some((TaskId(0), mark("late"))));
        // The head of each block, if there is no index, and rank 1's only block.
        assert!(read.get() < pieces * 32, "{} bytes of {}", read.get(), file.len());
        // One block of rank 0 at a time.
        let before = read.get();
        assert_eq!(ranks[0].next(), Some((TaskId(0), compute(0))));
        assert!(read.get() - before < 20_000, "{} bytes", read.get() - before);
    }
}

#[test]
fn a_full_disk_is_an_error_and_not_a_shorter_record() {
    let mut writer = RecordWriter::new(SmallDisk(60), &header(2));
    (0..10_000).for_each(|ps| writer.step(RankId(0), TaskId(0), &compute(ps), ""));
    assert!(writer.failed());
    let error = writer.finish().err().unwrap();
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn files_that_are_no_records_are_told_apart() {
    let start = || bytes(&Start::FullHeader(schema::FullHeader::of(&header(2))));
    let with = |frames: Vec<Vec<u8>>| file(VERSION, &frames);
    let block = |rank, task: u32, step: &[u8]| [bytes(&Start::Block { rank }), bytes(&task), step.to_vec()].concat();
    let now = |rank, task| block(rank, task, &[2]);
    let end = |steps, blocks: &[(u32, u32)]| bytes(&Start::End { steps, blocks: blocks.to_vec() });
    let mut miscounted = with(vec![start(), now(0, 0)]);
    let at = miscounted.len() as u64;
    miscounted = with(vec![start(), now(0, 0), end(7, &[(0, now(0, 0).len() as u32 + 8)])]);
    miscounted.extend(trailer(at));
    let files = [
        b"short".to_vec(),
        b"{\"version\": 1}".to_vec(),
        b"UNIREC\n\x09".to_vec(),
        written()[..30].to_vec(),
        with(vec![now(0, 0)]),
        with(vec![bytes(&Start::FullHeader(schema::FullHeader::of(&header(u32::MAX))))]),
        with(vec![start(), now(2, 0)]),
        with(vec![start(), now(0, 0), now(0, 2)]),
        with(vec![start(), start()]),
        with(vec![start(), block(0, 0, &[99])]),
        with(vec![start(), block(0, 0, &[5, 77])]),
        miscounted,
        [&with(vec![])[..], &u32::MAX.to_le_bytes(), &[0; 4]].concat(),
        with(vec![vec![77]]),
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
    let header = bytes(&Start::FullHeader(schema::FullHeader::of(&header(2))));
    let error = read(&file(VERSION, &[[&header[..], &[0]].concat()])).unwrap_err().to_string();
    assert!(error.contains("a frame has 1 extra bytes"), "{error}");
}

#[test]
fn no_call_is_larger_than_what_sums_of_sizes_allow() {
    let send = |bytes| {
        let op = CallOp::Send { to: GroupRank(0), tag: 0, bytes: Bytes(bytes) };
        let activity = Activity::Call(Call { group: GroupId(0), op });
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }.into()
    };
    let record = |bytes| {
        let mut writer = RecordWriter::new(Vec::new(), &header(1));
        writer.step(RankId(0), TaskId(0), &send(bytes), "");
        read(&writer.finish().unwrap())
    };
    assert!(record(1 << 50).is_ok());
    assert!(matches!(record((1 << 50) + 1), Err(RecordError::Damaged { .. })));
}

#[test]
fn operators_are_kept_in_pieces_of_a_bounded_length() {
    let long: Vec<u8> = (0..3_u32 << 20).map(|at| (at % 251) as u8).collect();
    let mut writer = RecordWriter::new(Vec::new(), &header(1));
    let steps = [operators(&long, 5), compute(5), operators(&[], 7), compute(9)];
    steps.iter().for_each(|step| writer.step(RankId(0), TaskId(0), step, ""));
    let (found, _) = read(&writer.finish().unwrap()).unwrap();
    let mut pieces = Vec::new();
    let mut times = Vec::new();
    for (_, step) in &found[0] {
        if let RecordedStep::Operators { operators, measured } = step {
            assert!(operators.len() <= 1 << 20);
            pieces.extend(operators);
            times.push(measured.as_ps());
        }
    }
    assert_eq!((pieces, &times[..]), (long, &[5, 0, 0, 7][..]));
    assert_eq!(found[0].len(), 6);
}

/// Version 2 is version 3 without operators, and has a shorter header.
#[test]
fn a_record_of_version_2_is_read_as_a_new_one_is() {
    let start = bytes(&Start::Header(schema::Header::of(&header(2))));
    let block = |rank: u32| {
        let mut bytes_of = bytes(&Start::Block { rank });
        steps()[rank as usize]
            .iter()
            .for_each(|(task, step)| bytes_of.extend(bytes(&(task.0, schema::Step::of(step)))));
        bytes_of
    };
    let blocks = [0, 1].map(block);
    let lengths = [0, 1].map(|rank| (rank as u32, blocks[rank].len() as u32 + FRAME_HEAD as u32));
    let end = bytes(&Start::End { steps: 7, blocks: lengths.to_vec() });
    let mut whole = file(2, &[vec![start], blocks.to_vec()].concat());
    let at = whole.len() as u64;
    whole.extend(&file(2, &[end])[8..]);
    whole.extend(trailer(at));
    assert_eq!(read(&whole).unwrap().0, steps());
    assert_eq!(RecordReader::open(Cursor::new(&whole)).unwrap().header(), &header(2));
    // Each version has its own header.
    let error = |version| read(&[&MAGIC[..], &[version], &whole[8..]].concat()).unwrap_err().to_string();
    assert!(error(3).contains("the header is missing"), "{}", error(3));
}

/// A record of version 1, as written by that version.
mod before {
    use super::*;

    fn frames(requests: &[(u32, u32, schema::Step)], end: Option<u64>) -> Vec<u8> {
        let head = (0_u32, schema::Header::of(&header(2)));
        let mut frames = vec![bytes(&head)];
        frames.extend(requests.iter().map(|(rank, task, step)| bytes(&(1_u32, rank, task, step))));
        frames.extend(end.map(|count| bytes(&(2_u32, count, LINES.to_vec()))));
        file(1, &frames)
    }

    fn requests() -> Vec<(u32, u32, schema::Step)> {
        let of = |rank: u32, at: usize| {
            let (task, step) = &steps()[rank as usize][at];
            (rank, task.0, schema::Step::of(step))
        };
        vec![of(1, 0), of(0, 0), of(0, 1), of(1, 1), of(1, 2), of(1, 3), of(0, 2)]
    }

    #[test]
    fn is_read_as_a_new_one_is() {
        let file = frames(&requests(), Some(7));
        assert_eq!(read(&file).unwrap(), (steps().to_vec(), LINES.map(str::to_owned).to_vec()));
    }

    #[test]
    fn is_refused_where_it_is_damaged_and_gives_what_it_has_where_it_was_cut_short() {
        let cut = frames(&requests()[..4], None);
        let (ranks, rest) = RecordReader::open(Cursor::new(&cut)).unwrap().by_rank();
        assert_eq!(ranks.into_iter().map(Iterator::count).collect::<Vec<_>>(), [2, 2]);
        assert!(matches!(rest.finish(), Err(RecordError::CutShort { steps: 4 })));
        let wrong = [frames(&requests(), Some(9)), frames(&[(2, 0, schema::Step::Now)], Some(1))];
        for file in wrong.into_iter().chain([[frames(&[], Some(0)), vec![0]].concat()]) {
            assert!(matches!(read(&file), Err(RecordError::Damaged { .. })));
        }
    }

    #[test]
    fn every_truncation_and_every_changed_bit_is_an_error() {
        let whole = frames(&requests(), Some(7));
        for at in 0..whole.len() {
            assert!(read(&whole[..at]).is_err(), "{at}");
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(read(&changed).is_err(), "{at}");
        }
    }
}

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(tail: Vec<u8>, version in 0..=VERSION + 1) {
        let file = if version > 0 { [&MAGIC[..], &[version], &tail].concat() } else { tail };
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn no_steps_make_the_reader_panic(steps: Vec<u8>) {
        let start = bytes(&Start::FullHeader(schema::FullHeader::of(&header(2))));
        let block = [bytes(&Start::Block { rank: 1 }), steps].concat();
        prop_assert!(read(&file(VERSION, &[start, block])).is_err());
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
        // A changed version number is not detected if both versions are supported, because they encode the steps of
        // this record in the same way.
        prop_assume!(at != MAGIC.len() || !(2..=VERSION).contains(&file[at]));
        prop_assert!(read(&file).is_err());
    }
}

/// A third rank replays the steps of rank 1, which is read as rank 1 as well.
#[test]
fn ranks_can_take_the_steps_of_others() {
    let file = written();
    let (ranks, rest) = RecordReader::open(Cursor::new(&file)).unwrap().by_rank_of(&[0, 1, 1]);
    let found: Vec<Steps> = ranks.into_iter().map(Iterator::collect).collect();
    let [first, second] = steps();
    assert_eq!(found, [first, second.clone(), second]);
    assert_eq!(rest.finish().unwrap(), LINES);
}
