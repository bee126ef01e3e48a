//! Owns the peak rates of a device, and the roofline model that follows from them.

use super::cost::{CostModel, Estimate};
use super::operator::{Elements, Operator};
use super::work::Origin;
use crate::dtype::DType;
use crate::time::SimDuration;

/// Peak rates of a device: a roofline. An operator lasts as long as the slower of arithmetic and memory (Williams,
/// Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM 2009),
/// after its launch:
///
/// ```text
/// launch + max(flops / peak, bytes / bandwidth)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations per second, by the type of the elements.
    pub peaks: Peaks,
    /// Memory bandwidth in bytes per second; above zero.
    pub memory: f64,
    /// Least duration of any operator.
    pub launch: SimDuration,
}

/// Arithmetic units of a device, by the elements that they compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Precision {
    Float64,
    Float32,
    Tf32,
    Float16,
    BFloat16,
    Float8,
    Int8,
}

/// Floating-point operations per second by precision; known rates are above zero, and at least one is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks([Option<f64>; Precision::ALL.len()]);

impl Precision {
    /// All precisions, from the widest to the narrowest.
    pub const ALL: [Precision; 7] = [
        Precision::Float64,
        Precision::Float32,
        Precision::Tf32,
        Precision::Float16,
        Precision::BFloat16,
        Precision::Float8,
        Precision::Int8,
    ];

    /// PyTorch's name of the elements' type; all 8-bit floating-point types are `float8`, and `float32` in tensor cores
    /// is `tf32`.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Float64 => "float64",
            Precision::Float32 => "float32",
            Precision::Tf32 => "tf32",
            Precision::Float16 => "float16",
            Precision::BFloat16 => "bfloat16",
            Precision::Float8 => "float8",
            Precision::Int8 => "int8",
        }
    }

    /// Arithmetic units for elements of a type. Integers wider than a byte, and elements of unknown type, are computed
    /// in the 32-bit units.
    pub const fn of(elements: Option<Elements>) -> Precision {
        let dtype = match elements {
            Some(Elements::Tf32) => return Precision::Tf32,
            Some(Elements::Of(dtype)) => Some(dtype),
            None => None,
        };
        match dtype {
            Some(DType::Float64 | DType::Complex128) => Precision::Float64,
            Some(DType::Float16 | DType::Complex32) => Precision::Float16,
            Some(DType::BFloat16) => Precision::BFloat16,
            Some(DType::Float8E4M3 | DType::Float8E5M2 | DType::Float8E4M3Fnuz | DType::Float8E5M2Fnuz) => {
                Precision::Float8
            }
            Some(DType::Int8 | DType::UInt8 | DType::Bool) => Precision::Int8,
            _ => Precision::Float32,
        }
    }

    /// Other precisions that serve elements of this one, in order of preference: those with as many bits, then wider
    /// ones that can hold its values, then, as the last choice, narrower ones. A device without tensor cores computes
    /// TF32 as `float32`.
    const fn substitutes(self) -> [Precision; 6] {
        use Precision::{BFloat16, Float8, Float16, Float32, Float64, Int8, Tf32};
        match self {
            Float64 => [Float32, Tf32, BFloat16, Float16, Float8, Int8],
            Float32 => [Float64, Tf32, BFloat16, Float16, Float8, Int8],
            Tf32 => [Float32, Float64, BFloat16, Float16, Float8, Int8],
            Float16 => [BFloat16, Tf32, Float32, Float64, Float8, Int8],
            BFloat16 => [Float16, Tf32, Float32, Float64, Float8, Int8],
            Float8 => [BFloat16, Float16, Tf32, Float32, Float64, Int8],
            Int8 => [BFloat16, Float16, Tf32, Float32, Float64, Float8],
        }
    }
}

impl Peaks {
    /// The same rate for all elements.
    pub const fn all(flops: f64) -> Peaks {
        Peaks([Some(flops); Precision::ALL.len()])
    }

    /// Rates by precision; `None` if `known` is empty.
    pub fn table(known: impl IntoIterator<Item = (Precision, f64)>) -> Option<Peaks> {
        let mut peaks = [None; Precision::ALL.len()];
        known.into_iter().for_each(|(precision, flops)| peaks[precision as usize] = Some(flops));
        peaks.iter().any(Option::is_some).then_some(Peaks(peaks))
    }

    /// Rate of a precision, if known.
    pub const fn known(&self, precision: Precision) -> Option<f64> {
        self.0[precision as usize]
    }

    /// Rate for elements of a precision, and the precision that it belongs to: this precision, else one of as many
    /// bits, else the nearest wider one, else any.
    pub fn serving(&self, precision: Precision) -> (f64, Precision) {
        let order = std::iter::once(precision).chain(precision.substitutes());
        order.filter_map(|served| Some((self.known(served)?, served))).next().expect("one rate is known")
    }

    /// The rates with each of them multiplied by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Peaks {
        Peaks(self.0.map(|rate| rate.map(|flops| flops * factor)))
    }
}

