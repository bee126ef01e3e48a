//! NVIDIA's user-space libraries, as PyTorch, Triton and their like call them, for GPUs that are simulated: one library that has the functions
//! of all of them. It allocates, counts and writes down what is launched; kernels do not compute, and no time passes here.
//!
//! It is preloaded before torch, with an empty library for each of NVIDIA's names (written by `crates/host`) that stands for this one. A rank
//! is given its devices and its link to the driver by [`attach`], after the fork; before, there are no devices, and nothing is initialised.
//! In the order in which a call travels: `exports` makes C functions of ours, one module for each of NVIDIA's libraries has them
//! ([`missing`] those that only say so, which `build.rs` writes from the tables of names in `symbols/`); they use [`device`], [`memory`] and
//! [`streams`], which write [`launches`] to the link.
//!
//! The prototypes, numbers and layouts are those of CUDA 13's documentation, written down anew; NVIDIA's headers are not used.

// The functions are called from C. Their arguments are what NVIDIA's documentation demands of callers: pointers to what they are declared as.
#![allow(unsafe_code)]
// NVIDIA's names, and as many arguments as its functions have.
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
