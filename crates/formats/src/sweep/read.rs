//! Owns the reading of a sweep file: its keys, and errors at the places of their values.

use super::columns::FIGURES;
use super::{
    Domain, Formula, Interval, MOST_POINTS, Measure, Method, Objective, Parameter, Program, Replays, Search, Sweep,
    Target, Value,
};
use crate::column::CellType;
use crate::diagnostic::{Diagnostic, suggest};
use crate::syntax::syntax_error;
use std::borrow::Cow;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const DOCUMENTED: &str = "see \"Sweep file\" in the documentation for all keys and their values";
const KEYS: [&str; 12] = [
    "name",
    "method",
    "points",
    "seed",
    "where",
    "replays",
    "program",
    "arguments",
    "options",
    "cluster",
    "measures",
    "search",
];
const SEARCH_KEYS: [&str; 6] = ["trials", "at_once", "seed", "minimize", "maximize", "constraints"];
const FEWER: &str =
    "give parameters fewer values, or draw some of the points: method = \"latin-hypercube\" with points = 100";
const PROGRAM_KEYS: [&str; 4] = ["script", "module", "workload", "arguments"];
const INTERVAL_KEYS: [&str; 4] = ["from", "to", "scale", "steps"];
/// Options of commands that a sweep replaces or does not have, and advice for each.
const OTHERWISE: [(&str, &str); 13] = [
    ("set", "put keys of the cluster file into [cluster]"),
    ("algorithm", "put the algorithm into [cluster], for example \"collective.all_reduce\" = [\"ring\", \"tree\"]"),
    ("free", "put operations that take no time into [cluster], for example free = [[], [\"all_gather\"]]"),
    ("out", "the results of trials are in folders of the sweep; choose its folder on the command line: --out DIR"),
    ("json", "each trial's folder has its report.json"),
    ("repeat", "let the option `seed` vary: seed = { from = 0, to = 9, steps = 10 }"),
    ("run", "a job is always run"),
    ("module", "name the module in [program]: module = \"NAME\""),
    ("debug-rank", "debug a trial by itself, with `uniference run`"),
    ("chakra", "create traces from a trial's record: `uniference chakra export`"),
    ("representatives", "a job is run, and writes no traces"),
    ("help", "`uniference run --help` lists the options"),
    ("quiet", "a sweep shows nothing of its trials"),
];

type Slot<'a> = Spanned<DeValue<'a>>;

struct Reader<'t> {
    origin: &'t str,
    text: &'t str,
}

pub(super) fn read(origin: &str, text: &str) -> Result<Sweep, Diagnostic> {
    let root = DeTable::parse(text).map_err(|error| syntax_error(origin, text, &error, DOCUMENTED))?;
    Reader { origin, text }.sweep(root.get_ref())
}

impl<'t> Reader<'t> {
    fn sweep(&self, root: &DeTable<'_>) -> Result<Sweep, Diagnostic> {
        self.check_keys(root, "", &KEYS)?;
        let at = |key: &str| root.get(key);
        let Some(program_table) = at("program") else {
            let hint = "add a table [program] with script = \"FILE\", module = \"NAME\" or workload = \"llama\"";
            return Err(Diagnostic::new(format!("{}: missing table `program`", self.origin)).hint(hint));
        };
        let (program, templates) = self.program(program_table)?;
        let (mut parameters, mut fixed) = (Vec::new(), Vec::new());
        for (key, target) in [
            ("arguments", Target::Argument as fn(String) -> Target),
            ("options", Target::Option),
            ("cluster", Target::Cluster),
        ] {
            if let Some(slot) = at(key) {
                let table = self.table(slot, key)?;
                self.settings(table, String::new(), target, &mut parameters, &mut fixed)?;
            }
        }
        parameters.sort_by_key(|parameter| parameter.place.start);
        self.check_names(&parameters)?;
        self.check_options(&parameters, &program)?;
        fixed.iter().try_for_each(|(target, _, place)| self.check_option(target, place, &program))?;
        self.check_placeholders(&templates, &parameters, &fixed, program_table)?;
        let method = self.method(root)?;
        let condition = at("where").map(|slot| self.condition(slot, &parameters)).transpose()?;
        let measures = at("measures").map(|slot| self.measures(slot, &parameters)).transpose()?.unwrap_or_default();
        let search = at("search").map(|slot| self.search(slot, &parameters, &measures)).transpose()?;
        let name = at("name").map(|slot| self.string(slot)).transpose()?;
        Ok(Sweep {
            name: name.unwrap_or_else(|| stem(self.origin)),
            method,
            replays: at("replays").map_or(Ok(Replays::Exact), |slot| self.replays(slot))?,
            parameters,
            condition,
            measures,
            search,
            program,
            templates,
            fixed,
            origin: self.origin.to_owned(),
            text: self.text.to_owned(),
        })
    }

