//! Owns device memory, which is lazily backed host memory in one address window per device, and the list of pinned host
//! memory. Free memory is counted as on the device. The meaning of the bytes is left to the program.

mod physical;
mod ranges;
mod shared;
mod sparse;

use crate::device;
use crate::errors::{HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, Status};
use crate::exports::exports;
pub(crate) use physical::{
    address_free, address_reserve, descriptor, import, map, mapped_at, physical, physical_device, release, retain,
    set_access, unmap,
};
use ranges::Ranges;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
pub(crate) use shared::{MemHandle, close, export, open, rank_of};
use sparse::Owner;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Granularity of device memory: the minimum that `cuMemGetAllocationGranularity` returns, and by how much the free
/// memory of `cudaMemGetInfo` falls with the first small `cudaMalloc`.
pub(crate) const GRANULE: usize = 2 << 20;

/// Largest allocation that shares a granule with others.
const SMALL: usize = 1 << 20;

/// Page size of host memory.
const PAGE: usize = 4096;

/// Alignment of small allocations within a granule. `cudaMalloc` returns addresses that are aligned to at least 256
/// bytes (CUDA C Programming Guide, "Device Memory Accesses"), in practice to 512.
const UNIT: usize = 512;

/// Address windows of all devices: 64 TiB from 20 TiB on, below the mappings near the program (from 0x55...) and above
/// the shadow memory of AddressSanitizer (to 0x1000_7fff_7fff).
const BASE: usize = 20 << 40;
const SPAN: usize = 1 << 46;
const WINDOW: usize = 1 << 42;

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

/// Read lock: held by threads that move bytes. Write lock: held while private memory is replaced by a shared file.
static MOVES: RwLock<()> = RwLock::new(());

/// Whether programs may allocate more memory than the device has, to measure what they need. Each request beyond the
/// capacity is refused once, so that the program frees what it can spare, and granted when it is repeated.
static LENDS: AtomicBool = AtomicBool::new(false);

exports! {
    /// Ordinal of the rank's own device; -1: the process does not see it.
    fn uniference_phantom_own() -> c_int {
        device::own().map_or(-1, |own| own as c_int)
    }

    /// Bytes of the rank's own device that this process uses, including its context; 0 without a context.
    fn uniference_phantom_taken() -> u64 {
        device::own().filter(|own| device::is_used(*own)).map_or(0, |own| {
            let context = device::get(own).map_or(0, |device| device.context);
            lock().devices().map_or(0, |memory| context + memory.devices[own].used.now)
        })
    }

    /// Writes zeros into device memory and gives its pages back to the host; does nothing for invalid ranges.
    fn uniference_phantom_clear(at: *mut c_void, bytes: usize) {
        let _ = set(at as usize, &[0], bytes);
    }

    /// Whether the pages of these bytes were never written to, and therefore hold zeros.
    fn uniference_phantom_is_untouched(at: *const c_void, bytes: usize) -> c_int {
        let owner = check(at as usize, bytes);
        owner.is_ok_and(|owner| sparse::is_untouched(at as usize, owner, bytes)).into()
    }

    /// Lets programs allocate more memory than the device has, from now on.
    fn uniference_phantom_lend() { lend(); }

    /// Whether the address is device memory.
    fn uniference_phantom_is_of_device(at: *const c_void) -> c_int {
        matches!(place(at as usize), Place::Device { .. }).into()
    }
}

pub(crate) fn lend() {
    LENDS.store(true, Relaxed);
}

struct Memory {
    devices: Vec<Pool>,
    /// Allocations on all devices, by address.
    blocks: BTreeMap<usize, Block>,
    pinned: BTreeMap<usize, Pinned>,
    physical: BTreeMap<u64, physical::Physical>,
    last_physical: u64,
    /// Handles of mapped physical memory, by address.
    mapped: BTreeMap<usize, u64>,
    /// Imported IPC allocations of other processes, by address.
    opened: BTreeMap<usize, shared::Opened>,
}

