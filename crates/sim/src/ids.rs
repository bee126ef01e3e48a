//! Owns the small integer ids. Every id indexes a `Vec`; names are turned into ids in sorted or file order, never in
//! the order in which objects are built.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Index of this id in a `Vec`.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            fn from(index: usize) -> $name {
                $name(u32::try_from(index).expect(concat!("more than 2^32 of ", stringify!($name))))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(/// One logical process, numbered from 0 to the world size. Each computes on the device of the same number.
    RankId, "rank ");
id!(/// A rank's place inside a process group.
    GroupRank, "group rank ");
id!(/// A thread of a rank. The main one is 0.
    TaskId, "task ");
id!(/// A process group, as the engine numbers them.
    GroupId, "group ");
id!(/// A host: what one or more devices share a network interface on.
    HostId, "host ");
id!(/// A link of the network: one direction, or a medium that both directions share.
    LinkId, "link ");
id!(/// A stream: messages in order along one route.
    StreamId, "stream ");
id!(/// A queue of a rank, carried out in order: the rank's own instruction stream is 0, CUDA streams and the like follow.
    QueueId, "queue ");
id!(/// An activity of one rank, numbered in the order in which the rank issued them.
    Handle, "handle ");
id!(/// A line of the user's program; the caller keeps the table.
    Site, "site ");

/// First queue of a CUDA stream; smaller numbers are the queues of the rank's threads, by the thread's number.
const STREAMS: u32 = 1 << 20;

impl QueueId {
    /// Queue of a CUDA stream of the rank's device. A program's streams have numbers below 2^31; branches of its graphs
    /// follow.
    pub const fn of_stream(stream: u32) -> QueueId {
        QueueId(STREAMS + stream)
    }

    /// The stream of the queue; `None`: the queue of a thread.
    pub const fn stream(self) -> Option<u32> {
        self.0.checked_sub(STREAMS)
    }
}

/// Numbering of objects that several processes of a rank number on their own: numbers of the rank's own process are
/// unchanged, those of another process have the process's number in front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfProcess(u32);

impl OfProcess {
    /// Bits of another process's number of a stream, an event, a graph or a buffer of a device.
    const SHORT: u32 = 24;

    /// Bits of another process's number of an allocation or a launch.
    const LONG: u32 = 48;

    /// Numbering for the process with this number, 0 being the rank's own; `None`: a rank has at most 127 other
    /// processes.
    pub const fn new(process: u32) -> Option<OfProcess> {
        if process < 1 << (31 - Self::SHORT) { Some(OfProcess(process)) } else { None }
    }

    /// The number of the process.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The rank's number of a stream, an event, a graph or a buffer, which are below 2^31; `None`: the process has used
    /// up its numbers.
    pub const fn short(self, number: u32) -> Option<u32> {
        match self.0 {
            0 => Some(number),
            process if number < 1 << Self::SHORT => Some(process << Self::SHORT | number),
            _ => None,
        }
    }

    /// Whether this process has assigned the rank's `number` of a stream, an event, a graph or a buffer. Numbers that
    /// no process has assigned, as those of branches of graphs, belong to the rank's own process.
    pub const fn has_given(self, number: u32) -> bool {
        let process = number >> Self::SHORT;
        process == self.0 || self.0 == 0 && OfProcess::new(process).is_none()
    }

    /// The rank's number of memory or a launch. A process cannot run long enough to assign a number of more than 48
    /// bits.
    pub const fn long(self, number: u64) -> u64 {
        (self.0 as u64) << Self::LONG ^ number
    }

    /// The process's own number of the launch with the rank's `number`; `None`: it belongs to another process.
    pub const fn own(self, number: u64) -> Option<u64> {
        if number >> Self::LONG == self.0 as u64 { Some(number & ((1 << Self::LONG) - 1)) } else { None }
    }
}

/// Name of a CUDA stream in traces.
pub fn stream_name(stream: u32) -> String {
    // Numbers of branches of graphs start above those of programs' own streams.
    const BRANCHES: u32 = 1 << 31;
    match (stream >> OfProcess::SHORT, stream & ((1 << OfProcess::SHORT) - 1)) {
        _ if stream >= BRANCHES => format!("branch {} of graphs", stream - BRANCHES),
        (0, _) => format!("stream {stream}"),
        (process, own) => format!("stream {own} of process {process}"),
    }
}

/// A message, in the order in which a run's messages are posted. A run may have more messages than any other kind of
/// object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_number_by_themselves_and_their_ranks_tell_them_apart() {
        let (own, other) = (OfProcess::default(), OfProcess::new(127).unwrap());
        assert_eq!(OfProcess::new(128), None);
        assert_eq!((own.short(1 << 30), other.short(5)), (Some(1 << 30), Some((127 << 24) + 5)));
        assert_eq!(other.short(1 << 24), None, "there is no room for more");
        assert_eq!((other.own(other.long(9)), own.own(other.long(9)), own.own(9)), (Some(9), None, Some(9)));
        let (stream, branch) = (other.short(5).unwrap(), (1 << 31) + 3);
        assert!(other.has_given(stream) && !own.has_given(stream));
        assert!(own.has_given(branch) && !other.has_given(branch));
        let names = [7, stream, branch].map(stream_name);
        assert_eq!(names, ["stream 7", "stream 5 of process 127", "branch 3 of graphs"]);
    }
}
