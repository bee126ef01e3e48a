//! Owns the reader of the profiler's trace: Chrome's JSON as Kineto writes it, one event in memory at a time. It keeps
//! spans on host threads and on CUDA streams, calls of the accelerator's runtime, and the waits of the accelerator.
//!
//! [`super::timeline`] interprets the spans.

use super::LinkError;
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum of times (the year 2043, counted from 1970): differences of two times, and of two sums of two times, fit
/// into 64 bits.
pub(super) const LATEST_NS: i64 = 1 << 61;

/// Timestamps above this value, an hour, are counted from an epoch, and not from the start of the recording.
const LATE_NS: i64 = 3_600_000_000_000;

/// A profiler's trace of one rank.
#[derive(Debug, Default)]
pub struct Profile {
    /// Events by start; of equal starts, the longer one first.
    pub(super) events: Vec<Event>,
    names: IndexSet<String, FxBuildHasher>,
    /// Offset that makes times of ranks on one machine comparable, in nanoseconds.
    pub(super) base_ns: i64,
    /// Description of the job.
    pub(super) distributed: Distributed,
    /// Number of kernels that name no launch call and were paired with a launch call by other information.
    pub(super) paired: usize,
    /// Number of spans whose `ts` or `dur` is missing or no time, such as NaN. They are not among `events`.
    unreadable_times: usize,
}

/// A span, or a call.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Number of the name ([`Profile::name`]).
    pub(super) name: u32,
    pub(super) category: Category,
    /// The thread, or the CUDA stream.
    pub(super) lane: i64,
    /// The device of a kernel.
    pub(super) device: i64,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// The id of the event's record function.
    pub(super) function: Option<u64>,
    /// Number that a call shares with the work that it launched on the accelerator.
    pub(super) correlation: Option<u64>,
    /// For a synchronisation, the stream waited for, and the correlation of the call that recorded the event.
    pub(super) waits_on: Option<(i64, Option<u64>)>,
    /// The profiler's id of the operator around the span (`External id`).
    external: Option<u64>,
    /// Arguments of communication.
    pub(super) comm: Option<Box<CommArgs>>,
}

/// Category of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    Operator,
    Annotation,
    /// A call of the accelerator's runtime or driver.
    Call,
    Kernel,
    Copy,
    Sync,
}

/// PyTorch's arguments of communication.
#[derive(Clone, Debug, Default)]
pub(super) struct CommArgs {
    pub(super) collective: Option<String>,
    pub(super) dtype: Option<String>,
    pub(super) in_elements: Option<u64>,
    pub(super) out_elements: Option<u64>,
    pub(super) group_size: Option<u64>,
    pub(super) in_split: Option<Vec<u64>>,
    pub(super) out_split: Option<Vec<u64>>,
    pub(super) group: Option<String>,
    pub(super) ranks: Option<Vec<u32>>,
    /// Source, destination or root, as a group rank.
    pub(super) peer: Option<u64>,
    /// Elements of each input, if shapes were recorded.
    pub(super) dims: Vec<u64>,
    pub(super) types: Vec<String>,
}

/// A profile's description of its job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Distributed {
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) pg_config: Vec<GroupConfig>,
}

/// One of the job's process groups.
#[derive(Debug, Deserialize)]
pub(super) struct GroupConfig {
    #[serde(default)]
    pub(super) pg_name: Text,
    #[serde(default)]
    pub(super) ranks: Vec<u32>,
}

impl Event {
    /// Whether the span is a kernel or a copy, which a call launches.
    fn runs(&self) -> bool {
        matches!(self.category, Category::Kernel | Category::Copy)
    }
}

impl Profile {
    /// The name of an event.
    pub(super) fn name(&self, event: &Event) -> &str {
        self.name_of(event.name)
    }

    pub(super) fn name_of(&self, name: u32) -> &str {
        &self.names[name as usize]
    }

    /// The rank in the profile.
    pub fn rank(&self) -> Option<u32> {
        self.distributed.rank
    }

