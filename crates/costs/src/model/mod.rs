//! Owns the cost of an operator on one device: an estimate in layers, of which the most accurate that has an answer
//! counts.
//!
//! 1. The database row of exactly this operator on this device.
//! 2. Interpolation between rows of the same kind of operator on this device (`surface.rs`).
//! 3. Rows of another device, element type or related operator, scaled by the ratio of the rooflines.
//! 4. The roofline, at the usual efficiency of kernels.
//!
//! docs/devices.md lists the errors of each layer.

pub mod accuracy;
mod formula;
mod like;
mod rows;
mod shape;
mod surface;
mod transfers;

#[cfg(test)]
mod tests;

use crate::database::{Databases, Row, dimensions};
use crate::operators::{Described, EXPERTS, Part, Sequences, describe, key, with_sequences};
use rows::Rows;
use rustc_hash::FxHashMap;
use shape::{Grain, Roof, Shape};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use surface::{Setting, Surface};
use uniference_formats::devices::{self, KnownDevice};
use uniference_formats::operators::{Autograd, Definition, Tensor};
use uniference_sim::device::{
    CostModel, Elements, Estimate, Family, Layout, Operator, Origin, Pass, Precision, Rates, RowKind,
};
use uniference_sim::program::DType;
use uniference_sim::time::SimDuration;

/// The standard deviation of the logarithm of a time around a single measurement of it: the same GEMM differs by 9 %
/// between collections of the shipped rows.
const NOISE: f64 = 0.09;
/// The additional deviation if the rows were measured on another device: see the table of docs/devices.md.
const TRANSFER: f64 = 0.4;
/// The efficiency of a device without rows is the mean over at most this many devices.
const ALIKE: usize = 4;
/// Elements of a row that one multiprocessor reduces, if several reduce the row.
const PART: u64 = 4096;
/// The standard deviation around the roofline: see the table of docs/devices.md.
const ROOFLINE: f64 = 0.8;

/// The family of rows with the host time per operator: the time since the previous operator on a CPU, spent in Python,
/// autograd and torch's dispatcher. The variant is the operator's name; a row that names an operator names the previous
/// one.
pub const fn host_family(autograd: Autograd) -> &'static str {
    match autograd {
        Autograd::Idle => "host",
        Autograd::Recording => "host_recording",
        Autograd::Backward => "host_backward",
    }
}

/// Whether a family holds rows of host time.
pub fn is_of_host(family: &str) -> bool {
    HOSTS.iter().any(|autograd| host_family(*autograd) == family)
}

const HOSTS: [Autograd; 3] = [Autograd::Idle, Autograd::Recording, Autograd::Backward];

/// State of the program when it reaches an operator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coming<'a> {
    /// The previous operator, if it is known.
    pub previous: Option<&'a Definition>,
    /// State of autograd.
    pub autograd: Autograd,
}

/// The device that a model is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The name under which databases list its operators: [`uniference_formats::cluster::Resolved::models`].
    pub name: Option<String>,
    /// Its rates per second.
    pub rates: Rates,
}

/// Surfaces by the place of their rows and the precision of the target operator; most places have none.
type Surfaces = FxHashMap<(Place, Precision), Option<Arc<Surface>>>;

/// Cost model of one device.
#[derive(Debug)]
pub struct Model {
    target: Target,
    /// The rates at which rows are used: the table's for a known device, else the target's. Other rates of the target
    /// scale the estimate.
    base: Rates,
    rows: Rows,
    surfaces: Mutex<Surfaces>,
    /// The shortest time of a device's rows of one type, in seconds.
    shortest: Mutex<FxHashMap<(String, Elements), f64>>,
    /// Precisions of the GEMMs estimated so far.
    computed: Mutex<BTreeSet<Precision>>,
}

/// Least number of queries per head at which generated attention is a prefill or a training step: a tile of the kernels.
const MANY_QUERIES: u64 = 128;

/// Key of rows: device, family, variant (`None`: all) and element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    device: String,
    family: &'static str,
    variant: Option<String>,
    elements: Elements,
}

