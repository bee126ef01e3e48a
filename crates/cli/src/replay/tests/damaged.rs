//! Tests that records with altered contents and valid checksums are replayed or refused with a hint, and never violate
//! an assertion of the engine.

use super::*;
use uniference_sim::device::Resource;
use uniference_sim::program::{Mark, ReduceOp, StoreOp};
use uniference_sim::replay::RecordedStep;

/// The FNV-1a checksum of the record format.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A record of two ranks that make requests of every kind, the second rank with two threads.
fn written() -> Vec<u8> {
    let toml = Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let cluster = ClusterFile::parse("test", &toml, &[]).unwrap().resolve(&Choices::default()).unwrap().toml;
    let header = Header { world_size: 2, manifest: Manifest { cluster, ..Manifest::default() } };
    let mut writer = RecordWriter::new(Vec::new(), &header);
    let group = GroupId(0);
    let call = |op| issue(Activity::Call(Call { group, op }));
    let collective = |kind, reduce, root, shape| {
        call(CallOp::Collective(Collective { kind, dtype: DType::Float32, reduce, root, shape, kernel: None }))
    };
    let key = |text: &str| text.as_bytes().to_vec();
    for rank in 0..2_u32 {
        let peer = GroupRank(1 - rank);
        let message = match rank {
            0 => CallOp::Send { to: peer, tag: 3, bytes: Bytes(800) },
            _ => CallOp::Recv { from: Some(peer), tag: 3, bytes: Bytes(800) },
        };
        let work = |us| Work::new(SimDuration::from_us(us), Origin::Measured);
        let steps: Vec<RecordedStep> = vec![
            RecordedStep::HandlesInOrder,
            Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false }
                .into(),
            RecordedStep::Named(group),
            issue(Activity::Mark(Mark::Open { range: 1, name: "step".into() })).into(),
            issue(Activity::Compute(work(10))).into(),
            wait(1).into(),
            collective(CollectiveKind::AllReduce, Some(ReduceOp::Sum), None, Shape::Even(100)).into(),
            wait(2).into(),
            collective(CollectiveKind::Broadcast, None, Some(GroupRank(0)), Shape::Even(64)).into(),
            Request::Wait {
                handles: vec![Handle(2), Handle(3)],
                any: true,
                timeout: Some(SimDuration::from_us(5_000)),
                site: Site(0),
            }
            .into(),
            collective(CollectiveKind::AllGather, None, None, Shape::Blocks(vec![5, 6])).into(),
            collective(CollectiveKind::AllToAll, None, None, Shape::Pairs { send: vec![4, 4], recv: vec![4, 4] })
                .into(),
            call(message).into(),
            Request::Wait { handles: (4..7).map(Handle).collect(), any: false, timeout: None, site: Site(0) }.into(),
            Request::Store { operation: StoreOp::Set { key: key("a"), value: key("1") }, timeout: None, site: Site(0) }
                .into(),
            Request::Store { operation: StoreOp::Get { key: key("a") }, timeout: None, site: Site(0) }.into(),
            issue(Activity::Reach(1)).into(),
            issue(Activity::Compute(work(3).on(Resource::CopyEngine))).into(),
            issue(Activity::Reach(2)).into(),
            Request::Elapsed { from: 1, to: 2, site: Site(0) }.into(),
            Request::Look.into(),
            issue(Activity::Mark(Mark::Close { range: 1 })).into(),
            issue(Activity::Sleep(SimDuration::from_us(7))).into(),
            issue(Activity::Close(group)).into(),
        ];
        for step in &steps {
            writer.step(RankId(rank), TaskId(0), step, "a.py:3");
        }
        if rank == 1 {
            let follows = RecordedStep::Follows { rank: RankId(1), task: TaskId(0), resumption: 2 };
            writer.step(RankId(1), TaskId(1), &follows, "");
            writer.step(RankId(1), TaskId(1), &issue(Activity::Sleep(SimDuration::from_us(1))).into(), "b.py:1");
            writer.step(RankId(1), TaskId(1), &Request::Exit(Outcome::Ok).into(), "");
        }
        writer.step(RankId(rank), TaskId(0), &Request::Exit(Outcome::Ok).into(), "");
    }
    writer.finish().unwrap()
}