    fn error(&self, message: impl Into<String>, place: Range<usize>) -> Diagnostic {
        Diagnostic::new(message).at(self.origin, self.text, place)
    }

    fn check_keys(&self, table: &DeTable<'_>, of: &str, known: &[&'static str]) -> Result<(), Diagnostic> {
        for (key, _) in table.iter() {
            if !known.contains(&&**key.get_ref()) {
                let message = format!("unknown key `{}`{of}", key.get_ref());
                return Err(self.error(message, key.span()).hint(suggest(
                    key.get_ref(),
                    "keys",
                    known.iter().copied(),
                )));
            }
        }
        Ok(())
    }

    fn table<'v, 'a>(&self, slot: &'v Slot<'a>, name: &str) -> Result<&'v DeTable<'a>, Diagnostic> {
        slot.get_ref().as_table().ok_or_else(|| {
            self.error(format!("`{name}` is a table, not a {}", kind(slot.get_ref())), slot.span())
                .hint(format!("write [{name}] on a line of its own, and its keys below"))
        })
    }

    fn string(&self, slot: &Slot<'_>) -> Result<String, Diagnostic> {
        let text = slot.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| {
            self.error(format!("expected a text, found a {}", kind(slot.get_ref())), slot.span()).hint(DOCUMENTED)
        })
    }

    fn whole(&self, slot: &Slot<'_>, least: u64) -> Result<u64, Diagnostic> {
        let number = match slot.get_ref() {
            DeValue::Integer(integer) => integer.as_str().replace('_', "").parse::<u64>().ok(),
            _ => None,
        };
        number.filter(|number| *number >= least).ok_or_else(|| {
            self.error(format!("expected a whole number of at least {least}"), slot.span()).hint(DOCUMENTED)
        })
    }

    fn choice<T: Copy>(&self, slot: &Slot<'_>, what: &str, choices: &[(&str, T)]) -> Result<T, Diagnostic> {
        let text = self.string(slot)?;
        choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
            let hint = suggest(&text, &format!("{what}s"), choices.iter().map(|(name, _)| *name));
            self.error(format!("unknown {what} `{text}`"), slot.span()).hint(hint)
        })
    }

    fn program(&self, slot: &Slot<'_>) -> Result<(Program, Vec<String>), Diagnostic> {
        let table = self.table(slot, "program")?;
        self.check_keys(table, " of `program`", &PROGRAM_KEYS)?;
        let kinds = [
            ("script", Program::Script as fn(String) -> Program),
            ("module", Program::Module),
            ("workload", Program::Workload),
        ];
        let named: Vec<_> = kinds.iter().filter_map(|(key, kind)| Some((table.get(*key)?, kind))).collect();
        let [(value, make)] = named[..] else {
            let hint = "give one of script = \"FILE\", module = \"NAME\" and workload = \"llama\"";
            let count = if named.is_empty() { "no program" } else { "more than one program" };
            return Err(self.error(format!("`program` names {count}"), slot.span()).hint(hint));
        };
        let program = make(self.string(value)?);
        let templates = match table.get("arguments").map(|slot| (slot, slot.get_ref().as_array())) {
            None => Vec::new(),
            Some((_, Some(words))) => words.iter().map(|word| self.string(word)).collect::<Result<_, _>>()?,
            Some((slot, None)) => {
                let hint = "write arguments = [\"--layers\", \"4\"]";
                return Err(self.error("expected a list of texts", slot.span()).hint(hint));
            }
        };
        Ok((program, templates))
    }

    /// The entries of `[arguments]`, `[options]` or `[cluster]`. For the cluster file, `prefix` is the key of the table
    /// that they are in.
    fn settings(
        &self,
        table: &DeTable<'_>,
        prefix: String,
        target: fn(String) -> Target,
        parameters: &mut Vec<Parameter>,
        fixed: &mut Vec<(Target, Value, Range<usize>)>,
    ) -> Result<(), Diagnostic> {
        let is_cluster = matches!(target(String::new()), Target::Cluster(_));
        let is_option = matches!(target(String::new()), Target::Option(_));
        for (key, slot) in table.iter() {
            let name = match (is_cluster, prefix.is_empty()) {
                (true, true) => key.get_ref().clone().into_owned(),
                (true, false) => format!("{prefix}.{}", quoted(key.get_ref())),
                (false, _) if is_option => key.get_ref().replace('_', "-"),
                (false, _) => key.get_ref().clone().into_owned(),
            };
            match slot.get_ref() {
                DeValue::Table(inner) if inner.contains_key("from") || inner.contains_key("to") => {
                    let domain = self.interval(slot, inner)?;
                    let column = if is_option { key.get_ref().clone().into_owned() } else { name.clone() };
                    parameters.push(Parameter { name: column, target: target(name), domain, place: key.span() });
                }
                DeValue::Table(inner) if is_cluster => self.settings(inner, name, target, parameters, fixed)?,
                DeValue::Table(_) => {
                    let hint = "an interval is { from = 1, to = 8 }, with scale = \"log\" where ratios count";
                    return Err(self.error(format!("`{name}` is no interval"), slot.span()).hint(hint));
                }
                DeValue::Array(values) => {
                    if values.is_empty() {
                        let hint = "give its values, or remove the key";
                        return Err(self.error(format!("`{name}` has no values"), slot.span()).hint(hint));
                    }
                    let mut list: Vec<(Value, Range<usize>)> = Vec::new();
                    for value in values.iter() {
                        let read = self.value(value, is_cluster)?;
                        if list.iter().any(|(other, _)| *other == read) {
                            let message = format!("`{name}` has the value {} twice", read.toml());
                            return Err(self.error(message, value.span()).hint("remove one of them"));
                        }
                        list.push((read, value.span()));
                    }
                    let column = if is_option { key.get_ref().clone().into_owned() } else { name.clone() };
                    let domain = Domain::Values(list);
                    parameters.push(Parameter { name: column, target: target(name), domain, place: key.span() });
                }
                _ => fixed.push((target(name), self.value(slot, is_cluster)?, key.span())),
            }
        }
        Ok(())
    }

    fn value(&self, slot: &Slot<'_>, any: bool) -> Result<Value, Diagnostic> {
        let invalid = |what: &str| self.error(what, slot.span()).hint(DOCUMENTED);
        Ok(match slot.get_ref() {
            DeValue::String(text) => Value::Text(text.clone().into_owned()),
            DeValue::Boolean(value) => Value::Boolean(*value),
            DeValue::Integer(integer) => {
                let plain = integer.as_str().replace('_', "");
                let number = i64::from_str_radix(plain.trim_start_matches('+'), integer.radix());
                Value::Integer(number.map_err(|_| invalid("the number is too large"))?)
            }
            DeValue::Float(float) => {
                let number: Option<f64> = float.as_str().replace('_', "").parse().ok();
                let number = number.filter(|number| number.is_finite());
                Value::Float(number.ok_or_else(|| invalid("the number is not finite"))?)
            }
            DeValue::Array(_) | DeValue::Table(_) if any => Value::Toml(self.text[slot.span()].to_owned()),
            other => return Err(invalid(&format!("a {} is no value of an argument or option", kind(other)))),
        })
    }

    fn interval(&self, slot: &Slot<'_>, table: &DeTable<'_>) -> Result<Domain, Diagnostic> {
        self.check_keys(table, " of an interval", &INTERVAL_KEYS)?;
        let end = |key: &str| {
            let missing = || self.error(format!("an interval needs `{key}`"), slot.span()).hint("{ from = 1, to = 8 }");
            let end = table.get(key).ok_or_else(missing)?;
            let value = self.value(end, false)?;
            let (number, unit) = match &value {
                Value::Text(text) => {
                    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
                    let (number, unit) = text.split_at(split);
                    (number.parse().ok(), unit.trim().to_owned())
                }
                number => (number.number(), String::new()),
            };
            let whole = !matches!(value, Value::Float(_)) && number.is_some_and(|number: f64| number.fract() == 0.0);
            let hint = "give a number, or a number and a unit as in \"10 Mbps\"";
            let none = || self.error("the end of an interval is a number", end.span()).hint(hint);
            Ok::<_, Diagnostic>((number.ok_or_else(none)?, unit, whole))
        };
        let ((from, unit, is_whole), (to, other, ends_whole)) = (end("from")?, end("to")?);
        if unit != other {
            let message = format!("the ends of an interval have one unit, not `{unit}` and `{other}`");
            return Err(self.error(message, slot.span()).hint("write both in the smaller unit"));
        }
        if from >= to {
            return Err(self.error("the interval is empty", slot.span()).hint("`from` is less than `to`"));
        }
        let scales = [("linear", false), ("log", true)];
        let logarithmic = table.get("scale").map_or(Ok(false), |slot| self.choice(slot, "scale", &scales))?;
        if logarithmic && from <= 0.0 {
            let hint = "begin above 0, or leave `scale` out";
            return Err(self.error("a logarithmic interval begins above 0", slot.span()).hint(hint));
        }
        // A quantity with a unit may be a fraction.
        let whole = is_whole && ends_whole && unit.is_empty();
        let interval = Interval { from, to, logarithmic, whole, unit };
        let Some(steps) = table.get("steps") else { return Ok(Domain::Interval(interval)) };
        let count = self.whole(steps, 2)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST_POINTS);
        let count = count.ok_or_else(|| self.too_many("the interval has", None, steps.span()))?;
        let mut values: Vec<(Value, Range<usize>)> = Vec::new();
        for value in interval.steps(count) {
            // Neighbouring numbers may round to the same value.
            if values.last().is_none_or(|(last, _)| *last != value) {
                values.push((value, slot.span()));
            }
        }
        Ok(Domain::Values(values))
    }

    fn too_many(&self, what: &str, points: Option<usize>, place: Range<usize>) -> Diagnostic {
        too_many(what, points).at(self.origin, self.text, place).hint(FEWER)
    }

    fn method(&self, root: &DeTable<'_>) -> Result<Method, Diagnostic> {
        let methods = [("grid", 0), ("random", 1), ("latin-hypercube", 2)];
        let number = root.get("method").map_or(Ok(0), |slot| self.choice(slot, "method", &methods))?;
        let (points, seed) = (root.get("points"), root.get("seed"));
        if number == 0 {
            if let Some((key, slot)) = points.map(|slot| ("points", slot)).or(seed.map(|slot| ("seed", slot))) {
                let hint = "remove it, or draw points: method = \"random\" or \"latin-hypercube\"";
                return Err(self.error(format!("`{key}` has no effect on a grid"), slot.span()).hint(hint));
            }
            return Ok(Method::Grid);
        }
        let Some(slot) = points else {
            let place = root.get("method").map_or(0..0, Spanned::span);
            return Err(self.error("the number of points is missing", place).hint("add points = 100"));
        };
        let wanted = usize::try_from(self.whole(slot, 1)?).unwrap_or(usize::MAX);
        if wanted > MOST_POINTS {
            return Err(self.too_many("the sweep has", Some(wanted), slot.span()));
        }
        let seed = seed.map_or(Ok(0), |slot| self.whole(slot, 0))?;
        Ok(match number {
            1 => Method::Random { points: wanted, seed },
            _ => Method::LatinHypercube { points: wanted, seed },
        })
    }

    fn replays(&self, slot: &Slot<'_>) -> Result<Replays, Diagnostic> {
        let choices = [("exact", Replays::Exact), ("always", Replays::Always), ("never", Replays::Never)];
        self.choice(slot, "value", &choices)
    }

    /// Checks the names of parameters, which are columns: no two are equal, and none is the name of a figure.
    fn check_names(&self, parameters: &[Parameter]) -> Result<(), Diagnostic> {
        for (number, parameter) in parameters.iter().enumerate() {
            let Parameter { name, place, .. } = parameter;
            let hint = "give an argument another name, and say where it goes: [program] arguments = [\"--seed\", \"{data_seed}\"], [arguments] data_seed = [1, 2]";
            if parameters[..number].iter().any(|other| other.name == *name) {
                return Err(self.error(format!("two parameters are called `{name}`"), place.clone()).hint(hint));
            }
            if FIGURES.iter().any(|figure| figure.name == name) {
                let message = format!("the results have a column `{name}` of their own");
                return Err(self.error(message, place.clone()).hint(hint));
            }
        }
        Ok(())
    }

    fn check_options(&self, parameters: &[Parameter], program: &Program) -> Result<(), Diagnostic> {
        parameters.iter().try_for_each(|parameter| self.check_option(&parameter.target, &parameter.place, program))
    }

    fn check_option(&self, target: &Target, place: &Range<usize>, program: &Program) -> Result<(), Diagnostic> {
        let Target::Option(name) = target else { return Ok(()) };
        if let Some((_, hint)) = OTHERWISE.iter().find(|(other, _)| other == name) {
            return Err(self.error(format!("`{name}` is no option of a sweep"), place.clone()).hint(*hint));
        }
        if matches!(program, Program::Workload(_)) && name == "seed" {
            let hint = "nothing of a generated job is random but --expert-load: vary the argument expert-seed";
            return Err(self.error("jobs have no option `seed`", place.clone()).hint(hint));
        }
        Ok(())
    }

    /// Checks that each placeholder names an argument.
    fn check_placeholders(
        &self,
        templates: &[String],
        parameters: &[Parameter],
        fixed: &[(Target, Value, Range<usize>)],
        program: &Slot<'_>,
    ) -> Result<(), Diagnostic> {
        let targets =
            parameters.iter().map(|parameter| &parameter.target).chain(fixed.iter().map(|(target, ..)| target));
        let arguments: Vec<&str> = targets
            .filter_map(|target| match target {
                Target::Argument(name) => Some(&**name),
                Target::Option(_) | Target::Cluster(_) => None,
            })
            .collect();
        for template in templates {
            let places = template.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
            let is_name =
                |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
            if let Some(name) = places.filter(is_name).find(|name| !arguments.contains(name)) {
                let hint = suggest(name, "arguments", arguments.iter().copied());
                return Err(self.error(format!("[arguments] has no `{name}`"), program.span()).hint(hint));
            }
        }
        Ok(())
    }

    fn formula(&self, slot: &Slot<'_>) -> Result<Formula, Diagnostic> {
        let text = self.string(slot)?;
        Formula::parse(&text).map_err(|problem| {
            let hint = "write numbers, names, + - * / ^, and comparisons; a name with other characters than letters, digits and _ stands in braces";
            self.error(format!("this is no formula: {problem}"), slot.span()).hint(hint)
        })
    }

    fn condition(&self, slot: &Slot<'_>, parameters: &[Parameter]) -> Result<Formula, Diagnostic> {
        let formula = self.formula(slot)?;
        let known = || parameters.iter().map(|parameter| &*parameter.name);
        for name in formula.names() {
            let Some(parameter) = parameters.iter().find(|parameter| parameter.name == *name) else {
                let message = format!("`{name}` is no parameter");
                return Err(self.error(message, slot.span()).hint(suggest(name, "parameters", known())));
            };
            let is_number = match &parameter.domain {
                Domain::Values(values) => values.iter().all(|(value, _)| value.number().is_some()),
                Domain::Interval(interval) => interval.unit.is_empty(),
            };
            if !is_number {
                let message = format!("`{name}` has values that are no numbers");
                return Err(self.error(message, slot.span()).hint("a condition is about parameters that are numbers"));
            }
        }
        Ok(formula)
    }

    fn search(&self, slot: &Slot<'_>, parameters: &[Parameter], measures: &[Measure]) -> Result<Search, Diagnostic> {
        let table = self.table(slot, "search")?;
        self.check_keys(table, " of `search`", &SEARCH_KEYS)?;
        if parameters.is_empty() {
            let hint = "give an argument, option or key of the cluster several values";
            return Err(self.error("there is nothing to search: nothing varies", slot.span()).hint(hint));
        }
        let whole = |key: &str, least, usual| table.get(key).map_or(Ok(usual), |slot| self.whole(slot, least));
        let trials = usize::try_from(whole("trials", 1, 100)?).unwrap_or(usize::MAX);
        if trials > MOST_POINTS {
            return Err(self.too_many("the search has", Some(trials), table["trials"].span()));
        }
        let listed = |key: &str| -> Result<Vec<&Slot<'_>>, Diagnostic> {
            let Some(slot) = table.get(key) else { return Ok(Vec::new()) };
            match slot.get_ref() {
                DeValue::Array(values) => Ok(values.iter().collect()),
                _ => Ok(vec![slot]),
            }
        };
        // The names of phases are not known yet.
        let is_column = |name: &str| {
            name.contains('.')
                || FIGURES.iter().any(|figure| figure.name == name && figure.kind.holds() != CellType::Text)
                || measures.iter().any(|measure| measure.name == name)
                || parameters.iter().any(|parameter| parameter.name == name)
        };
        let known = || {
            let figures =
                FIGURES.iter().filter(|figure| figure.kind.holds() != CellType::Text).map(|figure| figure.name);
            figures.chain(measures.iter().map(|measure| &*measure.name))
        };
        let mut objectives = Vec::new();
        for (key, maximize) in [("minimize", false), ("maximize", true)] {
            for slot in listed(key)? {
                let column = self.string(slot)?;
                if !is_column(&column) {
                    let message = format!("the results have no column `{column}` of numbers");
                    return Err(self.error(message, slot.span()).hint(suggest(&column, "columns", known())));
                }
                objectives.push(Objective { column, maximize });
            }
        }
        if objectives.is_empty() {
            let hint = "add minimize = \"makespan_s\", or maximize = \"tokens_per_s\"";
            return Err(self.error("a search needs something to minimize or maximize", slot.span()).hint(hint));
        }
        let mut constraints = Vec::new();
        for slot in listed("constraints")? {
            let formula = self.formula(slot)?;
            if let Some(name) = formula.names().iter().find(|name| !is_column(name)) {
                let message = format!("the results have no column `{name}` of numbers");
                return Err(self.error(message, slot.span()).hint(suggest(name, "columns", known())));
            }
            constraints.push(formula);
        }
        let at_once = usize::try_from(whole("at_once", 1, 1)?).unwrap_or(usize::MAX).min(trials);
        Ok(Search { trials, at_once, seed: whole("seed", 0, 0)?, objectives, constraints })
    }

    fn measures(&self, slot: &Slot<'_>, parameters: &[Parameter]) -> Result<Vec<Measure>, Diagnostic> {
        let mut measures = Vec::new();
        for (key, slot) in self.table(slot, "measures")?.iter() {
            let name = key.get_ref().clone().into_owned();
            let taken = FIGURES.iter().any(|figure| figure.name == name)
                || parameters.iter().any(|parameter| parameter.name == name);
            if taken {
                let message = format!("there is a column `{name}` already");
                return Err(self.error(message, key.span()).hint("choose another name"));
            }
            measures.push((key.span().start, Measure { name, formula: self.formula(slot)? }));
        }
        // In the order of the file: a measure may depend on those before it.
        measures.sort_by_key(|(start, _)| *start);
        Ok(measures.into_iter().map(|(_, measure)| measure).collect())
    }
}

