//! Owns the linking of recordings of real runs into execution traces: the profiler's traces (Kineto), one per rank, and
//! optionally PyTorch's host traces (`ExecutionTraceObserver`), which contain sizes that profiles may lack.
//!
//! Flow of the data: [`Recording`] reads a file of either kind through `lenient`, which repairs invalid JSON of
//! profilers; `iterations` chooses the training steps to link; `matching` pairs operators of the host trace with
//! operators of the profile; `timeline` splits each rank's time into work and waiting; `comm` finds the communication;
//! `job` combines the ranks: their process groups, the collectives that belong together, the duration of each
//! collective once all ranks had entered it, and the offsets of the clocks; `nodes` writes the result as a graph; and
//! `repair` drops dependencies that close cycles. [`Job::replay_recorded`] then shows whether the graph reproduces the
//! recording.
//!
//! **Meaning of the graph.** All work lasts as long as in the recording. Work starts when its dependencies are done, or
//! later by the same delay as in the recording; the delay is a node of its own (`uniference_part: delay`). Threads and
//! streams run concurrently (`side_by_side`). A replay in which communication lasts as long as in the recording
//! therefore ends at the same time; if communication takes longer, waits grow and work does not. Facts that a recording
//! lacks are inferred from times: see `timeline`.

mod comm;
mod host;
mod iterations;
mod job;
mod lenient;
mod matching;
mod nodes;
mod profile;
mod recorded;
mod repair;
mod timeline;

pub use host::HostTrace;
pub use iterations::Iteration;
pub use profile::Profile;

use flate2::bufread::MultiGzDecoder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use uniference_formats::chakra::schema::{GlobalMetadata, Node};

/// Recordings that cannot be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A file is neither a profile nor a host trace, or is damaged.
    #[error("{problem}\nhint: {hint}")]
    Input {
        /// The problem.
        problem: String,
        /// The user's remedy.
        hint: &'static str,
    },
    /// A host trace and a profile from different runs.
    #[error(
        "rank {rank}: the host trace and the profile are from different runs: {matched} of {operators} operators match by name and order ({:.1} %)\nhint: give files that were recorded together; --allow-mismatch links them anyway and ignores the operators of the host trace that do not match",
        100.0 * *matched as f64 / (*operators).max(1) as f64
    )]
    Mismatch {
        /// The rank of the files.
        rank: u32,
        /// Number of operators that match in both files.
        matched: usize,
        /// Number of operators in the iteration, in the file with more of them.
        operators: usize,
    },
    /// The requested iteration was not recorded.
    #[error(
        "iteration {number} is not in all recordings; they contain {there}\nhint: choose one of them, or --iteration all"
    )]
    NoIteration {
        /// The requested iteration.
        number: u64,
        /// The recorded iterations.
        there: String,
    },
    /// The ranks' recordings share no iteration.
    #[error(
        "the recordings of the ranks have no iteration in common\nhint: record the same steps on all ranks, or link with --iteration all"
    )]
    NoCommonIteration,
    /// The profile has no events in the iteration.
    #[error(
        "rank {rank}: nothing was recorded in the selected iterations\nhint: choose another iteration, or --iteration all"
    )]
    Empty {
        /// The rank of the profile.
        rank: u32,
    },
    /// Communication kernels that no file describes.
    #[error(
        "rank {rank}: {count} NCCL kernels cannot be identified: {problem}; the first is `{kernel}`\nhint: give the host traces too, or profile with record_shapes=True; --allow-unknown treats them as compute of the recorded duration"
    )]
    Unknown {
        /// The rank of the profile.
        rank: u32,
        /// Number of such kernels.
        count: usize,
        /// Missing information about the first of these kernels.
        problem: String,
        /// Name of the first of these kernels.
        kernel: String,
    },
    /// Ranks whose communication does not match.
    #[error(
        "the communication of the ranks does not match: {problem}\nhint: give recordings of the same steps of one run; --allow-mismatch treats operations without a counterpart as compute of the recorded duration"
    )]
    Ranks {
        /// The message: which ranks differ, and in what.
        problem: String,
    },
    /// Unrecorded ranks of a job, which cannot be replicas of the recorded ranks.
    #[error(
        "the job has {world} ranks, but only {given} are recorded: {problem}\nhint: give the profiles of all ranks"
    )]
    Missing {
        /// Number of ranks of the job.
        world: u32,
        /// Number of recorded ranks.
        given: usize,
        /// Reason why the unrecorded ranks cannot be replicas.
        problem: String,
    },
    /// Dependencies that form a cycle.
    #[error(
        "rank {rank}: {problem} closes a cycle\nhint: --repair drops a small set of dependencies that breaks all cycles, and lists them"
    )]
    Circle {
        /// The rank of the files.
        rank: u32,
        /// The dependency that closes the cycle.
        problem: String,
    },
    /// A set of files that does not give each rank exactly one profile and at most one host trace.
    #[error("{problem}\nhint: give one profile per rank, and at most one host trace for each")]
    Files {
        /// The problem.
        problem: String,
    },
}

