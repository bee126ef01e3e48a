//! The command line: its commands, and the exit codes.
//!
//! In the order of a run: `cluster` resolves the simulated cluster, `output` the run folder, `run` or `replay` runs the
//! simulation, and `console` shows its output.

mod calibrate;
mod chakra;
mod cluster;
mod compare;
mod completions;
mod compute;
mod console;
mod devices;
mod diff;
mod doctor;
mod explain;
mod fit;
mod interpreter;
mod launch;
mod link;
mod output;
mod profile;
mod progress;
mod ray;
#[cfg(test)]
mod reference;
mod replay;
mod report;
mod run;
mod search;
mod standard;
mod sweep;
mod testbed;
mod traces;
mod view;
mod whatif;
mod worker;
mod workload;

use crate::progress::{Progress, RunState};
use crate::standard::Output;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use uniference_formats::diagnostic::escaped;
use uniference_host::interrupt;
use uniference_session::{Ended, Exit, HostError, Notices, RunResults, Stop};
use uniference_sim::time::SimTime;

/// Runs PyTorch Distributed programs in virtual time on a simulated cluster.
#[derive(Parser)]
#[command(name = "uniference", bin_name = "uniference", version, max_term_width = 120, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program on a simulated cluster
    Run(run::Args),
    /// Run ranks of other machines' runs on this one
    Worker(worker::Args),
    /// Replay the program record of a run, or execution traces, on the same or another cluster
    Replay(replay::Args),
    /// Say why a run takes as long as it does: its critical path, by kind, device, link, operation, line and range
    Explain(explain::Args),
    /// Open the trace of a run in a browser
    View(view::Args),
    /// Compare the critical paths of two runs, part by part
    Diff(diff::Args),
    /// Predict the duration of a run with a faster device, link or line, a free operation or another algorithm
    #[command(name = "whatif")]
    WhatIf(whatif::Args),
    /// Run a program or a generated job at many points: arguments, ranks, options and keys of the cluster file
    Sweep(sweep::Args),
    /// Look for the best point of a program or a generated job in few trials, with Optuna
    Search(search::Args),
    /// Show runs side by side on one HTML page: timeline, ranks, links, operations, memory, critical path, what-ifs
    Report(report::Args),
    /// Check whether a program or a generated job fits the memory of its devices
    Fit(fit::Args),
    /// Check cluster files, and list and print named clusters
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Inspect, check, convert and create Chakra execution traces
    #[command(subcommand)]
    Chakra(chakra::Command),
    /// Run a program on real machines or on the testbed, and write the same files as for a simulated run
    Launch(launch::Args),
    /// Measure a real network, or the testbed's, and write a cluster file that reproduces it
    Calibrate(calibrate::Args),
    /// Compare a prediction with a real run, or any two runs
    Compare(compare::Args),
    /// Run a command on real sockets, one process per rank, over an emulated network (Linux, root)
    Testbed(testbed::Args),
    /// Generate training and inference jobs, and write their execution traces or simulate them
    #[command(subcommand)]
    Workload(workload::Command),
    /// List device models, and import measured operators
    #[command(subcommand)]
    Devices(devices::Command),
    /// Run a program on this machine and keep the durations of its operators in a database
    Profile(profile::Args),
    /// Check whether this machine meets the requirements of a run
    Doctor(doctor::Args),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Print the manual page of the command, or write those of all subcommands
    Man(completions::Man),
}

/// Runs the command line `argv`, of which the first word is the command's name. `python` is the interpreter of ranks;
/// without it, commands that start programs are refused. Returns the exit code: 0; 1 the program failed; 2 wrong usage
/// or configuration; 3 deadlock or mismatch; 70 a bug in Uniference; 129, 130 or 143 for SIGHUP, Ctrl-C and SIGTERM. If
/// standard output has no reader, the process ends by SIGPIPE.
pub fn main(argv: Vec<OsString>, python: Option<&Path>) -> i32 {
    standard::fill_in();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let cli = match Cli::try_parse_from(argv.iter()) {
            Ok(cli) => cli,
            Err(error) => return decline(&error),
        };
        interrupt::exit_at_signals()?;
        dispatch(cli, &argv, python).map(|exit| exit as i32)
    }));
    match ended {
        Ok(Ok(exit)) => exit,
        Ok(Err(HostError::Output { source })) if source.kind() == ErrorKind::BrokenPipe => {
            interrupt::end_by_broken_pipe()
        }
        Ok(Err(error)) => {
            tell(&error);
            error.exit() as i32
        }
        Err(_) => {
            complain(format_args!("this is a bug in Uniference; please report it together with the lines above\n"));
            Exit::Bug as i32
        }
    }
}

/// Result of [`carry_out`].
pub struct Carried {
    /// Exit code of the command.
    pub exit: i32,
    /// Text that the command would have written to standard error.
    pub said: String,
    /// The run folder and the text of the report, for a finished simulation.
    pub results: Option<(PathBuf, String)>,
}

