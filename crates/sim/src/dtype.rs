//! Owns the types of tensors' elements, by torch's names.

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $number:literal),* $(,)?) => {
        /// Type of an element; torch's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)] // the names say it
        pub enum DType { $($variant),* }

        impl DType {
            /// Name in torch, without `torch.`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Bytes of one element.
            pub const fn size(self) -> u64 {
                match self { $(DType::$variant => $size),* }
            }

            /// torch's number (`c10::ScalarType`).
            pub const fn number(self) -> u8 {
                match self { $(DType::$variant => $number),* }
            }

            /// The type that has this number in torch.
            pub const fn from_number(number: u8) -> Option<DType> {
                match number { $($number => Some(DType::$variant),)* _ => None }
            }

            /// The type that torch calls `name`.
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1 11, UInt8 "uint8" 1 0, Int8 "int8" 1 1, UInt16 "uint16" 2 27, Int16 "int16" 2 2, UInt32 "uint32" 4 28, Int32 "int32" 4 3,
    UInt64 "uint64" 8 29, Int64 "int64" 8 4, Float16 "float16" 2 5, BFloat16 "bfloat16" 2 15, Float32 "float32" 4 6, Float64 "float64" 8 7,
    Float8E4M3 "float8_e4m3fn" 1 24, Float8E5M2 "float8_e5m2" 1 23, Float8E4M3Fnuz "float8_e4m3fnuz" 1 26,
    Float8E5M2Fnuz "float8_e5m2fnuz" 1 25, Complex32 "complex32" 4 8, Complex64 "complex64" 8 9, Complex128 "complex128" 16 10,
}
