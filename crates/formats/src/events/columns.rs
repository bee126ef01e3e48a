//! Owns the table of the event stream's columns: for each kind of event what it says, in order, with type, unit and meaning. Every form in which the stream
//! is written follows from it, and so does the documentation.

use std::fmt::Write as _;

/// Changes when a column changes its meaning or goes away; new columns and kinds of events do not change it.
pub const VERSION: u32 = 2;

/// A kind of event.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The value of the column `event`.
    pub name: &'static str,
    /// What happened.
    pub meaning: &'static str,
    /// What else is said of it, in order: after `at_ps` and `event`, which every event has.
    pub columns: &'static [Column],
}

/// One thing that is said of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// Times end with `_ps`.
    pub name: &'static str,
    /// Of its values.
    pub data: Type,
    /// May it be missing?
    pub nullable: bool,
    /// What its numbers count.
    pub unit: Unit,
    /// For people.
    pub meaning: &'static str,
}

/// What a column's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number or id of 32 bits, without a sign.
    U32,
    /// A number of 64 bits, without a sign.
    U64,
    /// UTF-8.
    Text,
    /// Any number of ids.
    U32s,
    /// Any number of numbers.
    U64s,
}

/// What a column's numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nothing: ids, names.
    None,
    /// Virtual time.
    Picoseconds,
    /// Sizes.
    Bytes,
    /// Of a tensor.
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
const TASK: Column = id("task", "its thread; the main one is 0");
const HANDLE: Column = id("handle", "the rank's number for the operation");
const OPERATION: Column = text("operation", "its name: `all_reduce`, `send`");
const GROUP: Column = id("group", "the process group");
const SITE: Column = id("site", "the program's line: the same number, the same line");
/// Of the activity that an event is about: what real runs do not know is missing.
const BY: Column = optional(id("task", "the thread that issued it; none if nobody has recorded that"));
const ACTIVITY: Column = optional(id("handle", "the rank's number for the activity; none if nobody has recorded that"));
const QUEUE: Column =
    optional(id("queue", "the queue of the rank's own in which it stood; none: its group's, or none"));
const ISSUED_AT: Column = optional(time("issued_ps", "when it was issued; none if nobody has recorded that"));
const ITS_SITE: Column = optional(id("site", "the line that issued it; none if nobody has recorded that"));
const BEGIN_CAUSE: Column =
    optional(text("begin_cause", "what let it begin: a cause of the table below; none if nobody has recorded that"));
const BEGIN_CAUSE_RANK: Column = optional(id("begin_cause_rank", "the rank that this cause names"));
const BEGIN_CAUSE_ID: Column =
    optional(column("begin_cause_id", Type::U64, Unit::None, "the task, handle or message that this cause names"));
const CAUSE: Column =
    optional(text("cause", "what ended it: a cause of the table below; none if nobody has recorded that"));
const CAUSE_RANK: Column = optional(id("cause_rank", "the rank that this cause names"));
const CAUSE_ID: Column =
    optional(column("cause_id", Type::U64, Unit::None, "the task, handle or message that this cause names"));
const CAUSE_TO_LEAVE: Column = text("cause", "what that followed from: a cause of the table below");
const ISSUED: Column = time("issued_ps", "when it was asked for");
const STARTED: Column = time("started_ps", "when its queue came to it");
const EXPOSED: Column = time("exposed_ps", "the part in communication calls while nothing computed");
const LATE_PEER: Column = time("late_peer_ps", "the part of that before a peer had entered the operation");
const NO_DATA: Column = time("no_data_ps", "the part of that in receives whose sends had not been issued");

/// What every event says.
pub const COMMON: [Column; 2] =
    [time("at_ps", "when it happened, or ended"), text("event", "what happened: a kind of the table")];

