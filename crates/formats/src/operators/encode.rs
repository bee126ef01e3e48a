//! Owns the encoder of operator streams. Ranks write their streams in C++; this encoder makes streams without a rank.

use super::decode::{Level, Line, Reading, StreamEntry, dictionary_entry};
use super::definition::{Argument, Definition, Tensor};
use uniference_abi::entries::{ArgumentTag, EXECUTION, MemoryKind, Tag};

/// Encoder of one rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
    previous: u64,
    recorded: bool,
}

impl Encoder {
    /// Removes and returns the slice: the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Writes the next definition; the n-th has the number n - 1.
    pub fn definition(&mut self, definition: &Definition) {
        self.tag(Tag::Definition);
        self.text(&definition.name);
        for arguments in [&definition.arguments, &definition.results] {
            self.number(arguments.len() as u64);
            arguments.iter().for_each(|argument| self.argument(argument));
        }
    }

    /// Writes the next line of the program; the n-th has the number n.
    pub fn site(&mut self, line: &str, function: &str) {
        self.tag(Tag::Site);
        self.text(line);
        self.text(function);
    }

    /// Writes the execution of an operator, with the allocation of each of its definition's tensors.
    pub fn execution(&mut self, definition: usize, line: Line, allocations: &[u64]) {
        self.number(EXECUTION + definition as u64);
        self.line(line);
        allocations.iter().for_each(|allocation| self.allocation(*allocation));
    }

    /// Writes an allocation of host memory.
    pub fn allocated(&mut self, allocation: u64, bytes: u64) {
        self.tag(Tag::Allocated);
        self.allocation(allocation);
        self.number(bytes);
    }

    /// Writes an allocation of memory on the rank's GPU.
    pub fn allocated_on_gpu(&mut self, allocation: u64, bytes: u64) {
        self.tag(Tag::AllocatedOnGpu);
        self.allocation(allocation);
        self.number(bytes);
    }

    /// Writes that `bytes` of the GPU's memory are in use in addition to the allocations, from this entry on.
    pub fn level(&mut self, level: Level, bytes: u64) {
        self.tag(match level {
            Level::Reserved => Tag::Reserved,
            Level::Context => Tag::Context,
        });
        self.number(bytes);
    }

    /// Writes whether autograd records the following executions, up to the end of the thread's part.
    pub fn recorded(&mut self, recorded: bool) {
        if std::mem::replace(&mut self.recorded, recorded) != recorded {
            self.tag(Tag::Autograd);
            self.number(recorded.into());
        }
    }

    /// Writes that the call at the slice's end reads or writes an allocation.
    pub fn called(&mut self, allocation: u64, written: bool) {
        self.tag(if written { Tag::WrittenByCall } else { Tag::ReadByCall });
        self.allocation(allocation);
    }

    /// Writes that an allocation was freed.
    pub fn freed(&mut self, allocation: u64) {
        self.tag(Tag::Freed);
        self.allocation(allocation);
    }

    /// Writes the kind of data in an allocation.
    pub fn kind(&mut self, allocation: u64, kind: MemoryKind) {
        self.tag(Tag::MemoryKind);
        self.allocation(allocation);
        self.bytes.push(kind as u8);
    }

    /// Writes that an operator of the program read a value that was not computed.
    pub fn answered(&mut self, line: Line, operator: &str) {
        self.tag(Tag::Answered);
        self.line(line);
        self.text(operator);
    }

    /// Writes the duration of the next execution, and of the program's work before it, in nanoseconds.
    pub fn timed(&mut self, before: u64, lasted: u64) {
        self.tag(Tag::Timed);
        self.number(before);
        self.number(lasted);
    }

    /// Writes the next kernel; the n-th has the number n.
    pub fn kernel(&mut self, name: &str) {
        self.tag(Tag::Kernel);
        self.text(name);
    }

    /// Writes work on a CUDA stream.
    pub fn stream(&mut self, entry: StreamEntry) {
        let (tag, fields) = match entry {
            StreamEntry::Call { stream, with_previous } => {
                (Tag::CapturedCall, vec![stream.into(), with_previous.into()])
            }
            StreamEntry::Resumption { graph, stream } => (Tag::Resumption, vec![graph.into(), stream.into()]),
            StreamEntry::ExternalRecord { event, stream } => (Tag::ExternalRecord, vec![event.into(), stream.into()]),
            StreamEntry::ExternalWait { stream, event } => (Tag::ExternalWait, vec![stream.into(), event.into()]),
            StreamEntry::Launch { kernel, stream, flags, bytes } => {
                (Tag::Launch, vec![kernel.into(), stream.into(), flags.number(), bytes])
            }
            StreamEntry::Copy { stream, kind, bytes, flags } => {
                (Tag::Copy, vec![stream.into(), kind as u64, bytes, flags.number()])
            }
            StreamEntry::Record { event, stream } => (Tag::Record, vec![event.into(), stream.into()]),
            StreamEntry::Wait { stream, event } => (Tag::Wait, vec![stream.into(), event.into()]),
            StreamEntry::Capture { stream, graph } => (Tag::Capture, vec![stream.into(), graph.unwrap_or(0).into()]),
            StreamEntry::GraphLaunch { graph, stream } => (Tag::GraphLaunch, vec![graph.into(), stream.into()]),
            StreamEntry::HostFunction { stream } => (Tag::HostFunction, vec![stream.into()]),
        };
        self.tag(tag);
        fields.into_iter().for_each(|field| self.number(field));
    }