const NOBODY_PANICS: &str = "who adds a text, or shows progress, does not panic";

/// Runs a simulation that needs no other process, `uniference replay` or `uniference workload ... --run`, and returns
/// its report. The first word of `argv` is the command's name. `watch` receives the progress from time to time: virtual
/// time and number of completed operations. A panic in `watch` ends the simulation and releases its folder.
pub fn carry_out(argv: &[OsString], watch: impl Fn(SimTime, u64) + Send + Sync + 'static) -> Carried {
    let said = Arc::new(Mutex::new(String::new()));
    let heard = said.clone();
    let notices = Notices::to(move |text| heard.lock().expect(NOBODY_PANICS).push_str(text)).with_progress(watch);
    let done = match Cli::try_parse_from(argv) {
        Ok(Cli { command: Command::Replay(args) }) => args.carry_out(argv, &notices),
        Ok(Cli { command: Command::Workload(command) }) => workload::carry_out(&command, argv, &notices),
        Ok(_) => Err(HostError::Usage("only replays and workloads need no process of their own".to_owned())),
        Err(error) => Err(HostError::Usage(error.to_string().trim_end().trim_start_matches("error: ").to_owned())),
    };
    let (exit, results) = match done {
        Ok(Ended::Finished(RunResults { report, folder })) => {
            (Exit::Ok as i32, Some((folder.path().to_owned(), report.to_json())))
        }
        Ok(Ended::Stopped(stop)) => {
            said.lock().expect(NOBODY_PANICS).push_str(&stop.message);
            (stop.exit as i32, None)
        }
        Err(error) => {
            said.lock().expect(NOBODY_PANICS).push_str(&with_prefix(&error));
            (error.exit() as i32, None)
        }
    };
    let said = std::mem::take(&mut *said.lock().expect(NOBODY_PANICS));
    Carried { exit, said, results }
}

/// Prints wrong usage, or the help text, which clap returns as an error too.
fn decline(error: &clap::Error) -> Result<i32, HostError> {
    let plain = error.render().to_string();
    let harmless = escaped(&plain) == plain;
    if harmless && (error.use_stderr() || io::stdout().is_terminal()) {
        // clap prints in colours.
        let _ = error.print();
    } else if error.use_stderr() {
        complain(format_args!("{plain}"));
    } else {
        say(format_args!("{plain}"))?;
    }
    Ok(error.exit_code())
}

/// Writes to standard output. Control characters, which may come from files, are written as `\u001b`, which JSON and
/// TOML can read.
fn say(text: std::fmt::Arguments<'_>) -> Result<(), HostError> {
    Output.write_all(escaped(&text.to_string()).as_bytes()).map_err(|source| HostError::Output { source })
}

/// Writes to standard error; write errors are ignored.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(escaped(&text.to_string()).as_bytes());
}

/// Notices of a session, which go to standard error.
fn notices() -> Notices {
    Notices::to(|text| complain(format_args!("{text}")))
}

/// Notices with a `progress` display, for simulations without rank processes.
fn notices_with(progress: Option<Progress>) -> Notices {
    let Some(progress) = progress else { return notices() };
    let progress = Arc::new(Mutex::new(progress));
    let shown = progress.clone();
    let hear = move |text: &str| progress.lock().expect(NOBODY_PANICS).aside(|| complain(format_args!("{text}")));
    Notices::to(hear).with_progress(move |at, operations| {
        let mut progress = shown.lock().expect(NOBODY_PANICS);
        if progress.is_due() {
            progress.show(&RunState { at, operations, ranks: Vec::new(), more: 0 });
        }
    })
}

/// Prints why programs stopped early.
fn stopped(stop: &Stop) -> Exit {
    complain(format_args!("{}", stop.message));
    stop.exit
}

/// Prints the error of a command. Diagnostics are already escaped, and may have colours.
fn tell(error: &HostError) {
    match error {
        HostError::Diagnostic(diagnostic) => {
            let text = diagnostic.render(io::stderr().is_terminal());
            let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
        }
        other => complain(format_args!("error: {other}\n")),
    }
}

fn dispatch(cli: Cli, argv: &[OsString], python: Option<&Path>) -> Result<Exit, HostError> {
    let interpreter = python;
    let python = |command: &str| {
        python.ok_or_else(|| HostError::Host {
            what: format!("`uniference {command}` requires Python with torch; this command was installed without them"),
            hint: "install the Python package, by `pip install PATH` with the path of the clone, and use its command"
                .to_owned(),
        })
    };
    match cli.command {
        Command::Run(args) => run::run(&args, argv, python("run")?),
        Command::Worker(args) => worker::worker(&args, python("worker")?),
        Command::Replay(args) => replay::replay(&args, argv),
        Command::Explain(args) => explain::explain(&args, argv),
        Command::View(args) => view::view(&args, python("view")?),
        Command::Diff(args) => diff::diff(&args, argv),
        Command::WhatIf(args) => whatif::whatif(&args, argv),
        Command::Sweep(args) => sweep::sweep(&args, || python("sweep").map(Path::to_owned)),
        Command::Search(args) => search::search(&args, python("search")?),
        Command::Report(args) => report::report(&args, argv),
        Command::Fit(args) => fit::fit(&args, argv, || python("fit")),
        Command::Cluster(command) => cluster::command(&command),
        Command::Chakra(command) => chakra::command(&command),
        Command::Launch(args) => launch::launch(&args, argv, python("launch")?),
        Command::Calibrate(args) => calibrate::calibrate(&args, python("calibrate")?),
        Command::Compare(args) => compare::compare(&args),
        Command::Testbed(args) => testbed::testbed(&args),
        Command::Workload(command) => workload::command(&command, argv),
        Command::Devices(command) => devices::command(&command, interpreter),
        Command::Profile(args) => profile::run(&args, argv, python("profile")?),
        Command::Doctor(args) => doctor::doctor(&args, python("doctor")?),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
    }
}

