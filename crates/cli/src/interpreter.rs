//! Owns the queries of the ranks' Python interpreter before a run: its versions, and whether the program has simulated
//! GPUs.
//!
//! The queries do not import torch, which takes seconds.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use uniference_costs::operators::stacks::STACKS;
use uniference_host::error::HostError;
use uniference_host::interrupt::shield;
use uniference_host::symbols::Torch;

/// Supported torch versions, beginning with the one to install: as in `python/uniference/patches/versions.py`.
const TORCH: [&str; 2] = ["2.15", "2.14"];

/// Python code of the query; its docstring describes arguments and answer.
const SURVEY: &str = include_str!("../../../python/uniference/program/survey.py");

/// Versions of an interpreter, and needs of the program.
#[derive(Debug)]
pub(super) struct Survey {
    /// Versions of Python, torch and serving stacks, for the manifest.
    pub(super) versions: BTreeMap<String, String>,
    /// The torch installation whose GPUs are simulated; `None`: no GPUs, or those of this machine.
    pub(super) gpus: Option<Torch>,
}

/// Whether a program runs on simulated GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gpus {
    Yes,
    No,
    /// GPUs are simulated if the program requires CUDA.
    IfNeeded,
    /// GPUs are simulated if the program requires CUDA or can use it.
    IfUsed,
}

#[derive(Deserialize)]
struct Answer {
    versions: BTreeMap<String, String>,
    simulates_gpus: bool,
    folder: Option<PathBuf>,
}

/// Asks the Python interpreter about a program. `words` are a script and its arguments, or with `module` the module's
/// name in place of the script. A torch version that Uniference does not support is refused before torch is loaded,
/// which takes seconds.
pub(super) fn survey(python: &Path, words: &[OsString], module: bool, gpus: Gpus) -> Result<Survey, HostError> {
    let cuda = match gpus {
        Gpus::Yes => "yes",
        Gpus::No => "no",
        Gpus::IfNeeded => "needed",
        Gpus::IfUsed => "used",
    };
    let arguments = ["-c", SURVEY].map(OsStr::new).into_iter().chain([&*words[0]]);
    let arguments = arguments.chain([if module { "module" } else { "script" }, cuda].map(OsStr::new));
    let arguments = arguments.chain(STACKS.iter().map(|stack| OsStr::new(stack.package)));
    let hint = || format!("install a supported version: {}", install());
    let found = ask(python, arguments).map_err(|error| HostError::Host {
        what: format!("cannot determine the version of torch with {}: {error}", python.display()),
        hint: hint(),
    })?;
    // The answer is the last line: Python's startup code may print other lines.
    let answer = serde_json::from_str(found.lines().last().unwrap_or_default());
    let Answer { versions, simulates_gpus, folder } = answer.map_err(|error| HostError::Host {
        what: format!("cannot read what {} says of torch: {error}", python.display()),
        hint: hint(),
    })?;
    let torch = versions.get("torch").cloned().unwrap_or_default();
    if !is_supported(&torch) {
        let what = format!("torch {torch} is installed; only {} is supported", supported());
        return Err(HostError::Host { what, hint: hint() });
    }
    let gpus = simulates_gpus.then(|| Torch { folder: folder.unwrap_or_default(), version: torch });
    Ok(Survey { versions, gpus })
}

pub(super) fn is_supported(version: &str) -> bool {
    TORCH.iter().any(|supported| version.strip_prefix(supported).is_some_and(|rest| rest.starts_with('.')))
}

pub(super) fn supported() -> String {
    TORCH.map(|version| format!("{version}.x")).join(" or ")
}

/// Command that installs the first supported torch version.
pub(super) fn install() -> String {
    format!("pip install torch=={}.0", TORCH[0])
}

/// Standard output of Python, or the end of its standard error if it fails.
pub(super) fn ask<A: AsRef<OsStr>>(python: &Path, arguments: impl IntoIterator<Item = A>) -> Result<String, String> {
    // -P excludes the current folder, whose files must not shadow modules.
    let mut command = Command::new(python);
    let output = shield(command.arg("-P").args(arguments)).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr).lines().last().unwrap_or("it failed").to_owned())
    }
}
