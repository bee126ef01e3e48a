//! placeholder adapter
use uniference_sim::program::Collective;

#[derive(Default)]
pub(super) struct FoldPlan {
    pub(super) folds: Vec<Fold>,
    whole: u64,
}

pub(super) struct Fold {
    pub(super) into: usize,
    pub(super) from: usize,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl FoldPlan {
    pub(super) fn new(call: &Collective, size: usize, _algorithm: Option<&'static str>) -> FoldPlan {
        use uniference_sim::program::{CollectiveKind::*, Shape};
        let whole = match (&call.shape, call.kind) {
            (Shape::Even(n), ReduceScatter) => n * size as u64,
            (Shape::Even(n), _) => *n,
            (Shape::Blocks(b), _) => b.iter().sum(),
            _ => 0,
        };
        FoldPlan { folds: (1..size).map(|from| Fold { into: 0, from, start: 0, len: whole }).collect(), whole }
    }

    pub(super) fn homes(&self, start: u64, len: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        debug_assert!(start + len <= self.whole);
        std::iter::once((0, start, len))
    }
}
