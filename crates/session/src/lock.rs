//! Owns who may write to a folder or file of results: one command at a time, or the machines of one launch together.
//!
//! What is written there is the caller's business.
//!
//! A lock is the kernel's (`flock`) on a hidden file beside the results, so it ends with the process that holds it, whatever ends that. The
//! file is removed with it; one that a killed command has left behind stops nobody.

use crate::notices::Notices;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uniference_host::error::HostError;

/// In a folder of results. Beside a file it is called `.NAME.lock`.
pub const LOCK: &str = ".uniference.lock";

/// How long the machines of a launch wait for the one that came first to say whose the folder is.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command that wants to write to a folder.
#[derive(Clone, Copy)]
pub enum Writer<'a> {
    /// One command, which shares the folder with no other.
    Alone,
    /// Those who say the same: the machines of a launch may share a folder.
    Together(&'a str),
}

/// While it lives, nobody else writes there.
pub struct Lock {
    file: File,
    path: PathBuf,
    /// Nobody had it before.
    is_first: bool,
}

/// What came of one attempt.
enum Attempt {
    Taken {
        is_first: bool,
    },
    Held,
    /// Somebody is just about to let go of it, or has it and has not said who it is.
    Again,
}

impl Lock {
    /// The lock of a folder. `None`, after a warning: its file system has no locks.
    ///
    /// # Errors
    /// Where somebody else writes there, or nobody may.
    pub fn of_folder(folder: &Path, writer: Writer<'_>, notices: &Notices) -> Result<Option<Lock>, HostError> {
        Lock::take(folder.join(LOCK), folder, writer, notices)
    }

    /// The lock of a file, whose folder is made if it is not there, as [`Lock::of_folder`]; `None` too of what is no file that could be mixed: a device, a pipe.
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

    /// Whether nobody else shares it who was there before: what lies in the folder is not of this launch.
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
        // Others of the same launch may share it: the last one removes the file.
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
            // Another one may come between; then it has written its own.
            file.lock_shared()?;
        }
        (Writer::Together(_), false) => match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Attempt::Again),
            Err(TryLockError::Error(error)) => return Err(error),
        },
    }
    // Whoever held it may have removed the file between our opening and our locking it.
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
        // A command that was killed has left the file, but no lock.
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
