//! Owns the compute that could overlap an operation of process groups: operators that neither feed the operation nor
//! need its result, judged by the memory that operators read and write.
//!
//! The caller changes the record accordingly and computes the gain. State outside of tensors is not seen: files, random
//! numbers, and values that Python has read before.

use rustc_hash::FxHashSet;
use serde::Serialize;
use std::path::Path;
use uniference_formats::operators::Definition;
use uniference_formats::table::{seconds, wrapped};

/// Maximum number of operations, and of lines per operation, shown on a terminal.
const MOST_SHOWN: usize = 3;

/// Operators whose results the program itself reads, so that its control flow depends on them.
const STEERING: [&str; 8] =
    ["_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique", "_unique2"];

/// Memory that an operator, or an operation of process groups, accesses: numbers of allocations; a view is part of its
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Allocations that are read.
    pub reads: Vec<u64>,
    /// Allocations that are written.
    pub writes: Vec<u64>,
    /// Whether the program's control flow depends on the result.
    pub steers: bool,
}

impl Access {
    /// The accesses of an execution of `definition`; `allocations` has one entry per tensor of the definition.
    pub fn of(definition: &Definition, allocations: &[u64]) -> Access {
        let mut access = Access { steers: STEERING.contains(&definition.base_name()), ..Access::default() };
        let arguments = definition.arguments.iter().flat_map(|argument| argument.tensors()).count();
        let (arguments, results) = allocations.split_at(arguments.min(allocations.len()));
        for (tensor, on) in definition.tensors().zip(arguments) {
            // An allocation that is written may be read as well: `add_`.
            access.reads.push(*on);
            if tensor.written {
                access.writes.push(*on);
            }
        }
        // A result in the memory of an argument is a view of the argument, or the argument itself.
        access.writes.extend(results.iter().filter(|on| !arguments.contains(on)));
        access
    }
}

/// Memory accesses of the operators that are not moved.
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

    /// Whether exchanging `access` with the operators that are not moved could change a value.
    fn conflicts_with(&self, access: &Access) -> bool {
        access.reads.iter().any(|on| self.writes.contains(on))
            || access.writes.iter().any(|on| self.reads.contains(on) || self.writes.contains(on))
    }
}

/// For each of the executions before a call, in order: whether it could run after the call. Neither the call, nor an
/// execution that stays before the call, may need it.
pub fn movable_behind(executions: &[Access], call: &Access) -> Vec<bool> {
    let mut staying = Staying::default();
    staying.add(call);
    let mut movable: Vec<bool> = executions
        .iter()
        .rev()
        .map(|access| {
            // The program may decide to make the call by a value that it has read.
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

/// For each of the executions after a call's result, in order: whether it could run before the result. It may need
/// neither the result, nor an execution that stays behind the result.
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

/// Operations of a run that compute could overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chances {
    /// The operations by line of their calls, in descending order of compute that could overlap them.
    pub operations: Vec<Chance>,
    /// Operations that were not examined, and the reason.
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
    /// Number of calls, on all ranks together, that compute could overlap.
    pub calls: u64,
    /// Duration of this compute in the unchanged run, summed over all ranks, before any slowdown.
    pub seconds: f64,
    /// The compute by line, in descending order of duration.
    pub compute: Vec<MovableLine>,
}

/// Compute of one line that could be moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovableLine {
    /// The line of the compute, as `path:line`; `None` if it is unknown.
    pub line: Option<String>,
    /// Whether the compute runs before the call; otherwise it runs after the call's result.
    pub before: bool,
    /// Number of operators.
    pub operators: u64,
    /// Duration of the operators in seconds.
    pub seconds: f64,
}

impl Chance {
    /// The compute to be moved, in a sentence.
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
            "{} at {at} could overlap the compute of {}{more}, which neither produces the operation's input nor needs its result. Call the operation with async_op=True, or isend and irecv, and run this compute between the call and wait()",
            self.operation,
            lines.join(", ")
        )
    }
}

impl Chances {
    /// The shortest name of the operation's line that no other operation has.
    pub fn name(&self, chance: &Chance) -> String {
        let file = chance.line.rsplit('/').next().unwrap_or(&chance.line);
        let same = self.operations.iter().filter(|other| other.line.rsplit('/').next() == Some(file)).count();
        if same > 1 { chance.line.clone() } else { file.to_owned() }
    }

    /// A description of the operations with these names, and a note if the run has none; lines that end with a newline,
    /// or nothing.
    pub fn render(&self, names: &[&str]) -> String {
        let named =
            |name| self.operations.iter().filter(move |chance: &&Chance| Path::new(&chance.line).ends_with(name));
        let chances = names.iter().flat_map(named);
        let mut text: String =
            chances.take(MOST_SHOWN).map(|chance| format!("{}\n", wrapped(&chance.describe()))).collect();
        if self.operations.is_empty() && self.unexamined.is_none() {
            text += "no operation could overlap compute that neither produces its input nor needs its result\n";
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

    /// A call that sends allocation 1 and receives into allocation 2.
    fn call() -> Access {
        access(&[1], &[2])
    }

    #[test]
    fn what_feeds_a_call_stays_before_it() {
        // 10 -> 11 -> 1 feeds the call, 12 -> 13 -> 14 does not. In the second list 15 -> 12 overwrites memory that the
        // first execution has read.
        let before = [access(&[10], &[11]), access(&[12], &[13]), access(&[11], &[1]), access(&[13], &[14])];
        assert_eq!(movable_behind(&before, &call()), [false, true, false, true]);
        let overwritten = [access(&[12], &[13]), access(&[15], &[12]), access(&[12], &[1])];
        assert_eq!(movable_behind(&overwritten, &call()), [false, false, false]);
        // The execution reads memory that the call overwrites, or overwrites memory that the call sends.
        assert_eq!(movable_behind(&[access(&[2], &[13])], &call()), [false]);
        assert_eq!(movable_behind(&[access(&[13], &[1])], &call()), [false]);
    }

    #[test]
    fn what_needs_the_result_stays_behind_it() {
        // Allocation 2 is the call's result, 20 and 21 are computed from it; allocation 1 may be read while the call
        // sends it.
        let after = [access(&[1, 5], &[22]), access(&[2], &[20]), access(&[20], &[21]), access(&[22], &[23])];
        assert_eq!(movable_ahead(&after, &call()), [true, false, false, true]);
        assert_eq!(movable_ahead(&[access(&[5], &[1])], &call()), [false]);
        // An execution that reads allocation 20 before it is overwritten must stay before the overwriting one.
        let overwrites = [access(&[2, 20], &[21]), access(&[22], &[20])];
        assert_eq!(movable_ahead(&overwrites, &call()), [false, false]);
    }

    #[test]
    fn what_the_program_has_read_decides_what_it_does_next() {
        let after = [access(&[2], &[20]), reads_value(20), access(&[5], &[6])];
        assert_eq!(movable_ahead(&after, &call()), [false, false, false]);
        // A value that does not depend on the call may be read before the call's result.
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

    /// Runs executions on a few allocations. The value of an allocation consists of its writer and of the values that
    /// the writer had read.
    fn run(program: &[&Access]) -> Vec<Vec<u64>> {
        let mut memory: Vec<u64> = (0..6).collect();
        let mut seen = Vec::new();
        for (number, access) in program.iter().enumerate() {
            // The identity of an execution does not depend on its position.
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
        /// In the new order every execution reads the same values and leaves the same values behind. The call reads and
        /// writes both at its start and at its end.
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
