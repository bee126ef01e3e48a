//! Owns the CPU on which a waiting thread is woken: two processes that hand over to each other run best on the same
//! CPU.
//!
//! By default, the kernel wakes a process on an idle CPU, which needs several times as long as the whole call.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Binds the calling thread to one CPU while this lives; afterwards the previous affinity is restored.
pub struct Visit {
    processor: u32,
    before: CpuSet,
}

impl Visit {
    /// Binds the thread to its current CPU.
    pub fn here() -> Option<Visit> {
        Visit::begin(sched_getcpu() as u32)
    }

    /// `None` if the thread may not run on that CPU, or on no other.
    pub fn begin(processor: u32) -> Option<Visit> {
        let before = sched_getaffinity(None).ok()?;
        let may = before.is_set(processor as usize) && before.count() > 1;
        (may && sched_setaffinity(None, &only(processor as usize)).is_ok()).then_some(Visit { processor, before })
    }

    /// The CPU.
    pub fn processor(&self) -> u32 {
        self.processor
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // Restoring the affinity fails only if all of the previous CPUs are gone; the thread then stays on its CPU.
        let _ = sched_setaffinity(None, &self.before);
    }
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_leaves_the_thread_as_it_was() {
        let before = sched_getaffinity(None).unwrap();
        let there = (0..CpuSet::MAX_CPU).rfind(|cpu| before.is_set(*cpu)).unwrap();
        if let Some(visit) = Visit::begin(there as u32) {
            assert_eq!((sched_getcpu(), sched_getaffinity(None).unwrap().count()), (there, 1));
            drop(visit);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
