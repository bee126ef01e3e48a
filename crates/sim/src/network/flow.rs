//! Owns sharing, the slow way: every question solves the whole network anew. Stands in until the incremental solver is there.
#![allow(missing_docs)]
use super::*;
use std::collections::VecDeque;
pub struct FlowNetwork {
    topo: Topology,
    now: u64,
    streams: Vec<S>,
    flights: std::collections::BTreeMap<(u64, u64), u64>,
    n: u64,
    sent: Vec<(u64, SimTime)>,
}
struct S {
    route: Route,
    q: VecDeque<(f64, u64, SimTime)>,
    rate: f64,
}
impl FlowNetwork {
    pub fn new(topo: Topology) -> Self {
        FlowNetwork { topo, now: 0, streams: vec![], flights: Default::default(), n: 0, sent: vec![] }
    }
    fn solve(&mut self) {
        let nl = self.topo.links().len();
        let mut cap: Vec<f64> = self.topo.links().iter().map(|l| l.payload_rate().bytes_per_second() / 1e12).collect();
        let mut act: Vec<usize> = (0..self.streams.len()).filter(|i| !self.streams[*i].q.is_empty()).collect();
        while !act.is_empty() {
            let mut cnt = vec![0usize; nl];
            for &i in &act {
                for l in &self.streams[i].route.links {
                    cnt[l.index()] += 1;
                }
            }
            let Some((l, lv)) =
                (0..nl).filter(|l| cnt[*l] > 0).map(|l| (l, cap[l] / cnt[l] as f64)).min_by(|a, b| a.1.total_cmp(&b.1))
            else {
                for &i in &act {
                    self.streams[i].rate = f64::INFINITY;
                }
                return;
            };
            let (fix, rest): (Vec<usize>, Vec<usize>) =
                act.into_iter().partition(|i| self.streams[*i].route.links.iter().any(|x| x.index() == l));
            for &i in &fix {
                self.streams[i].rate = lv;
                for x in &self.streams[i].route.links {
                    cap[x.index()] -= lv;
                }
            }
            act = rest;
        }
    }
    fn fin(s: &S, now: u64) -> u64 {
        let r = s.q[0].0;
        if r <= 1e-6 || s.rate.is_infinite() { now } else { now + (r / s.rate - 1e-3).ceil() as u64 }
    }
}
impl Network for FlowNetwork {
    fn open(&mut self, from: HostId, to: HostId, _cap: Option<Rate>) -> StreamId {
        self.streams.push(S { route: self.topo.route(from, to), q: VecDeque::new(), rate: 0.0 });
        StreamId((self.streams.len() - 1) as u32)
    }
    fn push(&mut self, s: StreamId, b: Bytes, tag: u64) {
        self.streams[s.index()].q.push_back((b.0 as f64, tag, SimTime::from_ps(self.now)));
    }
    fn next_event(&mut self) -> Option<SimTime> {
        self.solve();
        let now = self.now;
        let a = self.streams.iter().filter(|s| !s.q.is_empty()).map(|s| Self::fin(s, now)).min();
        let b = self.flights.first_key_value().map(|(k, _)| k.0);
        a.into_iter().chain(b).min().map(SimTime::from_ps)
    }
    fn advance(&mut self, to: SimTime, ev: &mut Vec<NetworkEvent>) {
        self.solve();
        let to = to.as_ps();
        let now = self.now;
        let dt = (to - now) as f64;
        for s in &mut self.streams {
            if s.q.is_empty() {
                continue;
            }
            let f = Self::fin(s, now);
            if f <= to {
                let (_, tag, at) = s.q.pop_front().unwrap();
                ev.push(NetworkEvent::Sent { tag, started: at });
                self.n += 1;
                self.flights.insert((to + s.route.latency.as_ps(), self.n), tag);
            } else {
                s.q[0].0 -= s.rate * dt;
            }
        }
        self.now = to;
        while let Some((k, _)) = self.flights.first_key_value() {
            if k.0 > to {
                break;
            }
            let (_, tag) = self.flights.pop_first().unwrap();
            ev.push(NetworkEvent::Delivered { tag });
        }
        let _ = &self.sent;
    }
}
