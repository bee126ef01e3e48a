//! Owns the detection of KV caches: allocations that attention reads as keys or values in more than one call, outside
//! of any backward pass.
//!
//! Attention is one of torch's fused operators, or a batched GEMM, a softmax of its result, and a batched GEMM of the
//! softmax. Its input may be a copy that was made for the call: then the copied allocation counts as read. A cache may
//! also grow by concatenation (`torch.cat`) with new keys or values: an allocation that was read is concatenated, and a
//! later call reads the result. Allocations that a backward pass reads were kept for it, so they are activations.
//!
//! Views need no case: they share their allocation.

use rustc_hash::FxHashMap;
use uniference_formats::operators::{Argument, Definition, Line, Tensor};

/// Maximum length of a chain of copies that is followed.
const MOST_COPIES: usize = 4;

/// A finding about an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The allocation is a KV cache.
    Cache(u64),
    /// The allocation is no KV cache, whatever was found before.
    NoCache(u64),
}

/// Follows the allocations that one rank's attention reads.
#[derive(Default)]
pub(super) struct Attention {
    live: FxHashMap<u64, Traced>,
    /// The role of each definition, indexed by its number.
    roles: Vec<Option<Role>>,
    calls: u64,
}

/// State of a live allocation.
#[derive(Default)]
struct Traced {
    /// The first call of attention that has read the allocation as keys or values.
    read: Option<u64>,
    /// Whether the allocation was concatenated from an allocation that attention had read.
    grown: bool,
    /// Whether a backward pass has read the allocation.
    kept: bool,
    /// The allocations from which the elements were copied.
    copied_from: Vec<u64>,
    /// The allocation's role as an intermediate result of attention.
    inside: Option<Inside>,
}

#[derive(Clone, Copy)]
enum Inside {
    /// Products of queries and the keys in allocation `keys`.
    Scores { keys: u64, call: u64 },
    /// A softmax of scores.
    Weights { call: u64 },
}

/// Positions of arguments that have as many elements as the result, one bit each, for the first 64 arguments.
type Positions = u64;

/// The role of an operator in the detection. Numbers are positions among the definition's tensors.
#[derive(Clone, Copy)]
enum Role {
    /// Attention in one operator.
    Fused {
        keys: usize,
        values: usize,
    },
    /// A batched GEMM: `left x right`.
    Product {
        left: usize,
        right: usize,
        result: usize,
    },
    Softmax {
        scores: usize,
        result: usize,
    },
    /// An operator that concatenates its first tensors into its result.
    Join {
        result: usize,
    },
    /// The result has the elements of one argument, in any order, or values computed from them element by element.
    Copy {
        source: usize,
        alike: Positions,
        result: usize,
    },
    /// The result is computed from several arguments element by element: masks, scales and sums.
    Pointwise {
        alike: Positions,
        result: usize,
    },
    Other,
}

impl Attention {
    pub(super) fn allocated(&mut self, id: u64) {
        self.live.insert(id, Traced::default());
    }

    pub(super) fn freed(&mut self, id: u64) {
        self.live.remove(&id);
    }

    /// Follows an operator that ran.
    pub(super) fn executed(
        &mut self,
        definition: &Definition,
        number: usize,
        line: Line,
        allocations: &[u64],
    ) -> Vec<Finding> {
        if self.roles.len() <= number {
            self.roles.resize(number + 1, None);
        }
        let role = *self.roles[number].get_or_insert_with(|| Role::of(definition));
        let mut found = Vec::new();
        if line.backward {
            self.keep(allocations, &mut found);
            return found;
        }
        match role {
            Role::Fused { keys, values } => {
                self.calls += 1;
                for at in [keys, values] {
                    self.read(allocations[at], self.calls, MOST_COPIES, &mut found);
                }
            }
            Role::Product { left, right, result } => match self.inside(allocations[left]) {
                Some(Inside::Weights { call }) => self.read(allocations[right], call, MOST_COPIES, &mut found),
                _ => {
                    self.calls += 1;
                    self.becomes(allocations[result], Inside::Scores { keys: allocations[right], call: self.calls });
                }
            },
            Role::Softmax { scores, result } => {
                if let Some(Inside::Scores { keys, call }) = self.inside(allocations[scores]) {
                    self.read(keys, call, MOST_COPIES, &mut found);
                    self.becomes(allocations[result], Inside::Weights { call });
                }
            }
            Role::Join { result } => self.join(allocations, result, &mut found),
            Role::Copy { source, alike, result } => {
                if allocations[source] != allocations[result]
                    && let Some(traced) = self.live.get_mut(&allocations[result])
                {
                    traced.copied_from = vec![allocations[source]];
                }
                self.pass_on(allocations, alike, result);
            }
            Role::Pointwise { alike, result } => self.pass_on(allocations, alike, result),
            Role::Other => {}
        }
        found
    }

