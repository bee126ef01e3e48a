//! Owns the operations of tasks: which of them may be carried out, and the requests that they become.

use super::dictionary::process;
use super::task::{Asked, DeviceQuestion, State, TaskConversation};
use super::times::launch_ids;
use super::{Conversations, RankConversation};
use std::sync::Arc;
use uniference_protocol::messages::{Answer, LocalHandle, OnStream, Op, Quiet};
use uniference_sim::ids::{GroupId, Handle, OfProcess, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, POLL_COST, Request, StoreOp};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::SimDuration;

impl Conversations {
    /// Receives operations of a task; `quiet` marks the last batch until the process is answered. Returns whether the
    /// rank is quiet now.
    pub fn say(&mut self, rank: RankId, task: TaskId, mut ops: Vec<Op>, quiet: Option<Quiet>) -> bool {
        let (rank, task) = self.processes.behind(rank, task);
        self.take_at_once(rank, task, &mut ops);
        let asks = ops.last().is_some_and(Op::asks);
        let ends = ops.iter().any(|op| matches!(op, Op::Exit(_)));
        let speaking = self.task(rank, task);
        speaking.questions += u64::from(asks);
        speaking.inbox.hear(ops);
        let is_quiet = self.turn(rank).hear(quiet);
        match quiet {
            Some(quiet) if is_quiet => {
                self.quiet(rank, quiet);
                return true;
            }
            // Tasks of ranks without a program of their own ask nothing, and would keep time from passing.
            None if ends && self.processes.lends() && task == TaskId(0) => {
                self.quiet(rank, Quiet::default());
                return true;
            }
            // Operations that several threads send between two answers are carried out in the order of the threads,
            // once all are received.
            None if self.ranks[self.processes.head(rank).index()].tasks.len() == 1 => {
                self.turn(rank).needs_no_turn();
                self.pump(rank, task);
            }
            _ => {}
        }
        false
    }

    /// Carries out at once the operations that need no turn: copied inputs, finished reductions, and definitions of ids
    /// in captured operators. A task that copies its input may already wait for an answer, and other tasks wait for a
    /// reduction before time passes for further operations.
    fn take_at_once(&mut self, rank: RankId, task: TaskId, ops: &mut Vec<Op>) {
        let (before, mut folded) = (ops.len(), Vec::new());
        ops.retain_mut(|op| {
            match op {
                Op::Issue { staged: Some(room), filled: false, .. } => self.data.filling(room.at),
                Op::Filled(room) => self.data.filled(*room),
                Op::Folded(handle) => {
                    let name = self.name(rank, *handle);
                    self.data.folded(rank, name);
                    folded.push(name);
                }
                Op::Dictionary { process, entries, .. } => self.names(rank, *process, std::mem::take(entries)),
                Op::Compute(_) => {
                    let RankConversation { tasks, dictionary, .. } = &mut self.ranks[rank.index()];
                    tasks[task.index()].inbox.hear_slice(dictionary.heard());
                }
                _ => {}
            }
            !matches!(op, Op::Filled(_) | Op::Folded(_) | Op::Dictionary { .. })
        });
        if ops.len() < before {
            self.retry_fetches();
        }
        for name in folded {
            self.hand_ahead(rank, name);
        }
    }

    /// Carries out the task's operations, until the engine must answer or none is left.
    pub(super) fn pump(&mut self, rank: RankId, task: TaskId) {
        while self.may_carry_out(rank, task)
            && let is_first = self.task(rank, task).inbox.is_at_start()
            && let Some((op, cause)) = self.task(rank, task).inbox.take()
        {
            let answered = self.turn(rank).cause();
            let starts_at = self.task(rank, TaskId(0)).lines.current();
            let speaking = self.task(rank, task);
            if is_first {
                speaking.lines.start_at(starts_at);
            }
            if cause.is_some() {
                (speaking.causes.woken_by, speaking.causes.woken_by_other) = (cause, cause);
            }
            if matches!(speaking.state, State::Asked(Asked::Pause)) {
                speaking.state = State::Free;
                speaking.causes.woken_by = speaking.causes.woken_by.or(answered);
                self.after_another(rank, task);
                self.release(rank, task);
            }
            self.carry_out(rank, task, op);
        }
    }

