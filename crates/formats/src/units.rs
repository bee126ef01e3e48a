//! Owns values with units in users' notation in cluster files and options: `"25 Gbps"`, `"8 GiB"`, `"3 us"`.
//!
//! Printed values read back as the same value. A bare number is refused: the error shows it with a unit.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use uniference_sim::time::{Bytes, Rate, SimDuration};

/// A number with its noun, whose plural ends with an s: `1 rank`, `2 ranks`.
pub fn counted<N: Copy + fmt::Display + TryInto<u64>>(count: N, noun: &str) -> String {
    let plural = if matches!(count.try_into(), Ok(1)) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A data rate above zero. Bits or bytes per second: `"25 Gbps"` is 25e9 bit/s, `"1 GB/s"` 1e9 B/s, `"100 MiB/s"` 100 x
/// 2^20 B/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth(pub Rate);

/// A size in whole bytes: `"1 MiB"` is 2^20 B, `"1 MB"` 1e6 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub Bytes);

/// A rate of arithmetic above zero, in floating-point operations per second: `"312 TFLOPS"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flops(pub f64);

/// Electrical power above zero, in watts: `"15 W"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watts(pub f64);

/// A length of time, not negative, rounded up to a picosecond: `"3 us"`, `"1.5 ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub SimDuration);

/// The reason why a text is not a value with a unit. The error's text ends with a `hint:` that shows one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}\nhint: {hint}")]
pub struct UnitError {
    /// Description of the mistake.
    pub message: String,
    /// Advice with the text to write instead.
    pub hint: String,
}

/// A unit: its name, and its value in the smallest unit.
type Unit = (&'static str, u64);

/// Units of bit rates, in bits per second. The first name of a unit is the one that is printed.
const BIT_RATES: &[Unit] = &[
    ("Tbps", 1_000_000_000_000),
    ("Gbps", 1_000_000_000),
    ("Mbps", 1_000_000),
    ("kbps", 1_000),
    ("bps", 1),
    ("Tbit/s", 1_000_000_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("kbit/s", 1_000),
    ("bit/s", 1),
    ("Gb/s", 1_000_000_000),
    ("Mb/s", 1_000_000),
    ("kb/s", 1_000),
    ("TB/s", 8_000_000_000_000),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("kB/s", 8_000),
    ("B/s", 8),
    ("TiB/s", 8 << 40),
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("KiB/s", 8 << 10),
];

/// Alternative spellings of rates, which are read and never printed.
const OTHER_RATES: &[Unit] = &[
    ("TBps", 8_000_000_000_000),
    ("GBps", 8_000_000_000),
    ("MBps", 8_000_000),
    ("kBps", 8_000),
    ("Bps", 8),
    ("TiBps", 8 << 40),
    ("GiBps", 8 << 30),
    ("MiBps", 8 << 20),
    ("KiBps", 8 << 10),
    ("Tb/s", 1_000_000_000_000),
    ("b/s", 1),
    ("Kbps", 1_000),
    ("Kb/s", 1_000),
    ("Kbit/s", 1_000),
    ("Tbits/s", 1_000_000_000_000),
    ("Gbits/s", 1_000_000_000),
    ("Mbits/s", 1_000_000),
    ("kbits/s", 1_000),
    ("Kbits/s", 1_000),
    ("bits/s", 1),
    ("GBit/s", 1_000_000_000),
    ("MBit/s", 1_000_000),
    ("kBit/s", 1_000),
    ("KBit/s", 1_000),
    ("GBytes/s", 8_000_000_000),
    ("MBytes/s", 8_000_000),
];

/// Units of sizes, in bytes.
const SIZES: &[Unit] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Alternative spellings of sizes, which are read and never printed. `Gi` is Kubernetes' spelling.
const OTHER_SIZES: &[Unit] =
    &[("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("bytes", 1), ("byte", 1)];

/// Units of durations, in picoseconds.
const TIMES: &[Unit] = &[
    ("s", 1_000_000_000_000),
    ("ms", 1_000_000_000),
    ("us", 1_000_000),
    ("ns", 1_000),
    ("ps", 1),
    ("µs", 1_000_000),
    ("μs", 1_000_000),
    ("min", 60_000_000_000_000),
    ("h", 3_600_000_000_000_000),
];

/// Alternative spellings of durations, which are read and never printed.
const OTHER_TIMES: &[Unit] = &[
    ("sec", 1_000_000_000_000),
    ("secs", 1_000_000_000_000),
    ("second", 1_000_000_000_000),
    ("seconds", 1_000_000_000_000),
    ("msec", 1_000_000_000),
    ("usec", 1_000_000),
    ("nsec", 1_000),
    ("psec", 1),
    ("mins", 60_000_000_000_000),
    ("minute", 60_000_000_000_000),
    ("minutes", 60_000_000_000_000),
    ("hr", 3_600_000_000_000_000),
    ("hour", 3_600_000_000_000_000),
    ("hours", 3_600_000_000_000_000),
];

/// Units of power, in milliwatts.
const POWERS: &[Unit] = &[("kW", 1_000_000), ("W", 1_000), ("mW", 1)];

/// Alternative spellings of power, which are read and never printed.
const OTHER_POWERS: &[Unit] = &[("watt", 1_000), ("watts", 1_000), ("Watt", 1_000)];

/// Units of arithmetic, in operations per second.
const ARITHMETIC: &[Unit] = &[
    ("PFLOPS", 1_000_000_000_000_000),
    ("TFLOPS", 1_000_000_000_000),
    ("GFLOPS", 1_000_000_000),
    ("MFLOPS", 1_000_000),
    ("FLOPS", 1),
];

/// Alternative spellings of arithmetic rates, which are read and never printed.
const OTHER_ARITHMETIC: &[Unit] = &[
    ("EFLOPS", 1_000_000_000_000_000_000),
    ("EFLOP/s", 1_000_000_000_000_000_000),
    ("PFLOP/s", 1_000_000_000_000_000),
    ("TFLOP/s", 1_000_000_000_000),
    ("GFLOP/s", 1_000_000_000),
    ("MFLOP/s", 1_000_000),
    ("FLOP/s", 1),
    ("POPS", 1_000_000_000_000_000),
    ("TOPS", 1_000_000_000_000),
    ("GOPS", 1_000_000_000),
];

/// The differences between the quantities.
trait Quantity: Copy + PartialEq {
    /// `a bandwidth`, for messages.
    const NAME: &'static str;
    /// Units of the quantity.
    const UNITS: &'static [Unit];
    /// Alternative spellings of the quantity's units, which are read and never printed.
    const OTHERS: &'static [Unit];
    /// Ambiguous spellings, each with the two units that it could mean.
    const UNCLEAR: &'static [(&'static str, [&'static str; 2])] = &[];
    /// Text that lists the quantity's common units in messages.
    const COMMON: &'static str;
    /// Probable units of a bare number: the first whose limit the number does not exceed.
    const BARE: &'static [(f64, &'static str)];
    /// A valid value of the quantity, as an example in messages.
    const EXAMPLE: &'static str;

    /// The value of a number in a unit, or the reason why the number is invalid.
    fn from_decimal(value: Decimal, unit: u64) -> Result<Self, &'static str>;
    /// The value in the smallest unit, as the nearest float.
    fn in_smallest(self) -> f64;
    /// A text that reads back as the same value, of any length.
    fn exact(self) -> String;
}

impl Quantity for Bandwidth {
    const NAME: &'static str = "bandwidth";
    const UNITS: &'static [Unit] = BIT_RATES;
    const OTHERS: &'static [Unit] = OTHER_RATES;
    const UNCLEAR: &'static [(&'static str, [&'static str; 2])] =
        &[("KB/s", ["kB/s", "KiB/s"]), ("KBps", ["kB/s", "KiB/s"]), ("KB", ["kB/s", "KiB/s"])];
    const COMMON: &'static str = "bps, kbps, Mbps, Gbps, Tbps, B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s";
    const BARE: &'static [(f64, &'static str)] = &[(400.0, "Gbps"), (1e6, "Mbps"), (f64::INFINITY, "bps")];
    const EXAMPLE: &'static str = "25 Gbps";

    fn from_decimal(value: Decimal, unit: u64) -> Result<Bandwidth, &'static str> {
        let bits = value.number * unit as f64;
        Rate::from_bits_per_second(bits).map(Bandwidth).ok_or(if bits == 0.0 {
            "must be greater than 0"
        } else {
            "is too large"
        })
    }

    fn in_smallest(self) -> f64 {
        self.0.bytes_per_second() * 8.0
    }

    fn exact(self) -> String {
        format!("{} B/s", self.0.bytes_per_second())
    }
}

impl Quantity for Size {
    const NAME: &'static str = "size";
    const UNITS: &'static [Unit] = SIZES;
    const OTHERS: &'static [Unit] = OTHER_SIZES;
    const UNCLEAR: &'static [(&'static str, [&'static str; 2])] = &[
        ("KB", ["KiB", "kB"]),
        ("K", ["KiB", "kB"]),
        ("M", ["MiB", "MB"]),
        ("G", ["GiB", "GB"]),
        ("T", ["TiB", "TB"]),
    ];
    const COMMON: &'static str = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB";
    const BARE: &'static [(f64, &'static str)] = &[(512.0, "GiB"), (10_000.0, "MiB"), (f64::INFINITY, "B")];
    const EXAMPLE: &'static str = "8 GiB";

    fn from_decimal(value: Decimal, unit: u64) -> Result<Size, &'static str> {
        match value.times(unit) {
            Some((bytes, false)) => Ok(Size(Bytes(bytes))),
            Some((_, true)) => Err("is not a whole number of bytes"),
            None => Err("is too large"),
        }
    }

    fn in_smallest(self) -> f64 {
        self.0.0 as f64
    }

    fn exact(self) -> String {
        format!("{} B", self.0.0)
    }
}

