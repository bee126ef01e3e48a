//! Owns the order in which a pipeline stage carries out its micro-batches. It does not know what they cost.
//!
//! Sources: GPipe, Huang et al., 2019; one forward one backward (1F1B), Narayanan et al., "PipeDream", SOSP 2019, in its flushing form and
//! interleaved, Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 2.2.
//! With p stages, m micro-batches and v pieces a stage, the part of a step that a stage idles, over the part it works, is
//! (p-1) / m for GPipe and 1F1B, and (p-1) / (v m) interleaved.

use super::{WorkloadError, refuse};

/// The order of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// All forwards, then all backwards.
    GPipe,
    /// One forward, one backward, once the pipeline is full.
    OneForwardOneBackward,
    /// The same with so many pieces of the model on each stage.
    Interleaved(u32),
}

/// One micro-batch through one piece of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) backward: bool,
    pub(super) micro_batch: u64,
    /// Which of the stage's pieces.
    pub(super) chunk: u32,
}

impl Schedule {
    /// Pieces of the model on each stage.
    pub fn chunks(self) -> u32 {
        match self {
            Schedule::GPipe | Schedule::OneForwardOneBackward => 1,
            Schedule::Interleaved(chunks) => chunks,
        }
    }

    pub(super) fn check(self, stages: u32, micro_batches: u64) -> Result<(), WorkloadError> {
        let Schedule::Interleaved(chunks) = self else { return Ok(()) };
        if stages < 2 || chunks == 0 || u64::from(stages) * u64::from(chunks) > 1 << 20 {
            return refuse(format!("{chunks} pieces cannot interleave on {stages} stages"), "use 2 stages or more");
        }
        match micro_batches.is_multiple_of(u64::from(stages)) {
            true => Ok(()),
            false => refuse(
                format!("{micro_batches} micro-batches are no multiple of {stages} stages"),
                "interleaving needs one; choose another --batch or --micro-batch",
            ),
        }
    }

    /// The `index`-th item of a stage when training; `None` at the end.
    pub(super) fn train(self, index: u64, stage: u32, stages: u32, micro_batches: u64) -> Option<Item> {
        let total = micro_batches * u64::from(self.chunks());
        let warm_up = match self {
            Schedule::GPipe => total,
            Schedule::OneForwardOneBackward => u64::from(stages - stage - 1).min(total),
            Schedule::Interleaved(chunks) => {
                (u64::from(stages - stage - 1) * 2 + u64::from(chunks - 1) * u64::from(stages)).min(total)
            }
        };
        let after = index.checked_sub(warm_up);
        let (backward, count) = match after {
            None => (false, index),
            Some(after) if after < 2 * (total - warm_up) => match after % 2 {
                0 => (false, warm_up + after / 2),
                _ => (true, after / 2),
            },
            Some(after) => (true, after - (total - warm_up)),
        };
        (index < 2 * total).then(|| self.item(backward, count, stages))
    }

    /// The same where there is no backward pass.
    pub(super) fn infer(self, index: u64, stages: u32, micro_batches: u64) -> Option<Item> {
        (index < micro_batches * u64::from(self.chunks())).then(|| self.item(false, index, stages))
    }

    /// The `count`-th forward, or backward, of a stage: as many micro-batches as there are stages go through one piece, then through the
    /// next.
    fn item(self, backward: bool, count: u64, stages: u32) -> Item {
        let (chunks, stages) = (u64::from(self.chunks()), u64::from(stages));
        if chunks == 1 {
            return Item { backward, micro_batch: count, chunk: 0 };
        }
        let (round, within) = (count / (stages * chunks), count % (stages * chunks));
        let chunk = (within / stages) as u32;
        let chunk = if backward { self.chunks() - 1 - chunk } else { chunk };
        Item { backward, micro_batch: round * stages + within % stages, chunk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Every micro-batch goes through every piece once each way, forwards before it goes backwards.
    #[rstest]
    #[case(Schedule::GPipe, 3, 5)]
    #[case(Schedule::OneForwardOneBackward, 4, 6)]
    #[case(Schedule::OneForwardOneBackward, 4, 2)]
    #[case(Schedule::Interleaved(3), 4, 8)]
    #[case(Schedule::Interleaved(2), 2, 2)]
    fn a_stage_does_everything_once(#[case] schedule: Schedule, #[case] stages: u32, #[case] micro_batches: u64) {
        for stage in 0..stages {
            let items: Vec<Item> =
                (0..).map_while(|index| schedule.train(index, stage, stages, micro_batches)).collect();
            assert_eq!(items.len() as u64, 2 * micro_batches * u64::from(schedule.chunks()));
            for (at, item) in items.iter().enumerate() {
                assert!(!items[..at].contains(item), "{item:?}");
                assert!(!item.backward || items[..at].contains(&Item { backward: false, ..*item }), "{item:?}");
            }
        }
    }
}
