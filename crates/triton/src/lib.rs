//! Interpreter of Triton kernels, which needs no GPU.
//!
//! [`Kernel::read`] parses the text of TTIR, the intermediate representation that the first half of Triton's compiler
//! generates for a kernel: MLIR, whose dialects are `tt`, `arith`, `math`, `scf` and `cf`. [`Kernel::run`] executes it
//! for all programs of a grid, one after the other, on memory of this process. The dialects' documentation
//! (triton-lang.org, mlir.llvm.org) defines the operations; a tensor's elements are calculated in their own type.
//! [`Kernel::work`] counts the work of a kernel.
//!
//! The caller decides which memory a kernel accesses, and when the kernel runs. Unsupported TTIR is refused as a whole,
//! before anything is written.

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
