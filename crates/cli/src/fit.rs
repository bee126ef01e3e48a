//! Owns `uniference fit`: the check whether a program or a generated job fits the memory of its devices, and its
//! output.
//!
//! `uniference-session` determines the memory of ranks.

use super::cluster::ClusterArgs;
use super::console::{Console, Counter};
use super::progress::ProgressArgs;
use super::run::{Place, ProgramArgs, Values};
use super::workload::FitJob;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use uniference_formats::table::{bytes, kind_of_memory, place, row, table};
use uniference_host::interrupt::Interrupts;
use uniference_host::live::driver;
use uniference_session::compute::{Compute, ComputeOptions, Plan};
use uniference_session::fit::{self, Fit, Need, Scratch, Verdict, leave_little};
use uniference_session::live::Program;
use uniference_session::results::command;
use uniference_session::{Exit, HostError, Session};

/// `uniference fit`.
#[derive(clap::Args)]
#[command(subcommand_precedence_over_arg = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Tensor values to compute; other tensors need no memory on this machine, and count the same on the simulated
    /// devices
    #[arg(long, value_name = "all|small[=ELEMENTS]|none", default_value_t = Values::small())]
    values: Values,
    /// Time after which the program is ended, in seconds of this machine's time
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print only the answer, as JSON, to standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    program: ProgramArgs,
    #[command(subcommand)]
    generated: Option<Generated>,
}

#[derive(clap::Subcommand)]
enum Generated {
    /// Check a generated job instead of a program
    #[command(subcommand)]
    Workload(FitJob),
}

/// Checks the memory. Exit code 0: the job fits; 1: it does not fit; 2: unknown.
pub(super) fn fit<'a>(
    args: &Args,
    argv: &[OsString],
    python: impl FnOnce() -> Result<&'a Path, HostError>,
) -> Result<Exit, HostError> {
    let answer = match &args.generated {
        Some(Generated::Workload(job)) => fit::of_job(&job.workload()?, &args.cluster.options())?,
        None => of_program(args, argv, python()?)?,
    };
    if let Some(stop) = &answer.stopped {
        let exit = super::stopped(stop);
        if fit::is_interrupted(stop) {
            return Ok(exit);
        }
    }
    let verdict = answer.verdict();
    match args.json {
        true => super::say(format_args!("{:#}\n", in_json(&answer, &verdict)))?,
        false => super::say(format_args!("{}", in_words(&answer, &verdict)))?,
    }
    match verdict {
        Verdict::Fits => Ok(Exit::Ok),
        Verdict::Exceeds(_) => Ok(Exit::ProgramFailed),
        Verdict::Unknown(reason) => Err(HostError::Usage(format!("cannot say whether it fits: {reason}"))),
    }
}

fn of_program(args: &Args, argv: &[OsString], python: &Path) -> Result<Fit, HostError> {
    // Signals are caught before child processes start, which would otherwise outlive a Ctrl-C.
    let interrupts = Interrupts::new()?;
    let Place { chosen, survey, tight } = args.program.place(&args.cluster, python)?;
    let backend_named = chosen.backend_named;
    let no_time = ComputeOptions { source: Some(Compute::None), ..ComputeOptions::default() };
    let plan = Plan::live(&no_time, &chosen.resolved)?;
    let scratch = Scratch::new()?;
    let session = Session::new(chosen, 0, command(argv), &scratch.output(&super::notices()))?;
    let mut counter = Counter::default();
    let mut console = Console::new(true, ProgressArgs::by_default(), counter.clone());
    if let Some(warning) = tight {
        driver::Console::warn(&mut console, &warning);
    }
    let program = Program {
        python: python.to_owned(),
        argv: args.program.script.clone(),
        module: args.program.module,
        preload: args.program.preload.clone(),
        plan,
        jobs: None,
        gpus: survey.gpus,
        backend_named,
        terminal: None,
        input: None,
        timed: false,
        fold: false,
        one_program: false,
        workers: None,
        values: args.values.limit(),
        strict_values: false,
    };
    let timeout = Duration::from_secs(args.timeout);
    let fit = fit::of_program(program, &session, timeout, &mut console, &mut counter, interrupts);
    console.finish();
    fit
}

fn in_json(fit: &Fit, verdict: &Verdict) -> Value {
    let rank = |need: &Need| {
        let kinds = need.kinds.iter().flatten().map(|(kind, bytes)| (kind.clone(), Value::from(*bytes)));
        json!({
            "rank": need.rank,
            "device": need.device,
            "memory_bytes": need.available,
            "peak_bytes": need.bytes(),
            "kinds": kinds.collect::<Map<String, Value>>(),
            "line": need.line,
            "function": need.function,
            "backward": need.backward,
            "tight": need.is_tight(),
        })
    };
    let fits = match verdict {
        Verdict::Fits => Some(true),
        Verdict::Exceeds(_) => Some(false),
        Verdict::Unknown(_) => None,
    };
    let tight = fit.needs.iter().any(Need::is_tight);
    json!({ "fits": fits, "tight": tight, "ranks": fit.needs.iter().map(rank).collect::<Vec<_>>() })
}

