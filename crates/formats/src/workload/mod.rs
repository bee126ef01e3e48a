//! Generated workloads: what each rank of a large language model's training or inference computes and communicates, as execution traces
//! that nobody had to record.
//!
//! In the order in which a trace comes about: [`Model`] knows what a layer costs, [`Layout`] where a rank stands in the job, `schedule` in
//! which order it carries out its micro-batches, and [`Trace`] turns that into nodes, one piece of a micro-batch at a time. Nothing here
//! grows with the number of ranks or of micro-batches, and nothing is read or written. When nodes run is the replay's business.
//!
//! Formulas and their sources stand where they are used; `docs/workloads.md` has them in one place.

mod layout;
mod model;
mod schedule;
mod trace;

pub use layout::{Layout, Place};
pub use model::{Cost, Experts, Model};
pub use schedule::Schedule;
pub use trace::Trace;

use uniference_sim::symmetry::Symmetry;

/// Bytes of an activation or a weight: bfloat16.
pub(crate) const ELEMENT: u64 = 2;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The model.
    pub model: Model,
    /// How it is cut.
    pub layout: Layout,
    /// What is done with it.
    pub phase: Phase,
    /// Tokens of a sequence; when decoding, those that are there before the new one.
    pub sequence: u64,
    /// Sequences, over all ranks.
    pub batch: u64,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// The order of micro-batches.
    pub schedule: Schedule,
    /// What is sharded over data-parallel ranks besides the batch: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too.
    pub zero: u8,
    /// Bytes of an element of a gradient, where it is summed and sent.
    pub gradient_bytes: u64,
    /// What is computed again when training, rather than kept.
    pub recompute: Recompute,
    /// Are gradients scaled so that the norm of all of them together does not exceed a bound?
    pub clip_gradients: bool,
    /// Tokens that each sequence gets when decoding, one after the other; otherwise 1.
    pub new_tokens: u64,
}

/// Which activations are computed a second time, just before the backward pass that needs them (Korthikanti et al., "Reducing activation
/// recomputation in large transformer models", 2022, sections 3 and 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// All are kept.
    #[default]
    None,
    /// Scores and values of attention are computed again.
    Selective,
    /// Of each layer only its input is kept: the layer is carried out again, communication and all.
    Full,
}

/// What is done with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// One step: every micro-batch forwards and backwards, gradients summed, parameters updated.
    Train,
    /// Every micro-batch forwards.
    Prefill,
    /// New tokens for every sequence, one after the other.
    Decode,
}

/// A job that can be generated: a [`Spec`] whose parts fit together.
#[derive(Clone, Debug)]
pub struct Workload {
    spec: Spec,
}

/// Parts that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\nhint: {hint}")]
pub struct WorkloadError {
    /// What does not fit.
    pub problem: String,
    /// What would.
    pub hint: &'static str,
}

/// Bytes that a rank holds for its part of the model (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
/// parameter models", SC 2020, section 3.1: mixed precision Adam keeps 12 bytes of state a parameter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// bfloat16.
    pub parameters: u64,
    /// None but when training.
    pub gradients: u64,
    /// A copy of the parameters and two moments, float32; none but when training.
    pub optimizer: u64,
}

impl Workload {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// Where sizes do not divide each other as they must.
    pub fn new(spec: Spec) -> Result<Workload, WorkloadError> {
        spec.check()?;
        Ok(Workload { spec })
    }

    /// As it was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How many ranks it has.
    pub fn world_size(&self) -> u32 {
        self.spec.layout.world_size()
    }

    /// Which ranks do the same in their own places: by construction, since a trace depends on a rank's stage and otherwise names
    /// only groups and peers that move along with it.
    pub fn symmetry(&self) -> Symmetry {
        self.spec.layout.symmetry(self.spec.phase == Phase::Train)
    }

    /// What `rank` does.
    pub fn trace(&self, rank: u32) -> Trace {
        Trace::new(&self.spec, rank)
    }

