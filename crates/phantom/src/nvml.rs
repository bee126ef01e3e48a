//! Owns the functions of the management library (libnvidia-ml): PyTorch counts devices with it, other programs query
//! memory and topology.
//!
//! Before devices are attached, the variable [`DEVICES`] states their number, and nothing else is known of them.

use crate::attach::attached;
use crate::device::{self, bus_id, uuid};
use crate::exports::{Items, Out, Put, Text, exports};
use crate::memory;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use uniference_abi::gpus::{DEVICES, Device};

/// `nvmlReturn_t`.
type Status = c_int;

const INVALID_ARGUMENT: Status = 2;
const NOT_SUPPORTED: Status = 3;
const NOT_FOUND: Status = 6;

/// `nvmlDevice_t`.
type Handle = *mut c_void;

const HANDLE: usize = 0x64 << 40;

/// `nvmlPciInfo_t`.
#[repr(C)]
struct Pci {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    text: [c_char; 32],
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct MemoryWithReserved {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlGpuFabricInfo_v1_t`, a prefix of later versions.
#[repr(C)]
struct Fabric {
    version: c_uint,
    cluster: [u8; 16],
    status: Status,
    clique: c_uint,
    state: u8,
}

fn count() -> usize {
    let said = || std::env::var(DEVICES).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    attached().map_or_else(said, |attached| attached.devices.len())
}

fn handle(ordinal: usize) -> Handle {
    (HANDLE | ordinal << 4) as Handle
}

fn ordinal(handle: Handle) -> Result<usize, Status> {
    let ordinal = (handle as usize).checked_sub(HANDLE).ok_or(INVALID_ARGUMENT)? >> 4;
    if ordinal < count() { Ok(ordinal) } else { Err(INVALID_ARGUMENT) }
}

/// Ordinal and properties of a device, once devices are attached.
fn known(handle: Handle) -> Result<(usize, &'static Device), Status> {
    let ordinal = ordinal(handle)?;
    attached().map(|attached| (ordinal, &attached.devices[ordinal])).ok_or(NOT_SUPPORTED)
}

fn give<T>(place: Out<T>, value: T) -> Result<(), Status> {
    if place.put(value) { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

fn write(place: Items<c_char>, text: &str, room: c_uint) -> Result<(), Status> {
    // 7 (`NVML_ERROR_INSUFFICIENT_SIZE`): the buffer is too small.
    if text.len() >= room as usize {
        Err(7)
    } else {
        place.write_text(text, room as usize).map_err(|_| INVALID_ARGUMENT)
    }
}

fn name(device: &Device) -> String {
    let bytes: Vec<u8> = device.name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Total, free and used bytes.
fn bytes(of: Handle) -> Result<[c_ulonglong; 3], Status> {
    let (number, device) = known(of)?;
    let Some(ordinal) = device::ordinal(number) else { return Ok([device.memory, device.memory, 0]) };
    let (free, total) = memory::info(ordinal).map_err(|_| NOT_SUPPORTED)?;
    Ok([total, free, total - free])
}

fn text<const N: usize>(value: &str) -> [c_char; N] {
    let mut text = [0; N];
    value.bytes().take(N - 1).enumerate().for_each(|(i, byte)| text[i] = byte as c_char);
    text
}

fn pci(of: Handle) -> Result<Pci, Status> {
    let device = known(of)?.1;
    let [domain, bus, slot] = device.pci;
    // The domain has eight digits, as `nvmlDeviceGetPciInfo_v3` writes it.
    let long = format!("{domain:08X}:{bus:02X}:{slot:02X}.0");
    Ok(Pci { legacy: text(&bus_id(device)), domain, bus, device: slot, id: 0, subsystem: 0, text: text(&long) })
}

/// Declares NVML functions: the body returns `Result<(), Status>`.
macro_rules! nvml {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> Status {
                fn body($($argument: $type),*) -> Result<(), Status> $body
                body($($argument),*).err().unwrap_or(0)
            }
        )*
    };
}

/// `nvmlConfComputeSystemState_t`: no confidential computing.
#[repr(C)]
#[derive(Default)]
struct ConfComputeState {
    environment: c_uint,
    feature: c_uint,
    tools: c_uint,
}

/// `nvmlSystemConfComputeSettings_v1_t`: no confidential computing.
#[repr(C)]
struct ConfComputeSettings {
    /// Version of the structure, which the caller sets.
    version: c_uint,
    state: ConfComputeState,
    multi_gpu: c_uint,
}

nvml! {
    fn nvmlInit() { Ok(()) }
    fn nvmlInit_v2() { Ok(()) }
    fn nvmlInitWithFlags(_flags: c_uint) { Ok(()) }
    fn nvmlShutdown() { Ok(()) }
    fn nvmlDeviceGetCount(number: Out<c_uint>) { give(number, count() as c_uint) }
    fn nvmlDeviceGetCount_v2(number: Out<c_uint>) { give(number, count() as c_uint) }
    fn nvmlDeviceGetHandleByIndex(index: c_uint, place: Out<Handle>) { by_index(index, place) }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, place: Out<Handle>) { by_index(index, place) }
    fn nvmlDeviceGetHandleByPciBusId(at: Text, place: Out<Handle>) { by_bus(at, place) }
    fn nvmlDeviceGetHandleByPciBusId_v2(at: Text, place: Out<Handle>) { by_bus(at, place) }
    fn nvmlDeviceGetHandleByUUID(id: Text, place: Out<Handle>) {
        let id = id.get().ok_or(INVALID_ARGUMENT)?;
        let found = attached().and_then(|attached| attached.devices.iter().position(|device| uuid(device) == id));
        give(place, handle(found.ok_or(NOT_FOUND)?))
    }
    fn nvmlDeviceGetIndex(of: Handle, index: Out<c_uint>) { give(index, ordinal(of)? as c_uint) }
    fn nvmlDeviceGetMinorNumber(of: Handle, number: Out<c_uint>) { give(number, ordinal(of)? as c_uint) }
    fn nvmlDeviceGetName(of: Handle, place: Items<c_char>, room: c_uint) { write(place, &name(known(of)?.1), room) }
    fn nvmlDeviceGetUUID(of: Handle, place: Items<c_char>, room: c_uint) { write(place, &uuid(known(of)?.1), room) }
    fn nvmlDeviceGetPciInfo_v3(of: Handle, place: Out<Pci>) { give(place, pci(of)?) }
    fn nvmlDeviceGetPciInfo_v2(of: Handle, place: Out<Pci>) { give(place, pci(of)?) }
    fn nvmlDeviceGetMemoryInfo(of: Handle, place: Out<[c_ulonglong; 3]>) { give(place, bytes(of)?) }
    fn nvmlDeviceGetMemoryInfo_v2(of: Handle, place: Option<&mut MemoryWithReserved>) {
        let [total, free, used] = bytes(of)?;
        let place = place.ok_or(INVALID_ARGUMENT)?;
        (place.total, place.reserved, place.free, place.used) = (total, 0, free, used);
        Ok(())
    }
    fn nvmlDeviceGetCudaComputeCapability(of: Handle, major: Out<c_int>, minor: Out<c_int>) {
        let [high, low] = known(of)?.1.capability;
        give(major, high as c_int)?;
        give(minor, low as c_int)
    }
    fn nvmlSystemGetConfComputeState(state: Out<ConfComputeState>) { give(state, ConfComputeState::default()) }
    fn nvmlSystemGetConfComputeSettings(settings: Option<&mut ConfComputeSettings>) {
        let settings = settings.ok_or(INVALID_ARGUMENT)?;
        (settings.state, settings.multi_gpu) = (ConfComputeState::default(), 0);
        Ok(())
    }
    fn nvmlDeviceGetP2PStatus(one: Handle, other: Handle, _kind: c_int, status: Out<c_int>) {
        let (one, other) = (known(one)?.0, known(other)?.0);
        let reaches = one != other && attached().is_some_and(|attached| attached.reaches(one, other));
        // 0: supported; 4: not supported by the topology.
        give(status, if reaches { 0 } else { 4 })
    }
    fn nvmlDeviceGetGpuFabricInfoV(of: Handle, fabric: Option<&mut Fabric>) {
        known(of)?;
        let fabric = fabric.ok_or(INVALID_ARGUMENT)?;
        // State 0: memory cannot be shared through the fabric manager.
        (fabric.cluster, fabric.status, fabric.clique, fabric.state) = ([0; 16], 0, 0, 0);
        Ok(())
    }
    fn nvmlDeviceGetComputeRunningProcesses(of: Handle, number: Out<c_uint>, _processes: *mut c_void) { known(of)?; give(number, 0) }
    fn nvmlDeviceGetComputeRunningProcesses_v3(of: Handle, number: Out<c_uint>, _processes: *mut c_void) { known(of)?; give(number, 0) }
    fn nvmlSystemGetDriverVersion(place: Items<c_char>, room: c_uint) { write(place, DRIVER, room) }
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) { give(version, device::VERSION) }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) { give(version, device::VERSION) }
    fn nvmlSystemGetNVMLVersion(place: Items<c_char>, room: c_uint) { write(place, "13.595.45.04", room) }
}

/// Driver version that comes with CUDA 13.2 (CUDA Toolkit release notes, "CUDA Driver").
const DRIVER: &str = "595.45.04";

fn by_index(index: c_uint, place: Out<Handle>) -> Result<(), Status> {
    let index = index as usize;
    if index < count() { give(place, handle(index)) } else { Err(INVALID_ARGUMENT) }
}

fn by_bus(at: Text, place: Out<Handle>) -> Result<(), Status> {
    let found = device::at_bus(at.get().ok_or(INVALID_ARGUMENT)?).ok_or(NOT_FOUND)?;
    give(place, handle(found))
}

exports! {
    fn nvmlErrorString(status: Status) -> *const c_char {
        let text: &CStr = match status {
            0 => c"Success",
            1 => c"Uninitialized",
            INVALID_ARGUMENT => c"Invalid Argument",
            NOT_SUPPORTED => c"Not Supported",
            4 => c"Insufficient Permissions",
            NOT_FOUND => c"Not Found",
            7 => c"Insufficient Size",
            _ => c"Unknown Error",
        };
        text.as_ptr()
    }
}
