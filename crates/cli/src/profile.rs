//! Owns `uniference profile`: durations of operators on this machine, for an operator database.
//!
//! A program is captured at each size of its requests, without computing large tensors; the operators that the database
//! lacks then run by themselves. With `--in-place`, and for the built-in program with operators of many shapes, all
//! operators are timed where they run.

use super::cluster::ClusterArgs;
use super::console::{Console, Counter};
use super::interpreter::{Gpus, survey};
use super::output::OutputArgs;
use super::progress::ProgressArgs;
use super::run::{Values, check_script};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uniference_host::capacity;
use uniference_host::interrupt::Interrupts;
use uniference_session::cluster::Chosen;
use uniference_session::compute::{Compute, ComputeOptions, Plan};
use uniference_session::fit::Scratch;
use uniference_session::live::{Live, Program};
use uniference_session::profile::{self, Kept};
use uniference_session::results::command;
use uniference_session::{Exit, HostError, Outcome, Session};
use uniference_studies::profile::{Found, Profile};

/// The built-in program, which runs if none is given.
const SHAPES: &str = "uniference.real.shapes";

/// The program that runs operators by themselves.
const ALONE: &str = "uniference.real.alone";

/// `uniference profile`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Name of this machine's CPU in the database [default: as the system calls it]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Database to write [default: the user's own, $XDG_DATA_HOME/uniference/operators.sqlite]
    #[arg(long, value_name = "FILE")]
    device_db: Option<PathBuf>,
    /// Sizes of the program's requests: it is captured with each VALUE in place of {NAME} in its arguments, and with each combination if there are several
    #[arg(long, value_name = "NAME=VALUE,...", requires = "script")]
    sweep: Vec<Sweep>,
    /// Also measure operators that the database has
    #[arg(long)]
    again: bool,
    /// Time all operators during the program's run, instead of only those that the database lacks, by themselves
    #[arg(long, requires = "script")]
    in_place: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Run a module, like python -m
    #[arg(short = 'm', long, requires = "script")]
    module: bool,
    /// Program and its arguments [default: operators of many shapes]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SCRIPT")]
    script: Vec<OsString>,
}

/// A parameter of the requests' size, and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sweep {
    name: String,
    values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Sweep, &'static str> {
        let (name, values) = text.split_once('=').ok_or("expected NAME=VALUE,..., for example batch=1,8")?;
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        match name.is_empty() || values.iter().any(String::is_empty) {
            true => Err("a name or a value is empty; expected NAME=VALUE,..., for example batch=1,8"),
            false => Ok(Sweep { name: name.to_owned(), values }),
        }
    }
}

impl Args {
    /// The cluster; one rank if no option is given.
    fn resolve(&self) -> Result<Chosen, HostError> {
        let mut cluster = self.cluster.options();
        if !cluster.is_given() {
            cluster.ranks = Some(1);
        }
        // The profiler times operators on this machine, without GPUs.
        cluster.resolve_with(Some("gloo"))
    }
}

/// Result of a profile.
struct Said {
    kept: Kept,
    /// Number of distinct operators.
    operators: usize,
    /// Number of sizes of requests, and number of operators that occur at all sizes.
    sizes: Option<(usize, usize)>,
    /// Names of operators that did not run by themselves, with the number of each.
    not_run: BTreeMap<String, usize>,
}

