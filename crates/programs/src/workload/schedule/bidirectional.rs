//! Owns DualPipe's order and its assignment of model chunks to stages (DeepSeek-AI, "DeepSeek-V3 technical report",
//! 2024, section 3.2.1, figure 5).
//!
//! One half of the micro-batches enters at stage 0 and goes up, the other at stage p-1 and goes down. A stage s and the
//! opposite stage p-1-s have the same two chunks: the one *near* the end at which a direction enters, and the one *far*
//! from it. Opposite stages therefore do the same work in mirrored positions. The order of the k-th stage from the
//! nearer end, with h = p/2, is:
//!
//! 1. 2 (h-1-k) forward passes of near,
//! 2. k+1 forward passes of near and far alternately,
//! 3. h-1-k times: input gradients of far, weight gradients, a forward pass of far,
//! 4. m/2 - p + k + 1 times: a forward pass of near that overlaps a backward pass of far, then a forward pass of far
//!    that overlaps a backward pass of near; on the two stages in the middle, the first two passes do not overlap,
//! 5. h-1-k times: a backward pass of far, then a forward pass of far that overlaps a backward pass of near,
//! 6. k+1 backward passes of far and near alternately, the second half of them of inputs only,
//! 7. h-1-k times: weight gradients, input gradients of near,
//! 8. k+1 weight gradients.
//!
//! With F for a forward pass, B for a whole backward pass, W for its weight gradients and F&B for overlapping forward
//! and backward passes, a stage idles for (p/2-1) (F&B + B - 3W) if B - W <= F, for less if B - W is longer, and keeps
//! p+1 micro-batches (table 2).

use super::{Item, Slot, Task};
use std::collections::VecDeque;
use std::iter::repeat_n;

/// The chunk near the end where a direction enters, as an index on its stage, and the chunk far from it.
const NEAR: u32 = 0;
const FAR: u32 = 1;

/// The next pass of a chunk.
#[derive(Clone, Copy)]
enum Step {
    Forward(u32),
    Backward(u32),
    InputGradients(u32),
    /// Weight gradients of the oldest micro-batch whose weight gradients are open.
    WeightGradients,
    /// A forward pass of the first chunk that overlaps a backward pass of the second.
    Both(u32, u32),
}

fn from_end(stage: u32, stages: u32) -> u32 {
    stage.min(stages - 1 - stage)
}

/// Whether micro-batches go up through a stage's chunk.
fn goes_up(chunk: u32, stage: u32, stages: u32) -> bool {
    (stage < stages / 2) == (chunk == NEAR)
}

pub(super) fn piece(chunk: u32, stage: u32, stages: u32) -> u32 {
    let near = from_end(stage, stages);
    if chunk == NEAR { near } else { stages - 1 - near }
}

pub(super) fn stage_of(piece: u32, chunk: u32, stage: u32, stages: u32) -> u32 {
    if goes_up(chunk, stage, stages) { piece } else { stages - 1 - piece }
}

pub(super) fn order(stage: u32, stages: u32, micro_batches: u64) -> impl Iterator<Item = Slot> + Send {
    let half = micro_batches / 2;
    // The numbers of micro-batches that go down follow those of micro-batches that go up.
    let first = move |chunk| if goes_up(chunk, stage, stages) { 0 } else { half };
    let mut forwards = [first(NEAR), first(FAR)];
    let mut backwards = forwards;
    let mut open = VecDeque::new();
    steps(u64::from(from_end(stage, stages)), u64::from(stages), half).map(move |step| {
        let mut next = |task, chunk: u32| {
            let counts = if task == Task::Forward { &mut forwards } else { &mut backwards };
            let micro_batch = counts[chunk as usize];
            counts[chunk as usize] += 1;
            Item { task, micro_batch, chunk }
        };
        match step {
            Step::Forward(chunk) => next(Task::Forward, chunk).alone(),
            Step::Backward(chunk) => next(Task::Backward, chunk).alone(),
            Step::InputGradients(chunk) => {
                let item = next(Task::InputGradients, chunk);
                open.push_back(Item { task: Task::WeightGradients, ..item });
                item.alone()
            }
            Step::WeightGradients => open.pop_front().expect("as many as were put off").alone(),
            Step::Both(forward, backward) => {
                Slot { item: next(Task::Forward, forward), beside: Some(next(Task::Backward, backward)) }
            }
        }
    })
}

fn steps(k: u64, stages: u64, half: u64) -> impl Iterator<Item = Step> + Send {
    use Step::{Backward, Both, Forward, InputGradients, WeightGradients};
    let (before, ends) = ((stages / 2 - 1 - k) as usize, k + 1);
    let fill = repeat_n(Forward(NEAR), 2 * before);
    let both = repeat_n([Forward(NEAR), Forward(FAR)], ends as usize).flatten();
    let split = repeat_n([InputGradients(FAR), WeightGradients, Forward(FAR)], before).flatten();
    let in_the_middle = k + 1 == stages / 2;
    let main = (0..half - stages + ends).flat_map(move |round| {
        let first = match round == 0 && in_the_middle {
            true => [Some(Forward(NEAR)), Some(Backward(FAR))],
            false => [Some(Both(NEAR, FAR)), None],
        };
        first.into_iter().flatten().chain([Both(FAR, NEAR)])
    });
    let drain = repeat_n([Backward(FAR), Both(FAR, NEAR)], before).flatten();
    let last = (0..2 * ends).map(move |index| {
        let chunk = if index % 2 == 0 { FAR } else { NEAR };
        if index < ends { Backward(chunk) } else { InputGradients(chunk) }
    });
    let empty = repeat_n([WeightGradients, InputGradients(NEAR)], before).flatten();
    let rest = repeat_n(WeightGradients, ends as usize);
    fill.chain(both).chain(split).chain(main).chain(drain).chain(last).chain(empty).chain(rest)
}
