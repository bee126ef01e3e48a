//! Owns the library that is loaded before the C library into programs that a rank's process starts: it puts them on the rank's clock before they begin.
//!
//! What stands in for the C library's functions then is `uniference-interpose`'s, as in the rank's own process; there it is part of the Python extension,
//! which other programs could not load.

// The dynamic linker runs what the section of constructors names.
#![allow(unsafe_code)]

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = uniference_interpose::family::join;
