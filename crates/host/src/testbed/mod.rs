//! Owns the testbed: real processes on real sockets, over an emulated network made after a cluster file, on one Linux machine.
//!
//! `namespace` makes a host for every host of the cluster, `wire` says what its links do to packets, the emulator here carries
//! the packets, and `priority` sees to it that others' work does not slow them down. Compute is the machine's own: a device's slowdown is
//! not emulated, and ranks on one host use its loopback.

mod frame;
mod namespace;
mod priority;
mod tun;
mod wire;

use crate::error::HostError;
use namespace::{Interface, Namespace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::HostId;
use wire::Wire;

/// A drop-tail queue of this many bytes stands before every link: what a small switch has.
pub const DEFAULT_QUEUE_BYTES: u64 = 1_500_000;

/// The name of every host's interface, for `GLOO_SOCKET_IFNAME`.
pub const INTERFACE: &str = namespace::INTERFACE;

/// Of the hosts' addresses: the first is 10.66.0.1.
const NETWORK: u32 = u32::from_be_bytes([10, 66, 0, 0]);

/// Emulated hosts. All of it ends when this is dropped, the processes on them included.
pub struct Testbed {
    hosts: Vec<Namespace>,
    emulator: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    real_time: bool,
}

/// What the emulator has seen.
#[derive(Default)]
struct Counts {
    carried: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
}

/// What the emulator has done.
#[derive(Clone, Copy, Debug)]
pub struct Packets {
    /// Frames that arrived: packets, or several of one connection in a row.
    pub carried: u64,
    /// Those that found a full queue.
    pub dropped: u64,
    /// Those that were handed over more than [`LATE`] after they were due: the machine is slower than the network then.
    pub late: u64,
}

/// How late a packet may be handed over before it counts in [`Packets::late`].
pub const LATE: Duration = Duration::from_micros(500);

impl Testbed {
    /// Makes the hosts and links of `cluster`, with `queue_bytes` of room before every link.
    ///
    /// # Errors
    /// Where namespaces, TUN devices or `iproute2` cannot be had, with a hint.
    pub fn new(cluster: &Cluster, queue_bytes: u64) -> Result<Testbed, HostError> {
        let count = cluster.topology.hosts().len() as u32;
        let mut hosts = Vec::new();
        let mut devices = Vec::new();
        let mut real_time = true;
        for host in 0..count {
            let interface = Interface { address: address(host), bits_per_second: egress(cluster, host), peers: count };
            let (namespace, device) = Namespace::open(interface)?;
            real_time &= namespace.is_in_real_time();
            hosts.push(namespace);
            devices.push(device);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let emulator = Emulator {
            wire: Wire::new(cluster, queue_bytes),
            devices,
            lost: 0,
            start: Instant::now(),
            counts: counts.clone(),
            stop: stop.clone(),
        };
        let emulator = thread::Builder::new()
            .name("emulator".into())
            .spawn(move || emulator.run())
            .map_err(HostError::system("starting a thread"))?;
        Ok(Testbed { hosts, emulator: Some(emulator), stop, counts, real_time })
    }

    /// What this machine lacks for a testbed, if anything.
    pub fn missing() -> Option<String> {
        let tool = |name: &str| Command::new(name).arg("-V").output().is_err();
        if !rustix::process::geteuid().is_root() {
            Some("not root".to_owned())
        } else if !Path::new("/dev/net/tun").exists() {
            Some("/dev/net/tun does not exist".to_owned())
        } else {
            ["ip", "tc"].into_iter().find(|name| tool(name)).map(|name| format!("`{name}` of iproute2 is missing"))
        }
    }

    /// Starts a process on a host.
    ///
    /// # Errors
    /// The operating system's, as from [`Command::spawn`].
    pub fn spawn(&self, host: HostId, command: Command) -> io::Result<Child> {
        self.hosts[host.index()].spawn(command)
    }

    /// A host's address.
    pub fn address(&self, host: HostId) -> Ipv4Addr {
        address(host.0)
    }

    /// Do its threads and processes go before all others on this machine? Otherwise others' work shows in what is measured.
    pub fn is_in_real_time(&self) -> bool {
        self.real_time
    }

    /// What was carried so far.
    pub fn packets(&self) -> Packets {
        let Counts { carried, dropped, late } = &*self.counts;
        Packets { carried: carried.load(Relaxed), dropped: dropped.load(Relaxed), late: late.load(Relaxed) }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(emulator) = self.emulator.take() {
            let _ = emulator.join();
        }
    }
}

fn address(host: u32) -> Ipv4Addr {
    Ipv4Addr::from(NETWORK + host + 1)
}

/// The rate of the first link on a host's way out, in bit/s; of a host without neighbours it does not matter.
fn egress(cluster: &Cluster, host: u32) -> f64 {
    let other = u32::from(host == 0);
    if cluster.topology.hosts().len() < 2 {
        return 1e9;
    }
    let route = cluster.topology.route(HostId(host), HostId(other));
    cluster.topology.link(route.links[0]).bandwidth.bytes_per_second() * 8.0
}

/// Carries packets between the devices, in a thread of its own.
struct Emulator {
    wire: Wire<(u32, Vec<u8>)>,
    devices: Vec<OwnedFd>,
    /// Packets that a device did not take.
    lost: u64,
    start: Instant,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
}

/// How often it looks whether it should stop.
const PATIENCE_NS: u64 = 50_000_000;

/// How many packets of one device are read before another's turn.
const TURN: usize = 64;

impl Emulator {
    fn run(mut self) {
        // Sleeps end when they should, and the ranks that compute do not keep the network waiting.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        if !priority::real_time(priority::EMULATOR) {
            let _ = rustix::process::setpriority_process(None, -15);
        }
        while !self.stop.load(Relaxed) {
            self.wait();
            for host in 0..self.devices.len() as u32 {
                self.take_packets(host);
            }
            self.hand_over();
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Until a packet can be read or moves.
    fn wait(&self) {
        let now = self.now();
        let left = self.wire.next_at().map_or(PATIENCE_NS, |at| at.saturating_sub(now)).min(PATIENCE_NS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left as i64 };
        let mut waiting: Vec<PollFd<'_>> =
            self.devices.iter().map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)).collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut waiting, Some(&timeout));
    }

    fn take_packets(&mut self, host: u32) {
        let mut buffer = [0; frame::LONGEST];
        for _ in 0..TURN {
            let Ok(length) = rustix::io::read(&self.devices[host as usize], &mut buffer) else { return };
            let frame = &buffer[..length];
            if let Some(to) = self.receiver(frame).filter(|to| *to != host) {
                let now = self.now();
                self.wire.send(now, (host, to), frame::wire_bytes(frame), (to, frame.to_vec()));
            }
        }
    }

    /// The host that a frame is for.
    fn receiver(&self, frame: &[u8]) -> Option<u32> {
        let host = u32::from(frame::receiver(frame)?).checked_sub(NETWORK + 1)?;
        ((host as usize) < self.devices.len()).then_some(host)
    }

    fn hand_over(&mut self) {
        let now = self.now();
        let late = self.wire.next_at().is_some_and(|due| now.saturating_sub(due) > LATE.as_nanos() as u64);
        while let Some((host, frame)) = self.wire.arrived(now) {
            // The kernel's own queue may be full: a packet is lost then, as in life.
            match rustix::io::write(&self.devices[host as usize], &frame) {
                Ok(_) => drop(self.counts.carried.fetch_add(1, Relaxed)),
                Err(_) => self.lost += 1,
            }
            self.counts.late.fetch_add(late.into(), Relaxed);
        }
        self.counts.dropped.store(self.wire.dropped() + self.lost, Relaxed);
    }
}
