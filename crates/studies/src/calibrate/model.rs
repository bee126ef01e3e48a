//! Owns the simulator's predictions for a network of given numbers: it simulates ping-pongs between two ranks.
//!
//! A host's work for a message is one number, and the profile's `call`, `message` and `wake` are in the profile's
//! proportion to it: a ping-pong shows only their sum. The plain round trip, without the library, separates this work
//! from the latency.

use super::measurement::Pair;
use super::{bandwidth, duration, errors};
use std::cell::Cell;
use std::fmt::Write;
use std::rc::Rc;
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_formats::units::Size;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::ids::{GroupId, GroupRank, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, Call, CallOp, Outcome, Program, ProgramError, Reply, Request};
use uniference_sim::time::{Bytes, SimTime};

/// The numbers of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Seconds of a host's work for a message.
    pub message: f64,
    /// Seconds of a collective without messages, which ping-pongs do not show; `None`: derived from `message`.
    pub solo: Option<f64>,
    /// The hosts' links; a single entry if all are equal.
    pub links: Vec<HostLink>,
    /// Latency in seconds and bytes per second between ranks of one host, if any ranks share one.
    pub local: Option<(f64, f64)>,
}

/// A host's link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLink {
    /// Latency in seconds.
    pub latency: f64,
    /// Bytes per second into the host, and out of it if `egress` is `None`.
    pub bandwidth: f64,
    /// Bytes per second out of the host.
    pub egress: Option<f64>,
}

impl HostLink {
    /// A link that is as fast in both directions.
    pub fn both(latency: f64, bandwidth: f64) -> HostLink {
        HostLink { latency, bandwidth, egress: None }
    }

    /// The value of `bandwidth` in a cluster file.
    fn rates(&self) -> String {
        let ingress = bandwidth(self.bandwidth);
        match self.egress {
            None => format!("\"{ingress}\""),
            Some(egress) => format!("{{ egress = \"{}\", ingress = \"{ingress}\" }}", bandwidth(egress)),
        }
    }
}

/// The numbers that a network has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Whether ranks share hosts.
    pub shared: bool,
    /// Differences between the hosts' links.
    pub links: Links,
}

/// Differences between hosts' links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// The links of all hosts are alike.
    #[default]
    Alike,
    /// Each link has its own latency and bandwidth.
    Apart,
    /// Each link has its own latency and two bandwidths.
    Directed,
}

/// Facts that are known before the fit.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The name of the library that was measured.
    pub library: &'a str,
    /// The size in bytes of the longest eager message; `None`: there is no such limit.
    pub eager: Option<u64>,
}

impl Setting<'_> {
    /// The setting of a library without an eager limit.
    pub fn of(library: &str) -> Setting<'_> {
        Setting { library, eager: None }
    }
}

/// The number of each rank's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement(pub Vec<usize>);

impl Placement {
    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.0.iter().max().map_or(0, |host| host + 1)
    }

    /// Whether any host has several ranks.
    pub fn is_shared(&self) -> bool {
        self.hosts() < self.0.len()
    }
}

/// Gloo's profile: `call`, and the hand-over of a collective, as multiples of `message`.
const CALL: f64 = 1.6;
const HAND_OVER: f64 = 0.85;
/// MPI's profile: `call` as a multiple of `message`.
const MPI_CALL: f64 = 0.2;

impl Network {
    /// The network at a point of logarithms.
    pub fn at(point: &[f64], form: Form) -> Network {
        let numbers: Vec<f64> = point.iter().map(|logarithm| logarithm.exp()).collect();
        let (message, rest) = numbers.split_first().expect("a message takes some time");
        let (links, local) = rest.split_at(rest.len() - 2 * usize::from(form.shared));
        let link =
            |numbers: &[f64]| HostLink { latency: numbers[0], bandwidth: numbers[1], egress: numbers.get(2).copied() };
        let links = links.chunks(if form.links == Links::Directed { 3 } else { 2 }).map(link).collect();
        Network { message: *message, solo: None, links, local: form.shared.then(|| (local[0], local[1])) }
    }

