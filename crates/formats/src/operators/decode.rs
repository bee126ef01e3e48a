//! Owns the reading of a stream of operators, slice by slice, whatever bytes it is given.
//!
//! Memory is in proportion to the bytes that were read: counts are believed only as far as there are bytes for what is counted.

use super::definition::{Argument, Definition, Place, ScalarType, Tensor};
use super::numbers::Numbers;
use std::collections::BTreeMap;
use uniference_abi::entries::{
    ArgumentTag, CopyKind, EXECUTION, LAUNCH_FREE, LAUNCH_INSIDE, LAUNCH_SPINS, MemoryKind, Tag,
};

/// The entry with which streams of records of version 11 or older begin.
pub(crate) const VERSION_11: [u8; 1] = [Tag::Version11 as u8];

/// Tags minus the numbers that stand for them in entries of streams of version 11.
const VERSION_11_KINDS: u64 = 11;
/// Largest number of dimensions of torch's tensors.
const MOST_DIMENSIONS: u64 = 64;

/// What is wrong with a stream of operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid operators at byte {at} of a slice: {problem}\nhint: copy the record again from its source, or run the program again"
)]
pub struct Invalid {
    /// Where the entry begins, in the slice that was read.
    pub at: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The slice ends inside the entry.
    #[error("it is cut short")]
    CutShort,
    /// A number needs more than 64 bits.
    #[error("a number has more than 64 bits")]
    LongNumber,
    /// No entry has this tag.
    #[error("unknown entry {0}")]
    Entry(u64),
    /// No argument begins with this byte.
    #[error("unknown argument {0}")]
    Argument(u8),
    /// The definition has not been defined.
    #[error("unknown definition {0}")]
    Definition(u64),
    /// The site has not been named.
    #[error("unknown line {0}")]
    Site(u64),
    /// The kernel has not been named.
    #[error("unknown kernel {0}")]
    Kernel(u64),
    /// No stream, event, graph or buffer has this number.
    #[error("stream, event, graph or buffer {0} is out of range")]
    Number(u64),
    /// No kind of copy has this number.
    #[error("unknown kind of copy {0}")]
    Copy(u64),
    /// No kind of memory has this number.
    #[error("unknown kind of memory {0}")]
    Kind(u8),
    /// A tensor has too many dimensions.
    #[error("a tensor with {0} dimensions")]
    Dimensions(u64),
    /// A rank has fewer processes.
    #[error("process {0} is out of range")]
    Process(u64),
}

/// What the rank does next; allocations are by their own numbers, not by differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The rank ran an operator.
    Execution {
        /// Which, in [`Decoder::definitions`].
        definition: usize,
        /// The line that ran it.
        line: Line,
        /// What autograd did while it ran.
        autograd: Autograd,
        /// The memory of each of the definition's tensors ([`Definition::tensors`]); 0: not tracked.
        allocations: &'a [u64],
    },
    /// How long the execution that follows took here, in nanoseconds; only of captures that time operators.
    Timed {
        /// From the end of the operator before, or from when the program went on, to this one: the program's own work.
        before: u64,
        /// The operator itself.
        lasted: u64,
    },
    /// Memory was allocated.
    Allocated {
        /// The number that the other entries call it by.
        allocation: u64,
        /// Size in bytes.
        bytes: u64,
        /// It is memory of the rank's GPU; otherwise of the host.
        on_gpu: bool,
    },
    /// From here on, so much of its GPU's memory is in use besides the allocations.
    Level {
        /// What uses the memory.
        level: Level,
        /// Size in bytes.
        bytes: u64,
    },
    /// An allocation was freed.
    Freed {
        /// The allocation's number.
        allocation: u64,
    },
    /// What memory is for is known now.
    Kind {
        /// The allocation's number.
        allocation: u64,
        /// What the memory holds.
        kind: MemoryKind,
    },
    /// The call that ends the slice communicates memory.
    Called {
        /// Which; 0: not tracked.
        allocation: u64,
        /// What arrives is written there; else what is there is sent.
        written: bool,
    },
    /// A value that was not computed steered the program.
    Answered {
        /// The line that read it.
        line: Line,
        /// The operator that read it.
        operator: &'a str,
    },
    /// It handed something to a stream of a simulated GPU.
    Stream(StreamEntry),
    /// The launch, copy or graph launch that follows has this number, by which the rank asks for its times.
    Number(u64),
    /// Number of functions of Python that have begun on the thread since the last such entry.
    PythonCalls(u64),
    /// From here on, a buffer of the GPU's memory has these values.
    Integers {
        /// The rank's own number of the buffer.
        buffer: u32,
        /// The integers from the buffer's beginning on.
        values: &'a [i64],
    },
    /// An argument of the execution that follows lies in such a buffer.
    Reading(Reading),
}

