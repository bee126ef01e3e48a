//! Owns the functions of NVIDIA's libraries that have no code of their own: each names itself once and returns its library's error, or zero
//! where it returns a pointer or a size. `build.rs` writes them, from the tables in `symbols/`.

use crate::unimplemented::report;

/// Functions of one library, each with what it returns. A caller reads as much of it as its prototype says.
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
