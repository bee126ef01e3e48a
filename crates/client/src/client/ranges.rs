//! Owns the reports of a client on the ranges that its program names, and on its threads' names.

use super::{Client, Op, Relaxed, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use uniference_sim::ids::TaskId;
use uniference_sim::program::Mark;

/// Count of the threads that have a number in marks.
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The calling thread's name, if it has not been reported: a thread without operations needs no connection for its
    /// name.
    static NAME: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Allocates the calling thread's name.
pub(super) fn make() {
    NAME.with(|_| ());
}

impl Client {
    /// Reports the start or end of a named range.
    pub fn mark(&self, mark: Mark) -> Result<()> {
        let _ours = self.ours();
        self.say(Op::Mark(mark))
    }

    /// Begins a named range of the calling thread and returns the range's number. The range is nested in the thread's
    /// open ranges.
    pub fn enter_range(&self, name: &str) -> Result<u32> {
        let thread = self.thread()?;
        let range = self.ranges.fetch_add(1, Relaxed);
        self.mark(Mark::Enter { range, thread: TaskId(thread), name: name.into() })?;
        Ok(range)
    }

    /// Ends the range `range` of a thread; the calling thread may be another thread.
    pub fn leave_range(&self, range: u32) -> Result<()> {
        // The thread 0 is a placeholder: the driver knows to which thread the range belongs.
        self.mark(Mark::Leave { range, thread: TaskId(0) })
    }

    /// Number of the calling thread in marks. The thread reports its number to the driver itself, before another thread
    /// may send marks on its behalf.
    fn thread(&self) -> Result<u32> {
        let _ours = self.ours();
        self.with_link(|client, link| {
            if let Some(number) = link.thread {
                return Ok(number);
            }
            let number = THREADS.fetch_add(1, Relaxed);
            link.thread = Some(number);
            link.batch.push(Op::Thread(number));
            if client.keeps_pending() {
                link.send(client)?;
            }
            Ok(number)
        })
    }

    /// Begins a named range that may overlap others, on any thread; returns its number.
    pub fn open_range(&self, name: &str) -> Result<u32> {
        let range = self.ranges.fetch_add(1, Relaxed);
        self.mark(Mark::Open { range, name: name.into() })?;
        Ok(range)
    }

    /// Sets the calling thread's name from now on, which is reported with the thread's next operation.
    pub fn is_called(&self, name: &str) {
        NAME.set(Some(name.into()));
    }
}

/// The calling thread's name, if it must be reported.
pub(super) fn take_name() -> Option<Op> {
    NAME.take().map(|name| Op::Mark(Mark::Name(name)))
}