impl Model {
    /// A model of `target` from the rows of `databases`.
    pub fn new(target: Target, databases: Arc<Databases>) -> Model {
        let known = target.name.as_deref().and_then(rates_of_table);
        Model {
            base: known.unwrap_or(target.rates),
            target,
            rows: Rows::new(databases),
            surfaces: Mutex::default(),
            shortest: Mutex::default(),
            computed: Mutex::default(),
        }
    }

    /// Duration of an operator that has the device to itself: zero for a view, and [`Estimate::UNKNOWN`] for an
    /// operator without a known cost, which the caller counts and names.
    ///
    /// If the device's rows include host time per operator ([`host_family`]), the duration includes it.
    pub fn estimate(&self, definition: &Definition, coming: Coming<'_>) -> Estimate {
        let operator = self.operator(definition);
        match self.host(definition, coming) {
            Some(host) if operator.origin != Origin::None => one_after_the_other(host, operator),
            _ => operator,
        }
    }

    /// Time of the operator on the device alone, after the host has launched it.
    pub fn operator(&self, definition: &Definition) -> Estimate {
        let described = describe(definition);
        if let Described::Nothing = described {
            return Estimate { duration: SimDuration::ZERO, spread: Some(0.0), origin: Origin::Roofline };
        }
        if let Some(exact) = self.row_of(definition, &described) {
            return exact;
        }
        match described {
            Described::Parts(parts) => self.sum(&parts),
            _ => Estimate::UNKNOWN,
        }
    }

    /// Time of attention over these known sequences, after the host has launched it.
    pub fn attention(&self, definition: &Definition, sequences: &[Sequences]) -> Estimate {
        with_sequences(definition, sequences).map_or(Estimate::UNKNOWN, |parts| self.sum(&parts))
    }

    /// Whether the device's rows include host time per operator.
    pub fn knows_host(&self) -> bool {
        let knows = |device: &str| HOSTS.iter().any(|autograd| self.typical_host(device, *autograd).is_some());
        self.target.name.as_deref().is_some_and(knows)
    }

    /// Host time of an operator, if it was measured on this device: after the same previous operator, else after any,
    /// else in any state of autograd, else the median over all operators.
    fn host(&self, definition: &Definition, coming: Coming<'_>) -> Option<Estimate> {
        let device = self.target.name.as_deref()?;
        let named = |autograd| self.rows.of(device, host_family(autograd), Some(&definition.name), "");
        let alike = named(coming.autograd);
        let from_previous = coming.previous.and_then(|previous| alike.by_operator(&previous.name));
        if let Some(row) = from_previous.or_else(|| alike.of_any()) {
            return Some(measured(row));
        }
        if let Some((microseconds, _)) = HOSTS.iter().find_map(|autograd| named(*autograd).of_any()) {
            return Some(estimate(microseconds * 1e-6, TRANSFER, Origin::Interpolated));
        }
        let typical = |autograd: &Autograd| self.typical_host(device, *autograd);
        let microseconds = typical(&coming.autograd).or_else(|| HOSTS.iter().find_map(typical))?;
        Some(estimate(microseconds * 1e-6, ROOFLINE, Origin::Interpolated))
    }

    fn typical_host(&self, device: &str, autograd: Autograd) -> Option<f64> {
        self.rows.of(device, host_family(autograd), None, "").typical()
    }

