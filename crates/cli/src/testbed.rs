//! Owns `uniference testbed`: any command, one process per rank, on real sockets over an emulated network.

use super::cluster::ClusterArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use uniference_formats::units::Size;
use uniference_host::interrupt::{Interrupt, Interrupts};
use uniference_host::supervisor::{self, adopt_orphans, end_orphans};
use uniference_host::testbed::{DEFAULT_QUEUE_BYTES, INTERFACE, LATE, Packets, Testbed};
use uniference_session::cluster::Chosen;
use uniference_session::{Exit, HostError};
use uniference_sim::cluster::Cluster;

/// `uniference testbed`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Command that every rank runs, with the environment variables of torchrun
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options of the emulated cluster.
#[derive(clap::Args)]
pub(super) struct TestbedArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Queue size of emulated links for which the cluster gives none [default: 1.5 MB]
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
}

/// Runs the command on each rank, until all ranks succeed or one fails.
pub(super) fn testbed(args: &Args) -> Result<Exit, HostError> {
    args.testbed.run(&args.command, &[], Output::Standard, &Interrupts::new()?)
}

impl TestbedArgs {
    /// Whether the options describe a cluster.
    pub(super) fn is_given(&self) -> bool {
        self.cluster.is_given() || self.queue.is_some()
    }

    /// The emulated cluster. Its ranks communicate by a real library, so no backend is simulated.
    pub(super) fn resolve(&self) -> Result<Chosen, HostError> {
        self.cluster.resolve_with("gloo")
    }

    /// Runs a command once per rank, with torchrun's environment and further variables.
    pub(super) fn run(
        &self,
        words: &[OsString],
        more: &[(&str, OsString)],
        output: Output,
        interrupts: &Interrupts,
    ) -> Result<Exit, HostError> {
        let chosen = self.resolve()?;
        let cluster = &chosen.resolved.cluster;
        let queue = self.queue.map_or(DEFAULT_QUEUE_BYTES, |size| size.0.0);
        for what in not_emulated(&chosen) {
            super::complain(format_args!("warning: the testbed does not emulate {what}; it has no effect\n"));
        }
        let testbed = Testbed::new(cluster, queue)?;
        if !testbed.is_in_real_time() {
            super::complain(format_args!(
                "testbed: real-time priority is not permitted; other processes on this machine can disturb the measured times\n"
            ));
        }
        let mut ranks = start(&testbed, cluster, words, more, output)?;
        let exit = ranks.wait(interrupts)?;
        drop(ranks);
        let Packets { carried, dropped, late } = testbed.packets();
        super::complain(format_args!(
            "testbed: {carried} packets delivered, {dropped} dropped, {late} late by more than {LATE:?}\n"
        ));
        Ok(exit)
    }
}

/// Device keys without effect on real processes.
fn not_emulated(chosen: &Chosen) -> Vec<&'static str> {
    let devices = &chosen.resolved.cluster.devices;
    let given = [
        ("`slowdown` of devices", devices.iter().any(|device| device.slowdown != 1.0)),
        ("[[straggler]]", devices.iter().any(|device| !device.spells.is_empty())),
        ("[[crash]]", devices.iter().any(|device| device.crash.is_some())),
        ("`memory` of devices", devices.iter().any(|device| device.memory.is_some())),
        ("`peak_flops` and `memory_bandwidth` of devices", chosen.resolved.rates.iter().any(Option::is_some)),
    ];
    given.into_iter().filter(|(_, given)| *given).map(|(what, _)| what).collect()
}

/// Destination of the ranks' standard output.
#[derive(Clone, Copy)]
pub(super) enum Output {
    /// Standard output of this process.
    Standard,
    /// Standard error, because standard output of this process is reserved for JSON.
    Aside,
}

impl Output {
    /// The destination with or without `--json`.
    pub(super) fn beside(json: bool) -> Output {
        if json { Output::Aside } else { Output::Standard }
    }

    pub(super) fn apply(self, command: &mut Command) {
        if let Output::Aside = self {
            command.stdout(std::io::stderr());
        }
    }
}

