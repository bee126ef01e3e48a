//! Owns memory of devices that other processes use, too: it is named by a handle that programs pass on (CUDA's IPC), or by a descriptor (virtual
//! memory that was created for it), and lies in a file of the memory that the processes map. What was in it stays in it when it is handed out.
//!
//! A handle is the same in every run: programs send it to each other, and how long what they send is may depend on its bytes. Where the file is
//! that it names is said by a link in the folder of the command's libraries, which goes with the folder.

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
    /// [`MAGIC`], which tells handles of this library from others.
    magic: u64,
    /// Of the file: the rank on whose GPU it is, and how many its processes have handed out before.
    rank: u32,
    number: u32,
    /// Bytes of the range that is shared.
    bytes: u64,
    /// Of the allocation within the range.
    offset: u64,
    /// The device's number in the host.
    device: u32,
    reserved: [u32; 7],
}

/// What names of files begin with; the rank follows, a number, and the device.
const NAME: &str = "uniference-gpu-";

const MAGIC: u64 = u64::from_le_bytes(*b"unifrIPC");

/// A range that other processes may map.
pub(super) struct Exported {
    /// It is there for as long as it is open.
    file: OwnedFd,
    bytes: usize,
    key: Key,
}

impl Exported {
    /// Of zeros, on a rank's GPU.
    fn new(rank: u32, device: usize, bytes: usize) -> Result<Exported, Status> {
        let (key, file) = Key::claim(rank, device)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Exported { file, bytes, key })
    }
}

/// What a file is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    rank: u32,
    number: u32,
    /// On which it is, by its number in the host.
    device: u32,
}

/// A range of another process's.
pub(super) struct Opened {
    file: OwnedFd,
    key: Key,
    device: usize,
    bytes: usize,
    /// How often it was opened.
    uses: usize,
}

/// Memory that was created to be mapped by several processes.
#[derive(Debug)]
pub(super) struct Part {
    file: OwnedFd,
    bytes: usize,
    key: Key,
    /// This process has created it.
    is_own: bool,
}

impl Part {
    /// On a rank's GPU; with what is there, if it is mapped already.
    pub(super) fn new(rank: u32, device: usize, bytes: usize, mapped: Option<usize>) -> Result<Part, Status> {
        let Exported { file, key, .. } = match mapped {
            Some(at) => share(at, bytes, rank, device)?,
            None => Exported::new(rank, device, bytes)?,
        };
        Ok(Part { file, bytes, key, is_own: true })
    }

    /// What a descriptor of the program's is of.
    pub(super) fn of(descriptor: c_int) -> Result<Part, Status> {
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| INVALID_VALUE)?;
        let key = Key::named(&path.to_string_lossy()).ok_or(INVALID_VALUE)?;
        // SAFETY: the program's, which stays open during the call.
        let file = lift(unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map_err(|_| OUT_OF_MEMORY)?);
        let bytes = rustix::fs::fstat(&file).map_err(|_| INVALID_VALUE)?.st_size as usize;
        Ok(Part { file, bytes, key, is_own: false })
    }

    /// One for the program to keep, which another process can be sent.
    pub(super) fn descriptor(&self) -> Result<c_int, Status> {
        self.file.try_clone().map(IntoRawFd::into_raw_fd).map_err(|_| OUT_OF_MEMORY)
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// On which device of this process it is; the current one, if it is on none.
    pub(super) fn device(&self) -> usize {
        device::ordinal(self.key.device as usize).unwrap_or(device::current())
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }
}

/// Names an allocation for other processes, with the rank on whose GPU it is, which `rank` knows by the device.
pub(crate) fn export(at: usize, rank: impl FnOnce(usize) -> u32) -> Result<MemHandle, Status> {
    // Who is asked may come back for memory.
    let Place::Device { device, .. } = place(at) else { return Err(INVALID_VALUE) };
    let rank = rank(device);
    let _nobody_moves = MOVES.write().unwrap_or_else(PoisonError::into_inner);
    let mut memory = lock();
    memory.devices()?.export(at, rank)
}

