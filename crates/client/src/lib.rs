//! A rank's side of a live run: what the process of a rank links.
//!
//! In the order in which a call travels: the [`Client`] speaks the protocol with the driver ([`rounds`] where the process has several
//! threads, which wait when `quiescence` says so; `lanes` says how long they computed, a [`Capture`] which operators they ran); tensors are staged in `rooms` of the arena,
//! `processor` says where to wait, and [`Timeline`] tells profilers when things were.

mod capture;
mod client;
mod lanes;
pub mod processor;
pub mod quiescence;
pub mod rooms;
mod timeline;

pub use capture::Capture;
pub use client::{Blocking, Client, ClientError, Delivered, Ran, Relative, Relay, rounds};
pub use lanes::Meter;
pub use timeline::{Ticks, Timeline, ticks};

/// The kernel kills this process when its parent dies; if that has already happened, it ends at once.
pub fn die_with_parent() {
    let parent = rustix::process::getppid();
    let asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    asked.expect("every Linux since 2.1.57 can do this");
    // The parent may have died just before, in which case this process was handed to another one.
    if rustix::process::getppid() != parent {
        std::process::exit(1);
    }
}
