//! Owns in which named range of its rank an activity was issued. Numbers of activities tell what was before what, also at one instant; when a range is
//! open in virtual time is the business of whoever asks for that.

use crate::ids::{Handle, TaskId};
use std::collections::BTreeMap;

/// The ranges of one rank's threads, by the activities that begin and end them; `N` is what a range is called by.
#[derive(Clone, Debug)]
pub struct IssueRanges<N> {
    /// Those that are open, in the order in which they have begun.
    open: Vec<(TaskId, N)>,
    /// From these activities on the range that has begun last was this one; in order.
    of_rank: Vec<(Handle, Option<N>)>,
    /// The same of each thread by itself.
    of_threads: BTreeMap<TaskId, Vec<(Handle, Option<N>)>>,
}

impl<N> Default for IssueRanges<N> {
    fn default() -> IssueRanges<N> {
        IssueRanges { open: Vec::new(), of_rank: Vec::new(), of_threads: BTreeMap::new() }
    }
}

impl<N: Clone> IssueRanges<N> {
    /// With this activity the thread's range `begun` begins, or if there is none its innermost one ends.
    pub fn mark(&mut self, task: TaskId, handle: Handle, begun: Option<N>) {
        match begun {
            Some(name) => self.open.push((task, name)),
            None => drop(self.open.iter().rposition(|(by, _)| *by == task).map(|at| self.open.remove(at))),
        }
        let own = self.open.iter().rfind(|(by, _)| *by == task).map(|(_, name)| name.clone());
        self.of_threads.entry(task).or_default().push((handle, own));
        self.of_rank.push((handle, self.last().cloned()));
    }

    /// Of the ranges that are open now, the one that has begun last.
    pub fn last(&self) -> Option<&N> {
        self.open.last().map(|(_, name)| name)
    }

    /// The innermost range of a thread when it issued an activity, or where it had none, as a thread of autograd, the one of the rank that had begun
    /// last.
    pub fn at(&self, task: TaskId, handle: Handle) -> Option<&N> {
        self.of_threads.get(&task).and_then(|own| before(own, handle)).or_else(|| before(&self.of_rank, handle))
    }
}

fn before<N>(marks: &[(Handle, Option<N>)], handle: Handle) -> Option<&N> {
    let last = marks.partition_point(|(mark, _)| *mark < handle).checked_sub(1)?;
    marks[last].1.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activity_is_in_the_range_of_its_thread_or_else_of_its_rank() {
        let (main, other) = (TaskId(0), TaskId(1));
        let mut ranges = IssueRanges::default();
        let marks = [(main, Some("step")), (main, Some("forward")), (other, Some("hook")), (main, None), (other, None)];
        for (handle, (task, begun)) in (0..).step_by(10).map(Handle).zip(marks) {
            ranges.mark(task, handle, begun);
        }
        let at = |task, handle| ranges.at(task, Handle(handle)).copied();
        assert_eq!(
            [5, 15, 25, 35].map(|handle| at(main, handle)),
            [Some("step"), Some("forward"), Some("forward"), Some("step")]
        );
        assert_eq!(
            [15, 25, 35, 45].map(|handle| at(other, handle)),
            [Some("forward"), Some("hook"), Some("hook"), Some("step")]
        );
        assert_eq!((at(main, 0), ranges.last()), (None, Some(&"step")));
    }
}