/// A table with a line for ranks of equal needs and the place of each peak, followed by the verdict.
fn in_words(fit: &Fit, verdict: &Verdict) -> String {
    let groups = groups(&fit.needs);
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, _) in fit.needs.iter().flat_map(|need| need.kinds.iter().flatten()) {
        if !kinds.contains(&&**kind) {
            kinds.push(kind);
        }
    }
    let names = kinds.iter().map(|kind| kind_of_memory(kind).replace('_', " "));
    let header: Vec<String> =
        ["ranks", "device", "memory", "needs"].map(str::to_owned).into_iter().chain(names).collect();
    let mut shown = table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    let mut places = String::new();
    for (ranks, need) in &groups {
        let or_unknown = |amount: Option<u64>| amount.map_or_else(|| "?".to_owned(), bytes);
        let of =
            |kind: &str| need.kinds.iter().flatten().find(|(known, _)| known == kind).map_or(0, |(_, bytes)| *bytes);
        let numbers = [or_unknown(need.available), or_unknown(need.bytes())];
        let numbers: Vec<String> = numbers.into_iter().chain(kinds.iter().map(|kind| bytes(of(kind)))).collect();
        shown.add_row(row(&[ranks, &need.device], &numbers));
        if let Some(place) = of_peak(need) {
            let noun = if ranks.contains(['-', ',']) { "ranks" } else { "rank" };
            places += &format!("{noun} {ranks}: most {place}\n");
        }
    }
    let table: String = shown.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let blank = if places.is_empty() { "" } else { "\n" };
    format!("{table}{blank}{places}{}", answer(fit, verdict))
}

/// The last line; an unknown verdict is an error.
fn answer(fit: &Fit, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Unknown(_) => String::new(),
        Verdict::Fits => {
            let least = fit.needs.iter().min_by_key(|need| need.spare()).expect("a cluster has ranks");
            let (spare, all) = (least.spare().unwrap_or(0), least.available.unwrap_or(0));
            let tight = fit.needs.iter().filter(|need| need.is_tight()).count();
            let tight = match tight {
                0 => String::new(),
                _ => format!("tight: {}\n", leave_little(tight, fit.needs.len())),
            };
            format!("\nfits: rank {} has least to spare, {} of {}\n{tight}", least.rank, bytes(spare), bytes(all))
        }
        Verdict::Exceeds(at) => {
            let need = &fit.needs[*at];
            let mut kinds: Vec<&(String, u64)> = need.kinds.iter().flatten().collect();
            kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
            let kind =
                |(kind, size): &&(String, u64)| format!("{} {}", kind_of_memory(kind).replace('_', " "), bytes(*size));
            let kinds: Vec<String> = kinds.iter().map(kind).collect();
            let place = of_peak(need).map_or_else(String::new, |place| format!(", {place}"));
            let lacking = fit.needs.iter().filter(|need| need.lacks().is_some()).count();
            format!(
                "\ndoes not fit: rank {} needs {}, {} more than device `{}` has ({}): {}{place}; {lacking} of {} ranks do not fit\n",
                need.rank,
                bytes(need.bytes().unwrap_or(0)),
                bytes(need.lacks().unwrap_or(0)),
                need.device,
                bytes(need.available.unwrap_or(0)),
                kinds.join(", "),
                fit.needs.len(),
            )
        }
    }
}

fn of_peak(need: &Need) -> Option<String> {
    place(need.line.as_deref(), need.function.as_deref(), need.backward)
}

/// Groups of ranks with equal needs on devices of one kind, as `0-3, 8`, with the needs of one rank.
fn groups(needs: &[Need]) -> Vec<(String, Need)> {
    let mut groups: Vec<(Vec<u32>, Need)> = Vec::new();
    for need in needs {
        let kind_of_device = need.device.rsplit_once('.').map_or(&*need.device, |(name, _)| name);
        let like = Need { rank: 0, device: kind_of_device.to_owned(), ..need.clone() };
        match groups.iter_mut().find(|(_, known)| *known == like) {
            Some((ranks, _)) => ranks.push(need.rank),
            None => groups.push((vec![need.rank], like)),
        }
    }
    let named = |(ranks, like): (Vec<u32>, Need)| {
        let device = match ranks[..] {
            [only] => needs[only as usize].device.clone(),
            _ => like.device.clone(),
        };
        let runs = ranks.chunk_by(|one, next| one + 1 == *next);
        let run = |run: &[u32]| match run {
            [only] => only.to_string(),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        };
        (runs.map(run).collect::<Vec<_>>().join(", "), Need { device, ..like })
    };
    groups.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests;