impl Quantity for Flops {
    const NAME: &'static str = "rate of arithmetic";
    const UNITS: &'static [Unit] = ARITHMETIC;
    const OTHERS: &'static [Unit] = OTHER_ARITHMETIC;
    const COMMON: &'static str = "MFLOPS, GFLOPS, TFLOPS, PFLOPS";
    const BARE: &'static [(f64, &'static str)] = &[(10_000.0, "TFLOPS"), (1e9, "GFLOPS"), (f64::INFINITY, "FLOPS")];
    const EXAMPLE: &'static str = "312 TFLOPS";

    fn from_decimal(value: Decimal, unit: u64) -> Result<Flops, &'static str> {
        let flops = value.number * unit as f64;
        match flops {
            0.0 => Err("must be greater than 0"),
            _ if flops.is_finite() => Ok(Flops(flops)),
            _ => Err("is too large"),
        }
    }

    fn in_smallest(self) -> f64 {
        self.0
    }

    fn exact(self) -> String {
        format!("{} FLOPS", self.0)
    }
}

impl Quantity for Watts {
    const NAME: &'static str = "power";
    const UNITS: &'static [Unit] = POWERS;
    const OTHERS: &'static [Unit] = OTHER_POWERS;
    const COMMON: &'static str = "mW, W, kW";
    const BARE: &'static [(f64, &'static str)] = &[(f64::INFINITY, "W")];
    const EXAMPLE: &'static str = "15 W";

    fn from_decimal(value: Decimal, unit: u64) -> Result<Watts, &'static str> {
        let watts = value.number * unit as f64 / 1_000.0;
        match watts {
            0.0 => Err("must be greater than 0"),
            _ if watts.is_finite() => Ok(Watts(watts)),
            _ => Err("is too large"),
        }
    }

    fn in_smallest(self) -> f64 {
        self.0 * 1_000.0
    }

    fn exact(self) -> String {
        format!("{} W", self.0)
    }
}

