//! Owns the names of the files in a run folder. Logs of the ranks are in the same folder.

/// Report: times, operations and links.
pub const REPORT: &str = "report.json";
/// Timeline for <https://ui.perfetto.dev> and chrome://tracing.
pub const TRACE: &str = "trace.json";
/// Timeline in Perfetto's own format, which is smaller.
pub const NATIVE_TRACE: &str = "trace.pftrace";
/// Prefix of execution traces, `chakra.RANK.et`.
pub const PREFIX: &str = "chakra";
/// Process groups in ASTRA-sim's format.
pub const GROUPS: &str = "comm_groups.json";
/// Program record: the ranks' requests.
pub const RECORD: &str = "program.record";
/// Prefix of the folders of repeated runs, followed by a number from 1.
pub(crate) const REPEATED: &str = "repeat-";
/// All events as text.
pub const EVENTS: &str = "events.jsonl";
/// Folder of the event tables.
pub const TABLES: &str = "events";
/// Start and end of nodes, for runs that record nothing else.
pub const TIMELINE: &str = "timeline.csv";
