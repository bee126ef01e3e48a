//! Owns device memory that several processes map: a file of the memory (`memfd`), named by a handle (CUDA IPC) or by a
//! descriptor (virtual memory that was created as shareable). Its bytes stay the same when it is exported.
//!
//! A handle has the same bytes in every run, because programs send handles to each other, and the length of a message
//! may depend on its bytes. A symbolic link in the folder of the command's libraries names the handle's file and is
//! deleted with the folder.

use super::sparse::{self, Owner, SharedFile};
use super::{Block, GRANULE, Kind, MOVES, Memory, Place, lock, place, withdraw};
use crate::device;
use crate::errors::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Status};
use crate::unimplemented::warn;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uniference_protocol::descriptors::lift;

/// `cudaIpcMemHandle_t`, `CUipcMemHandle`: opaque to programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemHandle {
    /// [`MAGIC`], which distinguishes this library's handles from others.
    magic: u64,
    /// Rank that owns the file, and the number of files that the rank's processes exported before.
    rank: u32,
    number: u32,
    /// Bytes of the shared range.
    bytes: u64,
    /// Offset of the allocation in the range.
    offset: u64,
    /// The device's number on its host.
    device: u32,
    reserved: [u32; 7],
}

/// Prefix of file names, followed by rank, number and device.
const NAME: &str = "uniference-gpu-";

const MAGIC: u64 = u64::from_le_bytes(*b"unifrIPC");

/// A range that other processes may map.
pub(super) struct Exported {
    /// The open file, which keeps the memory alive.
    file: OwnedFd,
    bytes: usize,
    key: Key,
}

impl Exported {
    /// Creates a file of zeros on the rank's GPU.
    fn new(rank: u32, device: usize, bytes: usize) -> Result<Exported, Status> {
        let (key, file) = Key::claim(rank, device)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Exported { file, bytes, key })
    }
}

/// Identifies an exported file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    rank: u32,
    number: u32,
    /// Number of the device on its host.
    device: u32,
}

/// A range that another process has exported.
pub(super) struct Opened {
    file: OwnedFd,
    key: Key,
    device: usize,
    bytes: usize,
    /// Number of times that the memory was opened, minus the times that it was closed.
    uses: usize,
}

/// Physical memory that several processes may map.
#[derive(Debug)]
pub(super) struct Part {
    file: OwnedFd,
    bytes: usize,
    key: Key,
    /// Created by this process.
    is_own: bool,
}

impl Part {
    /// Shareable memory on the rank's GPU; `mapped` is the address of its current contents, if it is mapped.
    pub(super) fn new(rank: u32, device: usize, bytes: usize, mapped: Option<usize>) -> Result<Part, Status> {
        let Exported { file, key, .. } = match mapped {
            Some(at) => share(at, bytes, rank, device)?,
            None => Exported::new(rank, device, bytes)?,
        };
        Ok(Part { file, bytes, key, is_own: true })
    }

    /// The memory that a descriptor of the program names.
    pub(super) fn of(descriptor: c_int) -> Result<Part, Status> {
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| INVALID_VALUE)?;
        let key = Key::named(&path.to_string_lossy()).ok_or(INVALID_VALUE)?;
        // SAFETY: the program keeps its descriptor open during the call.
        let file = lift(unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map_err(|_| OUT_OF_MEMORY)?);
        let bytes = rustix::fs::fstat(&file).map_err(|_| INVALID_VALUE)?.st_size as usize;
        Ok(Part { file, bytes, key, is_own: false })
    }

    /// A new descriptor for the program, which can be sent to another process.
    pub(super) fn descriptor(&self) -> Result<c_int, Status> {
        self.file.try_clone().map(IntoRawFd::into_raw_fd).map_err(|_| OUT_OF_MEMORY)
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ordinal of the memory's device in this process; the current device if this process does not see the memory's
    /// device.
    pub(super) fn device(&self) -> usize {
        device::ordinal(self.key.device as usize).unwrap_or(device::current())
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }
}

/// Exports an allocation as an IPC handle. `rank` returns the rank that owns a device.
pub(crate) fn export(at: usize, rank: impl FnOnce(usize) -> u32) -> Result<MemHandle, Status> {
    // `rank` may call this module again, so the state must not be locked.
    let Place::Device { device, .. } = place(at) else { return Err(INVALID_VALUE) };
    let rank = rank(device);
    let _nobody_moves = MOVES.write().unwrap_or_else(PoisonError::into_inner);
    let mut memory = lock();
    memory.devices()?.export(at, rank)
}

/// Maps the memory that a handle names; a range that is opened several times is mapped once.
pub(crate) fn open(handle: &MemHandle) -> Result<usize, Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    if handle.magic != MAGIC || handle.offset >= handle.bytes {
        return Err(INVALID_VALUE);
    }
    if memory.devices.iter().flat_map(|pool| pool.exported.values()).any(|exported| exported.key == handle.key()) {
        // The driver does the same: the exporting process must not open its own handle.
        return Err(INVALID_CONTEXT);
    }
    memory.open(handle)
}