/// An argument of an operator whose values decide how much it does, as they are whenever it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reading {
    /// Its place among the arguments.
    pub argument: u32,
    /// The buffer that it lies in.
    pub buffer: u32,
    /// Number of integers.
    pub count: u32,
}

/// What a program hands to streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEntry {
    /// A kernel is launched.
    Launch {
        /// Number of the kernel, as in [`Decoder::kernel`].
        kernel: u32,
        /// Number of the stream.
        stream: u32,
        /// Who launches it, and what that takes on the host.
        flags: LaunchFlags,
        /// Bytes of memory that its arguments point to; 0: not known.
        bytes: u64,
    },
    /// A copy is launched.
    Copy {
        /// Number of the stream.
        stream: u32,
        /// The memories that it copies from and to.
        kind: CopyKind,
        /// Number of bytes that it copies.
        bytes: u64,
        /// The same as for a kernel.
        flags: LaunchFlags,
    },
    /// An event is recorded: it happens when everything before it on the stream has ended.
    Record {
        /// Number of the event.
        event: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// Everything after it on the stream waits for an event, as that was recorded last.
    Wait {
        /// Number of the stream that waits.
        stream: u32,
        /// Number of the event; one that was never recorded has no effect.
        event: u32,
    },
    /// What follows on a stream is captured by a graph.
    Capture {
        /// Number of the stream.
        stream: u32,
        /// Number of the graph; `None`: the capture ends.
        graph: Option<u32>,
    },
    /// All of a graph; if there are captured calls in it, up to the first.
    GraphLaunch {
        /// Number of the graph.
        graph: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// An event outside of the graph that a stream in capture belongs to: it is recorded whenever the graph is launched.
    ExternalRecord {
        /// Number of the event.
        event: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// What comes on a stream in capture waits, whenever its graph is launched, for an event outside of the graph.
    ExternalWait {
        /// Number of the stream that waits.
        stream: u32,
        /// Number of the event, as it was recorded last before the launch.
        event: u32,
    },
    /// A call of a process group on a stream in capture, which the rank makes whenever the graph is launched.
    Call {
        /// Number of the stream.
        stream: u32,
        /// It starts with the one before it.
        with_previous: bool,
    },
    /// The rank has made the graph's next call: what is behind it, up to the next one.
    Resumption {
        /// Number of the graph.
        graph: u32,
        /// Number of the stream that the graph was launched on.
        stream: u32,
    },
    /// A function of the host.
    HostFunction {
        /// Number of the stream.
        stream: u32,
    },
}

/// Who launches, and what that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchFlags {
    /// The operator whose execution follows.
    pub inside: bool,
    /// The host takes no time for it.
    pub free: bool,
    /// A kernel that does nothing but last: for nanoseconds, and not bytes.
    pub spins: bool,
}

impl LaunchFlags {
    pub(super) fn number(self) -> u64 {
        let flags = [(self.inside, LAUNCH_INSIDE), (self.free, LAUNCH_FREE), (self.spins, LAUNCH_SPINS)];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, bit)| u64::from(bit)).sum()
    }
}

/// The line that the program was at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    /// The number of a [`SourceLine`]; 0: not known.
    pub site: u32,
    /// In the backward pass of the operator that ran at this line.
    pub backward: bool,
}

/// What follows `path:line` in the text of a line whose operator runs in its backward pass.
pub const BACKWARD: &str = " (backward)";

/// What autograd does while an operator runs: how long the host takes to come to the operator depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Autograd {
    /// It does nothing.
    #[default]
    Idle,
    /// It records the operator, for a backward pass to come.
    Recording,
    /// It runs the operator in a backward pass.
    Backward,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// `path:line`.
    pub line: String,
    /// The qualified name of its function.
    pub function: String,
}

/// What takes memory of a GPU as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Torch's allocator; what it allocates lies in it.
    Reserved,
    /// The context and libraries, beside it.
    Context,
}