    /// Name of an operator's kind in reports: `gemm`, `attention`, `normalization`, ..., `view`, or `unknown`.
    pub fn kind(definition: &Definition) -> &'static str {
        describe(definition).kind()
    }

    /// Lower bound of an operator's seconds, whatever it computes: all of its tensors pass once through the device's
    /// memory.
    pub fn at_least(&self, definition: &Definition) -> f64 {
        let bytes: u64 = definition.tensors().map(Tensor::bytes).fold(0, u64::saturating_add);
        bytes as f64 / self.target.rates.memory
    }

    /// A hash of the databases, for manifests.
    pub fn version(&self) -> &str {
        self.rows.databases().version()
    }

    /// Precisions of GEMMs that the device's rates do not name, with the precisions that served for them: `("float64",
    /// "float32")`. A device that is known to lack tensor cores for TF32 computes it as `float32`, which is no
    /// substitution.
    pub fn substituted(&self) -> Vec<(&'static str, &'static str)> {
        let known = self.target.name.as_deref().and_then(|name| devices::find(name).ok());
        let has_tf32 = known.is_none_or(KnownDevice::has_tf32);
        let computed = self.computed.lock().expect("no estimate panics");
        let computed = computed.iter().filter(|asked| **asked != Precision::Tf32 || has_tf32);
        let served = computed.map(|asked| (*asked, self.target.rates.peaks.serving(*asked).1));
        served.filter(|(asked, served)| asked != served).map(|(asked, served)| (asked.name(), served.name())).collect()
    }

    /// The measured row of a definition on this device.
    fn row_of(&self, definition: &Definition, described: &Described) -> Option<Estimate> {
        let device = self.target.name.as_deref()?;
        let (family, variant, dtype) = described.place(definition)?;
        let rows = self.rows.of(device, family, Some(&variant), &dtype);
        rows.by_operator(&key(definition)).map(measured)
    }

    /// Total of parts that follow one another, except those that are [`Part::is_beside`]. The origin is that of the
    /// longest part; errors of different parts are independent.
    fn sum(&self, parts: &[Part]) -> Estimate {
        let mut total = 0.0_f64;
        let (mut variance, mut longest) = (Some(0.0), (0.0, Origin::Roofline));
        for kernel in parts.chunk_by(|_, next| next.is_beside).flat_map(|kernel| self.longer(kernel)) {
            let (seconds, estimate) = kernel;
            total += seconds;
            variance = variance.zip(estimate.spread).map(|(sum, spread)| sum + (seconds * spread).powi(2));
            if seconds > longest.0 {
                longest = (seconds, estimate.origin);
            }
        }
        let Some(duration) = SimDuration::from_secs_f64(total) else { return Estimate::UNKNOWN };
        let spread = variance.filter(|_| total > 0.0).map(|variance| variance.sqrt() / total);
        Estimate { duration, spread, origin: longest.1 }
    }

    /// The longer of the first part and the sum of the parts that its kernel also computes. The kernel is launched
    /// once.
    fn longer(&self, kernel: &[Part]) -> Vec<(f64, Estimate)> {
        let launch = self.target.rates.launch.as_secs_f64();
        let seconds = |part: &Part| {
            let estimate = self.part(&part.operator, Some(&part.variant));
            (estimate.duration.as_secs_f64() * part.times as f64, estimate)
        };
        let (first, beside) = kernel.split_first().expect("no kernel is without parts");
        let first = seconds(first);
        let mut beside: Vec<(f64, Estimate)> = beside.iter().map(seconds).collect();
        beside.iter_mut().skip(1).for_each(|(seconds, _)| *seconds = (*seconds - launch).max(0.0));
        if beside.iter().map(|(seconds, _)| seconds).sum::<f64>() > first.0 { beside } else { vec![first] }
    }

    fn part(&self, operator: &Operator, variant: Option<&str>) -> Estimate {
        // An operator without elements launches nothing.
        if operator.flops == 0 && operator.bytes().0 == 0 {
            return Estimate { duration: SimDuration::ZERO, spread: Some(0.0), origin: Origin::Roofline };
        }
        if operator.flops > 0 {
            self.computed.lock().expect("no estimate panics").insert(Precision::of(operator.elements));
        }
        // A device without tensor cores for TF32 runs the kernels of `float32`.
        let as_float32 = Operator { elements: Some(DType::Float32.into()), ..*operator };
        let lacks = operator.elements == Some(Elements::Tf32)
            && self.target.rates.peaks.serving(Precision::Tf32).1 == Precision::Float32;
        let operator = if lacks { &as_float32 } else { operator };
        let found = self
            .measured_sizes(operator, variant)
            .or_else(|| self.interpolated(operator, variant))
            .or_else(|| self.transferred(operator, variant));
        let found = found.unwrap_or_else(|| {
            estimate(shape::by_rates(&self.base, self.grain(), operator), ROOFLINE, Origin::Roofline)
        });
        self.at_rates(&self.target.rates, operator, found)
    }

    /// An estimate for the base rates, scaled to others: the time beyond the launch by the ratio of the rooflines.
    fn at_rates(&self, rates: &Rates, operator: &Operator, found: Estimate) -> Estimate {
        if self.base == *rates {
            return found;
        }
        let [base, own] = [&self.base, rates].map(|rates| {
            let launch = rates.launch.as_secs_f64();
            (launch, shape::by_rates(rates, self.grain(), operator) - launch)
        });
        let (seconds, ratio) = (found.duration.as_secs_f64(), own.1 / base.1);
        let start = seconds.min(base.0);
        let launch = if base.0 > 0.0 { start * own.0 / base.0 } else { own.0 };
        let spread = found.spread.unwrap_or(ROOFLINE).hypot(TRANSFER * libm::log(ratio).abs().min(1.0));
        let origin = if found.origin == Origin::Roofline { Origin::Roofline } else { Origin::Transferred };
        estimate(launch + (seconds - start) * ratio, spread, origin)
    }

    /// The row of an operator of exactly these sizes; only rows with known sizes and no definition count.
    fn measured_sizes(&self, operator: &Operator, variant: Option<&str>) -> Option<Estimate> {
        let (device, elements) = (self.target.name.as_deref()?, operator.elements?);
        let family = operator.family.name();
        let rows = self.rows.of(device, family, variant, elements.name());
        let (microseconds, spread) = rows.by_sizes(dimensions(&operator.family), operator)?;
        let host = self.overhead_of_host(device, family, variant, elements);
        let kernel = surface::kernel(microseconds * 1e-6, host);
        // An uncertain host overhead makes the remaining time of the kernel uncertain.
        let lost = (host > 0.0).then(|| 0.1 * host / kernel);
        let spread = spread.unwrap_or(NOISE).hypot(lost.unwrap_or_default());
        Some(estimate(kernel, spread, Origin::Database))
    }

    /// Estimate from rows of the same kernels on the device, or of other kernels of the family if these stand for one
    /// another.
    fn interpolated(&self, operator: &Operator, variant: Option<&str>) -> Option<Estimate> {
        let (device, elements) = (self.target.name.as_deref()?, operator.elements?);
        let family = operator.family.name();
        let surface = |variant| self.nearest_surface(device, family, variant, elements, operator);
        let apart = variant.is_some_and(|variant| like::stands_apart(family, variant));
        let surface = surface(variant).or_else(|| if apart { None } else { surface(None) })?;
        let found = find(&surface, operator);
        let origin = if found.distance > surface::SUPPORT { Origin::Extrapolated } else { Origin::Interpolated };
        Some(self.through_memory(operator, estimate(found.seconds, found.spread, origin)))
    }

    /// Estimate from other devices; from another element type if memory decides; from related kernels and families.
    fn transferred(&self, operator: &Operator, variant: Option<&str>) -> Option<Estimate> {
        let elements = operator.elements?;
        let own = self.target.name.as_deref();
        let itself = operator.family.name();
        let shape = Shape::of(&operator.family)?;
        let moves = matches!(shape, Shape::Rows | Shape::Flat);
        let others = [DType::Float32, DType::Float16].map(Elements::Of);
        let others = others.into_iter().filter(|other| moves && *other != elements);
        let types: Vec<Elements> = std::iter::once(elements).chain(others).collect();
        let like = like::alike(own, &self.base, Precision::of(Some(elements)));
        for family in std::iter::once(itself).chain(like::kin(itself).iter().copied()) {
            // Both passes of attention run kernels of one library.
            let variant = variant.filter(|_| family == itself || shape == Shape::Attention);
            let variants = if variant.is_some() { vec![variant, None] } else { vec![None] };
            for (used, elements) in
                variants.iter().flat_map(|used| types.iter().map(move |elements| (*used, *elements)))
            {
                let surface = |device: &str| self.nearest_surface(device, family, used, elements, operator);
                let of_itself = own.and_then(surface).map(|surface| (1.0, surface));
                let of_others = || {
                    let with =
                        |(distance, device): &(f64, &KnownDevice)| Some((libm::exp(-distance), surface(&device.name)?));
                    like.iter().filter_map(with).take(ALIKE).collect::<Vec<_>>()
                };
                let surfaces = of_itself.map_or_else(of_others, |itself| vec![itself]);
                if surfaces.is_empty() {
                    continue;
                }
                let found = mean(&surfaces, &if family == itself { *operator } else { in_parts(operator) });
                let stands_in =
                    variant.filter(|_| used.is_none()).map_or(1.0, |variant| like::slowdown(itself, variant));
                let found = found.scaled(stands_in * like::slower_than_kin(itself, family));
                return Some(self.through_memory(operator, found));
            }
        }
        None
    }

    /// Raises an estimate of an operator that moves more bytes than the device's cache holds to the time of a long
    /// stream. Rows may be of a device with a larger cache, or have found data in the cache.
    fn through_memory(&self, operator: &Operator, found: Estimate) -> Estimate {
        let known = self.target.name.as_deref().and_then(|name| devices::find(name).ok());
        let cache = known.and_then(KnownDevice::l2);
        let moves = matches!(operator.family, Family::Rows { .. } | Family::Flat { .. } | Family::Gemm { .. });
        let bytes = operator.bytes();
        if !moves || cache.is_none_or(|cache| bytes <= cache) {
            return found;
        }
        let least = bytes.0 as f64 / self.base.memory / shape::STREAM;
        if found.duration.as_secs_f64() < least {
            estimate(least, found.spread.unwrap_or(TRANSFER), found.origin)
        } else {
            found
        }
    }

    /// The surface of a variant's kernels, or of all variants, by rows of the element type, else of the other 16-bit
    /// type.
    fn nearest_surface(
        &self,
        device: &str,
        family: &'static str,
        variant: Option<&str>,
        elements: Elements,
        operator: &Operator,
    ) -> Option<Arc<Surface>> {
        // Tensor cores multiply 16-bit and 32-bit numbers in the same kernels of cuBLAS and cuDNN.
        let twins: &[DType] = match elements {
            Elements::Of(DType::Float16) => &[DType::BFloat16],
            Elements::Of(DType::BFloat16) => &[DType::Float16],
            Elements::Tf32 => &[DType::BFloat16, DType::Float16],
            Elements::Of(_) => &[],
        };
        std::iter::once(elements).chain(twins.iter().copied().map(Elements::Of)).find_map(|elements| {
            let variant = variant.map(str::to_owned);
            self.surface(Place { device: device.to_owned(), family, variant, elements }, operator)
        })
    }

    /// The surface of a place, built at its first use.
    fn surface(&self, place: Place, operator: &Operator) -> Option<Arc<Surface>> {
        let mut surfaces = self.surfaces.lock().expect("no estimate panics");
        let computed = Precision::of(operator.elements);
        let key = (place, computed);
        if let Some(surface) = surfaces.get(&key) {
            return surface.clone();
        }
        let shape = Shape::of(&operator.family)?;
        let place = &key.0;
        let rates = self.rates_of(&place.device);
        let rows = self.kin_rows(place);
        let own = self.target.name.as_deref();
        let surface = rates.and_then(|rates| {
            let (own_grain, its_grain) = (self.grain(), Grain::of(Some(&place.device), &rates));
            let units =
                if own == Some(&place.device) { Some((1.0, 1.0)) } else { own_grain.units.zip(its_grain.units) };
            let precision = Precision::of(Some(place.elements));
            let (source, target) = (Roof::of(&rates, precision, its_grain), Roof::of(&self.base, computed, own_grain));
            // A row of another type stands for the same number of bytes, if the operator only moves bytes.
            let own_elements = operator.elements.filter(|_| shape != Shape::Attention).unwrap_or(place.elements);
            let setting = Setting {
                shape,
                sizes: [place.elements, own_elements].map(|elements| elements.size() as f64),
                source,
                target,
                launch: self.base.launch.as_secs_f64(),
                host: self.overhead_of_host(&place.device, place.family, place.variant.as_deref(), place.elements),
                // If the number of multiprocessors of either device is unknown, all multiprocessors are assumed equally
                // fast.
                units: libm::log2(units.map_or(target.speed_over(&source), |(target, source)| target / source)),
                varies: shape.varies(place.family) || shape.varies(operator.family.name()),
            };
            let groups: Vec<_> = rows.iter().map(|(apart, rows)| (*apart, rows.all())).collect();
            Surface::new(setting, &groups).map(Arc::new)
        });
        surfaces.insert(key, surface.clone());
        surface
    }

    /// The rows of a place, with their distance from it in octaves of a size. For GEMMs, rows of other layouts are one
    /// octave away; so are all layouts for GEMMs with block scales, and all rows without experts for GEMMs of experts.
    fn kin_rows(&self, place: &Place) -> Vec<(f64, Arc<rows::Found>)> {
        let Place { device, family, variant, elements } = place;
        let rows = |variant| self.rows.of(device, family, variant, elements.name());
        match variant.as_deref() {
            Some(own) if *family == "gemm" => {
                let layouts = [Layout::NN, Layout::NT, Layout::TN, Layout::TT].map(Layout::name);
                let apart = |layout| (f64::from(u8::from(layout != own)), rows(Some(layout)));
                let plain = own.strip_suffix(EXPERTS);
                let others = [Some(own), plain].into_iter().flatten().filter(|other| !layouts.contains(other));
                layouts.into_iter().chain(others).map(apart).collect()
            }
            variant => vec![(0.0, rows(variant))],
        }
    }

    /// The host overhead inside the times of rows, in seconds; 0 if kernels were timed.
    ///
    /// Rows that were measured one call at a time include the host's launch time, which a program hides if it keeps the
    /// device's queue filled. It is the shortest time among rows of next to no work, of these operators or else of all
    /// operators of the device. If any operator ran faster than a host launches, kernels were timed, and the shortest
    /// row is a long kernel.
    fn overhead_of_host(&self, device: &str, family: &str, variant: Option<&str>, elements: Elements) -> f64 {
        let Some(rates) = self.rates_of(device) else { return 0.0 };
        let roof = Roof::of(&rates, Precision::of(Some(elements)), Grain::of(Some(device), &rates));
        let shortest = |rows: &[Row]| {
            let rows = rows.iter().filter(|row| row.operator.is_empty() && surface::is_idle(&roof, row));
            rows.map(|row| row.microseconds * 1e-6).reduce(f64::min)
        };
        let of_all =
            *self.shortest.lock().expect("no estimate panics").entry((device.to_owned(), elements)).or_insert_with(
                || {
                    let series = self.rows.databases().series().iter().map(|(_, series)| series);
                    let kinds: BTreeSet<(&str, &str)> = series
                        .filter(|series| series.device == device && series.dtype == elements.name())
                        .map(|series| (series.family.as_str(), series.variant.as_str()))
                        .collect();
                    let rows = kinds
                        .into_iter()
                        .map(|(family, variant)| self.rows.of(device, family, Some(variant), elements.name()));
                    rows.filter_map(|rows| shortest(rows.all())).reduce(f64::min).unwrap_or(0.0)
                },
            );
        if surface::overhead_of_host(of_all) == 0.0 {
            return 0.0;
        }
        let own = self.rows.of(device, family, variant, elements.name());
        surface::overhead_of_host(shortest(own.all()).unwrap_or(of_all))
    }

    /// The grain of the target's kernels.
    fn grain(&self) -> Grain {
        Grain::of(self.target.name.as_deref(), &self.base)
    }

    /// The rates at which a device's rows were measured: from the table of devices, else from the cluster file.
    fn rates_of(&self, device: &str) -> Option<Rates> {
        rates_of_table(device).or_else(|| (self.target.name.as_deref() == Some(device)).then_some(self.base))
    }
}

