//! Owns simulations without a run folder: their makespan, and its causes.

use crate::session::{Ended, SimulationEnd, Source, Watch};
use uniference_host::error::HostError;
use uniference_sim::cluster::Cluster;
use uniference_sim::observe::{Digest, Statistics};
use uniference_studies::critical::{Causes, Explanation, Listed};
use uniference_studies::hazards::Hazards;

/// Depth of a run's examination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The makespan and the digest.
    End,
    /// Makespan, digest and the causes of events.
    Causes,
    /// As `Causes`, with all spans of the critical path.
    WholePath,
}

/// The findings of a run.
pub(crate) struct Simulated {
    pub(crate) makespan_s: f64,
    pub(crate) digest: String,
    /// The critical path, if causes were kept.
    pub(crate) explanation: Option<Explanation>,
    /// Whether each rank's compute was costed by operators; empty if no operators are known.
    pub(crate) modelled: Vec<bool>,
    /// Points at which the program could have diverged from the record.
    pub(crate) hazards: Hazards,
    /// Warnings about device properties that the program can query and that differ from the recorded run.
    pub(crate) noticed: Vec<String>,
    /// The program's lines, by site.
    pub(crate) lines: Vec<String>,
}

impl Simulated {
    pub(crate) fn of(cluster: &Cluster, source: &mut dyn Source, look: Look) -> Result<Ended<Simulated>, HostError> {
        let causes = (look != Look::End).then(|| Causes::new(cluster));
        let mut observer = ((Statistics::default(), Digest::default()), causes);
        let end = source.drive(cluster, Watch { observer: &mut observer, recorder: &mut () })?;
        match end.ending {
            SimulationEnd::Finished => {}
            SimulationEnd::Stopped(stop) => return Ok(Ended::Stopped(stop)),
            SimulationEnd::Unlike(_) => unreachable!("every rank is simulated"),
        }
        let ((statistics, digest), causes) = observer;
        let listed = if look == Look::WholePath { Listed::All } else { Listed::Nothing };
        let explanation = causes.and_then(|causes| causes.explain(&end.lines, listed));
        let makespan_s = statistics.makespan().as_secs_f64();
        let (digest, modelled) = (digest.to_hex(), end.costed.modelled);
        let (hazards, noticed, lines) = (Hazards::default(), Vec::new(), end.lines);
        Ok(Ended::Finished(Simulated { makespan_s, digest, explanation, modelled, hazards, noticed, lines }))
    }

    /// The critical path.
    ///
    /// # Panics
    /// If causes were not kept.
    pub(crate) fn explained(self) -> Explanation {
        self.explanation.expect("causes were kept, and programs have ended")
    }
}
