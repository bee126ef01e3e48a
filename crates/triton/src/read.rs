//! Owns the TTIR parser, from text to a [`Kernel`].
//!
//! Most operations have a common form: operands and words, then a colon and types. Operations with regions or branches
//! have parsers of their own.

use crate::operations::{Written, operation, takes};
use crate::program::{Block, End, Function, Instruction, Kernel, Operation, Region, Slot, Target};
use crate::scan::{Scanner, Unreadable};
use crate::value::{Data, Scalar, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Read<T> = Result<T, Unreadable>;

impl Kernel {
    /// Reads a module with one public function, which is the kernel.
    ///
    /// # Errors
    /// If the text is no TTIR, or has unknown operations, types or attributes.
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

    /// Checks that called functions exist, and that none is recursive.
    fn check(&self, text: &Scanner<'_>) -> Read<()> {
        let mut depths = BTreeMap::new();
        self.depth(&self.entry, &mut depths, text).map(|_| ())
    }

    /// Depth of nested calls; in `depths` 0 marks a function whose depth is being computed.
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
    /// Collects the called functions, with their numbers of arguments.
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

/// Parser of one function.
#[derive(Default)]
struct Reader {
    slots: usize,
    /// Values by name. A name may be reused outside the scope of its first meaning.
    names: BTreeMap<String, Vec<Slot>>,
    /// Names used before their definition: blocks may be in any order.
    awaited: BTreeSet<String>,
    depth: usize,
}

/// Largest depth of nested regions, and of nested calls.
const MOST_DEPTH: usize = 64;

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

    /// All consecutive types, with any separators.
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

    /// A region, including its closing bracket.
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
        // Targets refer to labels until all blocks have been read.
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

    /// Parameters of a block, after its label.
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
                // A region without results may omit its terminator.
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

    /// `%a, %b:2 =` as names and numbers of values.
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

    /// Values followed by their types.
    fn listed(&mut self, text: &mut Scanner<'_>) -> Read<Vec<Slot>> {
        let values = self.operands(text)?;
        if text.eat(":") {
            self.types(text)?;
        }
        Ok(values)
    }

    /// `^bb1(%a, %b : i32, i32)`; the label is added to `targets`.
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
                written.check(name)?;
                if !takes(&operation).contains(&fits) {
                    return Err(text.wrong(&format!("other operands of {name}")));
                }
                (operation, written)
            }
        };
        // Names of results are visible only after the operation.
        let results = results.iter().flat_map(|(name, count)| self.define(name, *count)).collect();
        let (first, last) = (written.types.first(), written.types.last());
        let to = match &operation {
            // The text gives the operands' types, of which the first is the result's.
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
                    // Printed values follow a colon of their own.
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
            // A truth value has no type in the text.
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

/// Largest number of results of an operation.
const MOST_RESULTS: usize = 1024;

/// The text of a number or of a truth value.
fn literal<'a>(text: &mut Scanner<'a>) -> &'a str {
    let rest = text.rest();
    let is_of = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '+' | '-');
    let length = rest.find(|letter| !is_of(letter)).unwrap_or(rest.len());
    text.eat(&rest[..length]);
    &rest[..length]
}
