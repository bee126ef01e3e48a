//! Speed of the network model alone: CPU seconds per case, on one core. `cargo bench -p uniference-sim --bench network
//! [-- NAME...]`
#![allow(clippy::disallowed_types, reason = "to measure with")]

use std::time::Instant;
use uniference_sim::ids::{HostId, StreamId};
use uniference_sim::network::{FlowNetwork, HostSpec, LinkSpec, Network, NetworkEvent, Preset, Topology};
use uniference_sim::time::{Bytes, Rate, SimDuration, SimTime};

struct Flow {
    start: SimTime,
    from: u32,
    to: u32,
    bytes: Bytes,
}

fn main() {
    let cases: [(&str, &str, fn()); 9] = [
        ("random-4096-10g", "4,096 hosts, 100,000 random flows, 10 Gbps: 0.3 s", || random(4096, 100_000, 10.0)),
        ("random-4096-1g", "the same at 1 Gbps, overloaded: 30 s", || random(4096, 100_000, 1.0)),
        ("random-1024-1g", "1,024 hosts, 20,000 random flows, 1 Gbps, overloaded: 5 s", || random(1024, 20_000, 1.0)),
        ("all-to-all-256", "all-to-all of 256 hosts, equal sizes: 0.2 s", || all_to_all(256, |_| Bytes(1_000_000))),
        ("all-to-all-64", "all-to-all of 64 hosts, random sizes: 0.2 s", || {
            all_to_all(64, |random| random.log_uniform(10e3, 100e6))
        }),
        ("at-once-20480", "4,096 hosts, 5 random flows a host, all at once", || at_once(4096, 5)),
        ("at-once-12800", "512 hosts, 25 random flows a host, all at once", || at_once(512, 25)),
        ("at-once-102400", "4,096 hosts, 25 random flows a host, all at once", || at_once(4096, 25)),
        ("ring-1024", "1,024 hosts, 2,046 rounds of a message to the neighbour: 0.4 s", || ring(1024, 2046)),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, what, case) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            let before = (Instant::now(), cpu_seconds());
            case();
            let (wall, cpu) = (before.0.elapsed().as_secs_f64(), cpu_seconds() - before.1);
            println!("{name:<16} {cpu:>8.3} s CPU {wall:>8.3} s wall   ({what})");
        }
    }
}

/// CPU time of this process; zero if the host does not report it.
fn cpu_seconds() -> f64 {
    let schedule = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    schedule.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> Bytes {
        Bytes((low * (high / low).powf(self.unit())) as u64)
    }
}

fn switch(hosts: u32, gbps: f64, latency: SimDuration) -> FlowNetwork {
    let hosts: Vec<_> = (0..hosts).map(|host| HostSpec::new(host.to_string())).collect();
    let link = LinkSpec::new(Rate::from_bits_per_second(gbps * 1e9).unwrap(), latency);
    FlowNetwork::new(Topology::preset(&Preset::Switch, &hosts, link).unwrap())
}

/// Random flows that start within one second, with sizes log-uniform between 10 kB and 100 MB.
fn random(hosts: u32, flows: u32, gbps: f64) {
    let mut random = Random(1);
    let mut flow = |_| {
        let (from, other) = (random.below(hosts), random.below(hosts - 1));
        let start = SimTime::from_ps((random.unit() * 1e12) as u64);
        Flow { start, from, to: other + u32::from(other >= from), bytes: random.log_uniform(10e3, 100e6) }
    };
    let mut flows: Vec<_> = (0..flows).map(&mut flow).collect();
    flows.sort_by_key(|flow| flow.start);
    replay(switch(hosts, gbps, SimDuration::from_us(200)), &flows);
}

/// Flows that all start at once, to random other hosts, with sizes log-uniform between 1 MB and 100 MB.
fn at_once(hosts: u32, each: u32) {
    let mut random = Random(3);
    let mut flow = |from: u32| {
        let other = random.below(hosts - 1);
        Flow { start: SimTime::ZERO, from, to: other + u32::from(other >= from), bytes: random.log_uniform(1e6, 100e6) }
    };
    let flows: Vec<_> = (0..hosts).flat_map(|from| (0..each).map(move |_| from)).map(&mut flow).collect();
    replay(switch(hosts, 10.0, SimDuration::from_us(2)), &flows);
}

fn all_to_all(hosts: u32, size: fn(&mut Random) -> Bytes) {
    let mut random = Random(2);
    let pairs = (0..hosts).flat_map(|from| (0..hosts).filter(move |to| *to != from).map(move |to| (from, to)));
    let flows: Vec<_> =
        pairs.map(|(from, to)| Flow { start: SimTime::ZERO, from, to, bytes: size(&mut random) }).collect();
    replay(switch(hosts, 10.0, SimDuration::from_us(2)), &flows);
}

/// Runs flows, sorted by start time, each on its own connection stream.
fn replay(mut network: FlowNetwork, flows: &[Flow]) {
    let (mut events, mut delivered, mut sent, mut next, mut most) = (Vec::new(), 0, 0, 0, 0);
    loop {
        let start = flows.get(next).map(|flow| flow.start);
        let Some(now) = network.next_event().into_iter().chain(start).min() else { break };
        network.advance(now, &mut events);
        for event in events.drain(..) {
            match event {
                NetworkEvent::Sent { .. } => sent += 1,
                NetworkEvent::Delivered { .. } => delivered += 1,
            }
        }
        while let Some(flow) = flows.get(next).filter(|flow| flow.start == now) {
            let stream = network.open(HostId(flow.from), HostId(flow.to), None);
            network.push(stream, flow.bytes, next as u64);
            next += 1;
        }
        most = most.max(next - sent);
    }
    assert_eq!(delivered, flows.len());
    println!("{:<16} {most:>8} flows active at most", "");
}

/// Each host sends to the next one as soon as it has received from the previous one: the network's part of a ring
/// all-reduce.
fn ring(hosts: u32, rounds: u32) {
    let mut network = switch(hosts, 10.0, SimDuration::from_us(2));
    let streams: Vec<StreamId> =
        (0..hosts).map(|host| network.open(HostId(host), HostId((host + 1) % hosts), None)).collect();
    let mut left = vec![rounds - 1; hosts as usize];
    for (host, stream) in streams.iter().enumerate() {
        network.push(*stream, Bytes(1024), host as u64);
    }
    let (mut events, mut delivered) = (Vec::new(), 0);
    while let Some(now) = network.next_event() {
        network.advance(now, &mut events);
        for event in events.drain(..) {
            let NetworkEvent::Delivered { tag } = event else { continue };
            delivered += 1;
            let receiver = (tag as usize + 1) % hosts as usize;
            if left[receiver] > 0 {
                left[receiver] -= 1;
                network.push(streams[receiver], Bytes(1024), receiver as u64);
            }
        }
    }
    assert_eq!(delivered, u64::from(hosts) * u64::from(rounds));
}