    /// The logarithms of the parameters, in the order of [`Network::at`].
    pub fn logarithms(&self) -> Vec<f64> {
        let links = self.links.iter().flat_map(|link| [Some(link.latency), Some(link.bandwidth), link.egress]);
        let local = self.local.iter().flat_map(|(latency, bandwidth)| [*latency, *bandwidth]);
        [self.message].into_iter().chain(links.flatten()).chain(local).map(f64::ln).collect()
    }

    /// The name of each coordinate.
    pub fn names(&self) -> Vec<String> {
        let several = self.links.len() > 1;
        let names = self.links.iter().enumerate().flat_map(|(host, link)| {
            let prefix = if several { format!("host {host} ") } else { String::new() };
            let rates: &[&str] =
                if link.egress.is_some() { &["ingress bandwidth", "egress bandwidth"] } else { &["bandwidth"] };
            let all = ["latency"].into_iter().chain(rates.iter().copied());
            all.map(move |name| format!("{prefix}{name}")).collect::<Vec<_>>()
        });
        let local = self.local.iter().flat_map(|_| ["local latency".to_owned(), "local bandwidth".to_owned()]);
        ["host time per message".to_owned()].into_iter().chain(names).chain(local).collect()
    }

    /// The start of the fit: latencies from the plain round trips, bandwidths from the largest messages.
    pub fn guess(observed: &[Pair], placement: &Placement, form: Form) -> Network {
        let (local, observed): (Vec<&Pair>, Vec<&Pair>) =
            observed.iter().partition(|case| case.local && placement.is_shared());
        let hosts = if form.links == Links::Alike { 1 } else { placement.hosts() };
        let fastest = |plain: bool| {
            let of_kind = observed.iter().filter(|case| case.plain == plain && !case.is_ping());
            of_kind.map(|case| case.median()).fold(f64::INFINITY, f64::min)
        };
        let round = fastest(false);
        let latency = if fastest(true).is_finite() { fastest(true) / 2.0 } else { round / 8.0 };
        let message = ((round - 3.0 * latency) / 8.0).max(round / 100.0);
        let is_on = |case: &Pair, host: usize| case.ranks.iter().any(|rank| placement.0[*rank as usize] == host);
        let link = |host: usize| {
            let own = observed.iter().copied().filter(|case| hosts == 1 || is_on(case, host));
            let latency =
                if placement.is_shared() { None } else { latency_of(&observed, host as u32, hosts) }.unwrap_or(latency);
            if form.links != Links::Directed {
                return HostLink::both(latency, rate(own));
            }
            let of = |end: usize| {
                let pings = observed.iter().copied().filter(|case| case.is_ping());
                pings.filter(move |case| placement.0[case.ranks[end] as usize] == host)
            };
            HostLink { latency, bandwidth: rate(of(1)), egress: Some(rate(of(0))) }
        };
        let round = local.iter().filter(|case| case.plain).map(|case| case.median()).fold(f64::INFINITY, f64::min);
        let between = if round.is_finite() { round / 2.0 } else { latency / 10.0 };
        let local = placement.is_shared().then(|| (between, rate(local.iter().copied())));
        Network { message, solo: None, links: (0..hosts).map(link).collect(), local }
    }

    fn link(&self, host: usize) -> HostLink {
        self.links[host % self.links.len()]
    }

    /// A cluster file with one device per host; `devices` has the keys of each, and `communication` is the relative
    /// standard error of predictions.
    pub fn to_toml(&self, setting: &Setting, placement: &Placement, devices: &[String], communication: f64) -> String {
        let mut toml = self.backend(setting);
        let first = self.link(0);
        for (rank, keys) in devices.iter().enumerate() {
            let host = match placement.is_shared() {
                true => format!("host = \"host.{}\"\n", placement.0[rank]),
                false => String::new(),
            };
            let _ = write!(toml, "[[device]]\nname = \"rank.{rank}\"\n{host}{keys}\n");
        }
        toml.push_str("[network]\npreset = \"switch\"\n");
        let _ = write!(toml, "bandwidth = {}\nlatency = \"{}\"\n", first.rates(), duration(first.latency));
        toml.push_str(&self.between_ranks_of_a_host());
        let prefix = if placement.is_shared() { "host" } else { "rank" };
        for host in 1..self.links.len() {
            toml.push_str(&self.exception(&format!("{prefix}.{host}"), host));
        }
        let _ = write!(toml, "\n[uncertainty]\ncommunication = {communication:.4}\n");
        for (operation, model) in if setting.library == "gloo" { &errors::GLOO[..] } else { &[] } {
            // Errors of the numbers and of the model are independent.
            let _ = writeln!(toml, "{operation} = {:.4}", communication.hypot(*model));
        }
        toml
    }