/// The failure in a command's output: the text from its last error on.
fn reason(said: &str, status: &str) -> String {
    /// Number of lines that are kept if the output has no error.
    const MOST_LINES: usize = 10;
    let lines: Vec<&str> = said.trim_end().lines().collect();
    let begin = lines.iter().rposition(|line| line.starts_with("error: "));
    match begin {
        Some(begin) => lines[begin..].join("\n"),
        None if lines.is_empty() => format!("error: the command ended with {status}"),
        None => lines[lines.len().saturating_sub(MOST_LINES)..].join("\n"),
    }
}

/// The error with `error:`, which diagnostics already contain.
fn with_prefix(error: &HostError) -> String {
    match error {
        HostError::Diagnostic(diagnostic) => diagnostic.to_string(),
        other => format!("error: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Exit code and message of a refused command. `SCRIPT` stands for a file that exists.
    pub(super) fn refused(words: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script.py");
        fs::write(&script, "").unwrap();
        fs::write(dir.path().join("cluster.toml"), words.iter().find(|word| word.contains('\n')).unwrap_or(&""))
            .unwrap();
        let place = |word: &&str| match *word {
            "SCRIPT" => script.display().to_string(),
            text if text.contains('\n') => dir.path().join("cluster.toml").display().to_string(),
            other => other.to_owned(),
        };
        let argv: Vec<OsString> = ["uniference"].iter().chain(words).map(|word| place(word).into()).collect();
        let cli = match Cli::try_parse_from(argv.iter()) {
            Ok(cli) => cli,
            Err(error) => return format!("exit {}\n{error}", error.exit_code()),
        };
        let error = dispatch(cli, &argv, Some(Path::new("/nowhere/python"))).unwrap_err();
        let text = format!("exit {}\n{}", error.exit() as i32, with_prefix(&error));
        text.replace(&dir.path().display().to_string(), "DIR")
    }

    /// Runs a command that needs no interpreter.
    pub(super) fn run(words: &[&str]) -> Result<Exit, HostError> {
        let argv: Vec<OsString> = ["uniference"].iter().chain(words).map(OsString::from).collect();
        let cli = Cli::try_parse_from(argv.iter()).unwrap_or_else(|error| panic!("{error}"));
        dispatch(cli, &argv, Some(Path::new("/nowhere/python")))
    }

    #[test]
    fn wrong_usage_is_refused_with_a_hint() {
        let one_host = "[[device]]\nname = \"a\"\ncount = 2\n[network]\n";
        let no_route = "[[device]]\nname = \"a\"\ncount = 2\n[network]\n\
            links = [{ between = [\"a.0\", \"sw\"], bandwidth = \"1 Gbps\", latency = \"1 us\" }]\n";
        let unknown_key = format!("{one_host}bandwith = \"1 Gbps\"\n");
        let cases: [&[&str]; 12] = [
            &["run", "SCRIPT"],
            &["run", "--ranks", "2", "missing.py"],
            &["run", "--rank", "2", "SCRIPT"],
            &["run", "--ranks", "0", "SCRIPT"],
            &["run", "--ranks", "2", "--bandwidth", "0 Gbps", "SCRIPT"],
            &["run", "--ranks", "2", "--bandwidth", "10", "SCRIPT"],
            &["run", "--ranks", "2", "--algorithm", "all_reduce=rings", "SCRIPT"],
            &["run", "--ranks", "2", "--backend", "ncll", "SCRIPT"],
            &["run", "--cluster", no_route, "SCRIPT"],
            &["run", "--cluster", &unknown_key, "SCRIPT"],
            &["launch", "--out", "/proc/nowhere", "SCRIPT"],
            &["replay", "/nowhere"],
        ];
        let shown: Vec<String> = cases.iter().map(|words| refused(words)).collect();
        insta::assert_snapshot!(shown.join("\n----\n"));
    }

    #[test]
    fn what_the_folder_of_a_run_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("program.record"), "text").unwrap();
        let message = refused(&["replay", &dir.path().display().to_string()]);
        assert!(message.contains("not a program record"), "{message}");
    }
}
