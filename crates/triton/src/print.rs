//! Owns the output of `tl.device_print`: a line per element, as Triton's kernels for NVIDIA print it
//! (`PrintOpToLLVM.cpp`, triton 3.9).

use crate::value::{Data, Scalar, Type, unsigned};
use std::fmt::Write;

/// Bytes of a GPU's buffer for printed text (CUDA C++ Programming Guide, `cudaLimitPrintfFifoSize`); this interpreter
/// keeps the first ones.
const MOST_BYTES: usize = 1 << 20;

/// Format of printed values.
#[derive(Debug)]
pub(crate) struct Print {
    prefix: String,
    is_hex: bool,
    /// For each printed value, its type and whether it is a signed integer.
    values: Vec<(Type, bool)>,
}

impl Print {
    /// The format of values of these types, after a prefix. `signs` has a 0 for each unsigned integer: `array<i32: 1,
    /// 0>`.
    pub(crate) fn new(prefix: &str, is_hex: bool, signs: Option<&str>, types: &[Type]) -> Print {
        let signs = signs.and_then(|array| array.split_once(':')).map_or("", |(_, signs)| signs);
        let mut signs = signs.trim_end_matches('>').split(',').map(|sign| sign.trim() != "0");
        let values = types.iter().map(|of| (of.clone(), signs.next().unwrap_or(true))).collect();
        Print { prefix: prefix.to_owned(), is_hex, values }
    }

    /// Adds the lines of one program of the grid, up to the buffer's size. `None`: the values do not have these types.
    pub(crate) fn add(&self, printed: &mut String, program: [u32; 3], values: &[&Data]) -> Option<()> {
        if values.is_empty() {
            self.line(printed, program, "", format_args!(""));
        }
        for (operand, (data, (of, is_signed))) in values.iter().zip(&self.values).enumerate() {
            let which = if values.len() > 1 { format!("(operand {operand}) ") } else { String::new() };
            let whole = data.whole(of)?;
            for at in 0..of.elements() {
                let element = self.element(&whole, at, of.scalar, *is_signed)?;
                self.line(printed, program, &place(at, &of.shape), format_args!("{which}{element}"));
            }
        }
        Some(())
    }

    fn line(&self, printed: &mut String, [x, y, z]: [u32; 3], place: &str, rest: std::fmt::Arguments<'_>) {
        if printed.len() < MOST_BYTES {
            writeln!(printed, "pid ({x}, {y}, {z}) idx ({place}){}{rest}", self.prefix).expect("a text takes all");
        }
    }

    fn element(&self, data: &Data, at: usize, scalar: Scalar, is_signed: bool) -> Option<String> {
        Some(match data {
            Data::Int(_) if scalar == Scalar::Pointer => format!("{:#x}", data.bits(at, scalar)),
            Data::Int(integers) => {
                let (number, bits) = (*integers.get(at)?, scalar.bits());
                match (self.is_hex, is_signed) {
                    (true, _) => format!("0x{:0width$x}", unsigned(number, bits), width = bits.div_ceil(4) as usize),
                    (false, true) => number.to_string(),
                    (false, false) => unsigned(number, bits).to_string(),
                }
            }
            Data::Single(numbers) => float(f64::from(*numbers.get(at)?)),
            Data::Double(numbers) => float(*numbers.get(at)?),
        })
    }
}

/// A number in the format of C's `%f`.
fn float(number: f64) -> String {
    if number.is_nan() { "nan".to_owned() } else { format!("{number:.6}") }
}

/// The indices of an element, each as wide as the largest of its dimension.
fn place(at: usize, shape: &[usize]) -> String {
    let mut rest = at;
    let mut indices: Vec<String> = Vec::new();
    for size in shape.iter().rev() {
        let width = (size - 1).checked_ilog10().map_or(0, |digits| digits as usize + 1);
        indices.push(format!("{:width$}", rest % size));
        rest /= size;
    }
    indices.reverse();
    indices.join(", ")
}
