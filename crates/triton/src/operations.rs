//! Owns the known operations by name, and the words and attributes that they may have.

use crate::float::{Math1, Math2};
use crate::print::Print;
use crate::program::{Cast, Comparison, IntegerOp, Modification, Nan, Operation, Precision, Signed, Slot};
use crate::scan::Unreadable;
use crate::value::{Data, Scalar, Type};
use std::sync::Arc;

/// Words between operands: the variant of an operation, axes, memory caching and ordering, and the precision of a GPU's
/// multiplications.
const WORDS: [&str; 69] = [
    "x",
    "y",
    "z",
    "eq",
    "ne",
    "slt",
    "sle",
    "sgt",
    "sge",
    "ult",
    "ule",
    "ugt",
    "uge",
    "oeq",
    "one",
    "olt",
    "ole",
    "ogt",
    "oge",
    "ord",
    "ueq",
    "une",
    "uno",
    "true",
    "false",
    "add",
    "fadd",
    "and",
    "or",
    "xor",
    "max",
    "min",
    "umax",
    "umin",
    "exch",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "gpu",
    "sys",
    "overflow",
    "fastmath",
    "allow_reorder",
    "efficient_layout",
    "rounding",
    "rtne",
    "to_nearest_even",
    "propagateNan",
    "none",
    "all",
    "cacheModifier",
    "ca",
    "cg",
    "cs",
    "cv",
    "wb",
    "wt",
    "evictionPolicy",
    "evict_first",
    "evict_last",
    "inputPrecision",
    "tf32",
    "tf32x3",
    "bf16x3",
    "bf16x6",
    "ieee",
    "maxNumImpreciseAcc",
];

/// Keys of attribute dictionaries.
const ATTRIBUTES: [&str; 19] = [
    "axis",
    "start",
    "end",
    "order",
    "reverse",
    "libname",
    "libpath",
    "pure",
    "symbol",
    "cachePolicy",
    "isVolatile",
    "hex",
    "isSigned",
    "allow_reorder",
    "efficient_layout",
    "operandSegmentSizes",
    "prefix",
    "noinline",
    "maxNumImpreciseAcc",
];

/// The parsed parts of an operation, up to its types.
#[derive(Default)]
pub(crate) struct Written<'a> {
    pub(crate) operands: Vec<Slot>,
    pub(crate) words: Vec<&'a str>,
    pub(crate) attributes: Vec<(&'a str, &'a str)>,
    pub(crate) types: Vec<Type>,
    /// The message of an assertion or of a print.
    pub(crate) text: &'a str,
}

impl<'a> Written<'a> {
    pub(crate) fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Checks that no word or attribute might change the result in an unknown way.
    pub(crate) fn check(&self, name: &str) -> Result<(), Unreadable> {
        let is_number = |word: &str| word.bytes().all(|letter| letter.is_ascii_digit());
        let unknown_word = self.words.iter().find(|word| !WORDS.contains(word) && !is_number(word));
        // Attributes with this prefix are hints of Triton's dialect about a value, which do not change the value.
        let is_known = |key: &str| ATTRIBUTES.contains(&key) || key.starts_with("tt.");
        let unknown_key = self.attributes.iter().map(|(key, _)| key).find(|key| !is_known(key));
        match unknown_word.or(unknown_key) {
            Some(unknown) => Err(Unreadable::Unknown(format!("`{unknown}` of {name}"))),
            None => Ok(()),
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The axis of a reduction, gather or scan, if the operand has such an axis.
    pub(crate) fn axis(&self) -> Option<usize> {
        let axis = usize::try_from(self.number("axis")?).ok()?;
        (axis < self.types.first()?.shape.len()).then_some(axis)
    }
}

/// Number of operands of an operation in the common form.
pub(crate) fn takes(operation: &Operation) -> std::ops::RangeInclusive<usize> {
    use Operation::*;
    match operation {
        Constant(_) | Program(_) | Programs(_) | Range(_) => 0..=0,
        Assert(_) | Same | Float(_) | Absolute | Cast(_) | Broadcast | Transpose(_) | Split => 1..=1,
        Integers(_) | Floats(_) | CompareIntegers(..) | Advance(_) | Join | Concatenate | Gather(_) => 2..=2,
        MultiplyAdd | Clamp { .. } | Select | Dot { .. } | Exchange(_) => 3..=3,
        // A comparison of floats that tests for NaN has one operand.
        CompareFloats(..) => 1..=2,
        Load(_) => 1..=3,
        Store(_) | Modify(..) => 2..=3,
        _ => 0..=usize::MAX,
    }
}

/// The operation of a name in the common form. `None`: it is unknown.
pub(crate) fn operation(name: &str, written: &Written<'_>) -> Option<Operation> {
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
        "tt.print" => {
            let is_hex = written.attribute("hex") == Some("true");
            Some(Operation::Print(Print::new(written.text, is_hex, written.attribute("isSigned"), &written.types)))
        }
        "gpu.barrier" | "ttg.barrier" | "tt.debug_barrier" | "llvm.intr.assume" | "ttg.local_barrier" => {
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
            // An address has 64 bits.
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
        "tt.clampf" => Some(Operation::Clamp { keeps_nan: written.words.contains(&"all") }),
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
            let is_as_wide = first?.scalar.bits() == last?.scalar.bits();
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
            let precisions = [
                ("tf32", Precision::Tf32(1)),
                ("tf32x3", Precision::Tf32(3)),
                ("bf16x3", Precision::BFloat16(3)),
                ("bf16x6", Precision::BFloat16(6)),
            ];
            let said = precisions.into_iter().find(|(word, _)| written.words.contains(word));
            let precision = said.map_or(Precision::Exact, |(_, precision)| precision);
            let of_floats = a.scalar.is_float() && c.scalar == Scalar::F32;
            let of_integers =
                matches!((a.scalar, b.scalar, c.scalar), (Scalar::Int(8), Scalar::Int(8), Scalar::Int(32)));
            (fits && (of_floats || of_integers)).then(|| Operation::Dot { inner: b.clone(), precision })
        }
        "tt.extern_elementwise" => libdevice(written.attribute("symbol")?.trim_matches('"')),
        _ => float(name.strip_prefix("math.").and_then(Math1::of_dialect)?),
    }
}

/// The comparison of a name that both dialects share.
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

/// The operation of a libdevice function (CUDA's "libdevice User's Guide"): functions for single precision end with
/// `f`.
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
            "fadd_rn" | "dadd_rn" => Operation::Floats(Math2::Add),
            "fsub_rn" | "dsub_rn" => Operation::Floats(Math2::Subtract),
            "fmul_rn" | "dmul_rn" => Operation::Floats(Math2::Multiply),
            "fdiv_rn" | "ddiv_rn" => Operation::Floats(Math2::Divide),
            "fma" | "fma_rn" => Operation::MultiplyAdd,
            "isnan" => Operation::CompareFloats(Comparison::Ordered, Nan(true)),
            _ => {
                let name = name.strip_prefix("fast_").unwrap_or(name);
                let name = name.strip_suffix("_rn").unwrap_or(name);
                Operation::Float(Math1::of_dialect(name)?)
            }
        })
    };
    // The function `erf` has no single-precision suffix: its name itself ends with `f`.
    both(name).or_else(|| both(name.strip_suffix('f')?))
}
