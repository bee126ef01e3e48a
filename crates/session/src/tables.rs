//! Owns the files of a run's event tables: their paths, and a limit on how long a part stays open.
//!
//! The tables' contents are defined in `uniference-formats`.

use crate::folder::{Folder, unwritable};
use crate::names::TABLES;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use uniference_formats::events::{Parts, TableWriter};
use uniference_formats::sink::WriteError;
use uniference_host::error::HostError;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::Site;
use uniference_sim::time::SimTime;

/// Longest wall time for which a part is open: its rows are lost if the process is killed.
const LONGEST_OPEN: Duration = Duration::from_secs(10);

/// The event tables of an active run.
pub struct Tables {
    handle: Handle,
    closing: Closing,
}

/// The tables without their closing thread, for code that names source lines.
#[derive(Clone)]
pub(crate) struct Handle {
    writer: Arc<Mutex<TableWriter<Files>>>,
    messages: bool,
}

impl Tables {
    /// Creates tables in a folder that has none, or only those of an abandoned attempt; `messages` says whether
    /// messages have a table. `links` are the names of the network's links, by id.
    ///
    /// # Errors
    /// If the files cannot be created.
    pub fn create<'a>(
        folder: &Folder,
        messages: bool,
        links: impl IntoIterator<Item = &'a str>,
    ) -> Result<Tables, HostError> {
        Tables::closed_after(LONGEST_OPEN, folder, messages, links)
    }

    fn closed_after<'a>(
        longest: Duration,
        folder: &Folder,
        messages: bool,
        links: impl IntoIterator<Item = &'a str>,
    ) -> Result<Tables, HostError> {
        let path = folder.path().join(TABLES);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(unwritable("replace", &path, error)),
            _ => {}
        }
        fs::create_dir(&path).map_err(|source| unwritable("create", &path, source))?;
        let writer = Arc::new(Mutex::new(TableWriter::new(Files(path), messages, links)));
        let closing = Closing::of(Arc::clone(&writer), longest);
        Ok(Tables { handle: Handle { writer, messages }, closing })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sets the program's source lines, by site.
    pub fn lines(&mut self, lines: &[String]) {
        for (site, line) in (0..).map(Site).zip(lines).filter(|(_, line)| !line.is_empty()) {
            self.handle.line(site, line);
        }
    }

    /// Closes all parts.
    ///
    /// # Errors
    /// The first error of any part, even if it happened long ago.
    pub fn finish(self) -> Result<(), WriteError> {
        drop(self.closing);
        self.handle.writer().finish()
    }
}

impl Handle {
    pub(crate) fn line(&self, site: Site, line: &str) {
        self.writer().line(site, line);
    }

    /// A thread that panics while it holds the lock ends the run.
    fn writer(&self) -> MutexGuard<'_, TableWriter<Files>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Tables {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if self.handle.messages || !matches!(event, Event::Message { .. }) {
            self.handle.writer().record(at, event);
        }
    }

    fn wants_messages(&self) -> bool {
        self.handle.messages
    }
}

/// Files in the folder `events`: a complete part is named `KIND/NUMBER.parquet`. Readers see only complete parts,
/// because an open part has another name outside of its table's folder.
struct Files(PathBuf);

impl Files {
    fn unfinished(&self, kind: &str) -> PathBuf {
        self.0.join(format!("{kind}.part"))
    }
}

impl Parts for Files {
    type File = File;

    fn begin(&mut self, kind: &'static str) -> io::Result<File> {
        File::create(self.unfinished(kind))
    }

    /// Written data survives the end of the process, but not necessarily a power failure: the file is not synced.
    fn close(&mut self, kind: &'static str, number: u32, _: File) -> io::Result<()> {
        let table = self.0.join(kind);
        if number == 0 {
            fs::create_dir(&table)?;
        }
        fs::rename(self.unfinished(kind), table.join(format!("{number:05}.parquet")))
    }
}

/// A thread that closes parts periodically while it exists, because a rank may compute for minutes.
struct Closing {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Closing {
    fn of(writer: Arc<Mutex<TableWriter<Files>>>, longest: Duration) -> Closing {
        let (end, ended) = channel();
        let thread = thread::spawn(move || Closing::again_and_again(&writer, longest, &ended));
        Closing { end: Some(end), thread: Some(thread) }
    }

    fn again_and_again(writer: &Mutex<TableWriter<Files>>, longest: Duration, ended: &Receiver<()>) {
        while ended.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
            writer.lock().unwrap_or_else(PoisonError::into_inner).close_parts();
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notices::Notices;
    use uniference_sim::ids::{RankId, TaskId};
    use uniference_sim::program::Mark;

    /// Complete files of a run that is active or was killed.
    #[test]
    fn parts_are_closed_while_nothing_happens_and_every_file_of_a_table_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::prepare(Some(&dir.path().join("out")), "a".as_ref(), &Notices::ignored()).unwrap();
        let mut tables = Tables::closed_after(Duration::from_millis(20), &folder, false, []).unwrap();
        tables.handle().line(Site(0), "a.py:1");
        let mark =
            Event::Marked { rank: RankId(0), task: TaskId(0), mark: &Mark::End, why: Default::default(), spent: None };
        let part = |number: u32| folder.path().join(format!("events/marked/{number:05}.parquet"));
        for number in 0..3 {
            tables.record(SimTime::ZERO, &mark);
            while !part(number).exists() {
                thread::sleep(Duration::from_millis(1));
            }
            let file = fs::read(part(number)).unwrap();
            assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
        }
        assert!(folder.path().join("events/line/00000.parquet").exists());
        tables.finish().unwrap();
        assert!(!part(3).exists() && folder.path().join("events/waited/00000.parquet").exists());
        let unfinished = fs::read_dir(folder.path().join("events")).unwrap();
        assert!(unfinished.map(|entry| entry.unwrap()).all(|entry| entry.file_type().unwrap().is_dir()));
        // Another attempt in the same folder starts from scratch.
        Tables::create(&folder, true, []).unwrap().finish().unwrap();
        assert!(!part(1).exists() && folder.path().join("events/message/00000.parquet").exists());
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::prepare(Some(&dir.path().join("out")), "a".as_ref(), &Notices::ignored()).unwrap();
        let tables = Tables::create(&folder, false, ["a"]).unwrap();
        fs::remove_dir_all(folder.path().join(TABLES)).unwrap();
        let error = tables.finish().unwrap_err().to_string();
        assert!(error.starts_with("the event tables could not be written: "), "{error}");
    }
}
