//! Owns that an interpreter which a rank's process has started is on the rank's clock before it begins, as other programs are by `uniference-child`.
//!
//! There this extension is loaded before the C library, so that the client which Python asks is that of the replaced functions.

// The dynamic linker runs what the section of constructors names.
#![allow(unsafe_code)]

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = uniference_interpose::family::join;