/// Closes an address that `open` has returned.
pub(crate) fn close(at: usize) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.close(at)
}

/// Rank that owns the imported memory at `at`; `None` if it is local or unmapped.
pub(crate) fn rank_of(at: usize) -> Option<u32> {
    let mut memory = lock();
    let memory = memory.devices().ok()?;
    let others = memory.part_at(at).filter(|(_, part)| !part.is_own);
    others.map(|(_, part)| part.key.rank).or_else(|| memory.opened_at(at).map(|(_, opened)| opened.key.rank))
}

impl Memory {
    /// File of the shared memory at `at` with its address, and the address where it ends.
    pub(super) fn shared_at(&self, at: usize) -> Option<(SharedFile, usize)> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        let (start, bytes, file) = if block.kind == Kind::Opened {
            let opened = self.opened.get(start)?;
            (*start, opened.bytes, &opened.file)
        } else if block.kind == Kind::Mapped {
            let (start, part) = self.part_at(at)?;
            (start, part.bytes, &part.file)
        } else {
            let (range, _) = range_of(*start, *block);
            let exported = self.devices[block.device].exported.get(&range)?;
            (range, exported.bytes, &exported.file)
        };
        Some((SharedFile { descriptor: file.as_raw_fd(), start }, start + bytes))
    }

    fn opened_at(&self, at: usize) -> Option<(usize, &Opened)> {
        let (start, opened) = self.opened.range(..=at).next_back()?;
        (at < start + opened.bytes).then_some((*start, opened))
    }

    fn export(&mut self, at: usize, rank: u32) -> Result<MemHandle, Status> {
        let (start, block) = self.blocks.range(..=at).next_back().map(|(s, b)| (*s, *b)).ok_or(INVALID_VALUE)?;
        if at >= start + block.bytes || !matches!(block.kind, Kind::Plain | Kind::Small) || block.is_pooled {
            return Err(INVALID_VALUE);
        }
        let (range, bytes) = range_of(start, block);
        let exported = &mut self.devices[block.device].exported;
        if let Entry::Vacant(entry) = exported.entry(range) {
            entry.insert(share(range, bytes, rank, block.device)?);
        }
        let Key { rank, number, device } = exported[&range].key;
        let (bytes, offset) = (bytes as u64, (start - range) as u64);
        Ok(MemHandle { magic: MAGIC, rank, number, bytes, offset, device, reserved: [0; 7] })
    }

    fn open(&mut self, handle: &MemHandle) -> Result<usize, Status> {
        let (key, bytes) = (handle.key(), handle.bytes as usize);
        if let Some((start, opened)) = self.opened.iter_mut().find(|(_, opened)| opened.key == key) {
            opened.uses += 1;
            return Ok(start + handle.offset as usize);
        }
        let device = device::ordinal(handle.device as usize).unwrap_or(device::current());
        let file = key.file(bytes)?;
        let start = self.devices[device].reserve(bytes, GRANULE)?;
        map_shared(start, bytes, &file).inspect_err(|_| self.devices[device].ranges.put(start, bytes))?;
        self.blocks.insert(start, Block { device, bytes, kind: Kind::Opened, is_pooled: false });
        self.opened.insert(start, Opened { file, key, device, bytes, uses: 1 });
        Ok(start + handle.offset as usize)
    }

    fn close(&mut self, at: usize) -> Result<(), Status> {
        let (start, _) = self.opened_at(at).ok_or(INVALID_VALUE)?;
        let opened = self.opened.get_mut(&start).expect("just found");
        opened.uses -= 1;
        if opened.uses == 0 {
            let (device, bytes) = (opened.device, opened.bytes);
            self.opened.remove(&start);
            self.blocks.remove(&start);
            withdraw(start, bytes);
            self.devices[device].ranges.put(start, bytes);
        }
        Ok(())
    }
}

/// The range that is shared for an allocation: the allocation itself, or its granule if it shares one with others.
fn range_of(start: usize, block: Block) -> (usize, usize) {
    if block.kind == Kind::Small { (start / GRANULE * GRANULE, GRANULE) } else { (start, block.bytes) }
}

