//! Owns one row of a timeline in bounded size: marks that are too close together to be distinguished become one.
//! [`super::timeline`] decides what is marked.

use serde::{Serialize, Serializer};

/// The kind of a mark's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A device computes.
    Compute,
    /// A task is blocked in a communication call, and all peers have entered the call.
    Network,
    /// A task is blocked in a communication call that some peer has not entered.
    LatePeer,
    /// A sleep, a wait for the store.
    Idle,
    /// An operation of a process group is in progress, with or without a waiting task.
    Operation,
    /// A named range of the program is open.
    Range,
}

impl MarkKind {
    /// All kinds in the order of their numbers on the page.
    pub const ALL: [MarkKind; 6] = [
        MarkKind::Compute,
        MarkKind::Network,
        MarkKind::LatePeer,
        MarkKind::Idle,
        MarkKind::Operation,
        MarkKind::Range,
    ];
}

/// A span, or several that were joined. Times are picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    start: u64,
    end: u64,
    /// Name of the longest span.
    name: u32,
    longest: u64,
    count: u64,
    by_kind: [u64; MarkKind::ALL.len()],
}

impl Mark {
    /// A mark of one span.
    pub fn new(start: u64, end: u64, kind: MarkKind, name: u32) -> Mark {
        let mut by_kind = [0; MarkKind::ALL.len()];
        by_kind[kind as usize] = end - start;
        Mark { start, end, name, longest: end - start, count: 1, by_kind }
    }

    fn join(&mut self, other: &Mark) {
        (self.start, self.end) = (self.start.min(other.start), self.end.max(other.end));
        if other.longest > self.longest {
            (self.longest, self.name) = (other.longest, other.name);
        }
        self.count += other.count;
        self.by_kind.iter_mut().zip(other.by_kind).for_each(|(sum, more)| *sum += more);
    }
}

/// Serializes one span as `[start, length, name, kind]`, several as `[start, length, name, count, [time of each kind]]`
/// with the name of the longest.
impl Serialize for Mark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Mark { start, end, name, count, by_kind, .. } = self;
        match count {
            1 => {
                let kind = by_kind.iter().position(|time| *time > 0).unwrap_or_default();
                (start, end - start, name, kind).serialize(serializer)
            }
            _ => (start, end - start, name, count, by_kind).serialize(serializer),
        }
    }
}

/// Marks in the order in which they were added, at most a given number.
pub(super) struct Row {
    marks: Vec<Mark>,
    most: usize,
    /// Length up to which two neighbours are joined.
    grain: u64,
}

impl Row {
    /// A row of at most `most` marks; at least 1.
    pub(super) fn new(most: usize) -> Row {
        Row { marks: Vec::new(), most, grain: 0 }
    }

    /// Adds a span. Spans of no length are left out.
    pub(super) fn add(&mut self, mark: Mark) {
        if mark.start == mark.end {
            return;
        }
        push(&mut self.marks, mark, self.grain);
        if self.marks.len() > self.most {
            self.coarsen();
        }
    }

    /// At most `most` marks, in order of their starts, and the number of their spans.
    pub(super) fn finish(mut self, most: usize) -> (Vec<Mark>, u64) {
        self.most = most.clamp(1, self.most);
        self.marks.sort_by_key(|mark| mark.start);
        if self.marks.len() > self.most {
            self.coarsen();
        }
        let spans = self.marks.iter().map(|mark| mark.count).sum();
        (self.marks, spans)
    }

    fn coarsen(&mut self) {
        self.marks.sort_by_key(|mark| mark.start);
        let end = self.marks.iter().map(|mark| mark.end).max().unwrap_or_default();
        while self.marks.len() > self.most {
            self.grain = (2 * self.grain).max(end / self.most as u64).max(1);
            let marks = std::mem::take(&mut self.marks);
            marks.into_iter().for_each(|mark| push(&mut self.marks, mark, self.grain));
        }
    }
}

fn push(marks: &mut Vec<Mark>, mark: Mark, grain: u64) {
    match marks.last_mut() {
        Some(last) if last.end.max(mark.end) - last.start.min(mark.start) <= grain => last.join(&mark),
        _ => marks.push(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn close_marks_become_one_with_the_longest_ones_name() {
        let mut row = Row::new(2);
        for (start, end, kind, name) in [
            (0, 3, MarkKind::Compute, 7),
            (3, 4, MarkKind::Network, 8),
            (90, 100, MarkKind::Compute, 9),
            (50, 50, MarkKind::Idle, 1),
        ] {
            row.add(Mark::new(start, end, kind, name));
        }
        let (marks, spans) = row.finish(2);
        assert_eq!(spans, 3);
        let shown = serde_json::to_string(&marks).unwrap();
        assert_eq!(shown, "[[0,4,7,2,[3,1,0,0,0,0]],[90,10,9,0]]");
    }

    proptest! {
        #[test]
        fn no_time_is_lost_and_no_row_is_too_long(
            spans in prop::collection::vec((0..1u64 << 40, 1..1u64 << 30, 0..6usize), 1..300),
            most in 1..40usize,
            fewer in 1..40usize,
        ) {
            let mut row = Row::new(most);
            for &(start, length, kind) in &spans {
                row.add(Mark::new(start, start + length, MarkKind::ALL[kind], 0));
            }
            let (marks, count) = row.finish(fewer);
            prop_assert!(marks.len() <= most.min(fewer));
            prop_assert_eq!(count, spans.len() as u64);
            for kind in 0..6 {
                let sum: u64 = marks.iter().map(|mark| mark.by_kind[kind]).sum();
                prop_assert_eq!(sum, spans.iter().filter(|span| span.2 == kind).map(|span| span.1).sum::<u64>());
            }
            prop_assert!(marks.windows(2).all(|pair| pair[0].start <= pair[1].start));
        }
    }
}
