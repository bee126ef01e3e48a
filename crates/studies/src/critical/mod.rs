//! Owns the critical path of a run: the reason for its makespan, by kind, rank, link, operation, line and range.
//!
//! The path is exact. It begins at the first instant, ends where the last program ends, and has no gap: each span is
//! what the next one had to wait for, by the engine's events (`uniference_sim::event::Cause`). Time off the path did
//! not determine the end of the run; shortening a span of the path shortens the run by as much, until another path is
//! longer.

mod causes;
mod difference;
mod release;
mod table;
#[cfg(test)]
mod tests;
mod walk;

pub use causes::Causes;
pub use difference::{Change, Difference, PartChange};
pub use table::render;
pub use walk::Kind;

use causes::{NOWHERE, Name};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use uniference_formats::report::{CriticalPathReport, PathPartReport};
use uniference_formats::table::in_folder;
use uniference_sim::ids::{LinkId, RankId, Site};
use uniference_sim::time::{SimDuration, SimTime};
use walk::{Path, Span, walk};

/// The parts of the critical path of a run. The `seconds` of each list add up to the makespan, except those of `links`
/// and `operations`: not all time belongs to a link or an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The time at which the last rank ended.
    pub makespan_s: f64,
    /// The last rank that ended.
    pub rank: u32,
    /// The explanation in one sentence.
    pub summary: String,
    /// The path by kind. All lists are in descending order of time.
    pub kinds: Vec<Part<&'static str>>,
    /// The path by rank.
    pub ranks: Vec<Part<u32>>,
    /// Time of messages by link: each message counts for the link that held it back for longest while it left, or, if
    /// no link did, for the slowest link of its route.
    pub links: Vec<Part<String>>,
    /// The path by operation of process groups.
    pub operations: Vec<Part<String>>,
    /// The path by line of the program; `None` (null): the line is unknown.
    pub lines: Vec<Part<Option<String>>>,
    /// The path by the innermost range that was open on the rank; `None` (null): no range was open.
    pub ranges: Vec<Part<Option<String>>>,
    /// The path by all of these together.
    pub parts: Vec<Contribution>,
    /// The path itself, the first span first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<Step>,
}

impl Explanation {
    /// This explanation as a JSON object, with a newline.
    ///
    /// # Panics
    /// Never.
    pub fn to_json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("texts and numbers are JSON"))
    }
}

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part<K> {
    /// The kind, rank, link, operation, line or range.
    pub name: K,
    /// Seconds of the path.
    pub seconds: f64,
    /// Fraction of the makespan.
    pub share: f64,
}

/// A contribution to the path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// The kind of the time, and where it passes.
    #[serde(flatten)]
    pub what: What,
    /// Seconds of the path.
    pub seconds: f64,
    /// Fraction of the makespan.
    pub share: f64,
    /// Number of spans.
    pub count: u64,
}

/// A span of the path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Start of the span, in picoseconds.
    pub start_ps: u64,
    /// End of the span, in picoseconds.
    pub end_ps: u64,
    /// The kind of the time, and where it passes.
    #[serde(flatten)]
    pub what: What,
    /// The innermost range that was open on the rank.
    pub range: Option<String>,
}

/// Maximum number of parts of the critical path in a report.
const MOST_IN_REPORT: usize = 10;

impl Explanation {
    /// The explanation in the form of the report; `None`: the run has no duration, or part of its path is unknown.
    pub fn report(&self) -> Option<CriticalPathReport> {
        let is_known = !self.kinds.is_empty() && self.kinds.iter().all(|part| part.name != Kind::Unknown.name());
        let kind = |part: &Part<&'static str>| PathPartReport {
            kind: part.name.to_owned(),
            rank: None,
            link: None,
            name: None,
            line: None,
            seconds: part.seconds,
            share: part.share,
        };
        let contribution = |part: &Contribution| {
            let What { kind, rank, link, name, line } = part.what.clone();
            let (kind, seconds, share) = (kind.to_owned(), part.seconds, part.share);
            PathPartReport { kind, rank, link, name, line, seconds, share }
        };
        is_known.then(|| CriticalPathReport {
            rank: self.rank,
            kinds: self.kinds.iter().map(kind).collect(),
            parts: self.parts.iter().take(MOST_IN_REPORT).map(contribution).collect(),
        })
    }
}

/// The kind of a time on the critical path, and where it passes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct What {
    /// The kind of time.
    pub kind: &'static str,
    /// The rank whose time it is, for a message its sender; `None` if messages of several ranks on one link are added
    /// up.
    pub rank: Option<u32>,
    /// The link that held the message back for longest, else the slowest link of its route; `None` (null) for other
    /// kinds of time and between ranks of one host that has no link.
    pub link: Option<String>,
    /// Name of the compute or of the operation.
    pub name: Option<String>,
    /// The line of the program.
    pub line: Option<String>,
}

/// The name that stands for compute without a name; messages leave it out.
const COMPUTE: &str = "compute";

