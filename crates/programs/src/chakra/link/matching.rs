//! Owns the matching of operators of a host trace with spans of a profile. Both files number record functions, but
//! older versions number them differently, and a host trace of another run has the same numbers. Names therefore
//! decide, in the order of ids if these agree, else in the order of time.

use super::host::HostTrace;
use super::iterations::Window;
use super::profile::{Category, Profile};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Number of operators ahead that are searched for the next match of two sequences. The cost of a difference is the
/// square of this number.
const LOOK_AHEAD: usize = 48;
/// Maximum number of threads of each file that are compared.
const THREADS: usize = 32;

/// Pairs of operators of the profile and of the host trace.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// By event of the profile: the index of the operator in the host trace.
    pub(super) operator: FxHashMap<u32, u32>,
    /// Number of operators of the host trace, and of the profile.
    pub(super) of_host: usize,
    pub(super) of_profile: usize,
}

impl Matching {
    /// Fraction of the operators that are in both files, relative to the file with more operators.
    pub(super) fn share(&self) -> f64 {
        self.operator.len() as f64 / self.of_host.max(self.of_profile).max(1) as f64
    }
}

/// Pairs the spans of the profile in `window` with operators of the host trace.
pub(super) fn pair(host: &HostTrace, profile: &Profile, window: &Window) -> Matching {
    let is_span = |category| matches!(category, Category::Operator | Category::Annotation);
    let spans: Vec<u32> = (0..profile.events.len() as u32)
        .filter(|event| {
            let event = &profile.events[*event as usize];
            is_span(event.category) && window.contains(event.start_ns)
        })
        .collect();
    let by_ids = along_ids(host, profile, &spans);
    if by_ids.share() >= 0.9 {
        return by_ids;
    }
    let by_time = along_time(host, profile, &spans, window);
    if by_time.share() > by_ids.share() { by_time } else { by_ids }
}

fn along_ids(host: &HostTrace, profile: &Profile, spans: &[u32]) -> Matching {
    let by_function: FxHashMap<u64, u32> = (0..)
        .zip(&host.operators)
        .filter(|(_, operator)| operator.is_timed())
        .map(|(place, operator)| (operator.function, place))
        .collect();
    let (mut first, mut last) = (u64::MAX, 0);
    let mut matching = Matching { of_profile: spans.len(), ..Matching::default() };
    for span in spans {
        let event = &profile.events[*span as usize];
        let Some((function, place)) = event.function.and_then(|id| Some((id, *by_function.get(&id)?))) else {
            continue;
        };
        if host.operators[place as usize].name == profile.name(event) {
            matching.operator.insert(*span, place);
            (first, last) = (first.min(function), last.max(function));
        }
    }
    let between = |function: &u64| (first..=last).contains(function);
    matching.of_host =
        host.operators.iter().filter(|operator| operator.is_timed() && between(&operator.function)).count();
    matching
}

/// Matches operators thread by thread, in the order of their starts.
fn along_time(host: &HostTrace, profile: &Profile, spans: &[u32], window: &Window) -> Matching {
    let mut host_threads: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for place in of_iteration(host, window) {
        host_threads.entry(host.operators[place as usize].thread).or_default().push(place);
    }
    let mut profile_threads: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    for span in spans {
        profile_threads.entry(profile.events[*span as usize].lane).or_default().push(*span);
    }
    let mut matching =
        Matching { of_host: host_threads.values().map(Vec::len).sum(), of_profile: spans.len(), ..Matching::default() };
    let mut there: Vec<Vec<u32>> = host_threads.into_values().collect();
    let mut here: Vec<Vec<u32>> = profile_threads.into_values().collect();
    there.sort_by_key(|thread| std::cmp::Reverse(thread.len()));
    here.sort_by_key(|thread| std::cmp::Reverse(thread.len()));
    there.truncate(THREADS);
    let host_name = |place: &u32| host.operators[*place as usize].name.as_str();
    let span_name = |span: &u32| profile.name(&profile.events[*span as usize]);
    for spans in here.iter().take(THREADS) {
        let names = bag(spans.iter().map(span_name));
        let alike = |operators: &Vec<u32>| -> usize {
            bag(operators.iter().map(host_name))
                .iter()
                .map(|(name, count)| names.get(name).map_or(0, |other| *count.min(other)))
                .sum()
        };
        let Some((best, _)) =
            there.iter().map(alike).enumerate().max_by_key(|(at, alike)| (*alike, std::cmp::Reverse(*at)))
        else {
            break;
        };
        let operators = there.swap_remove(best);
        for (at, other) in
            align(spans.len(), operators.len(), |at, other| span_name(&spans[at]) == host_name(&operators[other]))
        {
            matching.operator.insert(spans[at], operators[other]);
        }
    }
    matching
}

fn bag<'a>(names: impl Iterator<Item = &'a str>) -> FxHashMap<&'a str, usize> {
    let mut bag = FxHashMap::default();
    names.for_each(|name| *bag.entry(name).or_default() += 1);
    bag
}

/// The host trace's operators of the same iteration, if it marks iterations; else all operators.
fn of_iteration(host: &HostTrace, window: &Window) -> Vec<u32> {
    let timed = |place: &u32| host.operators[*place as usize].is_timed();
    let all = || (0..host.operators.len() as u32).filter(timed);
    let step = |place: &u32| host.operators[*place as usize].name.starts_with("ProfilerStep#");
    let Some(begin) =
        window.mark.as_ref().and_then(|mark| all().find(|place| host.operators[*place as usize].name == *mark))
    else {
        return all().collect();
    };
    let end = all().skip_while(|place| *place <= begin).find(step).unwrap_or(u32::MAX);
    all().filter(|place| (begin..end).contains(place)).collect()
}

/// Pairs of indices in two sequences of these lengths, increasing in both. The number of pairs is not always the
/// maximum, whose search needs more than linear time: after a difference, the sequences continue at the nearest two
/// equal items.
fn align(len: usize, other_len: usize, same: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let (mut at, mut other) = (0, 0);
    while at < len && other < other_len {
        if same(at, other) {
            pairs.push((at, other));
            (at, other) = (at + 1, other + 1);
            continue;
        }
        let goes_on = |skip: usize, ahead: usize| {
            let (at, other) = (at + skip, other + ahead - skip);
            let alike = |at: usize, other: usize| at < len && other < other_len && same(at, other);
            alike(at, other) && (at + 1 >= len || other + 1 >= other_len || alike(at + 1, other + 1))
        };
        let next = (1..=LOOK_AHEAD).find_map(|ahead| {
            (0..=ahead).find(|skip| goes_on(*skip, ahead)).map(|skip| (at + skip, other + ahead - skip))
        });
        (at, other) = next.unwrap_or((at + 1, other + 1));
    }
    pairs
}
