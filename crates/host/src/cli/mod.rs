//! Owns the command line: its words, and which exit code each way to end has.
//!
//! In the order of a run: `cluster` finds out what is simulated, `folder` where results go, `run` or `replay` does it under
//! the eyes of `console`.

mod calibrate;
mod chakra;
mod cluster;
mod compare;
mod console;
mod doctor;
mod export;
mod folder;
mod input;
mod launch;
mod link;
mod lock;
mod patience;
mod replay;
mod results;
mod run;
mod testbed;
mod traces;
mod workload;

use crate::error::{Exit, HostError};
use crate::interrupt;
use crate::standard::{self, Output};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use uniference_formats::diagnostic::escaped;

/// Runs PyTorch Distributed programs in virtual time on a simulated cluster.
#[derive(Parser)]
#[command(name = "uniference", version, max_term_width = 120, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program on a simulated cluster
    Run(run::Args),
    /// Run the record of a run again, or execution traces, on its own or on another cluster
    Replay(replay::Args),
    /// Cluster files
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Chakra execution traces
    #[command(subcommand)]
    Chakra(chakra::Command),
    /// Run a program on real machines, or on the testbed, and record what it does as of a simulated run
    Launch(launch::Args),
    /// Measure a real network, or the testbed's, and write the cluster file that predicts it
    Calibrate(calibrate::Args),
    /// Hold a prediction against a real run, or two runs against each other
    Compare(compare::Args),
    /// Run a command on real sockets, one process a rank, over an emulated network (Linux, root)
    Testbed(testbed::Args),
    /// Generate jobs, as execution traces or run at once
    #[command(subcommand)]
    Workload(workload::Command),
    /// Show whether this machine has what a run needs
    Doctor,
}

/// Runs the command line `argv`, the first word being the command's own name, with `python` as the interpreter of ranks. Returns
/// the exit code: 0; 1 the program failed; 2 wrong usage or configuration; 3 deadlock or mismatch; 70 a bug of ours; 129, 130 or
/// 143 for SIGHUP, Ctrl-C and SIGTERM. Where nobody reads the output, the process ends by SIGPIPE.
pub fn main(argv: Vec<OsString>, python: &Path) -> i32 {
    standard::fill_in();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let cli = match Cli::try_parse_from(argv.iter()) {
            Ok(cli) => cli,
            Err(error) => return decline(&error),
        };
        interrupt::exit_at_signals()?;
        carry_out(cli, &argv, python).map(|exit| exit as i32)
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
            complain(format_args!("this is a bug of Uniference: please report it with the lines above\n"));
            Exit::Bug as i32
        }
    }
}

/// Wrong usage; also the way in which clap shows `--help`.
fn decline(error: &clap::Error) -> Result<i32, HostError> {
    let plain = error.render().to_string();
    let harmless = escaped(&plain) == plain;
    if harmless && (error.use_stderr() || io::stdout().is_terminal()) {
        // In colours.
        let _ = error.print();
    } else if error.use_stderr() {
        complain(format_args!("{plain}"));
    } else {
        say(format_args!("{plain}"))?;
    }
    Ok(error.exit_code())
}

/// Writes to standard output, with control characters that come from files as `\u001b`: JSON and TOML read them like that, too.
fn say(text: std::fmt::Arguments<'_>) -> Result<(), HostError> {
    Output.write_all(escaped(&text.to_string()).as_bytes()).map_err(|source| HostError::Output { source })
}

/// Writes to standard error. If nobody reads it, nobody misses it.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(escaped(&text.to_string()).as_bytes());
}

/// Says why a command cannot do what it was asked for. Diagnostics are escaped already, and may have colours.
fn tell(error: &HostError) {
    match error {
        HostError::Diagnostic(diagnostic) => drop(io::stderr().write_all(format!("{diagnostic}\n").as_bytes())),
        other => complain(format_args!("error: {other}\n")),
    }
}

fn carry_out(cli: Cli, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    match cli.command {
        Command::Run(args) => run::run(&args, argv, python),
        Command::Replay(args) => replay::replay(&args, argv),
        Command::Cluster(command) => cluster::command(&command),
        Command::Chakra(command) => chakra::command(&command),
        Command::Launch(args) => launch::launch(&args, argv, python),
        Command::Calibrate(args) => calibrate::calibrate(&args, python),
        Command::Compare(args) => compare::compare(&args),
        Command::Testbed(args) => testbed::testbed(&args),
        Command::Workload(command) => workload::command(&command, argv),
        Command::Doctor => doctor::doctor(python),
    }
}

/// Diagnostics say `error:` themselves.
#[cfg(test)]
fn with_prefix(error: &HostError) -> String {
    match error {
        HostError::Diagnostic(diagnostic) => diagnostic.clone(),
        other => format!("error: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The exit code and the message of a command that cannot do what it was asked for. `SCRIPT` stands for a file that exists.
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
        let error = carry_out(cli, &argv, Path::new("/nowhere/python")).unwrap_err();
        let text = format!("exit {}\n{}", error.exit() as i32, with_prefix(&error));
        text.replace(&dir.path().display().to_string(), "DIR")
    }

    /// Carries out a command that needs no interpreter.
    pub(super) fn run(words: &[&str]) -> Result<Exit, HostError> {
        let argv: Vec<OsString> = ["uniference"].iter().chain(words).map(OsString::from).collect();
        let cli = Cli::try_parse_from(argv.iter()).unwrap_or_else(|error| panic!("{error}"));
        carry_out(cli, &argv, Path::new("/nowhere/python"))
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
