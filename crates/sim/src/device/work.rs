//! Owns pieces of a rank's compute. Their cost on each device is determined in [`super::cost`].

use super::Resource;
use crate::time::SimDuration;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A piece of compute with a known duration, before any device has slowed it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Duration on the reference device.
    pub duration: SimDuration,
    /// Source of the duration.
    pub origin: Origin,
    /// Resource of the device that carries out the work.
    pub resource: Resource,
    /// Name in timelines; `None`: compute.
    pub name: Option<Arc<str>>,
}

impl Work {
    /// Work on tensors.
    pub const fn new(duration: SimDuration, origin: Origin) -> Work {
        Work { duration, origin, resource: Resource::Accelerator, name: None }
    }

    /// The same work on another resource of the device.
    #[must_use]
    pub fn on(self, resource: Resource) -> Work {
        Work { resource, ..self }
    }

    /// The same work with a name.
    #[must_use]
    pub fn named(self, name: Arc<str>) -> Work {
        Work { name: Some(name), ..self }
    }

    /// Whether the work shares the device with concurrent work: its duration is that of work that has the device for
    /// itself. Copies between memories do not share: they wait for one another in queues of their own. Neither does
    /// work on a single multiprocessor, which leaves nearly all of the device to others.
    pub const fn shares(&self) -> bool {
        self.origin.is_modelled() && matches!(self.resource, Resource::Accelerator)
    }
}

/// Source of a duration of compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// Executed and timed on this machine.
    Measured,
    /// Read from a trace.
    Recorded,
    /// Unknown: counted as zero.
    None,
    /// Derived from the rates of a device, by the roofline model.
    Roofline,
    /// Measured earlier, on a device of this model, for this operator: a row of a database.
    Database,
    /// Derived from database rows for the same kind of operator on such a device, of other sizes.
    Interpolated,
    /// Derived from database rows for another device, by the ratio of the rooflines of both.
    Transferred,
    /// Derived from database rows for the same kind of operator on such a device, of sizes far from any row.
    Extrapolated,
}

impl Origin {
    /// All origins, in the order in which reports list them: the surest first.
    pub const ALL: [Origin; 8] = [
        Origin::Measured,
        Origin::Recorded,
        Origin::Database,
        Origin::Interpolated,
        Origin::Extrapolated,
        Origin::Transferred,
        Origin::Roofline,
        Origin::None,
    ];

    /// Name in reports and records.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Recorded => "recorded",
            Origin::None => "none",
            Origin::Roofline => "roofline",
            Origin::Database => "database",
            Origin::Interpolated => "interpolated",
            Origin::Transferred => "transferred",
            Origin::Extrapolated => "extrapolated",
        }
    }

    /// Whether the duration comes from a model rather than from a clock. A clock has seen the contention for the
    /// device, a model has not: only modelled work may share a device.
    pub const fn is_modelled(self) -> bool {
        match self {
            Origin::Roofline | Origin::Database | Origin::Interpolated | Origin::Transferred | Origin::Extrapolated => {
                true
            }
            Origin::Measured | Origin::Recorded | Origin::None => false,
        }
    }
}