/// Rates of a device of the table.
fn rates_of_table(device: &str) -> Option<Rates> {
    devices::find(device).ok().filter(|known| known.name == device).and_then(KnownDevice::rates)
}

impl CostModel for Model {
    fn estimate(&self, operator: &Operator) -> Option<Estimate> {
        let variant = match operator.family {
            Family::Gemm { layout, .. } => Some(layout.name()),
            // Decode runs the kernels of serving engines, one query at a time.
            Family::Attention { pass, queries, .. } if pass == Pass::Backward || queries >= MANY_QUERIES => {
                like::preferred_attention(self.target.name.as_deref())
            }
            _ => None,
        };
        (operator.flops > 0 || operator.bytes().0 > 0).then(|| self.part(operator, variant))
    }
}

impl Described {
    /// Family, variant and element type under which databases list a definition; `None`: it cannot be measured.
    /// Operators of several parts and unknown ones are found by their definition only.
    pub fn place(&self, definition: &Definition) -> Option<(&'static str, String, String)> {
        let name = definition.base_name().trim_end_matches('_').to_owned();
        match self {
            Described::Nothing => None,
            Described::Unknown => Some(("unknown", name, String::new())),
            Described::Parts(parts) => match parts.as_slice() {
                [Part { operator, variant, times: 1, .. }] => {
                    let dtype = operator.elements.map_or("", Elements::name).to_owned();
                    Some((operator.family.name(), variant.clone(), dtype))
                }
                _ => Some(("composite", name, String::new())),
            },
        }
    }
}

