//! Owns what a rank's compute is. What it costs on which device is the business of [`super::cost`].

use super::Resource;
use crate::time::SimDuration;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A piece of compute whose duration is known, before any device has slowed it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// How long it takes on the reference device.
    pub duration: SimDuration,
    /// Where that figure comes from.
    pub origin: Origin,
    /// What of the device carries it out.
    pub resource: Resource,
    /// What it is called in timelines; `None`: compute.
    pub name: Option<Arc<str>>,
}

impl Work {
    /// Work on tensors.
    pub const fn new(duration: SimDuration, origin: Origin) -> Work {
        Work { duration, origin, resource: Resource::Accelerator, name: None }
    }

    /// The same work, carried out by another part of the device.
    #[must_use]
    pub fn on(self, resource: Resource) -> Work {
        Work { resource, ..self }
    }

    /// The same work under a name.
    #[must_use]
    pub fn named(self, name: Arc<str>) -> Work {
        Work { name: Some(name), ..self }
    }

    /// Whether it shares the device with what runs beside it: its duration is that of work that has the device for itself. Copies between
    /// memories do not: they wait for one another in queues of their own. Nor does what leaves nearly all of the device to others.
    pub const fn shares(&self) -> bool {
        self.origin.is_modelled() && matches!(self.resource, Resource::Accelerator)
    }
}

/// Where a duration of compute comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// Run and timed on this machine.
    Measured,
    /// Read from a trace.
    Recorded,
    /// Not known: counted as zero.
    None,
    /// From the rates of a device, by the roofline model.
    Roofline,
    /// Measured before, on such a device, for this operator: a row of a database.
    Database,
    /// From rows of a database for the same kind of operator on such a device, of other sizes.
    Interpolated,
    /// From rows of a database for another device, by the ratio of the rooflines of both.
    Transferred,
}

impl Origin {
    /// All of them, in the order in which reports list them: the surest first.
    pub const ALL: [Origin; 7] = [
        Origin::Measured,
        Origin::Recorded,
        Origin::Database,
        Origin::Interpolated,
        Origin::Transferred,
        Origin::Roofline,
        Origin::None,
    ];

    /// As reports and records write it.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Recorded => "recorded",
            Origin::None => "none",
            Origin::Roofline => "roofline",
            Origin::Database => "database",
            Origin::Interpolated => "interpolated",
            Origin::Transferred => "transferred",
        }
    }

    /// Does the figure come from a model rather than from a clock? A clock has seen the contention for the device, a model has not: only modelled
    /// work may be made to share a device.
    pub const fn is_modelled(self) -> bool {
        match self {
            Origin::Roofline | Origin::Database | Origin::Interpolated | Origin::Transferred => true,
            Origin::Measured | Origin::Recorded | Origin::None => false,
        }
    }
}
