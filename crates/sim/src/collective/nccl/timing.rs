//! Owns the times of NCCL's variants among the GPUs of one server, as measured. [`super::tuning`] chooses a variant by
//! NCCL's own estimates, which differ from the measurements.
//!
//! A call lasts a fixed time, and the time in which its bytes occupy the links. With P ranks, n bytes in all blocks
//! together, k steps of a ring (2 (P-1) for an all-reduce, P-1 for an all-gather and a reduce-scatter), a launch of l, a
//! hop of h, links of B and a protocol that uses the share e of B:
//!
//! - ring: l + p + k (h + s/B) + (k + x)/P n / (e B). p and s are the protocol's overheads for a call and for a step. x
//!   is the part of a step that the last receive of a chunk delays the next chunk: a whole step for protocols that copy
//!   data out of a buffer (`Ll`, `Ll128`), less for `Simple`, which receives in place.
//! - `Ll` lasts at least l + k h + b (P + 4), b being the time of a thread block for a chunk of 4 KiB: NCCL starts
//!   another thread block per 4 KiB of each rank, so that smaller calls are not faster.
//! - NVLS: l + p + (n + f) / R. A rank receives n from the switch and serves n/P of each reduction: R = e B / (1 + 1/P).
//!   f is the fill of the pipeline through the switch: from two chunks of 16 KiB per channel and rank, the smallest that
//!   NCCL uses, to one of 128 KiB, the largest.
//! - messages (send, receive, all-to-all): l + m + q (P-1), then 1/r per byte of the longest message with `Ll`, up to 16
//!   KiB per peer, or p + (P-1)/P n / (e B) + n / (P c) with `Simple`. c is the rate of the copy of the rank's own block.
//!
//! Source of all constants: a robust least-squares fit of logarithms to 2,772 rows of nccl-tests (NCCL 2.27 to 2.29,
//! one server of 2, 4 and 8 GPUs, 512 B to 512 MiB; `tests/data/nccl/`). Median error 5 %, 90 % of
//! the rows within 15 %.

use super::tuning::{Fabric, Protocol};

/// Duration of a call in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Duration {
    /// Time in which no bytes occupy the links: launch, hops and synchronisation.
    pub(super) fixed: f64,
    /// Time in which the call's bytes occupy the links.
    pub(super) carried: f64,
}

/// Constants of a kind of link, fitted to the servers of one GPU model each. Times are in microseconds, rates in GB/s.
struct Links {
    /// From the call until the first step, including the gap between two kernels of a stream.
    launch: f64,
    /// From a thread block's write until the next GPU's thread block has seen it.
    hop: f64,
    /// Time of a thread block for a chunk of 4 KiB in `Ll`.
    block: f64,
    /// Share of the links' rate that `Ll` uses. Half of its bytes are flags; Blackwell GPUs are limited by thread
    /// blocks.
    ll: f64,
    /// Share of the links' rate that the switches' reductions and multicasts use.
    nvls: f64,
    /// Channels of NVLS.
    nvls_channels: f64,
    /// Rate of the copy of a rank's own block in an all-to-all.
    own_copy: f64,
}

/// A100 SXM: 252 rows, median error 7 %.
const NVLINK3: Links =
    Links { launch: 8.83, hop: 0.865, block: 0.33, ll: 0.429, nvls: 0.0, nvls_channels: 0.0, own_copy: 630.0 };
/// H100 SXM: 756 rows, median error 4 %.
const NVLINK4: Links =
    Links { launch: 4.40, hop: 0.837, block: 0.196, ll: 0.518, nvls: 0.823, nvls_channels: 16.0, own_copy: 2570.0 };
/// B200: 1,512 rows, median error 5 %. Without these rows, with the times of H100 in their place, it was 29 %, and 12 %
/// from 16 MiB on.
const NVLINK5: Links =
    Links { launch: 7.42, hop: 1.293, block: 0.178, ll: 0.435, nvls: 0.694, nvls_channels: 32.0, own_copy: 640.0 };
/// L40S over PCI Express: 252 rows, median error 9 %.
const PCIE: Links =
    Links { launch: 4.44, hop: 1.14, block: 0.0, ll: 0.70, nvls: 0.0, nvls_channels: 0.0, own_copy: f64::INFINITY };