    /// What `rank` holds.
    pub fn memory(&self, rank: u32) -> ModelMemory {
        let Spec { layout, zero, .. } = &self.spec;
        let (dense, experts) = self.parameters(rank);
        let train = u64::from(self.spec.phase == Phase::Train);
        let sum = |bytes: u64, sharded: bool| {
            let shards = |ranks: u32| if sharded { u64::from(ranks) } else { 1 };
            (dense * bytes).div_ceil(shards(layout.dense_replicas()))
                + (experts * bytes).div_ceil(shards(layout.expert_replicas()))
        };
        ModelMemory {
            parameters: sum(ELEMENT, *zero >= 3),
            gradients: train * sum(self.spec.gradient_bytes, *zero >= 2),
            optimizer: train * sum(12, *zero >= 1),
        }
    }

    /// Parameters that `rank` works on, sharded or not: those that all ranks along the data axis share, and experts.
    pub fn parameters(&self, rank: u32) -> (u64, u64) {
        let place = self.spec.layout.place(rank);
        let chunks = self.spec.chunks_of(place.stage);
        chunks.map(|chunk| self.spec.parameters(chunk)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

impl Spec {
    /// Micro-batches that each pipeline carries out.
    pub fn micro_batches(&self) -> u64 {
        self.batch / (u64::from(self.layout.data) * self.micro_batch)
    }

    /// Tokens of a micro-batch on one rank.
    fn tokens(&self) -> u64 {
        match self.phase {
            Phase::Decode => self.micro_batch,
            Phase::Train | Phase::Prefill => self.micro_batch * self.sequence / u64::from(self.layout.context),
        }
    }

    /// The model's pieces, in order, that a stage has.
    fn chunks_of(&self, stage: u32) -> impl Iterator<Item = u32> + use<> {
        let stages = self.layout.pipeline;
        (0..self.schedule.chunks()).map(move |chunk| chunk * stages + stage)
    }

    /// How many pieces the model is cut into.
    fn chunks(&self) -> u32 {
        self.layout.pipeline * self.schedule.chunks()
    }

    /// Layers of a piece: as even as can be, the first and the last piece, which have the embedding and the head, last to get one
    /// more (as in "The Llama 3 herd of models", 2024, section 3.3.2).
    fn layers(&self, chunk: u32) -> u32 {
        let (chunks, layers) = (self.chunks(), self.model.layers);
        let more = layers % chunks;
        let place = if chunk == 0 { chunks - 1 } else { chunk - 1 };
        layers / chunks + u32::from(place < more)
    }

    /// Parameters of a piece on one rank: shared along the data axis, and experts.
    fn parameters(&self, chunk: u32) -> (u64, u64) {
        let tensor = u64::from(self.layout.tensor);
        let (dense, experts) = self.layer_parameters();
        let layers = u64::from(self.layers(chunk));
        let embedding = self.model.embedding_parameters().div_ceil(tensor);
        let ends =
            u64::from(chunk == 0) * embedding + u64::from(chunk + 1 == self.chunks()) * (embedding + self.model.hidden);
        (layers * dense + ends, layers * experts)
    }

    /// Of one layer on one rank.
    fn layer_parameters(&self) -> (u64, u64) {
        let tensor = u64::from(self.layout.tensor);
        let dense = self.model.dense_parameters().div_ceil(tensor) + self.model.norm_parameters();
        (dense, self.model.expert_parameters().div_ceil(tensor * u64::from(self.layout.expert)))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let Spec { model, layout, .. } = self;
        self.check_sizes()?;
        let tensor = u64::from(layout.tensor);
        let cut = [("heads", model.heads), ("KV heads", model.kv_heads), ("the feed-forward width", model.ffn)];
        for (what, size) in cut {
            fits(size, tensor, || format!("{what} ({size}) cannot be cut into {tensor} parts"), "choose another --tp")?;
        }
        fits(model.hidden, model.heads, || "heads do not divide the hidden size".into(), "choose other --heads")?;
        let pieces = u64::from(layout.context) * if layout.sequence_parallel { tensor } else { 1 };
        let split = if layout.sequence_parallel { tensor } else { 1 };
        if self.phase == Phase::Decode {
            if layout.context > 1 {
                return refuse("context-parallel ranks do not decode here".into(), "leave out --cp");
            }
            let problem = || format!("{} new tokens cannot be cut into {split} parts", self.micro_batch);
            fits(self.micro_batch, split, problem, "choose another --micro-batch or --tp, or no --sequence-parallel")?;
        } else {
            let problem = || format!("sequences of {} cannot be cut into {pieces} parts", self.sequence);
            fits(self.sequence, pieces, problem, "choose another --seq, --cp or --tp")?;
        }
        let replicas = u64::from(layout.data) * self.micro_batch;
        let problem = || format!("a batch of {} is no multiple of dp x micro-batch = {replicas}", self.batch);
        fits(self.batch, replicas, problem, "choose another --batch")?;
        self.check_experts()?;
        self.schedule.check(layout.pipeline, self.micro_batches())?;
        let problem = || format!("{} layers do not fill {} pieces", model.layers, self.chunks());
        if model.layers < self.chunks() { refuse(problem(), "choose a smaller --pp") } else { Ok(()) }
    }

    fn check_sizes(&self) -> Result<(), WorkloadError> {
        let Spec { model, layout, .. } = self;
        let Model { layers, hidden, heads, kv_heads, ffn, vocabulary, .. } = *model;
        let sizes = [u64::from(layers), hidden, heads, kv_heads, ffn, vocabulary, self.sequence, self.batch];
        if sizes.contains(&0) || self.micro_batch == 0 || self.new_tokens == 0 {
            return refuse("a size is 0".into(), "every size is at least 1");
        }
        // What a piece of the model computes, and holds, must fit 64 bits with room to spare.
        let [sequence, micro_batch] = [self.sequence + self.new_tokens, self.micro_batch].map(|size| size as f64);
        let [hidden, ffn, vocabulary] = [hidden, ffn, vocabulary].map(|size| size as f64);
        let work = micro_batch * sequence * hidden * 8.0 * sequence.max(ffn).max(vocabulary);
        let held = hidden * (ffn.max(hidden) * model.experts.map_or(1.0, |experts| experts.count as f64) + vocabulary);
        if sizes.iter().any(|size| *size > 1 << 40) || work > 1e18 || f64::from(layers) * held > 1e16 {
            return refuse("sizes are out of range".into(), "look for one that is off by many powers of ten");
        }
        if layout.checked_size().is_none() {
            return refuse("an axis is empty, or ranks are too many".into(), "there are at most 2^20 ranks");
        }
        if self.new_tokens > 1 && self.phase != Phase::Decode || self.new_tokens > 1 << 32 {
            return refuse(
                format!("{} new tokens cannot be had", self.new_tokens),
                "only decoding gives more than one",
            );
        }
        if self.zero > 3 || !matches!(self.gradient_bytes, 2 | 4) {
            return refuse("ZeRO has stages 0 to 3, gradients 2 or 4 bytes".into(), "choose one of them");
        }
        Ok(())
    }

    fn check_experts(&self) -> Result<(), WorkloadError> {
        let Layout { expert, data, tensor, sequence_parallel, .. } = self.layout;
        let count = self.model.experts.map_or(1, |experts| experts.count);
        let problem = || format!("{count} experts cannot be dealt to {expert} ranks");
        fits(count, u64::from(expert), problem, "choose another --ep")?;
        let problem = || format!("{expert} ranks with different experts are no part of {data} data-parallel ones");
        fits(u64::from(data), u64::from(expert), problem, "--ep divides --dp")?;
        match self.model.experts {
            Some(Experts { count, top_k }) if top_k == 0 || top_k > count => {
                refuse(format!("a token cannot go to {top_k} of {count} experts"), "choose another --top-k")
            }
            Some(_) if tensor > 1 && !sequence_parallel => refuse(
                "experts with tensor parallelism need sequence parallelism".into(),
                "add --sequence-parallel; Megatron-LM asks for the same",
            ),
            _ => Ok(()),
        }
    }
}

fn fits(size: u64, by: u64, problem: impl Fn() -> String, hint: &'static str) -> Result<(), WorkloadError> {
    if by > 0 && size.is_multiple_of(by) { Ok(()) } else { refuse(problem(), hint) }
}

fn refuse(problem: String, hint: &'static str) -> Result<(), WorkloadError> {
    Err(WorkloadError { problem, hint })
}

#[cfg(test)]
mod tests;
