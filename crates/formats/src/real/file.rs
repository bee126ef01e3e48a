//! Owns the file of one rank, as `python/uniference/real/recording.py` describes and writes it. [`mod@super::merge`]
//! interprets it.

use super::clock::Reading;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::ids::{GroupId, GroupRank, RankId, TaskId};
use uniference_sim::program::{Call, CallOp, Collective, CollectiveKind, DType, Mark, Shape};
use uniference_sim::time::Bytes;

/// Versions of the format that are read. In version 2 the end of a range ends its thread's innermost range.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// The recording of one rank.
#[derive(Clone, Debug)]
pub struct RankFile {
    /// The first line: the rank and its program.
    pub head: Head,
    /// The records, in the order in which the rank saw them.
    pub records: Vec<Record>,
    /// The last line: the end of the program.
    pub tail: Tail,
}

/// The first line.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    version: u32,
    /// The rank in the world.
    pub rank: u32,
    /// Number of ranks in the world.
    pub world_size: u32,
    /// Name of the host; ranks with the same host share a clock.
    pub host: String,
    /// Name of the device, for reports.
    pub device: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The version of torch.
    pub torch: String,
    /// Time of the program's first statement, in nanoseconds of the rank's clock.
    pub start: i64,
}

/// The last line.
#[derive(Clone, Debug, Deserialize)]
pub struct Tail {
    /// Time at which the program returned, in nanoseconds of the rank's clock.
    pub finish: i64,
    /// Whether the program succeeded.
    pub ok: bool,
    /// Comparisons with the reference clock.
    pub clocks: Vec<Reading>,
    /// Number of calls of the recorder.
    pub recorder_calls: u64,
    /// Total time of the recorder, in nanoseconds.
    pub recorder_ns: u64,
}

/// A line between the first and the last. Times are nanoseconds of the rank's clock.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the module of Python documents the fields
pub enum Record {
    Group { at: i64, group: u32, ranks: Vec<RankId> },
    Site { site: u32, line: String },
    Issued { at: i64, task: u32, handle: u32, call: Call, site: u32 },
    Completed { at: i64, handle: u32, peer: Option<GroupRank> },
    Waited { start: i64, end: i64, task: u32, reason: Reason, handles: Vec<u32>, site: u32 },
    Marked { at: i64, task: u32, mark: Mark },
}

/// The reason why a thread was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names say it
pub enum Reason {
    Communication,
    Store,
    Sleep,
}

