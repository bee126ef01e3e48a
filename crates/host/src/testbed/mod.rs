//! Owns the testbed: real processes on real sockets, over an emulated network that follows a cluster file, on one Linux
//! machine.
//!
//! `namespace` creates a host for every host of the cluster, `wire` defines the effects of links on packets, the
//! emulator in this module carries the packets, and `priority` keeps other work on the machine from slowing them down.
//! Compute runs at the machine's own speed: a device's slowdown is not emulated, and ranks on one host use its
//! loopback.

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

/// Size in bytes of the drop-tail queue of each link: typical of a small switch.
pub const DEFAULT_QUEUE_BYTES: u64 = 1_500_000;

/// The name of every host's interface, for `GLOO_SOCKET_IFNAME`.
pub const INTERFACE: &str = namespace::INTERFACE;

/// The hosts' network: the first address is 10.66.0.1.
const NETWORK: u32 = u32::from_be_bytes([10, 66, 0, 0]);

/// Emulated hosts. Dropping this ends all of them, including their processes.
pub struct Testbed {
    hosts: Vec<Namespace>,
    emulator: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    real_time: bool,
}

/// Counters of the emulator.
#[derive(Default)]
struct Counts {
    carried: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
}

/// Statistics of the emulator.
#[derive(Clone, Copy, Debug)]
pub struct Packets {
    /// Frames that arrived: single packets, or several consecutive ones of one connection.
    pub carried: u64,
    /// Frames that were dropped at a full queue.
    pub dropped: u64,
    /// Frames that were delivered more than [`LATE`] after their due time: the machine is slower than the network.
    pub late: u64,
}

/// Delay above which a delivered packet counts in [`Packets::late`].
pub const LATE: Duration = Duration::from_micros(500);

impl Testbed {
    /// Creates the hosts and links of `cluster`, with a queue of `queue_bytes` per link.
    ///
    /// # Errors
    /// If namespaces, TUN devices or `iproute2` are unavailable; the error has a hint.
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

    /// A requirement of the testbed that this machine lacks, if any.
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
    /// Errors of [`Command::spawn`].
    pub fn spawn(&self, host: HostId, command: Command) -> io::Result<Child> {
        self.hosts[host.index()].spawn(command)
    }

    /// A host's address.
    pub fn address(&self, host: HostId) -> Ipv4Addr {
        address(host.0)
    }

    /// Whether the testbed's threads and processes have real-time priority on this machine. Otherwise other work
    /// affects measurements.
    pub fn is_in_real_time(&self) -> bool {
        self.real_time
    }

    /// Statistics up to now.
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

/// The rate of the first link on a host's route to others, in bit/s; irrelevant for a host without neighbours.
fn egress(cluster: &Cluster, host: u32) -> f64 {
    let other = u32::from(host == 0);
    if cluster.topology.hosts().len() < 2 {
        return 1e9;
    }
    let route = cluster.topology.route(HostId(host), HostId(other));
    cluster.topology.link(route.links[0]).bandwidth.bytes_per_second() * 8.0
}

/// Carries packets between the devices, on a thread of its own.
struct Emulator {
    wire: Wire<(u32, Vec<u8>)>,
    devices: Vec<OwnedFd>,
    /// Number of packets that a device did not accept.
    lost: u64,
    start: Instant,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
}

/// Interval between checks of the stop flag.
const PATIENCE_NS: u64 = 50_000_000;

/// Number of packets that are read from one device before the next device's turn.
const TURN: usize = 64;

impl Emulator {
    fn run(mut self) {
        // Sleeps end on time, and ranks that compute do not delay the network.
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

    /// Waits until a packet can be read or moved.
    fn wait(&self) {
        let now = self.now();
        let left = self.wire.next_at().map_or(PATIENCE_NS, |at| at.saturating_sub(now)).min(PATIENCE_NS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left as i64 };
        let mut waiting: Vec<PollFd<'_>> =
            self.devices.iter().map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)).collect();
        // An error is ignored: an interrupted wait only ends earlier.
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

    /// The destination host of a frame.
    fn receiver(&self, frame: &[u8]) -> Option<u32> {
        let host = u32::from(frame::receiver(frame)?).checked_sub(NETWORK + 1)?;
        ((host as usize) < self.devices.len()).then_some(host)
    }

    fn hand_over(&mut self) {
        let now = self.now();
        let late = self.wire.next_at().is_some_and(|due| now.saturating_sub(due) > LATE.as_nanos() as u64);
        while let Some((host, frame)) = self.wire.arrived(now) {
            // The kernel's own queue may be full: if so, the packet is lost, as on real hardware.
            match rustix::io::write(&self.devices[host as usize], &frame) {
                Ok(_) => drop(self.counts.carried.fetch_add(1, Relaxed)),
                Err(_) => self.lost += 1,
            }
            self.counts.late.fetch_add(late.into(), Relaxed);
        }
        self.counts.dropped.store(self.wire.dropped() + self.lost, Relaxed);
    }
}
