//! Owns the data of a report page in addition to the report: observations while the run is simulated again, and the
//! gains of changes. The page's layout is defined in `uniference_studies::page`.

use crate::replayed::Replayed;
use crate::results::Listened;
use crate::session::{Ended, SimulationEnd, Watch};
use crate::whatif;
use uniference_host::error::HostError;
use uniference_studies::critical::{Causes, Listed};
use uniference_studies::memory::Memory;
use uniference_studies::page::{Seen, Watched};
use uniference_studies::whatif::WhatIf;

/// Number of events above which a run is not simulated again for each change: there are some dozens of changes.
const MOST_FOR_CHANGES: u64 = 1_000_000;

/// Data from simulating a run again.
pub struct SeenAgain {
    /// The data of the page's charts.
    pub seen: Seen,
    /// Gains from changes to the run, or the reason why the changes were not simulated.
    pub what_if: Result<WhatIf, String>,
}

impl Replayed {
    /// The data of a report page. The run is simulated once, and once per change.
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
                SimulationEnd::Finished => {}
                SimulationEnd::Stopped(stop) => return Ok(Ended::Stopped(stop)),
                SimulationEnd::Unlike(_) => unreachable!("every rank is simulated"),
            }
            let ((watched, causes), heard) = observer;
            drop((recorder, heard));
            // If operators cannot be read, the memory of ranks is unknown.
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
