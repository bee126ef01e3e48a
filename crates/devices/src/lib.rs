//! What operators do, and what they cost on a device that may not be here.
//!
//! In the order in which an operator travels: [`operators`] describes a captured definition by family, sizes, floating-point operations and
//! bytes; [`database`] has those that were measured, [`import`] takes over others' measurements; [`model`] estimates the duration on one device, in layers from measured rows to
//! the bare roofline.
//!
//! When operators run, and what runs beside them, is the engine's business. Captured operators are decoded by `uniference-formats`, which has the
//! table of known devices too.

pub mod database;
pub mod import;
pub mod model;
pub mod operators;
