//! Owns the types of tensors' elements, by torch's names.

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal),* $(,)?) => {
        /// Type of a tensor's elements, with torch's name.
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

            /// The type whose name in torch is `name`.
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1, UInt8 "uint8" 1, Int8 "int8" 1, UInt16 "uint16" 2, Int16 "int16" 2, UInt32 "uint32" 4, Int32 "int32" 4,
    UInt64 "uint64" 8, Int64 "int64" 8, Float16 "float16" 2, BFloat16 "bfloat16" 2, Float32 "float32" 4, Float64 "float64" 8,
    Float8E4M3 "float8_e4m3fn" 1, Float8E5M2 "float8_e5m2" 1, Float8E4M3Fnuz "float8_e4m3fnuz" 1,
    Float8E5M2Fnuz "float8_e5m2fnuz" 1, Complex32 "complex32" 4, Complex64 "complex64" 8, Complex128 "complex128" 16,
}
