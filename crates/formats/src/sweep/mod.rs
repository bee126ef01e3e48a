//! Owns the sweep file: the simulated program, its parameters, and the command line of each trial.
//!
//! Text in, values or a [`Diagnostic`] out. `docs/reference/sweep-file.md` describes every key. `uniference-studies`
//! chooses the points, and `uniference-session` carries them out.

mod columns;
mod formula;
mod read;
mod results;
#[cfg(test)]
mod tests;

pub use columns::FIGURES;
pub use formula::Formula;
pub use results::{ResultColumn, Results};

use crate::diagnostic::Diagnostic;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Maximum number of points of a sweep.
pub const MOST_POINTS: usize = 10_000;

/// Options that determine the simulated cluster: runs and replays have them.
const CLUSTER_OPTIONS: [&str; 6] = ["cluster", "ranks", "bandwidth", "latency", "slowdown", "backend"];
/// Options whose values are paths, relative to the sweep file's folder.
const PATH_OPTIONS: [&str; 2] = ["cluster", "device-db"];

/// A valid sweep file.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The sweep's name in reports.
    pub name: String,
    /// Method by which points are chosen.
    pub method: Method,
    /// Condition under which a trial replays another trial's record.
    pub replays: Replays,
    /// The parameters, in the order of the file: in a grid the first one varies slowest.
    pub parameters: Vec<Parameter>,
    /// Condition that every point must satisfy.
    pub condition: Option<Formula>,
    /// Derived figures.
    pub measures: Vec<Measure>,
    /// Goal and limits of a search.
    pub search: Option<Search>,
    program: Program,
    /// Arguments of the program, with `{NAME}` in place of a parameter.
    templates: Vec<String>,
    /// Settings with one value, each with its place.
    fixed: Vec<(Target, Value, Range<usize>)>,
    origin: String,
    text: String,
}

/// The program that every trial runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Program {
    /// The path of a script.
    Script(String),
    /// A module, as `python -m` runs it.
    Module(String),
    /// A kind of generated job.
    Workload(String),
}

/// Method by which points are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All combinations of values.
    Grid,
    /// Random search: each parameter is drawn independently.
    Random {
        /// Number of points.
        points: usize,
        /// Seed of the draws.
        seed: u64,
    },
    /// A Latin hypercube: the values of each parameter are covered evenly.
    LatinHypercube {
        /// Number of points.
        points: usize,
        /// Seed of the draws.
        seed: u64,
    },
}

/// Condition under which a trial replays another trial's record instead of a run of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// If the program sees the same cluster, and its record does not depend on time.
    Exact,
    /// If the program sees the same cluster; the results carry the warnings.
    Always,
    /// Never: every trial is a run.
    Never,
}

/// A parameter of the sweep.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name of the parameter's column.
    pub name: String,
    /// The setting that the parameter changes.
    pub target: Target,
    /// The values that the parameter can have.
    pub domain: Domain,
    place: Range<usize>,
}

/// The setting that a parameter changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An argument of the program: `--NAME VALUE`.
    Argument(String),
    /// An option of `uniference run` or `uniference workload`.
    Option(String),
    /// A key of the cluster file.
    Cluster(String),
}

/// The values of a parameter.
#[derive(Clone, Debug)]
pub enum Domain {
    /// Listed values, each with its place in the file.
    Values(Vec<(Value, Range<usize>)>),
    /// Any number of an interval.
    Interval(Interval),
}

/// An interval of numbers, both ends included.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    from: f64,
    to: f64,
    /// Whether equal ratios are equally likely, rather than equal differences.
    logarithmic: bool,
    /// Whether the values are integers.
    whole: bool,
    /// The unit after the number.
    unit: String,
}

/// A value in the file's notation.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `4`.
    Integer(i64),
    /// `0.5`.
    Float(f64),
    /// `true`.
    Boolean(bool),
    /// A string: `"10 Gbps"`.
    Text(String),
    /// A list or a table, as TOML.
    Toml(String),
}

/// A derived figure.
#[derive(Clone, Debug)]
pub struct Measure {
    /// The name of the measure's column.
    pub name: String,
    /// The formula of parameters and columns.
    pub formula: Formula,
}

/// Goal and limits of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Largest number of trials.
    pub trials: usize,
    /// Number of points that are chosen before any of their trials is carried out.
    pub at_once: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// The columns to minimize or maximize; at least one.
    pub objectives: Vec<Objective>,
    /// Formulas that the results must satisfy.
    pub constraints: Vec<Formula>,
}

