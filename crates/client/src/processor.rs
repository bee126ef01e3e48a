//! Owns on which processor whoever waits is woken: where one process hands over to another, both are best on the same.
//!
//! Left alone, the kernel wakes a process on an idle processor, and waking one of those takes several times as long as the whole call.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// While it lives, the calling thread runs on one processor only; then on those that it might run on before.
pub struct Visit {
    processor: u32,
    before: CpuSet,
}

impl Visit {
    /// To the processor that the thread runs on.
    pub fn here() -> Option<Visit> {
        Visit::begin(sched_getcpu() as u32)
    }

    /// `None` if the thread may not run there, or nowhere else.
    pub fn begin(processor: u32) -> Option<Visit> {
        let before = sched_getaffinity(None).ok()?;
        let may = before.is_set(processor as usize) && before.count() > 1;
        (may && sched_setaffinity(None, &only(processor as usize)).is_ok()).then_some(Visit { processor, before })
    }

    /// Where it is.
    pub fn processor(&self) -> u32 {
        self.processor
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // Fails only if all of those are gone from the host: then it stays.
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