/// Share of NVLink's rate that `Simple` and `Ll128` use.
const SIMPLE: f64 = 0.95;
const LL128: f64 = 0.796;
/// Part of a step of `Simple` by which the end of a chunk delays the next chunk.
const SIMPLE_TAIL: f64 = 0.42;
/// Time before the first step of `Simple` in addition to the launch, over NVLink and over PCI Express: pointers are
/// exchanged and memory is fenced.
const SIMPLE_START: [f64; 2] = [11.3, 7.9];
/// Bytes per step of all channels together, in kB, after which `Simple` and `Ll128` first signal the next rank.
const SIMPLE_SLICE: f64 = 948.0;
const LL128_SLICE: f64 = 371.0;
/// Time of a step of `Simple` over PCI Express in addition to the hop.
const PCIE_FENCE: f64 = 1.9;

/// Bytes of a chunk of `Ll` per channel.
const LL_CHUNK: f64 = 4096.0;
/// Bytes of a chunk of NVLS per channel and rank (NCCL, `NCCL_NVLS_CHUNK_SIZE`).
const NVLS_CHUNK: f64 = 131_072.0;
/// Part of the fill of NVLS's pipeline in a small call, and part of it in bytes of a call that has half of the rest.
const NVLS_LEAST: f64 = 0.25;
const NVLS_HALF: f64 = 0.8;
/// Time of NVLS before its first step in addition to the launch.
const NVLS_START: f64 = 4.0;

/// Share of PCI Express's rate that a rank has.
const PCIE_SHARE: f64 = 0.93;
/// Power by which this share falls with pairs of GPUs, if data passes through the host's memory: the memory and the link
/// between the host's sockets carry all ranks' data twice. Fitted to a single kind of server; others may differ by a
/// factor of two.
const HOST_SHARING: f64 = 1.93;

/// Largest message, over NVLink and over PCI Express, that is sent with `Ll` (NCCL, `NCCL_P2P_LL_THRESHOLD`, per
/// channel).
const LL_MESSAGE: [u64; 2] = [16 << 10, 32 << 10];
/// Time of a message in addition to the launch, and of each further peer, over NVLink and over PCI Express.
const MESSAGE: [f64; 2] = [1.79, 3.33];
const PEER: [f64; 2] = [0.243, 0.369];
/// Rate in GB/s of a message in `Ll`, which has one channel.
const LL_MESSAGE_RATE: f64 = 6.26;
/// Share of PCI Express's rate that messages in `Ll` use.
const PCIE_LL_MESSAGES: f64 = 0.38;
/// Time of messages of `Simple` in addition to those of `Ll`, and further time for each pair of ranks if data passes
/// through the host's memory.
const SIMPLE_MESSAGE: f64 = 6.19;
const HOST_PAIR: f64 = 3.0;
/// Share of NVLink's rate that messages of `Simple` use.
const SIMPLE_MESSAGES: f64 = 0.816;

