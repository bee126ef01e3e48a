//! Owns the program's kernels: kernels that libraries register when they are loaded, by addresses of host functions,
//! and kernels of modules that are loaded later, by handles. Kernels compute nothing, but some communicate
//! ([`crate::peers`]); their resource needs decide on which configurations they can be launched.

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
use uniference_abi::gpus::Link;

static KERNELS: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

enum Entry {
    /// Address of its name in the library that registered it. There are tens of thousands, most of which are never
    /// launched.
    Registered(usize),
    Known(Arc<Kernel>),
}

/// A kernel that a module or a library has registered.
pub(crate) struct Kernel {
    pub(crate) name: Arc<Name>,
    /// The name as a C string.
    pub(crate) text: Box<CStr>,
    pub(crate) needs: Needs,
    /// Bytes of dynamic shared memory that a launch may request, if the program has set it.
    dynamic_limit: AtomicU32,
    /// The kernel's communication, if it communicates.
    peers: Option<Peers>,
    /// Whether it is PyTorch's kernel of `torch.cuda._sleep`, which waits for a number of cycles, its first argument.
    spins: bool,
}

/// Resources that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// 32-bit registers per thread.
    pub(crate) registers: u32,
    /// Bytes of static shared memory per block.
    pub(crate) shared: u32,
    /// Bytes of local memory per thread.
    pub(crate) local: u32,
    /// Maximum threads per block.
    pub(crate) threads: u32,
}

impl Default for Needs {
    /// Needs of a kernel whose binary was not read: so many registers that a multiprocessor can be filled with threads
    /// (65536 / 2048).
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

/// Registers a kernel by its host function and name.
pub(crate) fn register(function: usize, name: *const c_char) {
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(function, Entry::Registered(name as usize));
}

/// Adds a module's kernel and returns its handle, which is never freed.
pub(crate) fn add(name: &CStr, needs: Needs) -> usize {
    let kernel = Arc::new(Kernel::new(name, needs));
    let handle = Arc::as_ptr(&kernel) as usize;
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Entry::Known(kernel));
    handle
}

/// Kernel of a host function or a handle.
pub(crate) fn find(function: usize) -> Result<Arc<Kernel>, Status> {
    let name = match KERNELS.read().unwrap_or_else(PoisonError::into_inner).get(&function) {
        Some(Entry::Known(kernel)) => return Ok(kernel.clone()),
        Some(Entry::Registered(name)) => *name,
        None => return Err(INVALID_DEVICE_FUNCTION),
    };
    // SAFETY: the library registered a string of its own, and is still loaded because it calls its kernel.
    let kernel = Arc::new(Kernel::new(unsafe { CStr::from_ptr(name as *const c_char) }, Needs::default()));
    KERNELS.write().unwrap_or_else(PoisonError::into_inner).insert(function, Entry::Known(kernel.clone()));
    Ok(kernel)
}

/// A kernel's arguments: an address per argument.
pub(crate) type Arguments = *const *const c_void;

/// Launches a kernel on a stream.
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
    // SAFETY: CUDA requires that a launch passes the kernel's arguments.
    if let Some(launched) = kernel.peers.and_then(|peers| unsafe { peers.launch(&kernel.name, arguments, stream) }) {
        launched?;
        return streams::wait_for_launch(stream);
    }
    let array = |size: Dim3| [size.x, size.y, size.z];
    let Needs { registers, shared: own, .. } = kernel.needs;
    let shape =
        Shape { grid: array(grid), block: array(block), shared: [own, shared as u32], registers: registers as u16 };
    // SAFETY: CUDA requires that a launch passes the kernel's arguments; this kernel has one.
    let takes = if kernel.spins { unsafe { spin(arguments)? } } else { Takes::Bytes(0) };
    let name = kernel.name.text();
    // SAFETY: the pointer and the length are those of `name`, which outlives the call.
    let is_outside = |link: &Link| unsafe { (link.launches)(name.as_ptr(), name.len()) } != 0;
    // No operator launches the kernel of `torch.cuda._sleep`, which has no output.
    let is_outside = kernel.spins || attach::link().is_some_and(is_outside);
    streams::launch_named(stream, &kernel.name, takes, shape)?;
    if is_outside { streams::wait_for_launch(stream) } else { Ok(()) }
}

/// Duration of the number of clock cycles that the first argument states.
///
/// # Safety
/// The first argument must be an `int64_t`, or `arguments` must be null.
unsafe fn spin(arguments: Arguments) -> Result<Takes, Status> {
    let (_, device) = device::find(device::current() as c_int)?;
    // SAFETY: `launch` passes the arguments of a kernel whose only parameter is an `int64_t`.
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

    /// Bytes of dynamic shared memory that a launch may request: 48 KiB minus the static shared memory, or more if the
    /// kernel has opted in.
    pub(crate) fn dynamic_limit(&self) -> u32 {
        self.dynamic_limit.load(Relaxed).max(SHARED_OF_BLOCK.saturating_sub(self.needs.shared))
    }

    /// Sets the dynamic shared memory that a launch may request: the kernel opts in to more than the default.
    pub(crate) fn set_dynamic_limit(&self, bytes: c_int) -> Result<(), Status> {
        let most = device::get(device::current()).map_or(0, |d| Architecture::of(d.capability).shared_of_block);
        let bytes = u32::try_from(bytes).map_err(|_| INVALID_VALUE)?;
        if bytes + self.needs.shared > most {
            return Err(INVALID_VALUE);
        }
        self.dynamic_limit.store(bytes, Relaxed);
        Ok(())
    }

    /// Blocks of the kernel that can reside on a multiprocessor of the current device.
    pub(crate) fn occupancy(&self, threads: c_int, dynamic: usize) -> Result<c_int, Status> {
        let (_, device) = device::find(device::current() as i32)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        let shared = u32::try_from(dynamic).map_or(u32::MAX, |dynamic| dynamic.saturating_add(self.needs.shared));
        let blocks = Architecture::of(device.capability).occupancy(threads, self.needs.registers, shared);
        Ok(if threads > self.needs.threads { 0 } else { blocks as c_int })
    }
}
