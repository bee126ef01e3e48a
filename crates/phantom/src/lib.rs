//! Owns stand-ins for NVIDIA's user-space libraries, for simulated GPUs: one library with the functions that PyTorch,
//! Triton and similar programs call. It allocates and counts memory and records launches. Kernels compute nothing, and
//! virtual time does not pass in it.
//!
//! The library is preloaded before torch, with an empty library for each of NVIDIA's names (written by `crates/host`)
//! that refers to it. [`attach`] gives a rank its devices and its link to the driver after the fork; before, no devices
//! exist and nothing is initialised. A call passes `exports`, which defines the C functions, then the module of its
//! NVIDIA library ([`missing`] has functions that only report themselves; `build.rs` generates them from the name
//! tables in `symbols/`). These modules use [`device`], [`memory`] and [`streams`], which write [`launches`] to the
//! link.
//!
//! Prototypes, numbers and layouts were written from CUDA 13's documentation; NVIDIA's headers are not used.

// The functions are called from C. NVIDIA's documentation requires that callers pass valid pointers of the declared
// types.
#![allow(unsafe_code)]
// NVIDIA's names, and as many parameters as its functions have.
#![allow(non_snake_case, clippy::too_many_arguments)]
#![allow(rustdoc::private_intra_doc_links, reason = "nobody uses it from Rust but its own tests")]

mod arrivals;
mod attach;
mod calls;
mod cublas;
mod cublaslt;
mod cudnn;
mod cufft;
mod cupti;
mod cusolver;
mod cusparse;
mod cusparselt;
mod device;
mod driver;
mod errors;
mod exports;
mod kernels;
mod kinds;
mod launches;
mod matrices;
mod memory;
mod missing;
mod nccl;
mod nvml;
mod others;
mod peers;
mod reads;
mod runtime;
mod streams;
mod unimplemented;
