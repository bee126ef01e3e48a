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
            return refuse(
                format!("{chunks} virtual stages cannot be interleaved on {stages} pipeline stages"),
                "use at least 2 pipeline stages",
            );
        }
        match micro_batches.is_multiple_of(u64::from(stages)) {
            true => Ok(()),
            false => refuse(
                format!("{micro_batches} micro-batches are not a multiple of {stages} pipeline stages"),
                "the interleaved schedule requires a multiple; choose another --batch or --micro-batch",
            ),
        }
    }

    /// The `index`-th item of a stage when training; `None` at the end.
    pub(super) fn train(self, index: u64, stage: u32, stages: u32, micro_batches: u64) -> Option<Item> {
        let total = micro_batches * u64::from(self.chunks());
        let warm_up = self.warm_up(stage, stages).map_or(total, |warm_up| warm_up.min(total));
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

    /// Forwards before the first one that a backward follows at once; `None`: all of them.
    fn warm_up(self, stage: u32, stages: u32) -> Option<u64> {
        let after = u64::from(stages - stage - 1);
        match self {
            Schedule::GPipe => None,
            Schedule::OneForwardOneBackward => Some(after),
            Schedule::Interleaved(chunks) => Some(after * 2 + u64::from(chunks - 1) * u64::from(stages)),
        }
    }

    /// The most that a stage keeps at one time when training, where a forward through its piece `chunk` leaves `kept(chunk)` to be kept
    /// until its backward is done. Of equal pieces: all m micro-batches (GPipe), as many as there are stages from this one on (1F1B;
    /// Narayanan et al. 2021, section 2.2.1), and 1 + (p-1) / (p v) of what 1F1B keeps on the first stage (interleaved; Korthikanti et al.,
    /// "Reducing activation recomputation in large transformer models", 2022, section 4.2.3).
    pub(super) fn most_kept(self, stage: u32, stages: u32, micro_batches: u64, kept: impl Fn(u32) -> u64) -> u64 {
        let Some(warm_up) = self.warm_up(stage, stages) else {
            return micro_batches.saturating_mul(kept(0));
        };
        // After the warm-up there is a backward for each forward, and the pieces come round again after `stages x chunks` of both.
        let items = warm_up + 2 * u64::from(stages) * u64::from(self.chunks());
        let kept: Vec<u64> = (0..self.chunks()).map(kept).collect();
        let (mut now, mut most) = (0_u64, 0);
        for item in (0..items).map_while(|index| self.train(index, stage, stages, micro_batches)) {
            let size = kept[item.chunk as usize];
            now = if item.backward { now - size } else { now.saturating_add(size) };
            most = most.max(now);
        }
        most
    }

    /// The same as [`Schedule::train`] where there is no backward pass.
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