/// The geometric mean of several surfaces' times, each with its weight.
fn mean(surfaces: &[(f64, Arc<Surface>)], operator: &Operator) -> Estimate {
    let found: Vec<(f64, surface::Found)> =
        surfaces.iter().map(|(weight, surface)| (*weight, find(surface, operator))).collect();
    let total: f64 = found.iter().map(|(weight, _)| weight).sum();
    let of = |value: fn(&surface::Found) -> f64| {
        found.iter().map(|(weight, found)| weight * value(found)).sum::<f64>() / total
    };
    let logarithm = of(|found| libm::log(found.seconds));
    let spread = of(|found| found.spread).hypot(TRANSFER);
    estimate(libm::exp(logarithm), spread, Origin::Transferred)
}

fn find(surface: &Surface, operator: &Operator) -> surface::Found {
    let work = matches!(
        operator.family,
        Family::Attention { .. }
            | Family::Convolution { .. }
            | Family::Rows { pass: Pass::Backward, .. }
            | Family::Rows { kind: RowKind::Reduction, .. }
    );
    let work = work.then_some((operator.flops as f64, operator.bytes().0 as f64));
    surface.find(dimensions(&operator.family), operator.bytes().0, work)
}

/// The reduction with its rows split into the parts that one multiprocessor reduces, for the comparison with other
/// operators along rows. Several multiprocessors reduce one long row (PyTorch's `aten/src/ATen/native/cuda/Reduce.cuh`)
/// or scan all elements (PyTorch's `ScanUtils.cuh`), but one computes each row of a norm or a softmax.
fn in_parts(operator: &Operator) -> Operator {
    let mut operator = *operator;
    if let Family::Rows { kind, rows, columns, .. } = &mut operator.family
        && (*kind == RowKind::Reduction || (*kind, *rows) == (RowKind::Scan, 1))
    {
        let parts = columns.div_ceil(PART).max(1);
        (*rows, *columns) = (rows.saturating_mul(parts), *columns / parts);
    }
    operator
}

/// The sum of two durations, with the origin of the longer one; their errors are independent.
fn one_after_the_other(first: Estimate, second: Estimate) -> Estimate {
    let seconds = [first, second].map(|estimate| estimate.duration.as_secs_f64());
    let error = |estimate: Estimate| Some((estimate.duration.as_secs_f64() * estimate.spread?).powi(2));
    let total = seconds[0] + seconds[1];
    let spread = error(first).zip(error(second)).map(|(a, b)| (a + b).sqrt() / total).filter(|_| total > 0.0);
    let duration = SimDuration::from_ps(first.duration.as_ps().saturating_add(second.duration.as_ps()));
    let origin = if seconds[0] > seconds[1] { first.origin } else { second.origin };
    Estimate { duration, spread, origin }
}

fn measured((microseconds, spread): (f64, Option<f64>)) -> Estimate {
    estimate(microseconds * 1e-6, spread.unwrap_or(NOISE), Origin::Database)
}

fn estimate(seconds: f64, spread: f64, origin: Origin) -> Estimate {
    match SimDuration::from_secs_f64(seconds) {
        Some(duration) => Estimate { duration, spread: Some(spread), origin },
        None => Estimate::UNKNOWN,
    }
}
