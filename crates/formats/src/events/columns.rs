//! Owns the schema of the event stream: the columns of each kind of event, in order, with type, unit and meaning. Both
//! formats of the stream, and their documentation, are derived from it.

use std::fmt::Write as _;

/// Version of the stream. It is incremented if a column is removed or changes its meaning, not if columns or kinds of
/// events are added.
pub const VERSION: u32 = 2;

/// A kind of event.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The value of the column `event`.
    pub name: &'static str,
    /// Meaning of the event, for the documentation.
    pub meaning: &'static str,
    /// Columns of the kind, in order, after the columns of [`COMMON`].
    pub columns: &'static [Column],
}

/// The kinds, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the table describes them
pub enum Name {
    Stream,
    Link,
    Line,
    Computed,
    Issued,
    Completed,
    Failed,
    Waited,
    Marked,
    Message,
    Elapsed,
    Used,
    Finished,
}

impl Name {
    /// The kind with its meaning and its columns.
    pub const fn kind(self) -> &'static Kind {
        &KINDS[self as usize]
    }
}

/// A column of a kind of event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// Name of the column. Names of times end with `_ps`.
    pub name: &'static str,
    /// Type of its values.
    pub data: Type,
    /// Whether a value may be missing (null).
    pub nullable: bool,
    /// Unit of its values.
    pub unit: Unit,
    /// Description, for the documentation.
    pub meaning: &'static str,
}

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// UTF-8 text.
    Text,
    /// List of unsigned 32-bit integers.
    U32s,
    /// List of unsigned 64-bit integers.
    U64s,
}

/// Unit of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// No unit: ids, names, counts.
    None,
    /// Picoseconds of virtual time.
    Picoseconds,
    /// Bytes of data.
    Bytes,
    /// Elements of a tensor.
    Elements,
}

const fn column(name: &'static str, data: Type, unit: Unit, meaning: &'static str) -> Column {
    Column { name, data, nullable: false, unit, meaning }
}

const fn id(name: &'static str, meaning: &'static str) -> Column {
    column(name, Type::U32, Unit::None, meaning)
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    column(name, Type::Text, Unit::None, meaning)
}

const fn time(name: &'static str, meaning: &'static str) -> Column {
    column(name, Type::U64, Unit::Picoseconds, meaning)
}

const fn bytes(name: &'static str, meaning: &'static str) -> Column {
    column(name, Type::U64, Unit::Bytes, meaning)
}

const fn optional(column: Column) -> Column {
    Column { nullable: true, ..column }
}

const RANK: Column = id("rank", "the rank");
const TASK: Column = id("task", "thread of the rank; 0 is the main thread");
const HANDLE: Column = id("handle", "id of the operation, unique within the rank");
const OPERATION: Column = text("operation", "name of the operation, for example `all_reduce` or `send`");
const GROUP: Column = id("group", "the process group");
const SITE: Column = id("site", "id of the source line that called; equal ids are the same line");
// Columns of an activity. Recordings of real runs do not have all of them.
const BY: Column = optional(id("task", "thread that issued it; null if not recorded"));
const ACTIVITY: Column = optional(id("handle", "id of the activity, unique within the rank; null if not recorded"));
const QUEUE: Column =
    optional(id("queue", "queue of the rank that it was in; null if it was in its group's queue or in none"));
const ISSUED_AT: Column = optional(time("issued_ps", "time at which it was issued; null if not recorded"));
const ITS_SITE: Column = optional(id("site", "id of the source line that issued it; null if not recorded"));
const BEGIN_CAUSE: Column =
    optional(text("begin_cause", "why it began: a cause from the table below; null if not recorded"));
const BEGIN_CAUSE_RANK: Column = optional(id("begin_cause_rank", "rank of this cause"));
const BEGIN_CAUSE_ID: Column =
    optional(column("begin_cause_id", Type::U64, Unit::None, "task, handle or message of this cause"));
