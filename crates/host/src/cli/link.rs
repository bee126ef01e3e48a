//! Owns `uniference chakra link`: which files are recordings of which rank, and where the traces go. How recordings become traces,
//! `uniference-formats` knows.

use super::lock::{Lock, Writer as Writing};
use super::traces::in_file;
use crate::error::HostError;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use uniference_formats::chakra::link::{
    Iteration, Job, Linked, Options, Rank, Recording, link as link_ranks, rank_in_name,
};
use uniference_formats::chakra::write::Writer;

/// `uniference chakra link`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// What the profiler has written (export_chrome_trace), one file a rank, and what ExecutionTraceObserver has, if anything; or
    /// folders with them. Which is which, their content says
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// The traces: PREFIX.RANK.et
    #[arg(long, value_name = "PREFIX", default_value = "linked")]
    out: PathBuf,
    /// The number of an iteration, or all [default: the middle one of those that all ranks have]
    #[arg(long, value_name = "N|all", value_parser = iteration)]
    iteration: Option<Iteration>,
    /// Link what does not fit together, without what does not
    #[arg(long)]
    allow_mismatch: bool,
    /// Take NCCL kernels that no file describes for compute
    #[arg(long)]
    allow_unknown: bool,
    /// Drop dependencies that close circles, as few as are found
    #[arg(long)]
    repair: bool,
}

fn iteration(text: &str) -> Result<Iteration, String> {
    match text {
        "all" => Ok(Iteration::All),
        number => number.parse().map(Iteration::Number).map_err(|_| "it must be a number or `all`".to_owned()),
    }
}

/// Reads the recordings, writes a trace for each rank, and compares their replay with what was recorded.
pub(super) fn link(args: &Args) -> Result<(), HostError> {
    let mut profiles = Vec::new();
    let mut hosts = Vec::new();
    for path in files(&args.files)? {
        let file = super::input::open(&path).map_err(unreadable(&path))?;
        let named = path.file_name().and_then(|name| rank_in_name(&name.to_string_lossy()));
        let name = path.display().to_string();
        match Recording::read(file).map_err(in_file(&path))? {
            Recording::Profile(profile) => profiles.push(Rank { file: name, named, profile, host: None }),
            Recording::Host(host) => hosts.push((name, named, host)),
        }
    }
    // A single pair needs no ranks in its names, but those that are there must not differ.
    let single = profiles.len() == 1 && hosts.len() == 1;
    for (name, named, host) in hosts {
        let of = |rank: &Rank| match (rank.profile.rank().or(rank.named), named) {
            (Some(rank), Some(named)) => rank == named || single && args.allow_mismatch,
            _ => single,
        };
        let Some(rank) = profiles.iter_mut().find(|rank| rank.host.is_none() && of(rank)) else {
            return Err(HostError::Usage(format!(
                "{name}: no profile is of the rank of this host trace\nhint: put the rank into the file's name, as in host.0.json, and give one host trace a profile"
            )));
        };
        rank.host = Some(host);
    }
    let Args { iteration, allow_mismatch, allow_unknown, repair, .. } = *args;
    let options = Options { iteration: iteration.unwrap_or_default(), allow_mismatch, allow_unknown, repair };
    let job = link_ranks(profiles, &options).map_err(|error| HostError::Usage(error.to_string()))?;
    job.notes.iter().for_each(|note| super::complain(format_args!("note: {note}\n")));
    write(&job, &args.out)?;
    compare(&job)
}

/// What folders hold, in the order of names; files as they are given.
fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>, HostError> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries: Vec<PathBuf> = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>())
            .map_err(unreadable(path))?;
        let is_json = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            path.is_file() && (name.ends_with(".json") || name.ends_with(".json.gz"))
        };
        let mut entries: Vec<PathBuf> = entries.into_iter().filter(is_json).collect();
        if entries.is_empty() {
            return Err(HostError::Usage(format!(
                "{} has no recordings\nhint: recordings are called *.json or *.json.gz",
                path.display()
            )));
        }
        entries.sort();
        files.extend(entries);
    }
    Ok(files)
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> HostError {
    move |source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "give profiles and host traces, or folders with them",
    }
}