/// The memory of a device.
struct Pool {
    window: usize,
    length: usize,
    is_mapped: bool,
    ranges: Ranges,
    /// Granules that small allocations share, by address.
    shared: BTreeMap<usize, Ranges>,
    /// Ranges that other processes may map, by address.
    exported: BTreeMap<usize, shared::Exported>,
    /// Capacity for the program, in bytes.
    bytes: u64,
    /// Size of the last refused request; 0: a later request was granted within the capacity.
    refused: usize,
    used: Level,
    /// The part of `used` that belongs to the memory pool (`cudaMallocAsync`).
    pooled: Level,
}

/// Current and highest use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) most: u64,
}

impl Level {
    fn add(&mut self, bytes: usize) {
        self.now += bytes as u64;
        self.most = self.most.max(self.now);
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    device: usize,
    bytes: usize,
    kind: Kind,
    /// One allocation of the device's memory pool.
    is_pooled: bool,
}

/// How device memory was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One allocation with granules of its own.
    Plain,
    /// One allocation in a granule that it shares with others.
    Small,
    /// One managed allocation, for host and device.
    Managed,
    /// Reserved addresses without memory.
    Reserved,
    /// Physical memory that is mapped into reserved addresses.
    Mapped,
    /// Opened from an IPC handle of another process.
    Opened,
}

struct Pinned {
    bytes: usize,
    /// Whether this library allocated the memory, and so must unmap it; otherwise the program did.
    is_ours: bool,
}

/// Kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Device memory, and the allocation that contains the address.
    Device { device: usize, start: usize, bytes: usize, kind: Kind },
    /// Pinned host memory.
    Pinned { start: usize, bytes: usize },
    /// Host memory that is not pinned.
    Host,
    /// An unallocated address in a device's window.
    Nowhere,
}

/// Allocates device memory. Its pages are zero and use no host memory until they are touched.
pub(crate) fn allocate(device: usize, bytes: usize) -> Result<usize, Status> {
    allocate_as(device, bytes, if bytes <= SMALL { Kind::Small } else { Kind::Plain }, false)
}

/// Allocates from the device's memory pool.
pub(crate) fn allocate_pooled(device: usize, bytes: usize) -> Result<usize, Status> {
    allocate_as(device, bytes, if bytes <= SMALL { Kind::Small } else { Kind::Plain }, true)
}

/// Allocates memory that host and device share.
pub(crate) fn allocate_managed(device: usize, bytes: usize) -> Result<usize, Status> {
    allocate_as(device, bytes, Kind::Managed, false)
}