/// An error in a rank's file, or in the files of a run.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// A line cannot be read.
    #[error(
        "line {line} is not a valid record of a rank: {problem}\nhint: use the files of `uniference launch` unchanged"
    )]
    Line {
        /// Number of the line, counted from 1.
        line: usize,
        /// The invalid part.
        problem: String,
    },
    /// The file has an unsupported version.
    #[error(
        "unsupported version {0} of a rank's file; the supported versions are {first} to {last}\nhint: use the version of Uniference that wrote it",
        first = VERSIONS.start(),
        last = VERSIONS.end()
    )]
    Version(u32),
    /// The file has no last line.
    #[error(
        "the rank's file is incomplete\nhint: the rank was killed, or the file was not copied completely; run the program again"
    )]
    CutShort,
    /// The files are not of one run.
    #[error("{0}\nhint: copy the files rank-N.jsonl of all machines of one run, and no other files, into one folder")]
    NotOneRun(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawShape {
    Even(u64),
    Blocks(Vec<u64>),
    Pairs(Vec<u64>, Vec<u64>),
}

type RawIssued = (IgnoredAny, i64, u32, u32, u32, String, String, RawShape, i64, u32);

impl RankFile {
    /// Reads a whole file.
    ///
    /// # Errors
    /// If the file is invalid, incomplete, or has an unsupported version.
    pub fn parse(text: &str) -> Result<RankFile, RealError> {
        let lines: Vec<&str> = text.lines().collect();
        let at = |line: usize| move |error: serde_json::Error| RealError::Line { line, problem: error.to_string() };
        let [first, between @ .., last] = &lines[..] else { return Err(RealError::CutShort) };
        let head: Head = serde_json::from_str(first).map_err(at(1))?;
        if !VERSIONS.contains(&head.version) {
            return Err(RealError::Version(head.version));
        }
        if !last.starts_with('{') {
            return Err(RealError::CutShort);
        }
        let tail = serde_json::from_str(last).map_err(at(lines.len()))?;
        let read = |(index, line): (usize, &&str)| record(line).map_err(at(index + 2));
        let records = between.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut known = Known::of(&records);
        for (index, record) in records.iter().enumerate() {
            known.check(record, &head).map_err(|problem| RealError::Line { line: index + 2, problem })?;
        }
        Ok(RankFile { head, records, tail })
    }
}

/// The definitions to which records may refer. A line of the program may be defined after its first use, by another
/// thread.
struct Known {
    sites: BTreeSet<u32>,
    /// Number of members of each group.
    groups: BTreeMap<u32, usize>,
    operations: BTreeSet<u32>,
}

impl Known {
    fn of(records: &[Record]) -> Known {
        let site = |record: &Record| if let Record::Site { site, .. } = record { Some(*site) } else { None };
        let sites = records.iter().filter_map(site).collect();
        Known { sites, groups: BTreeMap::new(), operations: BTreeSet::new() }
    }

    /// Checks that the record refers to definitions in the file, and adds the record's own definition.
    fn check(&mut self, record: &Record, head: &Head) -> Result<(), String> {
        match record {
            Record::Group { group, ranks, .. } => {
                let (own, world) = (RankId(head.rank), RankId(head.world_size));
                let alright = ranks.contains(&own) && ranks.iter().all(|rank| *rank < world);
                require(alright, || format!("group {group} must consist of ranks of this run and contain {own}"))?;
                self.groups.insert(*group, ranks.len());
                Ok(())
            }
            Record::Site { .. } | Record::Marked { .. } => Ok(()),
            Record::Issued { handle, call, site, .. } => {
                self.site(*site)?;
                let group = call.group.0;
                let size = *self.groups.get(&group).ok_or_else(|| format!("group {group} is not defined"))?;
                let peer = match &call.op {
                    CallOp::Collective(collective) => collective.root,
                    CallOp::Send { to, .. } | CallOp::Write { to, .. } => Some(*to),
                    CallOp::Recv { from, .. } => *from,
                };
                let is_member = peer.is_none_or(|peer| peer.index() < size);
                require(is_member, || {
                    format!("rank {} is out of range for a group of size {size}", peer.unwrap_or_default().0)
                })?;
                require(self.operations.insert(*handle), || format!("operation {handle} is issued twice"))
            }
            Record::Completed { handle, .. } => self.operation(*handle),
            Record::Waited { handles, site, .. } => {
                self.site(*site)?;
                handles.iter().try_for_each(|handle| self.operation(*handle))
            }
        }
    }

    fn site(&self, site: u32) -> Result<(), String> {
        require(self.sites.contains(&site), || format!("call site {site} is not defined"))
    }

    fn operation(&self, handle: u32) -> Result<(), String> {
        require(self.operations.contains(&handle), || format!("operation {handle} was not issued"))
    }
}

fn require(holds: bool, problem: impl Fn() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

fn record(line: &str) -> Result<Record, serde_json::Error> {
    let read = line.get(..4).unwrap_or_default();
    Ok(match read {
        r#"["g""# => {
            let (_, at, group, ranks): (IgnoredAny, i64, u32, Vec<u32>) = serde_json::from_str(line)?;
            Record::Group { at, group, ranks: ranks.into_iter().map(RankId).collect() }
        }
        r#"["s""# => {
            let (_, site, line): (IgnoredAny, u32, String) = serde_json::from_str(line)?;
            Record::Site { site, line }
        }
        r#"["i""# => issued(serde_json::from_str(line)?)?,
        r#"["d""# => {
            let (_, at, handle, peer): (IgnoredAny, i64, u32, Option<u32>) = serde_json::from_str(line)?;
            Record::Completed { at, handle, peer: peer.map(GroupRank) }
        }
        r#"["w""# => {
            let (_, start, end, task, reason, handles, site): (IgnoredAny, i64, i64, u32, Reason, Vec<u32>, u32) =
                serde_json::from_str(line)?;
            Record::Waited { start, end, task, reason, handles, site }
        }
        r#"["m""# => {
            let (_, at, task, name): (IgnoredAny, i64, u32, Option<String>) = serde_json::from_str(line)?;
            Record::Marked { at, task, mark: name.map_or(Mark::End, |name| Mark::Begin(name.into())) }
        }
        r#"["n""# => {
            let (_, at, task, range, name): (IgnoredAny, i64, u32, u32, Option<String>) = serde_json::from_str(line)?;
            let thread = TaskId(task);
            let begins = name.map(|name| Mark::Enter { range, thread, name: name.into() });
            Record::Marked { at, task, mark: begins.unwrap_or(Mark::Leave { range, thread }) }
        }
        r#"["r""# => {
            let (_, at, task, range, name): (IgnoredAny, i64, u32, u32, Option<String>) = serde_json::from_str(line)?;
            let opens = name.map(|name| Mark::Open { range, name: name.into() });
            Record::Marked { at, task, mark: opens.unwrap_or(Mark::Close { range }) }
        }
        _ => return Err(serde::de::Error::custom("unknown record type")),
    })
}

fn issued(
    (_, at, task, handle, group, kind, dtype, shape, root, site): RawIssued,
) -> Result<Record, serde_json::Error> {
    let root = u32::try_from(root).ok().map(GroupRank);
    let op = match (&kind[..], shape) {
        ("send", RawShape::Even(bytes)) => {
            let to = root.ok_or_else(|| serde::de::Error::custom("a send has no destination"))?;
            CallOp::Send { to, tag: 0, bytes: Bytes(bytes) }
        }
        ("recv", RawShape::Even(bytes)) => CallOp::Recv { from: root, tag: 0, bytes: Bytes(bytes) },
        (_, shape) => {
            let kind: CollectiveKind = serde_json::from_value(kind.into())?;
            let dtype = DType::from_name(&dtype).ok_or_else(|| serde::de::Error::custom("unknown dtype"))?;
            let shape = match shape {
                RawShape::Even(elements) => Shape::Even(elements),
                RawShape::Blocks(blocks) => Shape::Blocks(blocks),
                RawShape::Pairs(send, recv) => Shape::Pairs { send, recv },
            };
            CallOp::Collective(Collective { kind, dtype, reduce: None, root, shape, kernel: None })
        }
    };
    Ok(Record::Issued { at, task, handle, call: Call { group: GroupId(group), op }, site })
}