/// A column to minimize or maximize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Name of the column.
    pub column: String,
    /// Whether it is maximized; otherwise it is minimized.
    pub maximize: bool,
}

/// A place in a sweep file.
#[derive(Clone, Debug)]
pub struct Place(Range<usize>);

/// The words of the command that carries a trial out, without `uniference`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// `run`, or `workload` and its kind.
    pub command: Vec<String>,
    /// Options that determine the simulated cluster and the seed.
    pub cluster: Vec<String>,
    /// All other options.
    pub options: Vec<String>,
    /// The program and its arguments; for a job the options that describe it.
    pub program: Vec<String>,
}

impl Words {
    /// All words, with further options.
    pub fn all(&self, further: &[String]) -> Vec<String> {
        [&self.command, &self.cluster, &self.options, further, &self.program].into_iter().flatten().cloned().collect()
    }
}

impl Sweep {
    /// Reads the text of a sweep file that came from `origin` (its path).
    ///
    /// # Errors
    /// If the text is no TOML, or has an unknown key, a value of the wrong type, an empty list, or more draws than
    /// [`MOST_POINTS`].
    pub fn parse(origin: &str, text: &str) -> Result<Sweep, Diagnostic> {
        read::read(origin, text)
    }

    /// Refuses a grid with intervals, or with more points than [`MOST_POINTS`].
    ///
    /// # Errors
    /// If the sweep is such a grid.
    pub fn check_grid(&self) -> Result<(), Diagnostic> {
        if self.method == Method::Grid { read::check_grid(self) } else { Ok(()) }
    }

    /// Whether the sweep is about a generated job, which needs no interpreter.
    pub fn is_of_jobs(&self) -> bool {
        matches!(self.program, Program::Workload(_))
    }

    /// The script, if the program is one. `folder` is the folder of the sweep file.
    pub fn script(&self, folder: &Path) -> Option<std::path::PathBuf> {
        match &self.program {
            Program::Script(script) => Some(folder.join(script)),
            Program::Module(_) | Program::Workload(_) => None,
        }
    }

    /// The command that carries out a point, which has a value for each parameter. Paths are relative to `folder`, the
    /// folder of the sweep file.
    pub fn words(&self, point: &[Value], folder: &Path) -> Words {
        self.words_of(&self.settings(point), folder)
    }

    /// The place of a setting without which the point's command works, if there is one.
    pub fn culprit(&self, point: &[Value], folder: &Path, works: impl Fn(&Words) -> bool) -> Option<Place> {
        let settings = self.settings(point);
        let without = |left_out: usize| {
            let kept = settings.iter().enumerate().filter(|(number, _)| *number != left_out);
            self.words_of(&kept.map(|(_, setting)| *setting).collect::<Vec<_>>(), folder)
        };
        let culprit = (0..settings.len()).find(|number| works(&without(*number)))?;
        Some(match culprit.checked_sub(self.fixed.len()) {
            None => Place(self.fixed[culprit].2.clone()),
            Some(parameter) => self.place(parameter, &point[parameter]),
        })
    }

    /// The place of a parameter's value; for an interval, the place of the parameter.
    pub fn place(&self, parameter: usize, value: &Value) -> Place {
        let Parameter { domain, place, .. } = &self.parameters[parameter];
        let listed = match domain {
            Domain::Values(values) => values.iter().find(|(other, _)| other == value),
            Domain::Interval(_) => None,
        };
        Place(listed.map_or(place, |(_, place)| place).clone())
    }

    /// The message with its place in the file.
    pub fn error(&self, message: Diagnostic, Place(place): Place) -> Diagnostic {
        message.at(&self.origin, &self.text, place)
    }

