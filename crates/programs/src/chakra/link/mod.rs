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
        /// What does not fit.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// A host trace and a profile that are not of one run.
    #[error(
        "rank {rank}: the host trace and the profile are from different runs: {matched} of {operators} operators match by name and order ({:.1} %)\nhint: give files that were recorded together; --allow-mismatch links them anyway and ignores the operators of the host trace that do not match",
        100.0 * *matched as f64 / (*operators).max(1) as f64
    )]
    Mismatch {
        /// The rank of the files.
        rank: u32,
        /// Operators of both files.
        matched: usize,
        /// Operators of the file that has more in the iteration.
        operators: usize,
    },
    /// The wanted iteration is not there.
    #[error(
        "iteration {number} is not in all recordings; they contain {there}\nhint: choose one of them, or --iteration all"
    )]
    NoIteration {
        /// The iteration that was asked for.
        number: u64,
        /// The iterations that the trace has.
        there: String,
    },
    /// The ranks' recordings share no iteration.
    #[error(
        "the recordings of the ranks have no iteration in common\nhint: record the same steps on all ranks, or link with --iteration all"
    )]
    NoCommonIteration,
    /// The profile has nothing of the iteration.
    #[error(
        "rank {rank}: nothing was recorded in the selected iterations\nhint: choose another iteration, or --iteration all"
    )]
    Empty {
        /// The rank of the profile.
        rank: u32,
    },
    /// Communication that no file describes.
    #[error(
        "rank {rank}: {count} NCCL kernels cannot be identified: {problem}; the first is `{kernel}`\nhint: give the host traces too, or profile with record_shapes=True; --allow-unknown treats them as compute of the recorded duration"
    )]
    Unknown {
        /// The rank of the profile.
        rank: u32,
        /// Number of such kernels.
        count: usize,
        /// What is not said of the first of them.
        problem: String,
        /// The first of them.
        kernel: String,
    },
    /// Ranks that disagree about what they communicate.
    #[error(
        "the communication of the ranks does not match: {problem}\nhint: give recordings of the same steps of one run; --allow-mismatch treats operations without a counterpart as compute of the recorded duration"
    )]
    Ranks {
        /// Who disagrees about what.
        problem: String,
    },
    /// Ranks of the job whose recordings are not given, and that cannot be taken to be like those that are.
    #[error(
        "the job has {world} ranks, but only {given} are recorded: {problem}\nhint: give the profiles of all ranks"
    )]
    Missing {
        /// Ranks of the job.
        world: u32,
        /// Ranks that are given.
        given: usize,
        /// Why they are not alike.
        problem: String,
    },
    /// Dependencies in a circle.
    #[error(
        "rank {rank}: {problem} closes a cycle\nhint: --repair drops a small set of dependencies that breaks all cycles, and lists them"
    )]
    Circle {
        /// The rank of the files.
        rank: u32,
        /// The dependency that closes the circle.
        problem: String,
    },
    /// More than one file of a kind for a rank.
    #[error("{problem}\nhint: give one profile per rank, and at most one host trace for each")]
    Files {
        /// What does not fit.
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

/// How recordings are linked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What of them.
    pub iteration: Iteration,
    /// Link files and ranks that do not fit together.
    pub allow_mismatch: bool,
    /// NCCL kernels that no file describes become compute.
    pub allow_unknown: bool,
    /// Drop dependencies that close circles.
    pub repair: bool,
}

/// A dependency that is dropped: of a node on another one, each with id and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The node that depends.
    pub node: (u64, String),
    /// The node that it depends on.
    pub on: (u64, String),
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` on {} `{}`", self.node.0, self.node.1, self.on.0, self.on.1)
    }
}

/// One file: which of the two it is, its content says.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there are as many as files
pub enum Recording {
    /// The profiler's file.
    Profile(Profile),
    /// The execution trace observer's.
    Host(HostTrace),
}

/// What is linked: one profile a rank, and a host trace for some.
#[derive(Debug)]
pub struct RankRecording {
    /// For messages: the name of the profile's file.
    pub file: String,
    /// The rank that its name says; the profile itself comes first.
    pub named: Option<u32>,
    /// When what ran.
    pub profile: Profile,
    /// With which tensors.
    pub host: Option<HostTrace>,
}

/// The traces of a job.
#[derive(Debug)]
pub struct Job {
    /// One for each rank, in order.
    pub ranks: Vec<Linked>,
    /// For the user: what was found and assumed.
    pub notes: Vec<String>,
}

/// An execution trace, and what was recorded.
#[derive(Clone, Debug)]
pub struct Linked {
    /// What it says about itself.
    pub metadata: GlobalMetadata,
    /// Its nodes; each after those that it depends on. Ranks that are taken to be like another one share them.
    pub nodes: Arc<Vec<Node>>,
    /// When the rank ended, in nanoseconds from the start of the first rank.
    pub recorded_ns: u64,
    /// The rank whose recording this is: itself, unless it had none.
    pub like: u32,
}

/// Makes the traces of a job from its ranks' recordings.
///
/// # Errors
/// They do not fit together, or do not say enough.
pub fn link(ranks: Vec<RankRecording>, options: &Options) -> Result<Job, LinkError> {
    job::link(ranks, options)
}

impl Recording {
    /// Reads a file, plain or compressed with gzip.
    ///
    /// # Errors
    /// It is neither, or damaged.
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
            Category::Io => unreadable(&error, error.io_error_kind()),
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

/// No recording has more bytes of text: compressed, a small file may hold any number of them.
const LONGEST: u64 = 4 << 30;

/// Text that is an error where it goes on for too long.
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

/// Chrome's format may also be the bare list of events.
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

/// Is a file of this name what the profiler, or its observer, writes?
pub fn is_recording(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".json") || name.ends_with(".json.gz")
}

/// The rank that a file's name says: its last number behind `rank`, `worker`, or else the only one.
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
