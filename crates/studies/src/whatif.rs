//! Owns the changes to a cluster that are worth a try, and their results. The caller simulates the changed cluster.

use crate::critical::{Explanation, Part};
use crate::overlap::Chances;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use uniference_formats::cluster::{Speed, bandwidth_of_host, bandwidth_of_link, speed_keys};
use uniference_formats::operators::BACKWARD;
use uniference_formats::table::{row, seconds, signed, signed_percent, table, wrapped};
use uniference_sim::cluster::Cluster;
use uniference_sim::collective::choose::algorithms_for;
use uniference_sim::program::{CallOp, CollectiveKind};

/// Maximum number of keys of one kind, and of hosts, that are tried one by one.
const MOST_KEYS: usize = 16;
/// Maximum number of changes shown on a terminal.
const MOST_ROWS: usize = 24;
/// Smallest gain, as a share of the makespan, that is shown.
const LEAST: f64 = 0.0005;

/// A change to a cluster, expressed as options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `--set`.
    pub set: Vec<String>,
    /// `--algorithm`.
    pub algorithms: Vec<String>,
    /// `--free`.
    pub free: Vec<String>,
    /// `--overlap`.
    pub overlap: Vec<String>,
}

impl Change {
    /// The words of the command line that make the change.
    pub fn options(&self) -> Vec<String> {
        let of = |name: &'static str, values: &'_ [String]| -> Vec<String> {
            values.iter().flat_map(|value| [name.to_owned(), value.clone()]).collect()
        };
        [
            of("--set", &self.set),
            of("--free", &self.free),
            of("--algorithm", &self.algorithms),
            of("--overlap", &self.overlap),
        ]
        .concat()
    }

    fn set(assignments: impl IntoIterator<Item = String>) -> Change {
        Change { set: assignments.into_iter().collect(), ..Change::default() }
    }
}

/// Changes that are worth a try: each kind of device and each link twice as fast, half the oversubscription of uplinks,
/// no latency, no disturbances, each operation of the critical path free or with each other algorithm, and compute that
/// overlaps the operations for which this is possible. `toml` is the whole cluster as recorded.
pub fn candidates(toml: &str, cluster: &Cluster, explanation: &Explanation, chances: &Chances) -> Vec<Change> {
    let keys = speed_keys(toml);
    let each = |speed: Speed, value: &'static str| {
        keys.iter().filter(move |key| key.speed == speed).map(move |key| format!("{}={value}", key.key))
    };
    let mut changes = Vec::new();
    let twice_as_fast = [(Speed::Slowdown, "/2"), (Speed::Bandwidth, "*2"), (Speed::Oversubscription, "/2")];
    for (speed, value) in twice_as_fast.into_iter().chain([(Speed::Latency, "0")]) {
        let all: Vec<String> = each(speed, value).collect();
        changes.extend(all.iter().take(MOST_KEYS).map(|assignment| Change::set([assignment.clone()])));
        if all.len() > 1 {
            changes.push(Change::set(all));
        }
    }
    changes.extend(each(Speed::Disturbance, "[]").map(|assignment| Change::set([assignment])));
    let hosts = slow_hosts(cluster, explanation).into_iter().filter_map(|host| bandwidth_of_host(toml, host));
    let links = explanation.links.iter().filter_map(|part| bandwidth_of_link(toml, ends(&part.name)?));
    changes.extend(hosts.chain(links.take(MOST_KEYS)).map(|key| Change::set([format!("{key}=*2")])));
    for Part { name, .. } in &explanation.operations {
        let free = if name == "recv" { CallOp::SEND } else { name };
        changes.push(Change { free: vec![free.to_owned()], ..Change::default() });
        let kind = CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name);
        let algorithms = kind.into_iter().flat_map(algorithms_for);
        let algorithms = algorithms.filter(|algorithm| algorithm.library().is_none_or(|of| of == cluster.backend.name));
        changes.extend(algorithms.map(|algorithm| {
            let choice = format!("{name}={}", algorithm.name());
            Change { algorithms: vec![choice], ..Change::default() }
        }));
    }
    changes.extend(
        chances
            .operations
            .iter()
            .take(MOST_KEYS)
            .map(|chance| Change { overlap: vec![chances.name(chance)], ..Change::default() }),
    );
    let mut once = Vec::new();
    changes.into_iter().for_each(|change| {
        if !once.contains(&change) {
            once.push(change)
        }
    });
    once
}