    /// Notes that a backward pass reads these allocations.
    fn keep(&mut self, allocations: &[u64], found: &mut Vec<Finding>) {
        for id in allocations {
            if let Some(traced) = self.live.get_mut(id)
                && traced.read.is_some()
                && !std::mem::replace(&mut traced.kept, true)
            {
                found.push(Finding::NoCache(*id));
            }
        }
    }

    /// Notes that a call of attention reads an allocation, and the allocations from which it was copied.
    fn read(&mut self, id: u64, call: u64, copies: usize, found: &mut Vec<Finding>) {
        let Some(traced) = self.live.get_mut(&id) else { return };
        let first = *traced.read.get_or_insert(call);
        if !traced.kept && (first != call || traced.grown) {
            found.push(Finding::Cache(id));
        }
        if copies > 0 {
            for source in traced.copied_from.clone() {
                self.read(source, call, copies - 1, found);
            }
        }
    }

    fn join(&mut self, allocations: &[u64], result: usize, found: &mut Vec<Finding>) {
        let sources = &allocations[..result];
        let read: Vec<u64> = sources
            .iter()
            .copied()
            .filter(|id| self.live.get(id).is_some_and(|traced| traced.read.is_some() && !traced.kept))
            .collect();
        let Some(traced) = self.live.get_mut(&allocations[result]) else { return };
        traced.grown = !read.is_empty();
        traced.copied_from = sources.to_vec();
        found.extend(read.into_iter().map(Finding::Cache));
    }

    /// Values computed from scores or weights element by element are scores or weights, too.
    fn pass_on(&mut self, allocations: &[u64], alike: Positions, result: usize) {
        let alike = (0..Positions::BITS as usize).take(result).filter(|at| alike >> at & 1 == 1);
        if let Some(inside) = alike.into_iter().find_map(|at| self.inside(allocations[at])) {
            self.becomes(allocations[result], inside);
        }
    }

    fn inside(&self, id: u64) -> Option<Inside> {
        self.live.get(&id)?.inside
    }

    fn becomes(&mut self, id: u64, inside: Inside) {
        if let Some(traced) = self.live.get_mut(&id) {
            traced.inside = Some(inside);
        }
    }
}

impl Role {
    fn of(definition: &Definition) -> Role {
        let arguments: Vec<&Tensor> = definition.arguments.iter().flat_map(Argument::tensors).collect();
        let results: Vec<&Tensor> = definition.results.iter().flat_map(Argument::tensors).collect();
        // The first result follows all arguments.
        let (count, result) = (arguments.len(), arguments.len());
        let several: Vec<usize> = (0..count).filter(|at| arguments[*at].elements() > 1).collect();
        let is_alike =
            |at: &usize| results.first().is_some_and(|result| result.elements() == arguments[*at].elements());
        let alike = several.iter().filter(|at| **at < 64 && is_alike(at)).fold(0, |positions, at| positions | 1 << at);
        let name = definition.base_name();
        let fused = name.starts_with("_scaled_dot_product")
            || ["_flash_attention_forward", "_efficient_attention_forward"].contains(&name);
        match name {
            _ if results.is_empty() => Role::Other,
            // A backward pass that runs such an operator is known by its line; this case is for gradients that a
            // program requests itself.
            _ if name.ends_with("_backward") => Role::Other,
            _ if fused && count >= 3 => Role::Fused { keys: 1, values: 2 },
            "bmm" if count == 2 => Role::Product { left: 0, right: 1, result },
            "baddbmm" | "baddbmm_" if count == 3 => Role::Product { left: 1, right: 2, result },
            "_softmax" | "_safe_softmax" if count == 1 => Role::Softmax { scores: 0, result },
            "cat" if count > 1 => Role::Join { result },
            "index" | "index_select" | "gather" | "repeat_interleave" if count > 0 => {
                Role::Copy { source: 0, alike, result }
            }
            "mm" | "addmm" | "sum" | "mean" | "embedding" => Role::Other,
            _ => match &several[..] {
                [] => Role::Other,
                [source] if results[0].elements() >= arguments[*source].elements() => {
                    Role::Copy { source: *source, alike, result }
                }
                _ => Role::Pointwise { alike, result },
            },
        }
    }
}
