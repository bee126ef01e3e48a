//! Owns the table of known devices: their figures, as far as they are known, and the source of each figure.
//!
//! The table is data (`table.csv`); an empty cell is a figure that was neither published nor measured.
//! `uniference-costs` has the devices' measured operators.

use crate::diagnostic::suggest;
use crate::units::Flops;
use std::sync::LazyLock;
use uniference_sim::collective::GpuGeneration;
use uniference_sim::device::{Peaks, Precision, Rates};
use uniference_sim::time::{Bytes, SimDuration};

static TABLE: LazyLock<Vec<KnownDevice>> = LazyLock::new(|| {
    let mut reader = csv::Reader::from_reader(include_str!("table.csv").as_bytes());
    reader.deserialize().map(|row| row.expect("the table has all columns, and numbers where they belong")).collect()
});

/// A device of the table. Rates are dense: without the factor that vendors claim for sparse matrices.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub struct KnownDevice {
    /// `h100-sxm-80gb`.
    pub name: String,
    /// Other names, separated by spaces.
    short: String,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The manufacturer.
    pub vendor: String,
    memory_gib: Option<f64>,
    memory_gbps: Option<f64>,
    float64_tflops: Option<f64>,
    float32_tflops: Option<f64>,
    /// Rate of 32-bit numbers in tensor cores, in 10^12 operations per second. It is no rate of [`Peaks`]: PyTorch uses
    /// it only if told to.
    pub tf32_tflops: Option<f64>,
    float16_tflops: Option<f64>,
    bfloat16_tflops: Option<f64>,
    float8_tflops: Option<f64>,
    int8_tops: Option<f64>,
    launch_us: Option<f64>,
    /// Speed of Python on the device's host, relative to this project's reference CPU.
    pub host_speed: Option<f64>,
    /// The device's link to its neighbours in the same machine.
    pub link: Option<String>,
    /// Rate of all of the device's local links together in one direction, in 10^9 bytes per second.
    pub link_gbps: Option<f64>,
    /// Watts while nothing runs.
    pub idle_w: Option<f64>,
    /// Watts while the device computes.
    pub busy_w: Option<f64>,
    /// Maximum power in watts.
    pub cap_w: Option<f64>,
    /// Number of units that compute in parallel: multiprocessors (NVIDIA), compute units (AMD).
    pub units: Option<f64>,
    /// The name that NVIDIA's driver reports.
    cuda_name: Option<String>,
    /// CUDA compute capability.
    capability: Option<String>,
    l2_mib: Option<f64>,
    clock_mhz: Option<f64>,
    bus_bits: Option<f64>,
    /// Sources of the figures, by column.
    pub source: String,
}

/// The role of a device in a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A CPU, which runs programs itself.
    Cpu,
    /// A GPU or another accelerator, which a CPU feeds.
    Gpu,
}

/// The fraction of PCI Express's raw rate that a large copy reaches; packet headers and flow control use the rest
/// (Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018).
const PCI_EXPRESS: f64 = 0.8;
/// Bytes per second between the host and a device whose host link is unknown: the rate of PCI Express 4.0 with 16
/// lanes.
const UNKNOWN_LINK: f64 = 32e9;

/// Bytes per second of a large copy between the host and a device, `known` if the table has it. A device without any
/// link shares the host's memory, where a copy reads and writes each byte at the bandwidth `memory`.
pub fn host_rate(known: Option<&KnownDevice>, memory: f64) -> f64 {
    match known {
        Some(device) if device.link.is_none() => memory / 2.0,
        _ => PCI_EXPRESS * known.and_then(KnownDevice::host_link).unwrap_or(UNKNOWN_LINK),
    }
}

/// All devices, in the order of the table.
pub fn all() -> &'static [KnownDevice] {
    &TABLE
}

/// Parts of device names that distinguish variants of one product: form factor, kind of memory, die. Memory sizes
/// (`80gb`) also distinguish variants.
const VARIANTS: [&str; 7] = ["sxm", "sxm2", "sxm4", "pcie", "nvl", "hbm2e", "gcd"];

