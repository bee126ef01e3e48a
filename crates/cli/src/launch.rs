//! Owns `uniference launch`: a program on a real cluster under torchrun, or on the testbed, and the run folder from its
//! ranks' files.
//!
//! `python/uniference/real` records a rank; `uniference-formats` merges the ranks' files.

use super::output::{OutputArgs, RecordArg, Showing, show};
use super::testbed::{Output, Processes, TestbedArgs};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uniference_formats::events::EventWriter;
use uniference_formats::real::{Merged, RankFile, merge};
use uniference_formats::record::{Header, RecordWriter};
use uniference_formats::report::{Manifest, RecorderReport, Report};
use uniference_formats::trace::{Chrome, Lines, Perfetto, TraceWriter};
use uniference_host::interrupt::Interrupts;
use uniference_host::supervisor::{adopt_orphans, supervise};
use uniference_programs::real::steps;
use uniference_session::folder::Folder;
use uniference_session::lock::Writer;
use uniference_session::results::{self, EVENTS, NATIVE_TRACE, RECORD, REPORT, TRACE, device};
use uniference_session::tables::Tables;
use uniference_session::{Exit, HostError};
use uniference_sim::cluster::Device;
use uniference_sim::ids::TaskId;
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::time::SimDuration;
use uniference_studies::phases::Phases;

/// `uniference launch`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    output: OutputArgs,
    /// Run nothing; write the report of a folder that contains the ranks' files of all machines
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "script"])]
    merge: Option<PathBuf>,
    /// Address on which machine 0 serves its clock to the other machines [default: the address by which they reach it]
    #[arg(long, value_name = "ADDRESS", help_heading = "Real machines")]
    clock_address: Option<String>,
    /// Run a module, like python -m
    #[arg(short = 'm', long)]
    module: bool,
    /// Program and its arguments
    #[arg(
        required_unless_present = "merge",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "SCRIPT"
    )]
    script: Vec<OsString>,
}

/// How real ranks are started: by torchrun, whose options have the same names, or on the testbed.
#[derive(clap::Args)]
pub(super) struct Start {
    /// Run on this machine, with real sockets over an emulated network, as `uniference testbed` does; the cluster options describe it
    #[arg(long)]
    testbed: bool,
    #[command(flatten)]
    emulated: TestbedArgs,
    /// Number of ranks on this machine
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Real machines")]
    nproc_per_node: String,
    /// Number of machines
    #[arg(long, value_name = "N", help_heading = "Real machines")]
    nnodes: Option<String>,
    /// Index of this machine, from 0
    #[arg(long, value_name = "N", help_heading = "Real machines")]
    node_rank: Option<u32>,
    /// Address of machine 0
    #[arg(long, value_name = "HOST", help_heading = "Real machines")]
    master_addr: Option<String>,
    /// Free port on machine 0
    #[arg(long, value_name = "PORT", help_heading = "Real machines")]
    master_port: Option<u16>,
    /// Rendezvous endpoint, instead of the address of machine 0
    #[arg(long, value_name = "HOST:PORT", help_heading = "Real machines")]
    rdzv_endpoint: Option<String>,
    /// Rendezvous backend
    #[arg(long, value_name = "NAME", help_heading = "Real machines")]
    rdzv_backend: Option<String>,
    /// Rendezvous id of the job, the same on all machines
    #[arg(long, value_name = "NAME", help_heading = "Real machines")]
    rdzv_id: Option<String>,
}

/// Environment variable with the folder that a rank writes its file to.
const FOLDER: &str = "UNIFERENCE_RECORD";

/// Environment variable with the address at which rank 0 serves its clock.
const CLOCK_ADDRESS: &str = "UNIFERENCE_CLOCK_ADDRESS";

/// Runs the program, or with `--merge` only reads its recorded files.
pub(super) fn launch(args: &Args, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    if let Some(recorded) = &args.merge {
        let folder = Folder::open(recorded, &super::notices())?;
        return report(args, argv, &folder, read(recorded)?).map(|()| Exit::Ok);
    }
    let run = args.start.name().map(|name| format!("{name} {:?}", args.script));
    let writer = run.as_deref().map_or(Writer::Alone, Writer::Together);
    let folder = Folder::prepare_for(args.output.out.as_deref(), &args.script[0], writer, &super::notices())?;
    let mut words = vec![OsString::from("uniference.real")];
    words.extend(args.module.then(|| "-m".into()));
    words.extend(args.script.iter().cloned());
    let mut environment = vec![(FOLDER, absolute(folder.path())?)];
    environment.extend(args.clock_address.as_ref().map(|address| (CLOCK_ADDRESS, address.into())));
    let exit = args.start.run(python, &words, &environment, Output::beside(args.output.json))?;
    if exit != Exit::Ok {
        return Ok(exit);
    }
    if args.start.is_beside() {
        // In a folder that all machines share, machine 0 writes the report.
        super::complain(format_args!("{}", part(folder.path())));
        return Ok(Exit::Ok);
    }
    match read(folder.path()) {
        Ok(merged) => report(args, argv, &folder, merged).map(|()| Exit::Ok),
        // This folder lacks the files of other machines' ranks: `--merge` combines all files later.
        Err(_) if args.start.is_part() => {
            super::complain(format_args!("{}", part(folder.path())));
            Ok(Exit::Ok)
        }
        Err(error) => Err(error),
    }
}

