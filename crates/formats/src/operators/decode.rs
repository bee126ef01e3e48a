//! Owns the decoder of operator streams, slice by slice, for valid and invalid bytes.
//!
//! Memory is in proportion to the bytes that were read: a count is accepted only if as many bytes follow.

use super::definition::{Argument, Definition, Place, ScalarType, Tensor};
use super::numbers::Numbers;
use std::collections::BTreeMap;
use uniference_abi::entries::{
    ArgumentTag, CopyKind, EXECUTION, LAUNCH_FREE, LAUNCH_INSIDE, LAUNCH_SPINS, MemoryKind, Tag,
};

/// First entry of the operator streams in records of version 11 or older.
pub(crate) const VERSION_11: [u8; 1] = [Tag::Version11 as u8];

/// Difference between the tag of an entry, 16 to 30, and the byte that represents such a tag in streams of version 11.
const VERSION_11_KINDS: u64 = 11;
/// Largest number of dimensions of torch's tensors.
const MOST_DIMENSIONS: u64 = 64;

/// An invalid entry of an operator stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid operators at byte {at} of a slice: {problem}\nhint: copy the record again from its source, or run the program again"
)]
pub struct Invalid {
    /// Offset of the entry in the slice that was read, in bytes.
    pub at: usize,
    /// The entry's error.
    pub problem: Problem,
}

/// An error of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The slice ends inside the entry.
    #[error("it is cut short")]
    CutShort,
    /// A number needs more than 64 bits.
    #[error("a number has more than 64 bits")]
    LongNumber,
    /// An entry's tag is unknown.
    #[error("unknown entry {0}")]
    Entry(u64),
    /// An argument begins with an unknown byte.
    #[error("unknown argument {0}")]
    Argument(u8),
    /// An entry refers to an unknown definition.
    #[error("unknown definition {0}")]
    Definition(u64),
    /// The site has not been named.
    #[error("unknown line {0}")]
    Site(u64),
    /// The kernel has not been named.
    #[error("unknown kernel {0}")]
    Kernel(u64),
    /// An entry's number of a stream, event, graph or buffer is out of range.
    #[error("stream, event, graph or buffer {0} is out of range")]
    Number(u64),
    /// An entry's kind of copy is unknown.
    #[error("unknown kind of copy {0}")]
    Copy(u64),
    /// An entry's kind of memory is unknown.
    #[error("unknown kind of memory {0}")]
    Kind(u8),
    /// A tensor has too many dimensions.
    #[error("a tensor with {0} dimensions")]
    Dimensions(u64),
    /// The number of a process is larger than a rank's processes can have.
    #[error("process {0} is out of range")]
    Process(u64),
}

