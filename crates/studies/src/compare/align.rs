//! Owns the alignment of two runs: it pairs the operations of one group or pair of ranks as `diff` pairs lines.

use super::timeline::MatchedOperation;
use similar::{Algorithm, DiffOp, capture_diff_slices};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum length of a diff, whose cost is the product of length and differences: longer stretches without a common
/// start or end are paired by occurrence.
const LONGEST_DIFF: usize = 20_000;

/// The key of an operation: its name and, at first, its size and its line too. Programs of two runs may differ in both.
type Token<'a> = (&'static str, Option<u64>, Option<&'a str>);

/// Operations of a run, in order, and the lines of its program.
pub(super) type Run<'a> = (&'a [MatchedOperation], &'a [String]);

/// The pairs of indices of equal operations, both ascending. Operations with equal name, size and line are paired
/// first; between them, operations with equal name and line, then with equal name and size, then with equal name.
/// Operations of different names are never paired.
pub(super) fn align(first: Run<'_>, second: Run<'_>) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut gaps = vec![(0..first.0.len(), 0..second.0.len())];
    for (with_size, with_line) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut left = Vec::new();
        for (a, b) in gaps {
            let of = |run, range: &Range<usize>| tokens(run, range.clone(), with_size, with_line);
            let (mut next_a, mut next_b) = (a.start, b.start);
            for (in_a, in_b) in common(&of(first, &a), &of(second, &b)) {
                let (at_a, at_b) = (a.start + in_a, b.start + in_b);
                left.push((next_a..at_a, next_b..at_b));
                pairs.push((at_a, at_b));
                (next_a, next_b) = (at_a + 1, at_b + 1);
            }
            left.push((next_a..a.end, next_b..b.end));
        }
        left.retain(|(a, b)| !a.is_empty() && !b.is_empty());
        gaps = left;
    }
    pairs.sort_unstable();
    pairs
}

fn tokens<'a>((operations, lines): Run<'a>, range: Range<usize>, with_size: bool, with_line: bool) -> Vec<Token<'a>> {
    let token = |MatchedOperation { operation, bytes, site, .. }: &MatchedOperation| {
        let line = lines.get(site.index()).map(String::as_str).filter(|_| with_line);
        (*operation, with_size.then_some(bytes.0), line)
    };
    operations[range].iter().map(token).collect()
}

/// The longest common subsequence, as pairs of indices.
fn common(first: &[Token<'_>], second: &[Token<'_>]) -> Vec<(usize, usize)> {
    let start = first.iter().zip(second).take_while(|(a, b)| a == b).count();
    let (first, second) = (&first[start..], &second[start..]);
    let end = first.iter().rev().zip(second.iter().rev()).take_while(|(a, b)| a == b).count();
    // Operations that the other run does not have only make the search longer.
    let kept = |mine: &[Token<'_>], other: &[Token<'_>]| {
        let known: BTreeSet<&Token<'_>> = other[..other.len() - end].iter().collect();
        (0..mine.len() - end).filter(|at| known.contains(&mine[*at])).collect::<Vec<_>>()
    };
    let (a, b) = (kept(first, second), kept(second, first));
    let (old, new): (Vec<_>, Vec<_>) =
        (a.iter().map(|at| first[*at]).collect(), b.iter().map(|at| second[*at]).collect());
    let mut pairs: Vec<(usize, usize)> = (0..start).map(|at| (at, at)).collect();
    if old.len().max(new.len()) <= LONGEST_DIFF {
        for part in capture_diff_slices(Algorithm::Myers, &old, &new) {
            if let DiffOp::Equal { old_index, new_index, len } = part {
                pairs.extend((0..len).map(|at| (start + a[old_index + at], start + b[new_index + at])));
            }
        }
    } else {
        let same = old.iter().zip(&new).enumerate().filter(|(_, (mine, other))| mine == other);
        pairs.extend(same.map(|(at, _)| (start + a[at], start + b[at])));
    }
    let (last_a, last_b) = (start + first.len() - end, start + second.len() - end);
    pairs.extend((0..end).map(|at| (last_a + at, last_b + at)));
    pairs
}