const CAUSE: Column = optional(text("cause", "why it ended: a cause from the table below; null if not recorded"));
const CAUSE_RANK: Column = optional(id("cause_rank", "rank of this cause"));
const CAUSE_ID: Column = optional(column("cause_id", Type::U64, Unit::None, "task, handle or message of this cause"));
const CAUSE_TO_LEAVE: Column = text("cause", "why the message could leave: a cause from the table below");
const ISSUED: Column = time("issued_ps", "time at which it was issued");
const STARTED: Column = time("started_ps", "time at which it reached the front of its queue");
const EXPOSED: Column = time("exposed_ps", "exposed communication, as `exposed_comm_s` in the report");
const LATE_PEER: Column = time("late_peer_ps", "part of `exposed_ps` before all peers had entered the operation");
const NO_DATA: Column = time("no_data_ps", "part of `exposed_ps` in receives whose sends had not been issued");

/// Columns of every event.
pub const COMMON: [Column; 2] =
    [time("at_ps", "time of the event; of an interval, its end"), text("event", "kind of event")];

/// All kinds of events, by [`Name`].
pub static KINDS: [Kind; 13] = [
    Kind {
        name: "stream",
        meaning: "the first line; in Parquet the version is the key `uniference.events` of each file",
        columns: &[id("version", "version of the stream; incremented when a column is removed or changes its meaning")],
    },
    Kind {
        name: "link",
        meaning: "a link of the network; `at_ps` is 0",
        columns: &[id("link", "id of the link, as in `links`"), text("name", "name of the link")],
    },
    Kind {
        name: "line",
        meaning: "a source line, at the end of the stream; `at_ps` is 0",
        columns: &[id("site", "id of the line, as in other columns `site`"), text("line", "the line, as `path:line`")],
    },
    Kind {
        name: "computed",
        meaning: "an interval of compute ended",
        columns: &[
            RANK,
            TASK,
            time("start_ps", "time at which it began"),
            time("base_ps", "its duration on the machine that simulates, before the device's slowdown"),
            text(
                "origin",
                "source of the duration: `Measured`, `Recorded`, `Database` (measured earlier on a device of this kind), `Interpolated` (between rows of the database), `Extrapolated` (far from these rows), `Transferred` (from another device), `Roofline` (from the rates of the device), `None` (unknown, counted as zero)",
            ),
            optional(text(
                "name",
                "what was computed, for example a kernel or a node of a trace; null: code of the program",
            )),
            ACTIVITY,
            ISSUED_AT,
            QUEUE,
            ITS_SITE,
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
        ],
    },
    Kind {
        name: "issued",
        meaning: "a rank issued an operation",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            bytes("bytes", "size of the tensor that the rank passed"),
            optional(text("dtype", "of a collective: torch's name of the type of its elements")),
            optional(text("reduce", "of a collective that reduces: torch's name of the operator")),
            optional(id("root", "of a collective with a root: the root's rank in the group")),
            optional(column(
                "elements",
                Type::U64,
                Unit::Elements,
                "of a collective with blocks of equal size: their size",
            )),
            optional(column(
                "blocks",
                Type::U64s,
                Unit::Elements,
                "of a collective with blocks of different sizes: the size for each rank of the group; of all-to-all, of what is sent",
            )),
            optional(column(
                "received_blocks",
                Type::U64s,
                Unit::Elements,
                "of all-to-all: the sizes of the blocks that are received",
            )),
            optional(id(
                "with",
                "of a message or a write: the peer's rank in the group; null for a receive from any source",
            )),
            optional(column("tag", Type::U64, Unit::None, "of a message: its tag")),
            SITE,
            BY,
        ],
    },
    Kind {
        name: "completed",
        meaning: "an operation completed on a rank",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            ISSUED,
            STARTED,
            optional(text("algorithm", "of a collective: its algorithm")),
            optional(column(
                "sequence",
                Type::U64,
                Unit::None,
                "of a collective: its sequence number in the group, from 0",
            )),
            optional(column("peer", Type::U32s, Unit::None, "of a message: the peer's rank and handle")),
            BY,
            QUEUE,
            ITS_SITE,
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
            optional(id(
                "stream",
                "stream of the rank's device that it was on; null if on none, then also the next five",
            )),
            optional(time(
                "kernel_ps",
                "its time on the stream from when all peers had entered: from `started_ps` or later",
            )),
            optional(time(
                "overlapped_ps",
                "part of `kernel_ps` in which a kernel ran on another stream of the device",
            )),
            optional(time(
                "exposed_ps",
                "part of the time from `started_ps` in which no kernel ran on any stream of the device",
            )),
            optional(time("late_peer_ps", "part of `exposed_ps` before all peers had entered the operation")),
            optional(bytes("bus_bytes", "bytes that bus bandwidth counts, as nccl-tests define it")),
        ],
    },
    Kind {
        name: "failed",
        meaning: "an operation failed on a rank: its connection to `peer` was closed, or the rank itself (`peer`) has aborted it",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            ISSUED,
            STARTED,
            id("peer", "rank at the other end of the connection"),
            BY,
            QUEUE,
            ITS_SITE,
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
        ],
    },
    Kind {
        name: "waited",
        meaning: "a thread of a rank stopped being blocked",
        columns: &[
            RANK,
            TASK,
            time("start_ps", "time at which it became blocked"),
            text("reason", "what it was blocked on: `communication`, `compute`, `store`, `sleep`"),
            EXPOSED,
            LATE_PEER,
            NO_DATA,
            column("handles", Type::U32s, Unit::None, "handles that it waited for"),
            optional(text("operation", "name of the operation whose completion, or timeout, ended the wait")),
            SITE,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
    Kind {
        name: "marked",
        meaning: "a named range began or ended, or a thread was named",
        columns: &[
            RANK,
            optional(text("begin", "name of the range that begins; null if none does")),
            optional(id(
                "task",
                "thread of the range, or the one that opened or closed a range that belongs to the rank; null if not recorded",
            )),
            ACTIVITY,
            ISSUED_AT,
            QUEUE,
            ITS_SITE,
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
            optional(id(
                "range",
                "id of the range, unique within the rank; null if it is the thread's innermost, as in real runs recorded by earlier versions",
            )),
            optional(text("thread_name", "what the thread is called from here on; null if a range begins or ends")),
        ],
    },
    Kind {
        name: "message",
        meaning: "a message arrived",
        columns: &[
            id("source", "rank of the sender"),
            id("destination", "rank of the receiver"),
            GROUP,
            bytes("bytes", "size of the payload"),
            bytes("wire_bytes", "size with protocol headers"),
            time("queued_ps", "time at which it was added to its stream (connection)"),
            time("started_ps", "time at which it reached the front of the stream"),
            time("sent_ps", "time at which its last byte had left the sender"),
            column("links", Type::U32s, Unit::None, "ids of the links on its route"),
            column("id", Type::U64, Unit::None, "id of the message, in the order of posting"),
            id("handle", "the sender's id of the operation that the message belongs to"),
            optional(id("lane", "of a collective whose algorithm has parallel lanes: the sender's lane")),
            optional(column("step", Type::U64, Unit::None, "of a collective: the sender's step in its lane, from 0")),
            id("by", "rank whose action let it leave: the sender, or the receiver if the sender waited for it"),
            time("begun_ps", "time at which `by` posted the send or the receive"),
            CAUSE_TO_LEAVE,
            CAUSE_RANK,
            CAUSE_ID,
            time(
                "released_ps",
                "time at which the sender could transmit it; until `started_ps` it waited for earlier messages of the connection, or for its window",
            ),
            optional(column("behind", Type::U64, Unit::None, "id of the preceding message of the connection")),
        ],
    },
    Kind {
        name: "elapsed",
        meaning: "an interval without compute or communication ended on a rank; its length may be zero",
        columns: &[
            RANK,
            TASK,
            text(
                "what",
                "what the rank did: `sleep`, `poll` (a read of the clock, or a query of the store), `store`, `nothing` (compute of length zero), `reach` (an event of its device), `finish` (the activity that ends the program), `close` (of a group's connections), `abort` (of what is outstanding in a group)",
            ),
            time("start_ps", "time at which it began"),
            optional(id(
                "handle",
                "id of the activity; null if the thread itself was busy: then all columns of the activity except its cause are null",
            )),
            optional(time("issued_ps", "time at which it was issued")),
            QUEUE,
            optional(id("site", "id of the source line that issued it")),
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
    Kind {
        name: "used",
        meaning: "a rank's program is about to end: what streams of its device were busy with until then",
        columns: &[
            RANK,
            optional(id("stream", "number of the stream; null of all streams of the device together")),
            time("kernels_ps", "time in which kernels ran on it"),
            time("copies_ps", "time in which it copied between memories"),
            time("communication_ps", "time in which operations of process groups were under way on it"),
            time("exposed_ps", "part of `communication_ps` in which no kernel ran on any stream of the device"),
        ],
    },
    Kind {
        name: "finished",
        meaning: "a rank's program ended",
        columns: &[
            RANK,
            text("outcome", "outcome: `Ok`, `Failed`, `Crashed`"),
            time("compute_ps", "time in which the rank computed"),
            EXPOSED,
            LATE_PEER,
            NO_DATA,
            time("idle_ps", "rest of the makespan: neither compute nor exposed communication"),
            bytes("bytes_sent", "payload sent"),
            bytes("bytes_received", "payload received"),
            bytes("wire_bytes_sent", "bytes sent, with protocol headers"),
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
];

/// Causes: the value of columns such as `cause`, the content of the columns `..._rank` and `..._id`, and the meaning.
pub const CAUSES: [(&str, &str, &str, &str); 10] = [
    (
        "time",
        "",
        "",
        "a time was reached: the end of a sleep, of a timeout or of the cost of a poll, or the start of the run",
    ),
    ("task", "", "task", "this task of the rank requested it, at this time"),
    ("activity", "", "handle", "this activity of the rank completed, at this time"),
    ("begun", "", "handle", "the operation itself had begun: the time between is the library's cost of a call"),
    ("sent", "", "message", "the message's last byte had left, and the thread that waits for this had been woken"),
    (
        "arrived",
        "",
        "message",
        "the message had arrived: the time between is the library's cost of delivering its data",
    ),
    ("stored", "rank", "task", "a task of this rank changed the store, at this time"),
    ("stored_by", "rank", "handle", "an activity of this rank changed the store when it began"),
    ("closed", "rank", "", "this rank had closed its end of a connection"),
    ("crash", "", "", "the rank crashed, as the cluster file specifies"),
];

/// The tables as Markdown.
pub fn documentation() -> String {
    let mut text = String::from("| event | column | type | unit | meaning |\n|---|---|---|---|---|\n");
    let every = Kind { name: "", meaning: "every event", columns: &COMMON };
    for kind in [every].iter().chain(&KINDS) {
        let name = if kind.name.is_empty() { String::new() } else { format!("`{}`", kind.name) };
        writeln!(text, "| {name} | | | | **{}** |", kind.meaning).expect("memory takes all");
        for Column { name, data, nullable, unit, meaning } in kind.columns {
            let data = match data {
                Type::U32 => "u32",
                Type::U64 => "u64",
                Type::Text => "text",
                Type::U32s => "list of u32",
                Type::U64s => "list of u64",
            };
            let null = if *nullable { " or null" } else { "" };
            let unit = match unit {
                Unit::None => "",
                Unit::Picoseconds => "ps",
                Unit::Bytes => "B",
                Unit::Elements => "elements",
            };
            writeln!(text, "| | `{name}` | {data}{null} | {unit} | {meaning} |").expect("memory takes all");
        }
    }
    text += "\n| cause | rank | id | meaning |\n|---|---|---|---|\n";
    for (name, rank, id, meaning) in CAUSES {
        writeln!(text, "| `{name}` | {rank} | {id} | {meaning} |").expect("memory takes all");
    }
    text
}