/// The names of the two ends of a link.
fn ends(link: &str) -> Option<[&str; 2]> {
    let (from, to) = link.split_once(" <-> ").or_else(|| link.split_once(" -> "))?;
    Some([from, to])
}

/// Hosts whose links the critical path crosses, the one with the most time first.
fn slow_hosts<'c>(cluster: &'c Cluster, explanation: &Explanation) -> Vec<&'c str> {
    let mut hosts: Vec<&str> = Vec::new();
    for Part { name: link, .. } in &explanation.links {
        for host in
            ends(link).into_iter().flatten().filter_map(|end| cluster.topology.hosts().iter().find(|host| *host == end))
        {
            if !hosts.contains(&&**host) {
                hosts.push(host);
            }
        }
    }
    hosts.truncate(MOST_KEYS);
    hosts
}

/// The results of changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// Makespan of the unchanged run.
    pub makespan_s: f64,
    /// Results of the changes, the largest gain first.
    pub changes: Vec<Outcome>,
    /// Changes that could not be simulated.
    pub refused: Vec<Refused>,
    /// Compute that could overlap operations; `None` if it was not examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Chances>,
    /// Points at which the program might have followed another branch than in the record.
    pub warnings: Vec<String>,
    /// The command that runs the program again with the change; only for a single change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
}

/// The result of one change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The words of the command line that make the change.
    pub options: Vec<String>,
    /// Makespan with the change.
    pub makespan_s: f64,
    /// Makespan before minus makespan with the change; negative if the run ends later.
    pub gain_s: f64,
    /// The gain as a fraction of the unchanged makespan.
    pub gain: f64,
    /// Digest of the changed run's events.
    pub digest: String,
    /// Parts of the critical path before and with the change; only for a single change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindChange>,
}

/// Time of one kind on the critical path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindChange {
    /// The name of the kind.
    pub name: &'static str,
    /// Seconds of the critical path in the unchanged run.
    pub before_s: f64,
    /// Seconds of the critical path with the change.
    pub after_s: f64,
}

/// A change that could not be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The words of the command line that make the change.
    pub options: Vec<String>,
    /// The reason why the change could not be simulated.
    pub error: String,
}

impl Outcome {
    /// The result of a change with these options, from `before_s` to `makespan_s`.
    pub fn new(options: Vec<String>, before_s: f64, makespan_s: f64, digest: String) -> Outcome {
        let gain_s = before_s - makespan_s;
        let gain = if before_s == 0.0 { 0.0 } else { gain_s / before_s };
        Outcome { options, makespan_s, gain_s, gain, digest, kinds: Vec::new() }
    }

    /// Adds the kinds of time on the critical path.
    #[must_use]
    pub fn explained(self, before: &Explanation, after: &Explanation) -> Outcome {
        let seconds =
            |of: &Explanation, name| of.kinds.iter().find(|part| part.name == name).map_or(0.0, |part| part.seconds);
        let mut names: Vec<&'static str> = before.kinds.iter().chain(&after.kinds).map(|part| part.name).collect();
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(*name);
                true
            }
        });
        let change = |name| KindChange { name, before_s: seconds(before, name), after_s: seconds(after, name) };
        Outcome { kinds: names.into_iter().map(change).collect(), ..self }
    }
}

impl WhatIf {
    /// The changes with the largest gain first; equal gains keep their order.
    #[must_use]
    pub fn sorted(mut self) -> WhatIf {
        self.changes.sort_by(|a, b| b.gain_s.total_cmp(&a.gain_s));
        self
    }