/// The device called `name`: a full name, a short name, or the name of a product that has one variant in the table.
///
/// # Errors
/// If no device, or more than one, has such a name; the text ends with a hint.
pub fn find(name: &str) -> Result<&'static KnownDevice, UnknownDevice> {
    let exactly = |device: &&KnownDevice| device.name == name || device.short_names().any(|short| short == name);
    if let Some(device) = TABLE.iter().find(exactly) {
        return Ok(device);
    }
    // Different products may start with the same letters: `h20` is not an H200, and Jetson AGX Xavier is not a Jetson
    // AGX Orin.
    let variants: Vec<&KnownDevice> = TABLE.iter().filter(|device| is_product(name, &device.name)).collect();
    let begins = |device: &&KnownDevice| !name.is_empty() && device.name.starts_with(&name.to_lowercase());
    let begins: Vec<&str> = TABLE.iter().filter(begins).map(|device| device.name.as_str()).collect();
    match variants.as_slice() {
        [device] => Ok(device),
        [] => {
            let message = format!("unknown device model `{name}`");
            let names =
                TABLE.iter().flat_map(|device| std::iter::once(device.name.as_str()).chain(device.short_names()));
            let hint = match begins.as_slice() {
                [] => suggest(name, "device models", names),
                [one] => format!("did you mean `{one}`?"),
                several => format!("did you mean one of {}?", several.join(", ")),
            };
            Err(UnknownDevice { message, hint })
        }
        several => {
            let names: Vec<&str> = several.iter().map(|device| device.name.as_str()).collect();
            let message = format!("`{name}` is the beginning of {} device models", several.len());
            Err(UnknownDevice { message, hint: format!("write one of {}", names.join(", ")) })
        }
    }
}

/// Whether all parts of the device's name after `name` distinguish variants of one product.
fn is_product(name: &str, device: &str) -> bool {
    let is_memory = |part: &str| part.strip_suffix("gb").is_some_and(|size| size.parse::<u32>().is_ok());
    let rest = device.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|rest| rest.split('-').all(|part| VARIANTS.contains(&part) || is_memory(part)))
}

/// The reason why a name identifies no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}\nhint: {hint}")]
pub struct UnknownDevice {
    /// Description of the mistake.
    pub message: String,
    /// Advice with the names to use instead.
    pub hint: String,
}

/// Properties of a device that NVIDIA's libraries report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cuda<'a> {
    /// The name that the driver reports.
    pub name: &'a str,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the second-level cache.
    pub l2: Bytes,
    /// Highest clock of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Width of the memory's bus in bits.
    pub bus_bits: u32,
}

impl KnownDevice {
    /// Names in addition to [`KnownDevice::name`].
    pub fn short_names(&self) -> impl Iterator<Item = &str> {
        self.short.split_whitespace()
    }

    /// Memory available to programs, without memory for error correction and the driver, in whole MiB.
    pub fn memory(&self) -> Option<Bytes> {
        self.memory_gib.map(|gib| Bytes(((gib * 1024.0) as u64) << 20))
    }

    /// Memory bandwidth in bytes per second.
    pub fn bandwidth(&self) -> Option<f64> {
        self.memory_gbps.map(|rate| rate * 1e9)
    }

    /// Duration of the fastest kernels, whatever their work.
    pub fn launch(&self) -> Option<SimDuration> {
        SimDuration::from_secs_f64(self.launch_us? * 1e-6)
    }

