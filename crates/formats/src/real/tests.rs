use super::clock::{Clock, Reading};
use super::*;
use std::collections::BTreeMap;
use uniference_sim::event::{Event, Meeting, Observer, WaitReason};
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::observe::Statistics;
use uniference_sim::program::Mark;
use uniference_sim::time::{SimDuration, SimTime};

/// One line per relevant event, times in nanoseconds.
#[derive(Default)]
struct Seen(Vec<String>);

impl Observer for Seen {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        let ns = |ps: u64| ps / 1_000;
        let at = ns(at.as_ps());
        match event {
            Event::Completed { rank, handle, call, issued, meeting, .. } => {
                let met = match meeting {
                    Meeting::Collective { sequence } => format!("number {sequence}"),
                    Meeting::Peer(peer) => format!("{peer:?}"),
                };
                let name = call.op.name();
                self.0.push(format!("{at} {rank} {handle} {name} since {} {met}", ns(issued.as_ps())));
            }
            Event::Waited { rank, start, reason, late_peer, .. } => {
                let late = ns(late_peer.as_ps());
                self.0.push(format!("{at} {rank} waited since {} {reason:?} late {late}", ns(start.as_ps())));
            }
            _ => {}
        }
    }
}

/// A rank's file: its host, clock readings, start and finish, and the records between the first and the last line.
fn file(rank: u32, host: &str, clocks: &str, span: (i64, i64), records: &[&str]) -> RankFile {
    RankFile::parse(&text(rank, host, clocks, span, records)).unwrap()
}