/// The key by which spans are added up.
type Key = (Kind, Option<RankId>, Option<LinkId>, Option<Name>, Site);

/// A span, and the innermost range that was open on its rank.
type Piece = (Span, Option<Name>);

/// The spans of the path that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// No spans: only their sums.
    Nothing,
    /// At most so many spans, for figures: the spans within each such part of the makespan are joined, under the name
    /// of the longest.
    AtMost(u64),
    /// All spans.
    All,
}

impl Causes {
    /// The explanation of the run. `lines` are the lines of the program, by site. `None`: no program has ended.
    pub fn explain(&self, lines: &[String], listed: Listed) -> Option<Explanation> {
        let Path { rank, finish, mut spans } = walk(self)?;
        spans.reverse();
        let view = View { causes: self, names: self.texts(), lines, makespan: finish.since(SimTime::ZERO) };
        let pieces: Vec<Piece> = spans.iter().flat_map(|span| self.by_range(span)).collect();
        let mut sums: BTreeMap<Key, (SimDuration, u64)> = BTreeMap::new();
        for span in &spans {
            let rank = (!span.kind.is_of_link() || span.link.is_none()).then_some(span.rank);
            let sum = sums.entry((span.kind, rank, span.link, span.name, span.site)).or_default();
            sum.0 += span.end.since(span.start);
            sum.1 += 1;
        }
        let mut parts: Vec<(Key, (SimDuration, u64))> = sums.into_iter().collect();
        parts.sort_by_key(|(_, (lasts, _))| Reverse(*lasts));
        let step = |(span, range): &Piece| Step {
            start_ps: span.start.as_ps(),
            end_ps: span.end.as_ps(),
            what: view.what(&(span.kind, Some(span.rank), span.link, span.name, span.site)),
            range: range.map(|name| view.name(name)),
        };
        let all = || pieces.iter();
        Some(Explanation {
            makespan_s: view.makespan.as_secs_f64(),
            rank: rank.0,
            summary: view.summary(&parts),
            kinds: view.by(all(), |(span, _)| Some(span.kind), Kind::name),
            ranks: view.by(all(), |(span, _)| Some(span.rank), |rank| rank.0),
            links: view.by(all(), |(span, _)| span.link, |link| self.link(link).to_owned()),
            operations: view.by(all(), |(span, _)| span.operation(), |name| view.name(name)),
            lines: view.by(all(), |(span, _)| Some(span.site), |site| view.line(site)),
            ranges: view.by(all(), |(_, range)| Some(*range), |range| range.map(|name| view.name(name))),
            parts: parts.iter().map(|part| view.contribution(part)).collect(),
            path: match listed {
                Listed::Nothing => Vec::new(),
                Listed::AtMost(most) => together(&pieces, view.makespan, most).iter().map(step).collect(),
                Listed::All => pieces.iter().map(step).collect(),
            },
        })
    }

    /// The innermost range in which the span's compute was launched on a CUDA stream, if a range was open; the outer
    /// `None`: the span is no such compute.
    fn launched_in(&self, span: &Span) -> Option<Option<Name>> {
        let activity = span.activity.filter(|_| span.kind == Kind::Compute)?;
        self.activity(span.rank, activity)?.launched_in
    }

    /// A span in pieces that each lie in one range of its rank; work on a CUDA stream lies in the range of its launch.
    fn by_range(&self, span: &Span) -> Vec<Piece> {
        if let Some(range) = self.launched_in(span) {
            return vec![(*span, range)];
        }
        let ranges = &self.ranks[span.rank.index()].ranges;
        let first = ranges.partition_point(|(at, _)| *at <= span.start);
        let (mut start, mut range, mut pieces) = (span.start, self.range(span.rank, span.start), Vec::new());
        for (at, next) in ranges[first..].iter().take_while(|(at, _)| *at < span.end) {
            if start < *at {
                pieces.push((Span { start, end: *at, ..*span }, range));
            }
            (start, range) = (*at, *next);
        }
        pieces.push((Span { start, ..*span }, range));
        pieces
    }
}

/// The pieces of a path, joined within each of `most` parts of the makespan: the longest piece of a part represents it,
/// with the time of all its pieces.
fn together(pieces: &[Piece], makespan: SimDuration, most: u64) -> Vec<Piece> {
    let lasts = |piece: &Piece| piece.0.end.since(piece.0.start);
    let part = |piece: &Piece| piece.0.start.as_ps() / makespan.as_ps().div_ceil(most).max(1);
    let one = |pieces: &[Piece]| {
        let mut longest = *pieces.iter().max_by_key(|piece| lasts(piece)).expect("a chunk has pieces");
        (longest.0.start, longest.0.end) = (pieces[0].0.start, pieces[pieces.len() - 1].0.end);
        longest
    };
    pieces.chunk_by(|a, b| part(a) == part(b)).map(one).collect()
}

/// Views spans of a path with their names and lines.
struct View<'a> {
    causes: &'a Causes,
    names: Vec<&'a str>,
    lines: &'a [String],
    makespan: SimDuration,
}