    /// The CPU model that servers with this device usually have; `None` if it is unknown.
    ///
    /// From NVIDIA's data sheets: DGX A100 has two EPYC 7742, DGX H100 and H200 two Xeon Platinum 8480C, and DGX B200
    /// two 8570, for which the 8480+ stands; GB200 and GB300 have Grace.
    pub fn host_cpu(&self) -> Option<&'static str> {
        match &*self.name {
            "a100-sxm4-40gb" | "a100-sxm4-80gb" => Some("epyc-7742"),
            "h100-sxm-80gb" | "h200-sxm-141gb" | "b200-sxm-180gb" => Some("xeon-platinum-8480plus"),
            "gb200" | "gb300" => Some("grace"),
            _ => None,
        }
    }

    /// Number of GPUs for which servers with more than two of these CPUs have one CPU: Grace has two (NVIDIA, "GB200
    /// NVL72": 36 CPUs for 72 GPUs), x86 CPUs have four, as in servers with eight GPUs and two CPUs.
    pub fn gpus_per_cpu(&self) -> u32 {
        if self.name == "grace" { 2 } else { 4 }
    }

    /// Bytes per second between the device and its host, in one direction: the rate of the device's own link if that
    /// leads to the host, else the rate of 16 lanes of the PCI Express generation that devices with this local link
    /// have. `None`: device and host share memory, or the rate is unknown. Rates are raw: headers and other overhead
    /// are not subtracted.
    pub fn host_link(&self) -> Option<f64> {
        let link = self.link.as_deref()?;
        let own = || self.link_gbps;
        let gigabytes = match link.split('-').next()? {
            pcie if pcie.starts_with("pcie") => own(),
            // Grace and Blackwell in one package: NVLink-C2C, 450 GB/s in each direction (NVIDIA, "GB200 NVL72").
            "nvlink5" if self.name.starts_with("gb") => Some(450.0),
            // V100; A100, A40, RTX A6000; H100, H200; B200, B300: from the vendor's datasheets.
            "nvlink2" => Some(16.0),
            "nvlink3" => Some(32.0),
            "nvlink4" | "nvlink5" => Some(64.0),
            // MI250; MI300X, MI325X, MI350X, MI355X: PCI Express 4.0 and 5.0.
            "infinity" => Some(if self.name.starts_with("mi3") { 64.0 } else { 32.0 }),
            // GB10: CPU and GPU in one package, 300 GB/s in each direction (NVIDIA, "DGX Spark").
            "c2c" => own(),
            _ => None,
        };
        gigabytes.map(|gigabytes| gigabytes * 1e9)
    }

    /// Peak rates of arithmetic, if any is known.
    pub fn peaks(&self) -> Option<Peaks> {
        // Unless it is published: half of the rate for 16 bits, as on all NVIDIA GPUs with these units (white papers of
        // Ampere, Hopper, Blackwell).
        let tf32 = || self.bfloat16_tflops.or(self.float16_tflops).filter(|_| self.has_tf32()).map(|half| half / 2.0);
        let known = [
            (Precision::Float64, self.float64_tflops),
            (Precision::Float32, self.float32_tflops),
            (Precision::Tf32, self.tf32_tflops.or_else(tf32)),
            (Precision::Float16, self.float16_tflops),
            (Precision::BFloat16, self.bfloat16_tflops),
            (Precision::Float8, self.float8_tflops),
            (Precision::Int8, self.int8_tops),
        ];
        Peaks::table(known.into_iter().filter_map(|(precision, rate)| Some((precision, rate? * 1e12))))
    }

    /// Rates of the roofline, if arithmetic and memory are known.
    pub fn rates(&self) -> Option<Rates> {
        let launch = self.launch().unwrap_or(SimDuration::ZERO);
        Some(Rates { peaks: self.peaks()?, memory: self.bandwidth()?, launch })
    }

    /// CUDA compute capability, major and minor; `None`: it is unknown, or the device is not NVIDIA's.
    pub fn compute_capability(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.capability.as_deref()?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Size of the second-level cache of a GPU.
    pub fn l2(&self) -> Option<Bytes> {
        Some(Bytes((self.l2_mib? * f64::from(1 << 20)) as u64))
    }

    /// The properties that NVIDIA's libraries report; `None`: one of them is unknown, or the device is not NVIDIA's.
    pub fn cuda(&self) -> Option<Cuda<'_>> {
        Some(Cuda {
            name: self.cuda_name.as_deref()?,
            capability: self.compute_capability()?,
            multiprocessors: self.units? as u32,
            l2: self.l2()?,
            clock_khz: (self.clock_mhz? * 1e3) as u32,
            bus_bits: self.bus_bits? as u32,
        })
    }

    /// Generation of a GPU in NCCL's model. GPUs of other vendors have no tables of their own in that model.
    pub fn generation(&self) -> Option<GpuGeneration> {
        (self.kind == DeviceKind::Gpu).then(|| match self.compute_capability() {
            Some((10.., _)) => GpuGeneration::Blackwell,
            Some((9, _)) => GpuGeneration::Hopper,
            _ => GpuGeneration::Ampere,
        })
    }

    /// Whether programs on this device communicate by NCCL. NVIDIA GPUs use NCCL, except GPUs that share the host's
    /// memory (Jetson), for which NVIDIA builds PyTorch without NCCL.
    pub fn uses_nccl(&self) -> bool {
        self.vendor == "nvidia" && self.kind == DeviceKind::Gpu && self.host_link().is_some()
    }

    /// Whether the device multiplies 32-bit numbers in tensor cores if told to: NVIDIA GPUs with compute capability 8.0
    /// or later do (CUDA C++ Programming Guide, "Compute Capabilities").
    pub fn has_tf32(&self) -> bool {
        self.tf32_tflops.is_some() || self.compute_capability() >= Some((8, 0))
    }

    /// Every figure by name, with its unit; `None`: unknown.
    pub fn figures(&self) -> Vec<(&'static str, Option<String>)> {
        let peaks = self.peaks();
        let peak = |precision| Some(Flops(peaks?.known(precision)?).to_string());
        let number = |value: Option<f64>, unit: &str| value.map(|value| format!("{value} {unit}"));
        vec![
            ("memory", number(self.memory_gib, "GiB")),
            ("memory_bandwidth", number(self.memory_gbps, "GB/s")),
            ("float64", peak(Precision::Float64)),
            ("float32", peak(Precision::Float32)),
            ("float32 in tensor cores (tf32)", number(self.tf32_tflops, "TFLOPS")),
            ("float16", peak(Precision::Float16)),
            ("bfloat16", peak(Precision::BFloat16)),
            ("float8", peak(Precision::Float8)),
            ("int8", peak(Precision::Int8)),
            ("launch", number(self.launch_us, "us")),
            ("host speed", self.host_speed.map(|speed| speed.to_string())),
            ("local links", self.link.clone()),
            ("local links, one direction", number(self.link_gbps, "GB/s")),
            ("power, idle", number(self.idle_w, "W")),
            ("power, busy", number(self.busy_w, "W")),
            ("power, cap", number(self.cap_w, "W")),
            ("multiprocessors", self.units.map(|units| units.to_string())),
            ("compute capability", self.capability.clone()),
            ("second-level cache", number(self.l2_mib, "MiB")),
            ("clock", number(self.clock_mhz, "MHz")),
            ("memory bus", number(self.bus_bits, "bits")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_lead_to_their_devices() {
        let mut seen = BTreeSet::new();
        for device in all() {
            for name in std::iter::once(device.name.as_str()).chain(device.short_names()) {
                assert!(seen.insert(name), "{name} appears twice");
                assert_eq!(find(name).unwrap().name, device.name);
            }
            assert!(!device.source.is_empty());
            assert!(device.peaks().is_some() || device.bandwidth().is_some(), "nothing is known of {}", device.name);
        }
    }

    #[test]
    fn host_cpus_are_those_of_servers_that_nvidia_sells() {
        let host_cpu = |name: &str| find(name).unwrap().host_cpu();
        assert_eq!(host_cpu("a100-sxm4-80gb"), Some("epyc-7742"));
        assert_eq!(host_cpu("b200"), Some("xeon-platinum-8480plus"));
        assert_eq!(host_cpu("gb300"), Some("grace"));
        for name in ["a100-pcie-80gb", "v100-sxm2-32gb", "l4", "rtx-4090", "mi300x", "jetson-agx-orin", "grace"] {
            assert_eq!(host_cpu(name), None, "{name}");
        }
        assert!(all().iter().filter_map(KnownDevice::host_cpu).all(|cpu| find(cpu).unwrap().kind == DeviceKind::Cpu));
    }

    #[test]
    fn the_way_to_the_host_follows_from_the_local_links() {
        let gigabytes = |name: &str| find(name).unwrap().host_link().map(|rate| rate / 1e9);
        for (name, rate) in [
            ("v100-sxm2-32gb", Some(16.0)),
            ("a100-sxm4-80gb", Some(32.0)),
            ("h100-sxm", Some(64.0)),
            ("h100-pcie", Some(64.0)),
            ("gb200", Some(450.0)),
            ("l4", Some(32.0)),
            ("jetson-agx-orin-64gb", None),
        ] {
            assert_eq!(gigabytes(name), rate, "{name}");
        }
    }

    #[test]
    fn short_names_and_products_are_enough_where_they_are_clear() {
        let named = |name: &str| find(name).map(|device| device.name.as_str()).map_err(|error| error.to_string());
        assert_eq!(named("h100-sxm"), Ok("h100-sxm-80gb"));
        assert_eq!(named("jetson-orin-nano"), Ok("jetson-orin-nano-8gb"));
        assert_eq!(named("jetson-agx-orin"), Ok("jetson-agx-orin-64gb"));
        assert_eq!(named("p100"), Ok("p100-pcie-16gb"));
        assert_eq!(
            named("a100-sxm4").unwrap_err(),
            "`a100-sxm4` is the beginning of 2 device models\nhint: write one of a100-sxm4-40gb, a100-sxm4-80gb"
        );
        assert_eq!(named("h10-sxm").unwrap_err(), "unknown device model `h10-sxm`\nhint: did you mean `h100-sxm`?");
        assert!(named("").unwrap_err().contains("device models are"));
    }

    /// Names of which one is the beginning of another are different products.
    #[test]
    fn a_device_is_found_by_its_exact_name_first() {
        let bandwidth = |name: &str| find(name).unwrap().bandwidth().unwrap();
        assert_eq!((bandwidth("h20"), bandwidth("h200")), (4.0e12, 4.8e12));
        assert_eq!((find("l40").unwrap().name.as_str(), find("l40s").unwrap().name.as_str()), ("l40", "l40s"));
        assert_eq!((find("l4").unwrap().name.as_str(), find("a10g").unwrap().name.as_str()), ("l4", "a10g"));
    }

    /// Each name is a different product, or several products, whose name starts like a device of the table.
    #[test]
    fn a_name_of_another_product_is_refused() {
        let refused = |name: &str| match find(name) {
            Ok(device) => panic!("{name} is taken for {}", device.name),
            Err(error) => error.to_string(),
        };
        for (name, nearest) in [
            ("h10", "h100-sxm-80gb"),
            ("mi300", "mi300x"),
            ("rtx-40", "rtx-4090"),
            ("rtx-pro", "rtx-pro-6000"),
            ("mi35", "mi350x, mi355x"),
            ("rtx-409", "rtx-4090"),
            ("jetson-agx", "jetson-agx-orin-64gb, jetson-agx-thor-128gb"),
            ("jetson-agx-o", "jetson-agx-orin-64gb"),
            ("apple-m4", "apple-m4-pro"),
            ("apple", "apple-m4-pro"),
            ("raspberry-pi", "raspberry-pi-5"),
            ("xeon-platinum", "xeon-platinum-8480plus"),
            ("epyc", "epyc-9654"),
            ("b30", "b300-sxm"),
            ("a100-p", "a100-pcie-40gb, a100-pcie-80gb"),
            ("H20", "h20"),
        ] {
            let text = refused(name);
            assert!(text.starts_with(&format!("unknown device model `{name}`\nhint: did you mean ")), "{text}");
            assert!(text.contains(nearest), "{text}");
        }
    }

    #[test]
    fn gpus_of_nvidia_use_nccl_and_nothing_else_does() {
        let without: Vec<&str> =
            all().iter().filter(|device| !device.uses_nccl()).map(|device| device.name.as_str()).collect();
        assert_eq!(
            without,
            [
                "mi100",
                "mi210",
                "mi250-gcd",
                "mi250x-gcd",
                "mi300x",
                "mi325x",
                "mi350x",
                "mi355x",
                "jetson-orin-nano-8gb",
                "jetson-orin-nx-16gb",
                "jetson-agx-orin-64gb",
                "jetson-agx-thor-128gb",
                "apple-m4-pro",
                "raspberry-pi-5",
                "xeon-platinum-8480plus",
                "epyc-9654",
                "epyc-7742",
                "grace"
            ]
        );
    }

    #[test]
    fn all_devices_of_nvidia_have_what_its_libraries_say() {
        for device in all().iter().filter(|device| device.vendor == "nvidia") {
            assert!(device.cuda().is_some() || device.units.is_none(), "{}", device.name);
        }
        assert_eq!(find("l4").unwrap().cuda().unwrap().capability, (8, 9));
        assert_eq!(find("mi300x").unwrap().cuda(), None);
    }

    #[test]
    fn figures_have_units() {
        let device = find("h100-sxm").unwrap();
        let rates = device.rates().unwrap();
        assert_eq!(rates.peaks.known(Precision::BFloat16), Some(989e12));
        assert_eq!(rates.peaks.known(Precision::Tf32), Some(494.5e12));
        let derived = find("jetson-agx-orin").unwrap();
        assert_eq!(derived.peaks().unwrap().known(Precision::Tf32), Some(42.5e12 / 2.0));
        assert_eq!(find("t4").unwrap().peaks().unwrap().known(Precision::Tf32), None);
        assert_eq!((rates.memory, device.memory()), (3.35e12, Some(Bytes(81_080 << 20))));
        let shown: Vec<String> =
            device.figures().into_iter().filter_map(|(name, figure)| Some(format!("{name}: {}", figure?))).collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        memory: 79.18 GiB
        memory_bandwidth: 3350 GB/s
        float32: 66.9 TFLOPS
        float32 in tensor cores (tf32): 494.5 TFLOPS
        float16: 989 TFLOPS
        bfloat16: 989 TFLOPS
        float8: 1978 TFLOPS
        int8: 1978 TFLOPS
        launch: 2.85 us
        local links: nvlink4
        local links, one direction: 450 GB/s
        power, cap: 700 W
        multiprocessors: 132
        compute capability: 9.0
        second-level cache: 50 MiB
        clock: 1980 MHz
        memory bus: 5120 bits
        ");
    }
}
