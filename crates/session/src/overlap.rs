//! Owns a record whose compute overlaps operations: compute that `uniference_studies::overlap` finds movable is moved,
//! slice by slice, and all other steps stay.
//!
//! A slice before a call is split into compute that the call needs and compute that may overlap the call. A slice after
//! a wait is split into compute that may run before the wait ends and compute that needs the result. Ranks with several
//! threads, or with CUDA streams of simulated GPUs, are left unchanged.

use crate::input::open_record;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufReader, Read, Seek};
use std::iter::Peekable;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use uniference_costs::operators::{Described, describe};
use uniference_formats::lines::LineName;
use uniference_formats::operators::{
    Autograd, Decoder, Definition, Encoder, Entry, Line, MemoryKind, dictionary_length,
};
use uniference_formats::record::{RankRecord, RecordReader};
use uniference_host::error::HostError;
use uniference_sim::ids::{Handle, QueueId, Site, TaskId};
use uniference_sim::program::{Activity, Request, Work};
use uniference_sim::replay::{RecordedStep, handles_mut};
use uniference_sim::time::SimDuration;
use uniference_studies::overlap::{Access, Chance, Chances, MovableLine, movable_ahead, movable_behind};

/// Weights that split the measured time of a slice among its operators, by a roofline of no particular CPU: seconds per
/// operator, per floating-point operation, and per byte read or written.
const SECONDS: (f64, f64, f64) = (2e-6, 1e-11, 1e-10);

/// A step with its thread and its source line.
pub(crate) type Lined = (TaskId, RecordedStep, String);

/// The calls that compute overlaps in a replayed record.
#[derive(Debug)]
pub struct Arrangement {
    /// Source lines of these calls.
    lines: Vec<LineName>,
    /// Whether the compute of each rank can be moved.
    movable: Vec<bool>,
}

impl Arrangement {
    /// Whether any compute of a rank may be moved.
    pub(crate) fn moves(&self, rank: usize) -> bool {
        self.movable[rank]
    }

    /// Whether movable compute overlaps the calls at this line.
    fn is_at(&self, line: &str) -> bool {
        self.lines.iter().any(|name| name.is(line))
    }
}

/// Movable compute of a run.
pub(crate) struct Examined {
    pub(crate) chances: Chances,
    movable: Vec<bool>,
    /// Lines of all calls of operations.
    called: BTreeSet<String>,
}

impl Examined {
    /// The arrangement in which compute overlaps the operations at these lines.
    ///
    /// # Errors
    /// If no operation is called at one of the lines.
    pub(crate) fn arranged(&self, lines: &[LineName]) -> Result<Arc<Arrangement>, HostError> {
        for name in lines {
            if !self.called.iter().any(|line| name.is(line)) {
                return Err(HostError::Usage(format!(
                    "--overlap {name}: the record has no operation that is called at this line\nhint: `uniference explain` lists operations with their lines, as FILE:LINE"
                )));
            }
        }
        Ok(Arc::new(Arrangement { lines: lines.to_vec(), movable: self.movable.clone() }))
    }
}

