//! Owns `uniference doctor`: a list of the requirements of a run, and whether they are met.

use super::interpreter::{ask, install, is_supported, supported};
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use uniference_abi::gpus::LIBRARY;
use uniference_costs::operators::stacks::{STACKS, Stack};
use uniference_host::capacity;
use uniference_host::error::{Exit, FILE_SIZE, HostError};
use uniference_host::symbols::{self, Torch};
use uniference_host::testbed::Testbed;
use uniference_protocol::arena::{self, Layout};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// List every name of PyTorch and Python that Uniference replaces, and every private one that it relies on
    #[arg(long)]
    patches: bool,
}

/// One line of the list.
struct Finding {
    what: &'static str,
    /// State of this machine.
    found: String,
    /// Problem and remedy, if the requirement is not met.
    problem: Option<String>,
}

/// Prints the list. [`Exit::Usage`] if there is a problem.
pub(super) fn doctor(args: &Args, python: &Path) -> Result<Exit, HostError> {
    if args.patches {
        return list_patches(python);
    }
    let torch = torch(python);
    let of_torch = torch.problem.is_none().then(|| [patches(python), capture(python), gpus(python)]);
    let findings = [interpreter(python), torch].into_iter().chain(of_torch.into_iter().flatten());
    let findings: Vec<Finding> =
        findings.chain(stacks(python)).chain([memory(), descriptors(), shared_memory(), cores(), testbed()]).collect();
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
    let found = ask(python, ["-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]);
    let problem = found.is_err().then(|| "install Python 3.11 or newer".to_owned());
    let version = found.unwrap_or_else(|error| error);
    Finding { what: "python", found: format!("{version}, {}", python.display()), problem }
}

fn torch(python: &Path) -> Finding {
    // The package metadata contain the version; importing torch takes seconds.
    let found = ask(python, ["-c", "import importlib.metadata as m; print(m.version('torch'))"]);
    let problem = match &found {
        Ok(version) if is_supported(version) => None,
        Ok(_) => Some(format!("only {} is supported; {}", supported(), install())),
        Err(_) => Some(install()),
    };
    Finding { what: "torch", found: found.unwrap_or_else(|_| "not installed".into()), problem }
}

/// A name of torch or Python that is replaced or used, as listed by `python -m uniference.patches`.
#[derive(Deserialize)]
struct Patch {
    name: String,
    /// Part of Uniference that needs the name.
    part: String,
    verb: String,
    why: String,
    parameters: Option<String>,
    /// Problem with the name, if any.
    problem: Option<String>,
}

fn names(python: &Path) -> Result<Vec<Patch>, String> {
    let listed = ask(python, ["-m", "uniference.patches"])?;
    listed.lines().map(|line| serde_json::from_str(line).map_err(|error| error.to_string())).collect()
}

/// Whether this torch has all names that runs need.
fn patches(python: &Path) -> Finding {
    let (found, problem) = match names(python) {
        Err(error) => (error, Some("install the package with its dependencies: pip install uniference".to_owned())),
        Ok(names) => {
            let moved: Vec<&Patch> = names.iter().filter(|name| name.problem.is_some()).collect();
            match moved[..] {
                [] => (format!("{} required names of PyTorch and Python found", names.len()), None),
                [first, ..] => (
                    format!(
                        "{} of {} required names of PyTorch and Python not found, for example {}",
                        moved.len(),
                        names.len(),
                        first.name
                    ),
                    Some(format!("{}; `uniference doctor --patches` lists them", install())),
                ),
            }
        }
    };
    Finding { what: "patches", found, problem }
}

/// Whether the C++ library that captures operators is there.
fn capture(python: &Path) -> Finding {
    let code = "import importlib.metadata as m, importlib.util as u, pathlib\n\
                name = 'capture-%s.so' % '.'.join(m.version('torch').split('.')[:2])\n\
                print(name, (pathlib.Path(u.find_spec('uniference').origin).parent / name).exists())";
    let (found, problem) = match ask(python, ["-c", code]) {
        Ok(found) if found.ends_with("True") => ("operators are captured".to_owned(), None),
        Ok(found) => (
            format!(
                "{} is missing: without it, programs run with --compute none and --values all only",
                found.split(' ').next().unwrap_or_default()
            ),
            Some(
                "install g++ and run `make setup` again, or install a wheel that was built for this version of torch"
                    .to_owned(),
            ),
        ),
        Err(error) => (error, None),
    };
    Finding { what: "capture", found, problem }
}

/// Whether GPUs can be simulated. Runs work without it, so only an unexpected torch is a problem.
fn gpus(python: &Path) -> Finding {
    let what = "simulated GPUs";
    let code = "import importlib.metadata as m, importlib.util as u\n\
                for name in ('uniference', 'torch'): print(u.find_spec(name).submodule_search_locations[0])\n\
                print(m.version('torch'))";
    let found = match ask(python, ["-c", code]) {
        Ok(found) => found,
        Err(found) => return Finding { what, found, problem: None },
    };
    let mut lines = found.lines().rev();
    let mut line = || lines.next().unwrap_or_default().to_owned();
    let (version, folder, package) = (line(), line().into(), line());
    let torch = Torch { folder, version };
    let library = Path::new(&package).join(LIBRARY);
    if !library.exists() {
        return Finding { what, found: format!("none: {LIBRARY} is missing"), problem: None };
    }
    match symbols::compare(&library, &torch) {
        Ok(bound) => match bound.problem(&torch) {
            None => Finding {
                what,
                found: format!("all {} functions of CUDA that torch binds found", bound.functions.len()),
                problem: None,
            },
            Some(found) if bound.functions.is_empty() => {
                Finding { what, found: format!("none: {found}"), problem: None }
            }
            Some(found) => Finding { what, found, problem: Some(install()) },
        },
        Err(error) => Finding { what, found: error.to_string(), problem: Some(install()) },
    }
}

/// Versions of the packages whose operators are described. Another version than the checked one is no problem of the
/// installation: a run warns if it uses its operators.
fn stacks(python: &Path) -> Vec<Finding> {
    let code = "import importlib.metadata as m, sys\n\
                for name in sys.argv[1:]:\n\
                \x20   try: print(name, m.version(name))\n\
                \x20   except m.PackageNotFoundError: pass";
    let found = ask(python, ["-c", code].into_iter().chain(STACKS.iter().map(|stack| stack.package)));
    let found = found.unwrap_or_default();
    let versions: BTreeMap<&str, &str> = found.lines().filter_map(|line| line.split_once(' ')).collect();
    let finding = |stack: &Stack| {
        let version = versions.get(stack.package)?;
        let found = match stack.is_checked(version) {
            true => format!("{version}; costs of its operators were checked with this version"),
            false => format!("{version}; costs of its operators were checked with {}", stack.checked.join(" and ")),
        };
        Some(Finding { what: stack.package, found, problem: None })
    };
    let missing = STACKS.iter().filter(|stack| !versions.contains_key(stack.package));
    let missing: Vec<String> =
        missing.map(|stack| format!("{} {}", stack.package, stack.checked.join(" and "))).collect();
    let rest = Finding { what: "other stacks", found: format!("not installed: {}", missing.join(", ")), problem: None };
    STACKS.iter().filter_map(finding).chain((!missing.is_empty()).then_some(rest)).collect()
}

/// Prints each name with its use. [`Exit::Usage`] if a name has moved.
fn list_patches(python: &Path) -> Result<Exit, HostError> {
    let names = names(python).map_err(|error| HostError::Host {
        what: format!("cannot list the names with {}: {error}", python.display()),
        hint: "install the package with its dependencies: pip install uniference".to_owned(),
    })?;
    for Patch { name, part, verb, why, parameters, problem } in &names {
        let mark = if problem.is_some() { "problem" } else { "ok" };
        let parameters = parameters.as_ref().map_or(String::new(), |list| format!("({list})"));
        super::say(format_args!("{mark:<8} {name}{parameters}: {part}; Uniference {verb} it to {why}\n"))?;
        if let Some(problem) = problem {
            super::say(format_args!("{:<8} {name} {problem}\n", ""))?;
        }
    }
    Ok(if names.iter().any(|name| name.problem.is_some()) { Exit::Usage } else { Exit::Ok })
}

fn memory() -> Finding {
    let least = capacity::forecast(2);
    let available = capacity::available_memory();
    let problem =
        available.is_some_and(|bytes| bytes < least).then(|| format!("2 ranks need at least {} MiB", least >> 20));
    let found = available.map_or("unknown".to_owned(), |bytes| {
        let ranks = bytes.saturating_sub(capacity::forecast(0)) / (capacity::forecast(1) - capacity::forecast(0));
        format!("{} MiB available, enough for about {ranks} small ranks", bytes >> 20)
    });
    Finding { what: "memory", found, problem }
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum;
    let problem = limit.is_some_and(|limit| limit < 1024).then(|| "raise the limit: ulimit -Hn 4096".to_owned());
    let found = limit
        .zip(capacity::most_ranks())
        .map_or("no limit".to_owned(), |(limit, ranks)| format!("limit {limit}, enough for {ranks} ranks"));
    Finding { what: "descriptors", found, problem }
}

fn shared_memory() -> Finding {
    let layout = Layout::for_world(1);
    let mapped = arena::create(layout).and_then(|file| arena::map(&file, layout.total));
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

/// Whether the testbed works. Few commands need it, so it is never a problem.
fn testbed() -> Finding {
    let found = match Testbed::missing() {
        None => "available (root, /dev/net/tun, ip and tc)".to_owned(),
        Some(missing) => format!("not available: {missing}"),
    };
    Finding { what: "testbed", found, problem: None }
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Finding { what: "cores", found: format!("{cores}; with --compute none, as many ranks run at once"), problem: None }
}