    pub(super) fn sort(&mut self) {
        self.events.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.end_ns)));
    }

    /// Refuses a profile in which spans have lost their times (pytorch/pytorch#188481): without those spans and their
    /// communication, the rest would look like a complete recording.
    pub(super) fn refuse_lost_times(&self) -> Result<(), LinkError> {
        let zero = self.events.iter().filter(|event| event.start_ns == 0 && event.end_ns == 0).count();
        let first = self.events.iter().map(|event| event.start_ns).filter(|start| *start != 0).min();
        let problem = match (self.unreadable_times, first) {
            (0, Some(first)) if zero > 0 && first > LATE_NS => format!(
                "{zero} of {} spans have no time (`ts` and `dur` are 0), while the others begin at {} us",
                self.events.len(),
                first / 1_000
            ),
            (0, _) => return Ok(()),
            (lost, _) => {
                format!("{lost} of {} spans have no time (`ts` or `dur` is no number)", self.events.len() + lost)
            }
        };
        let hint = "the profiler has lost them; record again, with fewer steps or another version of PyTorch";
        Err(LinkError::Input { problem, hint })
    }

    /// Pairs kernels that name no launch call with launch calls that no other kernel names: first with calls of the
    /// same operator (`External id`); then in order (ROCm/roctracer#100: the correlation of all communication kernels
    /// is 0). Kernels and copies are paired separately, and only if there are as many calls and each call precedes its
    /// kernel.
    pub(super) fn pair_kernels(&mut self) {
        let named: FxHashSet<u64> =
            self.events.iter().filter(|event| event.runs()).filter_map(|event| event.correlation).collect();
        let copies = |event: &Event| ["Memcpy", "Memset"].iter().any(|what| self.name(event).contains(what));
        let is_free = |event: &Event| {
            event.category == Category::Call
                && event.correlation.is_none_or(|correlation| !named.contains(&correlation))
                && (copies(event) || self.name(event).contains("Launch"))
        };
        // Unpaired calls, and kernels that these may have launched.
        type Candidates = (Vec<usize>, Vec<usize>);
        let mut by_operator: BTreeMap<(bool, Option<u64>), Candidates> = BTreeMap::new();
        for (at, event) in self.events.iter().enumerate() {
            if event.runs() && event.correlation.is_none() {
                by_operator.entry((event.category == Category::Copy, event.external)).or_default().1.push(at);
            } else if is_free(event) {
                by_operator.entry((copies(event), event.external)).or_default().0.push(at);
            }
        }
        let precedes = |(call, kernel): (&usize, &usize)| self.events[*call].start_ns <= self.events[*kernel].start_ns;
        let fit =
            |(calls, kernels): &Candidates| calls.len() == kernels.len() && calls.iter().zip(kernels).all(precedes);
        let (mut pairs, mut in_order) = (Vec::new(), BTreeMap::<bool, Candidates>::new());
        for ((copies, external), candidates) in by_operator {
            if external.is_some() && fit(&candidates) {
                pairs.extend(candidates.0.into_iter().zip(candidates.1));
            } else {
                let left = in_order.entry(copies).or_default();
                left.0.extend(candidates.0);
                left.1.extend(candidates.1);
            }
        }
        for mut left in in_order.into_values() {
            left.0.sort_unstable();
            left.1.sort_unstable();
            if fit(&left) {
                pairs.extend(left.0.into_iter().zip(left.1));
            }
        }
        self.paired = pairs.len();
        // Correlation ids that count down from the maximum do not collide with the profiler's ids.
        for (number, (call, kernel)) in (0..).zip(pairs) {
            let correlation = *self.events[call].correlation.get_or_insert(u64::MAX - number);
            self.events[kernel].correlation = Some(correlation);
        }
    }

    fn add(&mut self, raw: RawEvent) {
        if raw.ph.0 != "X" {
            return;
        }
        let category = match raw.cat.0.as_str() {
            "cpu_op" => Category::Operator,
            "user_annotation" => Category::Annotation,
            name if name.ends_with("_runtime") || name.ends_with("_driver") => Category::Call,
            "kernel" => Category::Kernel,
            "gpu_memcpy" | "gpu_memset" => Category::Copy,
            "cuda_sync" => Category::Sync,
            _ => return,
        };
        let (Some(start_ns), Some(length)) = (raw.ts.0, raw.dur.0) else {
            self.unreadable_times += 1;
            return;
        };
        let args = raw.args;
        let on_accelerator = matches!(category, Category::Kernel | Category::Copy | Category::Sync);
        let Some(lane) = args.stream.0.filter(|_| on_accelerator).or(raw.tid.0) else { return };
        let name = raw.name.0;
        let communicates = args.collective.0.is_some() || is_communication(&name);
        let comm = communicates.then(|| {
            Box::new(CommArgs {
                collective: args.collective.0,
                dtype: args.dtype.0,
                in_elements: args.in_elements.unsigned(),
                out_elements: args.out_elements.unsigned(),
                group_size: args.group_size.unsigned(),
                in_split: args.in_split.0,
                out_split: args.out_split.0,
                group: args.group.0,
                ranks: args
                    .ranks
                    .0
                    .map(|ranks| ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect())
                    .or_else(|| stride(&args.rank_start, &args.rank_stride, &args.group_size)),
                peer: [args.source, args.destination, args.root].iter().find_map(Number::unsigned),
                dims: args.dims.0,
                types: args.types.0,
            })
        });
        let (name, _) = self.names.insert_full(name);
        self.events.push(Event {
            name: name as u32,
            category,
            lane,
            device: args.device.0.unwrap_or(0),
            start_ns,
            end_ns: start_ns.saturating_add(length.max(0)).min(LATEST_NS),
            // Without an execution trace observer, all ids are 0.
            function: args.function.0.filter(|id| *id > 0).or(args.external.0),
            // Profilers number correlations from 1, so 0 means that there is none.
            correlation: args.correlation.0.filter(|id| *id > 0),
            waits_on: args.wait_on_stream.0.map(|stream| (stream, args.wait_on_record.0)),
            external: args.external.0.filter(|id| *id > 0),
            comm,
        });
    }
}