fn start(
    testbed: &Testbed,
    cluster: &Cluster,
    words: &[OsString],
    more: &[(&str, OsString)],
    output: Output,
) -> Result<Processes, HostError> {
    adopt_orphans()?;
    let mut ranks = Processes::of(Vec::new());
    for rank in 0..cluster.devices.len() {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(environment(testbed, cluster, rank));
        command.envs(more.iter().map(|(name, value)| (*name, value)));
        output.apply(&mut command);
        let host = cluster.devices[rank].host;
        let child = testbed.spawn(host, command).map_err(|error| {
            HostError::Usage(format!(
                "cannot start `{}`: {error}\nhint: give the command after `--`",
                words[0].display()
            ))
        })?;
        ranks.0.push(child);
    }
    Ok(ranks)
}

/// Processes of ranks, indexed by rank. On drop, running processes and all their descendants are ended.
pub(super) struct Processes(Vec<Child>);

/// Time that a process has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

impl Processes {
    /// Running processes.
    pub(super) fn of(children: Vec<Child>) -> Processes {
        Processes(children)
    }

    /// Waits until all processes have succeeded, one has failed, or a signal arrives.
    pub(super) fn wait(&mut self, interrupts: &Interrupts) -> Result<Exit, HostError> {
        let mut running: Vec<usize> = (0..self.0.len()).collect();
        while !running.is_empty() {
            if let Some(interrupt) = interrupted(interrupts, Duration::from_millis(20))? {
                // A second signal ends this process at once.
                interrupts.end_at_next();
                return Ok(interrupt.into());
            }
            for rank in std::mem::take(&mut running) {
                match self.0[rank].try_wait().map_err(HostError::system("waiting for a rank"))? {
                    None => running.push(rank),
                    Some(status) if status.success() => {}
                    Some(status) => {
                        super::complain(format_args!("rank {rank}: {status}\n"));
                        return Ok(Exit::ProgramFailed);
                    }
                }
            }
        }
        Ok(Exit::Ok)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        for child in self.0.iter_mut().filter_map(|child| running(child).then_some(child)) {
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + GRACE;
        while self.0.iter_mut().any(running) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        for child in &mut self.0 {
            let _ = supervisor::end(child);
        }
        // Supervisors have ended their descendants, except supervisors that were killed.
        end_orphans();
    }
}

fn interrupted(interrupts: &Interrupts, patience: Duration) -> Result<Option<Interrupt>, HostError> {
    let mut waiting = [PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as i64 };
    match poll(&mut waiting, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(interrupts.take()),
        Err(error) => Err(HostError::system("waiting for ranks")(error)),
    }
}

/// Environment of a rank: torchrun's variables, and the network interface for Gloo.
fn environment(testbed: &Testbed, cluster: &Cluster, rank: usize) -> Vec<(&'static str, String)> {
    let on = |rank: usize| cluster.devices[rank].host;
    let host = on(rank);
    let local: Vec<usize> = (0..cluster.devices.len()).filter(|other| on(*other) == host).collect();
    let local_rank = local.iter().position(|other| *other == rank).expect("a rank is on its own host");
    let master = testbed.address(on(0));
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", cluster.devices.len().to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", local.len().to_string()),
        ("GROUP_RANK", host.0.to_string()),
        ("GROUP_WORLD_SIZE", cluster.topology.hosts().len().to_string()),
        ("ROLE_RANK", rank.to_string()),
        ("ROLE_WORLD_SIZE", cluster.devices.len().to_string()),
        ("MASTER_ADDR", master.to_string()),
        ("MASTER_PORT", "29500".to_owned()),
        ("OMP_NUM_THREADS", "1".to_owned()),
        ("GLOO_SOCKET_IFNAME", INTERFACE.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn what_has_ended_a_wait_is_its_exit_code() {
        let interrupts = Interrupts::new().unwrap();
        let mut ranks = Processes::of(vec![Command::new("sleep").arg("60").spawn().unwrap()]);
        for (signal, exit) in [(Signal::TERM, Exit::Terminated), (Signal::INT, Exit::Interrupted)] {
            kill_process(getpid(), signal).unwrap();
            assert_eq!(ranks.wait(&interrupts).unwrap(), exit);
        }
    }
}
