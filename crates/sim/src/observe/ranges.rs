//! Owns the assignment of activities to the named ranges in which they were issued. The order of events is known from
//! the activities' numbers, also within one instant. The times in virtual time at which a range is open are not
//! covered.

use crate::event::Why;
use crate::ids::{Handle, TaskId};
use crate::program::Mark;
use std::collections::BTreeMap;

/// The ranges of one rank's threads, by the activities that begin and end them; `N` is the type of a range's name.
/// Threads form a family if one of them has reported marks of another: autograd's threads and the thread whose backward
/// pass they run report each other's marks, and take turns.
#[derive(Clone, Debug)]
pub struct IssueRanges<N> {
    /// All ranges so far, in the order in which they have begun.
    ranges: Vec<Range<N>>,
    /// Indices in `ranges` of the open ranges, in the order in which they have begun.
    open: Vec<usize>,
    /// Families to which each thread has belonged, named by their heads, each with the activity after which the thread
    /// belonged to it; in order. Threads that have only been in their own family are omitted.
    families: BTreeMap<TaskId, Vec<(Handle, TaskId)>>,
    /// The open range that had begun last: the activity from which on it was this range; in order.
    of_rank: Vec<(Handle, Option<usize>)>,
    /// Changes of the innermost open range per family: the activity at which each change happened, in order.
    of_families: BTreeMap<TaskId, Vec<(Handle, Option<usize>)>>,
}

#[derive(Clone, Debug)]
struct Range<N> {
    name: N,
    thread: TaskId,
    /// Number of the range; `None` for a range that ends as the innermost one of its thread.
    number: Option<u32>,
    /// Innermost range of the family that was open when this range began.
    outer: Option<usize>,
    /// Activity that ended the range.
    end: Option<Handle>,
}

impl<N> Default for IssueRanges<N> {
    fn default() -> IssueRanges<N> {
        let (of_rank, of_families, families) = Default::default();
        IssueRanges { ranges: Vec::new(), open: Vec::new(), families, of_rank, of_families }
    }
}

impl<N> IssueRanges<N> {
    /// Records a mark of `thread` that was reported by the task of `why`. `name` converts the name of a range that
    /// begins. Ranges of the whole rank, which may overlap, are not recorded and are nested in no other range.
    pub fn mark(&mut self, thread: TaskId, why: &Why, mark: &Mark, name: impl FnOnce(&str) -> N) {
        let handle = why.handle;
        self.join(why.task, thread, handle);
        let family = self.family(thread);
        match mark {
            Mark::Begin(text) | Mark::Enter { name: text, .. } => {
                let outer = self.innermost(family);
                self.open.push(self.ranges.len());
                self.ranges.push(Range { name: name(text), thread, number: mark.number(), outer, end: None });
            }
            Mark::End | Mark::Leave { .. } => {
                let ends = |range: &Range<N>| match mark.number() {
                    Some(number) => range.number == Some(number),
                    None => range.thread == thread && range.number.is_none(),
                };
                let Some(at) = self.open.iter().rposition(|open| ends(&self.ranges[*open])) else { return };
                let ended = self.open.remove(at);
                self.ranges[ended].end = Some(handle);
            }
            Mark::Open { .. } | Mark::Close { .. } | Mark::Name(_) => return,
        }
        self.of_rank.push((handle, self.open.last().copied()));
        let own = self.innermost(family);
        self.of_families.entry(family).or_default().push((handle, own));
    }

    /// The open range that has begun last.
    pub fn last(&self) -> Option<&N> {
        self.open.last().map(|at| &self.ranges[*at].name)
    }

    /// Innermost range of the thread's family when the thread issued an activity. If the family had no open range, the
    /// open range of the rank that had begun last.
    pub fn at(&self, task: TaskId, handle: Handle) -> Option<&N> {
        self.all_at(task, handle).next()
    }

    /// Innermost range that [`Self::at`] returns, and all ranges that enclose it, from the inside to the outside.
    pub fn all_at(&self, task: TaskId, handle: Handle) -> impl Iterator<Item = &N> {
        let family = self.families.get(&task).and_then(|all| before(all, handle)).unwrap_or(task);
        let own = self.of_families.get(&family).and_then(|own| before(own, handle)?);
        let innermost = own.or_else(|| before(&self.of_rank, handle)?);
        let outwards = std::iter::successors(innermost, |at| self.ranges[*at].outer);
        let is_open = move |at: &usize| self.ranges[*at].end.is_none_or(|end| end > handle);
        outwards.filter(is_open).map(|at| &self.ranges[at].name)
    }

    /// Names of the ranges that have ended, in the order in which they have begun.
    pub fn ended(&self) -> impl Iterator<Item = &N> {
        self.ranges.iter().filter(|range| range.end.is_some()).map(|range| &range.name)
    }

    /// Head of the family to which a thread belongs now.
    fn family(&self, thread: TaskId) -> TaskId {
        self.families.get(&thread).and_then(|all| all.last()).map_or(thread, |(_, family)| *family)
    }

    fn innermost(&self, family: TaskId) -> Option<usize> {
        self.open.iter().rfind(|open| self.family(self.ranges[**open].thread) == family).copied()
    }