/// Maps what a handle names, once however often it is opened.
pub(crate) fn open(handle: &MemHandle) -> Result<usize, Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    if handle.magic != MAGIC || handle.offset >= handle.bytes {
        return Err(INVALID_VALUE);
    }
    if memory.devices.iter().flat_map(|pool| pool.exported.values()).any(|exported| exported.key == handle.key()) {
        // As the driver does: who has the memory need not open it.
        return Err(INVALID_CONTEXT);
    }
    memory.open(handle)
}

/// The reverse, for an address that `open` has returned.
pub(crate) fn close(at: usize) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.close(at)
}

/// The rank on whose GPU memory lies that another process has; `None`: this process has it, or nobody.
pub(crate) fn rank_of(at: usize) -> Option<u32> {
    let mut memory = lock();
    let memory = memory.devices().ok()?;
    let others = memory.part_at(at).filter(|(_, part)| !part.is_own);
    others.map(|(_, part)| part.key.rank).or_else(|| memory.opened_at(at).map(|(_, opened)| opened.key.rank))
}

impl Memory {
    /// The file in which the memory at an address is, of which other processes have some: where it is mapped, and how far.
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

/// What is shared of an allocation: all of it, or the granule that it has with others.
fn range_of(start: usize, block: Block) -> (usize, usize) {
    if block.kind == Kind::Small { (start / GRANULE * GRANULE, GRANULE) } else { (start, block.bytes) }
}

/// Puts a file in the place of private memory, with what was there. Nobody moves bytes meanwhile by functions of CUDA; what other threads write
/// there by themselves just then, as operators of the host do into memory that is shared as well, may be lost.
fn share(start: usize, bytes: usize, rank: u32, device: usize) -> Result<Exported, Status> {
    let exported = Exported::new(rank, device, bytes)?;
    let file = &exported.file;
    // SAFETY: a new mapping, anywhere, which nobody else knows; the range is ours, private and anonymous.
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
    // SAFETY: the range is in a window, and was taken by the caller.
    let mapped = unsafe { mmap(start as *mut c_void, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
    mapped.map(drop).map_err(|_| OUT_OF_MEMORY)
}

impl MemHandle {
    fn key(&self) -> Key {
        Key { rank: self.rank, number: self.number, device: self.device }
    }
}

impl Key {
    /// The next that no process of the rank's has had, and a file that is found by it. A number is never used again: somebody may still have the
    /// memory that it has named.
    fn claim(rank: u32, device: usize) -> Result<(Key, OwnedFd), Status> {
        // Below are those that this process has had, or found taken; of one rank alone, as others are rare.
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

    /// Of a file as the kernel names it: `/memfd:uniference-gpu-1-0-1 (deleted)`.
    fn named(path: &str) -> Option<Key> {
        let (_, name) = path.trim_end_matches(" (deleted)").split_once(&format!(":{NAME}"))?;
        let mut numbers = name.split('-').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Key { rank: next()?, number: next()?, device: next()? })
    }

    /// Of another process of this machine, if it is there and has this many bytes.
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

/// Of the command's libraries.
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
        // SAFETY: the caller has allocated it.
        unsafe { *(at as *const u8) }
    }

    /// As another process would open it.
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
            // Zeros are seen by both, in whole pages and in parts of them.
            set(at, &[0], bytes).unwrap();
            assert_eq!((byte(there + 7), byte(there + 8)), (0, 0));
            // Opened again it is where it was; it goes when both have closed it.
            assert_eq!((opened(&handle), free(there)), (there, Err(INVALID_VALUE)));
            assert_eq!((close(there), close(there), close(there)), (Ok(()), Ok(()), Err(INVALID_VALUE)));
            free(at).unwrap();
            assert_eq!(place(at), Place::Nowhere);
            assert_eq!(open(&MemHandle { magic: 0, ..handle }), Err(INVALID_VALUE));
            assert_eq!(open(&MemHandle { offset: handle.bytes, ..handle }), Err(INVALID_VALUE));
        }
    }

    /// Memory is handed out by a descriptor after it was mapped and written to. What is imported is on the device that its file names, and the rank's.
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
        // SAFETY: it was made for this.
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
        // What it is called now is something else, of another size.
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

    /// Of 8 MiB that are shared, one byte was written: a copy takes one page.
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
