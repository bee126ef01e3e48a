//! Owns the kernels that programs know: those that libraries register when they are loaded, by addresses of functions of the host, and those of
//! modules that are loaded later, by handles. What a kernel computes is nobody's business here, unless it communicates ([`crate::peers`]); what it
//! needs decides where it fits.

mod modules;

use crate::attach;
use crate::device::{self, Architecture, BLOCK, GRID, SHARED_OF_BLOCK, THREADS_OF_BLOCK};
use crate::errors::{INVALID_CONFIGURATION, INVALID_DEVICE_FUNCTION, INVALID_VALUE, Status};
use crate::launches::{Name, Shape};
use crate::peers::Peers;
use crate::streams::{self, Handle, Takes};
pub(crate) use modules::{function, load, names, unload, variable};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use uniference_protocol::phantom::Link;

static KERNELS: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

enum Entry {
    /// Its name, in the library that has registered it. There are tens of thousands, most of which are never launched.
    Registered(usize),
    Known(Arc<Kernel>),
}

/// A kernel that a module or a library has registered.
pub(crate) struct Kernel {
    pub(crate) name: Arc<Name>,
    /// The same for C.
    pub(crate) text: Box<CStr>,
    pub(crate) needs: Needs,
    /// Bytes of shared memory that a launch may ask for.
    dynamic_limit: AtomicU32,
    /// What it does, if it communicates.
    peers: Option<Peers>,
    /// Whether it is PyTorch's that waits for its first argument, a number of cycles: `torch.cuda._sleep`.
    spins: bool,
}

/// What a kernel needs to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// 32-bit registers of a thread.
    pub(crate) registers: u32,
    /// Bytes of shared memory of a block.
    pub(crate) shared: u32,
    /// Bytes of local memory of a thread.
    pub(crate) local: u32,
    /// Most threads of a block.
    pub(crate) threads: u32,
}

impl Default for Needs {
    /// Of a kernel whose binary was not read: as many registers as let a multiprocessor be filled with threads of any such kernel (65536 / 2048).
    fn default() -> Needs {
        Needs { registers: 32, shared: 0, local: 0, threads: THREADS_OF_BLOCK }
    }
}

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Dim3 {
    /// Number of threads of a block, or of blocks of a grid.
    pub(crate) fn volume(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }

    fn is_within(self, most: [u32; 3]) -> bool {
        self.volume() > 0 && self.x <= most[0] && self.y <= most[1] && self.z <= most[2]
    }
}

/// A function of the host stands for the kernel of this name.
pub(crate) fn register(function: usize, name: *const c_char) {
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(function, Entry::Registered(name as usize));
}

/// A kernel of a module: its handle, which stays.
pub(crate) fn add(name: &CStr, needs: Needs) -> usize {
    let kernel = Arc::new(Kernel::new(name, needs));
    let handle = Arc::as_ptr(&kernel) as usize;
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Entry::Known(kernel));
    handle
}

/// The kernel for which a function of the host stands, or a handle.
pub(crate) fn find(function: usize) -> Result<Arc<Kernel>, Status> {
    let name = match KERNELS.read().unwrap_or_else(PoisonError::into_inner).get(&function) {
        Some(Entry::Known(kernel)) => return Ok(kernel.clone()),
        Some(Entry::Registered(name)) => *name,
        None => return Err(INVALID_DEVICE_FUNCTION),
    };
    // SAFETY: the library registered a string of its own, and is still loaded, as it is called.
    let kernel = Arc::new(Kernel::new(unsafe { CStr::from_ptr(name as *const c_char) }, Needs::default()));
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(function, Entry::Known(kernel.clone()));
    Ok(kernel)
}

/// What a kernel is called with: an address for each argument.
pub(crate) type Arguments = *const *const c_void;

