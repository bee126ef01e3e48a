//! Owns the tables of a report: each column's name, type, kind, title, meaning and places, declared once. The JSON of
//! `report.json`, the tables of the terminal, the results of sweeps, the report page, `docs/reference/report.md` and
//! Python's attributes follow from them. The values come from [`super`] and from the analyses of `uniference-studies`.
//!
//! A column that reports of earlier versions lack is optional.

use crate::column::rows;

rows! {
    /// Times and traffic of one rank.
    pub struct RankReport in "ranks" {
        /// Rank in the world.
        #[column(Id, "rank", Terminal)]
        pub rank: u32,
        /// Name of the device on which the rank ran.
        #[column(Text, "device", Terminal)]
        pub device: String,
        /// Virtual time at which the rank's script returned; null if it did not return.
        #[column(Picoseconds, "finish")]
        pub finish_ps: Option<u64>,
        /// Virtual time of a crash that the cluster file planned; absent if the rank did not crash.
        #[column(Picoseconds, "crashed at", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub crash_ps: Option<u64>,
        /// Time in which the rank computed while its communication was not exposed.
        #[column(Seconds, "compute", Terminal, Sweep)]
        pub compute_s: f64,
        /// Exposed communication: the rank was blocked in a communication call and nothing computed, or an operation
        /// was in progress on a CUDA stream of its GPU and no kernel ran on any stream.
        #[column(Seconds, "exposed comm.", Terminal, Sweep)]
        pub exposed_comm_s: f64,
        /// The part of `exposed_comm_s` before a peer had entered the operation: for a send or receive, before the
        /// other side had called it.
        #[column(Seconds, "(late peer)", Terminal, Sweep)]
        pub late_peer_s: f64,
        /// The part of `late_peer_s` in receives: the peer had not issued the send. Reports of earlier versions lack
        /// it. The terminal shows it if it is at least 1 % of the run on some rank.
        #[column(Seconds, "(no data)", Terminal)]
        #[serde(default)]
        pub no_data_s: f64,
        /// The other time: sleep, waits for the store, and time after the rank's finish.
        #[column(Seconds, "idle", Terminal, Sweep)]
        pub idle_s: f64,
        /// Payload that the rank sent over links, algorithm steps included.
        #[column(Bytes, "sent", Terminal, Sweep)]
        pub bytes_sent: u64,
        /// Payload that the rank received over links, algorithm steps included.
        #[column(Bytes, "received", Terminal)]
        pub bytes_received: u64,
        /// Bytes that the rank sent, with headers and control messages.
        #[column(Bytes, "sent with headers")]
        pub wire_bytes_sent: u64,
        /// Energy of the rank's device from the start to the end of the run; absent if the device's power is unknown.
        #[column(Joules, "energy")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub energy_j: Option<f64>,
    }

    /// All calls of one operation of one process group, summed over the members.
    pub struct OperationReport in "operations" {
        /// Name of the operation: `all_reduce`, `send`.
        #[column(Text, "operation", Terminal)]
        pub operation: String,
        /// Number of the process group; groups are numbered in the order in which the program first names them.
        #[column(Id, "group", Terminal)]
        pub group: u32,
        /// Number of calls, each member counted.
        #[column(Count, "calls", Terminal)]
        pub count: u64,
        /// Sizes of the tensors that the members named in the calls.
        #[column(Bytes, "bytes", Terminal)]
        pub bytes: u64,
        /// Time from the issue of the calls to their completion; on CUDA streams from the time at which the stream
        /// reached the operation. If any call of the row was on a CUDA stream, only those calls count.
        #[column(Seconds, "time", Terminal)]
        pub time_s: f64,
        /// Exposed communication: ranks were blocked for the operation and nothing computed; on CUDA streams the part
        /// of `time_s` in which no kernel ran on any stream of the GPU.
        #[column(Seconds, "exposed", Terminal)]
        pub exposed_s: f64,
        /// Number of ranks that called the operation on CUDA streams. This column and the next four are absent if no
        /// rank did.
        #[column(Count, "ranks on CUDA streams")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ranks: Option<u32>,
        /// The part of `time_s` after all members had entered the operation.
        #[column(Seconds, "kernel", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub kernel_s: Option<f64>,
        /// The part of `kernel_s` in which a kernel ran on another CUDA stream of the GPU.
        #[column(Seconds, "overlapped", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub overlapped_s: Option<f64>,
        /// The part of `exposed_s` before all members had entered the operation.
        #[column(Seconds, "(late peer)", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub late_peer_s: Option<f64>,
        /// Bus bandwidth over `kernel_s`, as nccl-tests define it.
        #[column(ByteRate, "bus", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bus_bandwidth: Option<f64>,
        /// `exposed_s` as a fraction of the time of all ranks, which is the makespan times the number of ranks; absent
        /// if the makespan is 0.
        #[column(Ratio, "exposed share")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exposed_share: Option<f64>,
    }

    /// Traffic of one link of the network.
    pub struct LinkReport in "links" {
        /// Name of the link, such as `a.0 -> switch`.
        #[column(Text, "link")]
        pub link: String,
        /// Maximum rate, headers included, without changes by `[[network.change]]`.
        #[column(ByteRate, "bandwidth")]
        pub bandwidth: f64,
        /// Number of messages with payload that passed the link, algorithm steps included; control messages are not
        /// counted.
        #[column(Count, "messages")]
        pub messages: u64,
        /// Bytes of the messages, headers included.
        #[column(Bytes, "carried, headers included")]
        pub wire_bytes: u64,
        /// `wire_bytes` as a fraction of the bytes that the link could have carried in the makespan; more than 1 only
        /// if `[[network.change]]` makes the link faster.
        #[column(Ratio, "utilization")]
        pub utilization: f64,
    }

    /// Figures of a generated job of a language model.
    pub struct JobReport in "job" {
        /// Tokens of all ranks together: read in training and prefill, generated in decode.
        #[column(Count, "tokens")]
        pub tokens: u64,
        /// Tokens per second of virtual time, all ranks together.
        #[column(TokenRate, "tokens per second", Sweep)]
        pub tokens_per_s: f64,
        /// Tokens per second of virtual time per device.
        #[column(TokenRate, "tokens per second per device")]
        pub tokens_per_s_per_device: f64,
        /// Floating-point operations that the model needs for the tokens; recomputation does not count.
        #[column(Flops, "model FLOPs")]
        pub model_flops: f64,
        /// Floating-point operations of the model per second of makespan per device.
        #[column(FlopRate, "model FLOPs per second per device")]
        pub flops_per_s_per_device: f64,
        /// Model FLOPs utilization (MFU): `flops_per_s_per_device` as a fraction of the devices' peak rate for
        /// `bfloat16`.
        #[column(Ratio, "model FLOPs utilization", Sweep)]
        pub mfu: f64,
        /// Fraction of the ranks' time in which they wait for another pipeline stage or have no work left; absent with
        /// one stage.
        #[column(Ratio, "pipeline bubble", Sweep)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bubble: Option<f64>,
        /// Memory of the rank that needs most.
        #[column(Bytes, "memory")]
        pub memory_bytes: u64,
        /// Maximum over the ranks of the tokens for a rank's experts, relative to the mean of all ranks; averaged over
        /// layers. Absent if all experts get equally many tokens.
        #[column(Number, "expert imbalance")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expert_imbalance: Option<f64>,
    }

    /// Compute of one rank on its device, with one origin.
    pub struct ComputeReport in "compute" {
        /// Rank in the world.
        #[column(Id, "rank")]
        pub rank: u32,
        /// Source of the durations: `measured`, `recorded` (in a trace), `database`, `interpolated`,
        /// `extrapolated`, `transferred`, `roofline`, `none` (a trace without a duration), or `unknown` (operators of
        /// unknown cost).
        #[column(Text, "origin")]
        pub origin: String,
        /// Kind of operators: `gemm`, `attention`, `normalization`; absent if compute is not divided by operators.
        #[column(Text, "kind")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub kind: Option<String>,
        /// Sum of the durations.
        #[column(Seconds, "time")]
        pub seconds: f64,
    }

    /// All ranges of one name (`torch.profiler.record_function`) that one rank has opened and closed.
    pub struct PhaseReport in "phases" {
        /// Name of the ranges in the program.
        #[column(Text, "range", Terminal)]
        pub name: String,
        /// Rank in the world.
        #[column(Id, "rank", Terminal)]
        pub rank: u32,
        /// Number of ranges. A range that is still open when the rank ends does not count; a warning names it.
        #[column(Count, "count", Terminal)]
        pub count: u64,
        /// Sum of the durations of the ranges.
        #[column(Seconds, "total", Terminal, Sweep)]
        pub total_s: f64,
        /// Median duration of the ranges.
        #[column(Seconds, "p50", Terminal, Sweep)]
        pub p50_s: f64,
        /// 90th percentile of the durations, with linear interpolation.
        #[column(Seconds, "p90")]
        pub p90_s: f64,
        /// 99th percentile of the durations, with linear interpolation.
        #[column(Seconds, "p99", Terminal, Sweep)]
        pub p99_s: f64,
        /// The part of `total_s` in which the rank computed, as in `ranks`; absent in real runs.
        #[column(Seconds, "compute", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub compute_s: Option<f64>,
        /// The part of `total_s` in which the rank's communication was exposed, as in `ranks`; absent in real runs.
        #[column(Seconds, "exposed", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exposed_comm_s: Option<f64>,
        /// Durations of kernels and copies that were launched in the ranges, whenever they ran; absent if the ranges
        /// launched no work on CUDA streams.
        #[column(Seconds, "kernels", Terminal)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub kernels_s: Option<f64>,
        /// Durations of process-group operations that were launched in the ranges on CUDA streams, each counted from
        /// the time at which all members had entered.
        #[column(Seconds, "communication")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub communication_s: Option<f64>,
    }

    /// Busy times of one CUDA stream of a rank's GPU, until the end of the rank's program and of all of its streams.
    pub struct StreamReport in "streams" {
        /// Rank in the world.
        #[column(Id, "rank")]
        pub rank: u32,
        /// Number of the stream, in the order in which the program first used them; null: all streams of the GPU
        /// together, with overlapping times counted once.
        #[column(Id, "stream")]
        pub stream: Option<u32>,
        /// Time in which a kernel other than communication ran.
        #[column(Seconds, "kernels")]
        pub kernels_s: f64,
        /// Time in which the stream copied between memories of host and devices.
        #[column(Seconds, "copies")]
        pub copies_s: f64,
        /// Time in which an operation of a process group was in progress, waits for late ranks included.
        #[column(Seconds, "communication")]
        pub communication_s: f64,
        /// The part of `communication_s` in which no kernel ran on any stream of the GPU.
        #[column(Seconds, "exposed comm.")]
        pub exposed_comm_s: f64,
    }

    /// A part of the critical path.
    pub struct PathPartReport in "critical_path" {
        /// Kind of time: `compute`, `bandwidth`, `latency` and so on.
        #[column(Text, "kind")]
        pub kind: String,
        /// The rank whose time it is; absent for times of a link, or of several ranks.
        #[column(Id, "rank")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub rank: Option<u32>,
        /// The link that limited the messages, or if none did, the slowest link of their routes; absent for times of a
        /// rank.
        #[column(Text, "link")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub link: Option<String>,
        /// Name of the operation, or of the computed operator or range.
        #[column(Text, "in")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Line of the program, as `path:line`; absent if it is unknown.
        #[column(Line, "line")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub line: Option<String>,
        /// Length of the part.
        #[column(Seconds, "time")]
        pub seconds: f64,
        /// Length of the part as a fraction of the makespan.
        #[column(Ratio, "share")]
        pub share: f64,
    }

    /// Memory of one kind at a rank's peak of all kinds together. The bytes of all kinds except
    /// [`HOST_MEMORY`](super::HOST_MEMORY) add up to the peak.
    pub struct MemoryReport in "memory" {
        /// Rank in the world.
        #[column(Id, "rank")]
        pub rank: u32,
        /// `parameters`, `gradients`, `optimizer`, `buffers`, `kv_cache` or `activations`; for a GPU also `reserved`
        /// and `context`, and `host`, the largest host memory at any time.
        #[column(Text, "kind")]
        pub kind: String,
        /// Bytes of this kind at the rank's peak.
        #[column(Bytes, "held")]
        pub peak_bytes: u64,
        /// Line of the operator during which the peak came, as `path:line`: the first one outside of libraries; absent
        /// if it is unknown.
        #[column(Line, "line")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub line: Option<String>,
        /// Qualified name of the line's function, as in `Attention.forward`; absent if it is unknown.
        #[column(Text, "function")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub function: Option<String>,
        /// Whether the operator ran in the backward pass of the line; absent if it did not.
        #[column(Flag, "backward pass")]
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub backward: bool,
    }
}

#[cfg(test)]
mod tests;
