//! Owns inspections of the stack: the caller's caller, and the library that contains an address.
//!
//! The distance on the stack between a call's return address and the caller's own return address is the size of the
//! caller's frame, which is equal for all calls from one place. It is determined with the unwinder at the first call
//! from that place. The size is constant only for functions that do not allocate on the stack dynamically;
//! `interpreter` inspects only such functions.

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Maximum number of known call sites; the interpreter and the C++ library have two or three each.
const PLACES: usize = 16;

/// The address `from` in the caller's code, and the distance on the stack from `from` to the caller's own return
/// address; `None`: the distance cannot be determined.
type Place = (usize, Option<usize>);

static KNOWN: [OnceLock<Place>; PLACES] = [const { OnceLock::new() }; PLACES];

/// The return address of the function that has called this library; 0 if unknown. This library will return to `from`,
/// which is on the stack at `stack`.
pub(crate) fn caller_of(from: usize, stack: usize) -> usize {
    for place in &KNOWN {
        let (address, distance) = *place.get_or_init(|| (from, find(from, stack)));
        if address == from {
            // SAFETY: the frame at this call site has this size, and belongs to a function that has not returned.
            return distance.map_or(0, |distance| unsafe { *((stack + distance) as *const usize) });
        }
    }
    0
}

fn find(from: usize, stack: usize) -> Option<usize> {
    let mut search = Search { from, found: false, slot: None };
    // SAFETY: the callback has the declared signature, and `search` outlives the call.
    unsafe { _Unwind_Backtrace(look, (&raw mut search).cast()) };
    search.slot.and_then(|slot| slot.checked_sub(stack))
}

/// Innermost return address on the stack that is outside of this library; 0 if there is none.
pub(crate) fn outer_caller() -> usize {
    static OWN: OnceLock<Option<usize>> = OnceLock::new();
    extern "C" fn look(frame: *mut c_void, found: *mut c_void) -> c_int {
        let own = OWN.get_or_init(|| library_of(outer_caller as *const () as usize).map(|library| library.base));
        // SAFETY: `frame` is valid during the callback, and `found` points to the `usize` that `outer_caller` passes.
        let (address, found) = unsafe { (_Unwind_GetIP(frame), &mut *found.cast::<usize>()) };
        if library_of(address).map(|library| library.base) == *own {
            return GO_ON;
        }
        *found = address;
        STOP
    }
    let mut found = 0_usize;
    // SAFETY: `look` has the signature of an unwinder callback, and `found` outlives the call.
    unsafe { _Unwind_Backtrace(look, (&raw mut found).cast()) };
    found
}

/// A loaded library, or the program itself.
pub(crate) struct Library {
    pub(crate) base: usize,
    pub(crate) file: &'static CStr,
}

/// Library that contains `address`, if it is known.
pub(crate) fn library_of(address: usize) -> Option<Library> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` fills the structure if its result is not 0; the linker's text lives as long as the library.
    unsafe {
        let is_known = libc::dladdr(address as *const c_void, found.as_mut_ptr()) != 0;
        is_known.then(|| {
            let found = found.assume_init();
            Library { base: found.dli_fbase as usize, file: CStr::from_ptr(found.dli_fname) }
        })
    }
}

struct Search {
    from: usize,
    found: bool,
    /// Position on the stack of the caller's own return address.
    slot: Option<usize>,
}

const GO_ON: c_int = 0;
const STOP: c_int = 5;

extern "C" fn look(frame: *mut c_void, search: *mut c_void) -> c_int {
    // SAFETY: `find` has passed a `Search`, which lives, and is used by nothing else, during the walk.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the unwinder passes its description of the frame, which lives during the callback.
    let (address, above) = unsafe { (_Unwind_GetIP(frame), _Unwind_GetCFA(frame)) };
    if search.found {
        let slot = above - size_of::<usize>();
        // SAFETY: the address is on this thread's stack, below the frame that the unwinder has found.
        search.slot = (unsafe { *(slot as *const usize) } == address).then_some(slot);
        return STOP;
    }
    search.found = address == search.from;
    GO_ON
}

// Functions of the unwinder, to which every Rust program is linked.
unsafe extern "C" {
    fn _Unwind_Backtrace(look: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
    fn _Unwind_GetCFA(frame: *mut c_void) -> usize;
}