    /// Merges the families of two threads from this activity on.
    fn join(&mut self, one: TaskId, other: TaskId, handle: Handle) {
        let (one, other) = (self.family(one), self.family(other));
        if one == other {
            return;
        }
        let (joins, family) = (one.max(other), one.min(other));
        self.families.entry(joins).or_default();
        for (thread, all) in &mut self.families {
            if all.last().map_or(*thread, |(_, of)| *of) == joins {
                all.push((handle, family));
            }
        }
        let innermost = self.innermost(family);
        self.of_families.entry(family).or_default().push((handle, innermost));
    }
}

/// Value of the last change before an activity.
fn before<T: Copy>(changes: &[(Handle, T)], handle: Handle) -> Option<T> {
    let last = changes.partition_point(|(change, _)| *change < handle).checked_sub(1)?;
    Some(changes[last].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(task: TaskId, handle: u32) -> Why {
        Why { task, handle: Handle(handle), ..Why::default() }
    }

    #[test]
    fn an_activity_is_in_the_range_of_its_thread_or_else_of_its_rank() {
        let (main, other) = (TaskId(0), TaskId(1));
        let mut ranges = IssueRanges::default();
        let begin = |name: &str| Mark::Begin(name.into());
        let marks = [
            (main, begin("step")),
            (main, begin("forward")),
            (other, begin("hook")),
            (main, Mark::End),
            (other, Mark::End),
        ];
        for (handle, (task, mark)) in (0..).step_by(10).zip(marks) {
            ranges.mark(task, &by(task, handle), &mark, str::to_owned);
        }
        let at = |task, handle| ranges.at(task, Handle(handle)).map(String::as_str);
        assert_eq!(
            [5, 15, 25, 35].map(|handle| at(main, handle)),
            [Some("step"), Some("forward"), Some("forward"), Some("step")]
        );
        assert_eq!(
            [15, 25, 35, 45].map(|handle| at(other, handle)),
            [Some("forward"), Some("hook"), Some("hook"), Some("step")]
        );
        assert_eq!((at(main, 0), ranges.last().map(String::as_str)), (None, Some("step")));
        assert_eq!(ranges.all_at(main, Handle(15)).collect::<Vec<_>>(), ["forward", "step"]);
    }

    #[test]
    fn threads_that_hand_over_for_each_other_share_their_ranges() {
        let (main, loader, autograd) = (TaskId(0), TaskId(1), TaskId(2));
        let enter = |range, thread, name: &str| Mark::Enter { range, thread, name: name.into() };
        let mut ranges = IssueRanges::default();
        let mut mark = |by_task, handle, mark: Mark| {
            ranges.mark(mark.thread().unwrap(), &by(by_task, handle), &mark, str::to_owned);
        };
        mark(main, 0, enter(0, main, "step"));
        // Autograd's thread reports the main thread's range, and the main thread reports the end of autograd's last
        // range.
        mark(autograd, 10, enter(1, main, "backward"));
        mark(loader, 12, enter(2, loader, "load"));
        mark(autograd, 14, enter(3, autograd, "hook"));
        mark(main, 20, Mark::Leave { range: 3, thread: autograd });
        mark(main, 30, Mark::Leave { range: 1, thread: main });
        let at = |task, handle| ranges.all_at(task, Handle(handle)).map(String::as_str).collect::<Vec<_>>();
        assert_eq!(at(autograd, 13), ["backward", "step"]);
        assert_eq!([at(autograd, 15), at(main, 15)], [["hook", "backward", "step"]; 2]);
        assert_eq!([at(main, 25), at(autograd, 25)], [["backward", "step"]; 2]);
        assert_eq!((at(loader, 25), at(main, 35)), (vec!["load"], vec!["step"]));
    }

    #[test]
    fn activities_before_two_families_join_stay_in_their_own_ranges() {
        let (main, autograd) = (TaskId(0), TaskId(1));
        let enter = |range, thread, name: &str| Mark::Enter { range, thread, name: name.into() };
        let mut ranges = IssueRanges::default();
        let mut mark = |by_task, handle, mark: Mark| {
            ranges.mark(mark.thread().unwrap(), &by(by_task, handle), &mark, str::to_owned);
        };
        mark(main, 0, enter(0, main, "step"));
        mark(autograd, 10, enter(1, autograd, "hook"));
        mark(autograd, 20, enter(2, main, "backward"));
        let at = |task, handle| ranges.at(task, Handle(handle)).map(String::as_str);
        assert_eq!([at(main, 15), at(autograd, 15)], [Some("step"), Some("hook")]);
        assert_eq!([at(main, 25), at(autograd, 25)], [Some("backward"); 2]);
    }

    #[test]
    fn ranges_that_do_not_lie_in_each_other_end_by_their_numbers() {
        let main = TaskId(0);
        let mut ranges = IssueRanges::default();
        let enter = |range, name: &str| Mark::Enter { range, thread: main, name: name.into() };
        let marks = [enter(0, "first"), enter(1, "second"), Mark::Leave { range: 0, thread: main }];
        for (handle, mark) in (0..).step_by(10).zip(marks) {
            ranges.mark(main, &by(main, handle), &mark, str::to_owned);
        }
        let at = |handle| ranges.all_at(main, Handle(handle)).map(String::as_str).collect::<Vec<_>>();
        assert_eq!((at(5), at(15), at(25)), (vec!["first"], vec!["second", "first"], vec!["second"]));
    }
}
