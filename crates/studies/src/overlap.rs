//! Owns which compute beside an operation could run while the operation does: what neither feeds it nor needs its result, by the memory that
//! operators read and write.
//!
//! How a record is changed accordingly, and what that gains, is the caller's business. What programs keep outside of tensors is not seen here:
//! files, random numbers, and values that Python has read before.

use rustc_hash::FxHashSet;
use serde::Serialize;
use std::path::Path;
use uniference_formats::operators::Definition;
use uniference_formats::table::{seconds, wrapped};

/// So many operations, and lines of each, are shown on a terminal.
const MOST_SHOWN: usize = 3;

/// Operators whose results the program itself reads: what it does next depends on them.
const STEERING: [&str; 8] =
    ["_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique", "_unique2"];

/// What an operator, or an operation of process groups, does to memory: allocations by number, in which views lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Allocations that it reads.
    pub reads: Vec<u64>,
    /// Allocations that it writes.
    pub writes: Vec<u64>,
    /// What the program does next depends on its result.
    pub steers: bool,
}

impl Access {
    /// Of an execution of an operator on these allocations, one for each of the definition's tensors.
    pub fn of(definition: &Definition, allocations: &[u64]) -> Access {
        let mut access = Access { steers: STEERING.contains(&definition.base_name()), ..Access::default() };
        let arguments = definition.arguments.iter().flat_map(|argument| argument.tensors()).count();
        let (arguments, results) = allocations.split_at(arguments.min(allocations.len()));
        for (tensor, on) in definition.tensors().zip(arguments) {
            // What is written to may be read as well: `add_`.
            access.reads.push(*on);
            if tensor.written {
                access.writes.push(*on);
            }
        }
        // A result in the memory of an argument is a view of it, or the argument itself.
        access.writes.extend(results.iter().filter(|on| !arguments.contains(on)));
        access
    }
}

/// What stays where it is.
#[derive(Default)]
struct Staying {
    reads: FxHashSet<u64>,
    writes: FxHashSet<u64>,
}

impl Staying {
    fn add(&mut self, access: &Access) {
        self.reads.extend(&access.reads);
        self.writes.extend(&access.writes);
    }

    /// Whether the order of the two matters.
    fn conflicts_with(&self, access: &Access) -> bool {
        access.reads.iter().any(|on| self.writes.contains(on))
            || access.writes.iter().any(|on| self.reads.contains(on) || self.writes.contains(on))
    }
}

/// Of what runs before a call, in order: which could as well run after it. Neither the call needs it, nor what stays before the call.
pub fn movable_behind(executions: &[Access], call: &Access) -> Vec<bool> {
    let mut staying = Staying::default();
    staying.add(call);
    let mut movable: Vec<bool> = executions
        .iter()
        .rev()
        .map(|access| {
            // That the program makes the call may follow from what it has read.
            let movable = !access.steers && !staying.conflicts_with(access);
            if !movable {
                staying.add(access);
            }
            movable
        })
        .collect();
    movable.reverse();
    movable
}

/// Of what runs once a call's result is there, in order: which could as well run before that. It needs neither the result, nor what stays behind it.
pub fn movable_ahead(executions: &[Access], call: &Access) -> Vec<bool> {
    let mut staying = Staying::default();
    staying.add(call);
    let mut steered = false;
    executions
        .iter()
        .map(|access| {
            let movable = !steered && !staying.conflicts_with(access);
            if !movable {
                staying.add(access);
                steered |= access.steers;
            }
            movable
        })
        .collect()
}

/// Operations of a run that compute could run beside.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chances {
    /// By line of their calls, those with the most such compute first.
    pub operations: Vec<Chance>,
    /// What was not examined, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexamined: Option<String>,
}

/// The calls of one line.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chance {
    /// The line, as `path:line`.
    pub line: String,
    /// The operation: `all_gather`.
    pub operation: String,
    /// How many calls of all ranks have such compute beside them.
    pub calls: u64,
    /// How long it takes in the run as it is, on all ranks together, before any slowdown.
    pub seconds: f64,
    /// Of which lines it is, those that take longest first.
    pub compute: Vec<MovableLine>,
}

