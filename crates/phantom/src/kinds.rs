//! Owns element types by the libraries' numbers: short names, which are part of kernel names, and sizes.

use std::ffi::c_int;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Short name, such as `f32`.
    pub(crate) name: &'static str,
    /// Bits per element.
    pub(crate) bits: u64,
}

pub(crate) const F32: Kind = kind("f32", 32);
pub(crate) const F64: Kind = kind("f64", 64);
pub(crate) const C64: Kind = kind("c64", 64);
pub(crate) const C128: Kind = kind("c128", 128);

const fn kind(name: &'static str, bits: u64) -> Kind {
    Kind { name, bits }
}

impl Kind {
    /// Element type of a `cudaDataType` (`library_types.h`).
    pub(crate) fn of_cuda(number: c_int) -> Option<Kind> {
        Some(match number {
            0 => F32,
            1 => F64,
            2 => kind("f16", 16),
            3 => kind("i8", 8),
            4 => C64,
            5 => C128,
            6 => kind("c32", 32),
            8 => kind("u8", 8),
            10 => kind("i32", 32),
            12 => kind("u32", 32),
            14 => kind("bf16", 16),
            15 => kind("bc32", 32),
            16 => kind("i4", 4),
            20 => kind("i16", 16),
            24 => kind("i64", 64),
            28 => kind("f8e4m3", 8),
            29 => kind("f8e5m2", 8),
            30 => kind("f8e8m0", 8),
            33 => kind("f4e2m1", 4),
            _ => return None,
        })
    }

    /// Element type of a `cudnnDataType_t`.
    pub(crate) fn of_cudnn(number: c_int) -> Option<Kind> {
        Some(match number {
            0 => F32,
            1 => F64,
            2 => kind("f16", 16),
            3 => kind("i8", 8),
            4 => kind("i32", 32),
            6 => kind("u8", 8),
            9 => kind("bf16", 16),
            10 => kind("i64", 64),
            11 => kind("bool", 8),
            12 => kind("f8e4m3", 8),
            13 => kind("f8e5m2", 8),
            15 => kind("f8e8m0", 8),
            16 => kind("f4e2m1", 4),
            _ => return None,
        })
    }

    /// Bytes of `elements` elements.
    pub(crate) fn bytes(self, elements: u64) -> u64 {
        elements.saturating_mul(self.bits).div_ceil(8)
    }
}
