//! Owns the attachment of simulated GPUs to a rank's process, by a function of the simulated GPU library, which the
//! process has loaded.

// The library's functions are called by address.
#![allow(unsafe_code)]

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ffi::{CString, c_char, c_void};
use uniference_abi::VERSION;
use uniference_abi::gpus::{ATTACH, Attach, Communication, Device, Devices, Link};

/// A `uniference_host::live::phantom::Gpu` in Python's types.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Gpu {
    name: String,
    capability: [u32; 2],
    multiprocessors: u32,
    memory: u64,
    context: u64,
    bandwidth: u64,
    clock: u32,
    memory_clock: u32,
    memory_bus: u32,
    l2: u64,
    pci: [u32; 3],
    uuid: [u8; 16],
    reaches_peers: bool,
}

/// Attaches the GPUs of the host to this process; `own` is the index of its rank's GPU. `link` and `communication`:
/// addresses of a `Link` and a `Communication`, or 0 for none.
#[pyfunction]
#[pyo3(signature = (own, gpus, link=0, communication=0))]
pub(crate) fn attach_gpus(own: u32, gpus: Vec<Gpu>, link: usize, communication: usize) -> PyResult<()> {
    let name = CString::new(ATTACH).expect("a name without zeros");
    // SAFETY: the call only looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(PyRuntimeError::new_err("the library of simulated GPUs was not loaded before torch"));
    }
    // SAFETY: the library's function of this name has this type in all versions.
    let attach = unsafe { std::mem::transmute::<*mut c_void, Attach>(found) };
    let devices: Vec<Device> = gpus.iter().map(device).collect();
    let peers: Vec<u8> = gpus
        .iter()
        .flat_map(|one| gpus.iter().map(|other| u8::from(one.reaches_peers && other.reaches_peers)))
        .collect();
    let all = Devices {
        version: VERSION,
        count: devices.len() as u32,
        own,
        devices: devices.as_ptr(),
        peers: peers.as_ptr(),
    };
    // SAFETY: the lists are as long as the structure says; a link that is not null was made by this extension, and stays.
    match unsafe { attach(&raw const all, link as *const Link, communication as *const Communication) } {
        0 => Ok(()),
        1 => Err(PyRuntimeError::new_err("the library of simulated GPUs is of another version than uniference")),
        error => {
            Err(PyRuntimeError::new_err(format!("the library of simulated GPUs cannot be given devices ({error})")))
        }
    }
}

fn device(gpu: &Gpu) -> Device {
    let mut name = [0; 256];
    gpu.name.bytes().take(255).zip(&mut name).for_each(|(byte, place)| *place = byte as c_char);
    Device {
        name,
        capability: gpu.capability,
        multiprocessors: gpu.multiprocessors,
        memory: gpu.memory,
        context: gpu.context,
        bandwidth: gpu.bandwidth,
        clock: gpu.clock,
        memory_clock: gpu.memory_clock,
        memory_bus: gpu.memory_bus,
        l2: gpu.l2,
        pci: gpu.pci,
        uuid: gpu.uuid,
    }
}