/// Whether events of this name are communication, or its CPU half.
pub(super) fn is_communication(name: &str) -> bool {
    ["nccl:", "gloo:", "c10d::", "record_param_comms"].iter().any(|prefix| name.starts_with(prefix))
}

/// The ranks of a group by their first rank and stride, in which newer versions of PyTorch abbreviate long lists.
fn stride(start: &Number, step: &Number, size: &Number) -> Option<Vec<u32>> {
    let (start, step, size) = (start.unsigned()?, step.unsigned()?, size.unsigned()?);
    let rank = |place: u64| u32::try_from(place.checked_mul(step)?.checked_add(start)?).ok();
    if size > 1 << 20 { None } else { (0..size).map(rank).collect() }
}

/// Reader of the list of events, which adds them to a profile one by one.
pub(super) struct Events<'a>(pub(super) &'a mut Profile);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(event) = list.next_element()? {
            self.0.add(event);
        }
        Ok(())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawEvent {
    ph: Text,
    cat: Text,
    name: Text,
    ts: Micros,
    dur: Micros,
    tid: Number,
    args: RawArgs,
}

/// The arguments that are used, by their names in the file. They are read key by key because Kineto writes some keys
/// twice; the last one counts.
macro_rules! arguments {
    ($($field:ident: $kind:ident = $key:literal,)*) => {
        #[derive(Default)]
        struct RawArgs {
            $($field: $kind,)*
        }

        impl<'de> Visitor<'de> for ArgsVisitor {
            type Value = RawArgs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event's arguments")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawArgs, A::Error> {
                let mut args = RawArgs::default();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match &*key {
                        $($key => args.$field = map.next_value()?,)*
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(args)
            }

            fn visit_unit<E: de::Error>(self) -> Result<RawArgs, E> {
                Ok(RawArgs::default())
            }
        }
    };
}

struct ArgsVisitor;

impl<'de> Deserialize<'de> for RawArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawArgs, D::Error> {
        deserializer.deserialize_any(ArgsVisitor)
    }
}

arguments! {
    external: Id = "External id",
    function: Id = "Record function id",
    correlation: Id = "correlation",
    stream: Number = "stream",
    device: Number = "device",
    wait_on_stream: Number = "wait_on_stream",
    wait_on_record: Id = "wait_on_cuda_event_record_corr_id",
    collective: OptionalText = "Collective name",
    dtype: OptionalText = "dtype",
    in_elements: Number = "In msg nelems",
    out_elements: Number = "Out msg nelems",
    group_size: Number = "Group size",
    in_split: Numbers = "In split size",
    out_split: Numbers = "Out split size",
    group: OptionalText = "Process Group Name",
    ranks: Numbers = "Process Group Ranks",
    rank_start: Number = "Global rank start",
    rank_stride: Number = "Global rank stride",
    source: Number = "Src Rank",
    destination: Number = "Dst Rank",
    root: Number = "Root Rank",
    dims: Dims = "Input Dims",
    types: Texts = "Input type",
}

/// A value of any JSON type, since types differ between versions of PyTorch.
enum AnyValue {
    Integer(i64),
    /// An integer too large for [`AnyValue::Integer`].
    Large(u64),
    Float(f64),
    Text(String),
    List(Vec<AnyValue>),
    Nothing,
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyValue, D::Error> {
        deserializer.deserialize_any(AnyValueVisitor)
    }
}

struct AnyValueVisitor;

