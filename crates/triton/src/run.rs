//! Owns the execution of a kernel: program by program, instruction by instruction, a whole tensor at a time.

use crate::calculate::{
    broadcast, clamped, compared, compared_integers, converted, float, floats, gathered, integers, modified,
    multiplied, narrowed, selected, split, transposed,
};
use crate::float::Number;
use crate::memory::{Memory, Span, length};
use crate::program::{End, Function, Instruction, Kernel, Operation, Region, Slot, Target};
use crate::value::{Data, Scalar, Type, rounded, unsigned, wrapped, zip, zip3};
use crate::work::{Counter, Work};
use crate::writes::written;
use std::sync::Arc;

/// Argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An integer, a truth value or an address.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
}

/// Reason that a kernel stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The caller interrupted the kernel.
    #[error("it was interrupted")]
    Interrupted,
    /// An assertion of the kernel failed.
    #[error("assertion failed: {0}")]
    Asserted(String),
    /// Values do not have the types in the kernel's text.
    #[error("{0} does not fit its operands")]
    Unfit(String),
    /// The number of arguments differs from the number of parameters.
    #[error("it has {parameters} parameters and was given {given}")]
    Arguments {
        /// Number of parameters.
        parameters: usize,
        /// Number of arguments.
        given: usize,
    },
}

type Shared = Arc<Data>;

/// Number of executed blocks between two calls of `goes_on`.
const PATIENCE: u32 = 4096;

impl Kernel {
    /// Runs all programs of the grid. `uncomputed` is memory whose values were not computed; returns written memory
    /// that may depend on it. `goes_on` is called repeatedly, and false interrupts the kernel; `prints` receives the
    /// kernel's printed text after its end.
    ///
    /// # Safety
    /// The addresses in the arguments, and those that the kernel computes from them, are valid for its accesses.
    ///
    /// # Errors
    /// If the kernel was interrupted, or if its text or arguments do not fit together. Some results may have been
    /// written.
    #[allow(unsafe_code)]
    pub unsafe fn run(
        &self,
        arguments: &[Argument],
        grid: [u32; 3],
        uncomputed: &[Span],
        goes_on: &mut dyn FnMut() -> bool,
        prints: &mut dyn FnMut(&str),
    ) -> Result<Vec<Span>, Stopped> {
        let (function, arguments) = self.called(arguments)?;
        let mut running = Running::new(self, Memory::new(uncomputed), grid, goes_on);
        let done = running.all_programs(function, &arguments);
        if !running.printed.is_empty() {
            prints(&running.printed);
        }
        done.map(|()| running.memory.written)
    }

    /// Indices of the parameters that the kernel may write to. `None`: possibly all.
    pub fn written(&self) -> Option<Vec<usize>> {
        Some(written(&self.functions, &self.entry)?.into_iter().collect())
    }