impl View<'_> {
    /// The spans added up by the name that `id` and `name` give them, without spans that have none; the longest first.
    fn by<'b, I: Ord, K: Ord>(
        &self,
        spans: impl Iterator<Item = &'b Piece>,
        id: impl Fn(&Piece) -> Option<I>,
        name: impl Fn(I) -> K,
    ) -> Vec<Part<K>> {
        let mut by_id: BTreeMap<I, SimDuration> = BTreeMap::new();
        for piece in spans {
            if let Some(id) = id(piece) {
                *by_id.entry(id).or_default() += piece.0.end.since(piece.0.start);
            }
        }
        let mut sums: BTreeMap<K, SimDuration> = BTreeMap::new();
        by_id.into_iter().for_each(|(id, lasts)| *sums.entry(name(id)).or_default() += lasts);
        let part =
            |(name, lasts): (K, SimDuration)| Part { name, seconds: lasts.as_secs_f64(), share: self.share(lasts) };
        let mut parts: Vec<Part<K>> = sums.into_iter().map(part).collect();
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        parts
    }

    /// The two largest kinds in one sentence, each with the place of most of its time.
    fn summary(&self, parts: &[(Key, (SimDuration, u64))]) -> String {
        let mut kinds: BTreeMap<Kind, SimDuration> = BTreeMap::new();
        for ((kind, ..), (lasts, _)) in parts {
            *kinds.entry(*kind).or_default() += *lasts;
        }
        let mut kinds: Vec<(Kind, SimDuration)> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, lasts)| Reverse(*lasts));
        let part = |(kind, lasts): &(Kind, SimDuration)| {
            format!("{} is {}{}", self.percent(*lasts), kind.name(), self.mostly(*kind, *lasts, parts))
        };
        match &kinds[..] {
            [] => "the run takes no time".to_owned(),
            [only] => format!("of the makespan, {}", part(only)),
            [first, next, ..] => format!("of the makespan, {}; {}", part(first), part(next)),
        }
    }

    /// `" of pi.2 -> switch, in all_gather at model.py:41"`: the place of a kind's time; a part of the time has its
    /// share.
    fn mostly(&self, kind: Kind, all: SimDuration, parts: &[(Key, (SimDuration, u64))]) -> String {
        let of_kind = || parts.iter().filter(|((of, ..), _)| *of == kind);
        let mut places: BTreeMap<(Option<RankId>, Option<LinkId>), SimDuration> = BTreeMap::new();
        of_kind().for_each(|((_, rank, link, ..), (lasts, _))| *places.entry((*rank, *link)).or_default() += *lasts);
        let Some(((rank, link), most)) = places.into_iter().max_by_key(|(place, lasts)| (*lasts, Reverse(*place)))
        else {
            return String::new();
        };
        let place = match (link, rank) {
            (Some(link), _) => self.causes.link(link).to_owned(),
            (None, Some(rank)) => format!("{rank} ({})", self.causes.devices[rank.index()]),
            (None, None) => return String::new(),
        };
        let largest = of_kind().find(|((_, of_rank, of_link, ..), _)| (*of_rank, *of_link) == (rank, link));
        let within = largest.map(|(key, _)| self.within(key)).unwrap_or_default();
        match most == all {
            true => format!(" of {place}{within}"),
            false => format!(", most of it ({}) of {place}{within}", self.percent(most)),
        }
    }

    /// `", in all_gather at model.py:41"`.
    fn within(&self, (.., name, site): &Key) -> String {
        let name = name.map(|name| self.name(name)).filter(|name| name != COMPUTE);
        let line = self.line(*site).map(|line| format!("at {}", in_folder(&line)));
        let words: Vec<String> = name.map(|name| format!("in {name}")).into_iter().chain(line).collect();
        if words.is_empty() { String::new() } else { format!(", {}", words.join(" ")) }
    }

    fn percent(&self, lasts: SimDuration) -> String {
        format!("{:.1} %", 100.0 * self.share(lasts))
    }

    fn contribution(&self, (key, (lasts, count)): &(Key, (SimDuration, u64))) -> Contribution {
        Contribution { what: self.what(key), seconds: lasts.as_secs_f64(), share: self.share(*lasts), count: *count }
    }

    fn what(&self, (kind, rank, link, name, site): &Key) -> What {
        What {
            kind: kind.name(),
            rank: rank.map(|rank| rank.0),
            link: link.map(|link| self.causes.link(link).to_owned()),
            name: name.map(|name| self.name(name)),
            line: self.line(*site),
        }
    }

    fn name(&self, name: Name) -> String {
        self.names[name.0 as usize].to_owned()
    }

    fn line(&self, site: Site) -> Option<String> {
        self.lines.get(site.index()).filter(|line| site != NOWHERE && !line.is_empty()).cloned()
    }

    fn share(&self, lasts: SimDuration) -> f64 {
        if self.makespan == SimDuration::ZERO { 0.0 } else { lasts.as_secs_f64() / self.makespan.as_secs_f64() }
    }
}
