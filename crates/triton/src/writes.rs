//! Owns the parameters that a kernel may write to: those from which its store addresses derive.
//!
//! An address derives from a pointer parameter, by offsets and reshaping; the source of an offset, such as loaded
//! integers, does not count.

use crate::program::{End, Function, Instruction, Operation, Region, Slot};
use crate::value::Scalar;
use std::collections::{BTreeMap, BTreeSet};

/// Indices of the kernel's parameters.
type Origins = BTreeSet<usize>;

/// Index in place of a parameter for an address of unknown origin.
const ANY: usize = usize::MAX;

/// Indices of the written parameters. `None`: an address is made of integers or loaded from memory, so that its origin
/// is unknown.
pub(crate) fn written(functions: &BTreeMap<String, Function>, kernel: &str) -> Option<Origins> {
    let mut places: BTreeMap<&str, Places<'_>> =
        functions.iter().map(|(name, function)| (name.as_str(), Places::of(function))).collect();
    let kernel_places = places.get_mut(kernel)?;
    for (number, (slot, _, of)) in functions[kernel].parameters.iter().enumerate() {
        if of.scalar == Scalar::Pointer {
            kernel_places.origins[*slot].insert(number);
        }
    }
    let mut found = Found::default();
    loop {
        (found.is_new, found.is_unknown) = (false, false);
        for name in functions.keys() {
            let mut here = places.remove(name.as_str()).expect("it is there");
            here.region(&here.function.body, None, &mut places, &mut found);
            places.insert(name, here);
        }
        if !found.is_new {
            return (!found.is_unknown).then_some(found.written);
        }
    }
}

#[derive(Default)]
struct Found {
    written: Origins,
    is_unknown: bool,
    is_new: bool,
}

/// For each value of a function, the kernel's parameters from which it may derive.
struct Places<'a> {
    function: &'a Function,
    origins: Vec<Origins>,
    /// Origins of the results.
    results: Vec<Origins>,
}

impl<'a> Places<'a> {
    fn of(function: &'a Function) -> Places<'a> {
        Places { function, origins: vec![Origins::new(); function.slots], results: Vec::new() }
    }

    fn add(&mut self, to: Slot, from: &Origins, found: &mut Found) {
        let before = self.origins[to].len();
        self.origins[to].extend(from);
        found.is_new |= self.origins[to].len() > before;
    }

    fn add_all(&mut self, to: &[Slot], origin: usize, found: &mut Found) {
        to.iter().for_each(|slot| self.add(*slot, &Origins::from([origin]), found));
    }

    /// Adds the origins of `from` to those of `to`.
    fn tie(&mut self, to: &[Slot], from: &[Slot], found: &mut Found) {
        for (to, from) in to.iter().zip(from) {
            let origins = self.origins[*from].clone();
            self.add(*to, &origins, found);
        }
    }

    /// Adds origins in a region; `results` receives the values at its end, or the function's results if `None`.
    fn region(
        &mut self,
        region: &Region,
        results: Option<&[Slot]>,
        others: &mut BTreeMap<&str, Places<'_>>,
        found: &mut Found,
    ) {
        for block in &region.blocks {
            for instruction in &block.instructions {
                self.instruction(instruction, others, found);
            }
            let mut go = |places: &mut Self, block: usize, arguments: &[Slot]| {
                if let Some(block) = region.blocks.get(block) {
                    places.tie(&block.parameters, arguments, found);
                }
            };
            match &block.end {
                End::Branch(target) => go(self, target.block, &target.arguments),
                End::Either(_, one, other) => {
                    go(self, one.block, &one.arguments);
                    go(self, other.block, &other.arguments);
                }
                End::Leave(values) | End::Condition(_, values) => match results {
                    Some(results) => self.tie(results, values, found),
                    None => {
                        self.results.resize(self.results.len().max(values.len()), Origins::new());
                        for (result, value) in self.results.iter_mut().zip(values) {
                            let before = result.len();
                            result.extend(&self.origins[*value]);
                            found.is_new |= result.len() > before;
                        }
                    }
                },
            }
        }
    }

    fn instruction(&mut self, instruction: &Instruction, others: &mut BTreeMap<&str, Places<'_>>, found: &mut Found) {
        let Instruction { operation, operands, results, to, .. } = instruction;
        let first = |region: &Region| region.blocks.first().map_or(Vec::new(), |block| block.parameters.clone());
        match operation {
            Operation::Store(_) | Operation::Modify(..) | Operation::Exchange(_) => {
                let origins = operands.first().map(|pointers| &self.origins[*pointers]);
                // The origins of an address may become known only in a later round.
                found.is_unknown |= origins.is_none_or(|origins| origins.is_empty() || origins.contains(&ANY));
                found.written.extend(origins.into_iter().flatten());
            }
            // A loaded value is either no address or an address of unknown origin.
            Operation::Load(scalar) if *scalar == Scalar::Pointer => self.add_all(results, ANY, found),
            Operation::Load(_) => {}
            Operation::If { then, otherwise } => {
                self.region(then, Some(results), others, found);
                self.region(otherwise, Some(results), others, found);
            }
            Operation::For { body, .. } => {
                let begin = &operands[operands.len().min(3)..];
                let mut carried = first(body);
                // The first parameter is the loop index.
                carried.drain(..carried.len().min(1));
                self.tie(&carried, begin, found);
                self.tie(results, begin, found);
                self.region(body, Some(&carried), others, found);
                self.tie(results, &carried, found);
            }
            Operation::While { before, after } => {
                let (given, passed) = (first(before), first(after));
                self.tie(&given, operands, found);
                self.region(before, Some(&passed), others, found);
                self.tie(results, &passed, found);
                self.region(after, Some(&given), others, found);
            }
            Operation::Call(name) => {
                let given: Vec<Origins> = operands.iter().map(|operand| self.origins[*operand].clone()).collect();
                // A recursive function is not part of a kernel.
                let Some(called) = others.get_mut(name.as_str()) else {
                    found.is_unknown = true;
                    return;
                };
                let parameters: Vec<Slot> = called.function.parameters.iter().map(|(slot, ..)| *slot).collect();
                for (parameter, origins) in parameters.into_iter().zip(&given) {
                    called.add(parameter, origins, found);
                }
                let returned = called.results.clone();
                for (result, origins) in results.iter().zip(&returned) {
                    self.add(*result, origins, found);
                }
            }
            _ if to.as_ref().is_none_or(|to| to.scalar == Scalar::Pointer) => {
                if *instruction.name == *"tt.int_to_ptr" {
                    self.add_all(results, ANY, found);
                }
                for result in results {
                    for operand in operands {
                        let origins = self.origins[*operand].clone();
                        self.add(*result, &origins, found);
                    }
                }
            }
            _ => {}
        }
    }
}
