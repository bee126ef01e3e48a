//! Owns shared resources that killed programs leave behind: shared memory segments, semaphores and socket files persist
//! until they are removed, which their killed creators cannot do.
//!
//! A rank's processes record the resources that they create ([`Register`]). Resources that are not created through the
//! C library are found as long as a process still has them when the run ends ([`shared_by`]).

use crate::error::HostError;
use crate::supervisor::children_of;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use uniference_protocol::leaked_resources::{self, SHARED};

/// The kernel's list of Unix sockets, with their names.
const SOCKETS: &str = "/proc/net/unix";

/// The list of shared resources that a run's processes have created.
pub struct Register {
    /// A memory file, which leaves nothing behind.
    list: File,
}

impl Register {
    /// An empty register.
    ///
    /// # Errors
    /// If no descriptor is available.
    pub fn new() -> Result<Register, HostError> {
        let list =
            memfd_create("leaked-resources", MemfdFlags::CLOEXEC).map_err(HostError::system("creating a list"))?;
        Ok(Register { list: list.into() })
    }

    /// The path for other processes, valid while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.list.as_raw_fd()).into()
    }

    /// Recorded resources that still exist.
    pub fn left(&self) -> BTreeSet<PathBuf> {
        let length = self.list.metadata().map_or(0, |known| known.len());
        let mut lines = vec![0; length as usize];
        let read = self.list.read_exact_at(&mut lines, 0);
        let left = read.is_ok().then(|| leaked_resources::read(&lines)).into_iter().flatten();
        left.filter(leaked_resources::Left::is_there).map(|left| left.path).collect()
    }
}

/// Shared resources that a process or its descendants have open or mapped and that were created at or after `since`.
pub fn shared_by(root: i32, since: SystemTime) -> BTreeSet<PathBuf> {
    let since = since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
    let changed = |known: &Metadata| i128::from(known.ctime()) * 1_000_000_000 + i128::from(known.ctime_nsec());
    let is_new = |path: &PathBuf| fs::metadata(path).is_ok_and(|known| changed(&known) >= since);
    let mut found = BTreeSet::new();
    let mut processes = vec![root];
    while let Some(process) = processes.pop() {
        let folder = Path::new("/proc").join(process.to_string());
        processes.extend(children_of(&folder));
        found.extend(held_by(&folder));
    }
    found.into_iter().filter(is_new).collect()
}

/// Removes resources that still exist and are not in use: resources of processes outside of the run belong to those
/// processes.
pub fn remove(left: BTreeSet<PathBuf>) {
    if left.is_empty() {
        return;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let held: BTreeSet<PathBuf> = processes.flat_map(|process| held_by(&process)).chain(bound()).collect();
    for path in left.difference(&held) {
        let _ = fs::remove_file(path);
    }
}

/// The files of bound sockets.
fn bound() -> Vec<PathBuf> {
    let sockets = fs::read_to_string(SOCKETS).unwrap_or_default();
    // Num: RefCount Protocol Flags Type St Inode Path
    let paths = sockets.lines().filter_map(|line| Some(&line[line.find(" /")? + 1..]));
    paths.map(PathBuf::from).collect()
}

/// Shared resources that a process has open or mapped; empty for processes of other users.
fn held_by(process: &Path) -> BTreeSet<PathBuf> {
    opened_in(process).chain(mapped_in(process)).collect()
}

fn opened_in(process: &Path) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).filter(|to| to.starts_with(SHARED))
}

fn mapped_in(process: &Path) -> Vec<PathBuf> {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let names = maps.lines().filter_map(|line| Some(&line[line.find(SHARED)?..]));
    names.collect::<BTreeSet<_>>().into_iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn what_was_written_down_is_removed_unless_somebody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let [dead, alive, gone] = ["dead", "alive", "gone"].map(|name| folder.path().join(name));
        drop(UnixListener::bind(&dead).unwrap());
        let listener = UnixListener::bind(&alive).unwrap();
        fs::write(&gone, "").unwrap();
        let register = Register::new().unwrap();
        for path in [&dead, &alive, &gone] {
            let mut list = File::options().append(true).open(register.path()).unwrap();
            list.write_all(&leaked_resources::line(path).unwrap()).unwrap();
        }
        fs::remove_file(&gone).unwrap();
        assert_eq!(register.left(), [dead.clone(), alive.clone()].into());
        remove(register.left());
        assert!(!dead.exists() && alive.exists());
        drop(listener);
        remove(register.left());
        assert!(!alive.exists());
    }

    #[test]
    fn what_a_program_has_made_is_removed_and_nothing_else() {
        let name = |what: &str| PathBuf::from(format!("{SHARED}uniference-{what}-{}", std::process::id()));
        let (old, new) = (name("old"), name("new"));
        fs::write(&old, "").unwrap();
        // File times have the granularity of clock ticks.
        sleep(Duration::from_millis(50));
        let since = SystemTime::now();
        sleep(Duration::from_millis(50));
        // A grandchild process, which has the old file open as well.
        let script = format!("(exec 3<{} 4>{}; echo there; sleep 60) & wait", old.display(), new.display());
        let mut child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        while !new.exists() {
            sleep(Duration::from_millis(1));
        }
        let shared = shared_by(child.id() as i32, since);
        assert_eq!(shared, [new.clone()].into());
        crate::supervisor::adopt_orphans().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        crate::supervisor::end_orphans();
        let user = fs::File::open(&new).unwrap();
        remove(shared.clone());
        assert!(new.exists());
        drop(user);
        remove(shared);
        assert!(!new.exists() && old.exists());
        fs::remove_file(old).unwrap();
    }
}