/// Finds the compute of a record that could overlap its operations.
///
/// # Errors
/// If the record cannot be read.
pub(crate) fn examine(path: &Path) -> Result<Examined, HostError> {
    let (ranks, rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let found = Rc::new(RefCell::new(Found::default()));
    let mut movable = Vec::new();
    for (rank, record) in (0..).zip(ranks) {
        let mut steps = Overlapped::new(lined(record), Moves::Nothing(Rc::clone(&found)));
        while steps.obstacle.is_none() && steps.read() {
            steps.ready.clear();
        }
        let obstacle = steps.obstacle.take();
        movable.push(obstacle.is_none());
        if let Some(obstacle) = obstacle {
            found.borrow_mut().obstacles.entry(obstacle).or_default().push(rank);
        }
    }
    rest.finish()?;
    let Found { sites, called, says_memory, obstacles } =
        Rc::into_inner(found).expect("nobody reads any more").into_inner();
    let mut why: Vec<String> = obstacles.into_iter().map(|(why, ranks)| format!("{}: {why}", names(&ranks))).collect();
    if !says_memory && !called.is_empty() {
        why.push("the record does not say which memory operations communicate; run the program again with operators captured: not with --compute none, and with this version".to_owned());
    }
    let unexamined = (!why.is_empty()).then(|| why.join("; "));
    Ok(Examined { chances: Chances { operations: chances(sites), unexamined }, movable, called })
}

/// A rank's steps with their source lines.
pub(crate) fn lined<R: Read + Seek>(mut record: RankRecord<R>) -> impl Iterator<Item = Lined> {
    std::iter::from_fn(move || {
        let (task, step) = record.next()?;
        let line = record.line(&step).to_owned();
        Some((task, step, line))
    })
}

/// `rank 3`, or `8 ranks from 0 to 7`: the number of ranks with the first and the last.
fn names(ranks: &[u32]) -> String {
    match ranks {
        [only] => format!("rank {only}"),
        [first, .., last] => format!("{} ranks from {first} to {last}", ranks.len()),
        [] => String::new(),
    }
}

/// Movable compute of each call.
#[derive(Default)]
pub(crate) struct Found {
    sites: BTreeMap<String, Beside>,
    called: BTreeSet<String>,
    /// Whether any slice lists the memory that its call communicates.
    says_memory: bool,
    /// Reasons why ranks were not examined, with the ranks.
    obstacles: BTreeMap<&'static str, Vec<u32>>,
}

/// Movable compute of all calls at one line.
#[derive(Default)]
struct Beside {
    operation: &'static str,
    calls: u64,
    /// Number and seconds of operators, by their line and whether they come before the call.
    compute: BTreeMap<(Option<String>, bool), (u64, f64)>,
}

fn chances(sites: BTreeMap<String, Beside>) -> Vec<Chance> {
    let of_site = |(line, site): (String, Beside)| {
        let mut compute: Vec<MovableLine> = site
            .compute
            .into_iter()
            .map(|((line, before), (operators, seconds))| MovableLine { line, before, operators, seconds })
            .collect();
        compute.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let seconds = compute.iter().map(|part| part.seconds).sum();
        Chance { line, operation: site.operation.to_owned(), calls: site.calls, seconds, compute }
    };
    let mut chances: Vec<Chance> = sites.into_iter().map(of_site).collect();
    chances.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    chances
}

/// Which compute is moved to overlap operations.
pub(crate) enum Moves {
    /// The compute of the arrangement.
    Arranged(Arc<Arrangement>),
    /// No compute is moved: the compute that could overlap each call is only collected.
    Nothing(Rc<RefCell<Found>>),
}

/// A rank's steps, with compute moved to overlap operations.
pub(crate) struct Overlapped<I: Iterator<Item = Lined>> {
    steps: Peekable<I>,
    moves: Moves,
    decoder: Decoder,
    /// Operators of the slice that is being read (dictionary and entries), and their measured time.
    pending: (Vec<u8>, Vec<Kept>, SimDuration),
    /// Memory that the call at the end of the slice communicates, as read so far.
    call: Option<Access>,
    /// The last slice that was read, with the compute moved behind the call before it; held until the next step is
    /// known.
    held: Option<Slice>,
    /// A wait for calls at the lines, which follows `held`; held until the next step is known.
    wait: Option<(Lined, Vec<InFlight>)>,
    /// Calls at the lines that have not been waited for, by their handle in the record.
    in_flight: BTreeMap<Handle, InFlight>,
    /// New handle of each activity, indexed by the handle in the record.
    numbers: Vec<Handle>,
    issued: u32,
    ready: VecDeque<Lined>,
    /// Reason why the rank's compute cannot be moved.
    obstacle: Option<&'static str>,
}

/// A communication call that no wait has completed yet.
#[derive(Clone)]
struct InFlight {
    access: Access,
    line: String,
    operation: &'static str,
    /// Whether the call is already counted, because compute before it could be moved.
    counted: bool,
}

/// Compute of a rank between two requests.
struct Slice {
    task: TaskId,
    /// Source line of the call that follows the compute.
    line: String,
    site: Site,
    queue: QueueId,
    /// Definitions of ids in the operators, and other entries that belong to the whole rank.
    dictionary: Vec<u8>,
    entries: Vec<Kept>,
    measured: SimDuration,
    work: Work,
    /// Memory that the call at the end of the slice communicates; `None`: the record does not say.
    call: Option<Access>,
}

/// An entry of a slice's operators.
#[derive(Clone)]
enum Kept {
    Execution { definition: usize, line: Line, autograd: Autograd, allocations: Vec<u64> },
    Timed { before: u64, lasted: u64 },
    Allocated { allocation: u64, bytes: u64 },
    Freed { allocation: u64 },
    Kind { allocation: u64, kind: MemoryKind },
    Answered { line: Line, operator: String },
    PythonCalls(u64),
}

impl Kept {
    /// `None`: the entry belongs to a simulated GPU, or describes the call that ends the slice.
    fn of(entry: &Entry<'_>) -> Option<Kept> {
        Some(match *entry {
            Entry::Execution { definition, line, autograd, allocations } => {
                Kept::Execution { definition, line, autograd, allocations: allocations.to_vec() }
            }
            Entry::Timed { before, lasted } => Kept::Timed { before, lasted },
            Entry::Allocated { allocation, bytes, on_gpu: false } => Kept::Allocated { allocation, bytes },
            Entry::Freed { allocation } => Kept::Freed { allocation },
            Entry::Kind { allocation, kind } => Kept::Kind { allocation, kind },
            Entry::Answered { line, operator } => Kept::Answered { line, operator: operator.to_owned() },
            Entry::PythonCalls(calls) => Kept::PythonCalls(calls),
            Entry::Allocated { .. }
            | Entry::Level { .. }
            | Entry::Stream(_)
            | Entry::Number(_)
            | Entry::Integers { .. }
            | Entry::Reading(_)
            | Entry::Called { .. } => {
                return None;
            }
        })
    }

    fn write(&self, encoder: &mut Encoder) {
        match self {
            Kept::Execution { definition, line, autograd, allocations } => {
                encoder.recorded(*autograd == Autograd::Recording);
                encoder.execution(*definition, *line, allocations);
            }
            Kept::Timed { before, lasted } => encoder.timed(*before, *lasted),
            Kept::Allocated { allocation, bytes } => encoder.allocated(*allocation, *bytes),
            Kept::Freed { allocation } => encoder.freed(*allocation),
            Kept::Kind { allocation, kind } => encoder.kind(*allocation, *kind),
            Kept::Answered { line, operator } => encoder.answered(*line, operator),
            Kept::PythonCalls(calls) => encoder.python_calls(*calls),
        }
    }
}

impl Slice {
    /// Memory accesses of each execution.
    fn accesses(&self, definitions: &[Definition]) -> Vec<Access> {
        let of = |entry: &Kept| match entry {
            Kept::Execution { definition, allocations, .. } => Some(Access::of(&definitions[*definition], allocations)),
            _ => None,
        };
        self.entries.iter().filter_map(of).collect()
    }

    /// Splits the slice in two: the executions that are not chosen, and the chosen ones. Memory is allocated as early
    /// and freed as late as either part may need.
    fn divided(self, chosen: &[bool], chosen_first: bool, definitions: &[Definition]) -> (Slice, Slice) {
        let share = self.share(chosen, definitions);
        let (mut stays, mut goes) = (Vec::new(), Vec::new());
        let mut chosen = chosen.iter();
        let mut timed = None;
        for entry in self.entries {
            let with_first = match entry {
                Kept::Timed { .. } => {
                    timed = Some(entry);
                    continue;
                }
                Kept::Execution { .. } => {
                    let of = if *chosen.next().expect("one for each execution") { &mut goes } else { &mut stays };
                    of.extend(timed.take());
                    of.push(entry);
                    continue;
                }
                Kept::Allocated { .. } => true,
                _ => false,
            };
            if with_first == chosen_first { goes.push(entry) } else { stays.push(entry) }
        }
        let part = |share: f64, entries, dictionary, call| Slice {
            line: self.line.clone(),
            measured: self.measured.scaled(share),
            work: Work { duration: self.work.duration.scaled(share), ..self.work.clone() },
            entries,
            dictionary,
            call,
            ..self
        };
        // The part that runs first gets the dictionary of the divided slice.
        let (first, second) = (self.dictionary, Vec::new());
        let (dictionary, of_chosen) = if chosen_first { (second, first) } else { (first, second) };
        let goes = part(share, goes, of_chosen, None);
        (part(1.0 - share, stays, dictionary, self.call), goes)
    }

    /// Fraction of the slice's duration that the chosen executions need.
    fn share(&self, chosen: &[bool], definitions: &[Definition]) -> f64 {
        let weights: Vec<f64> = self.weights(definitions).collect();
        let all: f64 = weights.iter().sum();
        let of_chosen: f64 = weights.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(weight, _)| weight).sum();
        if all > 0.0 { of_chosen / all } else { 0.0 }
    }

    /// Relative duration of each execution.
    fn weights(&self, definitions: &[Definition]) -> impl Iterator<Item = f64> {
        let (operator, flop, byte) = SECONDS;
        self.entries.iter().filter_map(move |entry| match entry {
            Kept::Execution { definition, .. } => Some(match describe(&definitions[*definition]) {
                Described::Nothing => 0.0,
                described => {
                    let bytes = described.read().0.saturating_add(described.written().0);
                    operator + described.flops() as f64 * flop + bytes as f64 * byte
                }
            }),
            _ => None,
        })
    }

    /// This slice followed by `next`, as one slice.
    fn and_then(mut self, next: Slice) -> Slice {
        self.dictionary.extend(next.dictionary);
        self.entries.extend(next.entries);
        self.measured += next.measured;
        self.work.duration += next.work.duration;
        Slice { line: next.line, site: next.site, call: next.call, ..self }
    }

    /// The slice's operators, in the encoding that a rank sends.
    fn operators(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.restart();
        self.entries.iter().for_each(|entry| entry.write(&mut encoder));
        if let Some(call) = &self.call {
            call.reads.iter().for_each(|allocation| encoder.called(*allocation, false));
            call.writes.iter().for_each(|allocation| encoder.called(*allocation, true));
        }
        [&self.dictionary[..], &encoder.take()].concat()
    }
}