    /// Whether it is the task's turn, and everything that its next operation refers to is known: another thread may
    /// just have issued the operation that the task waits for. A slice starts only after the pieces of other threads'
    /// slices are handed over, as it may refer to them; a question about the device waits for work that other threads
    /// have sent and that it may refer to.
    fn may_carry_out(&self, rank: RankId, task: TaskId) -> bool {
        let RankConversation { tasks, handles: own, streams, .. } = &self.ranks[rank.index()];
        let TaskConversation { state, inbox, process, .. } = &tasks[task.index()];
        let known = |handle: &LocalHandle| own.name(*handle).is_some() || own.is_released(*handle);
        let unknown = match inbox.ops().front() {
            Some(Op::Wait { handles, .. }) => !handles.iter().all(known),
            Some(Op::Compute(_)) => tasks.iter().any(|task| !task.handover.pieces.is_empty()),
            Some(Op::Synchronize { work, .. } | Op::Query { work, .. }) if !streams.knows(*process, *work) => {
                let hands_over = |op: &Op| matches!(op, Op::Compute(_) | Op::Issue { stream: Some(_), .. });
                let others = tasks.iter().enumerate().filter(|(other, _)| *other != task.index());
                others
                    .map(|(_, said)| said)
                    .any(|said| !said.handover.pieces.is_empty() || said.inbox.ops().iter().any(hands_over))
            }
            _ => false,
        };
        // A thread that sends an operation has left the pause before it.
        let has_left = inbox.is_due();
        let is_its_turn = matches!(state, State::Free) || matches!(state, State::Asked(Asked::Pause)) && has_left;
        is_its_turn && !unknown
    }

    pub(super) fn pump_siblings(&mut self, rank: RankId, task: TaskId) {
        for sibling in (0..self.ranks[rank.index()].tasks.len()).map(TaskId::from).filter(|sibling| *sibling != task) {
            self.pump(rank, sibling);
        }
    }

    fn carry_out(&mut self, rank: RankId, task: TaskId, op: Op) {
        if op.asks() {
            self.task(rank, task).asked_at = self.clock(rank);
        }
        let line = self.task(rank, task).lines.of(&op);
        let has_line = line.is_some_and(|site| !self.line(site).is_empty());
        let speaking = self.task(rank, task);
        speaking.is_programs |= has_line || task == TaskId(0);
        if speaking.is_programs || !polls(&op) {
            self.acted_at = self.acted_at.max(self.clock(rank));
        }
        if !only_looks(&op) {
            self.task(rank, task).polls.since = None;
            if !matches!(op, Op::Pause(_)) {
                self.turn(rank).act();
            }
        }
        match op {
            Op::Site(text) => {
                let site = self.lines.site(rank, &text);
                self.task(rank, task).lines.add(site);
            }
            Op::Release(handle) => {
                if let Some(name) = self.ranks[rank.index()].handles.release(handle) {
                    self.recording.forget(rank, name);
                    self.data.release(rank, name);
                    self.retry_fetches();
                }
            }
            Op::At(_) => drop(self.task(rank, task).lines.advance(Some(&op))),
            Op::Start | Op::Settle => self.answer(rank, task, Answer::Go),
            Op::Moves(to) => {
                assert!(
                    self.processes.lends() && rank == RankId(0),
                    "{rank} {task} moves to rank {to}, which lends nothing"
                );
                let speaking = self.task(rank, task);
                let follows = speaking.causes.latest((rank, task));
                let process = speaking.process.number();
                if RankId(to) != rank {
                    speaking.moves_to = Some((RankId(to), follows));
                    self.settles(process, RankId(to));
                }
                self.answer(rank, task, Answer::Moved);
            }
            Op::Process(number) => {
                self.task(rank, task).process = process(OfProcess::new(number));
                if self.task(rank, task).driver_id.is_some() {
                    self.settles(number, rank);
                }
            }
            Op::Thread(number) => {
                let process = self.task(rank, task).process;
                self.ranks[rank.index()].ranges.is_thread(process, number, task);
            }
            Op::Operators(piece) => self.task(rank, task).inbox.add_operators(piece),
            Op::Compute(slice) => self.compute(rank, task, slice),
            asking => self.ask(rank, task, asking),
        }
    }

