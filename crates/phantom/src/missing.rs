//! Owns the functions of NVIDIA's libraries without code of their own: each reports its name once and returns its
//! library's error, or zero if its result is a pointer or a size. `build.rs` generates them from the tables in
//! `symbols/`.

use crate::unimplemented::report;

/// Functions of one library, each with its result. Callers read as many bytes of the result as its prototype declares.
macro_rules! missing {
    ($library:literal; $($name:ident $result:literal,)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u64 {
                report($library, stringify!($name));
                $result
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/missing.rs"));
