//! Owns the conversion of a real run into a program record: the requests of its ranks to the simulator, with the
//! recorded durations of compute.
//!
//! Each rank has only its main thread: operations that other threads issued are issued by the main thread at the same
//! instant, or as soon as it is not blocked. The simulation determines the duration of a wait for known operations;
//! sleeps, and waits for the store, last as long as recorded. Decisions of the program that depended on the clock, or
//! on the order in which messages arrived, stay as recorded.

use std::collections::BTreeMap;
use uniference_formats::real::merge::{Merged, Operation, RealRank, Wait};
use uniference_sim::event::WaitReason;
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, Mark, Origin, Request, Work};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{SimDuration, SimTime};

/// Steps of each rank of a real run, in order.
pub fn steps(run: &Merged) -> impl Iterator<Item = (RankId, Vec<RecordedStep>)> {
    (0..).map(RankId).zip(&run.ranks).map(|(id, rank)| (id, steps_of(run, rank)))
}

fn steps_of(run: &Merged, rank: &RealRank) -> Vec<RecordedStep> {
    let mut program = RequestBuilder::default();
    let mut before: BTreeMap<&[RankId], u32> = BTreeMap::new();
    for (group, members) in run.groups.iter().enumerate() {
        let sequence = before.entry(members).or_default();
        program.ask(Request::JoinGroup {
            ranks: members[..].into(),
            sequence: *sequence,
            settings: None,
            rendezvous: false,
        });
        program.steps.push(RecordedStep::Named(GroupId::from(group)));
        *sequence += 1;
    }
    program.sleep(rank.start.since(SimTime::ZERO), Site(0));
    let mut free = rank.start;
    for (at, moment) in moments(rank) {
        program.compute(at.as_ps().saturating_sub(free.as_ps()));
        free = free.max(at);
        match moment {
            Action::Issues(handle, operation) => program.call(handle, operation),
            Action::Marks(mark) => drop(program.issue(Activity::Mark(mark.clone()), Site(0))),
            Action::Waits(wait) => {
                program.wait(wait);
                free = free.max(wait.end);
            }
        }
    }
    program.compute(rank.finish.as_ps().saturating_sub(free.as_ps()));
    program.ask(Request::Exit(rank.outcome));
    program.steps
}

