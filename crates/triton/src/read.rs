//! Owns the reading of TTIR: from text to a [`Kernel`].
//!
//! Most operations look alike: their operands and words, then a colon and types. What has regions, or branches, is read by itself.

use crate::float::{Math1, Math2};
use crate::program::{
    Block, Cast, Comparison, End, Function, Instruction, IntegerOp, Kernel, Modification, Nan, Operation, Region,
    Signed, Slot, Target,
};
use crate::scan::{Scanner, Unreadable};
use crate::value::{Data, Scalar, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Read<T> = Result<T, Unreadable>;

impl Kernel {
    /// Reads a module with one public function, which is the kernel.
    ///
    /// # Errors
    /// If the text is no TTIR, or has operations, types or attributes that are not known here.
    pub fn read(text: &str) -> Read<Kernel> {
        let mut text = Scanner::new(text);
        while text.sees("#") {
            text.skip_line();
        }
        text.expect("module")?;
        if text.eat_word("attributes") {
            text.attributes()?;
        }
        text.expect("{")?;
        let (mut entry, mut functions) = (None, BTreeMap::new());
        while text.eat("tt.func") {
            let is_public = text.eat_word("public");
            text.eat_word("private");
            text.expect("@")?;
            let name = text.name().to_owned();
            let function = Reader::default().function(&mut text)?;
            if is_public && entry.replace(name.clone()).is_some() {
                return Err(text.wrong("one public function"));
            }
            functions.insert(name, function);
        }
        text.expect("}")?;
        let kernel = Kernel { entry: entry.ok_or_else(|| text.wrong("a public function"))?, functions };
        kernel.check(&text)?;
        Ok(kernel)
    }

    /// Functions that are called are there, and none calls itself.
    fn check(&self, text: &Scanner<'_>) -> Read<()> {
        let mut depths = BTreeMap::new();
        self.depth(&self.entry, &mut depths, text).map(|_| ())
    }

    /// How many calls there are in each other; in `depths` 0 stands for a function that is being looked at.
    fn depth<'a>(&'a self, name: &'a str, depths: &mut BTreeMap<&'a str, usize>, text: &Scanner<'_>) -> Read<usize> {
        match depths.insert(name, 0) {
            Some(0) => return Err(Unreadable::Unknown(format!("recursion of {name}"))),
            Some(known) => {
                depths.insert(name, known);
                return Ok(known);
            }
            None => {}
        }
        let mut called = Vec::new();
        self.functions[name].body.calls(&mut called);
        let mut depth = 1;
        for (callee, arguments) in called {
            if self.functions.get(callee).is_none_or(|function| function.parameters.len() != arguments) {
                return Err(text.wrong("the function that is called"));
            }
            depth = depth.max(1 + self.depth(callee, depths, text)?);
        }
        if depth > MOST_DEPTH {
            return Err(text.wrong("fewer calls in each other"));
        }
        depths.insert(name, depth);
        Ok(depth)
    }
}

impl Region {
    /// Which functions it calls, and with how many arguments.
    fn calls<'a>(&'a self, found: &mut Vec<(&'a str, usize)>) {
        for instruction in self.blocks.iter().flat_map(|block| &block.instructions) {
            match &instruction.operation {
                Operation::Call(name) => found.push((name, instruction.operands.len())),
                Operation::Reduce { region, .. } | Operation::Scan { region, .. } => region.calls(found),
                Operation::If { then: one, otherwise: other } | Operation::While { before: one, after: other } => {
                    one.calls(found);
                    other.calls(found);
                }
                Operation::For { body, .. } => body.calls(found),
                _ => {}
            }
        }
    }
}

/// Reads one function.
#[derive(Default)]
struct Reader {
    slots: usize,
    /// What names stand for. A name may be used again where its first meaning is not visible any more.
    names: BTreeMap<String, Vec<Slot>>,
    /// Used before they are defined: blocks stand in any order.
    awaited: BTreeSet<String>,
    depth: usize,
}

/// Regions in each other, and calls.
const MOST_DEPTH: usize = 64;

