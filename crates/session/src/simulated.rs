//! Owns simulations that leave no results behind: when they ended, and why.

use crate::session::{Ending, Source, Stop, Watch};
use uniference_host::error::HostError;
use uniference_sim::cluster::Cluster;
use uniference_sim::observe::{Digest, Statistics};
use uniference_studies::critical::{Causes, Explanation, Listed};
use uniference_studies::hazards::Hazards;

/// What has come to its end, or why it has not.
#[must_use]
pub enum Ended<T> {
    /// Every rank's program has returned.
    Finished(T),
    /// The programs did not come to their end.
    Stopped(Stop),
}

/// How much of a run is examined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The makespan and the digest.
    End,
    /// The causes of events, too.
    Causes,
    /// The same, with all spans of the critical path.
    WholePath,
}

/// The findings of a run.
pub(crate) struct Simulated {
    pub(crate) makespan_s: f64,
    pub(crate) digest: String,
    /// If causes were looked for.
    pub(crate) explanation: Option<Explanation>,
    /// By rank, whether its compute was costed operator by operator; of what no operators are known, nothing.
    pub(crate) modelled: Vec<bool>,
    /// What its way hung on.
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
            Ending::Finished => {}
            Ending::Stopped(stop) => return Ok(Ended::Stopped(stop)),
            Ending::Unlike(_) => unreachable!("every rank is simulated"),
        }
        let ((statistics, digest), causes) = observer;
        let listed = if look == Look::WholePath { Listed::All } else { Listed::Nothing };
        let explanation = causes.and_then(|causes| causes.explain(&end.lines, listed));
        let makespan_s = statistics.makespan().as_secs_f64();
        let (digest, modelled) = (digest.to_hex(), end.costed.modelled);
        let (hazards, noticed, lines) = (Hazards::default(), Vec::new(), end.lines);
        Ok(Ended::Finished(Simulated { makespan_s, digest, explanation, modelled, hazards, noticed, lines }))
    }

    /// Why it ends when it does.
    ///
    /// # Panics
    /// If causes were not looked for.
    pub(crate) fn explained(self) -> Explanation {
        self.explanation.expect("causes were kept, and programs have ended")
    }
}
