//! Owns the atomic writing of files: a file appears under its name once it is complete, and an error leaves the
//! previous file unchanged. Terminals, pipes, mount points and files in read-only folders are written in place.
//!
//! Files that grow during a run are written in place, so that a run that was killed leaves the part written so far.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

/// Writes `contents` to a file atomically.
///
/// # Errors
/// If the file cannot be written. A previous file is then unchanged, unless it is written in place.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_with(path, |out| out.write_all(contents))
}

/// Writes a file atomically by `write`, which need not flush.
///
/// # Errors
/// The errors of [`write()`] and of `write`.
pub fn write_with(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    // A symbolic link stays a link, and its target is replaced.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let old = match OpenOptions::new().write(true).open(path) {
        Ok(file) => {
            let known = file.metadata()?;
            // Terminals and pipes are written in place. The reader of a pipe would count a second opening as another
            // writer.
            if !known.is_file() {
                return fill(file, write);
            }
            Some(known)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A dangling symbolic link gets its target created.
    if path.is_symlink() {
        return fill(File::create(path)?, write);
    }
    let part = path.with_file_name(part_of(path.file_name().unwrap_or_default().to_owned()));
    let file = match File::create(&part) {
        // If the folder does not permit new files, a file that exists is overwritten in place.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && old.is_some() => {
            return fill(File::create(path)?, write);
        }
        file => file?,
    };
    let permitted = old.as_ref().map_or(Ok(()), |old| file.set_permissions(old.permissions()));
    let filled = permitted.and_then(|()| fill(file, write));
    let written = filled.and_then(|()| match fs::rename(&part, path) {
        // A mount point cannot be replaced, nor can another user's file in a folder with the sticky bit.
        Err(error)
            if old.is_some() && [ErrorKind::ResourceBusy, ErrorKind::PermissionDenied].contains(&error.kind()) =>
        {
            let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
            io::copy(&mut File::open(&part)?, &mut file)?;
            fs::remove_file(&part)
        }
        renamed => renamed,
    });
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn fill(file: File, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    let filled = write(&mut out).and_then(|()| out.flush());
    if filled.is_err() {
        // The remaining buffer is discarded, since dropping `out` would try to write it again.
        drop(out.into_parts());
    }
    filled
}

/// The temporary name of a file that is being written.
fn part_of(name: OsString) -> OsString {
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", std::process::id()));
    part
}

/// The name of the file that a killed command was writing, from the temporary name; `None` if `part` is no temporary
/// name.
pub(crate) fn unfinished(part: &str) -> Option<&str> {
    let (name, process) = part.strip_prefix('.')?.strip_suffix(".part")?.rsplit_once('.')?;
    process.parse::<u32>().is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_error_leaves_nothing_new_and_what_was_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        let full = |out: &mut BufWriter<File>| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert_eq!(write_with(&path, full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(names(dir.path()), [""; 0]);
        write(&path, b"old").unwrap();
        assert_eq!(write_with(&path, full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((names(dir.path()), fs::read(&path).unwrap()), (vec!["page.html".to_owned()], b"old".to_vec()));
    }

    #[test]
    fn links_stay_and_permissions_too() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| dir.path().join(name));
        write(&file, b"old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        symlink(dir.path().join("target"), &dangling).unwrap();
        write(&link, b"new").unwrap();
        write(&dangling, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["dangling", "file", "link", "target"]);
        write(Path::new("/dev/null"), b"text").unwrap();
        assert!(write(dir.path(), b"text").is_err());
    }

    #[test]
    fn the_reader_of_a_pipe_gets_the_whole_text_from_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_with(&pipe, |out| {
            // The pause lets the reader notice if the file ends early.
            std::thread::sleep(std::time::Duration::from_millis(50));
            out.write_all(b"text")
        })
        .unwrap();
        assert_eq!(reader.join().unwrap(), b"text");
        assert_eq!(names(dir.path()), ["pipe"]);
    }

    #[test]
    fn what_a_killed_command_has_left_is_known() {
        let part = part_of("report.json".into()).into_string().unwrap();
        assert_eq!(unfinished(&part), Some("report.json"));
        assert_eq!([".part", ".x.part", "report.json.7.part"].map(unfinished), [None; 3]);
    }
}