impl Rates {
    /// Rates of a device that computes equally fast with all types, and launches operators in no time.
    pub const fn uniform(flops: f64, memory: f64) -> Rates {
        Rates { peaks: Peaks::all(flops), memory, launch: SimDuration::ZERO }
    }

    /// Duration of arithmetic or memory accesses of an operator at full speed, whichever is slower, in seconds, without
    /// its launch.
    pub fn roofline(&self, operator: &Operator) -> f64 {
        let (peak, _) = self.peaks.serving(Precision::of(operator.elements));
        (operator.flops as f64 / peak).max(operator.bytes().0 as f64 / self.memory)
    }
}

impl CostModel for Rates {
    /// `None` for an operator that neither computes nor moves data, and for one whose duration exceeds virtual time.
    fn estimate(&self, operator: &Operator) -> Option<Estimate> {
        let seconds = self.roofline(operator);
        let working = if seconds > 0.0 { SimDuration::from_secs_f64(seconds)? } else { return None };
        let duration = SimDuration::from_ps(self.launch.as_ps().saturating_add(working.as_ps()));
        Some(Estimate { duration, spread: None, origin: Origin::Roofline })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Resource;
    use crate::time::Bytes;

    fn operator(flops: u64, bytes: u64) -> Operator {
        Operator::unspecified(Resource::Accelerator, flops, Bytes(bytes))
    }

    #[test]
    fn an_operator_takes_as_long_as_the_slower_of_arithmetic_and_memory() {
        // 2 TFLOPS, 1 TB/s: the ridge is at 2 operations per byte.
        let rates = Rates::uniform(2e12, 1e12);
        for (flops, bytes, ps) in
            [(2_000_000, 10, 1_000_000), (10, 3_000_000, 3_000_000), (2_000_000, 1_000_000, 1_000_000)]
        {
            let estimate = rates.estimate(&operator(flops, bytes)).unwrap();
            assert_eq!((estimate.duration.as_ps(), estimate.origin), (ps, Origin::Roofline));
        }
        assert_eq!(rates.estimate(&operator(0, 0)), None);
        let launched = Rates { launch: SimDuration::from_us(4), ..rates };
        assert_eq!(launched.estimate(&operator(10, 3_000_000)).unwrap().duration, SimDuration::from_us(7));
    }

    #[test]
    fn a_precision_that_is_not_named_is_served_by_its_like_then_by_a_wider_one() {
        use Precision::{BFloat16, Float8, Float16, Float32, Float64, Int8, Tf32};
        let peaks = Peaks::table([(Float32, 67e12), (BFloat16, 989e12)]).unwrap();
        let serving = |precision| peaks.serving(precision);
        for (precision, flops, served) in [
            (Float32, 67e12, Float32),
            (BFloat16, 989e12, BFloat16),
            (Float16, 989e12, BFloat16),
            (Float8, 989e12, BFloat16),
            (Int8, 989e12, BFloat16),
            (Float64, 67e12, Float32),
            (Tf32, 67e12, Float32),
        ] {
            assert_eq!(serving(precision), (flops, served), "{precision:?}");
        }
        assert_eq!(Peaks::table([(Int8, 20e12)]).unwrap().serving(Float32), (20e12, Int8));
        let ampere = Peaks::table([(Float32, 19.5e12), (Tf32, 156e12)]).unwrap();
        assert_eq!([Tf32, Float32, Float16].map(|precision| ampere.serving(precision).1), [Tf32, Float32, Tf32]);
        assert_eq!(Peaks::table([]), None);
        assert_eq!(Peaks::all(2.0).scaled(2.0).serving(Int8), (4.0, Int8));
    }

    #[test]
    fn elements_are_computed_by_the_units_of_their_type() {
        let rates = Rates {
            peaks: Peaks::table([(Precision::Float32, 1e12), (Precision::Float16, 8e12)]).unwrap(),
            ..Rates::uniform(1.0, 1e12)
        };
        let seconds = |dtype: Option<DType>| {
            rates.roofline(&Operator { elements: dtype.map(Elements::Of), ..operator(8_000_000_000_000, 0) })
        };
        assert_eq!(seconds(Some(DType::Float16)), 1.0);
        assert_eq!(seconds(Some(DType::Int64)), 8.0);
        assert_eq!(seconds(None), 8.0);
    }

    proptest::proptest! {
        #[test]
        fn time_does_not_fall_when_work_grows(flops: u32, bytes: u32, more_flops: u32, more_bytes: u32) {
            let small = operator(flops.into(), bytes.into());
            let large = operator(u64::from(flops) + u64::from(more_flops), u64::from(bytes) + u64::from(more_bytes));
            let rates = Rates::uniform(3e9, 7e8);
            let duration = |operator| rates.estimate(operator).map_or(SimDuration::ZERO, |estimate| estimate.duration);
            proptest::prop_assert!(duration(&small) <= duration(&large));
        }
    }
}
