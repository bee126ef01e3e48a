//! Owns what is kept of a run and written when it ends.

use super::console::Counter;
use super::folder::Folder;
use crate::error::HostError;
use crate::live::exchange::Recorder;
use uniference_formats::cluster::Resolved;
use uniference_sim::cluster::Cluster;
use uniference_sim::record::{Digest, Observer, Statistics};

/// What is kept besides the report.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RecordLevel {
    /// All events
    Full,
    /// Program record and trace
    Ops,
    /// Nothing
    Summary,
}

/// How the report is shown.
pub(super) enum Format {
    Json,
    Table,
}

/// Everything that looks on while a run goes on.
pub(super) struct Recording {
    all: ((Statistics, Digest), Counter),
    nothing: (),
}

/// What the report says besides figures.
pub(super) struct Outcome<'a> {
    pub(super) argv: &'a [String],
    pub(super) seed: u64,
    pub(super) resolved: &'a Resolved,
    pub(super) warnings: &'a [String],
    pub(super) lines: &'a [String],
}

impl Recording {
    pub(super) fn start(
        _level: RecordLevel,
        _cluster: &Cluster,
        _folder: &Folder,
        counter: Counter,
    ) -> Result<Recording, HostError> {
        Ok(Recording { all: ((Statistics::default(), Digest::default()), counter), nothing: () })
    }
    pub(super) fn watchers(&mut self) -> (&mut dyn Observer, &mut dyn Recorder) {
        (&mut self.all, &mut self.nothing)
    }
    pub(super) fn finish(self, _o: &Outcome<'_>, _folder: &Folder, _f: Format) -> Result<(), HostError> {
        eprintln!(
            "makespan {} events {} digest {}",
            self.all.0.0.makespan(),
            self.all.0.0.events(),
            self.all.0.1.to_hex()
        );
        for r in self.all.0.0.ranks() {
            eprintln!("{r:?}");
        }
        Ok(())
    }
}
