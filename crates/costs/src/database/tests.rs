use super::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn series(variant: &str) -> Series {
    let text = |text: &str| text.to_owned();
    Series {
        device: text("board"),
        software: text("torch 2.14"),
        family: text("gemm"),
        variant: text(variant),
        dtype: text("float32"),
        source: text("here"),
    }
}

fn row(m: u64, microseconds: f64, repetitions: u32) -> Row {
    Row {
        operator: format!("aten::mm({m})"),
        dimensions: [1, m, 2, 3],
        flops: 12 * m,
        bytes: m << 20,
        microseconds,
        spread: (repetitions > 1).then_some(0.25),
        repetitions,
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("operators.sqlite");
    (folder, path)
}

/// A database with rows of one series.
fn database(path: &Path, rows: &[Row]) -> Database {
    let mut database = Database::create(path).unwrap();
    database.add(&series("nn"), &Notice::own("here"), rows, Repeat::Replaces).unwrap();
    database
}

#[test]
fn rows_read_back_as_they_were_written() {
    let (_folder, path) = folder();
    let rows = [row(1, 1.5, 1), row(2, 2.5, 7)];
    drop(database(&path, &rows));
    let read = Database::open(&path).unwrap();
    assert_eq!(read.series().unwrap(), [series("nn")]);
    assert_eq!(read.rows(&series("nn")).unwrap(), rows);
    assert_eq!(read.rows(&series("tt")).unwrap(), []);
    assert_eq!(read.notices().unwrap(), [Notice::own("here")]);
    assert_eq!(read.counts().unwrap()[&("board".to_owned(), "gemm".to_owned())], 2);
    assert_eq!(read.hash().unwrap().len(), 64);
    // The hash depends on the values of rows, not on the order in which they were written.
    let (_second, other) = folder();
    let of = |rows: &[Row]| {
        let _ = std::fs::remove_file(&other);
        database(&other, rows).hash().unwrap()
    };
    assert_eq!(of(&[rows[1].clone(), rows[0].clone()]), read.hash().unwrap());
    assert_ne!(of(&[rows[1].clone(), row(1, 1.6, 1)]), read.hash().unwrap());
}

#[test]
fn merging_keeps_what_was_measured_more_often() {
    let (_first, one) = folder();
    let (_second, two) = folder();
    let mut own = database(&one, &[row(1, 10.0, 5), row(2, 20.0, 1)]);
    let mut other = database(&two, &[row(1, 11.0, 3), row(2, 21.0, 9), row(3, 31.0, 1)]);
    other.add(&series("nt"), &Notice::own("here"), &[row(4, 4.0, 1)], Repeat::Replaces).unwrap();
    assert_eq!(own.merge(&other).unwrap(), 3);
    assert_eq!(own.rows(&series("nn")).unwrap(), [row(1, 10.0, 5), row(2, 21.0, 9), row(3, 31.0, 1)]);
    assert_eq!(own.rows(&series("nt")).unwrap().len(), 1);
    assert_eq!(own.merge(&other).unwrap(), 0, "all of it is there");
}

#[test]
fn a_wrong_file_is_refused_with_a_hint() {
    let (folder, path) = folder();
    drop(database(&path, &(1..2_000).map(|m| row(m, 1.0, 1)).collect::<Vec<_>>()));
    let whole = std::fs::read(&path).unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let (read, written) = (Database::open(&path).unwrap_err(), Database::create(&path).unwrap_err());
        for error in [&read, &written] {
            assert!(error.to_string().contains("\nhint: "), "{error}");
        }
        read
    };
    assert!(matches!(refused("cut", &whole[..whole.len() / 2]), DatabaseError::Damaged { .. }));
    assert!(matches!(refused("short", &whole[..50]), DatabaseError::Foreign { .. } | DatabaseError::Damaged { .. }));
    assert!(matches!(refused("text", &[b'x'; 4096]), DatabaseError::Foreign { .. }));
    // The version is at byte 60 of the header, the application at byte 68.
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at + 3] = value;
        bytes
    };
    let error = refused("later", &changed(60, 9));
    assert!(matches!(error, DatabaseError::Version { found: 9, .. }));
    assert!(error.to_string().contains("update uniference"), "{error}");
    assert!(matches!(refused("foreign", &changed(68, 0)), DatabaseError::Foreign { .. }));
    let mut damaged = whole.clone();
    damaged[100..].fill(0xAB);
    assert!(matches!(refused("damaged", &damaged), DatabaseError::Damaged { .. }));
    assert!(matches!(Database::open(&folder.path().join("none")).unwrap_err(), DatabaseError::File { .. }));
    assert!(matches!(Database::open(folder.path()).unwrap_err(), DatabaseError::File { .. }));
}

