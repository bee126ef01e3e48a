//! Owns the lines of ranks' programs, and the line at which each task is.

use std::collections::BTreeMap;
use uniference_formats::operators::Line;
use uniference_protocol::messages::Op;
use uniference_sim::ids::{RankId, Site};

/// The lines of all ranks. The id of a line does not depend on which rank is faster: it combines the rank's own number
/// of the line with the rank.
pub(super) struct Lines {
    ranks: Vec<RankLines>,
    /// Lines that ranks have named and the recorder has not received.
    unreported: Vec<Site>,
}

#[derive(Default)]
struct RankLines {
    texts: Vec<String>,
    index: BTreeMap<String, usize>,
    /// Sites of captured lines that have launched work.
    captured: BTreeMap<Line, Site>,
}

impl Lines {
    pub(super) fn new(world_size: u32) -> Lines {
        Lines { ranks: (0..world_size).map(|_| RankLines::default()).collect(), unreported: Vec::new() }
    }

    /// The id of a line, which will be reported.
    pub(super) fn site(&mut self, rank: RankId, text: &str) -> Site {
        let world_size = self.ranks.len();
        let RankLines { texts, index, .. } = &mut self.ranks[rank.index()];
        let at = *index.entry(text.to_owned()).or_insert_with(|| {
            texts.push(text.to_owned());
            texts.len() - 1
        });
        let site = Site::from(at * world_size + rank.index());
        self.unreported.push(site);
        site
    }

    /// The id of a captured line, whose `text` is asked for once.
    pub(super) fn captured(&mut self, rank: RankId, line: Line, text: impl FnOnce() -> String) -> Site {
        if let Some(known) = self.ranks[rank.index()].captured.get(&line) {
            return *known;
        }
        let site = self.site(rank, &text());
        self.ranks[rank.index()].captured.insert(line, site);
        site
    }

    pub(super) fn text(&self, site: Site) -> &str {
        let world_size = self.ranks.len();
        &self.ranks[site.index() % world_size].texts[site.index() / world_size]
    }

    /// All lines, by [`Site`]; empty for unused sites.
    pub(super) fn all(&self) -> Vec<String> {
        let most = self.ranks.iter().map(|rank| rank.texts.len()).max().unwrap_or(0);
        let text = |at: usize, rank: &RankLines| rank.texts.get(at).cloned().unwrap_or_default();
        (0..most).flat_map(|at| self.ranks.iter().map(move |rank| text(at, rank))).collect()
    }

    pub(super) fn take_unreported(&mut self) -> Vec<Site> {
        std::mem::take(&mut self.unreported)
    }
}

/// The lines of one task.
pub(super) struct TaskLines {
    /// The task's own table of lines.
    sites: Vec<Site>,
    /// The line of the task's latest operation that has one.
    current: Site,
}

impl TaskLines {
    pub(super) fn new(current: Site) -> TaskLines {
        TaskLines { sites: Vec::new(), current }
    }

    /// The same table for a task of another rank, which is at its line `current`.
    pub(super) fn moved(&self, lines: &mut Lines, to: RankId, current: Site) -> TaskLines {
        let mut known = |site: &Site| {
            let text = lines.text(*site).to_owned();
            lines.site(to, &text)
        };
        TaskLines { sites: self.sites.iter().map(&mut known).collect(), current }
    }

    /// Adds the next line to the task's table.
    pub(super) fn add(&mut self, site: Site) {
        self.sites.push(site);
    }

    pub(super) fn current(&self) -> Site {
        self.current
    }

    pub(super) fn start_at(&mut self, site: Site) {
        self.current = site;
    }

    /// The operation's own line.
    pub(super) fn of(&self, op: &Op) -> Option<Site> {
        let site = match op {
            Op::Issue { site, .. }
            | Op::Wait { site, .. }
            | Op::Store { site, .. }
            | Op::NameGroup { site, .. }
            | Op::Synchronize { site, .. }
            | Op::Query { site, .. }
            | Op::Elapsed { site, .. }
            | Op::At(site) => site,
            _ => return None,
        };
        self.sites.get(site.index()).copied()
    }

    /// The line of `op`: its own, or the previous line of the task.
    pub(super) fn advance(&mut self, op: Option<&Op>) -> Site {
        self.current = op.and_then(|op| self.of(op)).unwrap_or(self.current);
        self.current
    }
}