impl Quantity for Duration {
    const NAME: &'static str = "time";
    const UNITS: &'static [Unit] = TIMES;
    const OTHERS: &'static [Unit] = OTHER_TIMES;
    const UNCLEAR: &'static [(&'static str, [&'static str; 2])] = &[("m", ["min", "ms"])];
    const COMMON: &'static str = "ps, ns, us, ms, s, min, h";
    const BARE: &'static [(f64, &'static str)] =
        &[(0.01, "s"), (0.5, "ms"), (1_000.0, "us"), (1e6, "ns"), (f64::INFINITY, "ps")];
    const EXAMPLE: &'static str = "3 us";

    fn from_decimal(value: Decimal, unit: u64) -> Result<Duration, &'static str> {
        let (ps, remainder) = value.times(unit).ok_or("exceeds the limit of virtual time (213 days)")?;
        let ps = ps.checked_add(u64::from(remainder)).ok_or("exceeds the limit of virtual time (213 days)")?;
        Ok(Duration(SimDuration::from_ps(ps)))
    }

    fn in_smallest(self) -> f64 {
        self.0.as_ps() as f64
    }

    fn exact(self) -> String {
        format!("{} ps", self.0.as_ps())
    }
}

/// A number in its notation: `mantissa / 10^places`, and the nearest float.
#[derive(Clone, Copy)]
struct Decimal {
    /// The digits without the decimal point; `None` if they do not fit.
    mantissa: Option<u128>,
    places: u32,
    number: f64,
}