fn text(rank: u32, host: &str, clocks: &str, (start, finish): (i64, i64), records: &[&str]) -> String {
    let head = format!(
        r#"{{"version":3,"rank":{rank},"world_size":2,"host":"{host}","device":"{host}.0","argv":["a.py"],"torch":"2","start":{start}}}"#
    );
    let tail = format!(r#"{{"finish":{finish},"ok":true,"clocks":{clocks},"recorder_calls":3,"recorder_ns":700}}"#);
    let lines: Vec<&str> = [&head[..]].into_iter().chain(records.iter().copied()).chain([&tail[..]]).collect();
    lines.join("\n")
}

const GROUP: &str = r#"["g",0,0,[0,1]]"#;
const SITE: &str = r#"["s",0,"a.py:1"]"#;

/// Rank 1's clock is 1,000 ns ahead of rank 0's and runs at the same speed. On rank 0's clock: both start at 100, rank
/// 0 enters an all-reduce at 200 and waits until 600; rank 1 enters at 450 and waits until 620.
fn two_hosts() -> Merged {
    let zero = file(
        0,
        "a",
        "[]",
        (100, 900),
        &[GROUP, SITE, r#"["i",200,0,0,0,"all_reduce","float32",10,-1,0]"#, r#"["w",210,600,0,"communication",[0],0]"#],
    );
    let one = file(
        1,
        "b",
        r#"[{"at_ns":1050,"offset_ns":-1000,"error_ns":20}]"#,
        (1_100, 1_800),
        &[
            GROUP,
            SITE,
            r#"["i",1450,0,0,0,"all_reduce","float32",10,-1,0]"#,
            r#"["w",1460,1620,0,"communication",[0],0]"#,
            r#"["w",1700,1750,0,"sleep",[],0]"#,
        ],
    );
    merge(vec![one, zero]).unwrap()
}

#[test]
fn offsets_of_clocks_are_removed() {
    let mut seen = Seen::default();
    two_hosts().tell(&mut seen);
    // time of a rank = its clock + offset - 100; late peer = 450 - 210: from rank 0's wait to rank 1's entry
    assert_eq!(
        seen.0,
        [
            "500 rank 0 handle 0 all_reduce since 100 number 0",
            "500 rank 0 waited since 110 Communication late 240",
            "520 rank 1 handle 0 all_reduce since 350 number 0",
            "520 rank 1 waited since 360 Communication late 0",
            "650 rank 1 waited since 600 Sleep late 0",
        ]
    );
    assert_eq!(two_hosts().clock_error(), SimDuration::from_ns(20));
}

#[test]
fn compute_exposed_and_idle_add_up_to_the_finish() {
    let mut statistics = Statistics::default();
    two_hosts().tell(&mut statistics);
    let ns = |span: SimDuration| span.as_ps() / 1_000;
    for (rank, finish, compute, exposed, idle) in [(0, 800, 410, 390, 0), (1, 700, 490, 160, 50)] {
        // compute = finish - exposed - idle
        let figures = statistics.ranks()[rank];
        let times = figures.times;
        assert_eq!((ns(times.compute), ns(times.exposed), ns(times.idle)), (compute, exposed, idle), "rank {rank}");
        assert_eq!(figures.finish, Some(SimTime::from_ps(finish * 1_000)));
    }
}

#[test]
fn numbered_ranges_begin_and_end_by_their_numbers() {
    struct Marks(Vec<(u64, Mark)>);
    impl Observer for Marks {
        fn record(&mut self, at: SimTime, event: &Event<'_>) {
            if let Event::Marked { mark, .. } = event {
                self.0.push((at.as_ps() / 1_000, (*mark).clone()));
            }
        }
    }
    let records = [r#"["n",200,1,7,"forward"]"#, r#"["n",300,1,7,null]"#];
    let other = file(1, "a", "[]", (100, 400), &[]);
    let mut marks = Marks(Vec::new());
    merge(vec![file(0, "a", "[]", (100, 400), &records), other]).unwrap().tell(&mut marks);
    let (range, thread) = (7, TaskId(1));
    let expected = [(100, Mark::Enter { range, thread, name: "forward".into() }), (200, Mark::Leave { range, thread })];
    assert_eq!(marks.0, expected);
}

#[test]
fn a_drift_is_a_line_through_two_readings() {
    let reading = |at_ns, offset_ns| Reading { at_ns, offset_ns, error_ns: 0 };
    let clock = Clock::new(vec![reading(1_000, 100), reading(2_000, 110)]);
    // offset(t) = 100 + (t - 1000) * 10 / 1000
    for (at, reference) in [(1_000, 1_100), (1_500, 1_605), (2_000, 2_110), (3_000, 3_120)] {
        assert_eq!(clock.reference(at), reference);
    }
}

#[test]
fn messages_of_a_pair_meet_in_their_order() {
    let sends = file(
        0,
        "a",
        "[]",
        (0, 900),
        &[
            GROUP,
            SITE,
            r#"["i",10,0,0,0,"send","float32",40,1,0]"#,
            r#"["i",20,0,1,0,"send","float32",80,1,0]"#,
            r#"["w",30,500,0,"communication",[0],0]"#,
            r#"["w",500,600,0,"communication",[1],0]"#,
        ],
    );
    // The second receive is from any rank, and matched rank 0.
    let receives = file(
        1,
        "a",
        "[]",
        (0, 900),
        &[
            GROUP,
            SITE,
            r#"["i",400,0,0,0,"recv","float32",40,0,0]"#,
            r#"["w",410,500,0,"communication",[0],0]"#,
            r#"["i",550,0,1,0,"recv","float32",80,-1,0]"#,
            r#"["w",555,610,0,"communication",[1],0]"#,
            r#"["d",611,1,0]"#,
        ],
    );
    let mut seen = Seen::default();
    merge(vec![sends, receives]).unwrap().tell(&mut seen);
    let of_second: Vec<&String> = seen.0.iter().filter(|line| line.contains("handle 1")).collect();
    assert_eq!(
        of_second,
        [
            "600 rank 0 handle 1 send since 20 Some((RankId(1), Handle(1)))",
            "610 rank 1 handle 1 recv since 550 Some((RankId(0), Handle(1)))",
        ]
    );
    // rank 0 waits from 30 for a peer that enters at 400, and from 500 for a peer that enters at 550
    let late: Vec<&String> = seen.0.iter().filter(|line| line.contains("rank 0 waited")).collect();
    assert!(late[0].ends_with("late 370") && late[1].ends_with("late 50"), "{late:?}");
}

#[test]
fn groups_meet_by_members_and_count() {
    let records = |first: &str, second: &str| {
        let operation =
            |at: u32, handle: u32, group: u32| format!(r#"["i",{at},0,{handle},{group},"barrier","uint8",0,-1,0]"#);
        [SITE.to_owned(), first.to_owned(), operation(10, 0, 0), second.to_owned(), operation(20, 1, 1)]
    };
    let members = [r#"["g",5,0,[0,1]]"#, r#"["g",15,1,[0,1]]"#];
    let files = (0..2).map(|rank| {
        let lines = records(members[0], members[1]);
        file(rank, "a", "[]", (0, 100), &lines.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let merged = merge(files.collect()).unwrap();
    assert_eq!(merged.members(uniference_sim::ids::GroupId(1)), [RankId(0), RankId(1)]);
    let mut count: BTreeMap<u32, u32> = BTreeMap::new();
    struct Groups<'a>(&'a mut BTreeMap<u32, u32>);
    impl Observer for Groups<'_> {
        fn record(&mut self, _: SimTime, event: &Event<'_>) {
            if let Event::Issued { call, .. } = event {
                *self.0.entry(call.group.0).or_default() += 1;
            }
        }
    }
    merged.tell(&mut Groups(&mut count));
    // two groups, each with one barrier that both ranks enter
    assert_eq!(count, BTreeMap::from([(0, 2), (1, 2)]));
    assert_eq!(merged.unseen(), 4);
}

#[test]
fn waits_within_a_backward_pass_do_not_overlap_others() {
    let files = (0..2).map(|rank| {
        file(
            rank,
            "a",
            "[]",
            (0, 900),
            &[
                GROUP,
                SITE,
                r#"["i",100,0,0,0,"all_reduce","float32",10,-1,0]"#,
                r#"["i",200,0,1,0,"all_reduce","float32",10,-1,0]"#,
                r#"["d",300,0,null]"#,
                r#"["d",550,1,null]"#,
                r#"["w",400,600,0,"communication",[0,1],0]"#,
            ],
        )
    });
    let mut statistics = Statistics::default();
    merge(files.collect()).unwrap().tell(&mut statistics);
    // exposed = completion of the last bucket - end of the backward pass = 550 - 400
    assert_eq!(statistics.ranks()[0].times.exposed, SimDuration::from_ns(150));
}

#[test]
fn files_that_are_not_of_one_run_are_refused() {
    let alone = || file(0, "a", "[]", (0, 1), &[]);
    let mut other = alone();
    other.head.argv = vec!["b.py".into()];
    let texts = [vec![alone()], vec![alone(), alone()], vec![alone(), other], vec![]]
        .map(|files| merge(files).err().expect("they are refused").to_string());
    insta::assert_snapshot!(texts.join("\n----\n"));
    let texts = ["", "{}\n{}", "{\"version\":3}\n[]"].map(|text| RankFile::parse(text).unwrap_err().to_string());
    insta::assert_snapshot!(texts.join("\n----\n"));
}

#[test]
fn operations_are_told_apart_by_their_numbers_and_lines_may_be_described_late() {
    // A thread got number 0 and was interrupted before it wrote; the other thread's line of the program was not written
    // yet.
    let records = [
        GROUP,
        r#"["i",100,1,1,0,"barrier","uint8",0,-1,0]"#,
        SITE,
        r#"["i",90,0,0,0,"all_reduce","float32",10,-1,0]"#,
        r#"["d",300,1,null]"#,
        r#"["d",400,0,null]"#,
    ];
    let merged = merge((0..2).map(|rank| file(rank, "a", "[]", (0, 900), &records)).collect()).unwrap();
    let ends = merged.ranks[0].operations.iter().map(|operation| (operation.call.op.name(), operation.completed));
    let at = |ns: u64| Some(SimTime::from_ps(1_000 * ns));
    assert_eq!(ends.collect::<Vec<_>>(), [("barrier", at(300)), ("all_reduce", at(400))]);
}

#[test]
fn records_of_what_the_file_does_not_describe_are_refused() {
    let issued = r#"["i",1,0,0,0,"all_reduce","float32",10,-1,0]"#;
    let cases: [(&[&str], &str); 8] = [
        (&[SITE, issued], "line 3 is not a valid record of a rank: group 0 is not defined"),
        (&[GROUP, issued], "line 3 is not a valid record of a rank: call site 0 is not defined"),
        (&[GROUP, SITE, issued, issued], "operation 0 is issued twice"),
        (&[r#"["d",1,0,null]"#], "operation 0 was not issued"),
        (&[SITE, r#"["w",1,2,0,"sleep",[7],0]"#], "operation 7 was not issued"),
        (
            &[GROUP, SITE, r#"["i",1,0,0,0,"broadcast","float32",10,2,0]"#],
            "rank 2 is out of range for a group of size 2",
        ),
        (&[r#"["g",0,0,[0,5]]"#], "group 0 must consist of ranks of this run"),
        (&[r#"["g",0,0,[1]]"#], "group 0 must consist of ranks of this run and contain rank 0"),
    ];
    for (records, expected) in cases {
        let error = RankFile::parse(&text(0, "a", "[]", (0, 9), records)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("hint:"), "{error}");
    }
}

#[test]
fn a_wait_has_the_reason_that_was_recorded() {
    let files = (0..2).map(|rank| file(rank, "a", "[]", (0, 9), &[SITE, r#"["w",1,4,0,"store",[],0]"#]));
    struct Reasons(Vec<WaitReason>);
    impl Observer for Reasons {
        fn record(&mut self, _: SimTime, event: &Event<'_>) {
            if let Event::Waited { reason, .. } = event {
                self.0.push(*reason);
            }
        }
    }
    let mut reasons = Reasons(Vec::new());
    merge(files.collect()).unwrap().tell(&mut reasons);
    assert_eq!(reasons.0, [WaitReason::Store; 2]);
}