    /// Total work of all programs of the grid, without writes to memory. `None`: it depends on floating-point values,
    /// or the kernel does not seem to end.
    ///
    /// # Safety
    /// The addresses in the arguments, and those that the kernel computes from them, are valid for its reads.
    ///
    /// # Errors
    /// As for [`Kernel::run`].
    #[allow(unsafe_code)]
    pub unsafe fn work(
        &self,
        arguments: &[Argument],
        grid: [u32; 3],
        memory: &[Span],
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Work>, Stopped> {
        let (function, arguments) = self.called(arguments)?;
        let mut running = Running::new(self, Memory::new(&[]), grid, goes_on);
        running.counter = Some(Counter::new(function));
        let [_, y, z] = grid.map(u64::from);
        let programs: u64 = grid.iter().copied().map(u64::from).product();
        let mut looked_at = 0;
        // At any point the examined programs are spread over the whole grid.
        for number in spread(programs) {
            running.at = [number / (y * z), number / z % y, number % z].map(|at| at as u32);
            let counter = running.counter.as_mut().expect("it counts");
            if counter.is_enough(looked_at) {
                break;
            }
            counter.begin(number);
            match running.call(function, arguments.clone()) {
                Err(Stopped::Interrupted) if running.is_in_vain() => return Ok(None),
                done => done?,
            };
            looked_at += 1;
        }
        Ok(running.counter.filter(|_| looked_at > 0).map(|counter| counter.all(looked_at, programs, memory)))
    }

    fn called(&self, arguments: &[Argument]) -> Result<(&Function, Vec<Shared>), Stopped> {
        let function = &self.functions[&self.entry];
        if arguments.len() != function.parameters.len() {
            return Err(Stopped::Arguments { parameters: function.parameters.len(), given: arguments.len() });
        }
        let place = |((_, name, of), argument): (&(Slot, String, Type), &Argument)| {
            placed(*argument, of.scalar).map(Arc::new).ok_or_else(|| unfit(&format!("parameter {name}")))
        };
        let arguments: Result<_, _> = function.parameters.iter().zip(arguments).map(place).collect();
        Ok((function, arguments?))
    }
}

/// All numbers below `count`, each once; every prefix is spread nearly evenly (by steps of the golden ratio).
fn spread(count: u64) -> impl Iterator<Item = u64> {
    let coprime = |step: &u64| {
        let (mut a, mut b) = (*step, count);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    let golden = (count as f64 * 0.618_033_988_749_894_9) as u64;
    let step = (golden.max(1)..).find(coprime).expect("the count's successor is coprime to it");
    (0..count).map(move |number| (u128::from(number) * u128::from(step) % u128::from(count)) as u64)
}

/// An argument as a value of a type; `None`: a fraction for an integer.
fn placed(argument: Argument, scalar: Scalar) -> Option<Data> {
    Some(match (argument, scalar) {
        (Argument::Integer(number), Scalar::Int(bits)) => Data::Int(vec![wrapped(number, bits)]),
        (Argument::Integer(number), Scalar::Pointer) => Data::Int(vec![number]),
        (Argument::Integer(number), Scalar::F64) => Data::Double(vec![number as f64]),
        (Argument::Integer(number), narrow) => Data::Single(vec![rounded(number as f32, narrow)]),
        (Argument::Float(number), Scalar::F64) => Data::Double(vec![number]),
        (Argument::Float(_), Scalar::Int(_) | Scalar::Pointer) => return None,
        (Argument::Float(number), narrow) => Data::Single(vec![rounded(number as f32, narrow)]),
    })
}

struct Running<'a> {
    kernel: &'a Kernel,
    memory: Memory,
    grid: [u32; 3],
    /// Position in the grid of the program that is running.
    at: [u32; 3],
    /// Blocks until the next call of `goes_on`.
    blocks_until_poll: u32,
    goes_on: &'a mut dyn FnMut() -> bool,
    printed: String,
    /// Counter of the work, if only the work is counted and nothing is written.
    counter: Option<Counter>,
}

/// Values of a function by number.
type Frame = Vec<Option<Shared>>;

/// Exit of a region, with its values.
enum Left {
    Behind(Vec<Shared>),
    Condition(bool, Vec<Shared>),
}

impl<'a> Running<'a> {
    fn new(kernel: &'a Kernel, memory: Memory, grid: [u32; 3], goes_on: &'a mut dyn FnMut() -> bool) -> Running<'a> {
        Running {
            kernel,
            memory,
            grid,
            at: [0; 3],
            blocks_until_poll: PATIENCE,
            goes_on,
            printed: String::new(),
            counter: None,
        }
    }

