//! Owns the opening of a TUN device: a network interface whose packets this process reads and writes.

// Attaching the descriptor to an interface is an `ioctl` without a safe wrapper.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;

/// `TUNSETIFF` of linux/if_tun.h.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// `TUNSETOFFLOAD` of linux/if_tun.h.
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
/// `IFF_TUN`: packets start at their IP header. `IFF_NO_PI`, `IFF_VNET_HDR`: only `struct virtio_net_hdr` precedes it.
const FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;
/// `TUN_F_CSUM`, `TUN_F_TSO4`: checksums are not computed, and TCP segments are not split into packets.
const OFFLOAD: usize = 0x01 | 0x02;
/// `IFNAMSIZ` of linux/if.h.
const NAME_BYTES: usize = 16;

/// `struct ifreq` of linux/if.h, with the flags of its union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

struct Attach(InterfaceRequest);

// SAFETY: the opcode belongs to the structure, which outlives the call; the kernel writes at most the structure.
unsafe impl Ioctl for Attach {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        TUNSETIFF
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Creates the interface `name` in the calling thread's network namespace. Reads and writes are of frames
/// ([`super::frame`]), and do not block.
pub(super) fn open(name: &str) -> io::Result<OwnedFd> {
    assert!(name.len() < NAME_BYTES, "{name} is no interface's name");
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: FLAGS, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the opcode of `Attach` reads and writes a structure of its type, which lives during the call.
    unsafe { rustix::ioctl::ioctl(&device, Attach(request)) }?;
    // SAFETY: the argument of this opcode is an integer with flags.
    unsafe { rustix::ioctl::ioctl(&device, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOAD)) }?;
    Ok(device)
}
