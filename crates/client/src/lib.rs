//! A rank's side of a live run: the code that a rank's process links.
//!
//! In the order of a call: the [`Client`] speaks the protocol with the driver ([`thread_barrier`] in a process with several
//! threads; `quiescence` finds out whether these wait, `lanes` how long they computed, and a [`Capture`] which
//! operators they ran); tensors are staged in `rooms` of the arena; `processor` selects the CPU for waits; and
//! [`Timeline`] gives profilers the rank's times.

mod capture;
mod client;
mod lanes;
pub mod processor;
pub mod quiescence;
pub mod rooms;
mod timeline;

pub use capture::Capture;
pub use client::{Blocking, Client, ClientError, Delivered, Ran, Relative, Relay, thread_barrier};
pub use lanes::Meter;
pub use timeline::{Ticks, Timeline, ticks};

/// Makes the kernel kill this process when its parent dies; if the parent has already died, the process exits at once.
pub fn die_with_parent() {
    let parent = rustix::process::getppid();
    let asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    asked.expect("every Linux since 2.1.57 can do this");
    // The parent may have died just before, in which case this process has another parent.
    if rustix::process::getppid() != parent {
        std::process::exit(1);
    }
}
