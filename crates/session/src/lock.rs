//! Owns the lock on a run folder or result file: one command writes at a time, or the machines of one launch together.
//!
//! The caller writes the files.
//!
//! The lock is a kernel lock (`flock`) on a hidden file next to the results, so it ends with the process that holds it,
//! however the process ends. The lock's owner removes the file; a file left by a killed command blocks no other
//! command.

use crate::notices::Notices;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uniference_host::error::HostError;

/// Name of the lock in a run folder. The lock of a file is `.NAME.lock`.
pub const LOCK: &str = ".uniference.lock";

/// Time that the machines of a launch wait until the first one has written the launch's name into the lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command that writes to a folder.
#[derive(Clone, Copy)]
pub enum Writer<'a> {
    /// One command, which does not share the folder.
    Alone,
    /// Machines of one launch, which share the folder; all pass the same text.
    Together(&'a str),
}

/// A held lock: no other command writes to the folder or file.
pub struct Lock {
    file: File,
    path: PathBuf,
    /// Whether this process got the lock first.
    is_first: bool,
}

/// Result of one attempt to get the lock.
enum Attempt {
    Taken {
        is_first: bool,
    },
    Held,
    /// The holder is about to release the lock, or has not yet written the launch's name.
    Again,
}

impl Lock {
    /// The lock of a folder. `None`, after a warning, if its file system does not support locks.
    ///
    /// # Errors
    /// If another command writes to the folder, or the folder is not writable.
    pub fn of_folder(folder: &Path, writer: Writer<'_>, notices: &Notices) -> Result<Option<Lock>, HostError> {
        Lock::take(folder.join(LOCK), folder, writer, notices)
    }

    /// The lock of a file, whose folder is created if it does not exist; results as [`Lock::of_folder`]. Also `None`
    /// for a device or a pipe, in which outputs cannot be mixed up.
    pub fn of_file(file: &Path, writer: Writer<'_>, notices: &Notices) -> Result<Option<Lock>, HostError> {
        let Some(name) = file.file_name() else { return Ok(None) };
        if fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(None);
        }
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|source| HostError::File {
                action: "create",
                path: folder.to_owned(),
                source,
                hint: "choose a writable path with --out",
            })?;
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".lock");
        Lock::take(file.with_file_name(hidden), file, writer, notices)
    }

    /// Whether this process got a shared lock first: files in the folder are then from another launch.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    fn take(path: PathBuf, what: &Path, writer: Writer<'_>, notices: &Notices) -> Result<Option<Lock>, HostError> {
        let unwritable = |source| HostError::File {
            action: "create",
            path: path.clone(),
            source,
            hint: "choose a writable folder with --out",
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(unwritable)?;
            match attempt(&file, &path, writer) {
                Ok(Attempt::Taken { is_first }) => return Ok(Some(Lock { file, path, is_first })),
                Ok(Attempt::Again) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(Attempt::Held | Attempt::Again) => return Err(held(what, writer)),
                Err(error) if has_no_locks(&error) => {
                    let _ = fs::remove_file(&path);
                    notices.warn(&format!(
                        "the file system of {} does not support locks ({error}); make sure that no other command writes there at the same time",
                        what.display()
                    ));
                    return Ok(None);
                }
                Err(error) => return Err(unwritable(error)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Machines of one launch may share the lock: the last one removes the file.
        if self.file.try_lock().is_ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn attempt(mut file: &File, path: &Path, writer: Writer<'_>) -> io::Result<Attempt> {
    let alone = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    match (writer, alone) {
        (Writer::Alone, false) => return Ok(Attempt::Held),
        (Writer::Alone, true) => {}
        (Writer::Together(run), true) => {
            file.set_len(0)?;
            file.write_all(run.as_bytes())?;
            // Another machine of the launch may get the lock first; the file then contains that machine's name.
            file.lock_shared()?;
        }
        (Writer::Together(_), false) => match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Attempt::Again),
            Err(TryLockError::Error(error)) => return Err(error),
        },
    }
    // The previous holder may have removed the file between the opening and the lock.
    let there = fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
    let ours = file.metadata()?;
    if there != Some((ours.dev(), ours.ino())) {
        return Ok(Attempt::Again);
    }
    if let Writer::Together(run) = writer {
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        if text != run {
            return Ok(if text.is_empty() { Attempt::Again } else { Attempt::Held });
        }
    }
    Ok(Attempt::Taken { is_first: alone })
}

fn has_no_locks(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

fn held(what: &Path, writer: Writer<'_>) -> HostError {
    let hint = match writer {
        Writer::Alone => "wait until it has ended, or choose another path with --out",
        Writer::Together(_) => {
            "wait until it has ended, or choose another path with --out; machines of one launch may share a folder \
             if they are given the same program, --nnodes, --master-addr, --master-port and --rdzv options"
        }
    };
    HostError::Usage(format!("another command is writing to {}\nhint: {hint}", what.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(dir: &Path, writer: Writer<'_>) -> Option<Lock> {
        Lock::of_folder(dir, writer, &Notices::ignored())
            .ok()
            .map(|lock| lock.expect("the file system of tests has locks"))
    }

    #[test]
    fn one_writes_at_a_time_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = take(dir.path(), Writer::Alone).unwrap();
        assert!(take(dir.path(), Writer::Alone).is_none() && take(dir.path(), Writer::Together("a")).is_none());
        drop(lock);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // A killed command has left the file, but no lock.
        fs::write(dir.path().join(LOCK), "b").unwrap();
        assert!(take(dir.path(), Writer::Together("a")).is_some_and(|lock| lock.is_first()));
    }

    #[test]
    fn the_machines_of_a_launch_share_a_folder_with_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let first = take(dir.path(), Writer::Together("a")).unwrap();
        let second = take(dir.path(), Writer::Together("a")).unwrap();
        assert!(first.is_first() && !second.is_first());
        assert!(take(dir.path(), Writer::Together("b")).is_none() && take(dir.path(), Writer::Alone).is_none());
        drop(first);
        assert!(take(dir.path(), Writer::Together("b")).is_none());
        drop(second);
        assert!(take(dir.path(), Writer::Together("b")).is_some());
    }

    #[test]
    fn of_many_who_come_at_once_one_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let together = std::sync::Barrier::new(8);
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    for _ in 0..200 {
                        if let Some(_lock) = take(path, Writer::Alone) {
                            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_file_is_locked_beside_it_and_a_device_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster.toml");
        let lock = Lock::of_file(&file, Writer::Alone, &Notices::ignored()).unwrap();
        let error = Lock::of_file(&file, Writer::Alone, &Notices::ignored()).err().unwrap().to_string();
        assert!(
            lock.is_some() && error.contains("another command is writing to") && error.contains("hint:"),
            "{error}"
        );
        assert!(Lock::of_file(Path::new("/dev/null"), Writer::Alone, &Notices::ignored()).unwrap().is_none());
    }
}
