//! Owns the profile of a run with timed operators: the duration of each distinct operator, and the host's time before
//! it, on the machine of the run.
//!
//! Operators are timed as the program runs them, with the caches and the memory in the program's state. Between the end
//! of one operator and the start of the next the host works: Python, autograd, torch's dispatcher. Both together are
//! all of the program's compute, so a model that adds them up misses nothing.

use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use uniference_formats::operators::{Autograd, Decoder, Definition, Entry, Invalid};
use uniference_sim::device::Precision;

/// Number of times of one operator that are kept; beyond it every second one is kept, then every fourth, and so on.
const KEPT: usize = 1 << 10;

/// Factor on the median beyond which a time was interrupted by other work of the machine, or by the first touch of
/// memory.
const OUTLIER: f64 = 10.0;

/// Times of operators, as they are added.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    operators: BTreeMap<Definition, Times>,
    /// Times of the host; the first operator of a slice has no operator before it.
    hosts: BTreeMap<Host, Times>,
}

/// The distribution of an operator's measured times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The median, in nanoseconds.
    pub median_ns: f64,
    /// The mean without outliers, in nanoseconds: the figure to use in sums of many different operators.
    pub mean_ns: f64,
    /// The standard deviation of the logarithm, from the interquartile range (which outliers do not move): 0 for a
    /// single time.
    pub spread: f64,
    /// Number of measured times.
    pub repetitions: u64,
}

/// The key of the host's times: an operator, the operator before it, and autograd's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// The operator's name.
    pub name: String,
    /// The name of the previous operator; `None`: any operator.
    pub previous: Option<String>,
    /// Autograd's state meanwhile.
    pub autograd: Autograd,
}

/// The results of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Durations by operator.
    pub operators: Vec<(Definition, Timing)>,
    /// The host's times before operators.
    pub hosts: Vec<(Host, Timing)>,
}

/// The highest rates that a device's operators have reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Reached {
    /// Floating-point operations per second, by type of the elements.
    pub peak_flops: BTreeMap<String, f64>,
    /// Bytes per second.
    pub memory_bandwidth: Option<f64>,
}

impl Reached {
    /// The keys of a `[[device]]`, one per line; `None`: no operator was long enough to tell both rates.
    pub fn keys(&self) -> Option<String> {
        // Only these element types have rates of their own in a cluster file.
        let is_key = |dtype: &str| Precision::ALL.iter().any(|precision| precision.name() == dtype);
        let rates = self.peak_flops.iter().filter(|(dtype, rate)| is_key(dtype) && **rate > 0.0);
        let rates: Vec<String> = rates.map(|(dtype, rate)| format!("{dtype} = \"{:.1} GFLOPS\"", rate / 1e9)).collect();
        let bandwidth = self.memory_bandwidth.filter(|_| !rates.is_empty())?;
        Some(format!("peak_flops = {{ {} }}\nmemory_bandwidth = \"{:.1} GB/s\"\n", rates.join(", "), bandwidth / 1e9))
    }
}

/// Times of one operator, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Times {
    kept: Vec<u64>,
    /// Binary logarithm of the thinning: one of 2^`thinned` times is kept.
    thinned: u32,
    count: u64,
}

impl Profile {
    /// Adds a slice of one rank's stream, which `decoder` has read up to the slice.
    ///
    /// # Errors
    /// If the slice is damaged.
    pub fn add(&mut self, decoder: &mut Decoder, slice: &[u8]) -> Result<(), Invalid> {
        let mut times = None;
        let mut previous = None;
        decoder.read(slice, |decoder, entry| match entry {
            Entry::Timed { before, lasted } => times = Some((before, lasted)),
            Entry::Execution { definition, autograd, .. } => {
                if let Some((before, lasted)) = times.take() {
                    let definition = &decoder.definitions()[definition];
                    let from_any = Host { name: definition.name.clone(), previous: None, autograd };
                    if let Some(previous) = previous.replace(definition.name.clone()) {
                        let from_previous = Host { previous: Some(previous), ..from_any.clone() };
                        self.hosts.entry(from_previous).or_default().add(before);
                    }
                    self.hosts.entry(from_any).or_default().add(before);
                    of(&mut self.operators, definition).add(lasted);
                }
            }
            _ => {}
        })?;
        Ok(())
    }

    /// Adds all times of another profile.
    pub fn merge(&mut self, other: Profile) {
        for (definition, times) in other.operators {
            of(&mut self.operators, &definition).merge(&times);
        }
        for (host, times) in other.hosts {
            self.hosts.entry(host).or_default().merge(&times);
        }
    }

    /// The results of everything that was recorded.
    pub fn found(self) -> Found {
        Found {
            operators: self.operators.into_iter().map(|(definition, times)| (definition, times.timing())).collect(),
            hosts: self.hosts.into_iter().map(|(host, times)| (host, times.timing())).collect(),
        }
    }
}