    /// These results as a JSON object, with a newline.
    ///
    /// # Panics
    /// Never.
    pub fn to_json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("texts and numbers are JSON"))
    }

    /// Several lines that end with a newline, at most 100 columns wide.
    pub fn render(&self) -> String {
        let mut text = match &self.changes[..] {
            [only] if !only.kinds.is_empty() => self.render_single(only),
            _ => self.render_table(),
        };
        if let Some(chances) = &self.overlap {
            let gains = |change: &&Outcome| !change.kinds.is_empty() || change.gain >= LEAST;
            let words = self.changes.iter().filter(gains).flat_map(|change| change.options.chunks_exact(2));
            let names: Vec<&str> = words.filter(|words| words[0] == "--overlap").map(|words| &*words[1]).collect();
            text = format!("{}\n\n{}", text.trim_end(), chances.render(&names));
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn render_single(&self, change: &Outcome) -> String {
        let mut table = table(&["", "before", "after", "change"], 1);
        let mut add = |name: &str, before: f64, after: f64| {
            let difference = if before > 0.0 { signed_percent(after / before - 1.0) } else { String::new() };
            table.add_row(row(&[name], &[seconds(before), seconds(after), difference]));
        };
        add("makespan", self.makespan_s, change.makespan_s);
        change.kinds.iter().for_each(|kind| add(kind.name, kind.before_s, kind.after_s));
        let options = shown(&change.options);
        let comes_to = match change.gain {
            gain if gain.abs() < LEAST => "the run takes as long as before".to_owned(),
            gain if gain > 0.0 => {
                let times = self.makespan_s / change.makespan_s;
                format!(
                    "the run takes {} less ({}): {times:.2} times as fast",
                    seconds(change.gain_s),
                    signed_percent(-gain)
                )
            }
            gain => format!("the run takes {} more ({})", seconds(-change.gain_s), signed_percent(-gain)),
        };
        format!("with {options}, {comes_to}\n\n{table}")
    }

    fn render_table(&self) -> String {
        let mut table = table(&["change", "makespan", "gain", ""], 1);
        let (differ, same): (Vec<&Outcome>, Vec<&Outcome>) =
            self.changes.iter().partition(|change| change.gain.abs() >= LEAST);
        for change in differ.iter().take(MOST_ROWS) {
            let numbers = [seconds(change.makespan_s), signed(change.gain_s), signed_percent(change.gain)];
            table.add_row(row(&[&shortened(&change.options)], &numbers));
        }
        let mut text =
            format!("the run takes {}; with one thing changed it takes\n\n{table}", seconds(self.makespan_s));
        if let Some(more) = differ.len().checked_sub(MOST_ROWS).filter(|more| *more > 0) {
            text += &format!("\n{more} more, with smaller gains or losses: see --json");
        }
        if !same.is_empty() {
            let options: Vec<String> = same.iter().map(|change| shortened(&change.options)).collect();
            text += &format!("\n\n{}", wrapped(&format!("no difference: {}", options.join("; "))));
        }
        for Refused { options, error } in &self.refused {
            let why = error.lines().next().unwrap_or_default().trim_start_matches("error: ");
            text += &format!("\n{}", wrapped(&format!("not possible: {}: {why}", shown(options))));
        }
        text
    }
}

/// The options in the syntax of a shell.
fn shown(options: &[String]) -> String {
    shlex::try_join(options.iter().map(String::as_str)).unwrap_or_else(|_| options.join(" "))
}

/// The options in a line: one option with its value, and the number of further ones if there are more than two.
fn shortened(options: &[String]) -> String {
    match options.len() / 2 {
        0..=2 => shown(options),
        more => format!("{} and {} more like it", shown(&options[..2]), more - 1),
    }
}

/// A line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineName(String);

impl std::str::FromStr for LineName {
    type Err = String;

    fn from_str(text: &str) -> Result<LineName, String> {
        let numbered = text.rsplit_once(':').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        numbered.then(|| LineName(text.to_owned())).ok_or_else(|| "must be FILE:LINE, as in model.py:41".to_owned())
    }
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LineName {
    /// Whether `line` is this line of the program, in the forward or the backward pass. The name begins with as many
    /// folders of the path as make it unique.
    pub fn is(&self, line: &str) -> bool {
        Path::new(line.strip_suffix(BACKWARD).unwrap_or(line)).ends_with(&self.0)
    }
}

/// A line of a program whose compute duration is scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct LineScale {
    /// The line of the program.
    pub line: LineName,
    /// Factor on the duration of the line's compute; finite, not negative.
    pub factor: f64,
}

impl std::str::FromStr for LineScale {
    type Err = String;

    fn from_str(text: &str) -> Result<LineScale, String> {
        let problem = || "must be FILE:LINE=FACTOR, as in model.py:41=0.5".to_owned();
        let (line, factor) = text.rsplit_once('=').ok_or_else(problem)?;
        let line = line.parse().map_err(|_| problem())?;
        match factor.trim().parse::<f64>() {
            Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(LineScale { line, factor }),
            _ => Err(problem()),
        }
    }
}

#[cfg(test)]
mod tests;