impl Start {
    /// Runs a Python module with its arguments, one process per rank.
    pub(super) fn run(
        &self,
        python: &Path,
        words: &[OsString],
        environment: &[(&str, OsString)],
        output: Output,
    ) -> Result<Exit, HostError> {
        let interrupts = Interrupts::new()?;
        if self.testbed {
            let mut command = vec![python.as_os_str().to_owned(), "-m".into()];
            command.extend_from_slice(words);
            return self.emulated.run(&command, environment, output, &interrupts);
        }
        if self.emulated.is_given() {
            let hint = "add --testbed to emulate the cluster, or give the number of ranks on this machine with --nproc-per-node";
            return Err(HostError::Usage(format!("cluster options have no effect on real machines\nhint: {hint}")));
        }
        let scratch = Scratch::new()?;
        let mut command = Command::new(python);
        command.args(["-m", "torch.distributed.run"]).args(self.options());
        command.arg("--log-dir").arg(scratch.path()).arg("-m").args(words);
        command.envs(environment.iter().map(|(name, value)| (*name, value)));
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        output.apply(&mut command);
        adopt_orphans()?;
        let child = supervise(&mut command).spawn().map_err(|error| HostError::Host {
            what: format!("cannot start torchrun with {}: {error}", python.display()),
            hint: "run `uniference doctor` to see what is missing".to_owned(),
        })?;
        Processes::of(vec![child]).wait(&interrupts)
    }

    /// Options that all machines of one launch share, and other simultaneous launches normally do not; `None`: there is
    /// only this machine.
    pub(super) fn name(&self) -> Option<String> {
        let Start { nnodes, master_addr, master_port, rdzv_endpoint, rdzv_id, .. } = self;
        self.is_part().then(|| format!("{:?}", (nnodes, master_addr, master_port, rdzv_endpoint, rdzv_id)))
    }

    /// Whether this machine has an index other than 0.
    fn is_beside(&self) -> bool {
        self.is_part() && self.node_rank.is_some_and(|rank| rank != 0)
    }

    /// Whether the launch has further machines.
    fn is_part(&self) -> bool {
        self.nnodes.as_ref().is_some_and(|nodes| nodes != "1")
    }

    fn options(&self) -> Vec<String> {
        let given = [
            ("nproc-per-node", Some(self.nproc_per_node.clone())),
            ("nnodes", self.nnodes.clone()),
            ("node-rank", self.node_rank.map(|rank| rank.to_string())),
            ("master-addr", self.master_addr.clone()),
            ("master-port", self.master_port.map(|port| port.to_string())),
            ("rdzv-endpoint", self.rdzv_endpoint.clone()),
            ("rdzv-backend", self.rdzv_backend.clone()),
            ("rdzv-id", self.rdzv_id.clone()),
        ];
        let mut options: Vec<String> =
            given.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect();
        if self.nnodes.is_none() && self.rdzv_endpoint.is_none() && self.master_port.is_none() {
            options.push("--standalone".to_owned());
        }
        options
    }
}

/// Message of a machine that writes no report.
fn part(folder: &Path) -> String {
    let hint =
        "copy the files rank-N.jsonl of all machines into one folder, then run `uniference launch --merge` on it";
    format!("recorded the ranks of this machine in {}\nhint: {hint}\n", folder.display())
}

pub(super) fn absolute(path: &Path) -> Result<OsString, HostError> {
    std::path::absolute(path).map(PathBuf::into_os_string).map_err(HostError::system("finding the current folder"))
}