impl Times {
    fn add(&mut self, nanoseconds: u64) {
        if self.count.is_multiple_of(1 << self.thinned) {
            self.kept.push(nanoseconds);
        }
        self.count += 1;
        if self.kept.len() == KEPT {
            let mut position = 0;
            self.kept.retain(|_| {
                position += 1;
                position % 2 == 1
            });
            self.thinned += 1;
        }
    }

    /// Adds the operator's kept times and number of executions in another run.
    fn merge(&mut self, other: &Times) {
        other.kept.iter().for_each(|time| self.add(*time));
        self.count += other.count - other.kept.len() as u64;
    }

    fn timing(mut self) -> Timing {
        // The first execution is slower: code, memory and the library's choice of a kernel are not in the caches yet.
        if self.kept.len() > 2 {
            self.kept.remove(0);
        }
        self.kept.sort_unstable();
        let median = quantile(&self.kept, 0.5);
        self.kept.retain(|time| *time as f64 <= OUTLIER * median);
        let range = (quantile(&self.kept, 0.75).max(1.0) / quantile(&self.kept, 0.25).max(1.0)).ln();
        let mean_ns = self.kept.iter().map(|time| *time as f64).sum::<f64>() / self.kept.len().max(1) as f64;
        // The interquartile range of a normal distribution is 1.349 standard deviations.
        Timing { median_ns: quantile(&self.kept, 0.5), mean_ns, spread: range / 1.349, repetitions: self.count }
    }
}

/// The times of `key`; the key is copied when it is inserted.
fn of<'a, K: Ord + Borrow<Q>, Q: Ord + ToOwned<Owned = K> + ?Sized>(
    all: &'a mut BTreeMap<K, Times>,
    key: &Q,
) -> &'a mut Times {
    if !all.contains_key(key) {
        all.insert(key.to_owned(), Times::default());
    }
    all.get_mut(key).expect("it was there, or has just been added")
}

/// A quantile of sorted values, interpolated between the two nearest; 0 if there are none.
fn quantile(sorted: &[u64], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = fraction * last as f64;
    let (low, high) = (sorted[at.floor() as usize] as f64, sorted[at.ceil() as usize] as f64);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::operators::{Encoder, Line};

    fn times(values: impl IntoIterator<Item = u64>) -> Timing {
        let mut times = Times::default();
        values.into_iter().for_each(|value| times.add(value));
        times.timing()
    }

    #[test]
    fn a_median_is_not_moved_by_the_first_time_or_by_interruptions() {
        let timing = times([900, 100, 102, 98, 100, 5_000]);
        assert_eq!((timing.median_ns, timing.repetitions), (100.0, 6));
        assert!(timing.spread < 0.03, "{timing:?}");
        assert_eq!(times([70]), Timing { median_ns: 70.0, mean_ns: 70.0, spread: 0.0, repetitions: 1 });
    }

    /// `a` follows `b` in 3 us and comes first in 9 us: 6 us on average. A slice's first operator follows none.
    #[test]
    fn how_long_the_host_takes_depends_on_the_operator_before() {
        let named = |name: &str| Definition { name: name.to_owned(), arguments: Vec::new(), results: Vec::new() };
        let line = Line { site: 0, backward: false };
        let (mut encoder, mut decoder, mut profile) = (Encoder::default(), Decoder::default(), Profile::default());
        encoder.definition(&named("a"));
        encoder.definition(&named("b"));
        for (definition, before) in [(0, 9_000), (1, 1_000), (0, 3_000)] {
            encoder.timed(before, 100);
            encoder.execution(definition, line, &[]);
        }
        profile.add(&mut decoder, &encoder.take()).unwrap();
        let hosts = profile.found().hosts;
        let mean = |(host, timing): &(Host, Timing)| {
            assert_eq!(host.autograd, Autograd::Idle);
            (host.name.clone(), host.previous.clone().unwrap_or_default(), timing.mean_ns)
        };
        let means: Vec<_> = hosts.iter().map(mean).collect();
        let expected = [("a", "", 6_000.0), ("a", "b", 3_000.0), ("b", "", 1_000.0), ("b", "a", 1_000.0)];
        assert_eq!(means, expected.map(|(name, previous, mean)| (name.to_owned(), previous.to_owned(), mean)));
    }

    #[test]
    fn of_many_times_evenly_many_are_kept() {
        let mut all = Times::default();
        (0..1_000_000).for_each(|value| all.add(value));
        assert!(all.kept.len() < KEPT, "{}", all.kept.len());
        let step = all.kept[1] - all.kept[0];
        assert!(all.kept.windows(2).all(|pair| pair[1] - pair[0] == step));
        assert_eq!((all.kept[0], all.count), (0, 1_000_000));
        let mut both = Times::default();
        [7, 8, 9].into_iter().for_each(|value| both.add(value));
        both.merge(&all);
        assert_eq!(both.count, 1_000_003);
        assert!(both.kept.len() < KEPT && both.kept.starts_with(&[7]), "{}", both.kept.len());
    }
}
