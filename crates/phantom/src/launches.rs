//! Owns the description of work on streams: kernel names and launch configurations, copies, and the numbers by which
//! profilers identify launches. Streams, graphs and events are in [`crate::streams`], the records of profilers in
//! [`crate::cupti`].

use crate::errors::Status;
use crate::memory;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uniference_abi::entries::CopyKind;
use uniference_abi::gpus::Link;

/// Number of the next launch while a profiler runs, or of the next captured node; the first is 1.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Stream of a device on which work starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) stream: u32,
    pub(crate) priority: c_int,
}

/// New number for a launch or a captured node.
pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Relaxed)
}

/// Kernel name, and the number that the link has assigned to it.
#[derive(Debug)]
pub(crate) struct Name {
    text: Box<str>,
    number: OnceLock<u32>,
}

impl Name {
    pub(crate) fn new(text: &str) -> Name {
        Name { text: text.into(), number: OnceLock::new() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn number(&self, link: &Link) -> u32 {
        // SAFETY: the pointer and the length are those of `text`, which outlives the call.
        *self.number.get_or_init(|| unsafe { (link.kernel)(self.text.as_ptr(), self.text.len()) })
    }
}

/// Copy of `rows` rows of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) to: usize,
    pub(crate) from: usize,
    /// Bytes per row.
    pub(crate) bytes: usize,
    pub(crate) rows: usize,
    /// Distance in bytes between the starts of two rows, at the destination and at the source.
    pub(crate) pitches: (usize, usize),
}

impl Moved {
    /// Copy of contiguous bytes.
    pub(crate) fn line(to: usize, from: usize, bytes: usize) -> Moved {
        Moved { to, from, bytes, rows: 1, pitches: (bytes, bytes) }
    }

    /// Copies the bytes.
    pub(crate) fn carry_out(&self) -> Result<(), Status> {
        if self.pitches == (self.bytes, self.bytes) {
            return memory::copy(self.to, self.from, self.bytes * self.rows);
        }
        let row = |row| memory::copy(self.to + row * self.pitches.0, self.from + row * self.pitches.1, self.bytes);
        (0..self.rows).try_for_each(row)
    }
}

/// Launch configuration of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of static and of dynamic shared memory.
    pub(crate) shared: [u32; 2],
    /// Registers per thread.
    pub(crate) registers: u16,
}

impl Default for Shape {
    /// Shape with one thread, for library kernels of unknown shape: profilers divide by the number of threads.
    fn default() -> Shape {
        Shape { grid: [1; 3], block: [1; 3], shared: [0; 2], registers: 0 }
    }
}

/// Work that profilers show as one record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaf<'a> {
    Kernel(&'a Name, Shape),
    /// Copy, its kind, and the devices of its source and destination.
    Copy(&'a Moved, CopyKind, [u32; 2]),
    Set {
        value: u32,
        bytes: u64,
    },
}