/// An entry of a rank's stream. Allocations have their absolute numbers, not differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The rank ran an operator.
    Execution {
        /// Index of the operator's definition in [`Decoder::definitions`].
        definition: usize,
        /// The program's line that ran the operator.
        line: Line,
        /// Autograd's activity while the operator ran.
        autograd: Autograd,
        /// The memory of each of the definition's tensors ([`Definition::tensors`]); 0: not tracked.
        allocations: &'a [u64],
    },
    /// Duration of the next execution on this machine, in nanoseconds; only in captures that time operators.
    Timed {
        /// Duration of the program's own work before the operator: from the end of the previous operator, or from the
        /// program's continuation after a call.
        before: u64,
        /// Duration of the operator.
        lasted: u64,
    },
    /// Memory was allocated.
    Allocated {
        /// The number by which all other entries name the allocation.
        allocation: u64,
        /// Size in bytes.
        bytes: u64,
        /// The memory is on the rank's GPU, otherwise on the host.
        on_gpu: bool,
    },
    /// Memory of the rank's GPU that is in use in addition to the allocations, from this entry on.
    Level {
        /// The user of the memory.
        level: Level,
        /// Size in bytes.
        bytes: u64,
    },
    /// An allocation was freed.
    Freed {
        /// The allocation's number.
        allocation: u64,
    },
    /// The kind of data in an allocation is known from this entry on.
    Kind {
        /// The allocation's number.
        allocation: u64,
        /// The kind of data in the memory.
        kind: MemoryKind,
    },
    /// The call that ends the slice communicates memory.
    Called {
        /// The allocation's number; 0: not tracked.
        allocation: u64,
        /// The call writes received data to the memory; otherwise the call sends the memory's data.
        written: bool,
    },
    /// The program read a value that was not computed, so its control flow may depend on it.
    Answered {
        /// The program's line that read the value.
        line: Line,
        /// The operator that read the value.
        operator: &'a str,
    },
    /// Work of the program on a stream of a simulated GPU.
    Stream(StreamEntry),
    /// Number by which the rank later queries the times of the next launch, copy or graph launch.
    Number(u64),
    /// Number of Python functions that have begun on the thread since the last such entry.
    PythonCalls(u64),
    /// Values of a buffer in the GPU's memory from this entry on.
    Integers {
        /// The rank's own number of the buffer.
        buffer: u32,
        /// The integers from the buffer's beginning on.
        values: &'a [i64],
    },
    /// An argument of the next execution is in a buffer of [`Entry::Integers`].
    Reading(Reading),
}

/// An argument whose values, at the time of each execution, determine the operator's amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reading {
    /// Index of the argument.
    pub argument: u32,
    /// The buffer that contains the argument.
    pub buffer: u32,
    /// Number of integers.
    pub count: u32,
}

/// Work of a program on CUDA streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEntry {
    /// A kernel is launched.
    Launch {
        /// Number of the kernel, as in [`Decoder::kernel`].
        kernel: u32,
        /// Number of the stream.
        stream: u32,
        /// Cause of the launch, and its cost on the host.
        flags: LaunchFlags,
        /// Bytes of memory that the kernel's arguments point to; 0: not known.
        bytes: u64,
    },
    /// A copy is launched.
    Copy {
        /// Number of the stream.
        stream: u32,
        /// The memories of the copy's source and destination.
        kind: CopyKind,
        /// Number of copied bytes.
        bytes: u64,
        /// Cause of the copy's launch, and its cost on the host.
        flags: LaunchFlags,
    },
    /// An event is recorded: it happens when everything before it on the stream has ended.
    Record {
        /// Number of the event.
        event: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// Later work on the stream waits for an event, as the event was recorded last.
    Wait {
        /// Number of the stream that waits.
        stream: u32,
        /// Number of the event; an event that was never recorded has no effect.
        event: u32,
    },
    /// The beginning or the end of a graph's capture of a stream.
    Capture {
        /// Number of the stream.
        stream: u32,
        /// Number of the graph; `None`: the capture ends.
        graph: Option<u32>,
    },
    /// Launch of a graph up to its first captured call, or of the whole graph if it contains no calls.
    GraphLaunch {
        /// Number of the graph.
        graph: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// A captured record of an event outside of the graph: each launch of the graph records the event.
    ExternalRecord {
        /// Number of the event.
        event: u32,
        /// Number of the stream.
        stream: u32,
    },
    /// A captured wait for an event outside of the graph: in each launch of the graph, later work on the stream waits
    /// for it.
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
        /// The call starts together with the previous call.
        with_previous: bool,
    },
    /// The rank has made the graph's next call: launch of the nodes from that call up to the following call.
    Resumption {
        /// Number of the graph.
        graph: u32,
        /// Number of the stream that the graph was launched on.
        stream: u32,
    },
    /// A host function.
    HostFunction {
        /// Number of the stream.
        stream: u32,
    },
}

/// Cause of a launch, and its cost on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchFlags {
    /// The operator of the next execution launches it.
    pub inside: bool,
    /// The launch takes no time on the host.
    pub free: bool,
    /// The kernel only spins: the field for bytes is its duration in nanoseconds.
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
    /// The line is that of the forward operator whose backward pass runs.
    pub backward: bool,
}