impl LinkError {
    fn host(problem: &str) -> LinkError {
        LinkError::Input {
            problem: format!("cannot read the host trace: {problem}"),
            hint: "give a file written by torch.profiler.ExecutionTraceObserver",
        }
    }
}

/// Options of the linking of recordings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The training steps to link.
    pub iteration: Iteration,
    /// Link files and ranks that do not match.
    pub allow_mismatch: bool,
    /// Treat NCCL kernels that no file describes as compute.
    pub allow_unknown: bool,
    /// Drop dependencies that close cycles.
    pub repair: bool,
}

/// A dropped dependency between two nodes, each with id and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The dependent node.
    pub node: (u64, String),
    /// Its dependency.
    pub on: (u64, String),
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` on {} `{}`", self.node.0, self.node.1, self.on.0, self.on.1)
    }
}

/// One recorded file; its content shows its kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one value per file
pub enum Recording {
    /// A profile, written by PyTorch's profiler.
    Profile(Profile),
    /// A host trace, written by the execution trace observer.
    Host(HostTrace),
}

/// Recordings of one rank: a profile, and optionally a host trace.
#[derive(Debug)]
pub struct RankRecording {
    /// The name of the profile's file, for messages.
    pub file: String,
    /// The rank in the file's name; the rank in the profile itself has precedence.
    pub named: Option<u32>,
    /// Times of events.
    pub profile: Profile,
    /// Sizes of tensors.
    pub host: Option<HostTrace>,
}

/// The traces of a job.
#[derive(Debug)]
pub struct Job {
    /// One trace per rank, in order.
    pub ranks: Vec<Linked>,
    /// Findings and assumptions, for the user.
    pub notes: Vec<String>,
}

/// An execution trace, and figures of the recording.
#[derive(Clone, Debug)]
pub struct Linked {
    /// The trace's metadata.
    pub metadata: GlobalMetadata,
    /// The trace's nodes, each after its dependencies. Replicas share the nodes of their rank.
    pub nodes: Arc<Vec<Node>>,
    /// The end of the rank in the recording, in nanoseconds from the start of the first rank.
    pub recorded_ns: u64,
    /// The rank whose recording this is: the rank itself, or for an unrecorded rank, the recorded rank that it is a
    /// replica of.
    pub like: u32,
}

/// Makes the traces of a job from its ranks' recordings.
///
/// # Errors
/// The recordings do not match, or lack information.
pub fn link(ranks: Vec<RankRecording>, options: &Options) -> Result<Job, LinkError> {
    job::link(ranks, options)
}

impl Recording {
    /// Reads a file, plain or compressed with gzip.
    ///
    /// # Errors
    /// The file is neither a profile nor a host trace, or is damaged.
    pub fn read(input: impl Read) -> Result<Recording, LinkError> {
        let mut input = BufReader::new(input);
        let refused = |what: &str, error: &dyn fmt::Display, hint| {
            let problem = format!("{what}: {error}");
            LinkError::Input { problem, hint }
        };
        let foreign = |error: &dyn fmt::Display| {
            let hint = "give a file written by torch.profiler.profile.export_chrome_trace or ExecutionTraceObserver, optionally compressed";
            refused("not a recording of PyTorch", error, hint)
        };
        let unreadable = |error: &dyn fmt::Display, kind: Option<io::ErrorKind>| match kind {
            Some(io::ErrorKind::FileTooLarge) => refused("cannot be read", error, "record fewer steps"),
            _ => refused("cannot be read", error, "copy the file again from its source, or record again"),
        };
        let invalid = |error: serde_json::Error| match error.classify() {
            Category::Io => {
                // An error of the disk is reported without its position in the JSON, which says nothing about it.
                let error = io::Error::from(error);
                unreadable(&error, Some(error.kind()))
            }
            Category::Data => foreign(&error),
            Category::Syntax if error.line() == 1 && error.column() <= 1 => foreign(&error),
            Category::Syntax | Category::Eof => refused(
                "the file is damaged",
                &error,
                "copy it again from its source, or record again; `python -m json.tool FILE` shows the place too",
            ),
        };
        let start = input.fill_buf().map_err(|error| unreadable(&error, Some(error.kind())))?;
        let compressed = start.starts_with(&[0x1f, 0x8b]);
        let (profile, host) = match compressed {
            true => parse(BufReader::new(Bounded { input: MultiGzDecoder::new(input), left: LONGEST })),
            false => parse(BufReader::new(Bounded { input, left: LONGEST })),
        }
        .map_err(invalid)?;
        match (profile, host) {
            (Some(mut profile), None) => {
                profile.refuse_lost_times()?;
                profile.sort();
                profile.pair_kernels();
                Ok(Recording::Profile(profile))
            }
            (None, Some(mut host)) => {
                host.finish()?;
                Ok(Recording::Host(host))
            }
            _ => Err(foreign(&"a profile must have `traceEvents`, and a host trace `schema` and `nodes`")),
        }
    }
}

/// Maximum length of a recording's text in bytes; a small compressed file may expand without bound.
const LONGEST: u64 = 4 << 30;

/// Reader of text that fails beyond a number of bytes.
struct Bounded<R> {
    input: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {} GiB of text", LONGEST >> 30))
        })?;
        Ok(count)
    }
}

type Parsed = (Option<Profile>, Option<HostTrace>);

fn parse(input: impl BufRead) -> serde_json::Result<Parsed> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(lenient::Lenient::new(input)));
    let parsed = json.deserialize_any(TopLevel)?;
    json.end()?;
    Ok(parsed)
}

/// The top level of a file: an object, or as Chrome's format also allows, the list of events alone.
struct TopLevel;

impl<'de> Visitor<'de> for TopLevel {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile or a host trace")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Parsed, A::Error> {
        let mut profile = Profile::default();
        profile::Events(&mut profile).deserialize(serde::de::value::SeqAccessDeserializer::new(list))?;
        Ok((Some(profile), None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let (mut profile, mut host) = (Profile::default(), HostTrace::default());
        let (mut has_events, mut has_nodes, mut has_schema) = (false, false, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    map.next_value_seed(profile::Events(&mut profile))?;
                    has_events = true;
                }
                "distributedInfo" => profile.distributed = map.next_value()?,
                "baseTimeNanoseconds" => {
                    let base = map.next_value::<profile::Number>()?.0;
                    profile.base_ns = base.filter(|base| (0..profile::LATEST_NS).contains(base)).unwrap_or(0);
                }
                "schema" => {
                    host.schema = map.next_value::<profile::Text>()?.0;
                    has_schema = true;
                }
                "nodes" => {
                    map.next_value_seed(host::Operators(&mut host))?;
                    has_nodes = true;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok((has_events.then_some(profile), (has_nodes && has_schema).then_some(host)))
    }
}

/// Whether a file of this name can be a profile or a host trace.
pub fn is_recording(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".json") || name.ends_with(".json.gz")
}

/// The rank in a file's name: its last number behind `rank`, else behind `worker`, else its only number.
pub fn rank_in_name(name: &str) -> Option<u32> {
    let digits = |text: &str| -> Option<u32> {
        let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let lower = name.to_ascii_lowercase();
    let after = |word: &str| {
        lower
            .match_indices(word)
            .find_map(|(at, _)| digits(lower[at + word.len()..].trim_start_matches(['_', '-', '.', '='])))
    };
    let numbers = || lower.split(|character: char| !character.is_ascii_digit()).filter(|part| !part.is_empty());
    let only = || numbers().next().filter(|_| numbers().count() == 1).and_then(digits);
    after("rank").or_else(|| after("worker")).or_else(only)
}

#[cfg(test)]
mod tests;
