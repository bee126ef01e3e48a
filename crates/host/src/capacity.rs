//! Owns the limits of this machine: memory and descriptors of many ranks, forecast before any rank is started.

use crate::error::HostError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::path::{Path, PathBuf};
use uniference_formats::table::bytes;
use uniference_protocol::messages::Lack;

/// Memory of a process that has imported torch (torch 2.15, CPU: 678 MB resident).
const ZYGOTE_BYTES: u64 = 700 << 20;

/// Private memory of a forked rank before its program allocates memory (5 to 9 MB were observed).
const RANK_BYTES: u64 = 10 << 20;

/// Number of the driver's descriptors per rank: its socket and two pipes.
const RANK_FDS: u64 = 3;

/// Number of further descriptors: of the driver, of the zygote's start and of the user's libraries.
const OTHER_FDS: u64 = 256;

/// Memory of `ranks` ranks before their programs allocate any, in bytes.
pub fn forecast(ranks: u32) -> u64 {
    ZYGOTE_BYTES + RANK_BYTES * u64::from(ranks)
}

/// Refuses ranks that cannot fit; returns a warning if memory will be scarce.
pub fn check_memory(ranks: u32) -> Result<Option<String>, HostError> {
    available_memory().map_or(Ok(None), |available| check(ranks, available))
}

fn check(ranks: u32, available: u64) -> Result<Option<String>, HostError> {
    let needed = forecast(ranks);
    let figures = format!(
        "{ranks} ranks need at least {} MiB of memory to start, but only {} MiB are available",
        needed >> 20,
        available >> 20
    );
    if needed > available {
        let hint = "use fewer ranks, or free memory".to_owned();
        return Err(HostError::Host { what: figures, hint });
    }
    Ok((needed > available / 5 * 4).then_some(figures))
}

/// Refuses `ranks` ranks of `each` bytes if they do not fit, as far as the memory is known; `why`: the reason for their
/// number.
pub fn check_processes(ranks: u32, each: u64, why: &str) -> Result<(), HostError> {
    available_memory().map_or(Ok(()), |available| check_sizes(ranks, each, why, available))
}

fn check_sizes(ranks: u32, each: u64, why: &str, available: u64) -> Result<(), HostError> {
    let needed = ZYGOTE_BYTES + each.max(RANK_BYTES) * u64::from(ranks);
    if needed <= available {
        return Ok(());
    }
    Err(HostError::Host {
        what: format!(
            "{ranks} ranks must run, because {why}; they take {} of memory at least ({} each), but only {} are available",
            bytes(needed),
            bytes(each),
            bytes(available)
        ),
        hint: "use fewer ranks, or free memory; --fold off starts all ranks whether they fit or not".to_owned(),
    })
}

/// Bytes of memory that a process shares with no other process; `None` if it has ended.
pub(crate) fn private_memory(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let private = text.lines().filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
    let kilobytes = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Some(kilobytes.sum::<u64>() * 1024)
}

/// Memory in bytes that this process and its children may still use: the minimum over the machine and the control
/// groups (cgroup v2) that they are in.
pub fn available_memory() -> Option<u64> {
    let host = meminfo(&fs::read_to_string("/proc/meminfo").ok()?);
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups(&own).iter().map(|group| room(group)).chain([host]).flatten().min()
}

/// Folders of the control groups that a process is in, from its `/proc/PID/cgroup`: the innermost first.
fn groups(own: &str) -> Vec<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new(path).ancestors().map(|path| Path::new("/sys/fs/cgroup").join(path)).collect()
}

/// Memory that a control group may still use, including its file cache; `None` without a limit.
fn room(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (most, used) = number("memory.max").zip(number("memory.current"))?;
    Some(most.saturating_sub(used).saturating_add(reclaimable(&read("memory.stat").unwrap_or_default())))
}

