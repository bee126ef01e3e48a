//! Owns the library that is loaded before the C library into programs that a rank's process starts: it puts these
//! programs on the rank's clock before they begin.
//!
//! `uniference-interpose` replaces the C library's functions, as in the rank's own process, where it is part of the
//! Python extension, which other programs could not load.

// The dynamic linker runs the functions in the section of constructors.
#![allow(unsafe_code)]

/// The library has an allocator of its own: a program's own `malloc` may read a clock during its bookkeeping, as
/// jemalloc does to return memory from time to time, and must not be called during that.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn begin() {
        // SAFETY: the function only registers handlers of forks, which hold the allocator's lock during a fork, so the
        // child finds the allocator consistent. It is called once, before `main`.
        //
        // One case remains: a fork by a program with several threads whose allocator was loaded earlier. The fork
        // acquires this lock before the allocator's, while a thread that reads a clock within the allocator acquires
        // them in the other order.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        uniference_interpose::family::join();
    }
    begin
};