/// Offset and length of the contents of each frame.
fn frames(record: &[u8]) -> Vec<(usize, usize)> {
    let (mut found, mut at) = (Vec::new(), 8);
    while let Some(head) = record.get(at..at + 8) {
        let number = |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().unwrap());
        let (length, sum) = (number(0) as usize, number(4));
        match record.get(at + 8..at + 8 + length) {
            Some(contents) if checksum(contents) == sum => found.push((at + 8, length)),
            _ => break,
        }
        at += 8 + length;
    }
    found
}

/// A pseudorandom number generator (Knuth's MMIX).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// The record with some bytes of one frame altered and the frame's checksum recomputed.
fn damaged(record: &[u8], (start, length): (usize, usize), draw: &mut Draw) -> Vec<u8> {
    let mut file = record.to_vec();
    for _ in 0..[1, 1, 2, 5][draw.below(4)] {
        let at = start + draw.below(length);
        match draw.below(4) {
            0 => file[at] = draw.below(256) as u8,
            1 => file[at] ^= 1 << draw.below(8),
            2 => {
                let end = (at + 8).min(start + length);
                file[at..end].fill(0xff);
                file[end - 1] = 1;
            }
            _ => {
                let from = start + draw.below(length);
                let count = 8.min(start + length - at).min(start + length - from);
                file.copy_within(from..from + count, at);
            }
        }
    }
    let sum = checksum(&file[start..start + length]);
    file[start - 4..start].copy_from_slice(&sum.to_le_bytes());
    file
}

#[test]
fn a_record_damaged_behind_a_right_checksum_is_replayed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let whole = written();
    let frames = frames(&whole);
    assert!(frames.len() >= 4, "a header, a block for each rank, and the end");
    let end = |record: &[u8], words: &[&str]| {
        fs::write(dir.path().join(RECORD), record).unwrap();
        match run(words) {
            Ok(exit) => exit,
            Err(error) => {
                assert!(error.to_string().contains("hint: "), "{error}");
                error.exit()
            }
        }
    };
    let (source, out) = (path(""), path("out"));
    let replay = ["replay", &source, "--out", &out, "--record", "summary"];
    assert_eq!(end(&whole, &replay), Exit::Ok);
    let mut draw = Draw(7);
    let mut ends = std::collections::BTreeMap::new();
    for number in 0..600 {
        let record = damaged(&whole, frames[draw.below(frames.len())], &mut draw);
        let words = match number % 4 {
            0 => vec!["explain", &source],
            1 => vec!["chakra", "export", &source, "--out", &out],
            _ => replay.to_vec(),
        };
        *ends.entry(format!("{:?}", end(&record, &words))).or_insert(0) += 1;
    }
    // Most alterations are detected; some have no effect, for example alterations of names.
    assert!(!ends.contains_key("Bug"), "{ends:?}");
    assert!(ends.values().sum::<i32>() == 600 && ends.contains_key("Usage") && ends.contains_key("Ok"), "{ends:?}");
}

#[test]
fn an_operation_that_was_never_issued_is_named() {
    let join = Request::JoinGroup { ranks: [RankId(0)].into(), sequence: 0, settings: None, rendezvous: false };
    let toml = Flags { ranks: 1, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let late = Request::Wait { handles: vec![Handle(512)], any: false, timeout: None, site: Site(0) };
    let twice =
        Request::JoinGroup { ranks: [RankId(0), RankId(0)].into(), sequence: 0, settings: None, rendezvous: false };
    let of = |program: Vec<Request>| {
        let dir = record(&[program], &toml);
        let path = |name: &str| dir.path().join(name).display().to_string();
        run(&["replay", &path(""), "--out", &path("out")]).unwrap_err()
    };
    let error = of(vec![join.clone(), late]);
    assert_eq!(error.exit(), Exit::Usage);
    let text = error.to_string();
    assert!(text.contains("the record refers to handle 512, which no step before it has issued\nhint: "), "{text}");
    let text = of(vec![twice]).to_string();
    assert!(text.contains("rank 0 asks for a process group of 2 members, 1 of them different"), "{text}");
}
