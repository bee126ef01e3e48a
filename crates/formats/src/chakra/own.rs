//! Owns Uniference's attributes of traces, which extend the schema: parts of a program that are no operators, exact
//! durations, the user's lines. Only this module writes and reads them. Tools that do not know them see a shorter or
//! coarser trace, not a wrong one.

use super::attributes::{DTYPE, IN_SPLIT, IS_CPU_OP, OUT_SPLIT, REDUCE_OP, TID};
use super::schema::{Node, NodeType, Uint64List, Value};
use uniference_sim::ids::TaskId;
use uniference_sim::program::{Collective, DType, Mark, ReduceOp, Shape, StoreOp};
use uniference_sim::time::SimDuration;

/// The kind of a program's part: `compute`, `sleep`, `poll`, `time_out`, `mark_begin`, `mark_end`, `mark_open`,
/// `mark_close`, `store`, `wait`, `end`; in a linked recording also `side_by_side` and `delay`.
pub const PART: &str = "uniference_part";
/// Duration of the node on the reference device, in picoseconds.
pub const DURATION_PS: &str = "uniference_duration_ps";
/// The line of the user's program.
pub const LINE: &str = "uniference_line";
/// Number of a range that may overlap others, unique within its rank.
pub const RANGE: &str = "uniference_range";
/// The thread of a range.
pub const THREAD: &str = "uniference_thread";
/// The store's operation, as JSON.
pub const STORE: &str = "uniference_store";
/// A receive from any sender, which accepts the first message; the node's source is the sender of that message.
pub const ANY_SOURCE: &str = "uniference_any_source";
/// A send that writes into the destination's memory, without an action of the destination.
pub const WRITES: &str = "uniference_writes";
/// Duration of communication in the recording after all ranks had entered it, in picoseconds.
pub const RECORDED_PS: &str = "uniference_recorded_ps";
/// The operators of a compute node in their order: a list of texts ([`super::operators`]).
pub const OPERATORS: &str = "uniference_operators";
/// The cluster file of the run, in the metadata of rank 0.
pub const CLUSTER: &str = "uniference_cluster";
/// The seed of the run, in the metadata of rank 0.
pub const SEED: &str = "uniference_seed";
/// The library by which the CPUs of a linked recording without accelerators communicate, in the trace's metadata:
/// `gloo`.
pub const LIBRARY: &str = "uniference_library";

/// A part of a program other than communication.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Compute on the rank's device, in the order in which the rank's threads reach it.
    Compute(SimDuration),
    /// Work of a thread or a CUDA stream that was recorded concurrently with others: it starts as soon as its
    /// dependencies are complete, whatever else runs. Dependencies determine the order within the thread or stream.
    SideBySide(SimDuration),
    /// Time between a node's dependencies and its start in which nothing works: the latency of a launch.
    Delay(SimDuration),
    /// A pause of this duration: a sleep, a poll, a timeout that passes.
    Pause(Pause, SimDuration),
    /// The start or the end of a named range.
    Mark(Mark),
    /// An operation of the store.
    Store(StoreOp),
    /// A thread waits for several operations.
    Wait,
    /// The end of the program and of the rank's time; threads may continue.
    End,
}

/// The reason for a thread's pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The thread sleeps (`time.sleep`).
    Sleep,
    /// The thread reads the clock.
    Poll,
    /// The thread waits in vain until a timeout.
    TimeOut,
}

impl Pause {
    const ALL: [Pause; 3] = [Pause::Sleep, Pause::Poll, Pause::TimeOut];

    const fn name(self) -> &'static str {
        match self {
            Pause::Sleep => "sleep",
            Pause::Poll => "poll",
            Pause::TimeOut => "time_out",
        }
    }
}

