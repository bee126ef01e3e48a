use super::super::oracle::max_min_rates;
use super::*;
use crate::ids::LinkId;
use crate::network::{
    Background, Duplex, GraphLink, HostRates, HostSpec, Jitter, LinkSpec, Preset, Profile, ProfilePoint,
};
use proptest::prelude::*;

/// 1 Gbit/s in bytes per second.
const GIGABIT: f64 = 125e6;
pub(in super::super) const US: u64 = 1_000_000;
pub(in super::super) const MS: u64 = 1_000 * US;

pub(in super::super) fn spec(bytes_per_second: f64, latency_ps: u64) -> LinkSpec {
    LinkSpec::new(Rate::new(bytes_per_second).unwrap(), SimDuration::from_ps(latency_ps))
}

pub(in super::super) fn switch(hosts: &[HostSpec], latency_ps: u64) -> FlowNetwork {
    FlowNetwork::new(Topology::preset(&Preset::Switch, hosts, spec(GIGABIT, latency_ps)).unwrap())
}

fn hosts(count: usize) -> Vec<HostSpec> {
    (0..count).map(|index| HostSpec::new(format!("h{index}"))).collect()
}

/// A network of links with the given numbers; streams are opened along them.
fn bare(links: &[LinkSpec]) -> FlowNetwork {
    // A chain of media, with names in sorted order.
    let node = |index: usize| format!("{index:03}");
    let link = |(index, &spec): (usize, &LinkSpec)| {
        let between = vec![node(index), node(index + 1)];
        GraphLink { between, spec, back: None, duplex: Duplex::Half }
    };
    let nodes: Vec<_> = (0..=links.len()).map(|index| HostSpec::new(node(index))).collect();
    let links: Vec<_> = links.iter().enumerate().map(link).collect();
    FlowNetwork::new(Topology::graph(&nodes, &links).unwrap())
}

