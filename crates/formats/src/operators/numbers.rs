//! Owns the conversion of one process's numbers of definitions, lines, kernels, memory and streams to numbers of the
//! whole rank.

use uniference_sim::ids::OfProcess;

/// The numbers of one process; by default of the rank's own process, without definitions.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    process: OfProcess,
    /// The decoder's numbers of definitions, by the process's own.
    pub(super) definitions: Vec<u32>,
    /// The decoder's numbers of lines, by the process's own less 1.
    pub(super) sites: Vec<u32>,
    /// The decoder's numbers of kernels, by the process's own less 1.
    pub(super) kernels: Vec<u32>,
    /// The previous entry's allocation, by the process's number.
    pub(super) previous: u64,
    /// Whether autograd records the following executions.
    pub(super) recorded: bool,
    /// Bytes that torch's allocator has reserved, and bytes of the CUDA context.
    pub(super) levels: [u64; 2],
}

impl Numbers {
    /// Numbers of a process that has not defined anything yet; `None`: the process's number is too large.
    pub(super) fn of(process: u64) -> Option<Numbers> {
        let process = OfProcess::new(u32::try_from(process).ok()?)?;
        Some(Numbers { process, ..Numbers::default() })
    }

    pub(super) fn process(&self) -> u32 {
        self.process.number()
    }

    pub(super) fn definition(&self, number: u64) -> Option<usize> {
        self.definitions.get(usize::try_from(number).ok()?).map(|at| *at as usize)
    }

    /// 0 is a line that is not known.
    pub(super) fn site(&self, number: u64) -> Option<u32> {
        match usize::try_from(number).ok()?.checked_sub(1) {
            None => Some(0),
            Some(at) => self.sites.get(at).copied(),
        }
    }

    pub(super) fn kernel(&self, number: u64) -> Option<u32> {
        self.kernels.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }

    /// 0 is memory that is not tracked.
    pub(super) fn allocation(&self, number: u64) -> u64 {
        if number == 0 { 0 } else { self.process.long(number) }
    }

    pub(super) fn launch(&self, number: u64) -> u64 {
        self.process.long(number)
    }

    /// The number of a stream, an event, a graph or a buffer.
    pub(super) fn small(&self, number: u32) -> Option<u32> {
        self.process.short(number)
    }
}