/// Suffix of `path:line` for operators of the backward pass.
pub const BACKWARD: &str = " (backward)";

/// Autograd's activity while an operator runs. The host time before the operator depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Autograd {
    /// Autograd does nothing.
    #[default]
    Idle,
    /// Autograd records the operator for a later backward pass.
    Recording,
    /// Autograd runs the operator in a backward pass.
    Backward,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// `path:line`.
    pub line: String,
    /// The qualified name of the Python function that contains the line.
    pub function: String,
}

/// A user of GPU memory of which only the total is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Torch's caching allocator: the segments that contain its allocations.
    Reserved,
    /// The CUDA context and the libraries, in addition to the allocator.
    Context,
}

/// Decoder of one rank's stream, which keeps the definitions, sites and kernels by number. All numbers in decoded
/// entries are unique within the rank, whichever of its processes has written the entry.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    definitions: Vec<Definition>,
    /// Number of tensors of each definition.
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

    /// A line of the program by its number; `None` for 0, and for numbers that no entry has defined.
    pub fn source_line(&self, site: u32) -> Option<&SourceLine> {
        self.sites.get((site as usize).checked_sub(1)?)
    }

    /// Text of a captured line, `path:line`, followed by [`BACKWARD`] in the backward pass; empty if the line is not
    /// known.
    pub fn line_text(&self, line: Line) -> String {
        let pass = if line.backward { BACKWARD } else { "" };
        self.source_line(line.site).map_or_else(String::new, |source| format!("{}{pass}", source.line))
    }

    /// Names of kernels so far, by number from 1; only ranks with simulated GPUs have kernels.
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

    /// Reads the next slice of the rank's stream, and passes its entries to `visit` in order, each with the decoder's
    /// state at that entry. Definitions, sites, kernels, restarts and processes are not passed.
    ///
    /// # Errors
    /// At the first invalid entry. Earlier entries have been passed to `visit`; the rest of the stream cannot be read.
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

    /// Adds a line. Several processes of a rank may name the same line; it is kept once.
    fn site(&mut self, line: SourceLine) {
        let known = if self.has_processes() { self.sites.iter().position(|known| *known == line) } else { None };
        let at = known.unwrap_or_else(|| {
            self.sites.push(line);
            self.sites.len() - 1
        });
        self.numbers.sites.push(at as u32 + 1);
    }

    /// Sums up the memory that all processes of the rank use.
    fn level(&mut self, level: Level, bytes: u64) -> Entry<'static> {
        let of = |numbers: &Numbers| numbers.levels[usize::from(level == Level::Context)];
        self.numbers.levels[usize::from(level == Level::Context)] = bytes;
        let bytes = self.others.values().map(of).fold(bytes, u64::saturating_add);
        Entry::Level { level, bytes }
    }

    /// Declares that the following entries were written by the given process.
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

/// Number of bytes at the beginning of a slice that contain definitions, sites and kernels, and entries that name the
/// processes of these. They belong to the whole rank, the rest of the slice to one thread.
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

/// Length of the first entry of `bytes`, and the line if the entry is a site; `None`: the entry is no definition, site,
/// kernel or process.
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
        // Streams of version 11 name processes by a memory kind entry whose number is no memory kind.
        Some(Tag::MemoryKind)
            if left.integer()? == 0 && u64::from(left.byte()?) + VERSION_11_KINDS == Tag::Process as u64 =>
        {
            left.number()?;
        }
        _ => return Ok(None),
    }
    Ok(Some((bytes.len() - left.rest.len(), site)))
}

/// The bytes that have not been read yet.
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

    /// Unknown bits are ignored.
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

    /// Reads a count and as many values. Each value has at least one byte, so a damaged count reserves no memory.
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
            ArgumentTag::Names => Argument::Names(self.text()?),
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