impl Fabric {
    fn links(self) -> &'static Links {
        match self {
            Fabric::Host | Fabric::Pcie => &PCIE,
            Fabric::Nvlink3 => &NVLINK3,
            Fabric::Nvlink4 => &NVLINK4,
            Fabric::Nvlink5 => &NVLINK5,
        }
    }

    fn index(self) -> usize {
        usize::from(!self.is_nvlink())
    }

    /// Rate in GB/s of a rank's links, of which a large call with `Simple` uses `SIMPLE`. `links` is the rate of the
    /// links themselves.
    fn shared(self, links: f64, ranks: f64) -> f64 {
        match self {
            Fabric::Host => links * PCIE_SHARE * libm::pow(2.0 / ranks, HOST_SHARING),
            Fabric::Pcie => links * PCIE_SHARE,
            _ => links,
        }
    }

    /// Largest message that is sent with `Ll`.
    pub(super) fn largest_ll_message(self) -> u64 {
        LL_MESSAGE[self.index()]
    }

    /// Rate in GB/s that a protocol uses of links of `rate` GB/s, in rings of many steps.
    pub(super) fn used(self, protocol: Protocol, rate: f64, ranks: f64) -> f64 {
        let share = match protocol {
            Protocol::Ll => self.links().ll,
            Protocol::Ll128 => LL128,
            Protocol::Simple if self.is_nvlink() => SIMPLE,
            Protocol::Simple => 1.0,
        };
        self.shared(rate, ranks) * share
    }

    /// Microseconds of a hop with a protocol, over links of `rate` GB/s.
    pub(super) fn hop(self, protocol: Protocol, rate: f64) -> f64 {
        self.links().hop
            + match protocol {
                Protocol::Ll => 0.0,
                Protocol::Ll128 => LL128_SLICE / rate,
                Protocol::Simple if self.is_nvlink() => SIMPLE_SLICE / rate,
                Protocol::Simple => PCIE_FENCE,
            }
    }

    /// Microseconds of a call before its first step.
    pub(super) fn start(self, protocol: Protocol) -> f64 {
        self.links().launch + if protocol == Protocol::Simple { SIMPLE_START[self.index()] } else { 0.0 }
    }

    /// Duration of `steps` steps of a ring, over links of `rate` GB/s. `bytes` are all blocks together.
    pub(super) fn ring(self, protocol: Protocol, rate: f64, ranks: u32, steps: f64, bytes: u64) -> Duration {
        let (ranks, bytes) = (f64::from(ranks), bytes as f64);
        let tail = if protocol == Protocol::Simple { SIMPLE_TAIL } else { 1.0 };
        let used = self.used(protocol, rate, ranks) * 1e3;
        let carried = (steps + tail) / ranks * bytes / used;
        let least = match protocol {
            Protocol::Ll => self.links().block * (ranks + 4.0) * (bytes / (LL_CHUNK * ranks)).min(1.0),
            _ => 0.0,
        };
        let fixed = self.start(protocol) + steps * self.hop(protocol, rate) + (least - carried).max(0.0);
        Duration { fixed, carried }
    }

    /// Rate in GB/s at which the switches combine or distribute a tensor.
    pub(super) fn nvls_rate(self, rate: f64, ranks: f64) -> f64 {
        rate * self.links().nvls / (1.0 + 1.0 / ranks)
    }

    /// Number of channels of NVLS.
    pub(super) fn nvls_channels(self) -> f64 {
        self.links().nvls_channels
    }

    /// Duration of a call with NVLS.
    pub(super) fn nvls(self, rate: f64, ranks: u32, bytes: u64) -> Duration {
        let (ranks, bytes) = (f64::from(ranks), bytes as f64);
        let fill = self.nvls_channels() * ranks * NVLS_CHUNK;
        let used = self.nvls_rate(rate, ranks) * 1e3;
        let filled = fill * (NVLS_LEAST + (1.0 - NVLS_LEAST) * bytes / (bytes + NVLS_HALF * fill));
        Duration { fixed: self.links().launch + NVLS_START + filled / used, carried: bytes / used }
    }

    /// Microseconds of each further peer of a group of messages.
    pub(super) fn peer(self) -> f64 {
        PEER[self.index()]
    }

    /// Duration of messages of `bytes` to each of `peers` peers, and of as many messages from them. With `own`, the
    /// rank also copies a block of its own.
    pub(super) fn messages(self, rate: f64, peers: u32, bytes: u64, own: bool) -> Duration {
        let (peers, each) = (f64::from(peers), bytes as f64);
        let start = self.links().launch + MESSAGE[self.index()] + self.peer() * peers;
        let all = peers * each;
        let used = self.shared(rate, peers + 1.0) * 1e3;
        // A message of `Ll` is slower than the links that it shares with messages to other peers.
        match (bytes <= self.largest_ll_message(), self.is_nvlink()) {
            (true, true) => {
                let carried = all / (used * SIMPLE_MESSAGES);
                Duration { fixed: start + (each / (LL_MESSAGE_RATE * 1e3) - carried).max(0.0), carried }
            }
            (true, false) => Duration { fixed: start, carried: all / (used * PCIE_LL_MESSAGES) },
            (false, is_nvlink) => {
                let share = if is_nvlink { SIMPLE_MESSAGES } else { 1.0 };
                let copied = if own { each / (self.links().own_copy * 1e3) } else { 0.0 };
                let pairs = if self == Fabric::Host { peers * (peers + 1.0) / 2.0 } else { 0.0 };
                let fixed = start + SIMPLE_MESSAGE + HOST_PAIR * pairs;
                Duration { fixed, carried: all / (used * share) + copied }
            }
        }
    }
}
