//! Owns zeros that take no memory: where bytes are moved or cleared, pages that hold nothing but zeros are not written to, and those of ours that
//! nobody has written to are not read either. So what a program never computes (`--values none`) takes no memory of the host, however often
//! it is copied. What memory is ours, and whether it is there, is the caller's to know.

use super::PAGE;
use rustix::mm::{Advice, madvise};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// From here on it is cheaper to ask which pages have been written to than to look at them.
const ASKS: usize = 64 << 10;

/// Entries of the table of pages that are read at once, of 8 bytes each (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
const ENTRIES: usize = 512;

/// The page is in memory, or has been swapped out.
const IS_THERE: u64 = 0b11 << 62;

/// Whose memory a range is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Ours, private and anonymous: a page that is not there is zero.
    Us,
    /// Ours and other processes', of a file of the memory: where the file has a hole it is zero.
    Shared(SharedFile),
    /// The program's: what lies behind its pages is not known.
    Program,
}

/// A file of the memory, and where it is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedFile {
    pub(super) descriptor: RawFd,
    pub(super) start: usize,
}

/// Moves bytes between ranges that do not overlap.
///
/// # Safety
/// As for `copy_nonoverlapping`; memory that is said to be ours must be.
pub(super) unsafe fn copy((to, target): (usize, Owner), (from, source): (usize, Owner), bytes: usize) {
    let table = (bytes >= ASKS).then(|| Table::of(source)).flatten();
    let mut entries = [IS_THERE; ENTRIES];
    // From `start` on all is zero, or nothing is.
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
        // SAFETY: the caller answers for both ranges, and these are parts of them.
        unsafe {
            let page_is_zero = entries[entry] & IS_THERE == 0 || all_zero(from + at, end - at);
            if page_is_zero != is_zero {
                finish((to, target), from, start..at, is_zero);
                (start, is_zero) = (at, page_is_zero);
            }
        }
        at = end;
    }
    // SAFETY: as above.
    unsafe { finish((to, target), from, start..bytes, is_zero) };
}

/// Writes zeros.
///
/// # Safety
/// The range must be writable, and ours if it is said to be.
pub(super) unsafe fn clear(at: usize, owner: Owner, bytes: usize) {
    let end = at + bytes;
    let (first, last) = (at.next_multiple_of(PAGE).min(end), end / PAGE * PAGE);
    // SAFETY: all of these ranges are parts of the caller's; whole pages of ours are private and
    // anonymous, or of a file that gets a hole there, so the next to read them finds zeros.
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

/// Whether none of the range's pages has been written to, or is known to.
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

/// Moves a part of the range at `from`: it `is_zero`, or is to be copied.
unsafe fn finish((to, target): (usize, Owner), from: usize, part: std::ops::Range<usize>, is_zero: bool) {
    // SAFETY: the caller of `copy` answers for both ranges, and these are parts of them.
    unsafe {
        if is_zero {
            clear(to + part.start, target, part.len());
        } else {
            std::ptr::copy_nonoverlapping((from + part.start) as *const u8, (to + part.start) as *mut u8, part.len());
        }
    }
}

/// The parts of a range that lie in one page each.
fn by_page(range: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let part = at..((at / PAGE + 1) * PAGE).min(range.end);
        at = part.end;
        (!part.is_empty()).then_some(part)
    })
}

/// Which pages have been written to.
enum Table {
    /// Of private memory.
    Private(File),
    /// Of a file of the memory: those that the file has.
    Shared(SharedFile),
}

impl Table {
    /// `None`: nobody knows.
    fn of(owner: Owner) -> Option<Table> {
        match owner {
            Owner::Us => File::open("/proc/self/pagemap").ok().map(Table::Private),
            Owner::Shared(file) => Some(Table::Shared(file)),
            Owner::Program => None,
        }
    }

    /// What it says of up to `count` pages from this one on; of what it does not say, that they are there.
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
    /// Where data, or a hole, comes next, by `lseek`: at this place or behind it; `None`: nowhere. The kernel finds what was swapped out, too.
    fn next(self, at: usize, what: i32) -> Option<usize> {
        // SAFETY: the caller of `copy` has the file open; where it is read next does not matter to anybody.
        usize::try_from(unsafe { libc::lseek(self.descriptor, at as i64, what) }).ok()
    }
}

unsafe fn all_zero(at: usize, bytes: usize) -> bool {
    // SAFETY: the caller answers for the range.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}
