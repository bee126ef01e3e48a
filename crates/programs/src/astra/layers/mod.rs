//! Owns text workloads: a training job with one line per layer, in the format of ASTRA-sim 1.0, of Chakra's text
//! converter and of SimAI, whose files AICB writes.
//!
//! This module reads the files; [`nodes`] makes execution traces of them.
//!
//! Sources: astra-sim/astra-sim, `astra-sim/workload/Workload.cc` of version 1.0; mlcommons/chakra,
//! `src/converter/text_converter.py`; aliyun/SimAI, `astra-sim-alibabacloud/astra-sim/workload/Workload.cc` and
//! `system/MockNcclGroup.cc`. The first line names the policy, the second the number of layers; each layer is `name
//! dependency`, then time, collective and bytes of the forward pass, of the input's gradient and of the weights'
//! gradient, and the time of the weights' update.

pub mod nodes;

use std::ops::Range;
use uniference_formats::chakra::schema::CommType;
use uniference_formats::diagnostic::{Diagnostic, suggest};
use uniference_formats::units;

/// Policy of the first line: the passes that communicate, and their dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // names are self-explanatory
pub enum Policy {
    Micro,
    Data,
    Model,
    HybridDataModel,
    HybridModelData,
    Dlrm,
    Transformer,
}

/// The names of policies; `None`: the policy is known, but not supported.
const POLICIES: [(&str, Option<Policy>); 11] = [
    ("MICRO", Some(Policy::Micro)),
    ("DATA", Some(Policy::Data)),
    ("MODEL", Some(Policy::Model)),
    ("HYBRID_DATA_MODEL", Some(Policy::HybridDataModel)),
    ("HYBRID_MODEL_DATA", Some(Policy::HybridModelData)),
    ("HYBRID_DLRM", Some(Policy::Dlrm)),
    ("HYBRID_DLRM_ENHANCED", Some(Policy::Dlrm)),
    ("HYBRID_TRANSFORMER", Some(Policy::Transformer)),
    ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", Some(Policy::Transformer)),
    ("HYBRID_CUSTOMIZED", None),
    ("DISTRIBUTED_INFERENCE", None),
];

/// The ranks of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All ranks.
    World,
    /// Tensor-parallel ranks, which share each layer.
    Tensor,
    /// Data-parallel ranks, which have the same part of each layer.
    Data,
    /// Ranks with different experts.
    Expert,
    /// Ranks with the same experts.
    ExpertData,
}

/// A collective of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communication {
    /// The kind of collective.
    pub kind: CommType,
    /// The ranks that take part.
    pub scope: Scope,
    /// Size in bytes, as in the file.
    pub bytes: u64,
}

/// Work of a layer in one of its three passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Duration in the unit of the file.
    pub time: u64,
    /// The collective after the computation; `None`: there is none, or its size is 0.
    pub communication: Option<Communication>,
}

/// A layer of a text workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Name of the layer; layers may share a name.
    pub name: String,
    /// The forward pass.
    pub forward: Work,
    /// The gradient of the layer's input.
    pub input_gradient: Work,
    /// The gradient of the layer's weights.
    pub weight_gradient: Work,
    /// Duration of the update of the weights, after the reduction of their gradient.
    pub update: u64,
}

/// Parallel degrees of a transformer; all at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// Number of ranks that share each layer.
    pub tensor: u64,
    /// Number of ranks with different experts, among the ranks that share no layer.
    pub expert: u64,
    /// Number of pipeline stages.
    pub pipeline: u64,
    /// Number of all ranks; `None`: the file does not contain it.
    pub ranks: Option<u64>,
}

/// A text workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextWorkload {
    /// The policy of the first line.
    pub policy: Policy,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// The last layer below the interaction with the embeddings, for a DLRM.
    pub last_bottom: usize,
    /// The parallel degrees, for a transformer.
    pub parallelism: Parallelism,
    /// Layers whose input is kept.
    pub checkpoints: Vec<usize>,
    /// Layers before whose gradient the forward pass is repeated from the last checkpoint.
    pub recomputes: Vec<usize>,
    text: String,
}

/// Maximum number of layers, which include micro-batches that are written as layers.
const MOST_LAYERS: u64 = 1 << 20;
/// Maximum number of ranks.
const MOST_RANKS: u64 = 1 << 20;
/// Maximum of a collective's bytes, and of times in any unit: larger numbers are mistakes, and their sums might
/// overflow.
const MOST: u64 = 1 << 50;

