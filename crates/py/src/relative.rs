//! Owns the constructor by which Python interpreters that a rank's process has started use the rank's clock from their
//! beginning; `uniference-relative` is its counterpart for other programs.
//!
//! Such interpreters load this extension before the C library, so that Python and the replaced functions have the same
//! client.

// The dynamic linker calls the functions in the section of constructors.
#![allow(unsafe_code)]

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = uniference_interpose::family::join;