    fn backend(&self, setting: &Setting) -> String {
        let message = duration(self.message);
        let call = CALL * self.message;
        // A collective is handed over to the library's thread and back, which costs `hand_over` twice.
        let hand_over = self.solo.map_or(HAND_OVER * self.message, |solo| ((solo - call) / 2.0).max(0.0));
        let (call, hand_over) = (duration(call), duration(hand_over));
        match setting.library {
            "mpi" => {
                let call = duration(MPI_CALL * self.message);
                let eager = setting.eager.map_or_else(String::new, |limit| {
                    let limit = Size(Bytes(limit));
                    format!("handshake = {{ control = \"32 B\", preamble = \"14 B\", eager = \"{limit}\" }}\n")
                });
                format!("[backend]\nname = \"mpi\"\ncall = \"{call}\"\nmessage = \"{message}\"\n{eager}\n")
            }
            "gloo" => format!(
                "[backend]\nname = \"gloo\"\ncall = \"{call}\"\nhand_over = \"{hand_over}\"\nmessage = \"{message}\"\nwake = \"{message}\"\n\n"
            ),
            other => format!("[backend]\nname = \"{other}\"\ncall = \"{message}\"\n\n"),
        }
    }

    fn between_ranks_of_a_host(&self) -> String {
        let Some((latency, rate)) = self.local else { return String::new() };
        format!("local = {{ bandwidth = \"{}\", latency = \"{}\" }}\n", bandwidth(rate), duration(latency))
    }

    fn exception(&self, name: &str, host: usize) -> String {
        let link = self.link(host);
        format!("[network.host.\"{name}\"]\nbandwidth = {}\nlatency = \"{}\"\n", link.rates(), duration(link.latency))
    }

    /// A cluster of two ranks, on two of the hosts or on one.
    fn pair(&self, setting: &Setting, [first, second]: [usize; 2]) -> Cluster {
        let mut toml = self.backend(setting);
        if first == second {
            toml.push_str("[[device]]\nname = \"a\"\ncount = 2\nhost = \"h\"\n[network]\n");
            toml.push_str(&self.between_ranks_of_a_host());
        } else {
            toml.push_str("[[device]]\nname = \"a\"\n[[device]]\nname = \"b\"\n[network]\npreset = \"switch\"\n");
            toml.push_str(&self.exception("a", first));
            toml.push_str(&self.exception("b", second));
        }
        let file =
            ClusterFile::parse("calibration", &toml, &[]).unwrap_or_else(|error| panic!("{}", error.render(false)));
        file.resolve(&Choices::default()).unwrap_or_else(|error| panic!("{}", error.render(false))).cluster
    }
}

/// The rate of a host's link by its messages: a pair has the smaller rate of its two links, so the rate of the host's
/// best pair counts.
fn rate<'a>(own: impl Iterator<Item = &'a Pair>) -> f64 {
    let rates = own.filter(|case| !case.plain).map(|case| (case.bytes + case.back).max(1) as f64 / case.median());
    rates.fold(1.0, f64::max)
}