/// The error about more points than a sweep may have.
fn too_many(what: &str, points: Option<usize>) -> Diagnostic {
    let count = points.map_or_else(|| "too many".to_owned(), |points| points.to_string());
    Diagnostic::new(format!("{what} {count} points; at most {MOST_POINTS} are allowed"))
}

/// Refuses a grid that has intervals, or too many points; a search may have both.
pub(super) fn check_grid(sweep: &Sweep) -> Result<(), Diagnostic> {
    let mut count = Some(1_usize);
    let at =
        |message: Diagnostic, parameter: &Parameter| message.at(&sweep.origin, &sweep.text, parameter.place.clone());
    for parameter in &sweep.parameters {
        match &parameter.domain {
            Domain::Values(values) => count = count.and_then(|count| count.checked_mul(values.len())),
            Domain::Interval(_) => {
                let message = format!("a grid needs values of `{}`, not an interval", parameter.name);
                let hint = "say how many: { from = 1, to = 8, steps = 4 }; or draw points: method = \"random\"";
                return Err(at(Diagnostic::new(message), parameter).hint(hint));
            }
        }
    }
    match (count.filter(|count| *count <= MOST_POINTS), sweep.parameters.last()) {
        (None, Some(last)) => Err(at(too_many("the grid has", count), last).hint(FEWER)),
        _ => Ok(()),
    }
}

/// A part of a dotted key, quoted if necessary.
fn quoted(key: &str) -> Cow<'_, str> {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare { Cow::Borrowed(key) } else { Cow::Owned(toml::Value::String(key.to_owned()).to_string()) }
}

/// The last part of a path without its extension.
fn stem(origin: &str) -> String {
    std::path::Path::new(origin)
        .file_stem()
        .map_or_else(|| "sweep".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "number",
        DeValue::Boolean(_) => "boolean",
        DeValue::Datetime(_) => "date",
        DeValue::Array(_) => "list",
        DeValue::Table(_) => "table",
    }
}