impl Decimal {
    /// Reads `12`, `1.5` or `1_000`.
    fn parse(text: &str) -> Option<Decimal> {
        let digits: String = text.chars().filter(|c| *c != '_').collect();
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || digits.ends_with('.') {
            return None;
        }
        let mantissa = format!("{whole}{fraction}").parse().ok();
        Some(Decimal { mantissa, places: fraction.len() as u32, number: digits.parse().ok()? })
    }

    /// The whole part of `self * unit`, and whether there is a remainder; `None` if the whole part does not fit.
    fn times(self, unit: u64) -> Option<(u64, bool)> {
        let scale = 10u128.checked_pow(self.places)?;
        let product = self.mantissa?.checked_mul(u128::from(unit))?;
        Some((u64::try_from(product / scale).ok()?, product % scale != 0))
    }
}

fn parse<Q: Quantity>(text: &str) -> Result<Q, UnitError> {
    let trimmed = text.trim();
    let error = |message: String, hint: String| Err(UnitError { message, hint });
    let example = || format!("write a number and a unit, for example \"{}\" (units: {})", Q::EXAMPLE, Q::COMMON);
    if trimmed.starts_with('-') {
        return error(format!("a {} cannot be negative: \"{trimmed}\"", Q::NAME), example());
    }
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_'))).unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim_start());
    let Some(decimal) = Decimal::parse(number) else {
        return error(format!("\"{trimmed}\" is not a {}", Q::NAME), example());
    };
    if unit.is_empty() && decimal.mantissa == Some(0) {
        // Zero is the same in all units.
        return Q::from_decimal(decimal, Q::UNITS[0].1).map_err(|_| bare_number::<Q>(trimmed, decimal.number));
    }
    if unit.is_empty() {
        return Err(bare_number::<Q>(trimmed, decimal.number));
    }
    let short = seconds(unit);
    match units::<Q>().find(|(name, _)| *name == short) {
        Some((_, worth)) => Q::from_decimal(decimal, *worth).or_else(|why| {
            error(
                format!("the {} \"{trimmed}\" {why}", Q::NAME),
                format!("a {} looks like \"{}\"", Q::NAME, Q::EXAMPLE),
            )
        }),
        None => error(format!("\"{unit}\" is not a unit of {}", Q::NAME), unit_hint::<Q>(number, short)),
    }
}

/// All spellings of the quantity's units that are read, starting with the printed spellings.
fn units<Q: Quantity>() -> impl Iterator<Item = &'static Unit> {
    Q::UNITS.iter().chain(Q::OTHERS)
}

/// The unit with a trailing `/sec` shortened to `/s`: `Gbits/sec` becomes `Gbits/s`.
fn seconds(unit: &str) -> &str {
    if unit.ends_with("/sec") { &unit[..unit.len() - "ec".len()] } else { unit }
}

/// A hint with the units that were probably meant: the same letters in another case, or for a rate the units of its
/// numerator per second; else all common units.
fn unit_hint<Q: Quantity>(number: &str, unit: &str) -> String {
    let quoted = |names: &[&str]| {
        let values: Vec<String> = names.iter().map(|name| format!("\"{number} {name}\"")).collect();
        values.join(" or ")
    };
    if let Some((_, names)) = Q::UNCLEAR.iter().find(|(name, _)| *name == unit) {
        return format!("write {}", quoted(names));
    }
    for end in ["", "/s", "ps", "bps"] {
        let spelled = format!("{unit}{end}");
        let mut names: Vec<&str> = units::<Q>().map(|(name, _)| *name).filter(|name| *name == spelled).collect();
        if names.is_empty() {
            let mut same: Vec<&Unit> = units::<Q>().filter(|(name, _)| name.eq_ignore_ascii_case(&spelled)).collect();
            same.sort_by_key(|(_, worth)| *worth);
            same.dedup_by_key(|(_, worth)| *worth);
            names.extend(same.iter().map(|(name, _)| name));
        }
        match (names.as_slice(), end) {
            ([], _) => {}
            ([_], "") => return format!("did you mean {}? (units are case-sensitive)", quoted(&names)),
            ([_], _) => return format!("did you mean {}?", quoted(&names)),
            // Only rates have such units.
            _ => return format!("did you mean {}? (b is a bit, B is a byte)", quoted(&names)),
        }
    }
    format!("the units are {}", Q::COMMON)
}