/// A host's latency `l`, if each pair's plain round trip is known. A pair's latency is the sum of both hosts': with S
/// the sum over the P - 1 pairs of one of P hosts and L the sum of all hosts' latencies, S = (P - 2) l + L, and the sum
/// over all pairs is (P - 1) L.
fn latency_of(observed: &[&Pair], host: u32, hosts: usize) -> Option<f64> {
    let plain = || observed.iter().filter(|case| case.plain);
    if hosts < 3 || plain().count() != hosts * (hosts - 1) / 2 {
        return None;
    }
    let all = plain().map(|case| case.median()).sum::<f64>() / (hosts - 1) as f64;
    let own: f64 = plain().filter(|case| case.ranks.contains(&host)).map(|case| case.median()).sum();
    Some(((own - all) / (hosts - 2) as f64).max(all / 100.0))
}

/// The model of a network, which predicts the duration of measurements.
pub struct Model<'a> {
    /// Facts that are known before the fit.
    pub setting: &'a Setting<'a>,
    /// The measurements that are predicted.
    pub cases: &'a [Pair],
    /// The host of each rank.
    pub placement: &'a Placement,
}

impl Model<'_> {
    /// The logarithm of each case's seconds.
    pub fn predict(&self, network: &Network) -> Vec<f64> {
        let seconds = |case: &Pair| {
            let hosts = case.ranks.map(|rank| self.placement.0[rank as usize]);
            match (case.plain, network.local) {
                (true, Some((latency, _))) if hosts[0] == hosts[1] => 2.0 * latency,
                (true, _) => hosts.map(|host| network.link(host).latency).iter().sum(),
                (false, _) => pingpong(&network.pair(self.setting, hosts), [case.bytes, case.back].map(Bytes)),
            }
        };
        self.cases.iter().map(|case| seconds(case).max(1e-12).ln()).collect()
    }
}

/// Number of rounds; only the last one counts, as connections are warm by then.
const ROUNDS: u32 = 6;

/// Seconds of a round on two ranks, in both directions.
pub fn pingpong(cluster: &Cluster, bytes: [Bytes; 2]) -> f64 {
    let mut engine = Engine::new(cluster);
    let ends = Rc::new(Cell::new([SimTime::ZERO; 2]));
    let player = |rank: u32| -> Box<dyn Program> {
        Box::new(Player { rank, bytes, step: 0, group: GroupId(0), ends: ends.clone() })
    };
    match drive(&mut engine, &mut [player(0), player(1)], &mut ()) {
        RunEnd::Finished => ends.get()[1].since(ends.get()[0]).as_secs_f64(),
        RunEnd::Halted(halt) => {
            panic!("a ping-pong comes to its end: {}", halt.render(&|_| String::new(), &|_| Vec::new()))
        }
        other => panic!("a ping-pong comes to its end: {other:?}"),
    }
}

/// Sends and receives in turn.
struct Player {
    rank: u32,
    /// Bytes of the message and of its answer.
    bytes: [Bytes; 2],
    step: u32,
    group: GroupId,
    /// The ends of rank 0's last two rounds.
    ends: Rc<Cell<[SimTime; 2]>>,
}

impl Player {
    fn next(&mut self) -> Request {
        if self.step == 2 * ROUNDS {
            return Request::Exit(Outcome::Ok);
        }
        let (peer, bytes, tag) = (GroupRank(1 - self.rank), self.bytes[(self.step % 2) as usize], 0);
        let op = match self.step % 2 == self.rank {
            true => CallOp::Send { to: peer, tag, bytes },
            false => CallOp::Recv { from: Some(peer), tag, bytes },
        };
        self.step += 1;
        let activity = Activity::Call(Call { group: self.group, op });
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }
    }
}

impl Program for Player {
    fn resume(&mut self, now: SimTime, _: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        Ok(match reply {
            Reply::Start => Request::JoinGroup {
                ranks: [RankId(0), RankId(1)].into(),
                sequence: 0,
                settings: None,
                rendezvous: false,
            },
            Reply::Group(group) => {
                self.group = group;
                self.next()
            }
            Reply::Issued(handle) => Request::Wait { handles: vec![handle], any: false, timeout: None, site: Site(0) },
            Reply::Complete(_) => {
                if self.rank == 0 && self.step.is_multiple_of(2) {
                    self.ends.set([self.ends.get()[1], now]);
                }
                self.next()
            }
            other => unreachable!("nothing was asked that is answered by {other:?}"),
        })
    }
}
