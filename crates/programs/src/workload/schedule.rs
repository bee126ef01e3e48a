//! Owns the order in which a pipeline stage processes its micro-batches. It does not know their costs.
//!
//! Sources: GPipe, Huang et al., 2019; one forward one backward (1F1B), Narayanan et al., "PipeDream", SOSP 2019, in
//! its flushing form and interleaved, Narayanan et al., "Efficient large-scale language model training on GPU clusters
//! using Megatron-LM", SC 2021, section 2.2. With p stages, m micro-batches and v model chunks per stage, the ratio of
//! a stage's idle time in a step to its working time is (p-1) / m for GPipe and 1F1B, and (p-1) / (v m) interleaved.
//! `bidirectional` and `split` hold the schedules that split the backward pass in two.

mod bidirectional;
mod split;

use super::{WorkloadError, refuse};

/// The order of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward pass and one backward pass alternately, once the pipeline is full.
    OneForwardOneBackward,
    /// 1F1B with this number of model chunks per stage.
    Interleaved(u32),
    /// 1F1B in which gradients of weights fill the times in which stages would idle: ZB-H1 (Qi et al., "Zero bubble
    /// pipeline parallelism", ICLR 2024, section 2.3).
    ZeroBubble,
    /// Micro-batches enter at both ends, and each stage also has the chunk of the opposite stage; forward and backward
    /// passes of opposite directions overlap (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1).
    DualPipe,
}

/// One pass of a micro-batch through one model chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) task: Task,
    pub(super) micro_batch: u64,
    /// Index of the chunk on its stage.
    pub(super) chunk: u32,
}

/// Kind of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Forward,
    /// The whole backward pass: gradients of inputs and weights.
    Backward,
    /// The part of a backward pass that the previous stage waits for.
    InputGradients,
    /// The remaining part: gradients of weights.
    WeightGradients,
}

/// An item, and optionally another one that overlaps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) item: Item,
    pub(super) beside: Option<Item>,
}

/// The items of a stage in a training step, in order.
pub(super) type Order = Box<dyn Iterator<Item = Slot> + Send>;

impl Item {
    fn alone(self) -> Slot {
        Slot { item: self, beside: None }
    }
}

impl Schedule {
    /// Number of model chunks on each stage.
    pub fn chunks(self) -> u32 {
        match self {
            Schedule::GPipe | Schedule::OneForwardOneBackward | Schedule::ZeroBubble => 1,
            Schedule::Interleaved(chunks) => chunks,
            Schedule::DualPipe => 2,
        }
    }

    /// Whether gradients of inputs and of weights are computed separately.
    pub(super) fn splits_backward(self) -> bool {
        matches!(self, Schedule::ZeroBubble | Schedule::DualPipe)
    }

    /// Number of model chunks of the whole model.
    pub(super) fn pieces(self, stages: u32) -> u32 {
        if self == Schedule::DualPipe { stages } else { stages * self.chunks() }
    }

    /// The model chunk that is a stage's `chunk`-th.
    pub(super) fn piece(self, chunk: u32, stage: u32, stages: u32) -> u32 {
        match self {
            Schedule::DualPipe => bidirectional::piece(chunk, stage, stages),
            _ => chunk * stages + stage,
        }
    }

    /// The stage that runs `piece` for the micro-batches that run in the `chunk`-th chunk of `stage`.
    pub(super) fn stage_of(self, piece: u32, chunk: u32, stage: u32, stages: u32) -> u32 {
        match self {
            Schedule::DualPipe => bidirectional::stage_of(piece, chunk, stage, stages),
            _ => piece % stages,
        }
    }

    /// Whether this is the last micro-batch of its model chunk.
    pub(super) fn is_last(self, item: Item, micro_batches: u64) -> bool {
        let each = if self == Schedule::DualPipe { micro_batches / 2 } else { micro_batches };
        (item.micro_batch + 1).is_multiple_of(each)
    }