/// A message: its stream, its time, its size. Its tag is its index in the list.
pub(in super::super) type Push = (StreamId, u64, u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Times {
    pub(in super::super) started: u64,
    pub(in super::super) sent: u64,
    pub(in super::super) delivered: u64,
}

/// Runs pushes, in order of time, to the end; all times are in picoseconds.
pub(in super::super) fn run(network: &mut FlowNetwork, pushes: &[Push]) -> Vec<Times> {
    let mut times = vec![Times::default(); pushes.len()];
    let (mut events, mut last) = (Vec::new(), 0);
    let mut order: Vec<usize> = (0..pushes.len()).collect();
    order.sort_by_key(|push| pushes[*push].1);
    let mut order = order.into_iter().peekable();
    loop {
        let push = order.peek().map(|push| SimTime::from_ps(pushes[*push].1));
        let Some(now) = network.next_event().into_iter().chain(push).min() else { return times };
        network.advance(now, &mut events);
        let at = now.as_ps();
        assert!(at >= last, "time went back from {last} to {at}");
        last = at;
        for event in events.drain(..) {
            match event {
                NetworkEvent::Sent { tag, started, .. } => {
                    assert_eq!(times[tag as usize].sent, 0, "message {tag} was sent twice");
                    times[tag as usize] = Times { started: started.as_ps(), sent: at, delivered: 0 };
                }
                NetworkEvent::Delivered { tag } => times[tag as usize].delivered = at,
            }
        }
        while let Some(push) = order.next_if(|push| pushes[*push].1 == at) {
            network.push(pushes[push].0, Bytes(pushes[push].2), push as u64);
        }
    }
}

/// Departure of each message's last byte, for messages between hosts of a network: (from, to, at, bytes), in
/// microseconds.
fn sent_us(network: &mut FlowNetwork, messages: &[(u32, u32, u64, u64)]) -> Vec<u64> {
    let mut open = |&(from, to, at, bytes): &_| (network.open(HostId(from), HostId(to), None), at * US, bytes);
    let pushes: Vec<_> = messages.iter().map(&mut open).collect();
    run(network, &pushes).iter().map(|times| times.sent / US).collect()
}

#[test]
fn the_last_byte_arrives_one_latency_after_it_has_left() {
    // 1 MB at 125 MB/s: 8 ms; plus 300 us once, although the route has two links.
    let mut network = switch(&hosts(2), 300 * US);
    let stream = network.open(HostId(0), HostId(1), None);
    let times = run(&mut network, &[(stream, 5 * US, 1_000_000)]);
    assert_eq!(times, [Times { started: 5 * US, sent: 5 * US + 8 * MS, delivered: 5 * US + 8 * MS + 300 * US }]);
}

#[test]
fn a_completion_is_rounded_up_to_a_picosecond() {
    // 1 B at 3 B/s
    let mut network = bare(&[spec(3.0, 0)]);
    let stream = network.open_along(Route { links: vec![LinkId(0)], latency: SimDuration::ZERO }, None);
    assert_eq!(run(&mut network, &[(stream, 0, 1)])[0].sent, 333_333_333_334);
}

#[test]
fn senders_share_the_receivers_ingress_and_a_sender_its_egress() {
    // Four hosts to one: 4 MB in total at 125 MB/s.
    let incast = [(0, 4, 0, 1_000_000), (1, 4, 0, 1_000_000), (2, 4, 0, 1_000_000), (3, 4, 0, 1_000_000)];
    assert_eq!(sent_us(&mut switch(&hosts(5), 0), &incast), [32_000; 4]);
    // One host to four: the same time.
    let egress = [(4, 0, 0, 1_000_000), (4, 1, 0, 1_000_000), (4, 2, 0, 1_000_000), (4, 3, 0, 1_000_000)];
    assert_eq!(sent_us(&mut switch(&hosts(5), 0), &egress), [32_000; 4]);
}

#[test]
fn directions_share_a_half_duplex_link_and_not_a_full_duplex_one() {
    let both_ways = [(0, 1, 0, 1_000_000), (1, 0, 0, 1_000_000)];
    for (duplex, expected) in [(Duplex::Full, 8_000), (Duplex::Half, 16_000)] {
        let link = GraphLink { between: vec!["h0".into(), "h1".into()], spec: spec(GIGABIT, 0), back: None, duplex };
        let mut network = FlowNetwork::new(Topology::graph(&hosts(2), &[link]).unwrap());
        assert_eq!(sent_us(&mut network, &both_ways), [expected; 2]);
    }
}

#[test]
fn all_share_the_channel_of_a_wireless_network() {
    // Two messages of 1 MB between different hosts: 2 MB at 125 MB/s.
    let mut network = FlowNetwork::new(Topology::preset(&Preset::Wifi, &hosts(4), spec(GIGABIT, 0)).unwrap());
    assert_eq!(sent_us(&mut network, &[(0, 1, 0, 1_000_000), (3, 2, 0, 1_000_000)]), [16_000; 2]);
}

#[test]
fn a_late_arrival_takes_its_share_from_then_on() {
    // Alone for 4 ms: 0.5 of 1 MB. Then half each: the first has 0.5 MB left: 8 ms more; then the second has 0.5 MB
    // left: 4 ms alone.
    let sent = sent_us(&mut switch(&hosts(3), 0), &[(0, 2, 0, 1_000_000), (1, 2, 4_000, 1_000_000)]);
    assert_eq!(sent, [12_000, 16_000]);
}

#[test]
fn a_slow_receiver_leaves_its_senders_egress_to_others() {
    // To h1 at 12.5 MB/s: 1 MB in 80 ms. To h2 at 125 - 12.5 = 112.5 MB/s: 9 MB in 80 ms.
    let mut hosts = hosts(3);
    hosts[1].bandwidth = Rate::new(GIGABIT / 10.0).map(HostRates::both);
    assert_eq!(sent_us(&mut switch(&hosts, 0), &[(0, 1, 0, 1_000_000), (0, 2, 0, 9_000_000)]), [80_000, 80_000]);
}

#[test]
fn a_slow_egress_leaves_its_hosts_ingress_alone() {
    // From h1 at 12.5 MB/s: 1 MB in 80 ms. To h1 at 125 MB/s, at the same time: 10 MB in 80 ms.
    let mut hosts = hosts(2);
    let rate = |rate| Rate::new(rate).unwrap();
    hosts[1].bandwidth = Some(HostRates { egress: rate(GIGABIT / 10.0), ingress: rate(GIGABIT) });
    assert_eq!(sent_us(&mut switch(&hosts, 0), &[(1, 0, 0, 1_000_000), (0, 1, 0, 10_000_000)]), [80_000, 80_000]);
}

#[test]
fn a_cap_bounds_its_stream_and_leaves_the_rest_to_others() {
    // 25 MB/s: 1 MB in 40 ms; the other stream gets 100 MB/s: 4 MB in 40 ms.
    let mut network = switch(&hosts(2), 0);
    let capped = network.open(HostId(0), HostId(1), Rate::new(25e6));
    let other = network.open(HostId(0), HostId(1), None);
    let sent: Vec<_> = run(&mut network, &[(capped, 0, 1_000_000), (other, 0, 4_000_000)]);
    assert_eq!([sent[0].sent, sent[1].sent], [40 * MS, 40 * MS]);
}

#[test]
fn headers_slow_a_stream_down() {
    // 1448 of 1514 bytes: 1 MB / (125 MB/s * 1448 / 1514) = 8364.64 us
    let overhead = Some(crate::network::PacketOverhead { payload: 1448, wire: 1514 });
    let link = LinkSpec { overhead, ..spec(GIGABIT, 0) };
    let mut network = FlowNetwork::new(Topology::preset(&Preset::Switch, &hosts(2), link).unwrap());
    assert_eq!(sent_us(&mut network, &[(0, 1, 0, 1_000_000)]), [8_364]);
}

#[test]
fn a_stream_keeps_its_messages_in_order_and_is_one_flow() {
    // Two messages of 1 MB on one stream, and one of 1 MB on another: half each, so the first messages of both streams
    // end after 16 ms; the second message is then alone: 8 ms. The empty message behind it adds only the latency.
    let mut network = switch(&hosts(3), 100 * US);
    let [one, other] = [0, 1].map(|from| network.open(HostId(from), HostId(2), None));
    let times = run(&mut network, &[(one, 0, 1_000_000), (one, 0, 1_000_000), (one, 0, 0), (other, 0, 1_000_000)]);
    let expected = |started, sent| Times { started, sent, delivered: sent + 100 * US };
    let all = [expected(0, 16 * MS), expected(16 * MS, 24 * MS), expected(24 * MS, 24 * MS), expected(0, 16 * MS)];
    assert_eq!(times, all);
}

#[test]
fn a_stream_that_goes_on_at_once_disturbs_nobody() {
    let mut network = switch(&hosts(3), 0);
    let [one, other] = [0, 1].map(|from| network.open(HostId(from), HostId(2), None));
    network.push(one, Bytes(1_000_000), 0);
    network.push(other, Bytes(1_000_000), 1);
    let mut events = Vec::new();
    let end = network.next_event().unwrap();
    network.advance(end, &mut events);
    // Without latency, both messages are delivered as they are sent; the next messages are pushed at the same instant.
    assert_eq!(events.len(), 4);
    network.push(one, Bytes(1_000_000), 2);
    network.push(other, Bytes(1_000_000), 3);
    // 2 MB at 125 MB/s
    assert_eq!(network.next_event().unwrap().since(end).as_ps(), 16 * MS);
}

#[test]
fn messages_without_bytes_take_the_latency_only() {
    let mut network = switch(&hosts(2), 100 * US);
    let stream = network.open(HostId(0), HostId(1), None);
    let times = run(&mut network, &[(stream, 7, 0), (stream, 7, 0)]);
    assert_eq!(times, [Times { started: 7, sent: 7, delivered: 7 + 100 * US }; 2]);
}

#[test]
fn a_host_sends_to_itself_at_once_or_over_its_local_link() {
    let mut hosts = hosts(2);
    hosts[1].local = Some(spec(GIGABIT, 3 * US));
    let mut network = switch(&hosts, 100 * US);
    let [free, local] = [0, 1].map(|host| network.open(HostId(host), HostId(host), None));
    let times = run(&mut network, &[(free, 9, 1_000_000), (local, 9, 1_000_000)]);
    assert_eq!(times[0], Times { started: 9, sent: 9, delivered: 9 });
    assert_eq!(times[1], Times { started: 9, sent: 9 + 8 * MS, delivered: 9 + 8 * MS + 3 * US });
}

/// Three hosts on a switch at 1 Gbit/s without latency, with changes.
fn changing(dynamics: Dynamics) -> FlowNetwork {
    FlowNetwork::changing(Topology::preset(&Preset::Switch, &hosts(3), spec(GIGABIT, 0)).unwrap(), dynamics)
}

/// The link out of host 0 changes.
fn out_of_host_0(change: LinkDynamics) -> Dynamics {
    let link = switch(&hosts(3), 0).topology.route(HostId(0), HostId(1)).links[0];
    Dynamics { links: BTreeMap::from([(link, change)]), ..Dynamics::default() }
}

fn at_ms(ms: u64) -> SimTime {
    SimTime::from_ps(ms * MS)
}

fn point(ms: u64, rate: f64) -> ProfilePoint {
    ProfilePoint { at: SimDuration::from_ps(ms * MS), bandwidth: Rate::new(rate), latency: None }
}

#[test]
fn an_outage_holds_a_stream_up_for_its_length() {
    // 1 MB at 125 MB/s: 4 ms before the outage, 10 ms of outage, and the other 4 ms.
    let outages = vec![(at_ms(4), at_ms(14))];
    let mut network = changing(out_of_host_0(LinkDynamics { outages, ..LinkDynamics::default() }));
    // Another sender is not affected.
    let messages = [(0, 1, 0, 1_000_000), (1, 2, 0, 1_000_000)];
    assert_eq!(sent_us(&mut network, &messages), [18_000, 8_000]);
}

#[test]
fn bandwidth_follows_a_profile() {
    // 3 MB: 0.5 MB in 4 ms at 125 MB/s, 0.25 MB in 4 ms at 62.5 MB/s, and the other 2.25 MB at 125 MB/s, the
    // receiver's: 18 ms.
    let points = [point(4, GIGABIT / 2.0), point(8, 10.0 * GIGABIT)].into();
    let profile = Some(Profile { points, period: None });
    let mut network = changing(out_of_host_0(LinkDynamics { profile, ..LinkDynamics::default() }));
    assert_eq!(sent_us(&mut network, &[(0, 1, 0, 3_000_000)]), [26_000]);
}

#[test]
fn latency_is_that_of_the_moment_at_which_a_message_leaves() {
    let slow = ProfilePoint { latency: Some(SimDuration::from_ps(5 * MS)), ..point(1, GIGABIT) };
    let profile = Some(Profile { points: [slow, point(3, GIGABIT)].into(), period: None });
    let mut network = changing(out_of_host_0(LinkDynamics { profile, ..LinkDynamics::default() }));
    let stream = network.open(HostId(0), HostId(1), None);
    // Departures at 0, 2 and 4 ms: latencies of 0 and 5 ms, and then 0 again, but no message overtakes the previous
    // one.
    let times = run(&mut network, &[(stream, 0, 0), (stream, 2 * MS, 0), (stream, 4 * MS, 0), (stream, 9 * MS, 0)]);
    assert_eq!(times.iter().map(|times| times.delivered / MS).collect::<Vec<_>>(), [0, 7, 7, 9]);
}

#[test]
fn others_traffic_takes_its_share_while_it_lasts() {
    let traffic = |rate| Background { from: HostId(0), to: HostId(2), rate, start: at_ms(2), end: Some(at_ms(10)) };
    let with = |rate| changing(Dynamics { background: vec![traffic(rate)], ..Dynamics::default() });
    // 1 MB: 0.25 MB in 2 ms alone, 0.5 MB in 8 ms at half of 125 MB/s, and the rest alone in 2 ms.
    assert_eq!(sent_us(&mut with(None), &[(0, 1, 0, 1_000_000)]), [12_000]);
    // At most 25 MB/s: 100 are left for the other 0.75 MB.
    assert_eq!(sent_us(&mut with(Rate::new(25e6)), &[(0, 1, 0, 1_000_000)]), [9_500]);
    // Background traffic alone is no event.
    assert_eq!(with(None).next_event(), None);
}

#[test]
fn jitter_delays_messages_and_keeps_their_order() {
    let jitter = Some(Jitter::Uniform { max: SimDuration::from_ps(MS) });
    let dynamics = |seed| Dynamics { seed, ..out_of_host_0(LinkDynamics { jitter, ..LinkDynamics::default() }) };
    let times = |seed| {
        let mut network = changing(dynamics(seed));
        let stream = network.open(HostId(0), HostId(1), None);
        let pushes: Vec<Push> = (0..50).map(|n| (stream, n * 100 * US, 1)).collect();
        run(&mut network, &pushes)
    };
    let seen = times(1);
    let flights: Vec<u64> = seen.iter().map(|times| times.delivered - times.sent).collect();
    assert!(seen.windows(2).all(|pair| pair[0].delivered <= pair[1].delivered));
    assert!(flights.iter().all(|flight| *flight <= MS) && flights.iter().any(|flight| *flight > MS / 2));
    assert_eq!(times(1), seen);
    assert_ne!(times(2), seen);
}

#[test]
#[should_panic(expected = "cannot skip")]
fn what_happens_cannot_be_skipped() {
    let mut network = switch(&hosts(2), 0);
    let stream = network.open(HostId(0), HostId(1), None);
    network.push(stream, Bytes(1), 0);
    network.advance(SimTime::from_ps(1_000_000_000), &mut Vec::new());
}

#[test]
fn what_ends_after_the_end_of_time_is_never() {
    let mut network = bare(&[spec(1e-9, 0)]);
    let stream = network.open_along(Route { links: vec![LinkId(0)], latency: SimDuration::ZERO }, None);
    network.push(stream, Bytes(u64::MAX), 0);
    assert_eq!(network.next_event(), Some(SimTime::MAX));
}

/// A flow in SimGrid: it enters the network at start + latency, and finishes when its last byte has left.
struct SimGridFlow {
    links: &'static [u32],
    start_us: u64,
    megabytes: u64,
    finish_s: f64,
}

const fn flow(links: &'static [u32], start_us: u64, megabytes: u64, finish_s: f64) -> SimGridFlow {
    SimGridFlow { links, start_us, megabytes, finish_s }
}

/// Finish times equal those of SimGrid 3.32 and 4.1 (CM02 without RTT bias), within 1e-9 s + 1e-9 relative.
fn assert_equals_simgrid(links: &[(f64, u64)], flows: &[SimGridFlow]) {
    let links: Vec<_> = links.iter().map(|&(rate, latency_us)| spec(rate, latency_us * US)).collect();
    let mut network = bare(&links);
    let mut push = |flow: &SimGridFlow| {
        let latency = flow.links.iter().map(|link| links[*link as usize].latency).sum::<SimDuration>();
        let route = Route { links: flow.links.iter().copied().map(LinkId).collect(), latency };
        (network.open_along(route, None), flow.start_us * US + latency.as_ps(), flow.megabytes * 1_000_000)
    };
    let pushes: Vec<_> = flows.iter().map(&mut push).collect();
    for (times, flow) in run(&mut network, &pushes).iter().zip(flows) {
        let finish = SimTime::from_ps(times.sent).as_secs_f64();
        assert!((finish - flow.finish_s).abs() <= 1e-9 + 1e-9 * flow.finish_s, "{finish}, not {}", flow.finish_s);
    }
}

#[test]
fn simgrid_two_flows_on_one_link() {
    // Alone until 0.501 s: 62.5 of 100 MB; then half each, 62.5 MB/s: 0.6 s for the 37.5 MB left; the other has 12.5 MB
    // left: 0.1 s.
    assert_equals_simgrid(&[(GIGABIT, 1_000)], &[flow(&[0], 0, 100, 1.101), flow(&[0], 500_000, 50, 1.201)]);
}

const INCAST: [(f64, u64); 9] = [(GIGABIT, 100); 9];

#[test]
fn simgrid_incast_of_equal_sizes() {
    // 8 * 10 MB / 125 MB/s + 200 us
    const ROUTES: [&[u32]; 8] = [&[0, 8], &[1, 8], &[2, 8], &[3, 8], &[4, 8], &[5, 8], &[6, 8], &[7, 8]];
    assert_equals_simgrid(&INCAST, &ROUTES.map(|route| flow(route, 0, 10, 0.6402)));
}

#[test]
fn simgrid_incast_of_growing_sizes() {
    // The k-th flow ends (9 - k) * 1 MB / 125 MB/s after the previous one.
    let flows = [
        flow(&[0, 8], 0, 1, 0.0642),
        flow(&[1, 8], 0, 2, 0.1202),
        flow(&[2, 8], 0, 3, 0.1682),
        flow(&[3, 8], 0, 4, 0.2082),
        flow(&[4, 8], 0, 5, 0.2402),
        flow(&[5, 8], 0, 6, 0.2642),
        flow(&[6, 8], 0, 7, 0.2802),
        flow(&[7, 8], 0, 8, 0.2882),
    ];
    assert_equals_simgrid(&INCAST, &flows);
}

#[test]
fn simgrid_parking_lot() {
    // Short flows enter after 50 us and are alone for 100 us; the long one then gets half of every link.
    let flows = [
        flow(&[0, 1, 2], 0, 50, 0.80005),
        flow(&[0], 0, 50, 0.79995),
        flow(&[1], 0, 50, 0.79995),
        flow(&[2], 0, 50, 0.79995),
    ];
    assert_equals_simgrid(&[(GIGABIT, 50); 3], &flows);
}

#[test]
fn simgrid_parking_lot_of_unequal_links() {
    // The long flow gets half of the slowest link, 15.625 MB/s; the short ones the rest: 109.375, 46.875 and 15.625
    // MB/s.
    let flows = [
        flow(&[0, 1, 2], 0, 50, 3.20005),
        flow(&[0], 0, 50, 0.457_178_571_428_571_4),
        flow(&[1], 0, 50, 1.066_683_333_333_333_2),
        flow(&[2], 0, 50, 3.19995),
    ];
    assert_equals_simgrid(&[(GIGABIT, 50), (GIGABIT / 2.0, 50), (GIGABIT / 4.0, 50)], &flows);
}

#[derive(Clone, Debug)]
struct Scenario {
    capacities: Vec<f64>,
    /// Links of each stream, and its cap.
    streams: Vec<(Vec<u32>, Option<f64>)>,
    /// (Stream, picosecond, bytes), in order of time.
    pushes: Vec<(usize, u64, u64)>,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    (2..8usize, 1..10usize).prop_flat_map(|(links, streams)| {
        let capacity = || prop_oneof![prop::sample::select(vec![1e3, 2e3, 3e3]), 100.0..1e4f64];
        let route = prop::collection::btree_set(0..links as u32, 1..=links.min(3));
        let stream = (route.prop_map(|set| set.into_iter().collect()), prop::option::weighted(0.3, capacity()));
        let at = prop_oneof![Just(0), 0..4_000_000_000_000u64];
        let bytes = prop_oneof![4 => 1..3_000u64, 1 => Just(0)];
        let pushes = prop::collection::vec((0..streams, at, bytes), 1..25);
        (prop::collection::vec(capacity(), links), prop::collection::vec(stream, streams), pushes).prop_map(
            |(capacities, streams, mut pushes)| {
                pushes.sort_by_key(|push| push.1);
                Scenario { capacities, streams, pushes }
            },
        )
    })
}

impl Scenario {
    const LATENCY: u64 = 1_000;

    /// Runs the scenario with streams opened in this order.
    fn run(&self, order: &[usize]) -> Vec<Times> {
        let links: Vec<_> = self.capacities.iter().map(|capacity| spec(*capacity, Self::LATENCY)).collect();
        let mut network = bare(&links);
        let mut ids = vec![StreamId(0); self.streams.len()];
        for &stream in order {
            let (links, cap) = &self.streams[stream];
            let latency = SimDuration::from_ps(Self::LATENCY * links.len() as u64);
            let route = Route { links: links.iter().copied().map(LinkId).collect(), latency };
            ids[stream] = network.open_along(route, cap.map(|rate| Rate::new(rate).unwrap()));
        }
        let pushes: Vec<_> = self.pushes.iter().map(|&(stream, at, bytes)| (ids[stream], at, bytes)).collect();
        run(&mut network, &pushes)
    }

    /// Departure of each message in seconds, computed in real numbers: between two events, messages leave at the
    /// oracle's rates.
    fn fluid(&self) -> Vec<f64> {
        const QUANTA: f64 = (1_u64 << 40) as f64;
        let mut capacities = self.capacities.clone();
        let mut routes: Vec<Vec<u32>> = self.streams.iter().map(|(links, _)| links.clone()).collect();
        for (route, cap) in routes.iter_mut().zip(self.streams.iter().map(|(_, cap)| cap)) {
            route.extend(cap.map(|_| capacities.len() as u32));
            capacities.extend(cap);
        }
        let capacities: Vec<u64> = capacities.into_iter().map(|rate| (rate * QUANTA) as u64).collect();
        let mut sent = vec![f64::NAN; self.pushes.len()];
        let mut queues: Vec<VecDeque<(usize, f64)>> = vec![VecDeque::new(); routes.len()];
        let (mut now, mut next) = (0.0, 0);
        loop {
            for queue in &mut queues {
                while let Some(&(message, _)) = queue.front().filter(|(_, left)| *left <= 1e-7) {
                    queue.pop_front();
                    sent[message] = now;
                }
            }
            let busy: Vec<_> = (0..queues.len()).filter(|stream| !queues[*stream].is_empty()).collect();
            let rates = max_min_rates(&capacities, &busy.iter().map(|at| routes[*at].clone()).collect::<Vec<_>>());
            let rates: Vec<f64> = rates.into_iter().map(|quanta| quanta as f64 / QUANTA).collect();
            let ends = busy.iter().zip(&rates).map(|(stream, rate)| now + queues[*stream][0].1 / rate);
            let push = self.pushes.get(next).map(|push| push.1 as f64 / 1e12);
            let Some(to) = ends.chain(push).min_by(f64::total_cmp) else { return sent };
            for (stream, rate) in busy.iter().zip(&rates) {
                queues[*stream][0].1 -= rate * (to - now);
            }
            now = to;
            while let Some((stream, _, bytes)) = self.pushes.get(next).filter(|push| push.1 as f64 / 1e12 <= now) {
                queues[*stream].push_back((next, *bytes as f64));
                next += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Every message is sent and delivered once, messages of one stream in order, at the time at which a fluid with the
    /// oracle's rates would arrive.
    #[test]
    fn messages_take_the_time_that_fair_rates_give_them(scenario in scenarios()) {
        let order: Vec<usize> = (0..scenario.streams.len()).collect();
        let times = scenario.run(&order);
        let mut free = vec![0; scenario.streams.len()];
        for ((times, fluid), &(stream, at, bytes)) in times.iter().zip(scenario.fluid()).zip(&scenario.pushes) {
            prop_assert_eq!(times.started, at.max(free[stream]));
            prop_assert_eq!(times.delivered, times.sent + Scenario::LATENCY * scenario.streams[stream].0.len() as u64);
            prop_assert!(bytes == 0 || times.sent > times.started);
            let sent = SimTime::from_ps(times.sent).as_secs_f64();
            prop_assert!((sent - fluid).abs() <= 1e-9 + 1e-9 * fluid, "{} instead of {}", sent, fluid);
            free[stream] = times.sent;
        }
    }

    /// Stream ids are only names: no time depends on them.
    #[test]
    fn the_order_in_which_streams_are_opened_does_not_matter(scenario in scenarios(), turn in any::<prop::sample::Index>()) {
        let mut order: Vec<usize> = (0..scenario.streams.len()).collect();
        let one = scenario.run(&order);
        prop_assert_eq!(&one, &scenario.run(&order), "two runs differ");
        order.rotate_left(turn.index(scenario.streams.len()));
        order.reverse();
        prop_assert_eq!(one, scenario.run(&order), "opened as {:?}", order);
    }
}

/// Names of the links that held the messages back. All messages are pushed at once, each on a stream of its own with
/// the rate cap `cap`.
fn limited(topology: &Topology, messages: &[(u32, u32, u64)], cap: Option<Rate>) -> Vec<Option<String>> {
    let mut network = FlowNetwork::new(topology.clone());
    for (tag, (from, to, bytes)) in messages.iter().enumerate() {
        let stream = network.open(HostId(*from), HostId(*to), cap);
        network.push(stream, Bytes(*bytes), tag as u64);
    }
    let (mut limits, mut events) = (vec![None; messages.len()], Vec::new());
    while let Some(at) = network.next_event() {
        network.advance(at, &mut events);
        for event in events.drain(..) {
            if let NetworkEvent::Sent { tag, limit, .. } = event {
                limits[tag as usize] = limit.map(|link| topology.link(link).name.clone());
            }
        }
    }
    limits
}

/// Topology of two pairs of hosts on two switches with one trunk between the switches; all links are equally fast.
fn trunk() -> Topology {
    let link = |a: &str, b: &str| GraphLink {
        between: vec![a.to_owned(), b.to_owned()],
        spec: spec(GIGABIT, 0),
        back: None,
        duplex: Duplex::Full,
    };
    let links = [link("h0", "a"), link("h1", "a"), link("h2", "b"), link("h3", "b"), link("a", "b")];
    Topology::graph(&hosts(4), &links).unwrap()
}

#[test]
fn a_message_names_the_link_that_held_it_back() {
    let named = |name: &str| Some(name.to_owned());
    // Two streams get half of the trunk each.
    assert_eq!(limited(&trunk(), &[(0, 2, 1_000_000), (1, 3, 1_000_000)], None), [named("a -> b"), named("a -> b")]);
    // A single stream could fill every link of its route; the first link is named.
    assert_eq!(limited(&trunk(), &[(0, 2, 1_000_000)], None), [named("h0 -> a")]);
    // Two streams share the receiver's link.
    assert_eq!(limited(&trunk(), &[(0, 2, 1_000_000), (3, 2, 1_000_000)], None), [named("b -> h2"), named("b -> h2")]);
    // The trunk is full from the beginning of the longer message to its end, also once the other message has left.
    let longest = |bytes| limited(&trunk(), &[(0, 2, bytes), (1, 3, 1_000_000)], None)[0].clone();
    assert_eq!([2_000_000, 4_000_000].map(longest), [named("a -> b"), named("a -> b")]);
    // A message that is limited by a rate cap below all links' shares names no link, and so does a message without
    // bytes.
    assert_eq!(limited(&trunk(), &[(0, 2, 1_000_000)], Rate::new(GIGABIT / 2.0)), [None]);
    assert_eq!(limited(&trunk(), &[(0, 2, 0)], None), [None]);
}

#[test]
fn an_oversubscribed_leaf_holds_back_whatever_leaves_it() {
    // The uplink that four hosts share is as fast as the link of each host.
    let tree = Preset::FatTree { hosts_per_leaf: 4, spines: 1, oversubscription: 4.0 };
    let topology = Topology::preset(&tree, &hosts(8), spec(GIGABIT, 0)).unwrap();
    let messages: Vec<(u32, u32, u64)> = (0..4).map(|host| (host, host + 4, 1_000_000)).collect();
    let limits = limited(&topology, &messages, None);
    assert_eq!(limits, vec![Some("leaf.0 -> spine.0".to_owned()); 4]);
    // The downlink of the other leaf is full too. The first full link on the route is named, whatever the order of the
    // messages.
    let reversed: Vec<(u32, u32, u64)> = messages.iter().rev().copied().collect();
    assert_eq!(limited(&topology, &reversed, None), limits);
}
