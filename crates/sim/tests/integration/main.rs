//! The simulation from outside: programs in, virtual times out. Each file tests one behaviour; `support` builds
//! clusters and programs.

mod abort;
mod causes;
mod collectives;
mod crash;
mod determinism;
mod folded;
mod free;
mod halts;
mod nccl;
mod nccl_rows;
mod overlap;
mod peers;
mod point_to_point;
mod protocol;
mod support;
mod tasks;
mod writes;