/// Reads the stream of one rank, and keeps what its entries name by number. Numbers that it shows are the whole rank's, whichever of its processes
/// has written the entry.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    definitions: Vec<Definition>,
    /// How many tensors each definition has.
    tensors: Vec<u32>,
    sites: Vec<SourceLine>,
    kernels: Vec<String>,
    /// Numbers of the process whose entries are read.
    numbers: Numbers,
    /// Numbers of the other processes that have written entries.
    others: BTreeMap<u32, Numbers>,
    /// Allocations of the execution that is being read.
    allocations: Vec<u64>,
    /// Whether the stream is one of a record of version 11 or older.
    is_version_11: bool,
}

impl Decoder {
    /// The definitions so far, by number.
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    /// A line of the program by its number; `None` for 0, and for those that have not been named.
    pub fn source_line(&self, site: u32) -> Option<&SourceLine> {
        self.sites.get((site as usize).checked_sub(1)?)
    }

    /// A captured line as other lines of the program are written, `path:line`, with [`BACKWARD`] behind it in the backward pass; empty where it
    /// is not known.
    pub fn line_text(&self, line: Line) -> String {
        let pass = if line.backward { BACKWARD } else { "" };
        self.source_line(line.site).map_or_else(String::new, |source| format!("{}{pass}", source.line))
    }

    /// Names of kernels so far, by number from 1: there are some if the rank has simulated GPUs.
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// The name of a kernel that an entry has named.
    pub fn kernel(&self, number: u32) -> &str {
        &self.kernels[number as usize - 1]
    }

    /// Whether several processes of the rank have written entries.
    pub(super) fn has_processes(&self) -> bool {
        !self.others.is_empty()
    }

    /// Reads the next slice of the rank's stream, and shows `visit` its entries in order, with this decoder as it then is. Definitions, sites,
    /// kernels, restarts and processes are not shown.
    ///
    /// # Errors
    /// At the first entry that is invalid. Those before it have been shown; the stream cannot be read any further.
    pub fn read(&mut self, slice: &[u8], mut visit: impl FnMut(&Decoder, Entry<'_>)) -> Result<(), Invalid> {
        let mut bytes = Bytes { rest: slice };
        while !bytes.rest.is_empty() {
            let at = slice.len() - bytes.rest.len();
            self.entry(&mut bytes, &mut visit).map_err(|problem| Invalid { at, problem })?;
        }
        Ok(())
    }

    fn entry(&mut self, bytes: &mut Bytes<'_>, visit: &mut impl FnMut(&Decoder, Entry<'_>)) -> Result<(), Problem> {
        let number = bytes.number()?;
        let executions = if self.is_version_11 { Tag::AllocatedOnGpu as u64 } else { EXECUTION };
        if let Some(definition) = number.checked_sub(executions) {
            return self.execution(definition, bytes, visit);
        }
        let tag = Tag::from_number(number).ok_or(Problem::Entry(number))?;
        if self.is_version_11 && tag == Tag::MemoryKind {
            self.memory_entry(bytes, visit)
        } else {
            self.fields(tag, bytes, visit)
        }
    }

