//! Owns `uniference chakra link`: the assignment of recordings to ranks, and the paths of the traces.
//! `uniference-programs` converts recordings to traces.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use uniference_formats::chakra::write::Writer;
use uniference_formats::units::counted;
use uniference_programs::chakra::link::{
    Iteration, Job, Linked, Options, RankRecording, Recording, is_recording, link as link_ranks, rank_in_name,
};
use uniference_session::HostError;
use uniference_session::lock::{Lock, Writer as Writing};
use uniference_session::traces::{in_file, ranks_of};
use uniference_session::whole;

/// `uniference chakra link`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Profiles written by torch.profiler (export_chrome_trace), one per rank, and
    /// host traces of ExecutionTraceObserver if available; or folders of these files. The kind of a file follows from its content
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Prefix of the traces: PREFIX.RANK.et
    #[arg(long, value_name = "PREFIX", default_value = "linked")]
    out: PathBuf,
    /// Iteration to convert, or `all` [default: the middle one of those that all ranks have recorded]
    #[arg(long, value_name = "N|all", value_parser = iteration)]
    iteration: Option<Iteration>,
    /// Leave out operations that do not match between profiles and host traces, instead of failing
    #[arg(long)]
    allow_mismatch: bool,
    /// Treat NCCL kernels that no file describes as compute
    #[arg(long)]
    allow_unknown: bool,
    /// Drop dependencies until the graph has no cycle
    #[arg(long)]
    repair: bool,
}

fn iteration(text: &str) -> Result<Iteration, String> {
    match text {
        "all" => Ok(Iteration::All),
        number => number.parse().map(Iteration::Number).map_err(|_| "must be a number or `all`".to_owned()),
    }
}

