//! What kernels of Triton compute, where there is no GPU.
//!
//! [`Kernel::read`] takes the text of TTIR, the intermediate representation that the first half of Triton's compiler makes of a kernel:
//! MLIR, whose dialects are `tt`, `arith`, `math`, `scf` and `cf`. [`Kernel::run`] carries it out for all programs of a grid, one after the
//! other, on memory of this process. What an operation does is said by the dialects' documentation (triton-lang.org, mlir.llvm.org); a tensor's
//! elements are calculated in their own type. [`Kernel::work`] says how much it is that a kernel does.
//!
//! Whose memory that is, and when a kernel runs, is not known here. What cannot be read is refused as a whole, before anything is written.

mod calculate;
mod float;
mod memory;
mod needs;
mod operations;
mod print;
mod program;
mod read;
mod run;
mod scan;
mod value;
mod work;
mod writes;

pub use memory::Span;
pub use program::Kernel;
pub use run::{Argument, Stopped};
pub use scan::Unreadable;
pub use value::Scalar;
pub use work::Work;