    /// Turns an operation of a task into a request to the engine.
    fn ask(&mut self, rank: RankId, task: TaskId, op: Op) {
        let now = self.clock(rank);
        let speaking = self.task(rank, task);
        let (line, process) = (speaking.lines.advance(Some(&op)), speaking.process);
        let (request, asked) = match op {
            Op::Sleep(span) => (issue(Activity::Sleep(span.from(now)), task, line), Asked::Sleep),
            Op::Mark(mark) => {
                let mark = self.ranks[rank.index()].ranges.renumber(process, task, mark);
                (issue(Activity::Mark(mark), task, line), Asked::Mark)
            }
            Op::NameGroup { name, members, call, .. } => {
                self.task(rank, task).state = State::Asked(Asked::Name);
                let request = Request::NameGroup { name: name.into(), members, call: call.into(), site: line };
                return self.engine.submit(rank, task, request);
            }
            Op::Close(group) => (issue(Activity::Close(GroupId(group)), task, line), Asked::Mark),
            Op::Abort(group) => (issue(Activity::Abort(GroupId(group)), task, line), Asked::Mark),
            Op::Issue { handle, call, staged, stream, .. } => {
                let heard = match self.absent.as_mut().map(|absent| absent.call(rank, &call)) {
                    None => call.clone(),
                    Some(Ok(heard)) => heard,
                    // The rank is not answered: the rehearsal is over.
                    Some(Err(unlike)) => return self.deviates(unlike),
                };
                let stream = stream.map(|on| numbered_by(process, on));
                self.data.announce((rank, task), heard.clone(), call.clone(), staged.map(|room| room.at));
                let after = stream.map(|on| self.ranks[rank.index()].streams.before_call(on)).unwrap_or_default();
                let queue = stream.map_or(QueueId(task.0), |on| QueueId::of_stream(on.stream));
                self.times.issues(rank, &launch_ids(stream));
                let issue =
                    |call| Request::Issue { activity: Activity::Call(call), queue, after: after.clone(), site: line };
                return self.submit_as(rank, task, issue(call), issue(heard), Asked::Issue(handle, stream));
            }
            Op::Wait { handles, any, timeout, ahead, .. } => {
                let asked = handles.len();
                let named = self.not_released(rank, handles);
                if named.is_empty() || (any && named.len() < asked) {
                    return self.answer(rank, task, Answer::Complete(Vec::new()));
                }
                let handles = named.iter().map(|(_, handle)| *handle).collect();
                self.outbox.expect_wait(ahead);
                (Request::Wait { handles, any, timeout, site: line }, Asked::Wait { named, ahead })
            }
            Op::Now => (Request::Look, Asked::Now),
            Op::Yield => {
                // Models one million polls per second; the longer the task has waited, the less one more poll matters.
                let since = *self.task(rank, task).polls.since.get_or_insert(now);
                let moment = POLL_COST.max(SimDuration::from_ps(now.since(since).as_ps() / 16));
                (Request::Pause { timeout: moment, site: line }, Asked::Yield)
            }
            Op::Pause(span) => (Request::Pause { timeout: span.from(now), site: line }, Asked::Pause),
            Op::Group { ranks, sequence, settings, rendezvous } => {
                if process != OfProcess::default() {
                    self.ranks[rank.index()].communicates = Some(process);
                }
                let ranks: Arc<[RankId]> = ranks.into_iter().map(RankId).collect();
                let named = (ranks.clone(), sequence);
                let (present, number) = self.absent.as_mut().map_or(named, |absent| absent.present(&ranks, sequence));
                let join = |ranks, sequence| Request::JoinGroup { ranks, sequence, settings, rendezvous };
                let request = join(ranks.clone(), sequence);
                return self.submit_as(rank, task, request, join(present, number), Asked::Group(ranks, settings));
            }
            Op::Store { operation, timeout, .. } => (Request::Store { operation, timeout, site: line }, Asked::Store),
            Op::Synchronize { work, .. } => {
                let handles = self.ranks[rank.index()].streams.ends(process, work);
                if handles.is_empty() {
                    return self.answer(rank, task, Answer::Go);
                }
                return self.await_device(rank, task, handles, DeviceQuestion::Synchronize);
            }
            Op::Query { work, .. } => {
                let handles = self.ranks[rank.index()].streams.ends(process, work);
                if handles.is_empty() {
                    return self.answer(rank, task, Answer::Ended(true));
                }
                return self.await_device(rank, task, handles, DeviceQuestion::Query);
            }
            Op::Times => (Request::Look, Asked::Times),
            Op::Elapsed { from, to, .. } => {
                let Some((from, to)) = process.short(from).zip(process.short(to)) else {
                    return self.answer(rank, task, Answer::Elapsed(None));
                };
                (Request::Elapsed { from, to, site: line }, Asked::Elapsed)
            }
            Op::Exit(outcome) => return self.exit(rank, task, outcome),
            other => panic!("{other:?} is not for the engine"),
        };
        self.submit(rank, task, request, asked);
    }

