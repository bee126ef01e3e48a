//! Owns the numbers in the stream of captured operators, whose format is documented in `uniference_formats::operators`.

/// Lists an enumeration's variants in the order of their numbers, which are checked.
macro_rules! numbers {
    ($name:ident: $($variant:ident)*) => {
        impl $name {
            /// All variants, in the order of their numbers from [`Self::FIRST`].
            pub const ALL: &[$name] = &[$($name::$variant),*];
            /// The smallest number.
            pub const FIRST: u8 = $name::ALL[0] as u8;

            /// The variant of this number; `None` if no variant has it.
            pub fn from_number(number: u64) -> Option<$name> {
                $name::ALL.get(usize::try_from(number.checked_sub($name::FIRST.into())?).ok()?).copied()
            }
        }

        const _: () = {
            let mut at = 0;
            while at < $name::ALL.len() {
                assert!($name::ALL[at] as usize == at + $name::FIRST as usize, "variants are listed by number");
                at += 1;
            }
        };
    };
}

/// The number with which an entry begins.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[allow(missing_docs)] // the format's table describes the entries
pub enum Tag {
    Definition = 0,
    Site = 1,
    Allocated = 2,
    Freed = 3,
    MemoryKind = 4,
    Answered = 5,
    Restart = 6,
    Timed = 7,
    Kernel = 8,
    Launch = 9,
    Copy = 10,
    Record = 11,
    Wait = 12,
    Capture = 13,
    GraphLaunch = 14,
    HostFunction = 15,
    AllocatedOnGpu = 16,
    Reserved = 17,
    Context = 18,
    Autograd = 19,
    ReadByCall = 20,
    WrittenByCall = 21,
    LaunchNumber = 22,
    CapturedCall = 23,
    Resumption = 24,
    Integers = 25,
    Reading = 26,
    Process = 27,
    ExternalRecord = 28,
    ExternalWait = 29,
    PythonCalls = 30,
    /// The stream is one of a program record of version 11 or older: entries of the tags 16 to 30 are entries of the tag
    /// [`Tag::MemoryKind`] there, and executions begin at 16.
    Version11 = 31,
}

numbers!(Tag: Definition Site Allocated Freed MemoryKind Answered Restart Timed Kernel Launch Copy Record Wait Capture
    GraphLaunch HostFunction AllocatedOnGpu Reserved Context Autograd ReadByCall WrittenByCall LaunchNumber CapturedCall
    Resumption Integers Reading Process ExternalRecord ExternalWait PythonCalls Version11);

/// The tag of an execution of definition 0; definition d has the tag `EXECUTION + d`.
pub const EXECUTION: u64 = 32;

/// The byte with which an argument begins.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the format's table describes the arguments
pub enum ArgumentTag {
    None = 0,
    False = 1,
    True = 2,
    Int = 3,
    Float = 4,
    Text = 5,
    Ints = 6,
    Tensor = 7,
    Tensors = 8,
    Other = 9,
    Names = 10,
}

numbers!(ArgumentTag: None False True Int Float Text Ints Tensor Tensors Other Names);

/// The kind of data that an allocation holds, as the program's objects say.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum MemoryKind {
    Parameter = 1,
    Gradient = 2,
    Optimizer = 3,
    Buffer = 4,
}

numbers!(MemoryKind: Parameter Gradient Optimizer Buffer);

/// The memories that a copy reads and writes.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyKind {
    /// From the host's pageable memory to a device.
    PageableToDevice = 0,
    /// From the host's pinned memory to a device.
    PinnedToDevice = 1,
    /// From a device to the host's pageable memory.
    DeviceToPageable = 2,
    /// From a device to the host's pinned memory.
    DeviceToPinned = 3,
    /// Within a device.
    Within = 4,
    /// Between two devices.
    Peer = 5,
    /// A value into a device's memory (`cudaMemset`).
    Set = 6,
}

numbers!(CopyKind: PageableToDevice PinnedToDevice DeviceToPageable DeviceToPinned Within Peer Set);

/// Launch flag: the operator whose execution follows launches the kernel or copy.
pub const LAUNCH_INSIDE: u32 = 1;
/// Launch flag: the launch costs the host no time, as a node of a graph.
pub const LAUNCH_FREE: u32 = 2;
/// Launch flag: the kernel only waits, for a number of nanoseconds that the entry has in place of bytes.
pub const LAUNCH_SPINS: u32 = 4;