/// What an operation is written with, up to its types.
#[derive(Default)]
struct Written<'a> {
    operands: Vec<Slot>,
    words: Vec<&'a str>,
    attributes: Vec<(&'a str, &'a str)>,
    types: Vec<Type>,
    /// What is said to people.
    text: &'a str,
}

impl<'a> Written<'a> {
    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The shape of what is reduced, gathered or scanned has such an axis.
    fn axis(&self) -> Option<usize> {
        let axis = usize::try_from(self.number("axis")?).ok()?;
        (axis < self.types.first()?.shape.len()).then_some(axis)
    }
}

impl Reader {
    fn function(mut self, text: &mut Scanner<'_>) -> Read<Function> {
        text.expect("(")?;
        let mut parameters = Vec::new();
        while !text.eat(")") {
            let (name, _) = text.value()?;
            text.expect(":")?;
            let of = text.a_type()?;
            text.attributes()?;
            text.skip_location()?;
            parameters.push((self.define(name, 1)[0], name.to_owned(), of));
            text.eat(",");
        }
        if text.eat("->") {
            self.types(text)?;
        }
        if text.eat_word("attributes") {
            text.attributes()?;
        }
        text.expect("{")?;
        let body = self.region(text)?;
        text.skip_location()?;
        match self.awaited.first() {
            Some(name) => Err(text.wrong(&format!("a definition of %{name}"))),
            None => Ok(Function { parameters, body, slots: self.slots }),
        }
    }

    fn define(&mut self, name: &str, count: usize) -> Vec<Slot> {
        if self.awaited.remove(name)
            && let Some(known) = self.names.get(name).filter(|known| known.len() == count)
        {
            return known.clone();
        }
        let slots: Vec<Slot> = (self.slots..self.slots + count).collect();
        self.slots += count;
        self.names.insert(name.to_owned(), slots.clone());
        slots
    }

    fn operand(&mut self, text: &mut Scanner<'_>) -> Read<Slot> {
        let (name, part) = text.value()?;
        if !self.names.contains_key(name) {
            self.define(name, 1);
            self.awaited.insert(name.to_owned());
        }
        self.names[name].get(part).copied().ok_or_else(|| text.wrong("a result that there is"))
    }

    fn operands(&mut self, text: &mut Scanner<'_>) -> Read<Vec<Slot>> {
        let mut found = Vec::new();
        while text.sees("%") {
            found.push(self.operand(text)?);
            text.eat(",");
        }
        Ok(found)
    }

    /// All types that stand here, whatever joins them.
    fn types(&mut self, text: &mut Scanner<'_>) -> Read<Vec<Type>> {
        let mut found = Vec::new();
        loop {
            if let Some(next) = text.maybe_type()? {
                found.push(next);
            } else if !["->", ",", "*", "("].iter().any(|mark| text.eat(mark)) && !text.eat_word("to") && !text.eat(")")
            {
                return Ok(found);
            }
        }
    }

