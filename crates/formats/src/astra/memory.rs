//! Owns ASTRA-sim's remote memory (its analytical memory backend): the cost of a memory node.

use super::inputs::InputError;
use serde::Deserialize;

/// `--astra-memory`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RemoteMemory {
    /// The ranks that share the memory.
    pub memory_type: Sharing,
    /// Latency in ns.
    #[serde(default)]
    pub remote_mem_latency: f64,
    /// Bandwidth in 10^9 bytes per second.
    #[serde(default)]
    pub remote_mem_bw: f64,
    /// Number of NPUs that share a node's memory.
    #[serde(default = "one")]
    pub num_npus_per_node: u64,
}

/// Which ranks share a remote memory; only one of them can access the memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Sharing {
    /// There is no remote memory.
    NoMemoryExpansion,
    /// Each rank has a remote memory of its own.
    PerNpuMemoryExpansion,
    /// The ranks of a node share one remote memory.
    PerNodeMemoryExpansion,
    /// All ranks share one remote memory.
    MemoryPool,
}

fn one() -> u64 {
    1
}

impl RemoteMemory {
    /// Reads the file's text.
    ///
    /// # Errors
    /// If the text is no such file, or has no rate.
    pub fn parse(text: &str) -> Result<RemoteMemory, InputError> {
        let hint = "it must have memory-type, remote-mem-latency (ns) and remote-mem-bw (GB/s)";
        let wrong =
            |problem: String| InputError::new(format!("cannot read the ASTRA-sim memory file: {problem}"), hint);
        let memory: RemoteMemory = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let there = memory.memory_type != Sharing::NoMemoryExpansion;
        let rates = [memory.remote_mem_latency, memory.remote_mem_bw];
        if rates.iter().any(|rate| !rate.is_finite() || *rate < 0.0) || (there && memory.remote_mem_bw == 0.0) {
            return Err(wrong("rates must be greater than 0".to_owned()));
        }
        match memory.num_npus_per_node {
            0 => Err(wrong("every node needs at least one rank".to_owned())),
            _ => Ok(memory),
        }
    }

    /// Duration of an access without contention in ns: latency + bytes / bandwidth. `None`: there is no remote memory.
    pub fn access(&self, bytes: u64) -> Option<u64> {
        let there = self.memory_type != Sharing::NoMemoryExpansion;
        there.then(|| (self.remote_mem_latency + bytes as f64 / self.remote_mem_bw) as u64)
    }

    /// Number of the memory that a rank uses; accesses to one memory wait for each other.
    pub fn of_rank(&self, rank: u64) -> u64 {
        match self.memory_type {
            Sharing::PerNpuMemoryExpansion | Sharing::NoMemoryExpansion => rank,
            Sharing::PerNodeMemoryExpansion => rank / self.num_npus_per_node,
            Sharing::MemoryPool => 0,
        }
    }
}