fn allocate_as(device: usize, bytes: usize, kind: Kind, is_pooled: bool) -> Result<usize, Status> {
    if bytes == 0 {
        return Ok(0);
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    device::mark_used(device);
    let pool = &mut memory.devices[device];
    let (at, bytes) = if kind == Kind::Small { pool.take_small(bytes)? } else { pool.take(bytes)? };
    if is_pooled {
        pool.pooled.add(bytes);
    }
    memory.blocks.insert(at, Block { device, bytes, kind, is_pooled });
    Ok(at)
}

/// Frees device memory; null is no error.
pub(crate) fn free(at: usize) -> Result<(), Status> {
    if at == 0 {
        return Ok(());
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    let block = *memory.blocks.get(&at).ok_or(INVALID_VALUE)?;
    let pool = &mut memory.devices[block.device];
    match block.kind {
        Kind::Small => pool.put_small(at, block.bytes),
        Kind::Plain | Kind::Managed => pool.put(at, block.bytes),
        Kind::Reserved | Kind::Mapped | Kind::Opened => return Err(INVALID_VALUE),
    }
    if block.is_pooled {
        pool.pooled.now -= block.bytes as u64;
    }
    memory.blocks.remove(&at);
    Ok(())
}

/// Free bytes and total bytes of a device.
pub(crate) fn info(device: usize) -> Result<(u64, u64), Status> {
    let mut memory = lock();
    let pool = &memory.devices()?.devices[device];
    let total = crate::device::get(device).map_or(0, |device| device.memory);
    Ok((pool.bytes.saturating_sub(pool.used.now), total))
}

/// Charges memory that a library allocates for itself; no address is reserved for it.
///
/// # Errors
/// If the device has too little free memory.
pub(crate) fn take_for_library(device: usize, bytes: usize) -> Result<(), Status> {
    let mut memory = lock();
    let pool = &mut memory.devices()?.devices[device];
    // NVIDIA's libraries cannot free memory and retry, so with lending their first request is granted.
    if LENDS.load(Relaxed) {
        pool.used.add(bytes);
        return Ok(());
    }
    pool.charge(bytes)
}

pub(crate) fn give_back_of_library(device: usize, bytes: usize) {
    if let Ok(memory) = lock().devices() {
        memory.devices[device].used.now -= bytes as u64;
    }
}

/// Current and highest use of the device's memory pool in bytes; `resets` sets the highest use to the current one.
pub(crate) fn pooled(device: usize, resets: bool) -> Result<Level, Status> {
    let mut memory = lock();
    let level = &mut memory.devices()?.devices[device].pooled;
    if resets {
        level.most = level.now;
    }
    Ok(*level)
}

/// Kind of memory at `at`.
pub(crate) fn place(at: usize) -> Place {
    let mut memory = lock();
    match memory.devices() {
        Ok(memory) => memory.place(at),
        Err(_) => Place::Host,
    }
}

/// Allocates pinned host memory, in whole pages.
pub(crate) fn allocate_pinned(bytes: usize) -> Result<usize, Status> {
    if bytes == 0 {
        return Ok(0);
    }
    let at = map_anywhere(bytes.next_multiple_of(PAGE))?;
    let mut memory = lock();
    memory.devices()?.pinned.insert(at, Pinned { bytes, is_ours: true });
    Ok(at)
}

/// Frees pinned memory; null is no error.
pub(crate) fn free_pinned(at: usize) -> Result<(), Status> {
    if at == 0 {
        return Ok(());
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    match memory.pinned.get(&at) {
        Some(Pinned { is_ours: true, .. }) => {}
        _ => return Err(INVALID_VALUE),
    }
    let bytes = memory.pinned.remove(&at).expect("it was there").bytes;
    // SAFETY: `allocate_pinned` mapped the range; CUDA forbids programs to use freed memory.
    unsafe { munmap(at as *mut c_void, bytes.next_multiple_of(PAGE)) }.map_err(|_| INVALID_VALUE)
}

/// Pins host memory that the program has allocated.
pub(crate) fn register(at: usize, bytes: usize) -> Result<(), Status> {
    if at == 0 || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    let end = memory.pinned.range(..at + bytes).next_back().map_or(0, |(start, pinned)| start + pinned.bytes);
    if end > at {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    memory.pinned.insert(at, Pinned { bytes, is_ours: false });
    Ok(())
}

/// Unpins the host memory at `at`.
pub(crate) fn unregister(at: usize) -> Result<(), Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    match memory.pinned.get(&at) {
        Some(Pinned { is_ours: false, .. }) => drop(memory.pinned.remove(&at)),
        _ => return Err(HOST_MEMORY_NOT_REGISTERED),
    }
    Ok(())
}

/// Moves bytes; the two ranges may overlap.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    let _moves = MOVES.read().unwrap_or_else(PoisonError::into_inner);
    let (target, source) = (check(to, bytes)?, check(from, bytes)?);
    // SAFETY: `check` found device memory to be mapped; the program that calls CUDA guarantees that host memory is
    // valid, as for `memcpy`.
    unsafe {
        if to.abs_diff(from) < bytes {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        } else {
            sparse::copy((to, target), (from, source), bytes);
        }
    }
    Ok(())
}

/// Writes a value of 1, 2 or 4 bytes `count` times.
pub(crate) fn set(at: usize, value: &[u8], count: usize) -> Result<(), Status> {
    let bytes = value.len() * count;
    if bytes == 0 {
        return Ok(());
    }
    let _moves = MOVES.read().unwrap_or_else(PoisonError::into_inner);
    let owner = check(at, bytes)?;
    if value.iter().all(|byte| *byte == 0) {
        // SAFETY: `check` found device memory to be mapped; the program that calls CUDA guarantees that host memory is
        // valid.
        unsafe { sparse::clear(at, owner, bytes) };
        return Ok(());
    }
    // SAFETY: `check` found device memory to be mapped; the program that calls CUDA guarantees that host memory is
    // valid.
    let target = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) };
    target.chunks_exact_mut(value.len()).for_each(|chunk| chunk.copy_from_slice(value));
    Ok(())
}

