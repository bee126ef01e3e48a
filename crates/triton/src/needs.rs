//! Owns the values that decide a kernel's control flow and accesses: conditions, loop bounds, addresses and masks, and
//! all values that these are computed from.

use crate::program::{Block, End, Function, Instruction, Operation, Region, Slot, Target};

/// A flag per value number: whether the value is needed.
#[derive(Debug)]
pub(crate) struct Needs(Vec<bool>);

impl Needs {
    /// The needed values of a kernel.
    pub(crate) fn of(function: &Function) -> Needs {
        let mut needs = Needs(vec![false; function.slots]);
        while needs.region(&function.body, &[]) {}
        needs
    }

    pub(crate) fn any(&self, slots: &[Slot]) -> bool {
        slots.iter().any(|slot| self.0[*slot])
    }

    /// Marks a value as needed. Returns whether it is new.
    fn mark(&mut self, slot: Slot) -> bool {
        !std::mem::replace(&mut self.0[slot], true)
    }

    fn mark_all<'a>(&mut self, slots: impl IntoIterator<Item = &'a Slot>) -> bool {
        slots.into_iter().fold(false, |new, slot| self.mark(*slot) | new)
    }

    /// Marks the second value of each pair whose first value is needed. Returns whether one is new.
    fn tie(&mut self, pairs: impl IntoIterator<Item = (Slot, Slot)>) -> bool {
        pairs.into_iter().fold(false, |new, (result, origin)| (self.0[result] && self.mark(origin)) | new)
    }

    /// Marks values of a region; `results` are those of its operation. Returns whether one is new.
    fn region(&mut self, region: &Region, results: &[Slot]) -> bool {
        let mut new = false;
        for block in &region.blocks {
            for instruction in block.instructions.iter().rev() {
                new |= self.instruction(instruction);
            }
            new |= match &block.end {
                End::Leave(values) => self.tie(pairs(results, values)),
                End::Condition(condition, values) => self.mark(*condition) | self.tie(pairs(results, values)),
                End::Branch(target) => self.target(region, target),
                End::Either(condition, one, other) => {
                    self.mark(*condition) | self.target(region, one) | self.target(region, other)
                }
            };
        }
        new
    }

    fn target(&mut self, region: &Region, Target { block, arguments }: &Target) -> bool {
        region.blocks.get(*block).is_some_and(|block| self.tie(pairs(&block.parameters, arguments)))
    }

    fn instruction(&mut self, instruction: &Instruction) -> bool {
        let Instruction { operands, results, .. } = instruction;
        let first = |region: &'_ Region| region.blocks.first().map_or(Vec::new(), |block| block.parameters.clone());
        match &instruction.operation {
            // A load needs its pointers and its mask.
            Operation::Load(_) => self.mark_all(operands.iter().take(2)),
            Operation::Store(_) | Operation::Modify(..) => self.mark_all(operands.iter().step_by(2)),
            Operation::Exchange(_) => self.mark_all(operands.first()),
            Operation::If { then, otherwise } => {
                self.mark_all(operands.first()) | self.region(then, results) | self.region(otherwise, results)
            }
            Operation::For { body, .. } => {
                let (bounds, begin) = operands.split_at(operands.len().min(3));
                let carried = first(body).split_off(1.min(first(body).len()));
                // An iteration's values come from before the loop, or from the previous iteration.
                self.mark_all(bounds)
                    | self.tie(pairs(results, begin))
                    | self.tie(pairs(&carried, begin))
                    | self.region(body, results)
                    | self.region(body, &carried)
            }
            Operation::While { before, after } => {
                let (given, passed) = (first(before), first(after));
                self.tie(pairs(&given, operands))
                    | self.region(before, results)
                    | self.region(before, &passed)
                    | self.region(after, &given)
            }
            Operation::Call(_) => self.mark_all(operands),
            Operation::Reduce { region, .. } | Operation::Scan { region, .. } if self.any(results) => {
                let inside = |block: &Block| -> Vec<Slot> {
                    let made = block.instructions.iter().flat_map(|each| each.results.iter().chain(&each.operands));
                    block.parameters.iter().chain(made).copied().collect()
                };
                let inside: Vec<Slot> = region.blocks.iter().flat_map(inside).collect();
                self.mark_all(operands) | self.mark_all(&inside)
            }
            _ => self.any(results) && self.mark_all(operands),
        }
    }
}

fn pairs(results: &[Slot], origins: &[Slot]) -> Vec<(Slot, Slot)> {
    results.iter().copied().zip(origins.iter().copied()).collect()
}
