//! What Uniference reads and writes. Text or bytes in, values or errors out; no file is opened here.
//!
//! In the order in which a run needs them: [`units`] and [`diagnostic`] serve the [`cluster`] file, which resolves to what the engine
//! simulates.

pub mod cluster;
pub mod diagnostic;
pub mod units;
