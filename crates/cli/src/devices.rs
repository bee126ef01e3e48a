//! Owns `uniference devices`: the named device models, their figures, and the databases of measured operators.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use uniference_costs::database::{Database, Databases, Notice, user_file};
use uniference_costs::import::import as take_over;
use uniference_formats::devices::{self, KnownDevice};
use uniference_formats::table;
use uniference_formats::units::counted;
use uniference_session::{Exit, HostError};

/// `uniference devices`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the devices that a cluster file may name, and those of which operators were measured
    List(Sources),
    /// Show what is known of a device, and where each figure is from
    Show {
        /// Name of the device; parts that tell variants apart may be left out if there is one variant
        name: String,
        #[command(flatten)]
        sources: Sources,
    },
    /// Take over measured operators: from a Parquet file, another database, or an installed aiconfigurator-core
    Import {
        /// Parquet file or database, folder of the package, or `aiconfigurator-core` for the installed one
        source: PathBuf,
        /// Database to write [default: $XDG_DATA_HOME/uniference/operators.sqlite]
        #[arg(long, value_name = "FILE")]
        device_db: Option<PathBuf>,
    },
}

/// Databases to read.
#[derive(clap::Args)]
pub(super) struct Sources {
    /// Database of measured operators, in addition to the shipped one and the user's own
    #[arg(long, value_name = "FILE")]
    device_db: Option<PathBuf>,
}

pub(super) fn command(command: &Command, python: Option<&Path>) -> Result<Exit, HostError> {
    match command {
        Command::List(sources) => list(&sources.read()?)?,
        Command::Show { name, sources } => show(name, &sources.read()?)?,
        Command::Import { source, device_db } => import(source, device_db.as_deref(), python)?,
    }
    Ok(Exit::Ok)
}

impl Sources {
    fn read(&self) -> Result<Databases, HostError> {
        Databases::standard(own_file().as_deref(), self.device_db.as_deref()).map_err(refused)
    }
}

/// The user's own database.
pub(super) fn own_file() -> Option<PathBuf> {
    let [data, home] = ["XDG_DATA_HOME", "HOME"].map(|name| env::var_os(name).map(PathBuf::from));
    user_file(data.as_deref(), home.as_deref())
}

fn refused(error: impl std::fmt::Display) -> HostError {
    HostError::Usage(error.to_string())
}

/// Numbers of rows by device and family, over all databases.
fn counts(databases: &Databases) -> Result<BTreeMap<String, BTreeMap<String, u64>>, HostError> {
    let mut found: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for counts in databases.each(Database::counts) {
        for ((device, family), rows) in counts.map_err(refused)? {
            *found.entry(device).or_default().entry(family).or_default() += rows;
        }
    }
    Ok(found)
}

fn list(databases: &Databases) -> Result<(), HostError> {
    let counts = counts(databases)?;
    let mut shown = table::table(&["device", "memory", "bandwidth", "float32", "bfloat16", "measured"], 1);
    let rows = |name: &str| counts.get(name).map_or(0, |families| families.values().sum::<u64>()).to_string();
    let figure = |device: &KnownDevice, name: &str| {
        let figure = device.figures().into_iter().find(|(figure, _)| *figure == name);
        figure.and_then(|(_, value)| value).unwrap_or_default()
    };
    for device in devices::all() {
        let figures = ["memory", "memory_bandwidth", "float32", "bfloat16"].map(|name| figure(device, name));
        let numbers: Vec<String> = figures.into_iter().chain([rows(&device.name)]).collect();
        shown.add_row(table::row(&[&device.name], &numbers));
    }
    let known = |name: &&String| devices::all().iter().any(|device| device.name == **name);
    for name in counts.keys().filter(|name| !known(name)) {
        let nothing = std::iter::repeat_n(String::new(), 4);
        shown.add_row(table::row(&[name], &nothing.chain([rows(name)]).collect::<Vec<_>>()));
    }
    super::say(format_args!("{shown}\n"))
}