/// All kinds of events.
pub const KINDS: [Kind; 10] = [
    Kind {
        name: "stream",
        meaning: "the first line",
        columns: &[id("version", "of the stream; a column that changes its meaning or goes away changes it")],
    },
    Kind {
        name: "computed",
        meaning: "a piece of compute ended",
        columns: &[
            RANK,
            TASK,
            time("start_ps", "when it began"),
            time("base_ps", "how long it takes on the machine that simulates"),
            text(
                "origin",
                "where that comes from: `Measured`, `Recorded`, `Database` (measured before, on such a device), `Interpolated` (between rows of the database), `Transferred` (from another device), `Roofline` (the rates of the device), `None` (unknown, counted as zero)",
            ),
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
        meaning: "a rank requested an operation",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            bytes("bytes", "of the tensor that the rank names"),
            optional(text("dtype", "type of a collective's elements, as torch calls it")),
            optional(text("reduce", "how a collective combines elements, as torch calls it")),
            optional(id("root", "of a collective that has one: its place in the group")),
            optional(column("elements", Type::U64, Unit::Elements, "of a collective with blocks of one size")),
            optional(column(
                "blocks",
                Type::U64s,
                Unit::Elements,
                "of each member in turn, where they differ; of all-to-all what is sent",
            )),
            optional(column("received_blocks", Type::U64s, Unit::Elements, "the same of what an all-to-all receives")),
            optional(id("with", "of a message: the other's place in the group; none if from any")),
            optional(column("tag", Type::U64, Unit::None, "of a message")),
            SITE,
            BY,
        ],
    },
    Kind {
        name: "completed",
        meaning: "the operation is complete on this rank",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            ISSUED,
            STARTED,
            optional(text("algorithm", "what carried out a collective")),
            optional(column("sequence", Type::U64, Unit::None, "of a collective: its number in the group, from 0")),
            optional(column("peer", Type::U32s, Unit::None, "of a message: the other rank, and its handle")),
            BY,
            QUEUE,
            ITS_SITE,
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
    Kind {
        name: "failed",
        meaning: "the operation failed on this rank: its connection to `peer` was closed",
        columns: &[
            RANK,
            HANDLE,
            OPERATION,
            GROUP,
            ISSUED,
            STARTED,
            id("peer", "the rank at the other end"),
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
        meaning: "a thread was no longer blocked",
        columns: &[
            RANK,
            TASK,
            time("start_ps", "when it was blocked"),
            text("reason", "for what: `communication`, `compute`, `store`, `sleep`"),
            EXPOSED,
            LATE_PEER,
            NO_DATA,
            column("handles", Type::U32s, Unit::None, "what it waited for"),
            optional(text("operation", "whose end ended the wait, or that it gave up")),
            SITE,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
    Kind {
        name: "marked",
        meaning: "a named range opened or closed",
        columns: &[
            RANK,
            optional(text("begin", "the name of the one that opens; none if one closes")),
            BY,
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
        name: "message",
        meaning: "a message arrived",
        columns: &[
            id("source", "the rank that sent it"),
            id("destination", "the rank that has it"),
            GROUP,
            bytes("bytes", "of its payload"),
            bytes("wire_bytes", "with headers"),
            time("queued_ps", "when it was put on its stream"),
            time("started_ps", "when it came to the stream's head"),
            time("sent_ps", "when its last byte had left"),
            column("links", Type::U32s, Unit::None, "that it used"),
            column("id", Type::U64, Unit::None, "its number, in the order in which messages are posted"),
            id("handle", "the sender's number for the operation that it is part of"),
            optional(id("lane", "of a collective: the sender's lane, where its algorithm goes several ways at once")),
            optional(column("step", Type::U64, Unit::None, "of a collective: the sender's step in its lane, from 0")),
            id("by", "the rank that let it leave: its sender or, where it waited for its receiver, that one"),
            time("begun_ps", "when its cause had its effect there: the send, or the receive, was posted"),
            CAUSE_TO_LEAVE,
            CAUSE_RANK,
            CAUSE_ID,
            time(
                "released_ps",
                "when its sender knew that it may leave; until `started_ps` it waited for those before it, or the window",
            ),
            optional(column("behind", Type::U64, Unit::None, "the message before it on its connection")),
        ],
    },
    Kind {
        name: "elapsed",
        meaning: "time went by on a rank without compute or communication; it may be none",
        columns: &[
            RANK,
            TASK,
            text(
                "what",
                "with what: `sleep`, `poll` (a read of the clock, a look into the store), `store`, `finish` (the program's end, as an activity), `close` (of a group's connections)",
            ),
            time("start_ps", "when it began"),
            optional(id(
                "handle",
                "the rank's number for the activity; none: the thread itself was busy, as in all columns but the cause",
            )),
            optional(time("issued_ps", "when it was issued")),
            QUEUE,
            optional(id("site", "the line that issued it")),
            BEGIN_CAUSE,
            BEGIN_CAUSE_RANK,
            BEGIN_CAUSE_ID,
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
    Kind {
        name: "finished",
        meaning: "a rank's program ended",
        columns: &[
            RANK,
            text("outcome", "how: `Ok`, `Failed`, `Crashed`"),
            time("compute_ps", "in which it computed"),
            EXPOSED,
            LATE_PEER,
            NO_DATA,
            time("idle_ps", "the rest"),
            bytes("bytes_sent", "payload that it sent"),
            bytes("bytes_received", "payload that it received"),
            bytes("wire_bytes_sent", "what it sent, with headers"),
            CAUSE,
            CAUSE_RANK,
            CAUSE_ID,
        ],
    },
];

/// Causes by the name in columns such as `cause`, what they name in `..._rank` and `..._id`, and what they mean.
pub const CAUSES: [(&str, &str, &str, &str); 10] = [
    ("time", "", "", "the time had come: a sleep or a time-out was over, a poll was paid for, or the run began"),
    ("task", "", "task", "this task of the rank asked for it, at this instant"),
    ("activity", "", "handle", "this activity of the rank was complete, at this instant"),
    ("begun", "", "handle", "the operation itself had begun: what is between is what the library takes for a call"),
    ("sent", "", "message", "the message's last byte had left, and the thread that waits for that had noticed"),
    (
        "arrived",
        "",
        "message",
        "the message had arrived: what is between is what the library takes to hand its data over",
    ),
    ("stored", "rank", "task", "a task of this rank changed the store, at this instant"),
    ("stored_by", "rank", "handle", "an activity of this rank changed the store as it began"),
    ("closed", "rank", "", "this rank had closed its end of a connection"),
    ("crash", "", "", "the rank crashed, as the cluster wanted"),
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