/// Whether a file starts like a text workload: its first word is the name of a policy.
pub fn is_text_workload(beginning: &[u8]) -> bool {
    let word = beginning.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty()).unwrap_or_default();
    POLICIES.iter().any(|(name, _)| name.as_bytes() == word)
}

/// A word of the file with its position.
type Word<'a> = (&'a str, Range<usize>);

struct Reading<'a> {
    origin: &'a str,
    text: &'a str,
}

impl TextWorkload {
    /// Reads a workload that came from `origin` (its path).
    ///
    /// # Errors
    /// The policy or a collective is unknown, a number is invalid, layers are missing or have too few columns, or the
    /// header is inconsistent.
    pub fn parse(origin: &str, text: &str) -> Result<TextWorkload, Diagnostic> {
        let reading = Reading { origin, text };
        let mut lines = reading.lines().into_iter();
        let Some(header) = lines.next() else {
            let hint = "the first line must be a policy, for example DATA or HYBRID_TRANSFORMER_FWD_IN_BCKWD";
            return Err(Diagnostic::new(format!("{origin} is empty and not a text workload")).hint(hint));
        };
        let policy = reading.policy(&header[0])?;
        let end = text.trim_end().len();
        let Some(counted) = lines.next() else {
            return Err(reading.wrong("the number of layers is missing", &(end..end), "write it in the second line"));
        };
        let count = reading.number(&counted[0])?;
        if !(1..=MOST_LAYERS).contains(&count) {
            let hint = format!("a workload must have 1 to {MOST_LAYERS} layers");
            return Err(reading.wrong(&format!("{count} layers"), &counted[0].1, &hint));
        }
        let of_transformer = policy == Policy::Transformer;
        let mut layers = Vec::new();
        for words in lines {
            if layers.len() as u64 == count {
                let message = format!("more layers than the second line gives ({count})");
                return Err(reading.wrong(&message, &words[0].1, "correct the number, or remove the line"));
            }
            layers.push(reading.layer(&words, of_transformer)?);
        }
        if (layers.len() as u64) < count {
            let found = units::counted(layers.len(), "layer");
            let message = format!("found {found}, but the second line gives {count}");
            return Err(reading.wrong(&message, &counted[0].1, "the file may be truncated"));
        }
        let mut workload = TextWorkload {
            policy,
            layers,
            last_bottom: 0,
            parallelism: Parallelism { tensor: 1, expert: 1, pipeline: 1, ranks: None },
            checkpoints: Vec::new(),
            recomputes: Vec::new(),
            text: text.to_owned(),
        };
        reading.header(&mut workload, &header)?;
        Ok(workload)
    }

    /// Whether the file comes from SimAI. If so, sizes of all-gathers are those of the result, not of a rank's part.
    pub fn of_simai(&self) -> bool {
        self.parallelism.ranks.is_some()
    }
}

impl<'a> Reading<'a> {
    fn wrong(&self, message: &str, span: &Range<usize>, hint: &str) -> Diagnostic {
        Diagnostic::new(message).at(self.origin, self.text, span.clone()).hint(hint)
    }