    fn settings<'s>(&'s self, point: &'s [Value]) -> Vec<(&'s Target, &'s Value)> {
        let fixed = self.fixed.iter().map(|(target, value, _)| (target, value));
        fixed.chain(self.parameters.iter().map(|parameter| &parameter.target).zip(point)).collect()
    }

    fn words_of(&self, settings: &[(&Target, &Value)], folder: &Path) -> Words {
        let (command, program) = match &self.program {
            Program::Script(script) => (vec!["run".to_owned()], vec![folder.join(script).display().to_string()]),
            Program::Module(module) => (vec!["run".to_owned()], vec!["-m".to_owned(), module.clone()]),
            Program::Workload(kind) => (vec!["workload".to_owned(), kind.clone(), "--run".to_owned()], Vec::new()),
        };
        let mut words = Words { command, cluster: Vec::new(), options: Vec::new(), program };
        // Arguments without a name come first: they may name a command whose options follow.
        let templates = words.program.len()..words.program.len() + self.templates.len();
        words.program.extend(self.templates.iter().cloned());
        for (target, value) in settings {
            match target {
                Target::Cluster(key) => words.cluster.push(format!("--set={key}={}", value.toml())),
                Target::Option(name) => {
                    let group = match CLUSTER_OPTIONS.contains(&name.as_str()) || name == "seed" {
                        true => &mut words.cluster,
                        false => &mut words.options,
                    };
                    let text = value.to_string();
                    let text = match text.strip_prefix("from=").filter(|_| name == "compute") {
                        Some(run) => format!("from={}", folder.join(run).display()),
                        None if PATH_OPTIONS.contains(&name.as_str()) => folder.join(text).display().to_string(),
                        None => text,
                    };
                    match value {
                        Value::Boolean(true) => group.push(format!("--{name}")),
                        Value::Boolean(false) => {}
                        _ => group.push(format!("--{name}={text}")),
                    }
                }
                Target::Argument(name) => {
                    let place = format!("{{{name}}}");
                    if self.templates.iter().any(|template| template.contains(&place)) {
                        let text = value.to_string();
                        let words = &mut words.program[templates.clone()];
                        words.iter_mut().for_each(|word| *word = word.replace(&place, &text));
                        continue;
                    }
                    match value {
                        Value::Boolean(true) => words.program.push(format!("--{name}")),
                        Value::Boolean(false) => {}
                        _ => words.program.extend([format!("--{name}"), value.to_string()]),
                    }
                }
            }
        }
        words
    }
}

impl Domain {
    /// Number of values; `None`: an interval.
    pub fn count(&self) -> Option<usize> {
        match self {
            Domain::Values(values) => Some(values.len()),
            Domain::Interval(_) => None,
        }
    }

    /// Whether the values are ordered numbers, ascending or descending.
    pub fn is_ordered(&self) -> bool {
        match self {
            Domain::Values(values) => {
                let numbers: Option<Vec<f64>> = values.iter().map(|(value, _)| value.number()).collect();
                numbers.is_some_and(|numbers| numbers.is_sorted() || numbers.iter().rev().is_sorted())
            }
            Domain::Interval(_) => true,
        }
    }

    /// The value at a share of the domain from 0 to less than 1.
    pub fn at(&self, share: f64) -> Value {
        match self {
            Domain::Values(values) => values[((share * values.len() as f64) as usize).min(values.len() - 1)].0.clone(),
            Domain::Interval(interval) => interval.at(share),
        }
    }
}

impl Interval {
    fn at(&self, share: f64) -> Value {
        // Each integer has an equal part of the interval, the last one too.
        let end = if self.whole { self.to + 1.0 } else { self.to };
        let number = match self.logarithmic {
            true => (self.from.ln() + share * (end.ln() - self.from.ln())).exp(),
            false => self.from + share * (end - self.from),
        };
        self.value(if self.whole { number.floor().clamp(self.from, self.to) } else { number })
    }

    /// `count` numbers from one end to the other; `count` is at least 2.
    fn steps(&self, count: usize) -> Vec<Value> {
        let number = |step: usize| {
            let share = step as f64 / (count - 1) as f64;
            match self.logarithmic {
                true => (self.from.ln() + share * (self.to.ln() - self.from.ln())).exp(),
                false => self.from + share * (self.to - self.from),
            }
        };
        (0..count).map(|step| self.value(number(step))).collect()
    }

    /// A value with four significant digits, which are enough for people.
    fn value(&self, number: f64) -> Value {
        if self.whole && self.unit.is_empty() {
            return Value::Integer(number.round() as i64);
        }
        let rounded: f64 = format!("{number:.3e}").parse().expect("it is a number");
        let rounded = if self.whole { number.round() } else { rounded };
        if self.unit.is_empty() { Value::Float(rounded) } else { Value::Text(format!("{rounded} {}", self.unit)) }
    }
}

impl Value {
    /// The value as TOML.
    pub fn toml(&self) -> String {
        match self {
            Value::Float(number) => format!("{number:?}"),
            Value::Text(text) => toml::Value::String(text.clone()).to_string(),
            other => other.to_string(),
        }
    }

    /// The value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            Value::Boolean(_) | Value::Text(_) | Value::Toml(_) => None,
        }
    }
}

/// The value as a word of a command line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::Boolean(value) => write!(f, "{value}"),
            Value::Text(text) | Value::Toml(text) => f.write_str(text),
        }
    }
}
