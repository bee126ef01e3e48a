//! Owns the nodes of a text workload's layers. Names, order and dependencies are those of Chakra's text converter for
//! the policies that it supports; a transformer's are those of SimAI's
//! `iterate_hybrid_parallel_Transformer_fwd_in_bckwd`.
//!
//! Work without duration or bytes has no node, and its dependents depend on its dependencies; Chakra's converter writes
//! an all-reduce of 0 bytes for `NONE`.

use super::{Communication, Layer, Policy, Scope, TextWorkload, Work};
use uniference_formats::chakra::attributes::{COMM_SIZE, COMM_TYPE, IS_CPU_OP, PG_NAME};
use uniference_formats::chakra::groups::describe;
use uniference_formats::chakra::own::DURATION_PS;
use uniference_formats::chakra::schema::{Attribute, CommType, GlobalMetadata, Node, NodeType, Value};
use uniference_formats::chakra::write::Writer;
use uniference_formats::units::counted;

/// Traces of all ranks: the common nodes, and the groups that differ.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Number of ranks.
    ranks: u64,
    /// Strides and numbers of the ranks, for each scope that is used.
    groups: Vec<(Scope, Vec<Stride>)>,
    /// All nodes except the descriptions of groups.
    pub nodes: Vec<Node>,
    /// Parts of the file that the traces do not contain.
    pub warnings: Vec<String>,
    metadata: GlobalMetadata,
}

/// A number of ranks, and the distance between neighbours.
#[derive(Clone, Copy, Debug)]
struct Stride {
    step: u64,
    count: u64,
}

impl TextWorkload {
    /// The traces of `ranks` ranks that run the layers `passes` times.
    ///
    /// # Errors
    /// The workload is for another number of ranks; the text has a hint.
    pub fn traces(&self, ranks: u64, passes: u32) -> Result<Traces, String> {
        if let Some(said) = self.parallelism.ranks.filter(|said| *said != ranks) {
            let hint = "use a cluster with one device per rank";
            return Err(format!(
                "the workload is for {} (all_gpus), but there are {ranks}\nhint: {hint}",
                counted(said, "rank")
            ));
        }
        self.parallelism
            .check(ranks)
            .map_err(|problem| format!("{problem}\nhint: use a cluster with another number of devices"))?;
        let mut maker = GraphBuilder { workload: self, ranks, nodes: Vec::new(), used: Vec::new() };
        maker.layers(passes);
        let GraphBuilder { nodes, used, .. } = maker;
        let mut groups: Vec<(Scope, Vec<Stride>)> =
            used.into_iter().map(|scope| (scope, self.strides(scope, ranks))).collect();
        groups.sort_by_key(|(scope, _)| *scope);
        let mut warnings = Vec::new();
        if self.parallelism.pipeline > 1 {
            warnings.push(format!(
                "the {} pipeline stages do not wait for each other: as in SimAI, every rank executes all layers of the file",
                self.parallelism.pipeline
            ));
        }
        let attr = vec![
            Attribute::new("schema", Value::String("1.0.2-chakra.1.0.0".into())),
            Attribute::new("input_file", Value::String(self.text.clone())),
        ];
        let metadata = GlobalMetadata { attr, ..GlobalMetadata::default() };
        Ok(Traces { ranks, groups, nodes, warnings, metadata })
    }

    /// The ranks of a scope: tensor-parallel ranks are adjacent, followed by the pipeline's stages, the expert-parallel
    /// ranks, and the ranks with the same experts.
    fn strides(&self, scope: Scope, ranks: u64) -> Vec<Stride> {
        let super::Parallelism { tensor, expert, pipeline, .. } = self.parallelism;
        let stage = tensor * pipeline;
        match scope {
            Scope::World => vec![Stride { step: 1, count: ranks }],
            Scope::Tensor => vec![Stride { step: 1, count: tensor }],
            Scope::Data => vec![Stride { step: stage, count: ranks / stage }],
            Scope::Expert => vec![Stride { step: stage, count: expert }],
            Scope::ExpertData => vec![Stride { step: stage * expert, count: ranks / stage / expert }],
        }
    }
}