    /// Up to the bracket that closes it, which is eaten.
    fn region(&mut self, text: &mut Scanner<'_>) -> Read<Region> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(text.wrong("fewer regions in each other"));
        }
        let (mut blocks, mut labels, mut targets) = (Vec::new(), BTreeMap::new(), Vec::new());
        while !text.eat("}") {
            let parameters = if text.eat("^") {
                labels.insert(text.name(), blocks.len());
                self.parameters(text)?
            } else {
                Vec::new()
            };
            blocks.push(self.block(text, parameters, &mut targets)?);
        }
        self.depth -= 1;
        // Blocks are known by their labels until all have been read.
        for block in &mut blocks {
            let ends: Vec<&mut Target> = match &mut block.end {
                End::Branch(target) => vec![target],
                End::Either(_, one, other) => vec![one, other],
                _ => Vec::new(),
            };
            for target in ends {
                target.block = *labels.get(targets[target.block]).ok_or_else(|| text.wrong("a block that there is"))?;
            }
        }
        let fits = |target: &Target| blocks[target.block].parameters.len() == target.arguments.len();
        let all_fit = blocks.iter().all(|block: &Block| match &block.end {
            End::Branch(target) => fits(target),
            End::Either(_, one, other) => fits(one) && fits(other),
            _ => true,
        });
        if all_fit { Ok(Region { blocks }) } else { Err(text.wrong("as many arguments as a block has")) }
    }

    /// Of a block, behind its label.
    fn parameters(&mut self, text: &mut Scanner<'_>) -> Read<Vec<Slot>> {
        let mut parameters = Vec::new();
        if text.eat("(") {
            while !text.eat(")") {
                let (name, _) = text.value()?;
                text.expect(":")?;
                text.a_type()?;
                text.skip_location()?;
                parameters.extend(self.define(name, 1));
                text.eat(",");
            }
        }
        text.expect(":")?;
        Ok(parameters)
    }

    fn block<'a>(&mut self, text: &mut Scanner<'a>, parameters: Vec<Slot>, targets: &mut Vec<&'a str>) -> Read<Block> {
        let mut instructions = Vec::new();
        loop {
            if text.sees("}") {
                // The end of a region without results need not be written.
                return Ok(Block { parameters, instructions, end: End::Leave(Vec::new()) });
            }
            let results = self.results(text)?;
            let name = if text.sees("\"") { text.string()? } else { text.name() };
            let end = match name {
                "tt.return" | "scf.yield" | "tt.reduce.return" | "tt.scan.return" => {
                    Some(End::Leave(self.listed(text)?))
                }
                "scf.condition" => {
                    text.expect("(")?;
                    let condition = self.operand(text)?;
                    text.expect(")")?;
                    Some(End::Condition(condition, self.listed(text)?))
                }
                "cf.br" => Some(End::Branch(self.target(text, targets)?)),
                "cf.cond_br" => {
                    let condition = self.operand(text)?;
                    text.expect(",")?;
                    let one = self.target(text, targets)?;
                    text.expect(",")?;
                    Some(End::Either(condition, one, self.target(text, targets)?))
                }
                _ => None,
            };
            if let Some(end) = end {
                text.skip_location()?;
                return Ok(Block { parameters, instructions, end });
            }
            let instruction = self.instruction(name, &results, text)?;
            text.skip_location()?;
            instructions.push(instruction);
        }
    }

    /// `%a, %b:2 =`, by name and number.
    fn results<'a>(&mut self, text: &mut Scanner<'a>) -> Read<Vec<(&'a str, usize)>> {
        let mut names = Vec::new();
        while text.sees("%") {
            let (name, _) = text.value()?;
            let count = if text.eat(":") { text.number()? } else { 1 };
            let count = usize::try_from(count).ok().filter(|count| *count <= MOST_RESULTS);
            names.push((name, count.ok_or_else(|| text.wrong("a number of results"))?));
            if !text.eat(",") {
                text.expect("=")?;
                break;
            }
        }
        Ok(names)
    }

    /// Values with their types behind them.
    fn listed(&mut self, text: &mut Scanner<'_>) -> Read<Vec<Slot>> {
        let values = self.operands(text)?;
        if text.eat(":") {
            self.types(text)?;
        }
        Ok(values)
    }

    /// `^bb1(%a, %b : i32, i32)`, whose label is kept in `targets`.
    fn target<'a>(&mut self, text: &mut Scanner<'a>, targets: &mut Vec<&'a str>) -> Read<Target> {
        text.expect("^")?;
        targets.push(text.name());
        let mut arguments = Vec::new();
        if text.eat("(") {
            arguments = self.operands(text)?;
            text.expect(":")?;
            text.closed('(', ')')?;
        }
        Ok(Target { block: targets.len() - 1, arguments })
    }

    fn instruction(&mut self, name: &str, results: &[(&str, usize)], text: &mut Scanner<'_>) -> Read<Instruction> {
        let (operation, written) = match name {
            "scf.for" => self.for_loop(text)?,
            "scf.while" => self.while_loop(text)?,
            "scf.if" => self.either(text)?,
            "tt.reduce" | "tt.scan" => self.combined(name, text)?,
            "arith.constant" => self.constant(text)?,
            "tt.call" => {
                text.expect("@")?;
                let callee = text.name().to_owned();
                text.expect("(")?;
                let operands = self.operands(text)?;
                text.expect(")")?;
                text.expect(":")?;
                let types = self.types(text)?;
                (Operation::Call(callee), Written { operands, types, ..Written::default() })
            }
            "" => return Err(text.wrong("an operation")),
            _ => {
                let written = self.written(text)?;
                let fits = written.operands.len();
                let operation = operation(name, &written)
                    .ok_or_else(|| Unreadable::Unknown(format!("{name} {}", written.words.join(" "))))?;
                if !takes(&operation).contains(&fits) {
                    return Err(text.wrong(&format!("other operands of {name}")));
                }
                (operation, written)
            }
        };
        // Names of results are visible behind the operation only.
        let results = results.iter().flat_map(|(name, count)| self.define(name, *count)).collect();
        let (first, last) = (written.types.first(), written.types.last());
        let to = match &operation {
            // Their text says what they are given.
            Operation::Advance(_) => first,
            _ => last,
        };
        let (from, to) = (first.cloned(), to.cloned());
        Ok(Instruction { name: name.into(), operation, operands: written.operands, results, from, to })
    }

    /// Operands, words and attributes in any order, then types.
    fn written<'a>(&mut self, text: &mut Scanner<'a>) -> Read<Written<'a>> {
        let mut written = Written::default();
        while !text.sees("loc(") && !text.sees("}") && !text.sees("^") {
            if text.eat(":") {
                if text.sees("%") {
                    // What is printed stands behind a colon of its own.
                    continue;
                }
                written.types = self.types(text)?;
                break;
            }
            if text.sees("%") {
                written.operands.push(self.operand(text)?);
            } else if text.sees("{") {
                written.attributes.extend(text.attributes()?);
            } else if text.sees("\"") {
                written.text = text.string()?;
            } else if text.eat("<") {
                text.closed('<', '>')?;
            } else if ![",", "=", "[", "]"].iter().any(|mark| text.eat(mark)) {
                let word = text.peek();
                if word.is_empty() || word.contains('.') {
                    break;
                }
                written.words.push(text.name());
            }
        }
        Ok(written)
    }

    fn for_loop<'a>(&mut self, text: &mut Scanner<'a>) -> Read<(Operation, Written<'a>)> {
        let is_unsigned = text.eat_word("unsigned");
        let (index, _) = text.value()?;
        text.expect("=")?;
        let mut operands = vec![self.operand(text)?];
        for word in ["to", "step"] {
            if !text.eat_word(word) {
                return Err(text.wrong(word));
            }
            operands.push(self.operand(text)?);
        }
        let mut carried = Vec::new();
        if text.eat_word("iter_args") {
            let (names, values) = self.pairs(text)?;
            carried = names;
            operands.extend(values);
            if text.eat("->") {
                self.types(text)?;
            }
        }
        let of = if text.eat(":") { text.a_type()?.scalar } else { Scalar::Int(64) };
        let Scalar::Int(bits) = of else { return Err(text.wrong("an integer")) };
        text.expect("{")?;
        let mut parameters = self.define(index, 1);
        parameters.extend(carried.iter().flat_map(|name| self.define(name, 1)));
        let body = self.region_of(text, parameters)?;
        text.attributes()?;
        Ok((Operation::For { body, is_unsigned, bits }, Written { operands, ..Written::default() }))
    }

    fn while_loop<'a>(&mut self, text: &mut Scanner<'a>) -> Read<(Operation, Written<'a>)> {
        let (names, operands) = if text.sees("(") { self.pairs(text)? } else { Default::default() };
        text.expect(":")?;
        self.types(text)?;
        text.expect("{")?;
        let parameters = names.iter().flat_map(|name| self.define(name, 1)).collect();
        let before = self.region_of(text, parameters)?;
        text.expect("do")?;
        text.expect("{")?;
        let after = self.region(text)?;
        if text.eat_word("attributes") || text.sees("{") {
            text.attributes()?;
        }
        let ends = before
            .blocks
            .iter()
            .all(|block| matches!(block.end, End::Condition(..) | End::Branch(_) | End::Either(..)));
        if !ends || before.blocks.is_empty() || after.blocks.is_empty() {
            return Err(text.wrong("a condition"));
        }
        Ok((Operation::While { before, after }, Written { operands, ..Written::default() }))
    }

    /// A region whose first block, which has no label, has these parameters.
    fn region_of(&mut self, text: &mut Scanner<'_>, parameters: Vec<Slot>) -> Read<Region> {
        let mut region = self.region(text)?;
        if region.blocks.is_empty() {
            region.blocks.push(Block { parameters: Vec::new(), instructions: Vec::new(), end: End::Leave(Vec::new()) });
        }
        region.blocks[0].parameters = parameters;
        Ok(region)
    }

    /// `(%a = %b, %c = %d)`.
    fn pairs<'a>(&mut self, text: &mut Scanner<'a>) -> Read<(Vec<&'a str>, Vec<Slot>)> {
        text.expect("(")?;
        let (mut names, mut values) = (Vec::new(), Vec::new());
        while !text.eat(")") {
            names.push(text.value()?.0);
            text.expect("=")?;
            values.push(self.operand(text)?);
            text.eat(",");
        }
        Ok((names, values))
    }

    fn either<'a>(&mut self, text: &mut Scanner<'a>) -> Read<(Operation, Written<'a>)> {
        let operands = vec![self.operand(text)?];
        if text.eat("->") {
            self.types(text)?;
        }
        text.expect("{")?;
        let then = self.region_of(text, Vec::new())?;
        text.skip_location()?;
        let mut otherwise = Region { blocks: Vec::new() };
        if text.eat_word("else") {
            text.expect("{")?;
            otherwise = self.region_of(text, Vec::new())?;
        }
        text.attributes()?;
        Ok((Operation::If { then, otherwise }, Written { operands, ..Written::default() }))
    }

    /// `(%a, %b) <{axis = 0 : i32}> ({ region }) : types`.
    fn combined<'a>(&mut self, name: &str, text: &mut Scanner<'a>) -> Read<(Operation, Written<'a>)> {
        text.expect("(")?;
        let operands = self.operands(text)?;
        text.expect(")")?;
        let mut attributes = Vec::new();
        if text.eat("<") {
            attributes = text.attributes()?;
            text.expect(">")?;
        }
        text.expect("(")?;
        text.expect("{")?;
        let region = self.region(text)?;
        text.expect(")")?;
        attributes.extend(text.attributes()?);
        text.expect(":")?;
        let types = self.types(text)?;
        let written = Written { operands, attributes, types, ..Written::default() };
        let axis = written.axis().ok_or_else(|| text.wrong("an axis"))?;
        let fits = region.blocks.first().is_some_and(|block| block.parameters.len() == 2 * written.operands.len());
        if !fits {
            return Err(text.wrong("two values of each operand"));
        }
        let reverse = written.attribute("reverse").is_some_and(|value| value.starts_with("true"));
        let operation = match name {
            "tt.reduce" => Operation::Reduce { axis, region },
            _ => Operation::Scan { axis, reverse, region },
        };
        Ok((operation, written))
    }

    fn constant<'a>(&mut self, text: &mut Scanner<'a>) -> Read<(Operation, Written<'a>)> {
        text.attributes()?;
        let (mut elements, mut bytes) = (Vec::new(), None);
        if text.eat("dense<") {
            let inner = text.closed('<', '>')?.trim();
            match inner.strip_prefix("\"0x").and_then(|rest| rest.strip_suffix('"')) {
                Some(digits) => bytes = Some(digits),
                None => elements.extend(inner.split([',', '[', ']']).map(str::trim).filter(|word| !word.is_empty())),
            }
        } else {
            elements.push(literal(text));
        }
        let of = match text.eat(":") {
            true => text.a_type()?,
            // Of a truth value.
            false => Type { scalar: Scalar::Int(1), pointee: None, shape: [].into() },
        };
        let data = match bytes {
            Some(digits) => Data::from_hex(digits, of.scalar),
            None => Data::from_words(&elements, of.scalar),
        };
        let data = data.filter(|data| data.len() == 1 || data.len() == of.elements());
        let data = data.ok_or_else(|| text.wrong("a constant of this type"))?;
        Ok((Operation::Constant(Arc::new(data)), Written { types: vec![of], ..Written::default() }))
    }
}

