//! Owns the names of the files in a run's folder. The ranks' logs are beside them.

/// Times, operations and links.
pub const REPORT: &str = "report.json";
/// A timeline for <https://ui.perfetto.dev>.
pub const TRACE: &str = "trace.json";
/// Traces are called `chakra.RANK.et`.
pub const PREFIX: &str = "chakra";
/// The process groups, as ASTRA-sim reads them.
pub const GROUPS: &str = "comm_groups.json";
/// The ranks' requests.
pub const RECORD: &str = "program.record";
/// Folders of the runs of one command are called so, and a number from 1.
pub(crate) const REPEATED: &str = "repeat-";
/// Everything that happened.
pub const EVENTS: &str = "events.jsonl";
/// When nodes start and end, where that is all there is.
pub const TIMELINE: &str = "timeline.csv";
