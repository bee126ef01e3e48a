//! Owns Triton kernels, which the program calls as operators (`python/uniference/rank/kernels.py`): with a text, the
//! tensors that they read, those that they write, and integers. A tensor that is read and written is in both lists. The
//! text names the members of the three lists, which semicolons separate.
//!
//! Kernels that torch's compiler generated from operators on elements and rows, `inductor::NAME`, are costed by memory
//! traffic, as these operators are. Their arguments include loop lengths and the numbers of loads and stores inside the
//! loops, which bound the bytes read from a tensor that a load gathers from, such as an embedding table. Arguments of
//! other kernels, `triton::NAME`, include the work of the programs in their grid, as far as it follows from the
//! intermediate representation; the user may also give a formula of their cost in terms of the arguments.

use super::Part;
use super::call::{Call, footprint, sum};
use std::collections::BTreeMap;
use uniference_formats::operators::{Argument, Definition, Tensor};
use uniference_sim::device::{Elements, Family, FlatKind, Operator};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

pub(super) fn describe(call: Call<'_>) -> Part {
    let tensors = |index| call.argument(index).into_iter().flat_map(Argument::tensors);
    let elements = tensors(1).chain(tensors(2)).map(Tensor::elements).max().unwrap_or(0);
    let mut part = Part::of(call, Family::Flat { kind: FlatKind::Elementwise, elements }, 0);
    let given = Given::of(call.definition);
    let moved = |list: usize, accesses: &str| {
        // Each tensor is accessed at least once, which bounds the accesses of any other tensor.
        let most = given.size(accesses).map(|all| (all + 1).saturating_sub(tensors(list).count() as u64).max(1));
        let most = most.zip(given.points()).map(|(accesses, points)| accesses.saturating_mul(points));
        sum(tensors(list).map(|tensor| {
            let accessed = most.map_or(u64::MAX, |elements| elements.saturating_mul(tensor.dtype.bytes()));
            Bytes(footprint(tensor).0.min(accessed))
        }))
    };
    part.operator.read = moved(1, "num_load");
    part.operator.written = moved(2, "num_store");
    part
}

/// Parts of a kernel with known work: memory traffic, which overlaps arithmetic. GEMMs and other operations follow one
/// another, as in attention, where each depends on the other's results. `None`: the work is unknown.
pub(super) fn describe_work(call: Call<'_>) -> Option<Vec<Part>> {
    const ARITHMETIC: [(&str, Elements, u64); 6] = [
        ("flops_8", Elements::Of(DType::Float8E4M3), 1),
        ("flops_16", Elements::Of(DType::BFloat16), 1),
        ("flops_tf32", Elements::Tf32, 1),
        ("flops_32", Elements::Of(DType::Float32), 1),
        // One operation takes as long as a multiplication and an addition.
        ("operations", Elements::Of(DType::Float32), 2),
        ("operations_64", Elements::Of(DType::Float64), 2),
    ];
    let given = Given::of(call.definition);
    let part = |elements: Elements, flops: u64, [read, written]: [u64; 2], is_beside: bool| {
        let part = Part::of(call, Family::Unspecified, flops);
        let (read, written) = (Bytes(read), Bytes(written));
        Part { operator: Operator { elements: Some(elements), read, written, ..part.operator }, is_beside, ..part }
    };
    let [read, written] = [given.size("bytes_read")?, given.size("bytes_written")?];
    // A kernel without memory accesses is launched as well.
    let mut parts = vec![part(Elements::Of(DType::Float32), 0, [read.max(1), written], false)];
    for (name, elements, flops) in ARITHMETIC {
        match given.size(name)?.saturating_mul(flops) {
            0 => {}
            flops => parts.push(part(elements, flops, [0, 0], true)),
        }
    }
    Some(parts)
}

/// Arguments of a kernel by name.
pub(super) struct Given<'a> {
    tensors: BTreeMap<&'a str, &'a Tensor>,
    places: BTreeMap<&'a str, usize>,
    integers: BTreeMap<&'a str, i64>,
}

impl<'a> Given<'a> {
    /// The arguments of a definition; empty if its text names none. For a tensor that is read and written, the written
    /// one counts.
    pub(super) fn of(definition: &'a Definition) -> Given<'a> {
        let text = if let Some(Argument::Text(text)) = definition.arguments.first() { text } else { "" };
        let mut lists = text.split(';').map(|list| list.split(',').filter(|name| !name.is_empty()));
        let (mut tensors, mut places, mut integers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        // Arguments after the text.
        let mut place = 1;
        for argument in definition.arguments.iter().skip(1) {
            let Some(names) = lists.next() else { break };
            match argument {
                Argument::Ints(values) => integers.extend(names.zip(values.iter().copied())),
                other => {
                    for (name, tensor) in names.zip(other.tensors()) {
                        tensors.insert(name, tensor);
                        places.insert(name, place);
                        place += 1;
                    }
                }
            }
        }
        Given { tensors, places, integers }
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&'a Tensor> {
        self.tensors.get(name).copied()
    }

    /// A tensor's position among the arguments, if each tensor of a list has a position.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.integers.get(name).is_some_and(|value| *value != 0)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.integers.get(name).copied()
    }

    pub(super) fn size(&self, name: &str) -> Option<u64> {
        u64::try_from(*self.integers.get(name)?).ok()
    }

    /// Number of executions of the innermost loop body of a kernel that torch's compiler generated.
    fn points(&self) -> Option<u64> {
        let lengths = ["ynumel", "znumel", "r0_numel", "r1_numel"].into_iter().filter_map(|name| self.size(name));
        Some(lengths.fold(self.size("xnumel")?, u64::saturating_mul))
    }
}

/// Variables of formulas: `bytes` of all tensors and `elements` of the largest; for a Triton kernel the elements of
/// each tensor and each integer by the argument's name; for any other operator the elements of its tensors `n0`, `n1`,
/// ..., and its integers `i0`, ....
pub fn values(definition: &Definition) -> BTreeMap<String, f64> {
    let tensors: Vec<&Tensor> = definition.tensors().collect();
    let bytes = tensors.iter().map(|tensor| tensor.bytes()).fold(0, u64::saturating_add);
    let elements = tensors.iter().map(|tensor| tensor.elements()).max().unwrap_or(0);
    let integers = definition.arguments.iter().flat_map(|argument| match argument {
        Argument::Int(value) => std::slice::from_ref(value),
        Argument::Ints(values) => values,
        _ => &[],
    });
    let names = match (definition.arguments.first(), definition.name.split_once("::")) {
        (Some(Argument::Text(names)), Some(("inductor" | "triton", _))) => Some(names),
        _ => None,
    };
    let mut lists = names.into_iter().flat_map(|names| names.split(';'));
    let mut list = || lists.next().unwrap_or_default().split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>();
    let (of_tensors, of_integers) = ([list(), list()].concat(), list());
    let name = |given: &[&str], at: usize, letter: char| {
        given.get(at).map_or(format!("{letter}{at}"), |name| (*name).to_owned())
    };
    let tensors = tensors.iter().enumerate().map(|(at, tensor)| (name(&of_tensors, at, 'n'), tensor.elements() as f64));
    let integers = integers.enumerate().map(|(at, value)| (name(&of_integers, at, 'i'), *value as f64));
    let all = [("bytes".to_owned(), bytes as f64), ("elements".to_owned(), elements as f64)];
    all.into_iter().chain(tensors).chain(integers).collect()
}
