//! Owns the replies of the engine: the answers that they become, and the data that is reported with them.

use super::causes::Answered;
use super::task::{Asked, DeviceQuestion, State, TaskConversation};
use super::times::launch_ids;
use super::{Conversations, RankConversation, Ready};
use crate::data::Access;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use uniference_protocol::messages::{Answer, Fetched, LocalHandle, Reply as Frame};
use uniference_sim::engine::Resumption;
use uniference_sim::fold_plan::Unlike;
use uniference_sim::ids::{GroupId, Handle, RankId, TaskId};
use uniference_sim::program::{NcclSettings, Outcome, Reply, Request};
use uniference_sim::replay::RecordedStep;

/// Answers and data that tasks have not received.
#[derive(Default)]
pub(super) struct Outbox {
    /// Answers that are ready, in the engine's order.
    ready: VecDeque<Ready>,
    /// Tasks whose waits are over, but whose data another rank still reduces.
    fetching: Vec<Fetching>,
    /// Data that is available to main tasks before their waits are over.
    early_data: Vec<(RankId, Fetched)>,
    /// Number of main tasks that accept data before their waits are over.
    early_data_wanted: usize,
}

impl Outbox {
    /// Notes that a task waits; `ahead`: it accepts data before the wait is over.
    pub(super) fn expect_wait(&mut self, ahead: bool) {
        self.early_data_wanted += usize::from(ahead);
    }
}

/// A task whose wait is over. Entries are in the engine's order, because data is delivered in that order: a task here
/// waits only for earlier ones.
struct Fetching {
    rank: RankId,
    task: TaskId,
    complete: Vec<(LocalHandle, Handle)>,
    /// The failed operations among `complete`, with the rank that closed the connection.
    failed: BTreeMap<Handle, RankId>,
}

impl Conversations {
    /// Handles the engine's answer to a task.
    pub(super) fn resumed(&mut self, resumption: Resumption) {
        let Resumption { rank, task, now, reply } = resumption;
        let resumed = self.task(rank, task);
        if matches!(resumed.state, State::Asked(Asked::Name)) {
            resumed.state = State::Free;
            self.pump(rank, task);
            return self.rest(rank);
        }
        resumed.causes.resumptions += 1;
        resumed.causes.woken_by_other = None;
        let latest = resumed.causes.latest((rank, task));
        let state = std::mem::replace(&mut resumed.state, State::Free);
        let State::Asked(asked) = state else {
            panic!("{rank} {task} was resumed with {reply:?} and had asked nothing")
        };
        self.latest = Some(latest);
        self.outbox.early_data_wanted -= usize::from(matches!(asked, Asked::Wait { ahead: true, .. }));
        if let Reply::Issued(handle) = reply {
            self.recording.issued(rank, task, handle);
        }
        match (asked, reply) {
            (Asked::Piece(piece), Reply::Issued(handle)) => self.piece_issued(rank, task, &piece, handle),
            (Asked::Sleep, Reply::Issued(handle)) => self.await_end(rank, task, handle, Asked::SleepEnd),
            (Asked::SleepEnd, Reply::Complete(_)) => self.answer(rank, task, Answer::Go),
            (Asked::Issue(handle, stream), Reply::Issued(name)) => {
                self.times.issued(rank, &launch_ids(stream), name, None);
                let state = &mut self.ranks[rank.index()];
                if let Some(on) = stream {
                    state.streams.called(on, name);
                }
                state.handles.issued(handle, name);
                self.pump_siblings(rank, task);
            }
            (Asked::Wait { named, .. }, Reply::Complete(complete)) => {
                self.complete(rank, task, &named, &complete, Vec::new());
            }
            (Asked::Wait { named, .. }, Reply::Failed { complete, failed }) => {
                self.complete(rank, task, &named, &complete, failed);
            }
            (Asked::Wait { .. } | Asked::Store, Reply::TimedOut) => self.answer(rank, task, Answer::TimedOut),
            (Asked::Now, Reply::Now(now)) => {
                let computed = self.engine.times(rank).compute;
                self.answer(rank, task, Answer::Now(now, computed));
            }
            (Asked::Device(_, question), Reply::Complete(_)) => self.device_has_ended(rank, task, question),
            // A stream continues after a failed operation: the remaining work must still be waited for.
            (Asked::Device(handles, question), Reply::Failed { failed, .. }) => {
                self.ranks[rank.index()].handles.fail(failed);
                self.await_device(rank, task, handles, question);
            }
            (Asked::Device(_, DeviceQuestion::Query), Reply::TimedOut) => {
                self.answer(rank, task, Answer::Ended(false));
            }
            (Asked::Times, Reply::Now(_)) => {
                let process = self.task(rank, task).process;
                let (launches, more) = self.times.take(rank, process);
                self.answer(rank, task, Answer::Times { launches, more });
            }
            (Asked::Elapsed, Reply::Elapsed(elapsed)) => self.answer(rank, task, Answer::Elapsed(elapsed)),
            (Asked::Pause, Reply::TimedOut) => self.answer(rank, task, Answer::Over),
            (Asked::Yield, Reply::TimedOut) => self.answer(rank, task, Answer::Go),
            (Asked::Group(ranks, settings), Reply::Group(group)) => {
                self.took(rank, task, RecordedStep::Named(group));
                self.joined(rank, task, group, &ranks, settings);
            }
            (Asked::Store, Reply::Store(value)) => self.answer(rank, task, Answer::Store(value)),
            (Asked::FirstTurn, Reply::Start)
            | (Asked::ComputeEnd, Reply::Complete(_))
            | (Asked::Mark, Reply::Issued(_)) => {}
            (_, reply) => panic!("{rank} {task} was answered {reply:?} at {now}, which is not what it had asked for"),
        }
        self.pump(rank, task);
        self.rest(rank);
    }