/// Compute of one line that could be moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovableLine {
    /// The line, as `path:line`; `None` where it is not known.
    pub line: Option<String>,
    /// It comes before the call now, and else after the call's result.
    pub before: bool,
    /// How many operators.
    pub operators: u64,
    /// How long they take.
    pub seconds: f64,
}

impl Chance {
    /// What is to be moved, in a sentence.
    pub fn describe(&self) -> String {
        let name = |part: &MovableLine| {
            let file = |line: &String| line.rsplit('/').next().unwrap_or(line).to_owned();
            part.line.as_ref().map_or_else(|| "an unknown line".to_owned(), file)
        };
        let shown = |part: &MovableLine| {
            format!("{} ({}, now {})", name(part), seconds(part.seconds), if part.before { "before" } else { "after" })
        };
        let lines: Vec<String> = self.compute.iter().take(MOST_SHOWN).map(shown).collect();
        let more = match self.compute.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let at = self.line.rsplit('/').next().unwrap_or(&self.line);
        format!(
            "{} at {at} could run beside {}{more}: this neither feeds it nor needs its result. Call it with async_op=True, or isend and irecv, and compute that between the call and wait()",
            self.operation,
            lines.join(", ")
        )
    }
}

impl Chances {
    /// The shortest name of an operation's line that is no other's.
    pub fn name(&self, chance: &Chance) -> String {
        let file = chance.line.rsplit('/').next().unwrap_or(&chance.line);
        let same = self.operations.iter().filter(|other| other.line.rsplit('/').next() == Some(file)).count();
        if same > 1 { chance.line.clone() } else { file.to_owned() }
    }

