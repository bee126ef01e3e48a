//! Owns the handover of slices to the engine: the pieces of a slice, and their dependencies within a task.

use super::dictionary::written_by;
use super::task::{Asked, Handover, TaskConversation};
use super::{Conversations, RankConversation};
use crate::slice::{LoweredWork, RankSlice};
use uniference_protocol::messages::ComputeSlice;
use uniference_sim::ids::{Handle, QueueId, RankId, TaskId};
use uniference_sim::program::{Activity, Origin, Request, Work};
use uniference_sim::replay::RecordedStep;

impl Conversations {
    /// Obtains the costs of a slice and hands its first piece to the engine.
    pub(super) fn compute(&mut self, rank: RankId, task: TaskId, slice: ComputeSlice) {
        let ComputeSlice { measured, operators: last } = slice;
        let RankConversation { tasks, dictionary, .. } = &mut self.ranks[rank.index()];
        let speaking = &mut tasks[task.index()];
        let (ran, heard) = speaking.inbox.take_slice(last);
        // The dictionary arrives on the main task's wire: a slice of another task may have arrived before its
        // definitions.
        let mut operators = dictionary.take(if task == TaskId(0) { heard } else { dictionary.heard() });
        operators.extend(written_by(Some(speaking.process), ran));
        // The line of the operation after the slice, or the previous line.
        let site = speaking.lines.advance(speaking.inbox.ops().front());
        let line = self.lines.text(site);
        let pieces = self.costs.lower(RankSlice { rank, task, line, measured, operators: &operators });
        self.after_another(rank, task);
        if !operators.is_empty() || pieces != [LoweredWork::Host(Work::new(measured, Origin::Measured))] {
            self.took(rank, task, RecordedStep::Operators { operators, measured });
        }
        self.task(rank, task).handover.pieces = pieces.into();
        self.next_piece(rank, task);
    }

    /// Hands the next piece of the task's slice to the engine. All pieces are handed over at once and wait for each
    /// other in the engine: work on the launching CPU is in the task's own queue, and work on CUDA streams waits for
    /// it. The task waits for the end of the work on the launching CPU. Launched work gets the line of the operator
    /// that launched it, other work the line of the call that ends the slice.
    fn next_piece(&mut self, rank: RankId, task: TaskId) {
        let RankConversation { tasks, streams, .. } = &mut self.ranks[rank.index()];
        let TaskConversation { handover, lines, .. } = &mut tasks[task.index()];
        while let Some(piece) = handover.pieces.pop_front() {
            let mut after = streams.dependencies(&piece);
            let (activity, queue) = match &piece {
                LoweredWork::Host(work) => {
                    after = std::mem::take(&mut handover.awaited);
                    (Activity::Compute(work.clone()), QueueId(task.0))
                }
                LoweredWork::Launch(launch) => {
                    (Activity::Compute(launch.work.clone()), QueueId::of_stream(launch.stream))
                }
                LoweredWork::Record { event, stream } => (Activity::Reach(*event), QueueId::of_stream(*stream)),
                LoweredWork::Wait { stream, event } => {
                    streams.wait(*stream, *event);
                    continue;
                }
            };
            if queue.stream().is_some() {
                after.extend(handover.host);
            }
            let mut site = lines.current();
            if let LoweredWork::Launch(launch) = &piece {
                self.times.issues(rank, &launch.ids);
                site = self.lines.captured(rank, launch.line, || self.costs.line(rank, launch.line));
            }
            return self.submit(rank, task, Request::Issue { activity, queue, after, site }, Asked::Piece(piece));
        }
        let host = handover.host.take().expect("the last piece is the host's");
        self.await_end(rank, task, host, Asked::ComputeEnd);
        self.forget_names(rank);
        self.pump_siblings(rank, task);
    }

    /// Records the engine's handle of a piece of a slice, and hands over the next piece.
    pub(super) fn piece_issued(&mut self, rank: RankId, task: TaskId, piece: &LoweredWork, handle: Handle) {
        let RankConversation { tasks, streams, .. } = &mut self.ranks[rank.index()];
        let Handover { host, awaited, .. } = &mut tasks[task.index()].handover;
        match piece {
            LoweredWork::Host(_) => *host = Some(handle),
            _ => awaited.extend(streams.handed(piece, handle)),
        }
        if let LoweredWork::Launch(launch) = piece {
            self.times.issued(rank, &launch.ids, handle, *host);
        }
        self.next_piece(rank, task);
    }

    /// Drops the record's handles of stream activities that no later operation can wait for.
    fn forget_names(&mut self, rank: RankId) {
        let RankConversation { tasks, handles, streams, .. } = &self.ranks[rank.index()];
        self.recording.forget_all_but(rank, || {
            let mut known = streams.known();
            known.extend(tasks.iter().flat_map(|task| task.handover.host.iter().chain(&task.handover.awaited)));
            move |handle| handles.own(handle).is_some() || known.contains(&handle)
        });
    }
}
