use super::super::flow::tests::{MS, Push, US, run, spec, switch};
use super::super::oracle::max_min_rates;
use crate::ids::{HostId, LinkId};
use crate::network::{
    Dynamics, FlowNetwork, HostRates, HostSpec, LinkDynamics, LinkSpec, Network, Preset, Profile, ProfilePoint,
    Topology,
};
use crate::time::{Bytes, Rate, SimDuration, SimTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const MEGABYTE: u64 = 1_000_000;
/// Rates in bytes per second.
const FAST: f64 = 100e6;
const SLOW: f64 = 10e6;

/// Hosts of these rates on a switch with queues of the given size in front of each host.
fn hosts(rates: &[f64], queue: u64) -> Vec<HostSpec> {
    let host = |(index, rate): (usize, &f64)| HostSpec {
        bandwidth: Rate::new(*rate).map(HostRates::both),
        queue: Some(Bytes(queue)),
        ..HostSpec::new(format!("h{index}"))
    };
    rates.iter().enumerate().map(host).collect()
}

/// Departures and arrivals of messages (from, to, at, bytes), in microseconds.
fn times_us(network: &mut FlowNetwork, messages: &[(u32, u32, u64, u64)]) -> Vec<(u64, u64)> {
    let mut open = |&(from, to, at, bytes): &_| (network.open(HostId(from), HostId(to), None), at * US, bytes);
    let pushes: Vec<Push> = messages.iter().map(&mut open).collect();
    run(network, &pushes).iter().map(|times| (times.sent / US, times.delivered / US)).collect()
}

#[test]
fn what_a_host_cannot_take_yet_waits_and_holds_nobody_back() {
    // Two hosts send 1 MB each at 100 MB/s, in 10 ms. The receiver accepts 100 MB/s: 1 MB is queued then, 10 ms more.
    // Plus 5 ms of latency.
    let mut network = switch(&hosts(&[FAST; 3], 2 * MEGABYTE), 5 * MS);
    let messages = [(0, 2, 0, MEGABYTE), (1, 2, 0, MEGABYTE)];
    assert_eq!(times_us(&mut network, &messages), [(10_000, 25_000); 2]);
}

#[test]
fn a_full_queue_holds_senders_back() {
    // The excess is 100 MB/s: a queue of 0.5 MB is full after 5 ms. The remaining 0.5 MB of each leave at half of 100
    // MB/s, and then wait 5 ms in the queue.
    let mut network = switch(&hosts(&[FAST; 3], MEGABYTE / 2), 0);
    let messages = [(0, 2, 0, MEGABYTE), (1, 2, 0, MEGABYTE)];
    assert_eq!(times_us(&mut network, &messages), [(15_000, 20_000); 2]);
    // A queue of size zero is equal to no queue.
    let mut network = switch(&hosts(&[FAST; 3], 0), 0);
    assert_eq!(times_us(&mut network, &messages), [(20_000, 20_000); 2]);
}

#[test]
fn a_small_message_waits_behind_what_came_before_it() {
    // The receiver has 10 MB/s: 0.9 MB are queued after 10 ms, when the large message has left. The small one waits 90
    // ms, less the 1 ms of its own arrival (0.1 MB at 100 MB/s), plus its own bytes: 10 + 1 + 90 - 1 + 10 ms. An empty
    // message to another host does not wait.
    let mut network = switch(&hosts(&[FAST, FAST, SLOW, FAST], 2 * MEGABYTE), 0);
    let messages = [(0, 2, 0, MEGABYTE), (1, 2, 10_000, MEGABYTE / 10), (1, 3, 10_000, 0)];
    assert_eq!(times_us(&mut network, &messages), [(10_000, 100_000), (11_000, 110_000), (10_000, 10_000)]);
}

#[test]
fn a_queue_takes_its_part_of_the_senders_egress() {
    // To the slow host and to a fast one, half of 100 MB/s each as long as the queue has room: 1 MB in 20 ms; once the
    // queue is full, 91 MB/s: 11 ms.
    let messages = [(0, 1, 0, MEGABYTE), (0, 2, 0, MEGABYTE)];
    let sent = |queue| times_us(&mut switch(&hosts(&[FAST, SLOW, FAST], queue), 0), &messages)[1].0;
    assert_eq!([sent(MEGABYTE), sent(0)], [20_000, 11_111]);
}

#[test]
fn a_queue_empties_as_fast_as_the_link_is_at_the_time() {
    // 1 MB is queued at 10 ms, while the link has 10 MB/s from 5 ms to 25 ms and 100 MB/s otherwise: 0.5 MB have left
    // by 5 ms, 0.2 MB more by 25 ms, and the other 1.3 MB last 13 ms.
    let point = |at, rate| ProfilePoint { at: SimDuration::from_ps(at), bandwidth: Rate::new(rate), latency: None };
    let points = [point(5 * MS, SLOW), point(25 * MS, FAST)].into();
    let link = LinkDynamics { profile: Some(Profile { points, period: None }), ..LinkDynamics::default() };
    let topology = Topology::preset(&Preset::Switch, &hosts(&[FAST; 3], 2 * MEGABYTE), spec(FAST, 0)).unwrap();
    let dynamics = Dynamics { links: BTreeMap::from([(LinkId(5), link)]), ..Dynamics::default() };
    let messages = [(0, 2, 0, MEGABYTE), (1, 2, 0, MEGABYTE)];
    assert_eq!(times_us(&mut FlowNetwork::changing(topology, dynamics), &messages), [(10_000, 38_000); 2]);
}

#[derive(Clone, Debug)]
struct Scenario {
    /// The rate of each host's link.
    rates: Vec<f64>,
    queue: u64,
    /// Streams: from, to.
    streams: Vec<(u32, u32)>,
    /// (Stream, microsecond, bytes), in order of time.
    pushes: Vec<(usize, u64, u64)>,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    (3..6u32, 1..8usize).prop_flat_map(|(hosts, streams)| {
        let rate = prop_oneof![prop::sample::select(vec![1e3, 2e3, 1e4]), 500.0..2e4f64];
        let ends = (0..hosts, 1..hosts).prop_map(move |(from, steps)| (from, (from + steps) % hosts));
        let pushes = prop::collection::vec((0..streams, 0..3_000_000u64, 0..4_000u64), 1..20);
        let queue = prop_oneof![1 => Just(0), 4 => 1..5_000u64];
        let rates = prop::collection::vec(rate, hosts as usize);
        (rates, queue, prop::collection::vec(ends, streams), pushes).prop_map(|(rates, queue, streams, mut pushes)| {
            pushes.sort_by_key(|push| push.1);
            Scenario { rates, queue, streams, pushes }
        })
    })
}

/// State of a switch's queue for a host, in real numbers.
#[derive(Clone, Default)]
struct Held {
    inflow: f64,
    waiting: f64,
    carried: f64,
    closed: bool,
    messages: VecDeque<(f64, usize)>,
}

impl Scenario {
    fn run(&self) -> Vec<(f64, f64)> {
        let mut network = switch(&hosts(&self.rates, self.queue), 0);
        let ids: Vec<_> =
            self.streams.iter().map(|(from, to)| network.open(HostId(*from), HostId(*to), None)).collect();
        let pushes: Vec<Push> = self.pushes.iter().map(|&(of, at, bytes)| (ids[of], at * US, bytes)).collect();
        let seconds = |ps| SimTime::from_ps(ps).as_secs_f64();
        run(&mut network, &pushes).iter().map(|times| (seconds(times.sent), seconds(times.delivered))).collect()
    }

    /// Rates of the streams with bytes to send, by the oracle, with the links of full queues closed.
    fn rates(&self, busy: &[usize], held: &mut [Held]) -> Vec<f64> {
        const QUANTA: f64 = (1_u64 << 40) as f64;
        let hosts = self.rates.len();
        let routes: Vec<_> =
            busy.iter().map(|of| vec![self.streams[*of].0, hosts as u32 + self.streams[*of].1]).collect();
        loop {
            let closed = held.iter().zip(&self.rates).map(|(held, rate)| if held.closed { *rate } else { 1e6 });
            let capacities: Vec<u64> =
                self.rates.iter().copied().chain(closed).map(|rate| (rate * QUANTA) as u64).collect();
            let rates: Vec<f64> =
                max_min_rates(&capacities, &routes).iter().map(|rate| *rate as f64 / QUANTA).collect();
            let into = |host: usize| {
                let of = busy.iter().zip(&rates).filter(|(of, _)| self.streams[**of].1 as usize == host);
                of.map(|(_, rate)| rate).sum::<f64>()
            };
            held.iter_mut().enumerate().for_each(|(host, held)| held.inflow = into(host));
            let full = |(host, held): (usize, &Held)| {
                !held.closed
                    && held.waiting >= self.queue as f64 - 1e-7
                    && held.inflow > self.rates[host] * (1.0 + 1e-9)
            };
            let overflowing: Vec<usize> = (0..hosts).filter(|host| full((*host, &held[*host]))).collect();
            if overflowing.is_empty() {
                return rates;
            }
            overflowing.into_iter().for_each(|host| held[host].closed = true);
        }
    }

    /// Departure and arrival of each message, from event to event, in real numbers.
    fn fluid(&self) -> Vec<(f64, f64)> {
        let mut times = vec![(f64::NAN, f64::NAN); self.pushes.len()];
        let mut queues: Vec<VecDeque<(usize, f64)>> = vec![VecDeque::new(); self.streams.len()];
        let mut held = vec![Held::default(); self.rates.len()];
        let (mut now, mut next) = (0.0, 0);
        loop {
            for (of, queue) in queues.iter_mut().enumerate() {
                while let Some(&(message, _)) = queue.front().filter(|(_, left)| *left <= 1e-7) {
                    queue.pop_front();
                    times[message].0 = now;
                    let held = &mut held[self.streams[of].1 as usize];
                    held.messages.push_back((held.carried + held.waiting, message));
                }
            }
            for held in &mut held {
                while let Some(&(_, message)) = held.messages.front().filter(|(mark, _)| *mark <= held.carried + 1e-7) {
                    held.messages.pop_front();
                    times[message].1 = now;
                }
                held.closed = false;
            }
            let busy: Vec<_> = (0..queues.len()).filter(|stream| !queues[*stream].is_empty()).collect();
            let rates = self.rates(&busy, &mut held);
            let ends = busy.iter().zip(&rates).map(|(of, rate)| now + queues[*of][0].1 / rate);
            let changes = held.iter().zip(&self.rates).flat_map(|(held, capacity)| {
                let surplus = held.inflow - capacity;
                let room = self.queue as f64 - held.waiting;
                let full = (!held.closed && surplus > 1e-9 * capacity && room > 1e-7).then(|| now + room / surplus);
                let leaves = held.messages.front().map(|(mark, _)| now + (mark - held.carried) / capacity);
                [full, leaves].into_iter().flatten()
            });
            let push = self.pushes.get(next).map(|push| push.1 as f64 / 1e6);
            let Some(to) = ends.chain(changes).chain(push).min_by(f64::total_cmp) else { return times };
            for (of, rate) in busy.iter().zip(&rates) {
                queues[*of][0].1 -= rate * (to - now);
            }
            for (held, capacity) in held.iter_mut().zip(&self.rates) {
                let came = held.waiting + held.inflow * (to - now);
                let carried = came.min(capacity * (to - now));
                (held.waiting, held.carried) = (came - carried, held.carried + carried);
            }
            now = to;
            while let Some((of, _, bytes)) = self.pushes.get(next).filter(|push| push.1 as f64 / 1e6 <= now) {
                queues[*of].push_back((next, *bytes as f64));
                next += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Messages leave and arrive at the times of a fluid with queues, computed from scratch at every event.
    #[test]
    fn messages_wait_as_a_fluid_does(scenario in scenarios()) {
        for (found, fluid) in scenario.run().into_iter().zip(scenario.fluid()) {
            for (found, fluid) in [(found.0, fluid.0), (found.1, fluid.1)] {
                prop_assert!((found - fluid).abs() <= 1e-8 + 1e-8 * fluid, "{} instead of {}", found, fluid);
            }
        }
    }

    /// No link idles because of a queue: if all hosts are equal and one receives, all messages have arrived by the same
    /// instant as without queues.
    #[test]
    fn queues_cost_nothing_on_the_whole(queue in 1..5_000u64, pushes in prop::collection::vec((0..3u32, 0..2_000_000u64, 1..4_000u64), 1..20)) {
        let last = |queue| {
            let mut network = switch(&hosts(&[1e4; 4], queue), 0);
            let ids: Vec<_> = (0..3).map(|from| network.open(HostId(from), HostId(3), None)).collect();
            let mut pushes: Vec<Push> = pushes.iter().map(|&(of, at, bytes)| (ids[of as usize], at * US, bytes)).collect();
            pushes.sort_by_key(|push| push.1);
            run(&mut network, &pushes).iter().map(|times| times.delivered).max().unwrap()
        };
        prop_assert!(last(queue).abs_diff(last(0)) < 1_000, "{} and {} ps", last(queue), last(0));
    }
}

#[test]
fn headers_take_room_too() {
    // 1448 of 1514 queued bytes are payload, and rates are payload rates as well: 2 to 1 into 100 MB/s fill a queue of
    // 1.5 MB in 15 ms.
    let overhead = Some(crate::network::PacketOverhead { payload: 1448, wire: 1514 });
    let link = LinkSpec { overhead, queue: Some(Bytes(1_500_000)), ..spec(FAST, 0) };
    let plain: Vec<HostSpec> = (0..3).map(|index| HostSpec::new(format!("h{index}"))).collect();
    let mut network = FlowNetwork::new(Topology::preset(&Preset::Switch, &plain, link).unwrap());
    // Each sender has sent 15 ms of payload by then; the same amount again leaves at half of the rate, in 30 ms.
    let payload = (FAST * 0.030 * 1448.0 / 1514.0) as u64;
    let sent = times_us(&mut network, &[(0, 2, 0, payload), (1, 2, 0, payload)]);
    assert!(sent[0].0.abs_diff(45_000) <= 1 && sent[0].1.abs_diff(60_000) <= 1, "{sent:?}");
}
