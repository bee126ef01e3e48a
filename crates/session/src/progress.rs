//! Owns the reports of a simulation's progress. The caller decides how to show them, and how often.

use crate::notices::Notices;
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Number of simulated events between two reports of the progress.
const EVENTS_A_BEAT: u64 = 1 << 12;

/// Observer that reports the progress of a simulation.
pub(crate) struct Progress {
    notices: Notices,
    events: u64,
    operations: u64,
}

impl Progress {
    /// Reports progress to `notices`.
    pub(crate) fn new(notices: Notices) -> Progress {
        Progress { notices, events: 0, operations: 0 }
    }
}

impl Observer for Progress {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.events += 1;
        self.operations += u64::from(matches!(event, Event::Completed { .. } | Event::Failed { .. }));
        if self.events.is_multiple_of(EVENTS_A_BEAT) {
            self.notices.progressed(at, self.operations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use uniference_sim::ids::{RankId, TaskId};
    use uniference_sim::program::Mark;

    #[test]
    fn it_is_told_now_and_then() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let hear = told.clone();
        let notices =
            Notices::ignored().with_progress(move |at, operations| hear.lock().unwrap().push((at, operations)));
        let mut progress = Progress::new(notices);
        for ps in 1..=2 * EVENTS_A_BEAT + 1 {
            let event = Event::Marked {
                rank: RankId(0),
                task: TaskId(0),
                mark: &Mark::End,
                why: Default::default(),
                spent: None,
            };
            progress.record(SimTime::from_ps(ps), &event);
        }
        let beats = [EVENTS_A_BEAT, 2 * EVENTS_A_BEAT].map(|ps| (SimTime::from_ps(ps), 0));
        assert_eq!(told.lock().unwrap()[..], beats);
    }
}
