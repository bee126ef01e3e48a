//! Owns ZB-H1's order: 1F1B with backward passes that are split in two (Qi et al., "Zero bubble pipeline parallelism",
//! ICLR 2024, section 2.3).
//!
//! The previous stage waits only for the gradients of inputs. Gradients of weights come later on later stages: on stage
//! s (from 0) those of a micro-batch follow the input gradients of the s-th micro-batch after it. A stage s has p - s
//! forward passes before its first backward pass as in 1F1B, so with the s micro-batches whose weight gradients are
//! open every stage keeps p. At the end of a step, when stages would wait for each other, they compute the remaining
//! gradients of weights. With forward passes of F, and backward passes of B for inputs and W for weights, where W <= F
//! and W <= B, a stage idles for (p-1) (F + B - W); with 1F1B for (p-1) (F + B + W) (table 2).

use super::{Item, Task};

pub(super) fn order(stage: u32, stages: u32, micro_batches: u64) -> impl Iterator<Item = Item> + Send {
    let item = |task| move |micro_batch| Item { task, micro_batch, chunk: 0 };
    let (ahead, late) = (u64::from(stages - stage).min(micro_batches), u64::from(stage).min(micro_batches));
    let round = move |index: u64| {
        [
            Some(item(Task::InputGradients)(index)),
            index.checked_sub(late).map(item(Task::WeightGradients)),
            Some(index + ahead).filter(|next| *next < micro_batches).map(item(Task::Forward)),
        ]
    };
    let rounds = (0..micro_batches).flat_map(round).flatten();
    let left = (micro_batches - late..micro_batches).map(item(Task::WeightGradients));
    (0..ahead).map(item(Task::Forward)).chain(rounds).chain(left)
}
