//! Owns the design of a sweep: the points that are tried, which of them are runs of the program and which replays, and
//! the table of results. `uniference-session` carries them out.

mod best;
mod design;
mod figures;
mod plan;

pub use best::{best, feasible};
pub use design::{holds, points, untried};
pub use figures::{Row, Source, figures, results};
pub use plan::{Estimate, Plan, plan, useless};
