//! Owns zeros that occupy no memory: moving or clearing bytes does not write to pages that hold only zeros, and does
//! not read pages of device memory that were never written to. Tensors that a program never computes (`--values none`)
//! therefore occupy no host memory, however often they are copied. Callers decide whether a range is device memory and
//! whether it is mapped.

use super::PAGE;
use rustix::mm::{Advice, madvise};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// Least number of bytes for which reading the page table is cheaper than reading the pages.
const ASKS: usize = 64 << 10;

/// Entries of the page table that are read at once, of 8 bytes each (Linux,
/// `Documentation/admin-guide/mm/pagemap.rst`).
const ENTRIES: usize = 512;

/// Bits of a page that is in memory or swapped out.
const IS_THERE: u64 = 0b11 << 62;

/// Owner of a memory range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This library's private anonymous memory: an absent page is zero.
    Us,
    /// This library's memory in a file that other processes map, too: a hole of the file is zero.
    Shared(SharedFile),
    /// The program's memory: an absent page may hold any bytes.
    Program,
}

/// A file of shared memory, and the address where it is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedFile {
    pub(super) descriptor: RawFd,
    pub(super) start: usize,
}

/// Moves bytes between ranges that do not overlap.
///
/// # Safety
/// The requirements of `copy_nonoverlapping`; `target` and `source` must be the ranges' owners.
pub(super) unsafe fn copy((to, target): (usize, Owner), (from, source): (usize, Owner), bytes: usize) {
    let table = (bytes >= ASKS).then(|| Table::of(source)).flatten();
    let mut entries = [IS_THERE; ENTRIES];
    // All pages from `start` to `at` are zero, or all are to be copied.
    let (mut start, mut is_zero, mut at) = (0, true, 0);
    while at < bytes {
        let page = (from + at) / PAGE;
        let entry = (page - from / PAGE) % ENTRIES;
        if entry == 0
            && let Some(table) = &table
        {
            entries = table.read(page, (from + bytes).div_ceil(PAGE) - page);
        }
        let end = ((page + 1) * PAGE - from).min(bytes);
        // SAFETY: `copy` requires that both ranges are valid; these are parts of them.
        unsafe {
            let page_is_zero = entries[entry] & IS_THERE == 0 || all_zero(from + at, end - at);
            if page_is_zero != is_zero {
                finish((to, target), from, start..at, is_zero);
                (start, is_zero) = (at, page_is_zero);
            }
        }
        at = end;
    }
    // SAFETY: `copy` requires that both ranges are valid; these are parts of them.
    unsafe { finish((to, target), from, start..bytes, is_zero) };
}

/// Writes zeros.
///
/// # Safety
/// The range must be writable, and `owner` must be its owner.
pub(super) unsafe fn clear(at: usize, owner: Owner, bytes: usize) {
    let end = at + bytes;
    let (first, last) = (at.next_multiple_of(PAGE).min(end), end / PAGE * PAGE);
    // SAFETY: all of these ranges are parts of the range, which `clear` requires to be writable. Whole pages of this
    // library are private and anonymous, or become a hole of their file, so the next read finds zeros.
    unsafe {
        let advice = match owner {
            Owner::Us => Some(Advice::LinuxDontNeed),
            Owner::Shared(_) => Some(Advice::LinuxRemove),
            Owner::Program => None,
        };
        let given_back = |advice| madvise(first as *mut c_void, last - first, advice).is_ok();
        let is_given_back = first < last && advice.is_some_and(given_back);
        let rest = if is_given_back { [at..first, last..end] } else { [at..end, end..end] };
        for part in rest.into_iter().flat_map(by_page) {
            if !all_zero(part.start, part.len()) {
                std::ptr::write_bytes(part.start as *mut u8, 0, part.len());
            }
        }
    }
}

/// Whether none of the range's pages was written to; false if that is unknown.
pub(super) fn is_untouched(at: usize, owner: Owner, bytes: usize) -> bool {
    let Some(table) = Table::of(owner) else { return false };
    let (mut page, end) = (at / PAGE, (at + bytes).div_ceil(PAGE));
    while page < end {
        let count = (end - page).min(ENTRIES);
        if table.read(page, count)[..count].iter().any(|entry| entry & IS_THERE != 0) {
            return false;
        }
        page += count;
    }
    true
}

/// Clears a part of the target if it `is_zero`, else copies it from `from`.
unsafe fn finish((to, target): (usize, Owner), from: usize, part: std::ops::Range<usize>, is_zero: bool) {
    // SAFETY: `copy` requires that both ranges are valid; these are parts of them.
    unsafe {
        if is_zero {
            clear(to + part.start, target, part.len());
        } else {
            std::ptr::copy_nonoverlapping((from + part.start) as *const u8, (to + part.start) as *mut u8, part.len());
        }
    }
}

/// Splits a range at page boundaries.
fn by_page(range: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let part = at..((at / PAGE + 1) * PAGE).min(range.end);
        at = part.end;
        (!part.is_empty()).then_some(part)
    })
}

/// Page tables that tell which pages were written to.
enum Table {
    /// Page table of private memory.
    Private(File),
    /// A shared memory file: its data segments are the pages that were written to.
    Shared(SharedFile),
}

impl Table {
    /// Page table of memory with this owner; `None` if it is unknown.
    fn of(owner: Owner) -> Option<Table> {
        match owner {
            Owner::Us => File::open("/proc/self/pagemap").ok().map(Table::Private),
            Owner::Shared(file) => Some(Table::Shared(file)),
            Owner::Program => None,
        }
    }

    /// Entries of up to `count` pages from `page` on. Pages without an entry count as present.
    fn read(&self, page: usize, count: usize) -> [u64; ENTRIES] {
        let mut entries = [IS_THERE; ENTRIES];
        match self {
            Table::Private(table) => {
                let mut bytes = [0xff; ENTRIES * 8];
                let _ = table.read_at(&mut bytes, page as u64 * 8);
                for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(8)) {
                    *entry = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
                }
            }
            Table::Shared(file) => {
                let first = page * PAGE - file.start;
                let last = first + count.min(ENTRIES) * PAGE;
                let mut at = first;
                while at < last {
                    let Some(data) = file.next(at, libc::SEEK_DATA) else { break };
                    entries[(at - first) / PAGE..(data.min(last) - first) / PAGE].fill(0);
                    at = file.next(data, libc::SEEK_HOLE).unwrap_or(last);
                }
                if at < last {
                    entries[(at - first) / PAGE..(last - first) / PAGE].fill(0);
                }
            }
        }
        entries
    }
}

impl SharedFile {
    /// Address of the next data segment or hole (`what`) at or behind `at`, by `lseek`; `None` if none follows. Swapped
    /// pages count as data.
    fn next(self, at: usize, what: i32) -> Option<usize> {
        // SAFETY: `lseek` accesses no memory of the process; nothing depends on the file's position.
        usize::try_from(unsafe { libc::lseek(self.descriptor, at as i64, what) }).ok()
    }
}

unsafe fn all_zero(at: usize, bytes: usize) -> bool {
    // SAFETY: `copy` and `clear` pass parts of ranges that they require to be valid.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}