    pub(super) fn submit(&mut self, rank: RankId, task: TaskId, request: Request, asked: Asked) {
        self.submit_as(rank, task, request.clone(), request, asked);
    }

    /// Submits a request whose form for the engine differs from the recorded form.
    fn submit_as(&mut self, rank: RankId, task: TaskId, request: Request, heard: Request, asked: Asked) {
        self.after_another(rank, task);
        let asking = self.task(rank, task);
        asking.waits_forever =
            matches!(request, Request::Store { timeout: None, .. } | Request::Wait { timeout: None, .. });
        asking.state = State::Asked(asked);
        self.took(rank, task, RecordedStep::Request(request));
        self.engine.submit(rank, task, heard);
    }

    pub(super) fn await_device(&mut self, rank: RankId, task: TaskId, handles: Vec<Handle>, question: DeviceQuestion) {
        let site = self.task(rank, task).lines.current();
        let timeout = matches!(question, DeviceQuestion::Query).then_some(POLL_COST);
        let request = Request::Wait { handles: handles.clone(), any: false, timeout, site };
        self.submit(rank, task, request, Asked::Device(handles, question));
    }

    fn not_released(&self, rank: RankId, handles: Vec<LocalHandle>) -> Vec<(LocalHandle, Handle)> {
        let own = &self.ranks[rank.index()].handles;
        let left = handles.into_iter().filter(|handle| !own.is_released(*handle));
        left.map(|handle| (handle, self.name(rank, handle))).collect()
    }

    pub(super) fn name(&self, rank: RankId, handle: LocalHandle) -> Handle {
        let name = self.ranks[rank.index()].handles.name(handle);
        name.unwrap_or_else(|| panic!("{rank} names its operation {handle}, which is not there or was released"))
    }
}

/// Converts the stream and number that a process gave an operation to the rank's numbering.
fn numbered_by(process: OfProcess, on: OnStream) -> OnStream {
    let stream = process.short(on.stream).expect("a process has no more streams");
    OnStream { stream, number: on.number.map(|number| process.long(number)), ..on }
}

/// Compute and sleep of threads overlap: each thread has a queue of its own.
fn issue(activity: Activity, task: TaskId, site: Site) -> Request {
    Request::Issue { activity, queue: QueueId(task.0), after: Vec::new(), site }
}

/// Whether this operation only polls the progress of other threads.
fn only_looks(op: &Op) -> bool {
    match op {
        Op::Yield | Op::Now | Op::Settle | Op::Site(_) | Op::At(_) | Op::Process(_) | Op::Thread(_) => true,
        Op::Compute(slice) => slice.operators.is_empty(),
        _ => false,
    }
}

/// Whether a library's thread may repeat this operation forever without making progress.
fn polls(op: &Op) -> bool {
    match op {
        Op::Pause(_) | Op::Sleep(_) | Op::Query { .. } | Op::Release(_) => true,
        Op::Store { operation, .. } => matches!(operation, StoreOp::Check { .. }),
        other => only_looks(other),
    }
}