    /// Of the operations of these names, and whether there are any at all; lines that end with a newline, or nothing.
    pub fn render(&self, names: &[&str]) -> String {
        let named =
            |name| self.operations.iter().filter(move |chance: &&Chance| Path::new(&chance.line).ends_with(name));
        let chances = names.iter().flat_map(named);
        let mut text: String =
            chances.take(MOST_SHOWN).map(|chance| format!("{}\n", wrapped(&chance.describe()))).collect();
        if self.operations.is_empty() && self.unexamined.is_none() {
            text += "no operation has compute beside it that neither feeds it nor needs its result\n";
        }
        if let Some(why) = &self.unexamined {
            text += &format!("{}\n", wrapped(&format!("not examined for overlap: {why}")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uniference_formats::operators::{Argument, Place, ScalarType, Tensor};

    fn access(reads: &[u64], writes: &[u64]) -> Access {
        Access { reads: reads.to_vec(), writes: writes.to_vec(), steers: false }
    }

    fn reads_value(of: u64) -> Access {
        Access { reads: vec![of], writes: Vec::new(), steers: true }
    }

    /// A call that sends what is in 1 and receives into 2.
    fn call() -> Access {
        access(&[1], &[2])
    }

    #[test]
    fn what_feeds_a_call_stays_before_it() {
        // 10 -> 11 -> 1 feeds it, 12 -> 13 does not; 14 overwrites what the first of them has read.
        let before = [access(&[10], &[11]), access(&[12], &[13]), access(&[11], &[1]), access(&[13], &[14])];
        assert_eq!(movable_behind(&before, &call()), [false, true, false, true]);
        let overwritten = [access(&[12], &[13]), access(&[15], &[12]), access(&[12], &[1])];
        assert_eq!(movable_behind(&overwritten, &call()), [false, false, false]);
        // It reads memory that the call overwrites, and it overwrites what the call sends.
        assert_eq!(movable_behind(&[access(&[2], &[13])], &call()), [false]);
        assert_eq!(movable_behind(&[access(&[13], &[1])], &call()), [false]);
    }

    #[test]
    fn what_needs_the_result_stays_behind_it() {
        // 2 is the result, 20 and 21 follow from it; 1 may be read as long as it is sent.
        let after = [access(&[1, 5], &[22]), access(&[2], &[20]), access(&[20], &[21]), access(&[22], &[23])];
        assert_eq!(movable_ahead(&after, &call()), [true, false, false, true]);
        assert_eq!(movable_ahead(&[access(&[5], &[1])], &call()), [false]);
        // What reads 20 first must not see it overwritten.
        let overwrites = [access(&[2, 20], &[21]), access(&[22], &[20])];
        assert_eq!(movable_ahead(&overwrites, &call()), [false, false]);
    }

    #[test]
    fn what_the_program_has_read_decides_what_it_does_next() {
        let after = [access(&[2], &[20]), reads_value(20), access(&[5], &[6])];
        assert_eq!(movable_ahead(&after, &call()), [false, false, false]);
        // A value that does not depend on the call may be read before its result is there.
        assert_eq!(movable_ahead(&[reads_value(5), access(&[5], &[6])], &call()), [true, true]);
        let before = [access(&[5], &[6]), reads_value(6), access(&[5], &[7])];
        assert_eq!(movable_behind(&before, &call()), [false, false, true]);
    }

    #[test]
    fn results_in_the_memory_of_an_argument_are_no_other_memory() {
        let tensor = |written| {
            let (dtype, place) = (ScalarType(6), Place::CPU);
            Argument::Tensor(Tensor { dtype, place, written, sizes: vec![4], strides: vec![1] })
        };
        let definition = |name: &str, written| Definition {
            name: name.to_owned(),
            arguments: vec![tensor(written), tensor(false)],
            results: vec![tensor(false)],
        };
        assert_eq!(Access::of(&definition("aten::add.Tensor", false), &[3, 4, 5]), access(&[3, 4], &[5]));
        assert_eq!(Access::of(&definition("aten::add_.Tensor", true), &[3, 4, 3]), access(&[3, 4], &[3]));
        assert_eq!(Access::of(&definition("aten::view_as", false), &[3, 4, 3]), access(&[3, 4], &[]));
        assert!(Access::of(&definition("aten::equal", false), &[3, 4]).steers);
    }

    fn of<'a>(executions: &'a [Access], movable: &[bool], wanted: bool) -> Vec<&'a Access> {
        executions.iter().zip(movable).filter(|(_, movable)| **movable == wanted).map(|(access, _)| access).collect()
    }

    /// Executions on a handful of allocations, each of which has a value: what wrote it, and what that had read.
    fn run(program: &[&Access]) -> Vec<Vec<u64>> {
        let mut memory: Vec<u64> = (0..6).collect();
        let mut seen = Vec::new();
        for (number, access) in program.iter().enumerate() {
            // Each execution is known by what it is, not by when it runs.
            let identity = program[number] as *const Access as u64;
            let read: Vec<u64> = access.reads.iter().map(|on| memory[*on as usize]).collect();
            let value = read.iter().fold(identity, |value, part| value.wrapping_mul(31).wrapping_add(*part));
            access.writes.iter().for_each(|on| memory[*on as usize] = value);
            seen.push((identity, read));
        }
        seen.sort();
        seen.into_iter().map(|(_, read)| read).chain([memory]).collect()
    }

    fn any_access() -> impl Strategy<Value = Access> {
        let some = || proptest::collection::vec(0..6_u64, 0..3);
        (some(), some()).prop_map(|(reads, writes)| Access { reads, writes, steers: false })
    }

    proptest! {
        /// In the new order everything reads the same values, and leaves the same behind. The call reads and writes both where it begins and
        /// where it ends.
        #[test]
        fn moving_changes_no_value(
            before in proptest::collection::vec(any_access(), 0..8),
            call in any_access(),
            after in proptest::collection::vec(any_access(), 0..8),
        ) {
            let (behind, ahead) = (movable_behind(&before, &call), movable_ahead(&after, &call));
            let was: Vec<&Access> = before.iter().chain([&call]).chain(&after).collect();
            let (stays, rest) = (of(&before, &behind, false), of(&after, &ahead, false));
            let beside = [of(&before, &behind, true), of(&after, &ahead, true)].concat();
            let call_first = [&stays[..], &[&call], &beside, &rest].concat();
            let call_last = [&stays[..], &beside, &[&call], &rest].concat();
            prop_assert_eq!(run(&was), run(&call_first));
            prop_assert_eq!(run(&was), run(&call_last));
        }
    }
}
