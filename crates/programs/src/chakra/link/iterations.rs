//! Owns the start and end of a program's iterations in a profile, and the choice of the iteration to link.

use super::LinkError;
use super::profile::{Category, Profile};
use std::collections::BTreeSet;

/// The part of the recordings that is linked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iteration {
    /// The middle one of the iterations that all ranks have: the first ones are warm-up.
    #[default]
    Middle,
    /// The iteration with this number.
    Number(u64),
    /// The whole recording.
    All,
}

/// An iteration of the program in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) number: u64,
    /// The name of the span that marks the iteration, if there is one.
    pub(super) mark: Option<String>,
    pub(super) start_ns: i64,
    /// End, exclusive.
    pub(super) end_ns: i64,
}

impl Window {
    pub(super) fn contains(&self, at: i64) -> bool {
        (self.start_ns..self.end_ns).contains(&at)
    }

    fn all() -> Window {
        Window { number: 0, mark: None, start_ns: i64::MIN, end_ns: i64::MAX }
    }
}

/// The iterations of a profile in order. Each lasts until the next one starts. They are marked by `ProfilerStep#N`,
/// which `torch.profiler.profile.step` makes, or else end with a step of the first optimizer, numbered from 1. Without
/// either, there are no iterations.
pub(super) fn iterations(profile: &Profile) -> Vec<Window> {
    let annotations = || profile.events.iter().filter(|event| event.category == Category::Annotation);
    let mut windows: Vec<Window> = annotations()
        .filter_map(|event| {
            let mark = profile.name(event);
            let number = mark.strip_prefix("ProfilerStep#")?.parse().ok()?;
            Some(Window { number, mark: Some(mark.to_owned()), start_ns: event.start_ns, end_ns: event.end_ns })
        })
        .collect();
    for at in 1..windows.len() {
        windows[at - 1].end_ns = windows[at].start_ns;
    }
    if !windows.is_empty() {
        return windows;
    }
    let is_step = |name: &str| name.starts_with("Optimizer.step#");
    let Some(optimizer) = annotations().map(|event| event.name).find(|name| is_step(profile.name_of(*name))) else {
        return windows;
    };
    let mut start_ns = i64::MIN;
    for (event, number) in annotations().filter(|event| event.name == optimizer).zip(1..) {
        windows.push(Window { number, mark: None, start_ns, end_ns: event.end_ns });
        start_ns = event.end_ns;
    }
    windows
}

/// The wanted iteration of each rank.
///
/// # Errors
/// Not all ranks have the iteration.
pub(super) fn choose(ranks: &[&Profile], wanted: Iteration, notes: &mut Vec<String>) -> Result<Vec<Window>, LinkError> {
    let all: Vec<Vec<Window>> = ranks.iter().map(|profile| iterations(profile)).collect();
    let everything = || ranks.iter().map(|_| Window::all()).collect();
    let numbers = |windows: &Vec<Window>| windows.iter().map(|window| window.number).collect::<BTreeSet<u64>>();
    let of_ranks: Vec<BTreeSet<u64>> = all.iter().map(numbers).collect();
    let first = all.first().map_or(&[][..], |first| first);
    let mut common: Vec<u64> = first.iter().map(|window| window.number).collect();
    common.retain(|number| of_ranks.iter().all(|numbers| numbers.contains(number)));
    common.dedup();
    let listed = || match &common[..] {
        [] => "none".to_owned(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first} to {last}"),
    };
    let number = match wanted {
        Iteration::All => return Ok(everything()),
        Iteration::Number(number) if common.contains(&number) => number,
        Iteration::Number(number) => return Err(LinkError::NoIteration { number, there: listed() }),
        Iteration::Middle => match common.get(common.len() / 2) {
            Some(number) => *number,
            None if all.iter().all(Vec::is_empty) => {
                notes.push("no iterations are marked; converting the whole recording".to_owned());
                return Ok(everything());
            }
            None => return Err(LinkError::NoCommonIteration),
        },
    };
    notes.push(format!("converting iteration {number} (recorded: {})", listed()));
    let window =
        |windows: Vec<Window>| windows.into_iter().find(|window| window.number == number).expect("all have it");
    Ok(all.into_iter().map(window).collect())
}
