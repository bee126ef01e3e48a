use super::*;
use crate::chakra::replay::{Replay, Rules};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::read::Reader;
use uniference_formats::record::{Header, RecordWriter};
use uniference_sim::cluster::{Backend, Device};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::engine::{RunEnd, Turn, drive};
use uniference_sim::ids::{GroupRank, HostId, QueueId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::Statistics;
use uniference_sim::program::{DType, Mark, Origin, Program, ReduceOp, Shape, StoreOp, Work};
use uniference_sim::replay::replay;
use uniference_sim::time::{Bytes, Rate};

const RANKS: usize = 4;

/// Hosts on a switch; rank 1 computes 1.7 times as long as the others, and two collectives of a group run at once.
fn cluster(bytes_per_second: f64, latency_ns: u64) -> Cluster {
    let hosts: Vec<HostSpec> = (0..RANKS).map(|rank| HostSpec::new(format!("host.{rank}"))).collect();
    let link = LinkSpec::new(Rate::new(bytes_per_second).unwrap(), SimDuration::from_ns(latency_ns));
    let slowdown = |rank| if rank == 1 { 1.7 } else { 1.0 };
    let device = |rank| Device { slowdown: slowdown(rank), ..Device::new(format!("{rank}"), HostId::from(rank)) };
    Cluster {
        name: "test".into(),
        devices: (0..RANKS).map(device).collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).unwrap(),
        dynamics: Default::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms: AlgorithmTable::ideal(),
            concurrency: 2,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}

fn engine(cluster: &Cluster) -> Engine {
    Engine::new(cluster)
}

/// Action of a program's thread; operations are named by slots of the rank.
#[derive(Clone, Debug)]
enum Do {
    Compute(u64),
    Sleep(u64),
    Clock,
    Mark(Mark),
    /// Starts an operation of the group with this number among the groups that the rank has joined.
    Start(usize, CallOp, usize),
    Wait {
        slots: Vec<usize>,
        any: bool,
        timeout: Option<u64>,
    },
    Join(Vec<usize>, u32),
    Store(StoreOp, Option<u64>),
    /// Opens the rank's second thread.
    Open,
}

/// A rank's threads, as in a live process.
struct Live {
    scripts: [std::vec::IntoIter<Do>; 2],
    asked: [Option<Do>; 2],
    slots: BTreeMap<usize, Handle>,
    groups: Vec<GroupId>,
}

impl Live {
    /// The next request of a task, after the reply to its previous one.
    fn next(&mut self, task: TaskId, reply: Reply) -> Next {
        match (self.asked[task.index()].take(), reply) {
            (Some(Do::Compute(_) | Do::Sleep(_)), Reply::Issued(handle)) => {
                let site = Site(1);
                return Next::Ask(Request::Wait { handles: vec![handle], any: false, timeout: None, site });
            }
            (Some(Do::Start(_, _, slot)), Reply::Issued(handle)) => drop(self.slots.insert(slot, handle)),
            (Some(Do::Join(..)), Reply::Group(group)) => self.groups.push(group),
            _ => {}
        }
        let Some(next) = self.scripts[task.index()].next() else { return Next::Ask(Request::Exit(Outcome::Ok)) };
        if let Do::Open = next {
            return Next::Open;
        }
        let request = self.request(task, &next);
        self.asked[task.index()] = Some(next);
        Next::Ask(request)
    }

    fn request(&self, task: TaskId, next: &Do) -> Request {
        let ps = SimDuration::from_ps;
        let issue = |activity, queue| Request::Issue { activity, queue: QueueId(queue), after: vec![], site: Site(1) };
        match next {
            Do::Compute(span) => issue(Activity::Compute(Work::new(ps(*span), Origin::Measured)), 0),
            Do::Sleep(span) => issue(Activity::Sleep(ps(*span)), task.0 + 1),
            Do::Mark(mark) => issue(Activity::Mark(mark.clone()), 0),
            Do::Start(group, op, _) => issue(Activity::Call(Call { group: self.groups[*group], op: op.clone() }), 0),
            Do::Wait { slots, any, timeout } => {
                let handles = slots.iter().map(|slot| self.slots[slot]).collect();
                Request::Wait { handles, any: *any, timeout: timeout.map(ps), site: Site(2) }
            }
            Do::Clock => Request::Now,
            Do::Join(ranks, sequence) => Request::JoinGroup {
                ranks: ranks.iter().copied().map(RankId::from).collect(),
                sequence: *sequence,
                settings: None,
                rendezvous: false,
            },
            Do::Store(operation, timeout) => {
                Request::Store { operation: operation.clone(), timeout: timeout.map(ps), site: Site(3) }
            }
            Do::Open => unreachable!("it is no request"),
        }
    }
}

enum Next {
    Ask(Request),
    Open,
}

/// Runs programs as a live run would; returns the record and the end of each rank.
fn live(cluster: &Cluster, programs: Vec<[Vec<Do>; 2]>) -> (Vec<u8>, Vec<SimTime>) {
    let header = Header { world_size: RANKS as u32, manifest: Manifest::default() };
    let mut record = RecordWriter::new(Vec::new(), &header);
    let mut statistics = Statistics::default();
    let start = |scripts: [Vec<Do>; 2]| Live {
        scripts: scripts.map(Vec::into_iter),
        asked: [None, None],
        slots: BTreeMap::new(),
        groups: vec![],
    };
    let mut ranks: Vec<Live> = programs.into_iter().map(start).collect();
    let mut engine = engine(cluster);
    loop {
        let Resumption { rank, task, reply, .. } = match engine.next(&mut statistics) {
            Turn::Resume(resumption) => resumption,
            Turn::Finished => break,
            other => panic!("{other:?}"),
        };
        let mut submit = |engine: &mut Engine, task, request: Request| {
            let line = request.site().map_or(String::new(), |site| format!("a.py:{}", site.0));
            record.step(rank, task, &request.clone().into(), &line);
            engine.submit(rank, task, request);
        };
        let mut next = ranks[rank.index()].next(task, reply);
        while let Next::Open = next {
            let opened = engine.open_task(rank);
            if let Next::Ask(request) = ranks[rank.index()].next(opened, Reply::Start) {
                submit(&mut engine, opened, request);
            }
            next = ranks[rank.index()].next(task, Reply::Start);
        }
        if let Next::Ask(request) = next {
            submit(&mut engine, task, request);
        }
    }
    (record.finish().unwrap(), finishes(&statistics))
}

fn finishes(statistics: &Statistics) -> Vec<SimTime> {
    statistics.ranks().iter().map(|rank| rank.finish.expect("it has finished")).collect()
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn exported(record: &[u8], cluster: &Cluster) -> (Exported, Vec<Vec<u8>>) {
    let lines: Vec<String> = (0..4).map(|line| format!("a.py:{line}")).collect();
    let files = vec![Shared::default(); RANKS].into_iter().map(|_| Shared::default()).collect::<Vec<_>>();
    let open = |rank: RankId| Ok(files[rank.index()].clone());
    let exported =
        export(RecordReader::open(io::Cursor::new(record)).unwrap(), cluster, &lines, &mut (), open).unwrap();
    (exported, files.iter().map(|file| file.0.borrow().clone()).collect())
}

/// Replays traces; returns the end of each rank.
fn replayed(traces: &[Vec<u8>], cluster: &Cluster) -> Vec<SimTime> {
    let world = (0..RANKS).map(RankId::from).collect();
    let rules = Arc::new(Rules::of(world));
    let start = |(rank, trace): (usize, &Vec<u8>)| {
        let reader = Reader::open(io::Cursor::new(trace.clone())).unwrap();
        Box::new(Replay::new(RankId::from(rank), reader, rules.clone())) as Box<dyn Program>
    };
    let mut programs: Vec<_> = traces.iter().enumerate().map(start).collect();
    let mut statistics = Statistics::default();
    let ended = drive(&mut engine(cluster), &mut programs, &mut statistics);
    assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
    finishes(&statistics)
}

/// The traces without one of Uniference's own attributes, as other tools would write them.
fn without(attribute: &str, traces: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let strip = |trace: &Vec<u8>| {
        let reader = Reader::open(&trace[..]).unwrap();
        let mut writer = Writer::new(Vec::new(), &reader.metadata().clone()).unwrap();
        for node in reader {
            let mut node = node.unwrap();
            node.attr.retain(|held| held.name != attribute);
            writer.node(&node).unwrap();
        }
        writer.finish().unwrap()
    };
    traces.iter().map(strip).collect()
}

fn collective(kind: CollectiveKind, elements: u64) -> CallOp {
    use CollectiveKind::{AllReduce, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    CallOp::Collective(Collective {
        kind,
        dtype: DType::Float32,
        reduce: matches!(kind, AllReduce | Reduce | ReduceScatter).then_some(ReduceOp::Max),
        root: matches!(kind, Broadcast | Gather | Reduce | Scatter).then_some(GroupRank(1)),
        shape: if kind == CollectiveKind::Barrier { Shape::Even(0) } else { Shape::Even(elements) },
        kernel: None,
    })
}

/// An all-to-all with unequal blocks: `me` sends `me + to + base` elements to each rank.
fn unequal(me: usize, base: u64) -> CallOp {
    let count = |from: usize, to: usize| (from * 2 + to) as u64 + base;
    let send = (0..RANKS).map(|to| count(me, to)).collect();
    let recv = (0..RANKS).map(|from| count(from, me)).collect();
    CallOp::Collective(Collective {
        kind: CollectiveKind::AllToAll,
        dtype: DType::Float16,
        reduce: None,
        root: None,
        shape: Shape::Pairs { send, recv },
        kernel: None,
    })
}

/// Features that may occur in a program.
#[derive(Clone, Copy)]
struct Kinds {
    hazards: bool,
    threads: bool,
}

impl Kinds {
    /// Whether ranks poll. While one of a rank's threads pays for a poll of the clock or of the store, no reply reaches
    /// its other threads, which a graph cannot express: traces of threads that poll are exact only if no other thread
    /// receives a reply in that microsecond.
    fn polls(self) -> bool {
        self.hazards && !self.threads
    }
}

/// Programs that match each other: all ranks run the same steps, each with its own part. Group 0 has all ranks, group 1
/// all ranks again, group 2 the upper or the lower half.
fn programs(steps: &[u64], kinds: Kinds) -> Vec<[Vec<Do>; 2]> {
    let one = |me: usize| {
        let half = if me < 2 { vec![0, 1] } else { vec![3, 2] };
        let all: Vec<usize> = (0..RANKS).collect();
        let mut main = vec![Do::Join(all.clone(), 0), Do::Join(all.clone(), 1), Do::Join(half, 0)];
        if kinds.threads {
            main.extend([Do::Join(all, 2), Do::Open]);
        }
        let mut open: Vec<usize> = Vec::new();
        for (slot, step) in steps.iter().enumerate() {
            main.extend(part(me, slot, *step, &mut open, kinds));
        }
        let second = if kinds.threads { thread(me, steps) } else { vec![] };
        // Half of the operations that are still open at the end are never waited for.
        main.push(Do::Wait { slots: open.drain(..open.len() / 2).collect(), any: false, timeout: None });
        [main, second]
    };
    (0..RANKS).map(one).collect()
}

/// The actions of one rank in a step. Operations of a step stay open for a few steps before a wait.
fn part(me: usize, slot: usize, step: u64, open: &mut Vec<usize>, kinds: Kinds) -> Vec<Do> {
    let hazards = kinds.hazards;
    use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
    let value = step / 16;
    let work = Do::Compute((value * (me as u64 * 7919 + 13)) % 30_000_011);
    let wait = |slots: Vec<usize>| Do::Wait { slots, any: false, timeout: None };
    let (from, to) = ((value % 4) as usize, (value / 4 % 3 + 1 + value % 4) as usize % RANKS);
    let elements = value % 5_000;
    // Each message that an open receive may accept has the right size, and no other receive waits for it.
    let open_source = hazards && step % 16 == 7;
    let tag = if open_source { 7 } else { value % 2 };
    let bytes = Bytes(if hazards { 4_096 } else { elements * 4 });
    let key = || slot.to_le_bytes().to_vec();
    match step % 16 {
        0..=2 => {
            open.push(slot);
            let kind = [AllReduce, AllGather, Broadcast, ReduceScatter, AllToAll][(value % 5) as usize];
            vec![work.clone(), Do::Start((value % 3) as usize, collective(kind, elements), slot), work]
        }
        3 | 4 => vec![work, Do::Start(0, collective(AllReduce, elements), slot), wait(vec![slot])],
        5 => vec![Do::Start(1, unequal(me, elements), slot), work, wait(vec![slot])],
        6 | 7 if me == from => {
            open.push(slot);
            vec![work, Do::Start(1, CallOp::Send { to: GroupRank(to as u32), tag, bytes }, slot)]
        }
        6 | 7 if me == to => {
            open.push(slot);
            let source = (!open_source).then_some(GroupRank(from as u32));
            vec![Do::Start(1, CallOp::Recv { from: source, tag, bytes }, slot), work]
        }
        15 if me == from => {
            open.push(slot);
            vec![work, Do::Start(1, CallOp::Write { to: GroupRank(to as u32), bytes }, slot)]
        }
        8 => vec![Do::Mark(Mark::Begin("range".into())), work, Do::Mark(Mark::End)],
        9 => vec![Do::Sleep(value % 7_000_003)],
        10 if me == from => vec![work, Do::Store(StoreOp::Set { key: key(), value: key() }, None)],
        10 if me == to => vec![Do::Store(StoreOp::Get { key: key() }, None), work],
        11 if kinds.polls() => vec![Do::Clock, work],
        12 if kinds.polls() => vec![Do::Store(StoreOp::Check { keys: vec![key()] }, None), work],
        13 if hazards && !open.is_empty() => {
            vec![Do::Wait { slots: open.clone(), any: true, timeout: Some(1_000_000 + value % 9_000_000) }]
        }
        14 if hazards => vec![Do::Store(StoreOp::Get { key: b"never".to_vec() }, Some(value % 3_000_000))],
        13..=15 => vec![wait(open.drain(..open.len().min(2)).collect()), work],
        _ => vec![work],
    }
}

/// The actions of the second thread: it computes, sleeps, and meets the other ranks' second threads in a group of their
/// own.
fn thread(me: usize, steps: &[u64]) -> Vec<Do> {
    let part = |(slot, step): (usize, &u64)| {
        let slot = slot + 1_000;
        let work = Do::Compute((step * (me as u64 * 31 + 17)) % 20_000_003);
        let call = collective(CollectiveKind::AllReduce, step % 3_000);
        let wait = Do::Wait { slots: vec![slot], any: false, timeout: None };
        [work, Do::Start(3, call, slot), Do::Sleep(step % 1_000_003), wait]
    };
    steps.iter().take(3).enumerate().flat_map(part).collect()
}

proptest! {
    /// On the run's own cluster, traces end when the run did, for each rank, to the picosecond.
    #[test]
    fn traces_of_a_program_end_when_it_did(steps in prop::collection::vec(any::<u32>(), 1..24), threads: bool) {
        let steps: Vec<u64> = steps.into_iter().map(u64::from).collect();
        let cluster = cluster(1e9, 3_000);
        let (record, finishes) = live(&cluster, programs(&steps, Kinds { hazards: true, threads }));
        let (_, traces) = exported(&record, &cluster);
        prop_assert_eq!(replayed(&traces, &cluster), finishes);
        for trace in &traces {
            check(Reader::open(&trace[..]).unwrap()).unwrap();
        }
    }

    /// On another cluster, traces end when the record, replayed on it, does.
    #[test]
    fn traces_elsewhere_end_when_the_record_does(steps in prop::collection::vec(any::<u32>(), 1..24), rate in 1e8..1e11f64) {
        let steps: Vec<u64> = steps.into_iter().map(u64::from).collect();
        let here = cluster(1e9, 3_000);
        let (record, _) = live(&here, programs(&steps, Kinds { hazards: false, threads: false }));
        let (_, traces) = exported(&record, &here);
        let elsewhere = cluster(rate, 700);
        let mut statistics = Statistics::default();
        let (ranks, rest) = RecordReader::open(io::Cursor::new(&record)).unwrap().by_rank();
        prop_assert!(matches!(replay(&mut engine(&elsewhere), ranks, &mut statistics), RunEnd::Finished));
        rest.finish().unwrap();
        prop_assert_eq!(replayed(&traces, &elsewhere), finishes(&statistics));
    }
}

#[test]
fn whole_microseconds_do_not_add_up_to_an_error() {
    // 4,000 pieces of 0.4 us and an all-reduce: rounded one by one, the pieces would have no duration.
    let script = |_| {
        let mut script = vec![Do::Join((0..RANKS).collect(), 0)];
        script.extend(std::iter::repeat_n(Do::Compute(400_000), 4_000));
        script.push(Do::Start(0, collective(CollectiveKind::AllReduce, 100), 0));
        script.push(Do::Wait { slots: vec![0], any: false, timeout: None });
        [script, vec![]]
    };
    let cluster = cluster(1e9, 3_000);
    let (record, finishes) = live(&cluster, (0..RANKS).map(script).collect());
    let (_, traces) = exported(&record, &cluster);
    let rounded = replayed(&without(own::DURATION_PS, &traces), &cluster);
    for (exact, rounded) in finishes.iter().zip(rounded) {
        let (exact, rounded) = (exact.as_ps() as f64, rounded.as_ps() as f64);
        assert!((rounded / exact - 1.0).abs() < 1e-3, "{rounded} ps in place of {exact} ps");
    }
}

/// Two computations around an all-reduce that overlaps the second one, and a computation after the wait.
fn overlapping() -> Vec<[Vec<Do>; 2]> {
    let script = vec![
        Do::Join((0..RANKS).collect(), 0),
        Do::Compute(2_000_000),
        Do::Start(0, collective(CollectiveKind::AllReduce, 1_000), 0),
        Do::Compute(5_000_000),
        Do::Wait { slots: vec![0], any: false, timeout: None },
        Do::Compute(1_000_000),
    ];
    vec![[script, vec![]]; RANKS]
}

#[test]
fn what_follows_an_issue_does_not_depend_on_it_and_what_follows_its_wait_does() {
    let cluster = cluster(1e9, 3_000);
    let (record, _) = live(&cluster, overlapping());
    let (exported, traces) = exported(&record, &cluster);
    let nodes: Vec<Node> = Reader::open(&traces[1][..]).unwrap().map(Result::unwrap).collect();
    let graph: Vec<(u64, &str, &[u64])> =
        nodes.iter().map(|node| (node.id, node.name.as_str(), &node.data_deps[..])).collect();
    let expected: [(u64, &str, &[u64]); 7] = [
        (1, "## process_group:init ##", &[]),
        (2, "compute", &[]),
        (3, "all_reduce", &[2]),
        (4, "compute", &[2]),
        (5, "wait", &[3, 4]),
        (6, "compute", &[5]),
        (7, "end of program", &[6]),
    ];
    assert_eq!(graph, expected);
    assert_eq!(exported.groups, BTreeMap::from([("1".to_owned(), vec![0, 1, 2, 3])]));
    let call = &nodes[2];
    assert_eq!((call.comm_type(), call.unsigned(COMM_SIZE)), (Some(CommType::AllReduce), Some(4_000)));
    assert_eq!((call.text(own::LINE), call.text("reduce_op")), (Some("a.py:1"), Some("MAX")));
    // The duration lacks rank 1's slowdown by a factor of 1.7.
    assert_eq!((nodes[1].duration_micros, nodes[1].unsigned(own::DURATION_PS)), (2, Some(2_000_000)));
    assert_eq!(nodes[3].start_time_micros, 3);
}

#[test]
fn other_tools_traces_without_our_attributes_still_overlap() {
    let cluster = cluster(1e9, 3_000);
    let (record, finishes) = live(&cluster, overlapping());
    let (_, traces) = exported(&record, &cluster);
    assert_eq!(replayed(&without(own::PART, &traces), &cluster), finishes);
}

#[test]
fn open_receives_and_passed_time_outs_end_when_they_did() {
    let script = |me: usize| {
        let mut script = vec![Do::Join((0..RANKS).collect(), 0), Do::Clock, Do::Clock];
        match me {
            2 => script.extend([
                Do::Start(0, CallOp::Recv { from: None, tag: 0, bytes: Bytes(8) }, 0),
                Do::Wait { slots: vec![0], any: false, timeout: Some(1_000) },
                Do::Wait { slots: vec![0], any: false, timeout: None },
            ]),
            3 => script.extend([
                Do::Compute(9_000_000),
                Do::Start(0, CallOp::Send { to: GroupRank(2), tag: 0, bytes: Bytes(8) }, 0),
            ]),
            _ => {}
        }
        [script, vec![]]
    };
    let cluster = cluster(1e9, 3_000);
    let (record, finishes) = live(&cluster, (0..RANKS).map(script).collect());
    assert_eq!(replayed(&exported(&record, &cluster).1, &cluster), finishes);
}

#[test]
fn a_run_that_failed_or_was_cut_short_is_no_trace() {
    let cluster = cluster(1e9, 3_000);
    let header = Header { world_size: RANKS as u32, manifest: Manifest::default() };
    let refused = |record: Vec<u8>| {
        let open = |_| Ok(io::sink());
        export(RecordReader::open(io::Cursor::new(&record)).unwrap(), &cluster, &[], &mut (), open)
            .unwrap_err()
            .to_string()
    };
    let mut record = RecordWriter::new(Vec::new(), &header);
    let fails = Request::Exit(Outcome::Failed).into();
    (0..RANKS).for_each(|rank| record.step(RankId::from(rank), TaskId(0), &fails, ""));
    let failed = refused(record.finish().unwrap());
    assert!(failed.contains("the program of rank 0 failed\nhint: "), "{failed}");
    let short = refused(RecordWriter::new(Vec::new(), &header).finish().unwrap());
    assert!(short.contains("its program record is incomplete\nhint: "), "{short}");
}

#[test]
fn groups_of_the_same_ranks_are_told_apart_by_number() {
    // Names are compared as numbers: group 10 comes after group 9, on every rank.
    let group = |name: &str| ProcessGroup { name: name.into(), description: None, ranks: vec![] };
    let names: Vec<String> = (1..=12).map(|number| group(&number.to_string()).name).collect();
    let script = |_| {
        let mut script: Vec<Do> = (0..names.len() as u32).map(|n| Do::Join((0..RANKS).collect(), n)).collect();
        for slot in 0..names.len() {
            script.push(Do::Start(slot, collective(CollectiveKind::AllReduce, 50 * (slot as u64 + 1)), slot));
        }
        [script, vec![]]
    };
    let cluster = cluster(1e9, 3_000);
    let (record, finishes) = live(&cluster, (0..RANKS).map(script).collect());
    assert_eq!(replayed(&exported(&record, &cluster).1, &cluster), finishes);
}