/// A folder for the temporary files of torchrun, which would leave its own folder behind.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, HostError> {
        for n in 0.. {
            let path = std::env::temp_dir().join(format!("uniference-{}-{n}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => {
                    let hint = "set TMPDIR to a writable folder";
                    return Err(HostError::File { action: "create", path, source, hint });
                }
            }
        }
        unreachable!("there are more numbers than folders")
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Merges the ranks' files in a folder.
pub(super) fn read(folder: &Path) -> Result<Merged, HostError> {
    let mut files = Vec::new();
    for rank in 0.. {
        let path = folder.join(format!("rank-{rank}.jsonl"));
        // The first file contains the number of ranks; the merge checks that all files are present.
        let world = files.first().map_or(1, |file: &RankFile| file.head.world_size);
        if rank >= world {
            break;
        }
        let text = uniference_session::input::long_text(&path).map_err(|source| HostError::File {
            action: "read",
            path: path.clone(),
            source,
            hint: "the folder must contain the file rank-N.jsonl of every rank of all machines",
        })?;
        files.push(RankFile::parse(&text).map_err(|error| unreadable(&path, &error))?);
    }
    merge(files).map_err(|error| unreadable(folder, &error))
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> HostError {
    HostError::Usage(format!("{}: {error}", path.display()))
}

/// Writes and shows the results of a real run: the files of a simulated run, as far as they apply.
fn report(args: &Args, argv: &[OsString], folder: &Folder, merged: Merged) -> Result<(), HostError> {
    let wanted =
        |least: &[RecordArg], name: &str| least.contains(&args.output.record).then(|| folder.create(name)).transpose();
    let ops = [RecordArg::Full, RecordArg::Ops];
    let trace = wanted(&ops, TRACE)?.zip(wanted(&ops, NATIVE_TRACE)?).map(|(chrome, native)| {
        let formats = (Chrome::new(chrome), Perfetto::new(native));
        TraceWriter::with_rows(formats, merged.devices().map(|device| (device, None)), Vec::new(), Lines::default())
    });
    let mut events = wanted(&[RecordArg::Full], EVENTS)?.map(|file| EventWriter::new(file, []));
    let is_wanted = args.output.record != RecordArg::Summary;
    let mut tables =
        is_wanted.then(|| Tables::create(folder, args.output.record == RecordArg::Full, [])).transpose()?;
    let mut observers =
        ((Statistics::default(), Digest::default()), (Phases::default(), (trace, (&mut events, &mut tables))));
    merged.tell(&mut observers);
    let ((statistics, digest), (phases, (trace, _))) = observers;
    trace.map(TraceWriter::finish).transpose()?;
    if let Some(mut events) = events {
        events.lines(merged.lines());
        events.finish()?;
    }
    if let Some(mut tables) = tables {
        tables.lines(merged.lines());
        tables.finish()?;
    }
    let manifest =
        Manifest { command: results::command(argv), cluster: cluster(args, &merged)?, ..results::versions() };
    if let Some(file) = wanted(&[RecordArg::Full, RecordArg::Ops], RECORD)? {
        write_record(file, &merged, manifest.clone())?;
    }
    let mut report = Report::new(&statistics, &devices(&merged), digest.to_hex(), manifest);
    report.phases = phases.report();
    describe(&mut report, &merged);
    folder.write(REPORT, report.to_json().as_bytes())?;
    show(&report, folder, Showing::new(args.output.json, false))
}

/// Writes the run as a program record with its own compute, which `uniference replay` can simulate on any cluster.
fn write_record(file: BufWriter<File>, merged: &Merged, manifest: Manifest) -> Result<(), HostError> {
    let mut writer = RecordWriter::new(file, &Header { world_size: merged.devices().count() as u32, manifest });
    for (rank, steps) in steps(merged) {
        for step in &steps {
            let line = step.site().and_then(|site| merged.lines().get(site.index()));
            writer.step(rank, TaskId(0), step, line.map_or("", String::as_str));
        }
    }
    writer.finish()?;
    Ok(())
}

fn devices(merged: &Merged) -> Vec<Device> {
    merged.devices().map(|name| device(name.to_owned())).collect()
}

/// The cluster file of the emulated cluster; for real machines only a name is known.
fn cluster(args: &Args, merged: &Merged) -> Result<String, HostError> {
    match args.start.testbed {
        true => Ok(args.start.emulated.resolve()?.resolved.toml),
        false => Ok(format!("name = \"{} real ranks\"\n", merged.devices().count())),
    }
}

/// Adds figures to a report that only real runs have.
fn describe(report: &mut Report, merged: &Merged) {
    let seconds = |(_, time): (u64, SimDuration)| time.as_secs_f64();
    report.recorder = Some(RecorderReport {
        time_s: merged.recorder().map(seconds).collect(),
        calls: merged.recorder().map(|(calls, _)| calls).collect(),
        clock_error_s: merged.clock_error().as_secs_f64(),
    });
    if report.operations.is_empty() {
        report.warnings.push("the program never communicated".to_owned());
    }
    if merged.unseen() > 0 {
        report.warnings.push(format!(
            "{} operations were never waited for; their duration is unknown and not counted",
            merged.unseen()
        ));
    }
}
