//! Owns the way from a real run to a program record: what its ranks would have asked of the simulator, with the compute that they really took.
//!
//! A rank's one thread is its main one: what other threads issued, it issues at the same instant, or once it is blocked no longer. A wait whose
//! operations are known is the simulation's to answer; sleeps, and waits for the store, last as long as they did. What depended on
//! the clock, or on whose message came first, stays as it was.

use super::merge::{Merged, Operation, Rank, Wait};
use std::collections::BTreeMap;
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site};
use uniference_sim::program::{Activity, Mark, Origin, Request, Work};
use uniference_sim::record::WaitReason;
use uniference_sim::time::{SimDuration, SimTime};

impl Merged {
    /// What each rank asks for, in its order.
    pub fn requests(&self) -> impl Iterator<Item = (RankId, Vec<Request>)> {
        (0..).map(RankId).zip(&self.ranks).map(|(id, rank)| (id, self.requests_of(rank)))
    }

    fn requests_of(&self, rank: &Rank) -> Vec<Request> {
        let mut program = Program::default();
        self.name_groups(&mut program);
        program.sleep(rank.start.since(SimTime::ZERO), Site(0));
        let mut free = rank.start;
        for (at, moment) in moments(rank) {
            program.compute(at.as_ps().saturating_sub(free.as_ps()));
            free = free.max(at);
            match moment {
                Moment::Issues(handle, operation) => program.call(handle, operation),
                Moment::Marks(mark) => drop(program.issue(Activity::Mark(mark.clone()), Site(0))),
                Moment::Waits(wait) => {
                    program.wait(wait);
                    free = free.max(wait.end);
                }
            }
        }
        program.compute(rank.finish.as_ps().saturating_sub(free.as_ps()));
        program.requests.push(Request::Exit(rank.outcome));
        program.requests
    }

    /// Every rank names all groups in the order of their numbers, so that they get just these.
    fn name_groups(&self, program: &mut Program) {
        let mut before: BTreeMap<&[RankId], u32> = BTreeMap::new();
        for group in (0..self.groups.len()).map(GroupId::from) {
            let ranks = self.members(group);
            let sequence = before.entry(ranks).or_default();
            program.requests.push(Request::JoinGroup { ranks: ranks.into(), sequence: *sequence });
            *sequence += 1;
        }
    }
}

/// What the main thread does next.
enum Moment<'a> {
    Issues(Handle, &'a Operation),
    Waits(&'a Wait),
    Marks(&'a Mark),
}

fn moments(rank: &Rank) -> Vec<(SimTime, Moment<'_>)> {
    let issues = (0..).map(Handle).zip(&rank.operations);
    let mut moments: Vec<_> = issues.map(|(handle, its)| (its.issued, Moment::Issues(handle, its))).collect();
    moments.extend(rank.marks.iter().map(|(at, mark)| (*at, Moment::Marks(mark))));
    moments.extend(rank.waits.iter().filter(|wait| wait.is_main()).map(|wait| (wait.start, Moment::Waits(wait))));
    // Stable: an operation comes before the wait for it.
    moments.sort_by_key(|(at, _)| *at);
    moments
}

/// The requests so far.
#[derive(Default)]
struct Program {
    requests: Vec<Request>,
    issued: u32,
    /// Operations that no wait has reported yet: the recorder's handle, and the simulation's.
    open: BTreeMap<Handle, Handle>,
}

impl Program {
    fn issue(&mut self, activity: Activity, site: Site) -> Handle {
        self.requests.push(Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site });
        self.issued += 1;
        Handle(self.issued - 1)
    }

    fn call(&mut self, handle: Handle, operation: &Operation) {
        let issued = self.issue(Activity::Call(operation.call.clone()), operation.site);
        self.open.insert(handle, issued);
    }

    fn compute(&mut self, ps: u64) {
        if ps > 0 {
            let work = Work { duration: SimDuration::from_ps(ps), origin: Origin::Recorded };
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
        self.requests.push(Request::Wait { handles, any: false, timeout: None, site });
    }
}