impl Part {
    /// The part as a node of `task`, without id, dependencies and times.
    pub fn to_node(&self, task: TaskId) -> Node {
        let (name, part, kind) = match self {
            Part::Compute(_) => ("compute", "compute", NodeType::Comp),
            Part::SideBySide(_) => ("work", "side_by_side", NodeType::Comp),
            Part::Delay(_) => ("delay", "delay", NodeType::Comp),
            Part::Pause(pause, _) => (pause.name(), pause.name(), NodeType::Comp),
            Part::Mark(Mark::Begin(label)) => (&**label, "mark_begin", NodeType::Metadata),
            Part::Mark(Mark::End) => ("end of range", "mark_end", NodeType::Metadata),
            Part::Mark(Mark::Open { name, .. }) => (&**name, "mark_open", NodeType::Metadata),
            Part::Mark(Mark::Close { .. }) => ("end of range", "mark_close", NodeType::Metadata),
            Part::Mark(Mark::Name(name)) => (&**name, "mark_name", NodeType::Metadata),
            Part::Mark(Mark::Enter { name, .. }) => (&**name, "mark_enter", NodeType::Metadata),
            Part::Mark(Mark::Leave { .. }) => ("end of range", "mark_leave", NodeType::Metadata),
            Part::Store(_) => ("store", "store", NodeType::Metadata),
            Part::Wait => ("wait", "wait", NodeType::Metadata),
            Part::End => ("end of program", "end", NodeType::Metadata),
        };
        let mut node = Node { name: name.to_owned(), r#type: kind.into(), ..Node::default() };
        // Nodes that the device does not run must not occupy the device.
        node.set(IS_CPU_OP, Value::Bool(!matches!(self, Part::Compute(_))));
        node.set(TID, Value::Int64(task.0.into()));
        node.set(PART, Value::String(part.to_owned()));
        match self {
            Part::Compute(duration) | Part::SideBySide(duration) | Part::Delay(duration) | Part::Pause(_, duration) => {
                node.set(DURATION_PS, Value::Uint64(duration.as_ps()));
            }
            Part::Store(operation) => {
                let json = serde_json::to_string(operation).expect("bytes and numbers have a JSON form");
                node.set(STORE, Value::String(json));
            }
            Part::Mark(Mark::Open { range, .. } | Mark::Close { range }) => {
                node.set(RANGE, Value::Uint32(*range));
            }
            Part::Mark(Mark::Enter { range, thread, .. } | Mark::Leave { range, thread }) => {
                node.set(RANGE, Value::Uint32(*range));
                node.set(THREAD, Value::Uint32(thread.0));
            }
            Part::Mark(Mark::Begin(_) | Mark::End | Mark::Name(_)) | Part::Wait | Part::End => {}
        }
        node
    }

    /// The part that the node describes; `None`: the node has no part, or an invalid one.
    pub fn of(node: &Node) -> Option<Part> {
        let part = node.text(PART)?;
        let pause = Pause::ALL.into_iter().find(|pause| pause.name() == part);
        Some(match part {
            "compute" => Part::Compute(duration(node)),
            "side_by_side" => Part::SideBySide(duration(node)),
            "delay" => Part::Delay(duration(node)),
            _ if pause.is_some() => Part::Pause(pause?, duration(node)),
            "mark_begin" => Part::Mark(Mark::Begin(node.name.as_str().into())),
            "mark_end" => Part::Mark(Mark::End),
            "mark_open" => Part::Mark(Mark::Open { range: range(node)?, name: node.name.as_str().into() }),
            "mark_close" => Part::Mark(Mark::Close { range: range(node)? }),
            "mark_name" => Part::Mark(Mark::Name(node.name.as_str().into())),
            "mark_enter" => {
                Part::Mark(Mark::Enter { range: range(node)?, thread: thread(node)?, name: node.name.as_str().into() })
            }
            "mark_leave" => Part::Mark(Mark::Leave { range: range(node)?, thread: thread(node)? }),
            "store" => Part::Store(serde_json::from_str(node.text(STORE)?).ok()?),
            "wait" => Part::Wait,
            "end" => Part::End,
            _ => return None,
        })
    }
}

/// The node's exact duration, or else its duration in whole microseconds.
pub fn duration(node: &Node) -> SimDuration {
    let rounded = node.duration_micros.saturating_mul(1_000_000);
    SimDuration::from_ps(node.unsigned(DURATION_PS).unwrap_or(rounded))
}

fn range(node: &Node) -> Option<u32> {
    node.unsigned(RANGE).and_then(|range| u32::try_from(range).ok())
}

fn thread(node: &Node) -> Option<TaskId> {
    node.unsigned(THREAD).and_then(|thread| u32::try_from(thread).ok()).map(TaskId)
}

/// The thread of a node; the main thread if there is no attribute.
pub fn task(node: &Node) -> TaskId {
    TaskId(node.unsigned(TID).and_then(|tid| u32::try_from(tid).ok()).unwrap_or(0))
}

/// Adds the attributes of a collective that its size in bytes does not imply: types, reduction, unequal blocks.
pub fn describe(collective: &Collective, node: &mut Node) {
    node.set(DTYPE, Value::String(collective.dtype.name().to_owned()));
    if let Some(reduce) = collective.reduce {
        node.set(REDUCE_OP, Value::String(reduce.name().to_owned()));
    }
    let list = |values: &[u64]| Value::Uint64List(Uint64List { values: values.to_vec() });
    match &collective.shape {
        Shape::Even(_) => {}
        Shape::Blocks(blocks) => node.set(OUT_SPLIT, list(blocks)),
        Shape::Pairs { send, recv } => {
            node.set(IN_SPLIT, list(send));
            node.set(OUT_SPLIT, list(recv));
        }
    }
}

/// The type of a collective's elements; bytes if there is no attribute.
pub fn dtype(node: &Node) -> DType {
    node.text(DTYPE).and_then(DType::from_name).unwrap_or(DType::UInt8)
}

/// The operator of a reduction; the sum if there is no attribute.
pub fn reduce_op(node: &Node) -> ReduceOp {
    let name = node.text(REDUCE_OP);
    ReduceOp::ALL.into_iter().find(|op| Some(op.name()) == name).unwrap_or(ReduceOp::Sum)
}

/// The texts of a node's operators; empty if there is no attribute.
pub fn operators(node: &Node) -> &[String] {
    match node.attribute(OPERATORS) {
        Some(Value::StringList(list)) => &list.values,
        _ => &[],
    }
}

/// The unequal blocks of a collective, each changed by `scale`; `None`: the blocks are equal, or their number is not
/// `members`.
pub fn blocks(node: &Node, members: usize, scale: impl Fn(u64) -> u64) -> Option<Shape> {
    let list = |name| {
        let values = node.numbers(name).filter(|values| values.len() == members)?;
        Some(values.iter().map(|value| scale(*value)).collect())
    };
    let recv = list(OUT_SPLIT)?;
    Some(match list(IN_SPLIT) {
        Some(send) => Shape::Pairs { send, recv },
        None => Shape::Blocks(recv),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let second = SimDuration::from_ps(1_000_000_000_001);
        let parts = [
            Part::Compute(second),
            Part::SideBySide(second),
            Part::Delay(second),
            Part::Pause(Pause::Sleep, second),
            Part::Pause(Pause::Poll, second),
            Part::Pause(Pause::TimeOut, second),
            Part::Mark(Mark::Begin("step".into())),
            Part::Mark(Mark::End),
            Part::Mark(Mark::Open { range: 7, name: "request".into() }),
            Part::Mark(Mark::Close { range: 7 }),
            Part::Mark(Mark::Name("loader".into())),
            Part::Store(StoreOp::Set { key: b"k".to_vec(), value: vec![0, 255] }),
            Part::Wait,
            Part::End,
        ];
        for part in parts {
            let node = part.to_node(TaskId(2));
            assert_eq!((Part::of(&node), task(&node)), (Some(part), TaskId(2)));
        }
    }

    #[test]
    fn without_the_exact_duration_the_rounded_one_counts_and_other_nodes_are_not_ours() {
        let mut node = Part::Compute(SimDuration::from_ps(7)).to_node(TaskId(0));
        node.attr.retain(|attribute| attribute.name != DURATION_PS);
        node.duration_micros = 3;
        assert_eq!(Part::of(&node), Some(Part::Compute(SimDuration::from_us(3))));
        assert_eq!(Part::of(&Node::default()), None);
    }
}