    fn all_programs(&mut self, function: &Function, arguments: &[Shared]) -> Result<(), Stopped> {
        let [x, y, z] = self.grid;
        for x in 0..x {
            for y in 0..y {
                for z in 0..z {
                    self.at = [x, y, z];
                    self.memory.begin();
                    self.call(function, arguments.to_vec())?;
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, function: &Function, arguments: Vec<Shared>) -> Result<Vec<Shared>, Stopped> {
        let mut frame: Frame = vec![None; function.slots];
        for ((slot, ..), value) in function.parameters.iter().zip(arguments) {
            frame[*slot] = Some(value);
        }
        match self.region(&function.body, Vec::new(), &mut frame)? {
            Left::Behind(values) => Ok(values),
            Left::Condition(..) => Err(unfit("a condition")),
        }
    }

    fn region(&mut self, region: &Region, arguments: Vec<Shared>, frame: &mut Frame) -> Result<Left, Stopped> {
        let (mut number, mut arguments) = (0, arguments);
        loop {
            self.blocks_until_poll -= 1;
            if self.blocks_until_poll == 0 {
                self.blocks_until_poll = PATIENCE;
                if !(self.goes_on)() {
                    return Err(Stopped::Interrupted);
                }
            }
            if self.is_in_vain() {
                return Err(Stopped::Interrupted);
            }
            let Some(block) = region.blocks.get(number) else { return Ok(Left::Behind(Vec::new())) };
            if block.parameters.len() != arguments.len() {
                return Err(unfit("a block"));
            }
            for (slot, value) in block.parameters.iter().zip(arguments) {
                frame[*slot] = Some(value);
            }
            for instruction in &block.instructions {
                self.instruction(instruction, frame)?;
            }
            let target: &Target = match &block.end {
                End::Leave(values) => return Ok(Left::Behind(all(values, frame)?)),
                End::Condition(condition, values) => {
                    return Ok(Left::Condition(truth(frame, *condition)?, all(values, frame)?));
                }
                End::Branch(target) => target,
                End::Either(condition, one, other) => {
                    if truth(frame, *condition)? {
                        one
                    } else {
                        other
                    }
                }
            };
            (number, arguments) = (target.block, all(&target.arguments, frame)?);
        }
    }

    fn instruction(&mut self, instruction: &Instruction, frame: &mut Frame) -> Result<(), Stopped> {
        let misfit = || unfit(&instruction.name);
        if self.counts(instruction, frame) {
            return Ok(());
        }
        let results: Vec<Shared> = match &instruction.operation {
            Operation::Nothing => Vec::new(),
            Operation::Assert(words) => match value(frame, instruction.operands[0])?.as_ref() {
                Data::Int(truths) if truths.iter().all(|truth| *truth != 0) => Vec::new(),
                Data::Int(_) => return Err(Stopped::Asserted(words.clone())),
                _ => return Err(misfit()),
            },
            Operation::Print(print) => {
                let values = all(&instruction.operands, frame)?;
                let values: Vec<&Data> = values.iter().map(|value| &**value).collect();
                print.add(&mut self.printed, self.at, &values).ok_or_else(misfit)?;
                Vec::new()
            }
            Operation::If { then, otherwise } => {
                let chosen = if truth(frame, instruction.operands[0])? { then } else { otherwise };
                self.yields(chosen, Vec::new(), frame)?
            }
            Operation::For { body, is_unsigned, bits } => {
                self.for_loop(body, *is_unsigned, *bits, &all(&instruction.operands, frame)?, frame)?
            }
            Operation::While { before, after } => {
                let mut values = all(&instruction.operands, frame)?;
                loop {
                    match self.region(before, values, frame)? {
                        Left::Condition(true, given) => values = self.yields(after, given, frame)?,
                        Left::Condition(false, given) => break given,
                        Left::Behind(_) => return Err(unfit("a loop without a condition")),
                    }
                }
            }
            Operation::Call(name) => {
                let function = &self.kernel.functions[name];
                let arguments = all(&instruction.operands, frame)?;
                self.counter.iter_mut().for_each(|counter| counter.called += 1);
                let results = self.call(function, arguments)?;
                self.counter.iter_mut().for_each(|counter| counter.called -= 1);
                results
            }
            Operation::Reduce { axis, region } => {
                let operands = all(&instruction.operands, frame)?;
                self.reduce(instruction.from.as_ref(), *axis, region, &operands, frame)?
            }
            Operation::Scan { axis, reverse, region } => {
                let operands = all(&instruction.operands, frame)?;
                self.scan(instruction.from.as_ref(), *axis, *reverse, region, &operands, frame)?
            }
            Operation::Split => {
                let (data, from) = (value(frame, instruction.operands[0])?, instruction.from.as_ref());
                let halves = from.and_then(|from| split(&data, from)).ok_or_else(misfit)?;
                halves.map(Arc::new).into()
            }
            _ => {
                let result = self.eval_simple(instruction, frame).ok_or_else(misfit)?;
                if instruction.results.is_empty() { Vec::new() } else { vec![result] }
            }
        };
        if results.len() != instruction.results.len() {
            return Err(misfit());
        }
        for (slot, result) in instruction.results.iter().zip(results) {
            frame[*slot] = Some(result);
        }
        Ok(())
    }

    fn is_in_vain(&self) -> bool {
        self.counter.as_ref().is_some_and(Counter::is_in_vain)
    }

    /// Counts an instruction's work, if only work is counted. Returns whether stand-ins were stored as its results.
    fn counts(&mut self, instruction: &Instruction, frame: &mut Frame) -> bool {
        let Some(counter) = &mut self.counter else { return false };
        let operands: Option<Vec<Shared>> = instruction.operands.iter().map(|slot| frame[*slot].clone()).collect();
        let results = operands.and_then(|operands| {
            let operands: Vec<&Data> = operands.iter().map(Arc::as_ref).collect();
            counter.counts(instruction, &operands).filter(|results| results.len() == instruction.results.len())
        });
        let Some(results) = results else { return false };
        for (slot, result) in instruction.results.iter().zip(results) {
            frame[*slot] = Some(Arc::new(result));
        }
        true
    }

    fn yields(&mut self, region: &Region, arguments: Vec<Shared>, frame: &mut Frame) -> Result<Vec<Shared>, Stopped> {
        match self.region(region, arguments, frame)? {
            Left::Behind(values) => Ok(values),
            Left::Condition(..) => Err(unfit("a condition")),
        }
    }

    fn for_loop(
        &mut self,
        body: &Region,
        is_unsigned: bool,
        bits: u32,
        operands: &[Shared],
        frame: &mut Frame,
    ) -> Result<Vec<Shared>, Stopped> {
        let number = |at: usize| match operands[at].as_ref() {
            Data::Int(numbers) if numbers.len() == 1 => Ok(numbers[0]),
            _ => Err(unfit("a loop")),
        };
        let wide = |number: i64| if is_unsigned { i128::from(unsigned(number, bits)) } else { i128::from(number) };
        let (mut index, end, step) = (wide(number(0)?), wide(number(1)?), wide(number(2)?));
        if step <= 0 {
            return Err(unfit("a loop's step"));
        }
        let mut values = operands[3..].to_vec();
        while index < end {
            let mut arguments = vec![Arc::new(Data::Int(vec![wrapped(index as i64, bits)]))];
            arguments.append(&mut values);
            values = self.yields(body, arguments, frame)?;
            index += step;
        }
        Ok(values)
    }

    /// The result of an instruction that needs only its operands and memory. `None`: the operands do not fit.
    fn eval_simple(&mut self, instruction: &Instruction, frame: &Frame) -> Option<Shared> {
        let slots = &instruction.operands;
        let operand = |at: usize| slots.get(at).and_then(|slot| frame[*slot].as_ref());
        let one = || operand(0).map(Arc::as_ref);
        let two = || Some((operand(0)?.as_ref(), operand(1)?.as_ref()));
        let three = || Some((operand(0)?.as_ref(), operand(1)?.as_ref(), operand(2)?.as_ref()));
        let (from, to) = (instruction.from.as_ref(), instruction.to.as_ref());
        let scalar = || from.map(|of| of.scalar);
        let data = match &instruction.operation {
            Operation::Constant(data) => return Some(data.clone()),
            Operation::Same => return operand(0).cloned(),
            Operation::Program(axis) => Data::Int(vec![i64::from(self.at[*axis])]),
            Operation::Programs(axis) => Data::Int(vec![i64::from(self.grid[*axis])]),
            Operation::Range(from) => Data::Int((0..to?.elements() as i64).map(|at| from + at).collect()),
            Operation::Integers(function) => {
                let (Data::Int(a), Data::Int(b)) = two()? else { return None };
                Data::Int(integers(a, b, *function, scalar()?.bits())?)
            }
            Operation::Absolute => {
                let Data::Int(numbers) = one()? else { return None };
                let bits = scalar()?.bits();
                Data::Int(numbers.iter().map(|number| wrapped(number.wrapping_abs(), bits)).collect())
            }
            Operation::Floats(function) => match two()? {
                (Data::Single(a), Data::Single(b)) => narrowed(floats(a, b, *function)?, to?.scalar),
                (Data::Double(a), Data::Double(b)) => Data::Double(floats(a, b, *function)?),
                _ => return None,
            },
            Operation::Float(function) => match one()? {
                Data::Single(numbers) => narrowed(float(numbers, *function), to?.scalar),
                Data::Double(numbers) => Data::Double(float(numbers, *function)),
                Data::Int(_) => return None,
            },
            Operation::MultiplyAdd => match three()? {
                (Data::Single(a), Data::Single(b), Data::Single(c)) => {
                    narrowed(zip3(a, b, c, |a, b, c| a.multiply_add(b, c))?, to?.scalar)
                }
                (Data::Double(a), Data::Double(b), Data::Double(c)) => {
                    Data::Double(zip3(a, b, c, |a, b, c| a.multiply_add(b, c))?)
                }
                _ => return None,
            },
            Operation::Clamp { keeps_nan } => match three()? {
                (Data::Single(a), Data::Single(b), Data::Single(c)) => {
                    narrowed(clamped(a, b, c, *keeps_nan)?, to?.scalar)
                }
                (Data::Double(a), Data::Double(b), Data::Double(c)) => Data::Double(clamped(a, b, c, *keeps_nan)?),
                _ => return None,
            },
            Operation::CompareIntegers(comparison, has_sign) => {
                let (Data::Int(a), Data::Int(b)) = two()? else { return None };
                Data::Int(compared_integers(a, b, *comparison, *has_sign, scalar()?.bits())?)
            }
            Operation::CompareFloats(comparison, nan) => Data::Int(match (one()?, operand(1).map(Arc::as_ref)) {
                (Data::Single(a), Some(Data::Single(b))) => compared(a, b, *comparison, *nan)?,
                (Data::Double(a), Some(Data::Double(b))) => compared(a, b, *comparison, *nan)?,
                (Data::Single(a), None) => compared(a, a, *comparison, *nan)?,
                (Data::Double(a), None) => compared(a, a, *comparison, *nan)?,
                _ => return None,
            }),
            Operation::Select => match three()? {
                // A mask of one element selects for all elements.
                (Data::Int(mask), ..) if mask.len() == 1 => {
                    return operand(if mask[0] != 0 { 1 } else { 2 }).cloned();
                }
                (Data::Int(mask), Data::Int(a), Data::Int(b)) => Data::Int(selected(mask, a, b)?),
                (Data::Int(mask), Data::Single(a), Data::Single(b)) => Data::Single(selected(mask, a, b)?),
                (Data::Int(mask), Data::Double(a), Data::Double(b)) => Data::Double(selected(mask, a, b)?),
                _ => return None,
            },
            Operation::Cast(cast) => converted(one()?, *cast, scalar()?, to?.scalar)?,
            Operation::Advance(bytes) => {
                let (Data::Int(pointers), Data::Int(offsets)) = two()? else { return None };
                let bytes = *bytes as i64;
                Data::Int(zip(pointers, offsets, |pointer, offset| pointer.wrapping_add(offset.wrapping_mul(bytes)))?)
            }
            Operation::Load(_) | Operation::Store(_) | Operation::Modify(..) | Operation::Exchange(_) => {
                let operands: Vec<&Data> = (0..slots.len()).map_while(|at| operand(at).map(Arc::as_ref)).collect();
                self.accessed(&instruction.operation, &operands)?
            }
            Operation::Broadcast if one()?.len() == 1 => return operand(0).cloned(),
            Operation::Broadcast => broadcast(one()?, from?, to?)?,
            Operation::Transpose(order) => transposed(&one()?.whole(from?)?, &from?.shape, order),
            Operation::Join => {
                let (a, b) = two()?;
                let (a, b) = (a.whole(from?)?, b.whole(from?)?);
                let half = a.len();
                a.followed(&b)?.picked((0..2 * half).map(|at| at / 2 + at % 2 * half))
            }
            Operation::Concatenate => {
                let (a, b) = two()?;
                a.whole(from?)?.followed(&b.whole(from?)?)?
            }
            Operation::Gather(axis) => gathered(two()?, from?, to?, *axis)?,
            Operation::Dot { inner, .. } => multiplied(three()?, from?, inner, to?)?,
            _ => return None,
        };
        Some(Arc::new(data))
    }

    #[allow(unsafe_code)]
    fn accessed(&mut self, operation: &Operation, operands: &[&Data]) -> Option<Data> {
        let integers = |at: usize| match operands.get(at) {
            Some(Data::Int(numbers)) => Some(numbers.as_slice()),
            _ => None,
        };
        let pointers = integers(0)?;
        // SAFETY: the caller of `run` or `work` guarantees that the addresses are valid.
        unsafe {
            match operation {
                Operation::Load(scalar) => self.memory.load(pointers, integers(1), operands.get(2).copied(), *scalar),
                Operation::Store(scalar) => {
                    self.memory.store(pointers, operands.get(1)?, integers(2), *scalar)?;
                    Some(Data::zero(Scalar::Int(1)))
                }
                Operation::Modify(modification, scalar) => {
                    let (given, mask) = (operands.get(1)?, integers(2));
                    let length = length(&[Some(pointers.len()), Some(given.len()), mask.map(<[i64]>::len)])?;
                    let change = |at: usize, before: Data| {
                        let value = given.picked(std::iter::once(if given.len() == 1 { 0 } else { at }));
                        modified(*modification, &before, value, *scalar).map(Some)
                    };
                    self.memory.modify(pointers, mask, *scalar, length, change)
                }
                Operation::Exchange(scalar) => {
                    let (expected, given) = (operands.get(1)?, operands.get(2)?);
                    let length = length(&[Some(pointers.len()), Some(expected.len()), Some(given.len())])?;
                    let at_of = |data: &Data, at| if data.len() == 1 { 0 } else { at };
                    let change = |at: usize, before: Data| {
                        let is_there = before.bits(0, *scalar) == expected.bits(at_of(expected, at), *scalar);
                        Some(is_there.then(|| given.picked(std::iter::once(at_of(given, at)))))
                    };
                    self.memory.modify(pointers, None, *scalar, length, change)
                }
                _ => None,
            }
        }
    }

    /// Combines the two halves along the axis until one element is left.
    fn reduce(
        &mut self,
        of: Option<&Type>,
        axis: usize,
        region: &Region,
        operands: &[Shared],
        frame: &mut Frame,
    ) -> Result<Vec<Shared>, Stopped> {
        let of = of.ok_or_else(|| unfit("a reduction"))?;
        let inner: usize = of.shape[axis + 1..].iter().product();
        let outer: usize = of.shape[..axis].iter().product();
        let (mut values, mut size) = (whole(operands, of)?, of.shape[axis]);
        while size > 1 {
            let half = size / 2;
            let part = |from: usize, size_of: usize| {
                let place = move |at: usize| {
                    let (row, rest) = (at / (size_of * inner), at % (size_of * inner));
                    (row * size + from) * inner + rest
                };
                (0..outer * size_of * inner).map(place)
            };
            let pick = |values: &[Data], from: usize, count: usize| -> Vec<Data> {
                values.iter().map(|value| value.picked(part(from, count))).collect()
            };
            let mut combined = self.combine(region, pick(&values, 0, half), pick(&values, half, half), frame)?;
            if size % 2 == 1 {
                // The last element along the axis has no partner in this step.
                let rest = pick(&values, size - 1, 1);
                let place = |at: usize| {
                    let (row, rest) = (at / ((half + 1) * inner), at % ((half + 1) * inner));
                    if rest < half * inner {
                        row * half * inner + rest
                    } else {
                        outer * half * inner + row * inner + rest - half * inner
                    }
                };
                let both = combined.into_iter().zip(&rest).map(|(own, rest)| {
                    let all = own.followed(rest)?;
                    Some(all.picked((0..outer * (half + 1) * inner).map(place)))
                });
                combined = both.collect::<Option<_>>().ok_or_else(|| unfit("a reduction"))?;
            }
            (values, size) = (combined, half + size % 2);
        }
        Ok(values.into_iter().map(Arc::new).collect())
    }

    /// Combines each element with the one 1, 2, 4 ... places before it.
    fn scan(
        &mut self,
        of: Option<&Type>,
        axis: usize,
        reverse: bool,
        region: &Region,
        operands: &[Shared],
        frame: &mut Frame,
    ) -> Result<Vec<Shared>, Stopped> {
        let of = of.ok_or_else(|| unfit("a scan"))?;
        let (size, elements) = (of.shape[axis], of.elements());
        let inner: usize = of.shape[axis + 1..].iter().product();
        let mut values = whole(operands, of)?;
        let mut distance = 1;
        while distance < size {
            let along = |at: usize| at / inner % size;
            let has_partner = |at: &usize| if reverse { along(*at) + distance < size } else { along(*at) >= distance };
            let partner = |at: usize| if reverse { at + distance * inner } else { at - distance * inner };
            let own = || (0..elements).filter(has_partner);
            let before = values.iter().map(|value| value.picked(own().map(partner))).collect();
            let behind = values.iter().map(|value| value.picked(own())).collect();
            let combined = self.combine(region, before, behind, frame)?;
            // Elements without a partner keep their values.
            let mut places = vec![usize::MAX; elements];
            own().enumerate().for_each(|(number, at)| places[at] = elements + number);
            let place = |at: usize| if places[at] == usize::MAX { at } else { places[at] };
            let both = values
                .into_iter()
                .zip(&combined)
                .map(|(old, new)| Some(old.followed(new)?.picked((0..elements).map(place))));
            values = both.collect::<Option<_>>().ok_or_else(|| unfit("a scan"))?;
            distance *= 2;
        }
        Ok(values.into_iter().map(Arc::new).collect())
    }

    /// Results of the region for each pair of elements.
    fn combine(
        &mut self,
        region: &Region,
        before: Vec<Data>,
        behind: Vec<Data>,
        frame: &mut Frame,
    ) -> Result<Vec<Data>, Stopped> {
        let count = before.first().map_or(0, Data::len);
        let mut both: Vec<Data> = before;
        both.extend(behind);
        let results = both.len() / 2;
        if is_elementwise(region) {
            let arguments = both.into_iter().map(Arc::new).collect();
            let combined = self.yields(region, arguments, frame)?;
            let full = |data: Shared| match data.len() == count {
                true => Some(Arc::unwrap_or_clone(data)),
                false => (data.len() == 1).then(|| data.picked(std::iter::repeat_n(0, count))),
            };
            let combined: Option<Vec<Data>> = combined.into_iter().map(full).collect();
            return combined.filter(|all| all.len() == results).ok_or_else(|| unfit("a combination"));
        }
        let mut all: Vec<Option<Data>> = vec![None; results];
        for at in 0..count {
            let arguments = both.iter().map(|data| Arc::new(data.picked(std::iter::once(at)))).collect();
            let combined = self.yields(region, arguments, frame)?;
            if combined.len() != results {
                return Err(unfit("a combination"));
            }
            for (all, one) in all.iter_mut().zip(combined) {
                let longer = all.take().map_or_else(|| Some(one.as_ref().clone()), |all| all.followed(&one));
                *all = Some(longer.ok_or_else(|| unfit("a combination"))?);
            }
        }
        all.into_iter().collect::<Option<_>>().ok_or_else(|| unfit("a combination"))
    }
}

fn unfit(what: &str) -> Stopped {
    Stopped::Unfit(what.to_owned())
}

fn value(frame: &Frame, slot: Slot) -> Result<Shared, Stopped> {
    frame[slot].clone().ok_or_else(|| unfit("a value that is not there"))
}

fn all(slots: &[Slot], frame: &Frame) -> Result<Vec<Shared>, Stopped> {
    slots.iter().map(|slot| value(frame, *slot)).collect()
}

fn truth(frame: &Frame, slot: Slot) -> Result<bool, Stopped> {
    match value(frame, slot)?.as_ref() {
        Data::Int(numbers) if numbers.len() == 1 => Ok(numbers[0] != 0),
        _ => Err(unfit("a condition")),
    }
}

fn whole(operands: &[Shared], of: &Type) -> Result<Vec<Data>, Stopped> {
    operands.iter().map(|data| data.whole(of).ok_or_else(|| unfit("a tensor"))).collect()
}

/// Whether a region can process many elements at once.
fn is_elementwise(region: &Region) -> bool {
    use Operation::*;
    let is_so = |instruction: &Instruction| {
        matches!(
            instruction.operation,
            Nothing
                | Constant(_)
                | Same
                | Integers(_)
                | Floats(_)
                | Float(_)
                | MultiplyAdd
                | Clamp { .. }
                | Absolute
                | CompareIntegers(..)
                | CompareFloats(..)
                | Select
                | Cast(_)
        )
    };
    matches!(region.blocks.as_slice(), [block] if block.instructions.iter().all(is_so))
}
