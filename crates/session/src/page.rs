//! Owns what a page shows of one run beside its report: what is seen while the run is simulated again, and what changes to it would gain. How that looks is
//! `uniference_studies::page`'s business.

use crate::replayed::Replayed;
use crate::results::Listened;
use crate::session::{Ending, Watch};
use crate::simulated::Ended;
use crate::whatif;
use uniference_host::error::HostError;
use uniference_studies::critical::{Causes, Listed};
use uniference_studies::memory::Memory;
use uniference_studies::page::{Seen, Watched};
use uniference_studies::whatif::WhatIf;

/// Runs with more events are not simulated again for each change: there are some dozens of them.
const MOST_FOR_CHANGES: u64 = 1_000_000;

/// A run as it was seen when it was simulated again.
pub struct SeenAgain {
    /// The data of its charts.
    pub seen: Seen,
    /// What changes would gain, or why that was not tried.
    pub what_if: Result<WhatIf, String>,
}

impl Replayed {
    /// What a page shows of it. It is simulated once, and once for each change.
    ///
    /// # Errors
    /// As [`Replayed::explain`].
    pub fn seen(&self) -> Result<Ended<SeenAgain>, HostError> {
        let seen = self.driven(|cluster, source| {
            let memory = Listened::new(Memory::new(cluster.devices.len(), true));
            let mut observer = ((Watched::simulated(cluster), Causes::new(cluster)), memory.clone());
            let mut recorder = memory.clone();
            let end = source.drive(cluster, Watch { observer: &mut observer, recorder: &mut recorder })?;
            match end.ending {
                Ending::Finished => {}
                Ending::Stopped(stop) => return Ok(Ended::Stopped(stop)),
                Ending::Unlike(_) => unreachable!("every rank is simulated"),
            }
            let ((watched, causes), heard) = observer;
            drop((recorder, heard));
            // Of operators that cannot be read it is not known what was held.
            let held = memory.finish().unwrap_or_default();
            Ok(Ended::Finished(watched.finish(causes.explain(&end.lines, Listed::All), &held)))
        })?;
        let seen = match seen {
            Ended::Finished(seen) => seen,
            Ended::Stopped(stop) => return Ok(Ended::Stopped(stop)),
        };
        if seen.events > MOST_FOR_CHANGES {
            let why = format!(
                "No changes were tried, as the run has {} events: `uniference whatif` tries them.",
                seen.events
            );
            return Ok(Ended::Finished(SeenAgain { seen, what_if: Err(why) }));
        }
        Ok(match whatif::table(self)? {
            Ended::Finished(tried) => Ended::Finished(SeenAgain { seen, what_if: Ok(tried) }),
            Ended::Stopped(stop) => Ended::Stopped(stop),
        })
    }
}