/// Owner of a range. Device memory must be mapped; host memory is not checked.
fn check(at: usize, length: usize) -> Result<Owner, Status> {
    let mut memory = lock();
    let Ok(memory) = memory.devices() else { return Ok(Owner::Program) };
    let (mut next, mut owner) = (at, Owner::Us);
    while next < at + length {
        match memory.place(next) {
            Place::Device { kind: Kind::Reserved, .. } | Place::Nowhere => return Err(INVALID_VALUE),
            Place::Device { start, bytes, .. } => {
                let end = start + bytes;
                match memory.shared_at(next) {
                    // A range that spans several files is treated as the program's memory.
                    Some((file, last)) if next == at && at + length <= last => return Ok(Owner::Shared(file)),
                    Some(_) => owner = Owner::Program,
                    None => {}
                }
                next = end;
            }
            Place::Pinned { .. } | Place::Host => return Ok(Owner::Program),
        }
    }
    Ok(owner)
}

impl Memory {
    fn place(&self, at: usize) -> Place {
        if let Some((start, block)) = self.blocks.range(..=at).next_back()
            && at < start + block.bytes
        {
            return Place::Device { device: block.device, start: *start, bytes: block.bytes, kind: block.kind };
        }
        if let Some((start, pinned)) = self.pinned.range(..=at).next_back()
            && at < start + pinned.bytes
        {
            return Place::Pinned { start: *start, bytes: pinned.bytes };
        }
        if (BASE..BASE + SPAN).contains(&at) { Place::Nowhere } else { Place::Host }
    }
}