/// Replaces private memory by a file with the same bytes. `MOVES` blocks CUDA copies meanwhile; a concurrent direct
/// write by another thread, such as a CPU operator that writes to memory shared with the host, may be lost.
fn share(start: usize, bytes: usize, rank: u32, device: usize) -> Result<Exported, Status> {
    let exported = Exported::new(rank, device, bytes)?;
    let file = &exported.file;
    // SAFETY: no other code knows the address of the new mapping; the source range is private, anonymous memory of this
    // module.
    unsafe {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        let there = mmap(std::ptr::null_mut(), bytes, access, flags, file, 0).map_err(|_| OUT_OF_MEMORY)?;
        let to = Owner::Shared(SharedFile { descriptor: file.as_raw_fd(), start: there as usize });
        sparse::copy((there as usize, to), (start, Owner::Us), bytes);
        let _ = munmap(there, bytes);
    }
    map_shared(start, bytes, file)?;
    Ok(exported)
}

pub(super) fn map_shared(start: usize, bytes: usize, file: &OwnedFd) -> Result<(), Status> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the range is in a device's window, and the calling function has reserved it.
    let mapped = unsafe { mmap(start as *mut c_void, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
    mapped.map(drop).map_err(|_| OUT_OF_MEMORY)
}

impl MemHandle {
    fn key(&self) -> Key {
        Key { rank: self.rank, number: self.number, device: self.device }
    }
}

impl Key {
    /// Claims the next number that no process of the rank has used, and creates its file. Numbers are never reused,
    /// because another process may still have the memory of that number open.
    fn claim(rank: u32, device: usize) -> Result<(Key, OwnedFd), Status> {
        // All numbers below this one were used by this process, or found in use by another one. Processes with several
        // ranks are rare, so all ranks share the counter.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = folder().ok_or(NOT_SUPPORTED)?;
        for key in
            (NEXT.load(Relaxed)..u32::MAX).map(|number| Key { rank, number, device: device::number(device) as u32 })
        {
            let link = folder.join(key.name());
            if std::fs::symlink_metadata(&link).is_ok() {
                continue;
            }
            let file = lift(rustix::fs::memfd_create(key.name(), MemfdFlags::CLOEXEC).map_err(|_| OUT_OF_MEMORY)?);
            let target = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            match std::os::unix::fs::symlink(target, link) {
                Ok(()) => {
                    NEXT.store(key.number + 1, Relaxed);
                    return Ok((key, file));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(_) => return Err(NOT_SUPPORTED),
            }
        }
        Err(OUT_OF_MEMORY)
    }

    fn name(self) -> String {
        format!("{NAME}{}-{}-{}", self.rank, self.number, self.device)
    }

    /// Parses the kernel's name of a file: `/memfd:uniference-gpu-1-0-1 (deleted)`.
    fn named(path: &str) -> Option<Key> {
        let (_, name) = path.trim_end_matches(" (deleted)").split_once(&format!(":{NAME}"))?;
        let mut numbers = name.split('-').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Key { rank: next()?, number: next()?, device: next()? })
    }

    /// Opens the file of another process on this machine, if it exists and has `bytes` bytes.
    fn file(self, bytes: usize) -> Result<OwnedFd, Status> {
        let link = folder().map(|folder| folder.join(self.name())).ok_or(NOT_SUPPORTED)?;
        let target = std::fs::read_link(&link).and_then(std::fs::read_link);
        let is_it = target.is_ok_and(|file| {
            file.to_string_lossy().trim_end_matches(" (deleted)").ends_with(&format!(":{}", self.name()))
        });
        let opened =
            is_it.then(|| rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()).flatten();
        let file = opened.filter(|file| rustix::fs::fstat(file).is_ok_and(|known| known.st_size == bytes as i64));
        file.map(lift).ok_or_else(|| {
            warn("a handle of a GPU's memory was opened whose process has freed it or ended, or is on another machine");
            INVALID_HANDLE
        })
    }
}

/// The folder of the command's libraries.
#[cfg(not(test))]
fn folder() -> Option<PathBuf> {
    let preloaded = std::env::var_os(uniference_abi::gpus::PRELOAD)?;
    std::path::Path::new(&preloaded).parent().map(PathBuf::from)
}

#[cfg(test)]
fn folder() -> Option<PathBuf> {
    static FOLDER: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    Some(FOLDER.get_or_init(|| tempfile::tempdir().expect("there is room")).path().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::attach;
    use crate::memory::{allocate, free, set};
    use std::os::fd::FromRawFd;

    fn byte(at: usize) -> u8 {
        // SAFETY: each test has allocated or opened the address.
        unsafe { *(at as *const u8) }
    }

    /// Opens a handle as another process would.
    fn opened(handle: &MemHandle) -> usize {
        lock().devices().unwrap().open(handle).unwrap()
    }

    #[test]
    fn what_is_handed_out_is_the_same_memory_for_both() {
        attach();
        for bytes in [1000, 3 * GRANULE] {
            let at = allocate(1, bytes).unwrap();
            set(at + 7, &[5], 1).unwrap();
            let handle = export(at, |device| 40 + device as u32).unwrap();
            assert_eq!(export(at, |_| 40), Ok(handle), "however often it is asked for");
            assert_eq!(open(&handle), Err(INVALID_CONTEXT));
            let there = opened(&handle);
            assert_ne!(there, at);
            assert_eq!((byte(there + 7), byte(there + 8), rank_of(there + 7), rank_of(at)), (5, 0, Some(41), None));
            set(there + 8, &[6], 1).unwrap();
            assert_eq!(byte(at + 8), 6);
            // Both mappings see zeros, in whole pages and in parts of them.
            set(at, &[0], bytes).unwrap();
            assert_eq!((byte(there + 7), byte(there + 8)), (0, 0));
            // A second open returns the same address, which is unmapped when both are closed.
            assert_eq!((opened(&handle), free(there)), (there, Err(INVALID_VALUE)));
            assert_eq!((close(there), close(there), close(there)), (Ok(()), Ok(()), Err(INVALID_VALUE)));
            free(at).unwrap();
            assert_eq!(place(at), Place::Nowhere);
            assert_eq!(open(&MemHandle { magic: 0, ..handle }), Err(INVALID_VALUE));
            assert_eq!(open(&MemHandle { offset: handle.bytes, ..handle }), Err(INVALID_VALUE));
        }
    }

    /// Memory is exported by a descriptor after it was mapped and written to. The import is on the device that its file
    /// names and belongs to that device's rank.
    #[test]
    fn what_a_descriptor_names_is_the_same_memory() {
        use crate::memory::{address_reserve, descriptor, import, map, physical, release, unmap};
        attach();
        let mapped = |handle: u64| {
            let at = address_reserve(0, GRANULE, 0, 0).unwrap();
            map(at, GRANULE, 0, handle).unwrap();
            at
        };
        let handle = physical(1, GRANULE, true).unwrap();
        let at = mapped(handle);
        set(at + 7, &[5], 1).unwrap();
        let named = descriptor(handle, 41).unwrap();
        let imported = import(named).unwrap();
        let there = mapped(imported);
        assert!(matches!(place(there), Place::Device { device: 1, .. }));
        assert_eq!((byte(there + 7), rank_of(there), rank_of(at)), (5, Some(41), None));
        set(there + 8, &[6], 1).unwrap();
        assert_eq!((byte(at + 8), byte(at + 7)), (6, 5));
        assert_eq!(Key::named("/memfd:uniference-gpu-3-0-1 (deleted)"), Some(Key { rank: 3, number: 0, device: 1 }));
        assert_eq!(Key::named("/memfd:uniference-gpu-3-0 (deleted)"), None);
        let private = physical(1, GRANULE, false).unwrap();
        assert_eq!((descriptor(private, 41), import(0)), (Err(INVALID_VALUE), Err(INVALID_VALUE)));
        for at in [at, there] {
            unmap(at, GRANULE).unwrap();
        }
        [handle, imported, private].into_iter().for_each(|handle| release(handle).unwrap());
        // SAFETY: `descriptor` returned a new descriptor that nothing else closes.
        drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(named) });
    }

    #[test]
    fn what_was_handed_out_is_private_when_it_comes_back() {
        attach();
        let at = allocate(1, 5 * GRANULE).unwrap();
        let there = opened(&export(at, |_| 0).unwrap());
        set(at, &[9], 4).unwrap();
        free(at).unwrap();
        assert_eq!(byte(there), 9, "who has opened it keeps it");
        let again = allocate(1, 5 * GRANULE).unwrap();
        set(again, &[3], 4).unwrap();
        assert_eq!((byte(again), byte(there)), (3, 9));
        // The address is now exported as another file of another size.
        let handle = export(again, |_| 0).unwrap();
        assert_eq!(
            lock().devices().unwrap().open(&MemHandle { bytes: handle.bytes / 5, ..handle }),
            Err(INVALID_HANDLE)
        );
        let now = opened(&handle);
        assert_eq!((byte(now), byte(there)), (3, 9));
        [there, now].into_iter().for_each(|at| close(at).unwrap());
        free(again).unwrap();
        assert_eq!(lock().devices().unwrap().open(&handle), Err(INVALID_HANDLE), "it is gone");
    }

    /// One byte of 8 MiB of shared memory was written: a copy allocates one page.
    #[test]
    fn what_was_never_written_takes_no_memory_when_it_is_copied() {
        attach();
        let [from, to] = [(); 2].map(|()| allocate(1, 4 * GRANULE).unwrap());
        let handles = [from, to].map(|at| export(at, |_| 3).unwrap());
        set(from + GRANULE + 5, &[7], 1).unwrap();
        super::super::copy(to, from, 4 * GRANULE).unwrap();
        assert_eq!(byte(to + GRANULE + 5), 7);
        for handle in handles {
            let file = handle.key().file(4 * GRANULE).unwrap();
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks * 512, 4096);
        }
        [from, to].into_iter().for_each(|at| free(at).unwrap());
    }
}
