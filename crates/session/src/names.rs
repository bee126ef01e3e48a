//! Owns the names of the files in a run's folder. The ranks' logs are beside them.

/// Times, operations and links.
pub const REPORT: &str = "report.json";
/// A timeline for <https://ui.perfetto.dev> and chrome://tracing.
pub const TRACE: &str = "trace.json";
/// The same in Perfetto's own format, which is smaller.
pub const NATIVE_TRACE: &str = "trace.pftrace";
/// Traces are called `chakra.RANK.et`.
pub const PREFIX: &str = "chakra";
/// The process groups, as ASTRA-sim reads them.
pub const GROUPS: &str = "comm_groups.json";
/// The ranks' requests.
pub const RECORD: &str = "program.record";
/// Folders of the runs of one command are called so, and a number from 1.
pub(crate) const REPEATED: &str = "repeat-";
/// Everything that happened, as text.
pub const EVENTS: &str = "events.jsonl";
/// A folder: what happened, as tables.
pub const TABLES: &str = "events";
/// When nodes start and end, where that is all there is.
pub const TIMELINE: &str = "timeline.csv";