fn reclaimable(statistics: &str) -> u64 {
    let fields = statistics.lines().filter_map(|line| line.split_once(' '));
    let cached = fields.filter(|(name, _)| ["active_file", "inactive_file", "slab_reclaimable"].contains(name));
    cached.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// The error for a rank's tensor that exceeds the memory of its machine: this one, or a worker's.
pub fn lacks(rank: u32, lack: &Lack, worker: Option<&str>) -> HostError {
    let Lack { wanted, available, line } = lack;
    let place = if line.is_empty() { String::new() } else { format!(" at {line}") };
    HostError::Host {
        what: format!(
            "rank {rank} allocates {}{place}, but only {} of {}'s memory are available",
            bytes(*wanted),
            bytes(*available),
            worker.map_or_else(|| "this machine".to_owned(), |name| format!("worker {name}"))
        ),
        hint: "large tensors take no memory with --values small; or use fewer ranks, or free memory".to_owned(),
    }
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Maximum number of ranks that the driver has descriptors for; `None`: unlimited.
pub fn most_ranks() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum.map(|maximum| maximum.saturating_sub(OTHER_FDS) / RANK_FDS)
}

/// Refuses ranks for which there are too few descriptors.
pub fn check_descriptors(ranks: u32) -> Result<(), HostError> {
    if most_ranks().is_none_or(|most| most >= u64::from(ranks)) {
        return Ok(());
    }
    let needed = RANK_FDS * u64::from(ranks) + OTHER_FDS;
    let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(needed);
    Err(HostError::Host {
        what: format!("{ranks} ranks need {needed} open descriptors, but the limit is {maximum}"),
        hint: format!("raise the limit: ulimit -Hn {needed}"),
    })
}

/// Raises this process's limit of open descriptors to its maximum: the number of the ranks' threads is unknown.
pub fn raise_descriptors() -> Result<(), HostError> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).map_err(HostError::system("raising the limit of open descriptors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_ranks_are_refused_and_one_is_not() {
        // 1e6 ranks: 700 MiB + 1e6 * 10 MiB = 9.5 TiB
        let refused = |ranks, available| check(ranks, available).map_err(|error| error.to_string());
        let error = refused(1_000_000, 9 << 40).unwrap_err();
        assert!(error.contains("1000000 ranks") && error.contains("hint: use fewer ranks"), "{error}");
        // 710 MiB is the forecast; memory is scarce if the forecast exceeds four fifths of the available memory.
        assert!(refused(1, 709 << 20).is_err());
        assert!(refused(1, 710 << 20).unwrap().is_some());
        assert_eq!(refused(1, 888 << 20), Ok(None));
    }

    #[test]
    fn ranks_are_refused_by_what_they_took_so_far() {
        let refused = |each, available| check_sizes(512, each, "rank 1 sleeps", available).map_err(|e| e.to_string());
        // 700 MiB + 512 * 1 GiB
        assert_eq!(refused(1 << 30, (700 << 20) + (512 << 30)), Ok(()));
        let error = refused(1 << 30, 512 << 30).unwrap_err();
        let what = "512 ranks must run, because rank 1 sleeps; they take 512.68 GiB of memory at least (1.00 GiB each)";
        assert!(error.starts_with(what) && error.contains("\nhint: "), "{error}");
        assert!(private_memory(std::process::id() as i32).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_tensor_that_does_not_fit_is_named_with_its_line() {
        let lack = Lack { wanted: 12 << 30, available: 3 << 30, line: "train.py:7".to_owned() };
        let error = lacks(2, &lack, Some("a"));
        assert!(error.to_string().contains("only 3.00 GiB of worker a's memory"), "{error}");
        let error = lacks(2, &lack, None);
        let what = "rank 2 allocates 12.00 GiB at train.py:7, but only 3.00 GiB of this machine's memory are available";
        assert!(error.to_string().starts_with(what), "{error}");
        assert!(error.to_string().contains("\nhint: ") && error.to_string().contains("--values small"), "{error}");
        assert_eq!(error.exit() as i32, 2);
    }

    #[test]
    fn available_memory_is_read_from_meminfo() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:     1024 kB\n"), Some(1 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn a_control_group_has_its_limit_less_what_cannot_be_reclaimed() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(room(group.path()), None);
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        write("memory.stat", "anon 500\nactive_file 200\ninactive_file 100\nslab_reclaimable 50\nslab 70\n");
        assert_eq!(room(group.path()), Some(1000 - 900 + 350));
        write("memory.max", "max\n");
        assert_eq!(room(group.path()), None);
    }

    #[test]
    fn limits_of_all_control_groups_count() {
        let root = PathBuf::from("/sys/fs/cgroup");
        let nested = groups("12:cpu:/other\n0::/system.slice/slurm/job_7\n");
        let named = ["system.slice/slurm/job_7", "system.slice/slurm", "system.slice", ""].map(|name| root.join(name));
        assert_eq!(nested, named);
        assert_eq!(groups("0::/\n"), [root.join("")]);
        assert_eq!(groups(""), [root.join("")]);
    }
}
