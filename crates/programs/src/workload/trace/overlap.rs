//! Owns GEMMs whose input tensor-parallel ranks gather before, and whose result they scatter after, at once or in
//! parts: with sequence parallelism, the communication of one part of the tokens overlaps the GEMMs of another part
//! (Transformer Engine's `ub_overlap`, Megatron-LM's `--tp-comm-overlap`).
//!
//! If a communication of duration a and a GEMM of duration b are split into n parts, the first or last part of the
//! communication overlaps no compute: together they last a/n + (n-1)/n max(a, b) + b/n, if a part lasts the n-th of the
//! whole.

use super::super::layout::Group;
use super::super::model::Model;
use super::super::operators::{BackwardPart, Operators};
use super::Trace;
use uniference_formats::chakra::schema::CommType;

impl Trace {
    /// Gathers tokens and applies `product` to them.
    pub(super) fn gathered(&mut self, what: &str, product: impl Fn(&Model, &mut Operators, u64)) {
        let (parts, tokens) = (self.parts(), self.spec.tokens());
        if parts == 1 {
            self.gather_tokens(1);
            return self.compute(what, |model, operators| product(model, operators, tokens));
        }
        let bytes = self.stream_bytes() / self.tensor() / parts;
        let before: Vec<u64> = self.last.into_iter().chain(self.awaited.drain(..)).collect();
        let mut gathered = None;
        for _ in 0..parts {
            self.issue("tokens", 1);
            let after = before.iter().copied().chain(self.issued).chain(gathered).collect();
            gathered = Some(self.meet(Group::Tensor, CommType::AllGather, "tokens", bytes, after));
            self.awaited.extend(gathered);
            self.compute(what, |model, operators| product(model, operators, tokens / parts));
        }
    }

    /// Applies `product`, and reduces and scatters its results.
    pub(super) fn scattered(&mut self, what: &str, product: impl Fn(&Model, &mut Operators, u64)) {
        let (parts, tokens) = (self.parts(), self.spec.tokens());
        if parts == 1 {
            self.compute(what, |model, operators| product(model, operators, tokens));
            return self.sum_tokens(1);
        }
        let bytes = self.stream_bytes() / parts;
        let mut scattered = None;
        for _ in 0..parts {
            self.compute(what, |model, operators| product(model, operators, tokens / parts));
            self.issue("sum", 1);
            let after = self.last.into_iter().chain(self.issued).chain(scattered).collect();
            scattered = Some(self.meet(Group::Tensor, (CommType::ReduceScatter, self.dtype()), "sum", bytes, after));
        }
        self.last = scattered;
    }

    /// Number of parts of the tokens; gradients of weights need no communication.
    fn parts(&self) -> u64 {
        if self.backward_part == BackwardPart::Weights { 1 } else { self.spec.implementation.tensor_parts }
    }
}