#[test]
fn the_users_file_is_where_the_specification_says() {
    let path = |text: &str| PathBuf::from(text);
    let (data, home) = (path("/data"), path("/home/me"));
    let file = "uniference/operators.sqlite";
    assert_eq!(user_file(Some(&data), Some(&home)), Some(data.join(file)));
    assert_eq!(user_file(Some(Path::new("relative")), Some(&home)), Some(home.join(".local/share").join(file)));
    assert_eq!(user_file(None, None), None);
}

#[test]
fn the_shipped_database_has_rows_and_the_notices_of_all_of_them() {
    let all = Databases::standard(None, None).unwrap();
    assert!(all.series().iter().any(|(_, series)| series.device == "h100-sxm-80gb"));
    let notices = all.each(|database| database.notices().unwrap()).concat();
    let text = include_str!("../../data/NOTICE");
    for notice in notices {
        let name = notice.name.split(['/', '@']).nth(1).unwrap_or(&notice.name);
        let is_allowed = ["MIT", "Apache-2.0", "published figures"].contains(&&*notice.licence);
        assert!(is_allowed && text.to_lowercase().contains(&name.to_lowercase()), "{notice:?}");
    }
    for (_, series) in all.series() {
        let known = uniference_formats::devices::find(&series.device).map(|device| device.name.as_str());
        assert_eq!(known, Ok(series.device.as_str()));
    }
    assert_eq!(all.version().len(), 64);
}

/// The variable that turns a test into a writer process: the path of the database.
const WRITER: &str = "UNIFERENCE_TEST_WRITER";

/// Writes batches of ten rows until it is killed or has written twenty of them; not a test by itself.
#[test]
fn writer() {
    let Ok(path) = std::env::var(WRITER) else { return };
    let mut database = Database::create(Path::new(&path)).unwrap();
    let first = u64::from(std::process::id()) << 20;
    for batch in 0..20 {
        let rows: Vec<Row> = (0..10).map(|index| row(first + batch * 10 + index, 1.0, 1)).collect();
        database.add(&series("nn"), &Notice::own("here"), &rows, Repeat::Replaces).unwrap();
    }
}

fn start_writer(path: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "database::tests::writer"]).env(WRITER, path);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Two processes write at once and one is killed: its batches are complete, and all of the other's are there.
#[test]
fn writers_share_a_file_and_a_killed_one_leaves_whole_batches() {
    let (_folder, path) = folder();
    let (mut killed, mut other) = (start_writer(&path), start_writer(&path));
    // The writer is killed as soon as it has written rows, unless it has ended before.
    let of = |id: u32| {
        let rows = Database::open(&path).and_then(|database| database.rows(&series("nn"))).unwrap_or_default();
        rows.iter().filter(|row| row.dimensions[1] >> 20 == u64::from(id)).count()
    };
    while of(killed.id()) == 0 && killed.try_wait().unwrap().is_none() {}
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(other.wait().unwrap().success());
    assert_eq!(of(other.id()), 200);
    let left = of(killed.id());
    assert!(left > 0 && left.is_multiple_of(10), "{left} rows");
    // The database stays writable.
    let mut database = Database::create(&path).unwrap();
    database.add(&series("nn"), &Notice::own("here"), &[row(1, 1.0, 1)], Repeat::Replaces).unwrap();
}
