//! Owns which points of a sweep are tried, which of them are runs of the program and which replays, and what their results look like as a table. How they are
//! carried out is `uniference-session`'s business.

mod best;
mod design;
mod figures;
mod plan;

pub use best::{best, feasible};
pub use design::{holds, points, untried};
pub use figures::{Row, Source, figures, results};
pub use plan::{Estimate, Plan, plan, useless};