impl Traces {
    /// The beginning of a rank's trace: its metadata and its groups.
    pub fn head(&self, rank: u64) -> Vec<u8> {
        self.encoded(&self.groups(rank))
    }

    /// The rest of a trace, the same for all ranks.
    pub fn body(&self) -> Vec<u8> {
        self.encoded(&self.nodes).split_off(self.encoded(&[]).len())
    }

    fn encoded(&self, nodes: &[Node]) -> Vec<u8> {
        let write = || {
            let mut writer = Writer::new(Vec::new(), &self.metadata)?;
            nodes.iter().try_for_each(|node| writer.node(node))?;
            writer.finish()
        };
        write().expect("memory takes everything, and all nodes have names")
    }

    /// The nodes that describe a rank's groups, which come before all other nodes.
    pub fn groups(&self, rank: u64) -> Vec<Node> {
        let members = |strides: &[Stride]| {
            let Stride { step, count } = strides[0];
            let first = rank - rank / step % count * step;
            (0..count).map(|place| (first + place * step) as u32).collect::<Vec<u32>>()
        };
        let said = self.groups.iter().filter(|(scope, _)| *scope != Scope::World);
        // Ids above those of all other nodes.
        let id = self.nodes.iter().map(|node| node.id + 1).max().unwrap_or(0)..;
        said.zip(id).map(|((scope, strides), id)| Node { id, ..describe(name(*scope), &members(strides)) }).collect()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }
}

fn name(scope: Scope) -> &'static str {
    match scope {
        Scope::World => "",
        Scope::Tensor => "tp",
        Scope::Data => "dp",
        Scope::Expert => "ep",
        Scope::ExpertData => "dp_ep",
    }
}

/// Ids of nodes that must be done first.
type Dependencies = Vec<u64>;

struct GraphBuilder<'a> {
    workload: &'a TextWorkload,
    ranks: u64,
    nodes: Vec<Node>,
    /// Scopes whose groups have collectives.
    used: Vec<Scope>,
}

/// The nodes of a layer that later passes, and the backward pass, depend on.
#[derive(Clone, Default)]
struct LayerDependencies {
    forward: Dependencies,
    forward_comm: Dependencies,
    input: Dependencies,
    input_comm: Dependencies,
    weight: Dependencies,
    weight_comm: Dependencies,
}

