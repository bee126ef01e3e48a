//! Owns on which processor whoever waits is woken: where one process hands over to another, both are best on the same.
//!
//! Left alone, the kernel wakes a process on an idle processor, and waking one of those takes several times as long as the whole call.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Binds the calling thread to the processor that it runs on; which that is. `None` if the host does not allow it.
pub(super) fn stay() -> Option<u32> {
    let here = sched_getcpu();
    sched_setaffinity(None, &only(here)).ok().map(|()| here as u32)
}

/// While it lives, the calling thread runs on one processor only; then on those that it might run on before.
pub(super) struct Visit(CpuSet);

impl Visit {
    /// `None` if the thread may not run there.
    pub(super) fn begin(processor: u32) -> Option<Visit> {
        let before = sched_getaffinity(None).ok()?;
        let may = before.is_set(processor as usize) && before.count() > 1;
        (may && sched_setaffinity(None, &only(processor as usize)).is_ok()).then_some(Visit(before))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        sched_setaffinity(None, &self.0).expect("where the thread could run before it can again");
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
