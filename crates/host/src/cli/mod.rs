//! Owns the command line: its words, and which exit code each way to end has.
//!
//! In the order of a run: [`cluster`] finds out what is simulated, [`folder`] where results go, [`run`] or [`replay`] does it under
//! the eyes of [`console`].

mod cluster;
mod console;
mod doctor;
mod folder;
mod replay;
mod results;
mod run;

use crate::error::{Exit, HostError};
use clap::{Parser, Subcommand};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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
    /// Run the record of a run again, on its own or on another cluster
    Replay(replay::Args),
    /// Cluster files
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Show whether this machine has what a run needs
    Doctor,
}

/// Runs the command line `argv`, the first word being the command's own name, with `python` as the interpreter of ranks. Returns
/// the exit code: 0; 1 the program failed; 2 wrong usage or configuration; 3 deadlock or mismatch; 70 a bug of ours; 130 interrupted.
pub fn main(argv: Vec<String>, python: &Path) -> i32 {
    let cli = match Cli::try_parse_from(argv.iter()) {
        Ok(cli) => cli,
        Err(error) => {
            // Also the way in which clap shows `--help`. If nobody reads it, nobody misses it.
            let _ = error.print();
            return error.exit_code();
        }
    };
    let carry_out = || match cli.command {
        Command::Run(args) => run::run(&args, &argv, python),
        Command::Replay(args) => replay::replay(&args, &argv),
        Command::Cluster(command) => cluster::command(&command),
        Command::Doctor => Ok(doctor::doctor(python)),
    };
    let exit = match catch_unwind(AssertUnwindSafe(carry_out)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            eprintln!("{}", with_prefix(&error));
            error.exit()
        }
        Err(_) => {
            eprintln!("this is a bug of Uniference: please report it with the lines above");
            Exit::Bug
        }
    };
    exit as i32
}

/// Diagnostics say `error:` themselves.
fn with_prefix(error: &HostError) -> String {
    match error {
        HostError::Diagnostic(diagnostic) => diagnostic.clone(),
        other => format!("error: {other}"),
    }
}