    /// Writes the number of the next launch, copy or graph launch.
    pub fn launch_number(&mut self, number: u64) {
        self.tag(Tag::LaunchNumber);
        self.number(number);
    }

    /// Writes the number of Python functions that have begun on the thread since the last such entry.
    pub fn python_calls(&mut self, calls: u64) {
        self.tag(Tag::PythonCalls);
        self.number(calls);
    }

    /// Writes the integers in a buffer of the GPU's memory.
    pub fn integers(&mut self, buffer: u32, values: &[i64]) {
        self.tag(Tag::Integers);
        self.number(buffer.into());
        self.number(values.len() as u64);
        values.iter().for_each(|value| self.integer(*value));
    }

    /// Writes that an argument of the next execution is in a buffer.
    pub fn reading(&mut self, Reading { argument, buffer, count }: Reading) {
        self.tag(Tag::Reading);
        self.number(argument.into());
        self.number(buffer.into());
        self.number(count.into());
    }

    /// Begins the part of another thread.
    pub fn restart(&mut self) {
        self.tag(Tag::Restart);
        (self.previous, self.recorded) = (0, false);
    }

    /// Declares that the following entries were written by the given process of the rank.
    pub fn process(&mut self, process: u32) {
        self.tag(Tag::Process);
        self.number(process.into());
    }

    fn tag(&mut self, tag: Tag) {
        self.number(tag as u64);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn integer(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63) as u64);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn allocation(&mut self, allocation: u64) {
        self.integer(allocation.wrapping_sub(self.previous) as i64);
        self.previous = allocation;
    }

    fn line(&mut self, line: Line) {
        self.number(2 * u64::from(line.site) + u64::from(line.backward));
    }

    fn argument(&mut self, value: &Argument) {
        let byte = match value {
            Argument::None => ArgumentTag::None,
            Argument::Bool(false) => ArgumentTag::False,
            Argument::Bool(true) => ArgumentTag::True,
            Argument::Int(_) => ArgumentTag::Int,
            Argument::Float => ArgumentTag::Float,
            Argument::Text(_) => ArgumentTag::Text,
            Argument::Ints(_) => ArgumentTag::Ints,
            Argument::Tensor(_) => ArgumentTag::Tensor,
            Argument::Tensors(_) => ArgumentTag::Tensors,
            Argument::Other => ArgumentTag::Other,
            Argument::Names(_) => ArgumentTag::Names,
        };
        self.bytes.push(byte as u8);
        match value {
            Argument::Int(value) => self.integer(*value),
            Argument::Text(text) | Argument::Names(text) => self.text(text),
            Argument::Ints(values) => {
                self.number(values.len() as u64);
                values.iter().for_each(|value| self.integer(*value));
            }
            Argument::Tensor(tensor) => self.tensor(tensor),
            Argument::Tensors(tensors) => {
                self.number(tensors.len() as u64);
                for tensor in tensors {
                    self.bytes.push(if tensor.is_some() { ArgumentTag::Tensor } else { ArgumentTag::None } as u8);
                    tensor.iter().for_each(|tensor| self.tensor(tensor));
                }
            }
            Argument::None | Argument::Bool(_) | Argument::Float | Argument::Other => {}
        }
    }

    fn tensor(&mut self, tensor: &Tensor) {
        self.bytes.extend([tensor.dtype.0, tensor.place.0, u8::from(tensor.written)]);
        self.number(tensor.sizes.len() as u64);
        tensor.sizes.iter().for_each(|size| self.number(*size));
        tensor.strides.iter().for_each(|stride| self.integer(*stride));
    }
}

/// Marks a part of a rank's stream as written by another process of the rank; the rank's own process sends it.
pub fn of_process(process: u32, part: &[u8]) -> Vec<u8> {
    let mut written = Encoder::default();
    written.process(process);
    written.bytes.extend_from_slice(part);
    written.process(0);
    written.take()
}

/// Replaces the lines of sites among the definitions, sites and kernels of a slice by `place`. The first other entry,
/// and all bytes after it, stay the same.
pub fn with_lines(mut dictionary: &[u8], place: impl Fn(&str) -> String) -> Vec<u8> {
    let mut written = Encoder::default();
    while let Ok(Some((length, site))) = dictionary_entry(dictionary) {
        let (entry, rest) = dictionary.split_at(length);
        match site {
            Some(site) => written.site(&place(&site.line), &site.function),
            None => written.bytes.extend_from_slice(entry),
        }
        dictionary = rest;
    }
    written.bytes.extend_from_slice(dictionary);
    written.take()
}