fn show(name: &str, databases: &Databases) -> Result<(), HostError> {
    let counts = counts(databases)?;
    let (name, known) = match devices::find(name) {
        Ok(known) => (known.name.as_str(), Some(known)),
        Err(_) if counts.contains_key(name) => (name, None),
        Err(error) => return Err(refused(error)),
    };
    let mut text = format!("{name}\n");
    if let Some(known) = known {
        for (figure, value) in known.figures() {
            text += &format!("  {figure:<32} {}\n", value.as_deref().unwrap_or("unknown"));
        }
        text += &format!("  figures from                     {}\n", known.source);
    }
    text += "measured operators\n";
    match counts.get(name) {
        Some(families) => {
            families.iter().for_each(|(family, rows)| text += &format!("  {family:<32} {rows}\n"));
            let series = databases.each(|database| (database.path().display().to_string(), sources(database, name)));
            for (path, sources) in series {
                sources?.iter().for_each(|source| text += &format!("  from {source} in {path}\n"));
            }
        }
        None => text += "  none: estimates come from other devices, by the ratio of the rates\n",
    }
    super::say(format_args!("{text}"))
}

/// Sources of a device's rows in a database, with the licences.
fn sources(database: &Database, device: &str) -> Result<Vec<String>, HostError> {
    let series = database.series().map_err(refused)?;
    let of_device = |notice: &Notice| series.iter().any(|s| s.device == device && s.source == notice.name);
    let notices = database.notices().map_err(refused)?.into_iter().filter(of_device);
    let text =
        |Notice { name, licence, .. }: Notice| if licence.is_empty() { name } else { format!("{name} ({licence})") };
    Ok(notices.map(text).collect())
}

/// The database to write: the named one, or the user's own.
pub(super) fn database(named: Option<&Path>) -> Result<PathBuf, HostError> {
    named.map(Path::to_owned).or_else(own_file).ok_or_else(|| {
        let hint = "set HOME, or name a file with --device-db";
        HostError::Usage(format!("there is no place for the database of this user\nhint: {hint}"))
    })
}

fn import(source: &Path, device_db: Option<&Path>, python: Option<&Path>) -> Result<(), HostError> {
    let source = if source == Path::new("aiconfigurator-core") && !source.exists() {
        installed(python)?
    } else {
        source.to_owned()
    };
    let target = database(device_db)?;
    let mut database = Database::create(&target).map_err(refused)?;
    let imported = take_over(&source, &mut database).map_err(refused)?;
    let mut text = format!("{} imported into {}\n", counted(imported.rows, "row"), target.display());
    for (what, count) in imported.skipped {
        text += &format!("skipped: {} {what}\n", counted(count, "row"));
    }
    for Notice { name, licence, notice } in imported.notices {
        let licence = if licence.is_empty() { "licence unknown" } else { &licence };
        text += &format!("source: {name} ({licence}) {notice}\n");
    }
    super::say(format_args!("{text}"))
}

/// The folder of the package in the interpreter's environment.
fn installed(python: Option<&Path>) -> Result<PathBuf, HostError> {
    let missing = || {
        let hint = "pip install aiconfigurator-core, or give the package's folder";
        HostError::Usage(format!("aiconfigurator-core is not installed\nhint: {hint}"))
    };
    let program = "import importlib.util as u; print(u.find_spec('aiconfigurator_core').submodule_search_locations[0])";
    let found = std::process::Command::new(python.ok_or_else(missing)?).args(["-I", "-c", program]).output();
    let found = found.ok().filter(|output| output.status.success()).ok_or_else(missing)?;
    let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, run};
    use super::*;

    #[test]
    fn devices_are_listed_shown_and_merged() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("own.sqlite");
        drop(Database::create(&database).unwrap());
        let path = database.display().to_string();
        let other = folder.path().join("other.sqlite").display().to_string();
        for words in [
            &["devices", "list", "--device-db", &path][..],
            &["devices", "show", "h100-sxm"],
            &["devices", "import", &path, "--device-db", &other],
        ] {
            assert_eq!(run(words).unwrap_or_else(|error| panic!("{error}")), Exit::Ok);
        }
        assert!(Path::new(&other).exists());
    }

    #[test]
    fn what_is_no_device_or_no_source_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [text, empty] = ["a.parquet", "folder"].map(|name| folder.path().join(name));
        std::fs::write(&text, "text").unwrap();
        std::fs::create_dir(&empty).unwrap();
        let out = folder.path().join("out.sqlite").display().to_string();
        let import =
            |source: &Path| refused(&["devices", "import", &source.display().to_string(), "--device-db", &out]);
        let shown = [
            refused(&["devices", "show", "h100-smx"]),
            refused(&["devices", "show", "a100"]),
            refused(&["devices", "list", "--device-db", "/nowhere/operators.sqlite"]),
            import(&text),
            import(&empty),
            import(&folder.path().join("none")),
        ];
        let shown = shown.join("\n----\n").replace(&folder.path().display().to_string(), "DIR");
        insta::assert_snapshot!(shown);
    }
}
