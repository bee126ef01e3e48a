//! Owns the load of each link of the network in a run.

use uniference_formats::report::LinkReport;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Listens to a run for messages.
#[derive(Default)]
pub struct Links {
    /// Load of each link, indexed by link.
    carried: Vec<Carried>,
}

#[derive(Clone, Default)]
struct Carried {
    messages: u64,
    wire_bytes: u64,
}

impl Links {
    /// The links that have carried anything, in the cluster's order, for a run of `makespan`.
    pub fn report(self, cluster: &Cluster, makespan: SimTime) -> Vec<LinkReport> {
        let seconds = makespan.as_secs_f64();
        let links = cluster.topology.links().iter().zip(self.carried).filter(|(_, carried)| carried.messages > 0);
        let report = |(link, Carried { messages, wire_bytes }): (&uniference_sim::network::Link, Carried)| {
            let bandwidth = link.bandwidth.bytes_per_second();
            let most = bandwidth * seconds;
            LinkReport {
                link: link.name.clone(),
                bandwidth,
                messages,
                wire_bytes,
                utilization: if most > 0.0 { wire_bytes as f64 / most } else { 0.0 },
            }
        };
        links.map(report).collect()
    }
}

impl Observer for Links {
    fn record(&mut self, _: SimTime, event: &Event<'_>) {
        let Event::Message { wire_bytes, links, .. } = event else { return };
        for link in *links {
            if self.carried.len() <= link.index() {
                self.carried.resize(link.index() + 1, Carried::default());
            }
            let carried = &mut self.carried[link.index()];
            carried.messages += 1;
            carried.wire_bytes += wire_bytes.0;
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }
}
