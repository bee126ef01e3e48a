//! Owns `uniference doctor`: a plain list of what a run needs, and what of it is there.

use crate::capacity;
use crate::error::{Exit, FILE_SIZE, HostError};
use crate::interrupt::shield;
use crate::live::arena::{self, Arena, Layout};
use crate::testbed::Testbed;
use rustix::process::{Resource, getrlimit};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// The version of torch whose private interfaces we use.
const TORCH: &str = "2.15";

/// One line of the list.
struct Finding {
    what: &'static str,
    /// What was found.
    found: String,
    /// What to do, if it will not do.
    problem: Option<String>,
}

/// Prints the list. [`Exit::Usage`] if there is a problem.
pub(super) fn doctor(python: &Path) -> Result<Exit, HostError> {
    let findings = [interpreter(python), torch(python), memory(), descriptors(), shared_memory(), cores(), testbed()];
    for Finding { what, found, problem } in &findings {
        let mark = if problem.is_some() { "problem" } else { "ok" };
        super::say(format_args!("{mark:<8} {what:<14} {found}\n"))?;
        if let Some(hint) = problem {
            super::say(format_args!("{:<23} hint: {hint}\n", ""))?;
        }
    }
    Ok(if findings.iter().any(|finding| finding.problem.is_some()) { Exit::Usage } else { Exit::Ok })
}

fn interpreter(python: &Path) -> Finding {
    let found = ask(python, "import sys; print('%d.%d.%d' % sys.version_info[:3])");
    let problem = found.is_err().then(|| "install Python 3.11 or newer".to_owned());
    let version = found.unwrap_or_else(|error| error);
    Finding { what: "python", found: format!("{version}, {}", python.display()), problem }
}

fn torch(python: &Path) -> Finding {
    // The version is in the package's metadata: importing torch takes seconds.
    let found = ask(python, "import importlib.metadata as m; print(m.version('torch'))");
    let problem = match &found {
        Ok(version) if is_supported(version) => None,
        Ok(_) => Some(format!("only {TORCH}.x is supported: pip install torch=={TORCH}.0")),
        Err(_) => Some(format!("pip install torch=={TORCH}.0")),
    };
    Finding { what: "torch", found: found.unwrap_or_else(|_| "not installed".into()), problem }
}

fn is_supported(version: &str) -> bool {
    version.starts_with(&format!("{TORCH}."))
}

/// The versions of what a script runs on. Another torch than ours is refused before it takes seconds to load.
pub(super) fn versions(python: &Path) -> Result<[(String, String); 2], HostError> {
    let code = "import platform, importlib.metadata as m; print(platform.python_version(), m.version('torch'))";
    let install = format!("pip install torch=={TORCH}.0");
    let found = ask(python, code).map_err(|error| HostError::Host {
        what: format!("torch's version cannot be found with {}: {error}", python.display()),
        hint: format!("install it: {install}"),
    })?;
    // Only the last line is ours: what Python runs at its start may print, too.
    match found.lines().last().and_then(|line| line.split_once(' ')) {
        Some((version, torch)) if is_supported(torch) => {
            Ok([("python".to_owned(), version.to_owned()), ("torch".to_owned(), torch.to_owned())])
        }
        other => Err(HostError::Host {
            what: format!(
                "torch {} is installed, but only {TORCH}.x is supported",
                other.map_or("?", |(_, torch)| torch)
            ),
            hint: format!("install it: {install}"),
        }),
    }
}

/// What Python prints, or the last of what it complains.
fn ask(python: &Path, code: &str) -> Result<String, String> {
    // Without the current folder: what lies there must not stand in for modules.
    let mut command = Command::new(python);
    let output = shield(command.args(["-P", "-c", code])).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr).lines().last().unwrap_or("it failed").to_owned())
    }
}

fn memory() -> Finding {
    let least = capacity::forecast(2);
    let available = capacity::available_memory();
    let problem = available.is_some_and(|bytes| bytes < least).then(|| format!("2 ranks need {} MiB", least >> 20));
    let found = available.map_or("unknown".to_owned(), |bytes| {
        let ranks = bytes.saturating_sub(capacity::forecast(0)) / (capacity::forecast(1) - capacity::forecast(0));
        format!("{} MiB available: room for about {ranks} small ranks", bytes >> 20)
    });
    Finding { what: "memory", found, problem }
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum;
    let problem = limit.is_some_and(|limit| limit < 1024).then(|| "raise it: ulimit -Hn 4096".to_owned());
    let found = limit
        .zip(capacity::most_ranks())
        .map_or("no limit".to_owned(), |(limit, ranks)| format!("{limit} at most: enough for {ranks} ranks"));
    Finding { what: "descriptors", found, problem }
}

fn shared_memory() -> Finding {
    let layout = Layout::for_world(1);
    let mapped = arena::create(layout).and_then(|file| Arena::map(file, layout.total, (0, layout.part), layout.retain));
    let problem = mapped.as_ref().err().map(|error| match error.kind() {
        ErrorKind::FileTooLarge => FILE_SIZE.to_owned(),
        _ => "allow memfd_create and large mappings (ulimit -v unlimited)".to_owned(),
    });
    let found = match mapped {
        Ok(_) => format!("a sparse memfd of {} GiB can be mapped", layout.total >> 30),
        Err(error) => error.to_string(),
    };
    Finding { what: "shared memory", found, problem }
}

/// Few need it, so it is never a problem.
fn testbed() -> Finding {
    let found = match Testbed::missing() {
        None => "can be had: root, /dev/net/tun, ip and tc".to_owned(),
        Some(missing) => format!("cannot be had here: {missing}"),
    };
    Finding { what: "testbed", found, problem: None }
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Finding { what: "cores", found: format!("{cores}: with --compute none so many ranks run at once"), problem: None }
}