impl<I: Iterator<Item = Lined>> Overlapped<I> {
    pub(crate) fn new(steps: I, moves: Moves) -> Overlapped<I> {
        Overlapped {
            steps: steps.peekable(),
            moves,
            decoder: Decoder::default(),
            pending: Default::default(),
            call: None,
            held: None,
            wait: None,
            in_flight: BTreeMap::new(),
            numbers: Vec::new(),
            issued: 0,
            ready: VecDeque::new(),
            obstacle: None,
        }
    }

    /// Reads a step, and hands on the steps that are final. `false`: no step is left.
    fn read(&mut self) -> bool {
        let Some((task, step, line)) = self.steps.next() else {
            self.hand_on_held();
            return false;
        };
        let of_threads =
            matches!(step, RecordedStep::After { .. } | RecordedStep::Follows { .. } | RecordedStep::HandlesInOrder);
        if task != TaskId(0) || of_threads {
            self.obstacle = Some("several threads take turns");
        }
        match step {
            RecordedStep::Operators { operators, measured } => self.gather(&operators, measured),
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, after, site })
                if after.is_empty() && self.is_awaited_next() =>
            {
                self.steps.next();
                let (dictionary, entries, measured) = std::mem::take(&mut self.pending);
                let call = self.call.take();
                self.numbers.push(Handle(u32::MAX));
                self.computed(Slice { task, line, site, queue, dictionary, entries, measured, work, call });
            }
            RecordedStep::Request(Request::Issue { activity: Activity::Call(ref call), .. }) => {
                let operation = call.op.name();
                self.called((task, step, line), operation);
            }
            RecordedStep::Request(Request::Wait { ref handles, .. }) => {
                let calls: Vec<InFlight> = handles.iter().filter_map(|handle| self.in_flight.remove(handle)).collect();
                self.hand_on_wait();
                match calls.is_empty() {
                    true => {
                        self.hand_on_held();
                        self.hand_on((task, step, line));
                    }
                    false => self.wait = Some(((task, step, line), calls)),
                }
            }
            step => {
                self.hand_on_held();
                self.hand_on((task, step, line));
            }
        }
        true
    }

    /// Whether the next step waits only for the activity that was just read.
    fn is_awaited_next(&mut self) -> bool {
        let handle = Handle::from(self.numbers.len());
        matches!(self.steps.peek(), Some((_, RecordedStep::Request(Request::Wait { handles, timeout: None, .. }), _)) if *handles == [handle])
    }

    /// Collects operators of the slice that is being read.
    fn gather(&mut self, operators: &[u8], measured: SimDuration) {
        let Overlapped { decoder, pending: (dictionary, entries, duration), call, obstacle, .. } = self;
        *duration += measured;
        let Ok(names) = dictionary_length(operators) else {
            *obstacle = Some("its operators cannot be read");
            return;
        };
        dictionary.extend_from_slice(&operators[..names]);
        let read = decoder.read(operators, |decoder, entry| {
            if let Entry::Called { allocation, written } = entry {
                let call = call.get_or_insert_default();
                if written { call.writes.push(allocation) } else { call.reads.push(allocation) }
            } else if let Some(kept) = Kept::of(&entry) {
                entries.push(kept);
            }
            if matches!(entry, Entry::Stream(_)) || !decoder.kernels().is_empty() {
                *obstacle =
                    Some("it hands its work to streams of a simulated GPU, which run beside operations already");
            }
        });
        if read.is_err() {
            *obstacle = Some("its operators cannot be read");
        }
    }

    /// Handles a slice of compute.
    fn computed(&mut self, slice: Slice) {
        let Some((wait, calls)) = self.wait.take() else {
            // Without a request in between, moved compute and the slice are one slice.
            self.held = Some(match self.held.take() {
                Some(moved) => moved.and_then(slice),
                None => slice,
            });
            return;
        };
        let mut both = Access::default();
        for call in &calls {
            both.reads.extend(&call.access.reads);
            both.writes.extend(&call.access.writes);
        }
        let chosen = movable_ahead(&slice.accesses(self.decoder.definitions()), &both);
        if let Moves::Nothing(found) = &self.moves {
            for call in &calls {
                found.borrow_mut().add(call, &slice, &chosen, false, &self.decoder);
            }
            self.held = Some(slice);
            return;
        }
        let (needs, moved) = slice.divided(&chosen, true, self.decoder.definitions());
        self.held = Some(match self.held.take() {
            Some(beside) => beside.and_then(moved),
            None => moved,
        });
        self.wait = Some((wait, calls));
        self.hand_on_wait();
        self.held = Some(needs);
    }

    /// Handles the call of an operation.
    fn called(&mut self, step: Lined, operation: &'static str) {
        self.hand_on_wait();
        let handle = Handle::from(self.numbers.len());
        let access = self.held.as_ref().and_then(|slice| slice.call.clone());
        let is_wanted = match &self.moves {
            Moves::Arranged(arrangement) => arrangement.is_at(&step.2),
            Moves::Nothing(found) => {
                let mut found = found.borrow_mut();
                found.called.insert(step.2.clone());
                found.says_memory |= access.is_some();
                true
            }
        };
        let Some((slice, access)) = self.held.take_if(|_| is_wanted && access.is_some()).zip(access) else {
            self.hand_on_held();
            return self.hand_on(step);
        };
        let chosen = movable_behind(&slice.accesses(self.decoder.definitions()), &access);
        let mut call = InFlight { access, line: step.2.clone(), operation, counted: false };
        if let Moves::Nothing(found) = &self.moves {
            call.counted = found.borrow_mut().add(&call, &slice, &chosen, true, &self.decoder);
            self.hand_on(step);
        } else {
            let (feeds, moved) = slice.divided(&chosen, false, self.decoder.definitions());
            self.held = Some(feeds);
            self.hand_on_held();
            self.hand_on(step);
            self.held = Some(moved).filter(|moved| !moved.entries.is_empty());
        }
        self.in_flight.insert(handle, call);
    }

    /// Hands on the held slice, and the held wait after it.
    fn hand_on_held(&mut self) {
        self.hand_on_wait();
        if let Some(slice) = self.held.take() {
            self.hand_on_slice(slice);
        }
    }

    fn hand_on_wait(&mut self) {
        let Some((wait, _)) = self.wait.take() else { return };
        if let Some(slice) = self.held.take() {
            // The slice ends at the held wait, so it gets the wait's line and site.
            let site = wait.1.site().unwrap_or(slice.site);
            self.hand_on_slice(Slice { line: wait.2.clone(), site, ..slice });
        }
        self.hand_on(wait);
    }

    fn hand_on_slice(&mut self, slice: Slice) {
        let Slice { task, queue, site, measured, .. } = slice;
        let is_empty = slice.entries.is_empty() && slice.dictionary.is_empty() && slice.call.is_none();
        let line = slice.line.clone();
        if !is_empty || measured > SimDuration::ZERO {
            let step = RecordedStep::Operators { operators: slice.operators(), measured };
            self.ready.push_back((task, step, line.clone()));
        } else if slice.work.duration == SimDuration::ZERO {
            return;
        }
        let handle = Handle(self.issued);
        self.issued += 1;
        let issue = Request::Issue { activity: Activity::Compute(slice.work), queue, after: Vec::new(), site };
        let wait = Request::Wait { handles: vec![handle], any: false, timeout: None, site };
        self.ready.extend([issue, wait].map(|request| (task, RecordedStep::Request(request), line.clone())));
    }

    fn hand_on(&mut self, (task, mut step, line): Lined) {
        if let RecordedStep::Request(request) = &mut step {
            if let Some(handles) = handles_mut(request) {
                let now = |handle: &Handle| self.numbers.get(handle.index()).copied().unwrap_or(*handle);
                handles.iter_mut().for_each(|handle| *handle = now(handle));
            }
            if let Request::Issue { .. } = request {
                self.numbers.push(Handle(self.issued));
                self.issued += 1;
            }
        }
        self.ready.push_back((task, step, line));
    }
}