/// Of an operation.
const MOST_RESULTS: usize = 1024;

/// A number or a truth value, as it stands there.
fn literal<'a>(text: &mut Scanner<'a>) -> &'a str {
    let rest = text.rest();
    let is_of = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '+' | '-');
    let length = rest.find(|letter| !is_of(letter)).unwrap_or(rest.len());
    text.eat(&rest[..length]);
    &rest[..length]
}

/// How many operands there may be of an operation that is written like most.
fn takes(operation: &Operation) -> std::ops::RangeInclusive<usize> {
    use Operation::*;
    match operation {
        Constant(_) | Program(_) | Programs(_) | Range(_) => 0..=0,
        Assert(_) | Same | Float(_) | Absolute | Cast(_) | Broadcast | Transpose(_) | Split => 1..=1,
        Integers(_) | Floats(_) | CompareIntegers(..) | CompareFloats(..) | Advance(_) | Join | Concatenate
        | Gather(_) => 2..=2,
        MultiplyAdd | Clamp | Select | Dot { .. } | Exchange(_) => 3..=3,
        Load(_) => 1..=3,
        Store(_) | Modify(..) => 2..=3,
        _ => 0..=usize::MAX,
    }
}

/// What an operation does that is written like most. `None`: it is not known.
fn operation(name: &str, written: &Written<'_>) -> Option<Operation> {
    use IntegerOp::*;
    let (first, last) = (written.types.first(), written.types.last());
    let integers = |operation| Some(Operation::Integers(operation));
    let floats = |operation| Some(Operation::Floats(operation));
    let float = |operation| Some(Operation::Float(operation));
    let cast = |cast| Some(Operation::Cast(cast));
    let axis = || ["x", "y", "z"].iter().position(|axis| written.words.first() == Some(axis));
    let pointee = || first.and_then(|first| first.pointee);
    match name {
        "tt.assert" => Some(Operation::Assert(written.text.to_owned())),
        "tt.print" | "gpu.barrier" | "ttg.barrier" | "tt.debug_barrier" | "llvm.intr.assume" | "ttg.local_barrier" => {
            Some(Operation::Nothing)
        }
        "ub.poison" => Some(Operation::Constant(Arc::new(Data::zero(last?.scalar)))),
        "tt.get_program_id" => axis().map(Operation::Program),
        "tt.get_num_programs" => axis().map(Operation::Programs),
        "tt.make_range" => {
            let fits = written.number("end")? - written.number("start")? == last?.elements() as i64;
            fits.then_some(Operation::Range(written.number("start")?))
        }
        "tt.splat" | "tt.expand_dims" | "tt.reshape" | "tt.int_to_ptr" | "tt.ptr_to_int" | "tt.unsplat" => {
            let is_splat = name == "tt.splat" || first?.elements() == last?.elements();
            // An address is 64 bits wide.
            let is_as_wide = first?.scalar.bits() == last?.scalar.bits();
            (is_splat && is_as_wide).then_some(Operation::Same)
        }
        "arith.addi" => integers(Add),
        "arith.subi" => integers(Subtract),
        "arith.muli" => integers(Multiply),
        "arith.divsi" => integers(Divide),
        "arith.divui" => integers(DivideUnsigned),
        "arith.ceildivsi" => integers(DivideUp),
        "arith.ceildivui" => integers(DivideUpUnsigned),
        "arith.floordivsi" => integers(DivideDown),
        "arith.remsi" => integers(Remainder),
        "arith.remui" => integers(RemainderUnsigned),
        "arith.andi" => integers(And),
        "arith.ori" => integers(Or),
        "arith.xori" => integers(Xor),
        "arith.shli" => integers(ShiftLeft),
        "arith.shrsi" => integers(ShiftRight),
        "arith.shrui" => integers(ShiftRightUnsigned),
        "arith.minsi" => integers(Least),
        "arith.minui" => integers(LeastUnsigned),
        "arith.maxsi" => integers(Most),
        "arith.maxui" => integers(MostUnsigned),
        "tt.mulhiui" => integers(MultiplyHigh),
        "arith.addf" => floats(Math2::Add),
        "arith.subf" => floats(Math2::Subtract),
        "arith.mulf" => floats(Math2::Multiply),
        "arith.divf" | "tt.precise_divf" => floats(Math2::Divide),
        "arith.remf" => floats(Math2::Remainder),
        "arith.minnumf" => floats(Math2::Least),
        "arith.maxnumf" => floats(Math2::Most),
        "arith.minimumf" => floats(Math2::LeastOrNan),
        "arith.maximumf" => floats(Math2::MostOrNan),
        "math.powf" => floats(Math2::Power),
        "math.atan2" => floats(Math2::Arctangent),
        "math.copysign" => floats(Math2::CopySign),
        "arith.negf" => float(Math1::Negate),
        "math.absi" => Some(Operation::Absolute),
        "tt.precise_sqrt" => float(Math1::SquareRoot),
        "math.fma" => Some(Operation::MultiplyAdd),
        "tt.clampf" => Some(Operation::Clamp),
        "arith.cmpi" => {
            let (word, signed) = match *written.words.first()? {
                "eq" => ("eq", true),
                "ne" => ("ne", true),
                other => (other.get(1..)?, other.starts_with('s')),
            };
            Some(Operation::CompareIntegers(comparison(word)?, Signed(signed)))
        }
        "arith.cmpf" => {
            let word = *written.words.iter().find(|word| **word != "fastmath")?;
            match word {
                "true" | "false" => Some(Operation::CompareFloats(Comparison::True, Nan(word == "true"))),
                "ord" => Some(Operation::CompareFloats(Comparison::Ordered, Nan(false))),
                "uno" => Some(Operation::CompareFloats(Comparison::Ordered, Nan(true))),
                _ => {
                    let nan = Nan(word.starts_with('u'));
                    Some(Operation::CompareFloats(comparison(word.get(1..)?)?, nan))
                }
            }
        }
        "arith.select" => Some(Operation::Select),
        "arith.extsi" | "arith.index_cast" => match first?.scalar.bits() < last?.scalar.bits() {
            true => cast(Cast::Extend),
            false => cast(Cast::Truncate),
        },
        "arith.extui" => cast(Cast::ExtendUnsigned),
        "arith.trunci" => cast(Cast::Truncate),
        "arith.extf" | "arith.truncf" => cast(Cast::Float),
        "tt.fp_to_fp" => written
            .words
            .iter()
            .all(|word| matches!(*word, "rounding" | "rtne"))
            .then_some(Operation::Cast(Cast::Float)),
        "arith.sitofp" => cast(Cast::FromSigned),
        "arith.uitofp" => cast(Cast::FromUnsigned),
        "arith.fptosi" => cast(Cast::ToSigned),
        "arith.fptoui" => cast(Cast::ToUnsigned),
        "arith.bitcast" | "tt.bitcast" => {
            let is_as_wide = first?.scalar.bits() == last?.scalar.bits() || first?.scalar == Scalar::Pointer;
            (is_as_wide && first?.shape == last?.shape).then_some(Operation::Cast(Cast::Bits))
        }
        "tt.addptr" => Some(Operation::Advance(pointee()?.bytes())),
        "tt.load" => Some(Operation::Load(pointee()?)),
        "tt.store" => Some(Operation::Store(pointee()?)),
        "tt.atomic_rmw" => {
            let modification = match *written.words.first()? {
                "add" => Modification::Integers(Add),
                "fadd" => Modification::AddFloats,
                "and" => Modification::Integers(And),
                "or" => Modification::Integers(Or),
                "xor" => Modification::Integers(Xor),
                "max" => Modification::Integers(Most),
                "min" => Modification::Integers(Least),
                "umax" => Modification::Integers(MostUnsigned),
                "umin" => Modification::Integers(LeastUnsigned),
                "exch" => Modification::Replace,
                _ => return None,
            };
            Some(Operation::Modify(modification, pointee()?))
        }
        "tt.atomic_cas" => Some(Operation::Exchange(pointee()?)),
        "tt.broadcast" => {
            let (from, to) = (&first?.shape, &last?.shape);
            let fits = from.len() == to.len() && from.iter().zip(to.iter()).all(|(from, to)| from == to || *from == 1);
            fits.then_some(Operation::Broadcast)
        }
        "tt.trans" => {
            let order = written.attribute("order")?.split_once(':')?.1.trim_end_matches('>');
            let order: Vec<usize> = order.split(',').map(|axis| axis.trim().parse().ok()).collect::<Option<_>>()?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            let fits = sorted.into_iter().eq(0..first?.shape.len());
            fits.then_some(Operation::Transpose(order))
        }
        "tt.join" => Some(Operation::Join),
        "tt.split" => (first?.shape.last() == Some(&2)).then_some(Operation::Split),
        "tt.cat" => Some(Operation::Concatenate),
        "tt.gather" => written.axis().map(Operation::Gather),
        "tt.dot" => {
            let [a, b, c] = written.types.as_slice() else { return None };
            let is_product = a.shape.len() == 2 && b.shape.len() == 2 && c.shape.len() == 2;
            let fits = is_product && a.shape[1] == b.shape[0] && [a.shape[0], b.shape[1]] == c.shape[..];
            (fits && a.scalar.is_float() && c.scalar == Scalar::F32).then(|| Operation::Dot { inner: b.clone() })
        }
        "tt.extern_elementwise" => libdevice(written.attribute("symbol")?.trim_matches('"')),
        _ => float(name.strip_prefix("math.").and_then(Math1::of_dialect)?),
    }
}