impl Pool {
    fn new(window: usize, length: usize, bytes: u64) -> Pool {
        let ranges = Ranges::new(window, length);
        Pool {
            window,
            length,
            is_mapped: false,
            ranges,
            shared: BTreeMap::new(),
            exported: BTreeMap::new(),
            bytes,
            refused: 0,
            used: Level::default(),
            pooled: Level::default(),
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Status> {
        self.charge_or_lend(bytes, LENDS.load(Relaxed))
    }

    fn charge_or_lend(&mut self, bytes: usize, lends: bool) -> Result<(), Status> {
        let fits = bytes as u64 <= self.bytes.saturating_sub(self.used.now);
        let is_lent = lends && self.refused == bytes;
        if !(fits || is_lent) {
            self.refused = bytes;
            return Err(OUT_OF_MEMORY);
        }
        if fits {
            self.refused = 0;
        }
        self.used.add(bytes);
        Ok(())
    }

    /// Allocates whole granules: address and allocated bytes.
    fn take(&mut self, bytes: usize) -> Result<(usize, usize), Status> {
        let bytes = bytes.checked_next_multiple_of(GRANULE).ok_or(OUT_OF_MEMORY)?;
        self.charge(bytes)?;
        let at = self.reserve(bytes, GRANULE).and_then(|at| provide(at, bytes).map(|()| at));
        at.map(|at| (at, bytes)).inspect_err(|_| self.used.now -= bytes as u64)
    }

    fn put(&mut self, at: usize, bytes: usize) {
        withdraw(at, bytes);
        self.exported.remove(&at);
        self.ranges.put(at, bytes);
        self.used.now -= bytes as u64;
    }

    fn take_small(&mut self, bytes: usize) -> Result<(usize, usize), Status> {
        let bytes = bytes.next_multiple_of(UNIT);
        if let Some(at) = self.shared.values_mut().find_map(|granule| granule.take(bytes, UNIT)) {
            return Ok((at, bytes));
        }
        let (start, length) = self.take(GRANULE)?;
        let granule = self.shared.entry(start).or_insert(Ranges::new(start, length));
        Ok((granule.take(bytes, UNIT).expect("a small allocation fits into a granule"), bytes))
    }

    fn put_small(&mut self, at: usize, bytes: usize) {
        let start = at / GRANULE * GRANULE;
        let granule = self.shared.get_mut(&start).expect("small allocations are in granules");
        granule.put(at, bytes);
        if granule.is_all(start, GRANULE) {
            self.shared.remove(&start);
            self.put(start, GRANULE);
        }
    }

    /// Reserves addresses without memory.
    fn reserve(&mut self, bytes: usize, align: usize) -> Result<usize, Status> {
        if !self.is_mapped {
            reserve_window(self.window, self.length)?;
            self.is_mapped = true;
        }
        self.ranges.take(bytes, align).ok_or(OUT_OF_MEMORY)
    }
}

/// The locked state, created on first use: after the fork.
struct Guard(MutexGuard<'static, Option<Memory>>);

fn lock() -> Guard {
    Guard(MEMORY.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Guard {
    /// # Errors
    /// If no devices are attached.
    fn devices(&mut self) -> Result<&mut Memory, Status> {
        let count = crate::device::count();
        if count == 0 {
            return Err(crate::errors::NO_DEVICE);
        }
        Ok(self.0.get_or_insert_with(|| {
            let length = WINDOW.min(SPAN / count.next_power_of_two());
            let pool = |(i, device): (usize, &uniference_abi::gpus::Device)| {
                Pool::new(BASE + i * length, length, device.memory.saturating_sub(device.context))
            };
            Memory {
                devices: (0..count).filter_map(crate::device::get).enumerate().map(pool).collect(),
                blocks: BTreeMap::new(),
                pinned: BTreeMap::new(),
                physical: BTreeMap::new(),
                last_physical: 0,
                mapped: BTreeMap::new(),
                opened: BTreeMap::new(),
            }
        }))
    }
}

fn reserve_window(window: usize, length: usize) -> Result<(), Status> {
    // SAFETY: `FIXED_NOREPLACE` fails if anything is mapped in the range.
    let mapped = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        mmap_anonymous(window as *mut c_void, length, ProtFlags::empty(), flags)
    };
    match mapped {
        Ok(at) if at as usize == window => Ok(()),
        _ => {
            crate::unimplemented::warn("the addresses of a simulated GPU's memory are taken, or ulimit -v is too low");
            Err(OUT_OF_MEMORY)
        }
    }
}

/// Maps zero pages for reading and writing.
fn provide(at: usize, bytes: usize) -> Result<(), Status> {
    // SAFETY: the range is in a device's window and was not in use.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        mmap_anonymous(at as *mut c_void, bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
            .map_err(|_| OUT_OF_MEMORY)?;
        // A written byte should cost a 4-KiB page, not a 2-MiB page. Kernels without huge pages return an error.
        let _ = madvise(at as *mut c_void, bytes, Advice::LinuxNoHugepage);
    }
    Ok(())
}

/// Unmaps a range: its pages go back to the host, its addresses stay reserved.
fn withdraw(at: usize, bytes: usize) {
    // SAFETY: the range is in a device's window; CUDA forbids programs to use freed memory.
    let withdrawn = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        mmap_anonymous(at as *mut c_void, bytes, ProtFlags::empty(), flags)
    };
    withdrawn.unwrap_or_else(|error| panic!("cannot unmap {bytes} bytes at {at:#x}: {error}"));
}

fn map_anywhere(bytes: usize) -> Result<usize, Status> {
    // SAFETY: the kernel chooses the address of a new mapping, so no other mapping changes.
    let at = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    at.map(|at| at as usize).map_err(|_| OUT_OF_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::attach;

    const MIB: usize = 1 << 20;

    /// A window outside of the devices' windows.
    fn pool(at: usize, bytes: u64) -> Pool {
        Pool::new(BASE + SPAN + (at << 32), 1 << 30, bytes)
    }

    /// 3 MiB occupy two granules of 2 MiB; three small allocations share one; 2 MiB of 8 MiB remain.
    #[test]
    fn memory_is_counted_in_granules() {
        let mut pool = pool(0, 8 << 20);
        let (large, taken) = pool.take(3 * MIB).unwrap();
        assert_eq!((taken, pool.used.now), (4 * MIB, 4 << 20));
        let small: Vec<usize> = (0..3).map(|_| pool.take_small(1).unwrap().0).collect();
        assert_eq!([small[1] - small[0], small[2] - small[0]], [512, 1024]);
        assert_eq!(pool.used.now, 6 << 20);
        assert_eq!(pool.take(2 * MIB + 1), Err(OUT_OF_MEMORY));
        pool.put(large, taken);
        small.into_iter().for_each(|at| pool.put_small(at, 512));
        assert_eq!(pool.used, Level { now: 0, most: 6 << 20 });
        assert_eq!(pool.take(8 * MIB).map(|taken| taken.1), Ok(8 * MIB));
    }

    /// The device has 4 MiB, and lending is on. The request for a third granule is refused once and then granted; after
    /// a request that fits, such a request is refused again.
    #[test]
    fn what_is_lent_is_refused_once() {
        let mut pool = pool(1, 4 << 20);
        assert_eq!(pool.charge_or_lend(4 * MIB, true), Ok(()));
        assert_eq!(pool.charge_or_lend(2 * MIB, true), Err(OUT_OF_MEMORY));
        assert_eq!(pool.charge_or_lend(2 * MIB, true), Ok(()));
        assert_eq!(pool.used.now, 6 << 20);
        pool.used.now = 2 << 20;
        assert_eq!(pool.charge_or_lend(2 * MIB, true), Ok(()));
        assert_eq!(pool.charge_or_lend(2 * MIB, true), Err(OUT_OF_MEMORY));
        assert_eq!(pool.charge_or_lend(2 * MIB, false), Err(OUT_OF_MEMORY));
    }

    #[test]
    fn what_is_freed_is_zero_when_it_comes_back() {
        attach();
        let at = allocate(1, 2 * MIB).unwrap();
        set(at, &[7], 2 * MIB).unwrap();
        let there = |at: usize| {
            // SAFETY: the test has allocated the address.
            unsafe { *((at + 5) as *const u8) }
        };
        assert_eq!(there(at), 7);
        set(at, &[0, 0, 0, 0], MIB / 2).unwrap();
        assert_eq!(there(at), 0);
        set(at, &[7], 2 * MIB).unwrap();
        free(at).unwrap();
        assert_eq!((place(at), free(at)), (Place::Nowhere, Err(INVALID_VALUE)));
        let again = allocate(1, 2 * MIB).unwrap();
        assert_eq!((again, there(again)), (at, 0));
        free(again).unwrap();
    }

    /// Pages of a range that are in memory.
    fn resident(at: usize, bytes: usize) -> usize {
        let mut table = vec![0u8; bytes / PAGE];
        // SAFETY: the range is mapped and page-aligned; the table has one byte per page.
        assert_eq!(unsafe { libc::mincore(at as *mut c_void, bytes, table.as_mut_ptr()) }, 0);
        table.iter().filter(|page| **page & 1 == 1).count()
    }

    /// 3 bytes in 3 pages of 4 MiB are written. One copy's target was full, at other offsets within its pages; the
    /// other's was empty, at the same offsets.
    #[test]
    fn what_was_never_written_takes_no_memory_when_it_is_copied() {
        attach();
        let [from, full, empty] = [(); 3].map(|()| allocate(1, 4 * MIB).unwrap());
        let written = [(5 * PAGE + 100, 1), (600 * PAGE - 1, 2), (600 * PAGE, 3)];
        written.into_iter().for_each(|(at, value)| set(from + at, &[value], 1).unwrap());

        set(full, &[7], 4 * MIB).unwrap();
        assert_eq!(resident(full, 4 * MIB), 4 * MIB / PAGE);
        copy(full + 16, from, 4 * MIB - 16).unwrap();
        // SAFETY: the test has allocated these 4 MiB.
        let bytes = unsafe { std::slice::from_raw_parts(full as *const u8, 4 * MIB) };
        let found: Vec<(usize, u8)> = bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
        let moved = written.map(|(at, value)| (at + 16, value));
        assert_eq!(found, [(0..16).map(|at| (at, 7)).collect(), moved.to_vec()].concat());

        copy(empty, from, 4 * MIB).unwrap();
        assert_eq!(resident(empty, 4 * MIB), 3);
        [from, full, empty].into_iter().for_each(|at| free(at).unwrap());
    }

    /// Zeros of a device overwrite the program's bytes that are not zero, and no others.
    #[test]
    fn zeros_of_a_device_replace_what_the_host_had() {
        attach();
        let device = allocate(1, 2 * MIB).unwrap();
        let mut host = vec![9u8; 3 * PAGE];
        copy(host.as_mut_ptr() as usize, device + 5, 2 * PAGE + 1).unwrap();
        assert_eq!(host.iter().position(|byte| *byte != 0), Some(2 * PAGE + 1));
        copy(device, host.as_ptr() as usize, 3 * PAGE).unwrap();
        copy(host.as_mut_ptr() as usize, device + 2 * PAGE + 1, 8).unwrap();
        assert_eq!(host[..8], [9; 8]);
        free(device).unwrap();
    }

    /// An expandable segment: 4 granules of addresses, two of them mapped.
    #[test]
    fn mapped_memory_is_counted_and_reserved_addresses_are_not() {
        attach();
        let before = info(0).unwrap().0;
        let at = address_reserve(0, 4 * GRANULE, 0, 0).unwrap();
        assert_eq!(info(0).unwrap().0, before);
        let handles = [physical(0, GRANULE, false).unwrap(), physical(0, GRANULE, false).unwrap()];
        map(at, GRANULE, 0, handles[0]).unwrap();
        map(at + GRANULE, GRANULE, 0, handles[1]).unwrap();
        assert_eq!(info(0).unwrap().0, before - 2 * GRANULE as u64);
        set_access(at, 2 * GRANULE).unwrap();
        assert_eq!(set_access(at, 3 * GRANULE), Err(INVALID_VALUE));
        set(at + GRANULE - 1, &[1], 2).unwrap();
        assert_eq!(set(at + 2 * GRANULE - 1, &[1], 2), Err(INVALID_VALUE));
        handles.into_iter().for_each(|handle| release(handle).unwrap());
        assert_eq!(info(0).unwrap().0, before - 2 * GRANULE as u64, "mappings keep it");
        assert_eq!(address_free(at, 4 * GRANULE), Err(INVALID_VALUE));
        unmap(at, 2 * GRANULE).unwrap();
        assert_eq!(info(0).unwrap().0, before);
        address_free(at, 4 * GRANULE).unwrap();
        assert_eq!(place(at), Place::Nowhere);
    }

    #[test]
    fn pinned_memory_is_known_from_within() {
        attach();
        let at = allocate_pinned(5000).unwrap();
        assert_eq!(place(at + 4999), Place::Pinned { start: at, bytes: 5000 });
        assert_eq!(
            (register(at + 100, 8), unregister(at)),
            (Err(HOST_MEMORY_ALREADY_REGISTERED), Err(HOST_MEMORY_NOT_REGISTERED))
        );
        free_pinned(at).unwrap();
        assert_eq!(place(at), Place::Host);
    }
}