impl GraphBuilder<'_> {
    fn layers(&mut self, passes: u32) {
        let layers = &self.workload.layers;
        let mut done = vec![LayerDependencies::default(); layers.len()];
        let mut thread = Dependencies::new();
        for _ in 0..passes {
            match self.workload.policy {
                Policy::Micro => layers.iter().for_each(|layer| {
                    self.communicate(&layer.name, layer.weight_gradient, Dependencies::new());
                }),
                Policy::Data => self.data(layers, &mut done),
                Policy::Model => self.model(layers, &mut done, false),
                Policy::HybridDataModel | Policy::HybridModelData => self.model(layers, &mut done, true),
                Policy::Dlrm => self.dlrm(layers, &mut done),
                Policy::Transformer => self.transformer(layers, &mut done, &mut thread),
            }
        }
    }

    /// Data parallelism: the forward pass of a layer depends on the previous layer; the reduction of its weights'
    /// gradients overlaps the gradients of earlier layers.
    fn data(&mut self, layers: &[Layer], done: &mut [LayerDependencies]) {
        for index in 0..layers.len() {
            let before = if index > 0 { done[index - 1].forward.clone() } else { Dependencies::new() };
            let after = joined(&before, &done[index].weight_comm);
            done[index].forward = self.compute(&layers[index], "FWD", layers[index].forward.time, after);
        }
        for index in (0..layers.len()).rev() {
            let layer = &layers[index];
            let after = done.get(index + 1).map_or_else(|| done[index].forward.clone(), |next| next.input.clone());
            let weight = self.compute(layer, "BWD_WG", layer.weight_gradient.time, after);
            done[index].weight_comm = self.communicate(&layer.name, layer.weight_gradient, weight.clone());
            if index > 0 {
                done[index].input = self.compute(layer, "BWD_IG", layer.input_gradient.time, weight);
            }
        }
    }

    /// Model parallelism: layers exchange activations, and gradients of inputs; with `reduced`, gradients of weights
    /// are reduced too, concurrently.
    fn model(&mut self, layers: &[Layer], done: &mut [LayerDependencies], reduced: bool) {
        for index in 0..layers.len() {
            let layer = &layers[index];
            let before = if index > 0 { done[index - 1].forward_comm.clone() } else { Dependencies::new() };
            let after = match reduced {
                true => joined(&done[index].weight_comm, &before),
                false => joined(&before, &done[index].weight),
            };
            let forward = self.compute(layer, "FWD", layer.forward.time, after);
            done[index].forward_comm = self.communicate(&layer.name, layer.forward, forward);
        }
        let marked = self.workload.policy == Policy::HybridDataModel;
        for index in (0..layers.len()).rev() {
            let layer = &layers[index];
            let after = match done.get(index + 1) {
                Some(next) => joined(&next.weight, &next.input_comm),
                None => done[index].forward_comm.clone(),
            };
            let input = self.compute(layer, "BWD_IG", layer.input_gradient.time, after);
            if index > 0 {
                let name = if marked { format!("{}_IG_COMM_", layer.name) } else { layer.name.clone() };
                done[index].input_comm = self.communicate(&name, layer.input_gradient, input.clone());
            }
            done[index].weight = self.compute(layer, "BWD_WG", layer.weight_gradient.time, input);
            if reduced {
                done[index].weight_comm =
                    self.communicate(&layer.name, layer.weight_gradient, done[index].weight.clone());
            }
        }
    }

    /// A DLRM: the first layer is the embedding, whose exchange overlaps the bottom layers in both directions.
    fn dlrm(&mut self, layers: &[Layer], done: &mut [LayerDependencies]) {
        let bottom = self.workload.last_bottom;
        for index in 0..layers.len() {
            let layer = &layers[index];
            let again = if done[index].weight_comm.is_empty() { &done[index].weight } else { &done[index].weight_comm };
            let mut after = again.clone();
            if index > 0 {
                after = joined(&after, &done[index - 1].forward);
            }
            if index == bottom {
                after = joined(&after, &done[0].forward_comm);
            }
            done[index].forward = self.compute(layer, "FWD", layer.forward.time, after);
            if layer.forward.communication.is_some_and(|communication| communication.kind == CommType::AllToAll) {
                done[index].forward_comm = self.communicate(&layer.name, layer.forward, done[index].forward.clone());
            }
        }
        for index in (0..layers.len()).rev() {
            let layer = &layers[index];
            let after = match done.get(index + 1) {
                Some(next) if index == 0 => joined(&next.input, &done[0].input_comm),
                Some(next) => next.input.clone(),
                None => done[index].forward.clone(),
            };
            let weight = self.compute(layer, "BWD_WG", layer.weight_gradient.time, after);
            done[index].weight_comm = match layer.weight_gradient.communication {
                Some(_) => self.communicate(&layer.name, layer.weight_gradient, weight.clone()),
                None => Dependencies::new(),
            };
            if index > 0 {
                done[index].input = self.compute(layer, "BWD_IG", layer.input_gradient.time, weight.clone());
            }
            done[index].weight = weight;
            if index == bottom + 1 {
                done[0].input_comm =
                    self.communicate(&layers[0].name, layers[0].input_gradient, done[index].input.clone());
            }
        }
    }

    /// A transformer: work is sequential, except the reduction of weights' gradients, which overlaps it; the next pass
    /// of a layer depends on that reduction, and on the update.
    fn transformer(&mut self, layers: &[Layer], done: &mut [LayerDependencies], thread: &mut Dependencies) {
        for index in 0..layers.len() {
            self.forward(&layers[index], "FWD", &done[index].weight_comm, thread);
        }
        for index in (0..layers.len()).rev() {
            let layer = &layers[index];
            if self.workload.recomputes.contains(&index) {
                let kept = self.workload.checkpoints.iter().filter(|layer| **layer <= index).max();
                for again in &layers[*kept.expect("checked when it was read")..index] {
                    self.forward(again, "FWD_AGAIN", &Dependencies::new(), thread);
                }
            }
            *thread = self.compute(layer, "BWD_IG", layer.input_gradient.time, thread.clone());
            *thread = self.communicate(&layer.name, layer.input_gradient, thread.clone());
            *thread = self.compute(layer, "BWD_WG", layer.weight_gradient.time, thread.clone());
            let reduced = self.communicate(&layer.name, layer.weight_gradient, thread.clone());
            done[index].weight_comm = match layer.weight_gradient.communication {
                Some(_) => self.update(layer, reduced),
                None => Dependencies::new(),
            };
        }
    }

    fn forward(&mut self, layer: &Layer, phase: &str, weights: &Dependencies, thread: &mut Dependencies) {
        *thread = self.compute(layer, phase, layer.forward.time, joined(thread, weights));
        *thread = self.communicate(&layer.name, layer.forward, thread.clone());
    }

    /// Adds the update of a layer's weights, on the CPU because it overlaps other compute of the device.
    fn update(&mut self, layer: &Layer, after: Dependencies) -> Dependencies {
        let before = self.nodes.len();
        let after = self.compute(layer, "UPDATE", layer.update, after);
        self.nodes[before..].iter_mut().for_each(|node| node.set(IS_CPU_OP, Value::Bool(true)));
        after
    }

    fn add(&mut self, node: Node) -> Dependencies {
        let id = self.nodes.len() as u64;
        self.nodes.push(Node { id, ..node });
        vec![id]
    }

    /// Adds compute. Durations of a transformer are in ns, as in SimAI; all others are in us, as in Chakra's converter.
    fn compute(&mut self, layer: &Layer, phase: &str, time: u64, after: Dependencies) -> Dependencies {
        if time == 0 {
            return after;
        }
        let name = format!("COMP_NODE_{}_{phase}", layer.name);
        let mut node = Node { name, r#type: NodeType::Comp.into(), data_deps: after, ..Node::default() };
        if self.workload.policy == Policy::Transformer {
            node.duration_micros = (time + 500) / 1000;
            node.set(DURATION_PS, Value::Uint64(time * 1000));
        } else {
            node.duration_micros = time;
        }
        self.add(node)
    }

    fn communicate(&mut self, layer: &str, work: Work, after: Dependencies) -> Dependencies {
        let Some(Communication { kind, scope, bytes }) = work.communication else { return after };
        let members = self.workload.strides(scope, self.ranks)[0].count;
        if members == 1 {
            return after;
        }
        let bytes = match kind {
            CommType::AllGather if self.workload.of_simai() => bytes.div_ceil(members),
            _ => bytes,
        };
        let written = match kind {
            CommType::AllReduce => "ALLREDUCE",
            CommType::AllGather => "ALLGATHER",
            CommType::ReduceScatter => "REDUCESCATTER",
            _ => "ALLTOALL",
        };
        let name_of = format!("COMM_COLL_NODE_{layer}_{written}");
        let mut node = Node { name: name_of, r#type: NodeType::CommColl.into(), data_deps: after, ..Node::default() };
        node.set(COMM_TYPE, Value::Int64(i64::from(i32::from(kind))));
        node.set(COMM_SIZE, Value::Int64(bytes as i64));
        if scope != Scope::World {
            node.set(PG_NAME, Value::String(name(scope).into()));
            if !self.used.contains(&scope) {
                self.used.push(scope);
            }
        }
        self.add(node)
    }
}

fn joined(first: &Dependencies, second: &Dependencies) -> Dependencies {
    let more = second.iter().filter(|id| !first.contains(id)).copied();
    first.iter().copied().chain(more).collect()
}