/// Measures operators, and stores their durations.
pub(super) fn run(args: &Args, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    let database = super::devices::database(args.device_db.as_deref())?;
    let requests = requests(args)?;
    let mut runs = Runs::new(args, argv, python)?;
    let device = args.device.clone().unwrap_or_else(|| profile::processor(runs.cores));
    let software = runs.software.clone();
    let keep = |found: &Found| profile::keep(found, &device, &software, &database, args.again);
    let said = if args.in_place || args.script.is_empty() {
        let mut profile = Profile::default();
        for words in &requests {
            let module = args.module || args.script.is_empty();
            if let Some(exit) = runs.run(words, module, None, &mut profile)? {
                return Ok(exit);
            }
        }
        let kept = keep(&profile::found(profile)?)?;
        Said { operators: kept.operators, kept, sizes: None, not_run: BTreeMap::new() }
    } else {
        let mut captured = Profile::default();
        let mut everywhere: Option<BTreeSet<String>> = None;
        for words in &requests {
            let mut profile = Profile::default();
            if let Some(exit) = runs.run(words, args.module, Values::small().limit(), &mut profile)? {
                return Ok(exit);
            }
            let own: BTreeSet<String> = profile::that_take_time(&profile.clone().found()).into_keys().collect();
            everywhere = Some(everywhere.map_or(own.clone(), |known| &known & &own));
            captured.merge(profile);
        }
        let mut captured = profile::found(captured)?;
        let wanted = profile::that_take_time(&captured);
        let known = if args.again { BTreeSet::new() } else { profile::known(&device, &software, &database)? };
        let lacking: BTreeMap<_, _> = wanted.iter().filter(|(key, _)| !known.contains(*key)).collect();
        let mut alone = Profile::default();
        if !lacking.is_empty() {
            let scratch = Scratch::new()?;
            let file = scratch.path().join("operators.jsonl");
            std::fs::write(&file, profile::to_run_alone(lacking.values().copied()))
                .map_err(HostError::system("writing a temporary file"))?;
            if let Some(exit) = runs.run(&[ALONE.into(), file.into()], true, None, &mut alone)? {
                return Ok(exit);
            }
        }
        // From the captured run only host times are used, because operators on large tensors were not computed.
        captured.operators.retain(|(definition, _)| profile::takes_no_time(definition));
        let mut timed = alone.found().operators;
        timed.retain(|(definition, _)| lacking.contains_key(&profile::text(definition)));
        let mut not_run: BTreeMap<String, usize> = BTreeMap::new();
        let run: BTreeSet<String> = timed.iter().map(|(definition, _)| profile::text(definition)).collect();
        for (_, definition) in lacking.iter().filter(|(key, _)| !run.contains(**key)) {
            *not_run.entry(definition.name.clone()).or_default() += 1;
        }
        captured.operators.extend(timed);
        let sizes = (requests.len() > 1).then(|| (requests.len(), everywhere.map_or(0, |same| same.len())));
        Said { kept: keep(&captured)?, operators: wanted.len(), sizes, not_run }
    };
    let said = if args.output.json { said.json(&device, &database) } else { said.text(&device, &database) };
    super::say(format_args!("{said}"))?;
    runs.lost.map_or(Ok(Exit::Ok), |lost| Err(HostError::Output { source: lost }))
}

/// The program's words for each combination of the swept sizes.
fn requests(args: &Args) -> Result<Vec<Vec<OsString>>, HostError> {
    if args.script.is_empty() {
        return Ok(vec![vec![SHAPES.into()]]);
    }
    check_script(&args.script, args.module)?;
    let mut requests = vec![args.script.clone()];
    for Sweep { name, values } in &args.sweep {
        let place = format!("{{{name}}}");
        if !args.script[1..].iter().any(|word| word.to_string_lossy().contains(&place)) {
            let script = args.script[0].display();
            return Err(HostError::Usage(format!(
                "--sweep {name}: no argument of the program contains {place}\nhint: say which argument is swept, for example {script} --{name} {place}"
            )));
        }
        let with = |words: &Vec<OsString>, value: &str| {
            // A word that is not UTF-8 contains no placeholder.
            let put = |word: &OsString| word.to_str().map_or(word.clone(), |word| word.replace(&place, value).into());
            words.iter().map(put).collect::<Vec<_>>()
        };
        requests = requests.iter().flat_map(|words| values.iter().map(move |value| with(words, value))).collect();
    }
    Ok(requests)
}

/// Live runs with timed operators, one after the other, in one folder, which keeps the last run's results.
struct Runs<'a> {
    args: &'a Args,
    argv: &'a [OsString],
    python: &'a Path,
    versions: BTreeMap<String, String>,
    software: String,
    /// Number of CPU cores that ranks compute on.
    cores: u32,
    folder: Option<PathBuf>,
    lost: Option<std::io::Error>,
}