    /// The words of each line that is not empty.
    fn lines(&self) -> Vec<Vec<Word<'a>>> {
        let mut start = 0;
        let mut lines = Vec::new();
        for line in self.text.split('\n') {
            let place = |word: &'a str| {
                let at = start + (word.as_ptr() as usize - line.as_ptr() as usize);
                (word, at..at + word.len())
            };
            let words: Vec<Word<'a>> = line.split_whitespace().map(place).collect();
            start += line.len() + 1;
            if !words.is_empty() {
                lines.push(words);
            }
        }
        lines
    }

    fn policy(&self, (name, span): &Word<'a>) -> Result<Policy, Diagnostic> {
        match POLICIES.iter().find(|(known, _)| known == name) {
            Some((_, Some(policy))) => Ok(*policy),
            Some((_, None)) => {
                let message = format!("the policy {name} is not supported");
                Err(self.wrong(
                    &message,
                    span,
                    "its layers depend on the dimensions of ASTRA-sim's network; use another policy",
                ))
            }
            None => {
                let names = POLICIES.iter().filter(|(_, policy)| policy.is_some()).map(|(name, _)| *name);
                Err(self.wrong(&format!("unknown policy `{name}`"), span, &suggest(name, "policies", names)))
            }
        }
    }

    /// A whole number; AICB writes some of them as 8388608.0.
    fn number(&self, (word, span): &Word<'a>) -> Result<u64, Diagnostic> {
        let whole = word
            .split_once('.')
            .filter(|(_, rest)| rest.bytes().all(|digit| digit == b'0'))
            .map_or(*word, |(whole, _)| whole);
        match whole.parse::<u64>() {
            Ok(number) if number <= MOST => Ok(number),
            Ok(_) => Err(self.wrong(&format!("{word} is too large"), span, &format!("the maximum is {MOST}"))),
            Err(_) => Err(self.wrong(
                &format!("`{word}` is not an integer"),
                span,
                "times, sizes and counts must be integers",
            )),
        }
    }

    fn layer(&self, words: &[Word<'a>], of_transformer: bool) -> Result<Layer, Diagnostic> {
        let [name, dependency, rest @ ..] = words else { return Err(self.columns(words)) };
        if rest.len() != 10 {
            return Err(self.columns(words));
        }
        if dependency.0.parse::<i64>().is_err() {
            let message = format!("unsupported layer dependency `{}`", dependency.0);
            return Err(self.wrong(&message, &dependency.1, "write -1; layers run one after the other"));
        }
        let work = |at: usize, scope| -> Result<Work, Diagnostic> {
            let time = self.number(&rest[at])?;
            Ok(Work { time, communication: self.communication(&rest[at + 1], &rest[at + 2], scope)? })
        };
        let (tensor, data) = if of_transformer { (Scope::Tensor, Scope::Data) } else { (Scope::World, Scope::World) };
        Ok(Layer {
            name: name.0.to_owned(),
            forward: work(0, tensor)?,
            input_gradient: work(3, tensor)?,
            weight_gradient: work(6, data)?,
            update: self.number(&rest[9])?,
        })
    }

    fn columns(&self, words: &[Word<'a>]) -> Diagnostic {
        let span = words[0].1.start..words[words.len() - 1].1.end;
        let hint = "the columns are: name, -1, time, collective and bytes for each of forward, input gradient and weight gradient, update time";
        self.wrong(&format!("a layer must have 12 columns, but this line has {}", words.len()), &span, hint)
    }

    fn communication(
        &self,
        (word, span): &Word<'a>,
        bytes: &Word<'a>,
        usual: Scope,
    ) -> Result<Option<Communication>, Diagnostic> {
        let bytes = self.number(bytes)?;
        if *word == "NONE" {
            return Ok(None);
        }
        let (name, scope) = match word.strip_suffix("_DP_EP") {
            Some(name) => (name, Scope::ExpertData),
            None => word.strip_suffix("_EP").map_or((*word, usual), |name| (name, Scope::Expert)),
        };
        let kind = match name {
            "ALLREDUCE" => CommType::AllReduce,
            "ALLGATHER" => CommType::AllGather,
            "REDUCESCATTER" => CommType::ReduceScatter,
            "ALLTOALL" => CommType::AllToAll,
            _ => {
                let known = ["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "NONE"];
                return Err(self.wrong(
                    &format!("unknown collective `{word}`"),
                    span,
                    &suggest(name, "collectives", known),
                ));
            }
        };
        if scope != usual && usual == Scope::World {
            let hint = "expert groups require HYBRID_TRANSFORMER or HYBRID_TRANSFORMER_FWD_IN_BCKWD";
            return Err(self.wrong(
                &format!("`{word}` requires expert groups, which this policy does not have"),
                span,
                hint,
            ));
        }
        Ok((bytes > 0).then_some(Communication { kind, scope, bytes }))
    }

    /// Reads the rest of the first line, after the policy.
    fn header(&self, workload: &mut TextWorkload, header: &[Word<'a>]) -> Result<(), Diagnostic> {
        let layers = workload.layers.len() as u64;
        match workload.policy {
            Policy::Dlrm => {
                // SimAI writes the key, Chakra's converter expects the number alone.
                let Some(last) = header[1..].iter().find(|word| word.0 != "DLRM_LAST_BOTTOM_LAYER:") else {
                    return Err(self.wrong(
                        "the last bottom layer is missing",
                        &header[0].1,
                        "write its number after the policy, for example HYBRID_DLRM 4",
                    ));
                };
                let number = self.number(last)?;
                if number + 1 >= layers {
                    let hint = "layers are numbered from 0, and top layers must follow";
                    return Err(self.wrong(
                        &format!("layer {number} cannot be the last bottom layer of {layers} layers"),
                        &last.1,
                        hint,
                    ));
                }
                workload.last_bottom = number as usize;
                Ok(())
            }
            Policy::Transformer => self.transformer(workload, &header[1..], &header[0].1),
            _ => Ok(()),
        }
    }

    fn transformer(
        &self,
        workload: &mut TextWorkload,
        words: &[Word<'a>],
        policy: &Range<usize>,
    ) -> Result<(), Diagnostic> {
        let layers = workload.layers.len() as u64;
        let mut words = words.iter();
        let mut all = None;
        while let Some(key) = words.next() {
            let name = key.0.strip_suffix(':').unwrap_or(key.0);
            let next = |words: &mut std::slice::Iter<'_, Word<'a>>| match words.next() {
                Some(word) => self.number(word),
                None => Err(self.wrong(&format!("`{name}` has no value"), &key.1, "write a number after it")),
            };
            let value = next(&mut words)?;
            if value == 0 && matches!(name, "model_parallel_NPU_group" | "ep" | "pp" | "all_gpus") {
                return Err(self.wrong(
                    &format!("`{name}` must be at least 1"),
                    &key.1,
                    "use 1 for no parallelism of this kind",
                ));
            }
            match name {
                "model_parallel_NPU_group" => workload.parallelism.tensor = value,
                "ep" => workload.parallelism.expert = value,
                "pp" => workload.parallelism.pipeline = value,
                "all_gpus" if value > MOST_RANKS => {
                    return Err(self.wrong(
                        &format!("too many ranks: {value}"),
                        &key.1,
                        &format!("the maximum is {MOST_RANKS}"),
                    ));
                }
                "all_gpus" => {
                    workload.parallelism.ranks = Some(value);
                    all = Some(&key.1);
                }
                "checkpoints" | "checkpoint_initiates" => {
                    for _ in 0..value {
                        let layer = next(&mut words)?;
                        if layer >= layers {
                            let message = format!("`{name}`: layer {layer} is out of range for {layers} layers");
                            return Err(self.wrong(&message, &key.1, "layers are numbered from 0"));
                        }
                        let list =
                            if name == "checkpoints" { &mut workload.checkpoints } else { &mut workload.recomputes };
                        list.push(layer as usize);
                    }
                }
                // Micro-batches and virtual stages are written as layers; the documentation describes messages between
                // stages.
                "vpp" | "ga" | "pp_comm" => {}
                _ => {
                    let known = [
                        "model_parallel_NPU_group",
                        "ep",
                        "pp",
                        "vpp",
                        "ga",
                        "all_gpus",
                        "checkpoints",
                        "checkpoint_initiates",
                        "pp_comm",
                    ];
                    return Err(self.wrong(&format!("unknown key `{name}`"), &key.1, &suggest(name, "keys", known)));
                }
            }
        }
        for layer in &workload.recomputes {
            if !workload.checkpoints.iter().any(|checkpoint| checkpoint <= layer) {
                let message = format!("layer {layer} recomputes the forward pass, but no checkpoint precedes it");
                return Err(self.wrong(&message, policy, "add one to `checkpoints`"));
            }
        }
        match (workload.parallelism.ranks, all) {
            (Some(ranks), Some(span)) => workload.parallelism.check(ranks).map_err(|problem| {
                self.wrong(&problem, span, "all_gpus must be a multiple of model_parallel_NPU_group x pp x ep")
            }),
            _ => Ok(()),
        }
    }
}

impl Parallelism {
    /// Checks that the degrees divide the number of ranks.
    ///
    /// # Errors
    /// The problem in words, if they do not.
    pub fn check(&self, ranks: u64) -> Result<(), String> {
        let Parallelism { tensor, expert, pipeline, .. } = *self;
        let one = tensor.checked_mul(expert).and_then(|product| product.checked_mul(pipeline));
        match one.is_some_and(|one| ranks.is_multiple_of(one)) {
            true => Ok(()),
            false => Err(format!(
                "{ranks} ranks are not a multiple of {tensor} (tensor) x {pipeline} (pipeline) x {expert} (expert)"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