impl<I: Iterator<Item = Lined>> Iterator for Overlapped<I> {
    type Item = Lined;

    fn next(&mut self) -> Option<Lined> {
        while self.ready.is_empty() && self.read() {}
        self.ready.pop_front()
    }
}

impl Found {
    /// Adds movable compute of a slice to the call's line; returns whether any of the compute has a duration.
    fn add(&mut self, call: &InFlight, slice: &Slice, chosen: &[bool], before: bool, decoder: &Decoder) -> bool {
        let definitions = decoder.definitions();
        let weights: Vec<f64> = slice.weights(definitions).collect();
        let all: f64 = weights.iter().sum();
        let lines = slice.entries.iter().filter_map(|entry| match entry {
            Kept::Execution { line, .. } => Some(decoder.source_line(line.site).map(|site| site.line.clone())),
            _ => None,
        });
        let moved = lines.zip(&weights).zip(chosen).filter(|((_, weight), chosen)| **chosen && **weight > 0.0);
        let mut moved = moved.peekable();
        if moved.peek().is_none() {
            return false;
        }
        let site = self.sites.entry(call.line.clone()).or_default();
        site.operation = call.operation;
        site.calls += u64::from(!call.counted);
        for ((line, weight), _) in moved {
            let (operators, seconds) = site.compute.entry((line, before)).or_default();
            *operators += 1;
            *seconds += slice.work.duration.as_secs_f64() * weight / all;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::operators::{Argument, Place, ScalarType, Tensor};
    use uniference_sim::device::Origin;
    use uniference_sim::ids::{GroupId, GroupRank};
    use uniference_sim::program::{Call, CallOp, Outcome};
    use uniference_sim::time::Bytes;

    /// `mm` of two square matrices.
    fn product() -> Definition {
        let tensor = || {
            let (dtype, place) = (ScalarType(6), Place::CPU);
            Argument::Tensor(Tensor { dtype, place, written: false, sizes: vec![100, 100], strides: vec![100, 1] })
        };
        Definition { name: "aten::mm".to_owned(), arguments: vec![tensor(), tensor()], results: vec![tensor()] }
    }

    /// A slice of GEMMs, the n-th of which is on line n, and the allocations that the following call reads and writes.
    fn operators(encoder: &mut Encoder, products: &[[u64; 3]], call: Option<(u64, u64)>) -> RecordedStep {
        encoder.restart();
        for (line, allocations) in (1..).zip(products) {
            encoder.execution(0, Line { site: line, backward: false }, allocations);
        }
        if let Some((read, written)) = call {
            encoder.called(read, false);
            encoder.called(written, true);
        }
        RecordedStep::Operators { operators: encoder.take(), measured: SimDuration::ZERO }
    }

    fn compute(microseconds: u64) -> RecordedStep {
        let work = Work::new(SimDuration::from_us(microseconds), Origin::Measured);
        let activity = Activity::Compute(work);
        RecordedStep::Request(Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) })
    }

