//! Owns one emulated host: a network namespace whose only interface to others is a TUN device, whose other end belongs
//! to this process.
//!
//! The namespace belongs to a thread, not to a name: the end of this process, even by `kill -9`, ends the namespace
//! too, once the processes started in it have ended.

// The system call by which a thread leaves the process's network namespace is marked unsafe because of its other uses.
#![allow(unsafe_code)]

use super::wire::ETHERNET_HEADER;
use super::{priority, tun};
use crate::error::HostError;
use crate::supervisor::supervise;
use rustix::thread::UnshareFlags;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Name of the interface in every namespace.
pub(super) const INTERFACE: &str = "un0";

/// Largest packet in bytes: Ethernet's MTU.
pub(super) const MTU: u32 = 1_500;

/// Longest segment that TCP passes to the interface at once, as time on the wire (Linux itself allows up to 1 ms,
/// `tcp_tso_autosize`). A segment is carried as one frame: shorter segments would make this machine's cores busier and
/// lengthen the waits between threads.
const SEGMENT_S: f64 = 500e-6;

/// Ratio of the kernel's pacing rate to the link's bandwidth; the kernel also compensates delays. This keeps the
/// emulated link, which is exact, supplied with packets, and TCP still sees a queue on its own host. Surplus packets
/// are in the link's queue, in which receivers do not alternate, so the surplus is small.
const PACE: f64 = 1.005;
const BURST_S: f64 = 200e-6;

type Order = Box<dyn FnOnce() + Send>;

/// One emulated host.
pub(super) struct Namespace {
    orders: Sender<Order>,
    real_time: bool,
}

/// Properties of a host's interface.
#[derive(Clone, Copy)]
pub(super) struct Interface {
    /// The interface's address; all hosts are in one /16.
    pub(super) address: Ipv4Addr,
    /// Rate in bit/s to which the kernel limits the interface: TCP sees a full queue on its own host, as with a real
    /// NIC.
    pub(super) bits_per_second: f64,
    /// Number of hosts; their addresses are consecutive.
    pub(super) peers: u32,
}

impl Namespace {
    /// Creates the namespace and its interface; also returns the interface's other end.
    ///
    /// # Errors
    /// If the user may not create namespaces or devices, or `ip` and `tc` are missing.
    pub(super) fn open(interface: Interface) -> Result<(Namespace, OwnedFd), HostError> {
        let (orders, todo) = channel::<Order>();
        let (answer, answered) = channel();
        thread::Builder::new()
            .name(format!("host {}", interface.address))
            .spawn(move || {
                let device = enter(interface);
                // The priority is set only now, because all processes that this thread starts from now on belong to the
                // host.
                let _ = answer.send(device.map(|device| (device, priority::real_time(priority::RANKS))));
                todo.into_iter().for_each(|order| order());
            })
            .map_err(HostError::system("starting a thread"))?;
        let (device, real_time) = answered.recv().expect("the thread answers before it does anything else")?;
        Ok((Namespace { orders, real_time }, device))
    }

    /// Whether the host's processes have real-time priority on this machine.
    pub(super) fn is_in_real_time(&self) -> bool {
        self.real_time
    }

    /// Starts a process on this host. The process and its descendants are killed when the host is dropped, or this
    /// process ends.
    pub(super) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        supervise(&mut command);
        let (answer, answered) = channel();
        let order: Order = Box::new(move || drop(answer.send(command.spawn())));
        self.orders.send(order).expect("a host's thread lives as long as the host");
        answered.recv().expect("a host's thread answers")
    }
}

fn enter(interface: Interface) -> Result<OwnedFd, HostError> {
    // SAFETY: only the network namespace of this thread changes; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| not_permitted("create a network namespace", &error.into()))?;
    let device = tun::open(INTERFACE).map_err(|error| not_permitted("create a TUN device", &error))?;
    let _ = fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    // Metrics of a closed connection would set the next one's slow-start threshold: a message could need twice as long,
    // depending on earlier traffic.
    let _ = fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
    configure(interface)?;
    Ok(device)
}

fn configure(Interface { address, bits_per_second, peers }: Interface) -> Result<(), HostError> {
    let in_time = |seconds: f64| (bits_per_second / 8.0 * seconds) as u32;
    let segment = in_time(SEGMENT_S).clamp(2 * MTU, 65_536);
    let subnet = address & Ipv4Addr::new(255, 255, 0, 0);
    tool("ip", "link set lo up")?;
    tool("ip", &format!("address add {address}/16 dev {INTERFACE}"))?;
    tool("ip", &format!("link set {INTERFACE} mtu {MTU} gso_max_size {segment} txqueuelen 1000 up"))?;
    // The machine may default to another algorithm; clusters mostly run cubic. A namespace may not change its default,
    // only its route. A kernel without cubic keeps its algorithm.
    let _ = tool("ip", &format!("route change {subnet}/16 dev {INTERFACE} src {address} congctl cubic"));
    tool("tc", &format!("qdisc add dev {INTERFACE} root handle 1: htb default 1"))?;
    let class = |parent: &str, id: u32, part: u32| {
        let ceiling = PACE * bits_per_second;
        let (rate, burst) = ((ceiling / f64::from(part)).round() as u64, in_time(BURST_S).max(2 * MTU));
        let limits =
            format!("rate {rate}bit ceil {}bit burst {burst} cburst {burst} quantum {MTU}", ceiling.round() as u64);
        tool(
            "tc",
            &format!(
                "class add dev {INTERFACE} parent {parent} classid 1:{id:x} htb {limits} overhead {ETHERNET_HEADER}"
            ),
        )
    };
    class("1:", 1, 1)?;
    // Each receiver has a queue, and the queues alternate, as in the fq_codel queues that most distributions configure
    // for NICs.
    for peer in 0..peers {
        let (receiver, id) = (Ipv4Addr::from(u32::from(subnet) + peer + 1), peer + 2);
        class("1:1", id, peers)?;
        let to = format!("match ip dst {receiver}/32 flowid 1:{id:x}");
        tool("tc", &format!("filter add dev {INTERFACE} parent 1: protocol ip prio 1 u32 {to}"))?;
    }
    Ok(())
}

fn tool(program: &str, words: &str) -> Result<(), HostError> {
    let output = Command::new(program).args(words.split(' ')).output().map_err(|error| HostError::Host {
        what: format!("cannot start `{program}`: {error}"),
        hint: "the testbed requires iproute2: apt install iproute2".into(),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(not_permitted(&format!("run `{program} {words}`"), &io::Error::other(said)))
}

fn not_permitted(what: &str, error: &io::Error) -> HostError {
    HostError::Host {
        what: format!("the testbed cannot {what}: {error}"),
        hint: "the testbed requires Linux, root and /dev/net/tun; run `uniference doctor` to see what is missing"
            .into(),
    }
}