fn bare_number<Q: Quantity>(number: &str, value: f64) -> UnitError {
    let (_, unit) = Q::BARE.iter().find(|(limit, _)| value <= *limit).expect("the last one has no limit");
    UnitError {
        message: format!("a {} needs a unit, but {number} has none", Q::NAME),
        hint: format!("write \"{number} {unit}\", or another unit: {}", Q::COMMON),
    }
}

/// The shortest text that reads back as the same value, with a number of at least 1 if possible.
fn print<Q: Quantity>(value: Q) -> String {
    let candidates = Q::UNITS.iter().map(|(name, worth)| (value.in_smallest() / *worth as f64, name));
    candidates
        .map(|(number, name)| (number < 1.0, format!("{number} {name}")))
        .filter(|(_, text)| parse::<Q>(text).as_ref() == Ok(&value))
        .min_by_key(|(below_one, text)| (*below_one, text.len()))
        .map_or_else(|| value.exact(), |(_, text)| text)
}

/// Reads a text, and refuses a number with the unit that it lacks.
struct QuantityVisitor<Q>(PhantomData<Q>);

impl<Q: Quantity> de::Visitor<'_> for QuantityVisitor<Q> {
    type Value = Q;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} with a unit, for example \"{}\"", Q::NAME, Q::EXAMPLE)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Q, E> {
        parse(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Q, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Q, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Q, E> {
        let text = number.to_string();
        parse(&text).map_err(E::custom)
    }
}

macro_rules! text_form {
    ($($name:ident)*) => {$(
        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<$name, UnitError> {
                parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&print(*self))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                deserializer.deserialize_any(QuantityVisitor(PhantomData))
            }
        }
    )*};
}