    fn send() -> RecordedStep {
        let op = CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(8) };
        let activity = Activity::Call(Call { group: GroupId(0), op });
        RecordedStep::Request(Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(1) })
    }

    fn wait(handle: u32, site: u32) -> RecordedStep {
        let (handles, site) = (vec![Handle(handle)], Site(site));
        RecordedStep::Request(Request::Wait { handles, any: false, timeout: None, site })
    }

    /// 1 x 2 -> 3 is sent while 7 is received; 4 x 5 -> 6 is independent of both. Then 7 x 2 -> 8 needs the received
    /// data, and 4 x 5 -> 9 does not.
    fn program() -> Vec<Lined> {
        let mut encoder = Encoder::default();
        encoder.definition(&product());
        encoder.site("a.py:1", "f");
        encoder.site("a.py:2", "f");
        let steps = [
            operators(&mut encoder, &[[1, 2, 3], [4, 5, 6]], Some((3, 7))),
            compute(30),
            wait(0, 0),
            send(),
            wait(1, 1),
            operators(&mut encoder, &[[7, 2, 8], [4, 5, 9]], None),
            compute(40),
            wait(2, 2),
            RecordedStep::Request(Request::Exit(Outcome::Ok)),
        ];
        let lined = |step: RecordedStep| (TaskId(0), step, "a.py:9".to_owned());
        steps.into_iter().map(lined).collect()
    }

    /// The steps as text.
    fn shown(steps: impl Iterator<Item = Lined>) -> Vec<String> {
        let mut decoder = Decoder::default();
        let mut shown = Vec::new();
        for (_, step, _) in steps {
            match step {
                RecordedStep::Operators { operators, .. } => {
                    let mut results = Vec::new();
                    let read = decoder.read(&operators, |_, entry| match entry {
                        Entry::Execution { allocations, .. } => results.push(allocations[2].to_string()),
                        Entry::Called { allocation, .. } => results.push(format!("calls with {allocation}")),
                        _ => {}
                    });
                    read.unwrap();
                    shown.push(format!("operators {}", results.join(", ")));
                }
                RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), .. }) => {
                    shown.push(format!("compute {}", work.duration));
                }
                RecordedStep::Request(Request::Issue { .. }) => shown.push("call".to_owned()),
                RecordedStep::Request(Request::Wait { handles, .. }) => shown.push(format!("wait {}", handles[0].0)),
                _ => shown.push("exit".to_owned()),
            }
        }
        shown
    }

    #[test]
    fn what_may_run_beside_the_call_is_moved_between_it_and_its_wait() {
        let arrangement = Arrangement { lines: vec!["a.py:9".parse().unwrap()], movable: vec![true] };
        let moved = Overlapped::new(program().into_iter(), Moves::Arranged(Arc::new(arrangement)));
        let expected = [
            "operators 3, calls with 3, calls with 7",
            "compute 15.000 us",
            "wait 0",
            "call",
            "operators 6, 9",
            "compute 35.000 us",
            "wait 2",
            "wait 1",
            "operators 8",
            "compute 20.000 us",
            "wait 3",
            "exit",
        ];
        assert_eq!(shown(moved), expected);
    }

    #[test]
    fn other_calls_stay_as_they_are() {
        let arrangement = Arrangement { lines: vec!["b.py:9".parse().unwrap()], movable: vec![true] };
        let same = Overlapped::new(program().into_iter(), Moves::Arranged(Arc::new(arrangement)));
        assert_eq!(shown(same), shown(program().into_iter()));
    }

    #[test]
    fn what_could_be_moved_is_found_by_line() {
        let found = Rc::new(RefCell::new(Found::default()));
        let mut steps = Overlapped::new(program().into_iter(), Moves::Nothing(Rc::clone(&found)));
        while steps.read() {}
        assert_eq!(steps.obstacle, None);
        drop(steps);
        let found = Rc::into_inner(found).unwrap().into_inner();
        let [Chance { line, operation, calls: 1, compute, .. }] = &chances(found.sites)[..] else { panic!("one call") };
        assert_eq!((&**line, &**operation), ("a.py:9", "send"));
        let shown: Vec<_> = compute.iter().map(|part| (part.line.as_deref(), part.before, part.seconds)).collect();
        assert_eq!(shown, [(Some("a.py:2"), false, 20e-6), (Some("a.py:2"), true, 15e-6)]);
    }

    #[test]
    fn threads_and_streams_are_obstacles() {
        let obstacle = |step: Lined| {
            let mut steps = Overlapped::new([step].into_iter(), Moves::Nothing(Rc::default()));
            while steps.read() {}
            steps.obstacle
        };
        let other = |step| (TaskId(1), step, String::new());
        assert!(obstacle(other(RecordedStep::Request(Request::Now))).is_some());
        let bytes =
            |operators| (TaskId(0), RecordedStep::Operators { operators, measured: SimDuration::ZERO }, String::new());
        assert!(obstacle(bytes(vec![0xff])).is_some());
        let mut encoder = Encoder::default();
        encoder.kernel("k");
        encoder.freed(1);
        assert!(obstacle(bytes(encoder.take())).is_some());
        assert_eq!(obstacle(bytes(Vec::new())), None);
    }
}