    /// Reads an entry of the tag [`Tag::MemoryKind`] in a stream of version 11 or older, which stands for entries of 16 tags.
    fn memory_entry(
        &mut self,
        bytes: &mut Bytes<'_>,
        visit: &mut impl FnMut(&Decoder, Entry<'_>),
    ) -> Result<(), Problem> {
        let (allocation, number) = (self.allocation(bytes)?, bytes.byte()?);
        if let Some(kind) = MemoryKind::from_number(number.into()) {
            visit(self, Entry::Kind { allocation, kind });
            return Ok(());
        }
        let tag = Tag::from_number(u64::from(number) + VERSION_11_KINDS);
        match tag.filter(|tag| (Tag::AllocatedOnGpu..Tag::Version11).contains(tag)).ok_or(Problem::Kind(number))? {
            tag @ (Tag::AllocatedOnGpu | Tag::ReadByCall | Tag::WrittenByCall) => {
                let entry = self.allocation_entry(tag, allocation, bytes)?;
                visit(self, entry);
                Ok(())
            }
            tag => self.fields(tag, bytes, visit),
        }
    }

    /// Reads the fields of an entry.
    fn fields(
        &mut self,
        tag: Tag,
        bytes: &mut Bytes<'_>,
        visit: &mut impl FnMut(&Decoder, Entry<'_>),
    ) -> Result<(), Problem> {
        let entry = match tag {
            Tag::Definition => {
                let definition = bytes.definition()?;
                self.tensors.push(definition.tensors().count() as u32);
                self.numbers.definitions.push(self.definitions.len() as u32);
                self.definitions.push(definition);
                return Ok(());
            }
            Tag::Site => {
                let (line, function) = (bytes.text()?, bytes.text()?);
                self.site(SourceLine { line, function });
                return Ok(());
            }
            Tag::Kernel => {
                self.kernels.push(bytes.text()?);
                self.numbers.kernels.push(self.kernels.len() as u32);
                return Ok(());
            }
            Tag::Restart => {
                (self.numbers.previous, self.numbers.recorded) = (0, false);
                return Ok(());
            }
            Tag::Autograd => {
                self.numbers.recorded = bytes.number()? != 0;
                return Ok(());
            }
            Tag::Process => return bytes.number().and_then(|process| self.is_of(process)),
            Tag::Version11 => {
                self.is_version_11 = true;
                return Ok(());
            }
            Tag::Answered => {
                let (line, operator) = (self.line(bytes)?, bytes.text()?);
                visit(self, Entry::Answered { line, operator: &operator });
                return Ok(());
            }
            Tag::Integers => {
                let (buffer, values) = (self.small(bytes)?, bytes.several(Bytes::integer)?);
                visit(self, Entry::Integers { buffer, values: &values });
                return Ok(());
            }
            Tag::Allocated
            | Tag::Freed
            | Tag::MemoryKind
            | Tag::AllocatedOnGpu
            | Tag::ReadByCall
            | Tag::WrittenByCall => {
                let allocation = self.allocation(bytes)?;
                self.allocation_entry(tag, allocation, bytes)?
            }
            Tag::Timed => Entry::Timed { before: bytes.number()?, lasted: bytes.number()? },
            Tag::Reserved => self.level(Level::Reserved, bytes.number()?),
            Tag::Context => self.level(Level::Context, bytes.number()?),
            Tag::LaunchNumber => Entry::Number(self.numbers.launch(bytes.number()?)),
            Tag::PythonCalls => Entry::PythonCalls(bytes.number()?),
            Tag::Reading => {
                Entry::Reading(Reading { argument: bytes.small()?, buffer: self.small(bytes)?, count: bytes.small()? })
            }
            Tag::Launch
            | Tag::Copy
            | Tag::Record
            | Tag::Wait
            | Tag::Capture
            | Tag::GraphLaunch
            | Tag::HostFunction
            | Tag::CapturedCall
            | Tag::Resumption
            | Tag::ExternalRecord
            | Tag::ExternalWait => Entry::Stream(self.stream_entry(tag, bytes)?),
        };
        visit(self, entry);
        Ok(())
    }

    /// Reads the fields that follow the allocation of an entry.
    fn allocation_entry(&self, tag: Tag, allocation: u64, bytes: &mut Bytes<'_>) -> Result<Entry<'static>, Problem> {
        Ok(match tag {
            Tag::Allocated | Tag::AllocatedOnGpu => {
                Entry::Allocated { allocation, bytes: bytes.number()?, on_gpu: tag == Tag::AllocatedOnGpu }
            }
            Tag::Freed => Entry::Freed { allocation },
            Tag::MemoryKind => {
                let kind = bytes.byte()?;
                Entry::Kind { allocation, kind: MemoryKind::from_number(kind.into()).ok_or(Problem::Kind(kind))? }
            }
            _ => Entry::Called { allocation, written: tag == Tag::WrittenByCall },
        })
    }

    fn stream_entry(&self, tag: Tag, bytes: &mut Bytes<'_>) -> Result<StreamEntry, Problem> {
        Ok(match tag {
            Tag::Launch => {
                let (kernel, stream) = (bytes.number()?, self.small(bytes)?);
                let kernel = self.numbers.kernel(kernel).ok_or(Problem::Kernel(kernel))?;
                StreamEntry::Launch { kernel, stream, flags: bytes.flags()?, bytes: bytes.number()? }
            }
            Tag::Copy => {
                let (stream, kind) = (self.small(bytes)?, bytes.number()?);
                let kind = CopyKind::from_number(kind).ok_or(Problem::Copy(kind))?;
                StreamEntry::Copy { stream, kind, bytes: bytes.number()?, flags: bytes.flags()? }
            }
            Tag::Record => StreamEntry::Record { event: self.small(bytes)?, stream: self.small(bytes)? },
            Tag::Wait => StreamEntry::Wait { stream: self.small(bytes)?, event: self.small(bytes)? },
            Tag::Capture => {
                let (stream, graph) = (self.small(bytes)?, bytes.small()?);
                let known = || self.numbers.small(graph).ok_or(Problem::Number(graph.into()));
                StreamEntry::Capture { stream, graph: (graph > 0).then(known).transpose()? }
            }
            Tag::GraphLaunch => StreamEntry::GraphLaunch { graph: self.small(bytes)?, stream: self.small(bytes)? },
            Tag::HostFunction => StreamEntry::HostFunction { stream: self.small(bytes)? },
            Tag::CapturedCall => StreamEntry::Call { stream: self.small(bytes)?, with_previous: bytes.number()? != 0 },
            Tag::Resumption => StreamEntry::Resumption { graph: self.small(bytes)?, stream: self.small(bytes)? },
            Tag::ExternalRecord => {
                StreamEntry::ExternalRecord { event: self.small(bytes)?, stream: self.small(bytes)? }
            }
            Tag::ExternalWait => StreamEntry::ExternalWait { stream: self.small(bytes)?, event: self.small(bytes)? },
            other => return Err(Problem::Entry(other as u64)),
        })
    }

    fn execution(
        &mut self,
        number: u64,
        bytes: &mut Bytes<'_>,
        visit: &mut impl FnMut(&Decoder, Entry<'_>),
    ) -> Result<(), Problem> {
        let definition = self.numbers.definition(number).ok_or(Problem::Definition(number))?;
        let tensors = self.tensors[definition];
        let line = self.line(bytes)?;
        let mut allocations = std::mem::take(&mut self.allocations);
        allocations.clear();
        for _ in 0..tensors {
            allocations.push(self.allocation(bytes)?);
        }
        let autograd = match (line.backward, self.numbers.recorded) {
            (true, _) => Autograd::Backward,
            (false, true) => Autograd::Recording,
            (false, false) => Autograd::Idle,
        };
        visit(self, Entry::Execution { definition, line, autograd, allocations: &allocations });
        self.allocations = allocations;
        Ok(())
    }

    fn allocation(&mut self, bytes: &mut Bytes<'_>) -> Result<u64, Problem> {
        let previous = self.numbers.previous.wrapping_add_signed(bytes.integer()?);
        self.numbers.previous = previous;
        Ok(self.numbers.allocation(previous))
    }

    fn line(&self, bytes: &mut Bytes<'_>) -> Result<Line, Problem> {
        let number = bytes.number()?;
        let site = self.numbers.site(number / 2).ok_or(Problem::Site(number / 2))?;
        Ok(Line { site, backward: number % 2 == 1 })
    }

    /// The number of a stream, an event, a graph or a buffer.
    fn small(&self, bytes: &mut Bytes<'_>) -> Result<u32, Problem> {
        let number = bytes.small()?;
        self.numbers.small(number).ok_or(Problem::Number(number.into()))
    }

    /// Processes that stand at the same line name it each.
    fn site(&mut self, line: SourceLine) {
        let known = if self.has_processes() { self.sites.iter().position(|known| *known == line) } else { None };
        let at = known.unwrap_or_else(|| {
            self.sites.push(line);
            self.sites.len() - 1
        });
        self.numbers.sites.push(at as u32 + 1);
    }

    /// Memory that all processes together use.
    fn level(&mut self, level: Level, bytes: u64) -> Entry<'static> {
        let of = |numbers: &Numbers| numbers.levels[usize::from(level == Level::Context)];
        self.numbers.levels[usize::from(level == Level::Context)] = bytes;
        let bytes = self.others.values().map(of).fold(bytes, u64::saturating_add);
        Entry::Level { level, bytes }
    }

    /// What follows was written by that process.
    fn is_of(&mut self, process: u64) -> Result<(), Problem> {
        let next = Numbers::of(process).ok_or(Problem::Process(process))?;
        if next.process() != self.numbers.process() {
            let next = self.others.remove(&next.process()).unwrap_or(next);
            let before = std::mem::replace(&mut self.numbers, next);
            self.others.insert(before.process(), before);
        }
        Ok(())
    }
}

/// How many bytes of a slice are its definitions, sites and kernels, with which it begins, and the processes that they are of. They belong to the whole rank, what follows to one thread.
///
/// # Errors
/// If one of them is invalid.
pub fn dictionary_length(slice: &[u8]) -> Result<usize, Invalid> {
    let mut at = 0;
    while at < slice.len() {
        match dictionary_entry(&slice[at..]).map_err(|problem| Invalid { at, problem })? {
            Some((length, _)) => at += length,
            None => break,
        }
    }
    Ok(at)
}

/// How long the entry is that `bytes` begin with, and the line if it is a site; `None`: it is no definition, site, kernel or process.
pub(super) fn dictionary_entry(bytes: &[u8]) -> Result<Option<(usize, Option<SourceLine>)>, Problem> {
    let mut left = Bytes { rest: bytes };
    let mut site = None;
    match Tag::from_number(left.number()?) {
        Some(Tag::Definition) => drop(left.definition()?),
        Some(Tag::Site) => site = Some(SourceLine { line: left.text()?, function: left.text()? }),
        Some(Tag::Kernel) => drop(left.text()?),
        Some(Tag::Process) => {
            left.number()?;
        }
        Some(Tag::Version11) => {}
        // In streams of version 11 a process has this entry; no kind of memory has its number.
        Some(Tag::MemoryKind)
            if left.integer()? == 0 && u64::from(left.byte()?) + VERSION_11_KINDS == Tag::Process as u64 =>
        {
            left.number()?;
        }
        _ => return Ok(None),
    }
    Ok(Some((bytes.len() - left.rest.len(), site)))
}

/// What is left to be read.
struct Bytes<'a> {
    rest: &'a [u8],
}

impl Bytes<'_> {
    fn byte(&mut self) -> Result<u8, Problem> {
        let (first, rest) = self.rest.split_first().ok_or(Problem::CutShort)?;
        self.rest = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, Problem> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return Err(Problem::LongNumber);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Problem::LongNumber)
    }