    /// The items of a stage in a training step, in order.
    pub(super) fn order(self, stage: u32, stages: u32, micro_batches: u64) -> Order {
        match self {
            Schedule::ZeroBubble => Box::new(split::order(stage, stages, micro_batches).map(Item::alone)),
            Schedule::DualPipe => Box::new(bidirectional::order(stage, stages, micro_batches)),
            _ => {
                let item = move |index| self.train(index, stage, stages, micro_batches);
                Box::new((0..).map_while(item).map(Item::alone))
            }
        }
    }

    pub(super) fn check(self, stages: u32, micro_batches: u64) -> Result<(), WorkloadError> {
        if self.splits_backward() {
            return self.check_split(stages, micro_batches);
        }
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

    fn check_split(self, stages: u32, micro_batches: u64) -> Result<(), WorkloadError> {
        if self == Schedule::ZeroBubble && stages < 2 {
            return refuse("one pipeline stage has no bubble".into(), "use --schedule 1f1b, or --pp of at least 2");
        }
        if self == Schedule::DualPipe && (stages < 2 || !stages.is_multiple_of(2)) {
            return refuse(
                format!("{stages} pipeline stages have no opposite stages"),
                "the dualpipe schedule requires an even --pp",
            );
        }
        let fits = micro_batches.is_multiple_of(2) && micro_batches >= 2 * u64::from(stages);
        if self == Schedule::DualPipe && !fits {
            return refuse(
                format!("{micro_batches} micro-batches do not fill {stages} pipeline stages from both ends"),
                "the dualpipe schedule requires an even number of at least 2 x pp; choose another --batch or --micro-batch",
            );
        }
        Ok(())
    }

    /// The `index`-th item of a stage in a training step, for schedules that do not split backward passes; `None` at
    /// the end.
    pub(super) fn train(self, index: u64, stage: u32, stages: u32, micro_batches: u64) -> Option<Item> {
        let total = micro_batches * u64::from(self.chunks());
        let warm_up = self.warm_up(stage, stages).map_or(total, |warm_up| warm_up.min(total));
        let after = index.checked_sub(warm_up);
        let (task, count) = match after {
            None => (Task::Forward, index),
            Some(after) if after < 2 * (total - warm_up) => match after % 2 {
                0 => (Task::Forward, warm_up + after / 2),
                _ => (Task::Backward, after / 2),
            },
            Some(after) => (Task::Backward, after - (total - warm_up)),
        };
        (index < 2 * total).then(|| self.item(task, count, stages))
    }

    /// Number of forward passes before the first one that a backward pass follows at once; `None`: all of them.
    fn warm_up(self, stage: u32, stages: u32) -> Option<u64> {
        let after = u64::from(stages - stage - 1);
        match self {
            Schedule::GPipe => None,
            Schedule::OneForwardOneBackward | Schedule::ZeroBubble | Schedule::DualPipe => Some(after),
            Schedule::Interleaved(chunks) => Some(after * 2 + u64::from(chunks - 1) * u64::from(stages)),
        }
    }

    /// The maximum of the memory that a stage keeps in a training step, if a forward pass through its chunk `chunk`
    /// needs `kept(chunk)` until its backward pass is done. For equal chunks it is: all m micro-batches (GPipe), as
    /// many as there are stages from this one on (1F1B; Narayanan et al. 2021, section 2.2.1), and 1 + (p-1) / (p v) of
    /// 1F1B's maximum on the first stage (interleaved; Korthikanti et al., "Reducing activation recomputation in large
    /// transformer models", 2022, section 4.2.3). Memory is kept in full until gradients of weights are computed: p on
    /// every stage for ZB-H1 (Qi et al. 2024, table 2), p + 1 for DualPipe (DeepSeek-V3 technical report, table 2).
    pub(super) fn most_kept(self, stage: u32, stages: u32, micro_batches: u64, kept: impl Fn(u32) -> u64) -> u64 {
        let kept_of = |task, size: u64| match task {
            Task::Forward => (size, 0),
            Task::Backward | Task::WeightGradients => (0, size),
            Task::InputGradients => (0, 0),
        };
        if self.splits_backward() {
            // A full pipeline keeps a constant amount of memory, so a limited number of micro-batches is examined.
            let enough = micro_batches.min(4 * u64::from(stages));
            let (mut now, mut most) = (0_u64, 0);
            for Slot { item, beside } in self.order(stage, stages, enough) {
                let changes = [Some(item), beside]
                    .map(|item| item.map_or((0, 0), |Item { task, chunk, .. }| kept_of(task, kept(chunk))));
                now = changes.iter().fold(now, |now, (more, _)| now.saturating_add(*more));
                most = most.max(now);
                now = changes.iter().fold(now, |now, (_, less)| now.saturating_sub(*less));
            }
            return most;
        }
        let Some(warm_up) = self.warm_up(stage, stages) else {
            return micro_batches.saturating_mul(kept(0));
        };
        // After the warm-up each forward pass is followed by a backward pass, and the order of chunks repeats after
        // `stages x chunks` of both.
        let items = warm_up + 2 * u64::from(stages) * u64::from(self.chunks());
        let kept: Vec<u64> = (0..self.chunks()).map(kept).collect();
        let (mut now, mut most) = (0_u64, 0);
        for item in (0..items).map_while(|index| self.train(index, stage, stages, micro_batches)) {
            let size = kept[item.chunk as usize];
            let (more, less) = kept_of(item.task, size);
            now = now.saturating_add(more) - less;
            most = most.max(now);
        }
        most
    }

    /// The `index`-th item of a stage without backward passes; `None` at the end.
    pub(super) fn infer(self, index: u64, stages: u32, micro_batches: u64) -> Option<Item> {
        (index < micro_batches * u64::from(self.chunks())).then(|| self.item(Task::Forward, index, stages))
    }

    /// The `count`-th forward or backward pass of a stage: as many micro-batches as there are stages pass through one
    /// chunk, then through the next one.
    fn item(self, task: Task, count: u64, stages: u32) -> Item {
        let (chunks, stages) = (u64::from(self.chunks()), u64::from(stages));
        if chunks == 1 {
            return Item { task, micro_batch: count, chunk: 0 };
        }
        let (round, within) = (count / (stages * chunks), count % (stages * chunks));
        let chunk = (within / stages) as u32;
        let chunk = if task == Task::Backward { self.chunks() - 1 - chunk } else { chunk };
        Item { task, micro_batch: round * stages + within % stages, chunk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Every micro-batch passes through every chunk once in each direction, forward before backward, and gradients of
    /// weights come last.
    #[rstest]
    #[case(Schedule::GPipe, 3, 5)]
    #[case(Schedule::OneForwardOneBackward, 4, 6)]
    #[case(Schedule::OneForwardOneBackward, 4, 2)]
    #[case(Schedule::Interleaved(3), 4, 8)]
    #[case(Schedule::Interleaved(2), 2, 2)]
    #[case(Schedule::ZeroBubble, 4, 9)]
    #[case(Schedule::ZeroBubble, 4, 2)]
    #[case(Schedule::DualPipe, 4, 10)]
    #[case(Schedule::DualPipe, 8, 16)]
    fn a_stage_does_everything_once(#[case] schedule: Schedule, #[case] stages: u32, #[case] micro_batches: u64) {
        // A micro-batch of DualPipe passes through one of a stage's two chunks.
        let through = if schedule == Schedule::DualPipe { 1 } else { u64::from(schedule.chunks()) };
        for stage in 0..stages {
            let slots = schedule.order(stage, stages, micro_batches);
            let items: Vec<Item> =
                slots.flat_map(|Slot { item, beside }| std::iter::once(item).chain(beside)).collect();
            let count = |tasks: &[Task]| items.iter().filter(|item| tasks.contains(&item.task)).count() as u64;
            assert_eq!(count(&[Task::Forward]), micro_batches * through);
            assert_eq!(count(&[Task::Backward, Task::InputGradients]), micro_batches * through);
            assert_eq!(count(&[Task::InputGradients]), count(&[Task::WeightGradients]));
            for (at, item) in items.iter().enumerate() {
                let before = &items[..at];
                let done = |task| before.contains(&Item { task, ..*item });
                assert!(!before.contains(item), "{item:?}");
                match item.task {
                    Task::Forward => {}
                    Task::Backward | Task::InputGradients => assert!(done(Task::Forward), "{item:?}"),
                    Task::WeightGradients => assert!(done(Task::InputGradients), "{item:?}"),
                }
            }
        }
    }
}