/// The files of all ranks. Of one rank, the name may be whole.
fn write(job: &Job, out: &Path) -> Result<(), HostError> {
    let text = out.display().to_string();
    let whole = text.strip_suffix(".et");
    // `job.0.et` names the prefix `job` where there are several ranks.
    let prefix = whole.map_or(text.as_str(), |stem| {
        stem.rsplit_once('.').filter(|(_, rank)| rank.parse::<u32>().is_ok()).map_or(stem, |(prefix, _)| prefix)
    });
    let trace = |rank: usize| match whole {
        Some(_) if job.ranks.len() == 1 => out.to_owned(),
        _ => PathBuf::from(format!("{prefix}.{rank}.et")),
    };
    // The first one's stands for all of the prefix.
    let _lock = Lock::of_file(&trace(0), Writing::Alone)?;
    for (rank, linked) in job.ranks.iter().enumerate() {
        let path = trace(rank);
        let unwritable = |source| HostError::File {
            action: "write",
            path: path.clone(),
            source,
            hint: "choose another place with --out",
        };
        write_trace(linked, &path).map_err(unwritable)?;
    }
    let nodes: usize = job.ranks.iter().map(|linked| linked.nodes.len()).sum();
    let (ranks, s) = (job.ranks.len(), if job.ranks.len() == 1 { "" } else { "s" });
    super::complain(format_args!("traces: {prefix}.RANK.et ({ranks} rank{s}, {nodes} nodes)\n"));
    Ok(())
}

fn write_trace(linked: &Linked, out: &Path) -> io::Result<()> {
    let mut writer = Writer::new(BufWriter::new(File::create(out)?), &linked.metadata)?;
    linked.nodes.iter().try_for_each(|node| writer.node(node))?;
    writer.finish().map(drop)
}

/// Shows for each rank that was recorded when it ended, and when it does in a replay on the recorded machine.
fn compare(job: &Job) -> Result<(), HostError> {
    let replayed = job.replay_recorded().map_err(|problem| {
        HostError::Usage(format!(
            "the linked traces cannot be replayed: {problem}\nhint: link recordings of the same steps of all ranks"
        ))
    })?;
    super::say(format_args!("{:>5}  {:>12}  {:>12}  {:>8}\n", "rank", "recorded", "replayed", "error"))?;
    let mut worst: f64 = 0.0;
    for ((rank, linked), replayed) in job.ranks.iter().enumerate().zip(replayed) {
        if linked.like as usize != rank && job.ranks[linked.like as usize].like == linked.like {
            continue;
        }
        let (recorded, replayed) = (linked.recorded_ns as f64 / 1e6, replayed as f64 / 1e6);
        let error = if recorded > 0.0 { 100.0 * (replayed - recorded) / recorded } else { 0.0 };
        worst = worst.max(error.abs());
        super::say(format_args!("{rank:>5}  {recorded:>9.3} ms  {replayed:>9.3} ms  {error:>+6.2} %\n"))?;
    }
    if worst > 3.0 {
        super::complain(format_args!(
            "warning: the replay on the recorded machine is off by up to {worst:.1} %: something of what was waited for is not understood\n"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, run};
    use super::*;
    use crate::error::Exit;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/src/chakra/link/fixtures")
    }

    /// Recordings of real runs, by name, in a folder of their own.
    fn folder(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs::copy(fixtures().join(name), dir.path().join(name)).unwrap();
        }
        dir
    }

    #[test]
    fn a_folder_of_profiles_becomes_traces_that_replay() {
        let dir = folder(&["ddp.profile.0.json.gz"]);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (given, prefix, out) = (dir.path().display().to_string(), path("job"), path("out"));
        assert_eq!(run(&["chakra", "link", &given, "--out", &prefix]).unwrap(), Exit::Ok);
        assert!(dir.path().join("job.0.et").is_file() && dir.path().join("job.1.et").is_file());
        let replay = ["replay", &prefix, "--ranks", "2", "--backend", "nccl", "--bandwidth", "100 GB/s", "--out", &out];
        assert_eq!(run(&replay).unwrap(), Exit::Ok);
        assert!(refused(&["chakra", "link", &given, "--iteration", "9"]).starts_with("exit 2\n"));
        // What is linked is not replayed itself, which says how to come there.
        let not_yet = refused(&["replay", &path("ddp.profile.0.json.gz"), "--ranks", "2"]);
        assert!(not_yet.contains("`uniference chakra link`"), "{not_yet}");
    }

    #[test]
    fn pairs_are_told_apart_by_content_and_belong_together_or_are_refused() {
        let names = ["dlrm.profile.0.json.gz", "dlrm.host.0.json.gz", "ddp.profile.0.json.gz"];
        let dir = folder(&names);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let out = path("pair.0.et");
        let [profile, host, other] = names.map(path);
        assert_eq!(run(&["chakra", "link", &host, &profile, "--out", &out]).unwrap(), Exit::Ok);
        // A rank of eight, and copies of it.
        assert!(dir.path().join("pair.7.et").is_file());
        let strangers = refused(&["chakra", "link", &host, &other, "--out", &out]);
        assert!(strangers.starts_with("exit 2\n") && strangers.contains("are not of one run: "), "{strangers}");
        let two = refused(&["chakra", "link", &host, &host, &profile, "--out", &out]);
        assert!(two.contains("no profile is of the rank of this host trace"), "{two}");
        let none = refused(&["chakra", "link", &host, "--out", &out]);
        assert!(none.starts_with("exit 2\n"), "{none}");
    }
}
