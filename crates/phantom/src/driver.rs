//! Owns the functions of the CUDA driver (libcuda): parameters and results. PyTorch gets them by name from the runtime,
//! Triton from the library. The same modules implement them as for the runtime.

mod kernels;
mod memories;
mod streams;

use crate::device::limits;
use crate::device::{self, attribute, bus_id, find};
use crate::errors::*;
use crate::exports::{Items, Out, Put, Text, exports};
use crate::unimplemented::report;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

const LIBRARY: &str = "libcuda";

type Pointer = *mut c_void;

/// `CUcontext`: a device's primary context, which is its only one.
type Context = *mut c_void;

/// Declares driver functions: the body returns `Result<(), Status>`.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> $crate::errors::Status {
                fn body($($argument: $type),*) -> Result<(), $crate::errors::Status> $body
                let call = || body($($argument),*);
                let called = $crate::cupti::call($crate::cupti::Domain::Driver, stringify!($name), call);
                called.err().unwrap_or($crate::errors::SUCCESS)
            }
        )*
    };
}
use driver;

const CONTEXT: usize = 0x62 << 40;

thread_local! {
    /// Devices of the pushed contexts below the current one.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn context(ordinal: usize) -> Context {
    (CONTEXT | ordinal << 4) as Context
}

/// Device of a context.
fn ordinal(context: Context) -> Result<usize, Status> {
    let ordinal = (context as usize).checked_sub(CONTEXT).ok_or(INVALID_CONTEXT)? >> 4;
    if ordinal < device::count() { Ok(ordinal) } else { Err(INVALID_CONTEXT) }
}

fn push(new: Context) -> Result<(), Status> {
    let new = ordinal(new)?;
    STACK.with_borrow_mut(|stack| stack.push(device::current()));
    device::choose(new);
    Ok(())
}

fn pop(old: Out<Context>) -> Result<(), Status> {
    old.put(context(device::current()));
    let under = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
    device::choose(under);
    Ok(())
}

/// Address of a driver function in its newest version; null, with `result` 1 and no error, if it does not exist.
pub(crate) fn entry_point(symbol: Text, function: Out<Pointer>, result: Out<c_int>) -> Result<(), Status> {
    let name = symbol.get().ok_or(INVALID_VALUE)?;
    let found = ["_v4", "_v3", "_v2", ""].iter().find_map(|version| own(&format!("{name}{version}")));
    // An empty name only tests whether the lookup works.
    if found.is_none() && !name.is_empty() {
        report(LIBRARY, name);
    }
    result.put(c_int::from(found.is_none()));
    function.give(found.unwrap_or(std::ptr::null_mut()))
}

