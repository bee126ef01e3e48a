//! Owns the replay of a linked job on the recorded machine: communication lasts as long as it did after all its ranks
//! had entered it. The result should equal the recording; the difference is the error of the linked graph.

use super::Job;
use crate::chakra::replay::{Replay, Rules};
use std::sync::Arc;
use uniference_formats::chakra::read::{Nodes, ReadError};
use uniference_formats::chakra::schema::Node;
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::engine::{Engine, Resumption, Turn};
use uniference_sim::ids::{HostId, RankId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::Statistics;
use uniference_sim::program::Program;
use uniference_sim::time::{Rate, SimDuration};

impl Job {
    /// End of each rank in a replay of its trace on the recorded machine, in nanoseconds.
    ///
    /// # Errors
    /// The reason why the traces cannot be run to their end, in words.
    pub fn replay_recorded(&self) -> Result<Vec<u64>, String> {
        let world: Arc<[RankId]> = (0..self.ranks.len()).map(RankId::from).collect();
        let rules = Arc::new(Rules { recorded: true, ..Rules::of(world) });
        let listed = self.ranks.iter().map(|linked| Listed(linked.nodes.iter()));
        let mut ranks: Vec<Replay<Listed<'_>>> =
            listed.enumerate().map(|(rank, nodes)| Replay::new(RankId::from(rank), nodes, rules.clone())).collect();
        let cluster = without_latency(self.ranks.len())?;
        let (mut engine, mut statistics) = (Engine::new(&cluster), Statistics::default());
        loop {
            match engine.next(&mut statistics) {
                Turn::Resume(Resumption { rank, task, now, reply }) => {
                    let request = ranks[rank.index()].resume(now, task, reply);
                    let request = request.map_err(|error| format!("the trace of {rank}: {error}"))?;
                    engine.submit(rank, task, request);
                }
                Turn::Finished => break,
                Turn::Halted(halt) => return Err(halt.render(&|_| String::new(), &|_| Vec::new())),
                Turn::Blocked => panic!("every trace answers at once"),
            }
        }
        let finish = |rank: usize| statistics.ranks().get(rank).and_then(|rank| rank.finish);
        Ok((0..self.ranks.len()).map(|rank| finish(rank).map_or(0, |at| at.as_ps() / 1_000)).collect())
    }
}

/// A switch without latency, over which ranks meet at once.
fn without_latency(ranks: usize) -> Result<Cluster, String> {
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(format!("host.{rank}"))).collect();
    let link = LinkSpec::new(Rate::new(1e15).ok_or("no such rate")?, SimDuration::ZERO);
    let device = |rank| Device::new(format!("device.{rank}"), HostId::from(rank));
    Ok(Cluster {
        name: "the recorded machine".into(),
        devices: (0..ranks).map(device).collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).map_err(|error| error.to_string())?,
        dynamics: Default::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms: AlgorithmTable::ideal(),
            concurrency: u32::MAX,
            protocol: Default::default(),
            free: Default::default(),
        },
    })
}

struct Listed<'a>(std::slice::Iter<'a, Node>);

impl Nodes for Listed<'_> {
    fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        Ok(self.0.next().cloned())
    }
}