text_form! { Bandwidth Size Duration Flops Watts }

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bandwidth(text: &str) -> f64 {
        text.parse::<Bandwidth>().unwrap().0.bytes_per_second()
    }

    fn picoseconds(text: &str) -> u64 {
        text.parse::<Duration>().unwrap().0.as_ps()
    }

    fn bytes(text: &str) -> u64 {
        text.parse::<Size>().unwrap().0.0
    }

    #[test]
    fn units_are_worth_what_their_names_say() {
        // 25 Gbps = 25e9 bit/s = 25e9 / 8 B/s
        assert_eq!(bandwidth("25 Gbps"), 25e9 / 8.0);
        assert_eq!(bandwidth("1 GB/s"), 1e9);
        assert_eq!(bandwidth("100 MiB/s"), 100.0 * 1_048_576.0);
        assert_eq!(bandwidth("0.5Gbit/s"), 62_500_000.0);
        assert_eq!(bytes("1 MiB"), 1 << 20);
        assert_eq!(bytes("1.5 GB"), 1_500_000_000);
        assert_eq!(bytes("1_448 B"), 1448);
        assert_eq!(picoseconds("3 us"), 3_000_000);
        assert_eq!(picoseconds("0.1 µs"), 100_000);
        assert_eq!(picoseconds("0 s"), 0);
        assert_eq!(picoseconds("2 h"), 7_200 * 1_000_000_000_000);
    }

    #[test]
    fn times_round_up_to_a_picosecond_without_floating_point() {
        // 0.1234567890123 s = 123456789012.3 ps
        assert_eq!(picoseconds("0.1234567890123 s"), 123_456_789_013);
        assert_eq!(picoseconds("18446744.073709551615 s"), u64::MAX);
    }

    #[test]
    fn what_is_no_value_is_refused_with_a_value() {
        let refused = [
            error::<Bandwidth>("25"),
            error::<Bandwidth>("0 Gbps"),
            error::<Bandwidth>("-1 Gbps"),
            error::<Bandwidth>("1 gbps"),
            error::<Bandwidth>("1 GB"),
            error::<Bandwidth>("fast"),
            error::<Bandwidth>(""),
            error::<Size>("8"),
            error::<Size>("0.3 KiB"),
            error::<Size>("99999999 TiB"),
            error::<Size>("1,5 GB"),
            error::<Duration>("10"),
            error::<Duration>("-1 us"),
            error::<Duration>("1 day"),
            error::<Duration>("6000 h"),
        ];
        insta::assert_snapshot!(refused.join("\n\n"));
    }

    fn error<Q: Quantity + fmt::Debug>(text: &str) -> String {
        parse::<Q>(text).unwrap_err().to_string()
    }

    /// Spellings of other tools and vendors are read as their unit, or refused with units to choose from.
    #[test]
    fn other_spellings_are_read_where_they_mean_one_unit() {
        for (spelled, unit) in [
            ("GBps", "GB/s"),
            ("MBps", "MB/s"),
            ("kBps", "kB/s"),
            ("Bps", "B/s"),
            ("TBps", "TB/s"),
            ("GiBps", "GiB/s"),
            ("Gbits/sec", "Gbps"),
            ("Gb/sec", "Gbps"),
            ("Gbit/sec", "Gbps"),
            ("GBit/s", "Gbps"),
            ("Tb/s", "Tbps"),
            ("Mbits/s", "Mbps"),
            ("MBytes/sec", "MB/s"),
            ("GB/sec", "GB/s"),
            ("Kbps", "kbps"),
            ("Kbit/s", "kbps"),
        ] {
            assert_eq!(bandwidth(&format!("100 {spelled}")), bandwidth(&format!("100 {unit}")), "{spelled}");
        }
        for (spelled, unit) in [("Gi", "GiB"), ("Mi", "MiB"), ("bytes", "B")] {
            assert_eq!(bytes(&format!("3 {spelled}")), bytes(&format!("3 {unit}")), "{spelled}");
        }
        for (spelled, unit) in [
            ("sec", "s"),
            ("seconds", "s"),
            ("msec", "ms"),
            ("usec", "us"),
            ("nsec", "ns"),
            ("minutes", "min"),
            ("hr", "h"),
        ] {
            assert_eq!(picoseconds(&format!("3 {spelled}")), picoseconds(&format!("3 {unit}")), "{spelled}");
        }
        let flops = |text: &str| text.parse::<Flops>().unwrap().0;
        assert_eq!([flops("2 TFLOP/s"), flops("2 TOPS"), flops("0.002 PFLOPS")], [2e12; 3]);
        assert_eq!(["2 kW", "2000 watts", "2000000 mW"].map(|text| text.parse::<Watts>().unwrap().0), [2e3; 3]);
        // Values that were read in an alternative spelling are printed in the standard spelling.
        assert_eq!("3 TBps".parse::<Bandwidth>().unwrap().to_string(), "3 TB/s");
        assert_eq!("3 Gi".parse::<Size>().unwrap().to_string(), "3 GiB");
        let refused = [
            (
                "rate",
                vec![
                    "100 gbps",
                    "100 GBPS",
                    "100 gb/s",
                    "100 GB",
                    "100 Gb",
                    "100 G",
                    "100 gb",
                    "8 KB/s",
                    "8 KB/sec",
                    "100 gb/sec",
                    "16 GT/s",
                ],
            ),
            ("size", vec!["8 gb", "8 Gib", "64 KB", "64 K", "8 G", "8 Gbit"]),
            ("time", vec!["3 US", "3 m", "3 d", "3 Sec"]),
            ("arithmetic", vec!["3 tflops", "3 TFlops", "3 T"]),
            ("power", vec!["15 MW", "15 w", "15 kw"]),
        ];
        let hints = refused.map(|(quantity, texts)| {
            let error = |text: &&str| match quantity {
                "rate" => parse::<Bandwidth>(text).unwrap_err(),
                "size" => parse::<Size>(text).unwrap_err(),
                "time" => parse::<Duration>(text).unwrap_err(),
                "power" => parse::<Watts>(text).unwrap_err(),
                _ => parse::<Flops>(text).unwrap_err(),
            };
            texts.iter().map(|text| format!("{text}: {}\n", error(text).hint)).collect::<String>()
        });
        insta::assert_snapshot!(hints.concat(), @r#"
        100 gbps: did you mean "100 Gbps" or "100 GBps"? (b is a bit, B is a byte)
        100 GBPS: did you mean "100 Gbps" or "100 GBps"? (b is a bit, B is a byte)
        100 gb/s: did you mean "100 Gb/s" or "100 GB/s"? (b is a bit, B is a byte)
        100 GB: did you mean "100 GB/s"?
        100 Gb: did you mean "100 Gb/s"?
        100 G: did you mean "100 Gbps"?
        100 gb: did you mean "100 Gb/s" or "100 GB/s"? (b is a bit, B is a byte)
        8 KB/s: write "8 kB/s" or "8 KiB/s"
        8 KB/sec: write "8 kB/s" or "8 KiB/s"
        100 gb/sec: did you mean "100 Gb/s" or "100 GB/s"? (b is a bit, B is a byte)
        16 GT/s: the units are bps, kbps, Mbps, Gbps, Tbps, B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s
        8 gb: did you mean "8 GB"? (units are case-sensitive)
        8 Gib: did you mean "8 GiB"? (units are case-sensitive)
        64 KB: write "64 KiB" or "64 kB"
        64 K: write "64 KiB" or "64 kB"
        8 G: write "8 GiB" or "8 GB"
        8 Gbit: the units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB
        3 US: did you mean "3 us"? (units are case-sensitive)
        3 m: write "3 min" or "3 ms"
        3 d: the units are ps, ns, us, ms, s, min, h
        3 Sec: did you mean "3 sec"? (units are case-sensitive)
        3 tflops: did you mean "3 TFLOPS"? (units are case-sensitive)
        3 TFlops: did you mean "3 TFLOPS"? (units are case-sensitive)
        3 T: the units are MFLOPS, GFLOPS, TFLOPS, PFLOPS
        15 MW: did you mean "15 mW"? (units are case-sensitive)
        15 w: did you mean "15 W"? (units are case-sensitive)
        15 kw: did you mean "15 kW"? (units are case-sensitive)
        "#);
    }

    #[test]
    fn values_print_as_people_write_them() {
        let printed = |text: &str| text.parse::<Bandwidth>().unwrap().to_string();
        assert_eq!(printed("25000 Mbps"), "25 Gbps");
        assert_eq!(printed("1 GB/s"), "8 Gbps");
        assert_eq!(printed("0.1 Gbps"), "100 Mbps");
        assert_eq!("8192 MiB".parse::<Size>().unwrap().to_string(), "8 GiB");
        assert_eq!("1448 B".parse::<Size>().unwrap().to_string(), "1448 B");
        assert_eq!("0.0005 ms".parse::<Duration>().unwrap().to_string(), "500 ns");
        assert_eq!("0 ms".parse::<Duration>().unwrap().to_string(), "0 s");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(rate in 1e-6f64..1e18, size: u64, ps: u64) {
            let bandwidth = Bandwidth(Rate::new(rate).unwrap());
            prop_assert_eq!(bandwidth.to_string().parse(), Ok(bandwidth));
            let size = Size(Bytes(size));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let duration = Duration(SimDuration::from_ps(ps));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn any_text_is_a_value_or_an_error(text: String) {
            let _ = text.parse::<Bandwidth>().is_ok() | text.parse::<Size>().is_ok() | text.parse::<Duration>().is_ok();
        }
    }

    #[test]
    fn a_bare_number_is_suggested_in_a_unit_of_its_magnitude() {
        let hint = |error: UnitError| error.hint.split(',').next().unwrap_or_default().to_owned();
        let rate = |text: &str| hint(text.parse::<Bandwidth>().unwrap_err());
        assert_eq!([rate("10"), rate("1000"), rate("1e9")].map(|text| text.contains("Gbps\"")), [true, false, false]);
        assert_eq!(rate("1000"), "write \"1000 Mbps\"");
        assert_eq!(rate("1000000000"), "write \"1000000000 bps\"");
        let time = |text: &str| hint(text.parse::<Duration>().unwrap_err());
        assert_eq!(
            [time("0.001"), time("0.2"), time("50"), time("5000")],
            ["0.001 s", "0.2 ms", "50 us", "5000 ns"].map(|text| format!("write \"{text}\""))
        );
        let size = |text: &str| hint(text.parse::<Size>().unwrap_err());
        assert_eq!(
            [size("8"), size("1024"), size("65536")],
            ["8 GiB", "1024 MiB", "65536 B"].map(|text| format!("write \"{text}\""))
        );
        assert_eq!(hint("312".parse::<Flops>().unwrap_err()), "write \"312 TFLOPS\"");
        assert_eq!(hint("312000000000000".parse::<Flops>().unwrap_err()), "write \"312000000000000 FLOPS\"");
    }
}
