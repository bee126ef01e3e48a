//! Owns the library that is loaded before the C library into programs that a rank's process starts: it puts them on the rank's clock before they begin.
//!
//! What stands in for the C library's functions then is `uniference-interpose`'s, as in the rank's own process; there it is part of the Python extension,
//! which other programs could not load.

// The dynamic linker runs what the section of constructors names.
#![allow(unsafe_code)]

/// Its memory is its own: a program's `malloc`, if it brings one, may read a clock while it works on its own books, as jemalloc does to give memory
/// back now and then, and must not be called from there.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn begin() {
        // What is left is a fork by a program of several threads whose allocator was there before: it then takes this lock before the allocator's, where a
        // thread that reads a clock within the allocator takes them in the other order.
        // SAFETY: this is the only call, and no other thread runs.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        uniference_interpose::family::join();
    }
    begin
};
