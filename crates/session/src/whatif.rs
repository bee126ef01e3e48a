//! Owns the what-if analysis of a run: its record is simulated again, exactly, with changes. The program does not run.

use crate::cluster::Overrides;
use crate::replayed::Replayed;
use crate::session::Ended;
use crate::simulated::{Look, Simulated};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use uniference_formats::lines::{LineName, LineScale};
use uniference_host::error::HostError;
use uniference_studies::whatif::{Change, Outcome, Refused, WhatIf, candidates};

/// Changes to a run.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Changes of the cluster.
    pub cluster: Overrides,
    /// Scaled compute of source lines.
    pub lines: Vec<LineScale>,
    /// Lines of operations that compute overlaps.
    pub overlap: Vec<LineName>,
}

impl Changes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.options().is_empty()
    }

    /// The run with these changes.
    ///
    /// # Errors
    /// If the run does not have the program's lines, or, if compute is to be moved, its operators.
    pub fn of(&self, run: &Replayed) -> Result<Replayed, HostError> {
        run.changed(&self.cluster).with_lines(&self.lines)?.with_overlap(&self.overlap)
    }

    /// The command-line options of the changes.
    fn options(&self) -> Vec<String> {
        let Overrides { backend, algorithms, set, free } = &self.cluster;
        let overlap = self.overlap.iter().map(ToString::to_string).collect();
        let change = Change { set: set.clone(), algorithms: algorithms.clone(), free: free.clone(), overlap };
        let backend = backend.iter().flat_map(|name| ["--backend".to_owned(), name.clone()]);
        let line = |LineScale { line, factor }: &LineScale| ["--line".to_owned(), format!("{line}={factor}")];
        backend.chain(change.options()).chain(self.lines.iter().flat_map(line)).collect()
    }
}

/// A run with and without changes, and the parts of both critical paths.
///
/// # Errors
/// If the run cannot be read, or the changes do not fit it.
pub fn compare(run: &Replayed, changes: &Changes) -> Result<Ended<WhatIf>, HostError> {
    let changed = changes.of(run)?;
    let before = match run.simulate(Look::Causes)? {
        Ended::Finished(before) => before,
        Ended::Stopped(stop) => return Ok(Ended::Stopped(stop)),
    };
    let after = match changed.simulate(Look::Causes)? {
        Ended::Finished(after) => after,
        Ended::Stopped(stop) => return Ok(Ended::Stopped(stop)),
    };
    let chances = if changes.overlap.is_empty() { None } else { Some(run.chances()?) };
    let warnings = doubts(&before, [&after]);
    let is_same_program = changes.lines.is_empty() && changes.overlap.is_empty();
    let (options, makespan_s) = (changes.options(), before.makespan_s);
    let again = if warnings.is_empty() || !is_same_program { None } else { run.command_with(&options)? };
    let outcome = Outcome::new(options, makespan_s, after.makespan_s, after.digest.clone());
    let changes = vec![outcome.explained(&before.explained(), &after.explained())];
    Ok(Ended::Finished(WhatIf { makespan_s, changes, refused: Vec::new(), overlap: chances, warnings, again }))
}

/// The gain of each change in [`candidates`] by itself, simulated on all cores.
///
/// # Errors
/// If the run cannot be read.
pub fn table(run: &Replayed) -> Result<Ended<WhatIf>, HostError> {
    let before = match run.simulate(Look::Causes)? {
        Ended::Finished(before) => before,
        Ended::Stopped(stop) => return Ok(Ended::Stopped(stop)),
    };
    let (resolved, _) = run.origin()?;
    let explanation = before.explanation.as_ref().expect("causes were looked for");
    let chances = run.chances()?;
    let changes = candidates(&resolved.toml, &resolved.cluster, explanation, &chances);
    let try_one = |change: &Change| {
        let Change { set, algorithms, free, overlap } = change.clone();
        let lines: Vec<LineName> = overlap.iter().map(|line| line.parse().expect("it names a line")).collect();
        let changed = run.changed(&Overrides { backend: None, algorithms, set, free });
        changed.with_overlap(&lines)?.simulate(Look::End)
    };
    let tried: Vec<_> = changes.par_iter().map(try_one).collect();
    let (mut outcomes, mut refused, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (change, tried) in changes.iter().zip(tried) {
        let options = change.options();
        match tried {
            Ok(Ended::Finished(after)) => {
                outcomes.push(Outcome::new(options, before.makespan_s, after.makespan_s, after.digest.clone()));
                others.push(after);
            }
            Ok(Ended::Stopped(stop)) => refused.push(Refused { options, error: stop.message }),
            Err(error) => refused.push(Refused { options, error: error.to_string() }),
        }
    }
    let (makespan_s, warnings) = (before.makespan_s, doubts(&before, &others));
    Ok(Ended::Finished(
        WhatIf { makespan_s, changes: outcomes, refused, overlap: Some(chances), warnings, again: None }.sorted(),
    ))
}

/// Warnings about device properties that differ, control flow that could have diverged, and compute whose duration
/// comes from another source than without the changes.
fn doubts<'s>(before: &Simulated, others: impl IntoIterator<Item = &'s Simulated>) -> Vec<String> {
    let all: Vec<&Simulated> = others.into_iter().collect();
    let mut noticed: Vec<String> = Vec::new();
    for warning in std::iter::once(before).chain(all.iter().copied()).flat_map(|run| &run.noticed) {
        if !noticed.contains(warning) {
            noticed.push(warning.clone());
        }
    }
    let others: Vec<&Simulated> = all.into_iter().filter(|after| after.digest != before.digest).collect();
    if others.is_empty() {
        return noticed;
    }
    let mut hazards = before.hazards.clone();
    others.iter().for_each(|after| hazards.merge(&after.hazards));
    let of_time = hazards.warnings(&before.lines).into_iter().map(|warning| warning.to_string());
    let is_costed_anew = others.iter().any(|after| after.modelled != before.modelled);
    let costed_anew = "with the change operators are costed for other devices, and without it compute is as it was recorded; --compute model costs both";
    noticed.into_iter().chain(is_costed_anew.then(|| costed_anew.to_owned())).chain(of_time).collect()
}
