//! Operators, and their costs on a device that this machine may lack.
//!
//! In the order in which an operator is processed: [`operators`] describes a captured definition by family, sizes,
//! floating-point operations and bytes; [`database`] holds measured operators, and [`import`] adds measurements of
//! third parties; [`model`] estimates the duration on one device, in layers from measured rows to the bare roofline.
//!
//! The engine decides when operators run and which run concurrently. `uniference-formats` decodes captured operators,
//! and holds the table of known devices.

pub mod database;
pub mod import;
pub mod model;
pub mod operators;