    pub(super) fn await_end(&mut self, rank: RankId, task: TaskId, handle: Handle, asked: Asked) {
        let site = self.task(rank, task).lines.current();
        let request = Request::Wait { handles: vec![handle], any: false, timeout: None, site };
        self.submit(rank, task, request, asked);
        self.recording.forget(rank, handle);
    }

    fn complete(
        &mut self,
        rank: RankId,
        task: TaskId,
        named: &[(LocalHandle, Handle)],
        complete: &[Handle],
        failed: Vec<(Handle, RankId)>,
    ) {
        // The engine lists complete handles in the order of the request.
        let mut rest = complete.iter().peekable();
        let complete = named.iter().filter(|(_, name)| rest.next_if_eq(&name).is_some()).copied().collect();
        self.owe(rank);
        let own = &self.ranks[rank.index()].handles;
        let before = named.iter().filter_map(|(_, name)| Some((*name, own.failure(*name)?)));
        let failed = before.chain(failed).collect();
        self.fetch(Fetching { rank, task, complete, failed });
    }

    fn joined(
        &mut self,
        rank: RankId,
        task: TaskId,
        group: GroupId,
        ranks: &Arc<[RankId]>,
        settings: Option<NcclSettings>,
    ) {
        if let Some(absent) = &mut self.absent {
            absent.joined(group, ranks);
        }
        if let Err(member) = self.data.join(group, rank, ranks, settings) {
            let size = ranks.len();
            let problem = format!("{rank} is in a group of {size} ranks in which nobody that runs is like {member}");
            return self.deviates(Unlike::absence(problem));
        }
        self.answer(rank, task, Answer::Group(group.0));
    }

    fn device_has_ended(&mut self, rank: RankId, task: TaskId, question: DeviceQuestion) {
        match question {
            DeviceQuestion::Synchronize => self.answer(rank, task, Answer::Go),
            DeviceQuestion::Query => self.answer(rank, task, Answer::Ended(true)),
            DeviceQuestion::Exit => self.end_task(rank, task, Outcome::Ok),
        }
    }

    pub(super) fn answer(&mut self, rank: RankId, task: TaskId, answer: Answer) {
        self.owe(rank);
        self.push(rank, task, answer);
    }

    fn push(&mut self, rank: RankId, task: TaskId, answer: Answer) {
        let TaskConversation { questions: question, driver_id, .. } = *self.task(rank, task);
        let (rank, task) = driver_id.unwrap_or((rank, task));
        self.outbox.ready.push_back(Ready { rank, task, answer, question });
    }