/// Reads the recordings, writes a trace per rank, and compares their replay with the recorded run.
pub(super) fn link(args: &Args) -> Result<(), HostError> {
    let mut profiles = Vec::new();
    let mut hosts = Vec::new();
    for path in files(&args.files)? {
        let file = uniference_session::input::open(&path).map_err(unreadable(&path))?;
        let named = path.file_name().and_then(|name| rank_in_name(&name.to_string_lossy()));
        let name = path.display().to_string();
        match Recording::read(file).map_err(in_file(&path))? {
            Recording::Profile(profile) => profiles.push(RankRecording { file: name, named, profile, host: None }),
            Recording::Host(host) => hosts.push((name, named, host)),
        }
    }
    // A single pair of files needs no ranks in its names, but ranks in the names must not differ.
    let single = profiles.len() == 1 && hosts.len() == 1;
    for (name, named, host) in hosts {
        let of = |rank: &RankRecording| match (rank.profile.rank().or(rank.named), named) {
            (Some(rank), Some(named)) => rank == named || single && args.allow_mismatch,
            _ => single,
        };
        let Some(rank) = profiles.iter_mut().find(|rank| rank.host.is_none() && of(rank)) else {
            return Err(HostError::Usage(format!(
                "{name}: no profile has the rank of this host trace\nhint: put the rank into the file name, for example host.0.json, and give one profile per host trace"
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

/// The given files, and the files in given folders in the order of their names.
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
        let mut entries: Vec<PathBuf> = entries
            .into_iter()
            .filter(|path| path.is_file() && path.file_name().is_some_and(|name| is_recording(&name.to_string_lossy())))
            .collect();
        if entries.is_empty() {
            return Err(HostError::Usage(format!(
                "{} contains no recordings\nhint: recordings are files named *.json or *.json.gz",
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
        hint: "give profiles and host traces, or folders that contain them",
    }
}

/// Writes the traces of all ranks. For one rank, `out` may be the whole file name.
fn write(job: &Job, out: &Path) -> Result<(), HostError> {
    let text = out.display().to_string();
    let whole = text.strip_suffix(".et");
    // With several ranks, `job.0.et` names the prefix `job`.
    let prefix = whole.map_or(text.as_str(), |stem| {
        stem.rsplit_once('.').filter(|(_, rank)| rank.parse::<u32>().is_ok()).map_or(stem, |(prefix, _)| prefix)
    });
    let trace = |rank: usize| match whole {
        Some(_) if job.ranks.len() == 1 => out.to_owned(),
        _ => PathBuf::from(format!("{prefix}.{rank}.et")),
    };
    // The lock of the first trace locks the whole prefix.
    let _lock = Lock::of_file(&trace(0), Writing::Alone, &super::notices())?;
    // A replay would read compressed traces as ranks of this job, and this command never wrote them, so it cannot
    // replace them.
    let is_compressed = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "gz");
    if let Some(compressed) = ranks_of(Path::new(prefix))?.values().find(is_compressed) {
        return Err(HostError::Usage(format!(
            "{} is a trace of another job with the same prefix\nhint: remove it, or choose another prefix with --out",
            compressed.display()
        )));
    }
    for (rank, linked) in job.ranks.iter().enumerate() {
        let path = trace(rank);
        let unwritable = |source| HostError::File {
            action: "write",
            path: path.clone(),
            source,
            hint: "choose another path with --out",
        };
        write_trace(linked, &path).map_err(unwritable)?;
    }
    // A replay would read remaining traces of a larger job under the same prefix as ranks of this job.
    let stale = ranks_of(Path::new(prefix))?.split_off(&job.ranks.len());
    if let (Some((first, _)), Some((last, _))) = (stale.first_key_value(), stale.last_key_value()) {
        for path in stale.values() {
            fs::remove_file(path).map_err(|source| HostError::File {
                action: "remove",
                path: path.clone(),
                source,
                hint: "it belongs to another job; remove it, or choose another prefix with --out",
            })?;
        }
        let count = counted(stale.len(), "trace");
        super::complain(format_args!(
            "note: removed {count} of ranks that are not in this job, {prefix}.{first}.et to {prefix}.{last}.et\n"
        ));
    }
    let nodes: usize = job.ranks.iter().map(|linked| linked.nodes.len()).sum();
    let (ranks, nodes) = (counted(job.ranks.len(), "rank"), counted(nodes, "node"));
    super::complain(format_args!("traces: {prefix}.RANK.et ({ranks}, {nodes})\n"));
    Ok(())
}

fn write_trace(linked: &Linked, out: &Path) -> io::Result<()> {
    whole::write_with(out, |file| {
        let mut writer = Writer::new(file, &linked.metadata)?;
        linked.nodes.iter().try_for_each(|node| writer.node(node))?;
        writer.finish().map(drop)
    })
}

/// Prints, for each rank, the recorded end time and the end time in a replay on the recorded machine.
fn compare(job: &Job) -> Result<(), HostError> {
    let replayed = job.replay_recorded().map_err(|problem| {
        HostError::Usage(format!(
            "cannot replay the linked traces: {problem}\nhint: link recordings of the same steps from all ranks"
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
            "warning: the replay on the recorded machine differs from the recording by up to {worst:.1} %; some dependencies were not recognized\n"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, run};
    use super::*;
    use uniference_host::error::Exit;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/src/chakra/link/fixtures")
    }

    /// A temporary folder with copies of recordings of real runs.
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
        // Traces of a larger job with the same prefix are removed; files with similar names stay.
        for name in ["job.2.et", "job.7.et", "job.07.et", "jobs.2.et", "job.2.et.bak"] {
            fs::write(dir.path().join(name), "old").unwrap();
        }
        assert_eq!(run(&["chakra", "link", &given, "--out", &prefix]).unwrap(), Exit::Ok);
        assert!(!dir.path().join("job.2.et").exists() && !dir.path().join("job.7.et").exists());
        assert!(
            ["job.1.et", "job.07.et", "jobs.2.et", "job.2.et.bak"].iter().all(|name| dir.path().join(name).is_file())
        );
        fs::write(dir.path().join("job.2.et.gz"), "old").unwrap();
        let compressed = refused(&["chakra", "link", &given, "--out", &prefix]);
        assert!(
            compressed.contains("job.2.et.gz is a trace of another job with the same prefix\nhint: "),
            "{compressed}"
        );
        let folder = refused(&["replay", &given, "--ranks", "2"]);
        assert!(
            folder.starts_with("exit 2\n") && folder.contains(&format!("`uniference chakra link {given}")),
            "{folder}"
        );
        // A replay of recordings is refused with a hint to `uniference chakra link`.
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
        // One rank of eight, and copies of it.
        assert!(dir.path().join("pair.7.et").is_file());
        let strangers = refused(&["chakra", "link", &host, &other, "--out", &out]);
        assert!(strangers.starts_with("exit 2\n") && strangers.contains("are from different runs: "), "{strangers}");
        let two = refused(&["chakra", "link", &host, &host, &profile, "--out", &out]);
        assert!(two.contains("no profile has the rank of this host trace"), "{two}");
        let none = refused(&["chakra", "link", &host, "--out", &out]);
        assert!(none.starts_with("exit 2\n"), "{none}");
    }
}