impl<'a> Runs<'a> {
    fn new(args: &'a Args, argv: &'a [OsString], python: &'a Path) -> Result<Runs<'a>, HostError> {
        let resolved = args.resolve()?.resolved;
        capacity::check_descriptors(resolved.cluster.devices.len() as u32)?;
        let versions = survey(python, &[SHAPES.into()], true, Gpus::No)?.versions;
        let software = format!("torch {}", versions["torch"]);
        let cores = resolved.cores[0].unwrap_or(1);
        Ok(Runs { args, argv, python, versions, software, cores, folder: args.output.out.clone(), lost: None })
    }

    /// Runs a program, and adds its times to the profile. Operators on tensors of more elements than `values` are not
    /// computed. Returns the exit code if the program stopped early.
    fn run(
        &mut self,
        words: &[OsString],
        module: bool,
        values: Option<u64>,
        profile: &mut Profile,
    ) -> Result<Option<Exit>, HostError> {
        let interrupts = Interrupts::new()?;
        let chosen = self.args.resolve()?;
        let backend_named = chosen.backend_named;
        let measured = ComputeOptions { source: Some(Compute::Measured), ..ComputeOptions::default() };
        let plan = Plan::live(&measured, &chosen.resolved)?;
        let mut output = self.args.output.output("profile".as_ref(), &super::notices());
        output.folder.clone_from(&self.folder);
        let mut session = Session::new(chosen, 0, command(self.argv), &output)?;
        self.folder = Some(session.folder().path().to_owned());
        session.add_versions(self.versions.clone());
        session.plan(&plan);
        let mut counter = Counter::default();
        let mut console = Console::new(self.args.output.json, ProgressArgs::by_default(), counter.clone());
        let program = Program {
            python: self.python.to_owned(),
            argv: words.to_vec(),
            module,
            preload: Vec::new(),
            plan,
            // One rank at a time, because the ranks' effects on each other's caches would distort the operators'
            // durations.
            jobs: Some(1),
            gpus: None,
            backend_named,
            terminal: None,
            input: None,
            values,
            strict_values: false,
            timed: true,
            fold: false,
            one_program: false,
            workers: None,
        };
        let mut live = Live::new(program, &session, &mut console, &mut counter, interrupts);
        let outcome = session.carry_out(&mut live);
        self.lost = self.lost.take().or(console.finish());
        match outcome? {
            Outcome::Finished(figures) => {
                session.write(&session.report(*figures, Vec::new()))?;
                profile::add_times(session.folder().path(), profile)?;
                Ok(None)
            }
            Outcome::Stopped(stop) => Ok(Some(super::stopped(&stop))),
            Outcome::Unlike(_) => unreachable!("every rank is simulated"),
        }
    }
}

impl Said {
    /// The result as text, with the device as a `[[device]]` table of a cluster file.
    fn text(&self, device: &str, database: &Path) -> String {
        let Said { kept: Kept { measured, reached, .. }, operators, sizes, not_run } = self;
        let mut text = match sizes {
            Some((sizes, same)) => {
                format!("{sizes} sizes of requests; {same} operators depend on the program's configuration alone\n")
            }
            None => String::new(),
        };
        text += &format!("{operators} distinct operators on {device}: {} reused, {measured} measured", self.reused());
        if !not_run.is_empty() {
            let names = not_run.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ");
            text += &format!(
                ", {} not measured, as they do not run by themselves: {names}\nhint: --in-place times them where the program runs them",
                not_run.values().sum::<usize>()
            );
        }
        text += &format!("\ndatabase: {}\n", database.display());
        if let Some(keys) = reached.keys() {
            text += &format!(
                "\n# The device in a cluster file, with the highest rates that were reached:\n[[device]]\nname = \"board\"\nmodel = \"{device}\"\n{keys}"
            );
        }
        text
    }

    /// Number of operators that were already in the database.
    fn reused(&self) -> usize {
        self.operators - self.kept.measured - self.not_run.values().sum::<usize>()
    }

    fn json(&self, device: &str, database: &Path) -> String {
        let Said { kept: Kept { measured, reached, .. }, operators, sizes, not_run } = self;
        let value = serde_json::json!({
            "device": device, "database": database.display().to_string(), "operators": operators,
            "reused": self.reused(), "measured": measured, "not_measured": not_run,
            "sizes": sizes.map_or(1, |(sizes, _)| sizes), "same_at_all_sizes": sizes.map_or(*operators, |(_, same)| same),
            "peak_flops": reached.peak_flops, "memory_bandwidth": reached.memory_bandwidth,
        });
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use clap::Parser;

    #[test]
    fn every_combination_of_what_is_swept_is_captured() {
        let words = "profile --sweep batch=1,8 --sweep tokens=64,128 -m model --batch {batch} --shape={batch}x{tokens}";
        let cli = crate::Cli::try_parse_from(["uniference"].into_iter().chain(words.split(' '))).unwrap();
        let crate::Command::Profile(args) = cli.command else { panic!("it is profile") };
        let words = |batch: u32, tokens: u32| format!("model --batch {batch} --shape={batch}x{tokens}");
        let found: Vec<OsString> =
            requests(&args).unwrap().iter().map(|words| words.join(std::ffi::OsStr::new(" "))).collect();
        assert_eq!(found, [words(1, 64), words(1, 128), words(8, 64), words(8, 128)].map(OsString::from));
    }

    #[test]
    fn a_sweep_that_is_none_is_refused() {
        let place = refused(&["profile", "--sweep", "batch=1,2", "SCRIPT", "--tokens", "{tokens}"]);
        assert!(place.contains("no argument of the program contains {batch}\nhint: "), "{place}");
        for wrong in ["batch", "batch=", "=1", "batch=1,,2"] {
            let said = refused(&["profile", "--sweep", wrong, "SCRIPT", "{batch}"]);
            assert!(said.starts_with("exit 2") && said.contains("batch=1,8"), "{said}");
        }
    }
}
