//! Owns the reason of each wait of a run in words: the rank that was waited for, and what that rank did during the
//! wait. [`mod@super::walk`] finds the spans of a wait.

use super::causes::{Causes, Waited};
use super::walk::{Kind, Span, before};
use super::{COMPUTE, View};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use uniference_formats::table::in_folder;
use uniference_formats::trace::{Release, Source};
use uniference_sim::ids::{LinkId, RankId, TaskId};
use uniference_sim::time::{SimDuration, SimTime};

/// Maximum number of steps back from the end of a wait: a collective of a thousand ranks needs some thousand.
const MOST_STEPS: usize = 4_096;

impl Causes {
    /// The reason of each wait for communication and for the store, if it is known. `lines` are the lines of the
    /// program, by site.
    pub fn releases<'a>(&'a self, lines: &'a [String]) -> impl Iterator<Item = Release> + 'a {
        let view = View { causes: self, names: self.texts(), lines, makespan: SimDuration::ZERO };
        let tasks =
            (0..self.ranks.len()).map(RankId::from).flat_map(|rank| self.tasks(rank).map(move |task| (rank, task)));
        let turns =
            tasks.flat_map(|(rank, task)| (0..self.turns(rank, task).len()).map(move |number| (rank, task, number)));
        turns.filter_map(move |(rank, task, number)| view.release(rank, task, number))
    }
}

impl View<'_> {
    /// The reason of a wait: the rank, kind and link with most of the wait's time.
    fn release(&self, rank: RankId, task: TaskId, number: usize) -> Option<Release> {
        let turn = self.causes.turns(rank, task)[number];
        if turn.waited != Waited::Other {
            return None;
        }
        let mut sums: BTreeMap<(RankId, Kind, Option<LinkId>), (SimDuration, Span)> = BTreeMap::new();
        let spans = before(self.causes, rank, task, number, MOST_STEPS);
        for span in spans.into_iter().filter(|span| span.end > turn.start) {
            // The walk is backwards, so the first span is the last in time.
            let sum = sums.entry((span.rank, span.kind, span.link)).or_insert((SimDuration::ZERO, span));
            sum.0 += span.end.since(span.start.max(turn.start));
        }
        let (_, (_, span)) = sums.into_iter().max_by_key(|(key, (lasts, _))| (*lasts, Reverse(*key)))?;
        let words = self.words(rank, &span)?;
        // A message belongs to its sender's operation when it begins to leave.
        let until = if span.kind.is_of_link() { span.start } else { span.end };
        let begun =
            span.activity.and_then(|handle| self.causes.activity(span.rank, handle)).map(|activity| activity.start);
        let from =
            Source { rank: span.rank, activity: span.activity, span: begun.unwrap_or(SimTime::ZERO).min(until)..until };
        Some(Release { rank, task, waited: turn.start..turn.end, words, from })
    }

    /// `waits for rank 2, which computes in layers.7`.
    fn words(&self, rank: RankId, span: &Span) -> Option<String> {
        let of = span.rank;
        let does = |own: &str, other: &str| match of == rank {
            true => format!("waits for its own {own}"),
            false => format!("waits for {of}, {other}"),
        };
        let place = self.place(span);
        let operation = span.operation().map(|name| format!(" on {}", self.name(name))).unwrap_or_default();
        Some(match span.kind {
            Kind::Compute => does("compute", "which computes") + &place,
            Kind::Sleep => does("sleep", "which sleeps") + &place,
            Kind::Poll => does("polling", "which polls") + &place,
            Kind::TimeOut => does("time-out", "which waits for a time-out") + &place,
            Kind::Library => does("library", "whose library works") + &operation,
            Kind::Unknown => return None,
            kind => {
                let whose = if of == rank { "its own data to leave".to_owned() } else { format!("data of {of}") };
                let link = span.link.map(|link| format!(" of {}", self.causes.link(link))).unwrap_or_default();
                format!("waits for {whose}: {}{link}", kind.name())
            }
        })
    }

    /// The place of a span on its rank: ` in layers.7`, or else ` at model.py:41`, or else the compute.
    fn place(&self, span: &Span) -> String {
        let range = self.causes.launched_in(span).unwrap_or_else(|| self.causes.range(span.rank, span.start));
        let range = range.map(|name| format!(" in {}", self.name(name)));
        let line = || self.line(span.site).map(|line| format!(" at {}", in_folder(&line)));
        let name =
            || span.name.map(|name| self.name(name)).filter(|name| name != COMPUTE).map(|name| format!(" of {name}"));
        range.or_else(line).or_else(name).unwrap_or_default()
    }
}