impl<'de> Visitor<'de> for AnyValueVisitor {
    type Value = AnyValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<AnyValue, E> {
        Ok(AnyValue::Integer(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<AnyValue, E> {
        Ok(AnyValue::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<AnyValue, E> {
        Ok(i64::try_from(value).map_or(AnyValue::Large(value), AnyValue::Integer))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<AnyValue, E> {
        Ok(AnyValue::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<AnyValue, E> {
        Ok(AnyValue::Text(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<AnyValue, E> {
        Ok(AnyValue::Text(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<AnyValue, E> {
        Ok(AnyValue::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AnyValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(AnyValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnyValue, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(AnyValue::Nothing)
    }
}

impl AnyValue {
    fn integer(&self) -> Option<i64> {
        match self {
            AnyValue::Integer(number) => Some(*number),
            AnyValue::Float(number) => (number.fract() == 0.0 && number.abs() < 9e15).then_some(*number as i64),
            AnyValue::Text(text) => text.trim().parse().ok(),
            AnyValue::Large(_) | AnyValue::List(_) | AnyValue::Nothing => None,
        }
    }

    fn unsigned(&self) -> Option<u64> {
        match self {
            AnyValue::Large(number) => Some(*number),
            AnyValue::Text(text) => text.trim().parse().ok(),
            other => u64::try_from(other.integer()?).ok(),
        }
    }

    /// The number of elements of a shape, or of all shapes in a list.
    fn elements(&self) -> u64 {
        let AnyValue::List(items) = self else { return 0 };
        if items.iter().any(|item| matches!(item, AnyValue::List(_))) {
            return items.iter().map(AnyValue::elements).fold(0, u64::saturating_add);
        }
        if items.is_empty() {
            return 0;
        }
        items.iter().map(|item| item.integer().map_or(0, |size| size.max(0) as u64)).fold(1, u64::saturating_mul)
    }
}

/// Types that accept any value and keep the part that is valid.
macro_rules! loosely {
    ($($(#[$doc:meta])* $name:ident($kept:ty) = $keep:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $name(pub(super) $kept);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let keep: fn(AnyValue) -> $kept = $keep;
                AnyValue::deserialize(deserializer).map(|value| $name(keep(value)))
            }
        }
    )*};
}

loosely! {
    /// Text, or a number as text.
    Text(String) = |value| match value {
        AnyValue::Text(text) => text,
        AnyValue::Integer(number) => number.to_string(),
        _ => String::new(),
    };
    /// Text that is not empty.
    OptionalText(Option<String>) = |value| match value {
        AnyValue::Text(text) if !text.is_empty() => Some(text),
        AnyValue::Integer(number) => Some(number.to_string()),
        _ => None,
    };
    /// An id: any unsigned 64-bit number, also written as text.
    Id(Option<u64>) = |value| value.unsigned();
    /// An integer, also written as text.
    Number(Option<i64>) = |value| value.integer();
    /// Microseconds, converted to nanoseconds; `None` if out of range.
    Micros(Option<i64>) = |value| {
        let micros = match value {
            AnyValue::Integer(micros) => return micros.checked_mul(1_000).filter(|nanos| nanos.abs() < LATEST_NS),
            AnyValue::Float(micros) => micros,
            AnyValue::Text(text) => text.parse().ok()?,
            _ => return None,
        };
        (micros.abs() < LATEST_NS as f64 / 1e3).then_some((micros * 1e3).round() as i64)
    };
    /// A list of numbers, which older versions write as text. `None` if an item is not a number, as in an abbreviated
    /// list.
    Numbers(Option<Vec<u64>>) = |value| match value {
        AnyValue::List(items) => items.iter().map(|item| u64::try_from(item.integer()?).ok()).collect(),
        AnyValue::Text(text) => {
            let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
            inner.split(',').filter(|part| !part.trim().is_empty()).map(|part| part.trim().parse().ok()).collect()
        }
        _ => None,
    };
    /// Number of elements of each input.
    Dims(Vec<u64>) = |value| match value {
        AnyValue::List(items) => items.iter().map(AnyValue::elements).collect(),
        _ => Vec::new(),
    };
    /// A list of texts.
    Texts(Vec<String>) = |value| match value {
        AnyValue::List(items) => {
            items.into_iter().map(|item| if let AnyValue::Text(text) = item { text } else { String::new() }).collect()
        }
        _ => Vec::new(),
    };
}

impl Number {
    fn unsigned(&self) -> Option<u64> {
        u64::try_from(self.0?).ok()
    }
}