/// By the name that both dialects share.
fn comparison(word: &str) -> Option<Comparison> {
    Some(match word {
        "eq" => Comparison::Equal,
        "ne" => Comparison::Unequal,
        "lt" => Comparison::Less,
        "le" => Comparison::AtMost,
        "gt" => Comparison::Greater,
        "ge" => Comparison::AtLeast,
        _ => return None,
    })
}

/// What a function of libdevice does (CUDA's "libdevice User's Guide"): those for single precision end with `f`.
fn libdevice(symbol: &str) -> Option<Operation> {
    let name = symbol.strip_prefix("__nv_")?;
    let both = |name: &str| {
        Some(match name {
            "rint" | "nearbyint" => Operation::Float(Math1::RoundEven),
            "fabs" => Operation::Float(Math1::Absolute),
            "pow" | "fast_pow" => Operation::Floats(Math2::Power),
            "fmod" => Operation::Floats(Math2::Remainder),
            "fmin" => Operation::Floats(Math2::Least),
            "fmax" => Operation::Floats(Math2::Most),
            "atan2" => Operation::Floats(Math2::Arctangent),
            "copysign" => Operation::Floats(Math2::CopySign),
            "fma" | "fma_rn" => Operation::MultiplyAdd,
            "isnan" => Operation::CompareFloats(Comparison::Ordered, Nan(true)),
            _ => {
                let name = name.strip_prefix("fast_").unwrap_or(name);
                let name = name.strip_suffix("_rn").unwrap_or(name);
                Operation::Float(Math1::of_dialect(name)?)
            }
        })
    };
    // `erf` itself ends with this letter.
    both(name).or_else(|| both(name.strip_suffix('f')?))
}
