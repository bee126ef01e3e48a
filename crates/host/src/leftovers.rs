//! Owns what programs that are ended leave in shared memory: segments and semaphores under `/dev/shm` stay until somebody removes them, and whoever
//! has made them cannot any more.

use crate::supervisor::children_of;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FOLDER: &str = "/dev/shm/";

/// What a process and those below it have open or mapped there and has been made since then.
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

/// Removes it, as far as that was not done meanwhile and nobody else has it: what a process outside of the run has made is its own.
pub fn remove(shared: BTreeSet<PathBuf>) {
    if shared.is_empty() {
        return;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let held: BTreeSet<PathBuf> = processes.flat_map(|process| held_by(&process)).collect();
    for path in shared.difference(&held) {
        let _ = fs::remove_file(path);
    }
}

/// What a process has open or mapped there; of another user's nothing is known.
fn held_by(process: &Path) -> BTreeSet<PathBuf> {
    opened_in(process).chain(mapped_in(process)).collect()
}

fn opened_in(process: &Path) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).filter(|to| to.starts_with(FOLDER))
}

fn mapped_in(process: &Path) -> Vec<PathBuf> {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let names = maps.lines().filter_map(|line| Some(&line[line.find(FOLDER)?..]));
    names.collect::<BTreeSet<_>>().into_iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn what_a_program_has_made_is_removed_and_nothing_else() {
        let name = |what: &str| PathBuf::from(format!("{FOLDER}uniference-{what}-{}", std::process::id()));
        let (old, new) = (name("old"), name("new"));
        fs::write(&old, "").unwrap();
        // The clock of files goes by ticks.
        sleep(Duration::from_millis(50));
        let since = SystemTime::now();
        sleep(Duration::from_millis(50));
        // In a process of a process, which has the old one open as well.
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