    /// The number of a stream, an event, a graph or a buffer.
    fn small(&mut self) -> Result<u32, Problem> {
        let number = self.number()?;
        u32::try_from(number).ok().filter(|number| *number < 1 << 31).ok_or(Problem::Number(number))
    }

    /// Bits that nobody has given a meaning have none.
    fn flags(&mut self) -> Result<LaunchFlags, Problem> {
        let bits = self.number()?;
        let has = |flag: u32| bits & u64::from(flag) != 0;
        Ok(LaunchFlags { inside: has(LAUNCH_INSIDE), free: has(LAUNCH_FREE), spins: has(LAUNCH_SPINS) })
    }

    fn integer(&mut self) -> Result<i64, Problem> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn text(&mut self) -> Result<String, Problem> {
        let length = usize::try_from(self.number()?).map_err(|_| Problem::CutShort)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(Problem::CutShort)?;
        self.rest = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Reads a count, then so many values. Each value takes at least a byte, so a damaged count reserves no memory.
    fn several<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Problem>) -> Result<Vec<T>, Problem> {
        let count = self.number()?;
        if count > self.rest.len() as u64 {
            return Err(Problem::CutShort);
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn definition(&mut self) -> Result<Definition, Problem> {
        let name = self.text()?;
        Ok(Definition { name, arguments: self.several(Self::argument)?, results: self.several(Self::argument)? })
    }

    fn argument_tag(&mut self) -> Result<ArgumentTag, Problem> {
        let byte = self.byte()?;
        ArgumentTag::from_number(byte.into()).ok_or(Problem::Argument(byte))
    }

    fn argument(&mut self) -> Result<Argument, Problem> {
        Ok(match self.argument_tag()? {
            ArgumentTag::None => Argument::None,
            ArgumentTag::False => Argument::Bool(false),
            ArgumentTag::True => Argument::Bool(true),
            ArgumentTag::Int => Argument::Int(self.integer()?),
            ArgumentTag::Float => Argument::Float,
            ArgumentTag::Text => Argument::Text(self.text()?),
            ArgumentTag::Ints => Argument::Ints(self.several(Self::integer)?),
            ArgumentTag::Tensor => Argument::Tensor(self.tensor()?),
            ArgumentTag::Tensors => Argument::Tensors(self.several(|bytes| match bytes.argument_tag()? {
                ArgumentTag::None => Ok(None),
                ArgumentTag::Tensor => bytes.tensor().map(Some),
                other => Err(Problem::Argument(other as u8)),
            })?),
            ArgumentTag::Other => Argument::Other,
        })
    }

    fn tensor(&mut self) -> Result<Tensor, Problem> {
        let (dtype, place, written) = (ScalarType(self.byte()?), Place(self.byte()?), self.byte()? != 0);
        let dimensions = self.number()?;
        if dimensions > MOST_DIMENSIONS {
            return Err(Problem::Dimensions(dimensions));
        }
        let sizes: Result<Vec<u64>, Problem> = (0..dimensions).map(|_| self.number()).collect();
        let sizes = sizes?;
        let strides: Result<Vec<i64>, Problem> = (0..dimensions).map(|_| self.integer()).collect();
        Ok(Tensor { dtype, place, written, sizes, strides: strides? })
    }
}