/// Address of a function of this library.
fn own(name: &str) -> Option<Pointer> {
    static SELF: OnceLock<usize> = OnceLock::new();
    let handle = *SELF.get_or_init(|| {
        // SAFETY: `dladdr` fills the structure; the name is that of this library's file, which is loaded.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            libc::dladdr(cuInit as *const c_void, &raw mut info);
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) as usize
        }
    });
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is null, which searches the program, or this library's handle.
    let found = unsafe { libc::dlsym(handle as Pointer, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

driver! {
    fn cuInit(_flags: c_uint) { find(0).map(drop) }
    fn cuDriverGetVersion(version: Out<c_int>) { version.give(device::VERSION) }
    fn cuDeviceGet(device: Out<c_int>, number: c_int) { find(number)?; device.give(number) }
    fn cuDeviceGetCount(count: Out<c_int>) { count.give(device::count() as c_int) }
    fn cuDeviceGetName(text: Items<c_char>, length: c_int, number: c_int) {
        let name = find(number)?.1.name;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name: Vec<u8> = name[..end].iter().map(|byte| *byte as u8).collect();
        text.write_text(&String::from_utf8_lossy(&name), length as usize)
    }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, number: c_int) { bytes.give(find(number)?.1.memory as usize) }
    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_int, device: c_int) { value.give(attribute(find(device)?.1, number).ok_or(INVALID_VALUE)?) }
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, number: c_int) { uuid.give(find(number)?.1.uuid) }
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, number: c_int) { uuid.give(find(number)?.1.uuid) }
    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, number: c_int) {
        let [high, low] = find(number)?.1.capability;
        major.give(high as c_int)?;
        minor.give(low as c_int)
    }
    fn cuDeviceGetPCIBusId(text: Items<c_char>, length: c_int, number: c_int) { text.write_text(&bus_id(find(number)?.1), length as usize) }
    fn cuDeviceGetByPCIBusId(number: Out<c_int>, text: Text) {
        number.give(device::at_bus(text.get().ok_or(INVALID_VALUE)?).and_then(device::ordinal).ok_or(INVALID_DEVICE)? as c_int)
    }
    fn cuDeviceCanAccessPeer(can: Out<c_int>, from: c_int, to: c_int) { can.give(c_int::from(device::reaches(from, to)?)) }
    fn cuCtxEnablePeerAccess(other: Context, flags: c_uint) { device::enable_peer(ordinal(other)? as c_int, flags) }
    fn cuCtxDisablePeerAccess(other: Context) { device::disable_peer(ordinal(other)? as c_int) }

    fn cuDevicePrimaryCtxRetain(new: Out<Context>, number: c_int) { new.give(context(find(number)?.0)) }
    fn cuDevicePrimaryCtxRelease_v2(number: c_int) { find(number).map(drop) }
    fn cuDevicePrimaryCtxSetFlags_v2(number: c_int, _flags: c_uint) { find(number).map(drop) }
    fn cuDevicePrimaryCtxGetState(number: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let (number, _) = find(number)?;
        flags.put(0);
        active.give(c_int::from(device::is_used(number)))
    }
    fn cuCtxGetCurrent(current: Out<Context>) {
        find(0)?;
        current.give(if device::is_used(device::current()) { context(device::current()) } else { std::ptr::null_mut() })
    }
    fn cuCtxSetCurrent(new: Context) { if new.is_null() { Ok(()) } else { device::choose(ordinal(new)?); Ok(()) } }
    fn cuCtxPushCurrent_v2(new: Context) { push(new) }
    fn cuCtxPushCurrent(new: Context) { push(new) }
    fn cuCtxPopCurrent_v2(old: Out<Context>) { pop(old) }
    fn cuCtxPopCurrent(old: Out<Context>) { pop(old) }
    fn cuCtxGetDevice(number: Out<c_int>) { find(0)?; number.give(device::current() as c_int) }
    fn cuCtxGetId(of: Context, id: Out<c_ulonglong>) {
        let of = if of.is_null() { device::current() } else { ordinal(of)? };
        id.give(of as c_ulonglong + 1)
    }
    fn cuCtxGetFlags(flags: Out<c_uint>) { find(0)?; flags.give(0) }
    fn cuCtxGetApiVersion(_of: Context, version: Out<c_uint>) { version.give(device::VERSION as c_uint) }
    fn cuCtxGetLimit(value: Out<usize>, limit: c_int) { value.give(limits::get(limit)?) }
    fn cuCtxSetLimit(limit: c_int, value: usize) { limits::set(limit, value) }
    fn cuCtxSynchronize() { crate::streams::synchronize_device() }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        least.put(crate::streams::PRIORITIES.0);
        greatest.put(crate::streams::PRIORITIES.1);
        Ok(())
    }
    fn cuCtxCreate_v4(_new: Out<Context>, _parameters: Pointer, _flags: c_uint, _number: c_int) { report(LIBRARY, "cuCtxCreate"); Err(NOT_SUPPORTED) }
    fn cuGetErrorName(status: Status, text: Out<*const c_char>) { give_text(text, find_error(status).map(|error| error.driver)) }
    fn cuGetErrorString(status: Status, text: Out<*const c_char>) { give_text(text, find_error(status).map(|error| error.text)) }
    fn cuGetProcAddress_v2(symbol: Text, function: Out<Pointer>, _version: c_int, _flags: c_ulonglong, result: Out<c_int>) {
        entry_point(symbol, function, result)
    }
    // The driver sends no log messages, so the callback is never called.
    fn cuLogsRegisterCallback(_function: Pointer, _data: Pointer, handle: Out<Pointer>) { handle.put(std::ptr::null_mut()); Ok(()) }
    fn cuLogsUnregisterCallback(_handle: Pointer) { Ok(()) }
    // Tables of unnamed functions, which the real kernel compiler (libnvrtc) requests but does not need.
    fn cuGetExportTable(_table: Out<Pointer>, _id: *const [u8; 16]) { Err(NOT_FOUND) }
}

exports! {
    fn cuGetProcAddress(symbol: Text, function: Out<Pointer>, _version: c_int, _flags: c_ulonglong) -> Status {
        let mut result = std::mem::MaybeUninit::new(1);
        let status = entry_point(symbol, function, Some(&mut result)).err().unwrap_or(SUCCESS);
        // SAFETY: `result` was created with a value, and `entry_point` only replaces it.
        if status == SUCCESS && unsafe { result.assume_init() } != 0 { NOT_FOUND } else { status }
    }
}

/// Writes an error's text, or null for an unknown error, whose other results programs must not read.
fn give_text(place: Out<*const c_char>, text: Result<&'static CStr, Status>) -> Result<(), Status> {
    place.give(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(|_| ())
}

/// Driver error of this number.
fn find_error(status: Status) -> Result<&'static Error, Status> {
    crate::errors::find(status).filter(|error| !error.driver.is_empty()).ok_or(INVALID_VALUE)
}
