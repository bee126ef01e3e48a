//! Owns pictures of a page's charts: a browser draws the page, whose charts are then written as files. The page defines
//! the charts.

use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use uniference_session::{HostError, whole};

/// Names of the browser command, in order of preference.
const BROWSERS: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
/// Time limit for drawing a page.
const LONGEST: Duration = Duration::from_secs(180);
/// Element in which the page puts the pictures of its charts if it is opened with `#pictures`.
const BEGINNING: &str = "<script type=\"application/json\" id=\"pictures\">";
const END: &str = "</script>";

/// A browser that can draw a page without showing it.
pub(super) struct Browser(PathBuf);

/// A chart drawn by a browser.
#[derive(Deserialize)]
struct Picture {
    /// Name of the chart's files.
    name: String,
    svg: String,
    /// Bytes in hexadecimal digits.
    png: String,
}

impl Browser {
    /// Searches the folders of `PATH`.
    ///
    /// # Errors
    /// If no browser is found.
    pub(super) fn find() -> Result<Browser, HostError> {
        let folders: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
        let all = BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        all.into_iter().find(|path| path.is_file()).map(Browser).ok_or_else(|| {
            let hint = "install Chromium (on Debian: apt-get install chromium), or leave --figures out: the page draws its charts itself";
            HostError::Usage(format!("--figures requires Chromium or Chrome, and none of them is in PATH\nhint: {hint}"))
        })
    }

    /// Writes each chart of the page to `folder`, and returns the number of charts.
    ///
    /// # Errors
    /// If the browser fails, or files cannot be written.
    pub(super) fn take_pictures(&self, page: &Path, folder: &Path) -> Result<usize, HostError> {
        let unwritable = |path: &Path| {
            let path = path.to_owned();
            move |source| HostError::File {
                action: "write",
                path,
                source,
                hint: "choose a writable folder with --figures",
            }
        };
        fs::create_dir_all(folder).map_err(unwritable(folder))?;
        let document = self.document(page)?;
        let pictures = document.split_once(BEGINNING).and_then(|(_, rest)| rest.split_once(END));
        let pictures: Vec<Picture> = pictures
            .and_then(|(text, _)| serde_json::from_str(text).ok())
            .ok_or_else(|| self.failed("did not draw the page"))?;
        for Picture { name, svg, png } in &pictures {
            let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            let png: Option<Vec<u8>> = png.as_bytes().chunks(2).map(digits).collect();
            let png = png.ok_or_else(|| self.failed("did not draw the page"))?;
            for (ending, bytes) in [("svg", svg.as_bytes()), ("png", &png)] {
                let path = folder.join(format!("{name}.{ending}"));
                whole::write(&path, bytes).map_err(unwritable(&path))?;
            }
        }
        Ok(pictures.len())
    }

    /// The page's document after its scripts have run.
    fn document(&self, page: &Path) -> Result<String, HostError> {
        let failed = |source: io::Error| self.failed(&format!("cannot be used: {source}"));
        let scratch = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().map_err(failed)?;
        let output = scratch.path().join("document");
        let mut command = Command::new(&self.0);
        command.args(["--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]);
        command.args(["--disable-background-networking", "--disable-component-update", "--dump-dom"]);
        // Chromium's sandbox refuses to run as root.
        if rustix::process::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        let mut profile = OsString::from("--user-data-dir=");
        profile.push(scratch.path().join("profile"));
        command.arg(profile).arg(format!("{}#pictures", address(&page.canonicalize().map_err(failed)?)));
        command.stdin(Stdio::null()).stdout(File::create(&output).map_err(failed)?).stderr(Stdio::null());
        let mut browser = command.spawn().map_err(failed)?;
        if !ended(&mut browser).map_err(failed)? {
            return Err(self.failed("did not draw the page"));
        }
        fs::read_to_string(&output).map_err(failed)
    }

    fn failed(&self, how: &str) -> HostError {
        let hint = "the page itself is written, and draws its charts in any browser";
        HostError::Usage(format!("{} {how}\nhint: {hint}", self.0.display()))
    }
}

/// Waits for the browser, and kills it after a time limit. Returns whether it succeeded.
fn ended(browser: &mut Child) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = browser.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > LONGEST {
            browser.kill()?;
            browser.wait()?;
            return Ok(false);
        }
        sleep(Duration::from_millis(20));
    }
}

/// The file's URL: all bytes except unreserved ones are percent-encoded.
fn address(path: &Path) -> String {
    let byte = |byte: &u8| match byte {
        b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(*byte).to_string(),
        other => format!("%{other:02X}"),
    };
    let path: String = path.as_os_str().as_encoded_bytes().iter().map(byte).collect();
    format!("file://{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_byte_with_a_meaning() {
        assert_eq!(address(Path::new("/a b/ä#?.html")), "file:///a%20b/%C3%A4%23%3F.html");
    }
}