/// Next action of the main thread.
enum Action<'a> {
    Issues(Handle, &'a Operation),
    Waits(&'a Wait),
    Marks(&'a Mark),
}

fn moments(rank: &RealRank) -> Vec<(SimTime, Action<'_>)> {
    let issues = (0..).map(Handle).zip(&rank.operations);
    let mut moments: Vec<_> = issues.map(|(handle, its)| (its.issued, Action::Issues(handle, its))).collect();
    // Ranges that other threads have opened would close ranges of the main thread.
    let its = |task: TaskId, mark: &Mark| task == TaskId(0) || matches!(mark, Mark::Open { .. } | Mark::Close { .. });
    let marks = rank.marks.iter().filter(|(_, task, mark)| its(*task, mark));
    moments.extend(marks.map(|(at, _, mark)| (*at, Action::Marks(mark))));
    moments.extend(rank.waits.iter().filter(|wait| wait.is_main()).map(|wait| (wait.start, Action::Waits(wait))));
    // The sort is stable, so an operation stays before the wait for it.
    moments.sort_by_key(|(at, _)| *at);
    moments
}

/// The steps so far.
#[derive(Default)]
struct RequestBuilder {
    steps: Vec<RecordedStep>,
    issued: u32,
    /// Operations that no wait has reported yet: the recorder's handle, and the simulation's handle.
    open: BTreeMap<Handle, Handle>,
}

impl RequestBuilder {
    fn ask(&mut self, request: Request) {
        self.steps.push(RecordedStep::Request(request));
    }

    fn issue(&mut self, activity: Activity, site: Site) -> Handle {
        self.ask(Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site });
        self.issued += 1;
        Handle(self.issued - 1)
    }

    fn call(&mut self, handle: Handle, operation: &Operation) {
        let issued = self.issue(Activity::Call(operation.call.clone()), operation.site);
        self.open.insert(handle, issued);
    }

    fn compute(&mut self, ps: u64) {
        if ps > 0 {
            let work = Work::new(SimDuration::from_ps(ps), Origin::Recorded);
            let handle = self.issue(Activity::Compute(work), Site(0));
            self.wait_for(vec![handle], Site(0));
        }
    }

    fn sleep(&mut self, time: SimDuration, site: Site) {
        if time > SimDuration::ZERO {
            let handle = self.issue(Activity::Sleep(time), site);
            self.wait_for(vec![handle], site);
        }
    }

    fn wait(&mut self, wait: &Wait) {
        if wait.reason != WaitReason::Communication || wait.handles.is_empty() {
            return self.sleep(wait.end.since(wait.start), wait.site);
        }
        let handles: Vec<Handle> = wait.handles.iter().filter_map(|handle| self.open.remove(handle)).collect();
        if !handles.is_empty() {
            self.wait_for(handles, wait.site);
        }
    }

    fn wait_for(&mut self, handles: Vec<Handle>, site: Site) {
        self.ask(Request::Wait { handles, any: false, timeout: None, site });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::cluster::{Choices, ClusterFile};
    use uniference_formats::real::{RankFile, merge};
    use uniference_sim::engine::{Engine, RunEnd};
    use uniference_sim::ids::TaskId;
    use uniference_sim::observe::Statistics;
    use uniference_sim::replay::replay;

    /// Rank 1's clock is 1,000 ns ahead of rank 0's and runs at the same speed. On rank 0's clock, both start at 100;
    /// rank 0 enters an all-reduce at 200 and waits until 600; rank 1 enters at 450 and waits until 620.
    const FILES: [&str; 2] = [
        r#"{"version":2,"rank":0,"world_size":2,"host":"a","device":"a.0","argv":["a.py"],"torch":"2","start":100}
["g",0,0,[0,1]]
["s",0,"a.py:1"]
["i",200,0,0,0,"all_reduce","float32",10,-1,0]
["w",210,600,0,"communication",[0],0]
{"finish":900,"ok":true,"clocks":[],"recorder_calls":3,"recorder_ns":700}"#,
        r#"{"version":2,"rank":1,"world_size":2,"host":"b","device":"b.0","argv":["a.py"],"torch":"2","start":1100}
["g",0,0,[0,1]]
["s",0,"a.py:1"]
["i",1450,0,0,0,"all_reduce","float32",10,-1,0]
["w",1460,1620,0,"communication",[0],0]
["w",1700,1750,0,"sleep",[],0]
{"finish":1800,"ok":true,"clocks":[{"at_ns":1050,"offset_ns":-1000,"error_ns":20}],"recorder_calls":3,"recorder_ns":700}"#,
    ];

    #[test]
    fn a_real_run_can_be_simulated_with_its_own_compute() {
        let text = "[[device]]\nname = \"a\"\ncount = 2\n[network]\nlatency = \"1 us\"\n[backend]\nname = \"ideal\"\n";
        let cluster = ClusterFile::parse("test", text, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster;
        let mut engine = Engine::new(&cluster);
        let recorded = merge(FILES.map(|text| RankFile::parse(text).unwrap()).into()).unwrap();
        let steps = steps(&recorded).map(|(_, steps)| steps.into_iter().map(|its| (TaskId(0), its)));
        let mut statistics = Statistics::default();
        let ended = replay(&mut engine, steps.collect::<Vec<_>>(), &mut statistics);
        assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
        let ns = |span: SimDuration| span.as_ps() / 1_000;
        // compute and sleep are as recorded: the real run's finish - exposed communication - sleep; only communication
        // is simulated
        for (rank, compute, idle) in [(0, 410, 0), (1, 490, 50)] {
            let times = statistics.ranks()[rank].times;
            assert_eq!((ns(times.compute), ns(times.idle)), (compute, idle), "rank {rank}");
        }
        // ring of two: both ranks enter by 360, and two hops of 1 us and 20 B at 10 Gbit/s = 16 ns follow
        let finish = |rank: usize| statistics.ranks()[rank].finish.unwrap().as_ps() / 1_000;
        assert_eq!(finish(1), 350 + 2 * (1_000 + 16) + 80 + 50 + 50);
    }
}