/// Has a kernel start on a stream.
pub(crate) fn launch(
    function: usize,
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
    arguments: Arguments,
) -> Result<(), Status> {
    let kernel = find(function)?;
    if !grid.is_within(GRID) || !block.is_within(BLOCK) || block.volume() > u64::from(THREADS_OF_BLOCK) {
        return Err(INVALID_CONFIGURATION);
    }
    if shared > kernel.dynamic_limit() as usize {
        return Err(INVALID_VALUE);
    }
    // SAFETY: who launches a kernel passes its arguments.
    if let Some(launched) = kernel.peers.and_then(|peers| unsafe { peers.launch(&kernel.name, arguments, stream) }) {
        launched?;
        return streams::wait_for_launch(stream);
    }
    let array = |size: Dim3| [size.x, size.y, size.z];
    let Needs { registers, shared: own, .. } = kernel.needs;
    let shape =
        Shape { grid: array(grid), block: array(block), shared: [own, shared as u32], registers: registers as u16 };
    // SAFETY: as above, and it has one argument.
    let takes = if kernel.spins { unsafe { spin(arguments)? } } else { Takes::Bytes(0) };
    let name = kernel.name.text();
    // SAFETY: `name` outlives the call.
    let is_outside = |link: &Link| unsafe { (link.launches)(name.as_ptr(), name.len()) } != 0;
    // No operator launches the kernel of `torch.cuda._sleep`, which has no output.
    let is_outside = kernel.spins || attach::link().is_some_and(is_outside);
    streams::launch_named(stream, &kernel.name, takes, shape)?;
    if is_outside { streams::wait_for_launch(stream) } else { Ok(()) }
}

/// How long cycles of the multiprocessors' clock take, of which an argument says how many.
///
/// # Safety
/// The first argument is an `int64_t`, or there are none.
unsafe fn spin(arguments: Arguments) -> Result<Takes, Status> {
    let (_, device) = device::find(device::current() as c_int)?;
    // SAFETY: the caller's.
    let cycles = unsafe { arguments.as_ref().and_then(|first| first.cast::<i64>().as_ref()) }.ok_or(INVALID_VALUE)?;
    let cycles = u128::try_from(*cycles).unwrap_or(0);
    let ns = cycles * 1_000_000 / u128::from(device.clock.max(1));
    Ok(Takes::Nanoseconds(u64::try_from(ns).unwrap_or(u64::MAX)))
}

impl Kernel {
    fn new(name: &CStr, needs: Needs) -> Kernel {
        let text = Name::new(&name.to_string_lossy());
        let peers = Peers::of(text.text());
        let spins = text.text().ends_with("11spin_kernelEl");
        Kernel { name: Arc::new(text), text: name.into(), needs, dynamic_limit: AtomicU32::new(0), peers, spins }
    }

    /// Bytes of shared memory that a launch may ask for: 48 KiB with what the kernel has itself, more if it has opted in.
    pub(crate) fn dynamic_limit(&self) -> u32 {
        self.dynamic_limit.load(Relaxed).max(SHARED_OF_BLOCK.saturating_sub(self.needs.shared))
    }

    /// Opts in to more shared memory.
    pub(crate) fn set_dynamic_limit(&self, bytes: c_int) -> Result<(), Status> {
        let most = device::get(device::current()).map_or(0, |d| Architecture::of(d.capability).shared_of_block);
        let bytes = u32::try_from(bytes).map_err(|_| INVALID_VALUE)?;
        if bytes + self.needs.shared > most {
            return Err(INVALID_VALUE);
        }
        self.dynamic_limit.store(bytes, Relaxed);
        Ok(())
    }

    /// Blocks of it that can reside on a multiprocessor of the current device.
    pub(crate) fn occupancy(&self, threads: c_int, dynamic: usize) -> Result<c_int, Status> {
        let (_, device) = device::find(device::current() as i32)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        let shared = u32::try_from(dynamic).map_or(u32::MAX, |dynamic| dynamic.saturating_add(self.needs.shared));
        let blocks = Architecture::of(device.capability).occupancy(threads, self.needs.registers, shared);
        Ok(if threads > self.needs.threads { 0 } else { blocks as c_int })
    }
}