    /// The next answer.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.outbox.ready.pop_front()
    }

    /// Data to write to a rank's main task while its wait continues.
    pub fn take_ahead(&mut self) -> Option<(RankId, Frame)> {
        let (rank, fetched) = self.outbox.early_data.pop()?;
        Some((
            rank,
            Frame {
                now: self.clock(rank),
                asked: self.task(rank, TaskId(0)).asked_at,
                freed: Vec::new(),
                over: Vec::new(),
                failed: Vec::new(),
                answer: Answer::Ahead(fetched),
            },
        ))
    }

    /// The message to write to the task of `ready`; its rank then runs. `None`: the task has ended, or has left the
    /// pause whose end this is.
    pub fn frame(&mut self, ready: Ready) -> Option<Frame> {
        let Ready { rank, task, answer, question } = ready;
        let (rank, task) = self.processes.behind(rank, task);
        let turn = self.turn(rank);
        turn.pay();
        let is_gone = turn.is_gone();
        let RankConversation { tasks, communicates, .. } = &self.ranks[rank.index()];
        let asking = &tasks[task.index()];
        if question != asking.questions || asking.closed || is_gone {
            self.rest(rank);
            return None;
        }
        let asked = asking.asked_at;
        let answered = Answered { whose: (rank, task), from: asking.causes.latest((rank, task)) };
        let acts = asking.polls.since.is_none() && !matches!(answer, Answer::Over);
        // These answers are for the relay thread that asks on behalf of another process, not for the process itself.
        let is_its_own = !matches!(answer, Answer::Over | Answer::Moved);
        let hears = communicates.is_none_or(|process| process == asking.process && is_its_own);
        self.turn(rank).go_on(answered, acts);
        let now = self.clock(rank);
        let mut frame = Frame { now, asked, freed: Vec::new(), over: Vec::new(), failed: Vec::new(), answer };
        if hears {
            frame.over = self.take_over(rank);
            (frame.freed, frame.failed) = (self.data.take_freed(rank), self.data.take_failed(rank));
        }
        Some(frame)
    }

    /// Handles of the rank's finished communication that has not been reported to it. Operations that the engine has
    /// started and not yet named have no handle, and are kept for the next call.
    fn take_over(&mut self, rank: RankId) -> Vec<LocalHandle> {
        let own = &self.ranks[rank.index()].handles;
        let (named, unnamed): (Vec<Handle>, Vec<Handle>) =
            self.data.take_over(rank).into_iter().partition(|name| own.is_told(*name));
        self.data.keep_over(rank, unnamed);
        named.iter().filter_map(|name| own.own(*name)).collect()
    }

    /// Reports to a task that its operations are complete, once all of their data is available.
    fn fetch(&mut self, fetching: Fetching) {
        let Fetching { rank, task, ref complete, ref failed } = fetching;
        let mut told = Vec::with_capacity(complete.len());
        // Another thread of the rank may already have fetched and released some operations.
        let left = complete.iter().filter(|(handle, _)| !self.ranks[rank.index()].handles.is_released(*handle));
        let mut busy = false;
        for (handle, name) in left {
            if let Some(peer) = failed.get(name) {
                told.push((*handle, Fetched { closed_by: Some(peer.0), ..Fetched::default() }));
                continue;
            }
            match self.data.fetch(rank, *name) {
                Access::Ready(fetched) => told.push((*handle, fetched)),
                Access::Busy => busy = true,
            }
        }
        if busy {
            return self.outbox.fetching.push(fetching);
        }
        self.push(rank, task, Answer::Complete(told));
        for (_, name) in fetching.complete.iter().filter(|(_, name)| !fetching.failed.contains_key(name)) {
            self.hand_ahead(rank, *name);
        }
    }

    /// Hands the result of the collective `name` of `rank` to members that still wait for this collective alone: they
    /// may copy the result already.
    pub(super) fn hand_ahead(&mut self, rank: RankId, name: Handle) {
        if self.outbox.early_data_wanted == 0 {
            return;
        }
        for (other, name) in self.data.members(rank, name) {
            let state = &mut self.ranks[other.index()].tasks[0].state;
            let State::Asked(Asked::Wait { named, ahead }) = state else { continue };
            if *ahead
                && matches!(named[..], [(_, waits_for)] if waits_for == name)
                && let Access::Ready(fetched) = self.data.fetch(other, name)
            {
                *ahead = false;
                self.outbox.early_data_wanted -= 1;
                self.outbox.early_data.push((other, fetched));
            }
        }
    }

    pub(super) fn retry_fetches(&mut self) {
        for fetching in std::mem::take(&mut self.outbox.fetching) {
            self.fetch(fetching);
        }
    }
}
