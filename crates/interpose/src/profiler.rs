//! Owns the clock of PyTorch's profiler: the class of libc10 (`c10::ApproximateClockToUnixTimeConverter`,
//! c10/util/ApproximateClock.h) that converts readings of the CPU's cycle counter to dates.
//!
//! The profiler reads the counter at each operator, which costs nothing, and requests a conversion from readings to
//! dates at its end. PyTorch's own conversion is linear between the dates at the beginning and at the end; but a rank's
//! clock jumps while the counter does not advance, and the reverse. The conversion of this module therefore passes
//! through all moments at which both values are known ([`Timeline`]). The library of simulated GPUs uses the unit of
//! the counter for its times ([`PROFILER_DATES`]), so CPU and GPU times are on one clock.
//!
//! The dynamic linker finds these functions before libc10's, as it finds this crate's replacements of C library
//! functions. Objects that do not belong to a rank's profile, such as the CUDA allocator's object created at library
//! load, are left to libc10.

use crate::{EPOCH_S, PS_PER_NS, answered, interpreter, program};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use uniference_abi::gpus::PROFILER_DATES;
use uniference_client::{Client, ClientError, Ticks, Timeline};

/// Addresses of the objects that belong to profiles of this rank.
static PROFILES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// `std::function<int64_t(uint64_t)>` of libstdc++, unchanged since GCC 5: two words of state and two functions.
#[repr(C)]
pub struct Converter {
    /// The first word is the `Arc<Timeline>` that this module has put there.
    state: [usize; 2],
    manage: unsafe extern "C" fn(to: *mut [usize; 2], from: *const [usize; 2], operation: u32) -> bool,
    call: unsafe extern "C" fn(state: *const [usize; 2], reading: *const Ticks) -> i64,
}

impl Converter {
    fn new(timeline: Timeline) -> Converter {
        let state = [Arc::into_raw(Arc::new(timeline)) as usize, 0];
        Converter { state, manage, call }
    }
}

/// The constructor of the class.
///
/// # Safety
/// The contract is libc10's.
#[unsafe(export_name = "_ZN3c1035ApproximateClockToUnixTimeConverterC1Ev")]
pub unsafe extern "C" fn construct(this: *mut c_void) {
    // In a process that a rank has started, PyTorch's own conversion is used.
    if let Some(client) = program().filter(|client| client.relay().is_none())
        && asked(client, Client::begin_timeline).is_some()
    {
        // The object's fields, which libc10 would fill, are never read, because `make` replaces libc10's function.
        PROFILES.lock().unwrap_or_else(PoisonError::into_inner).insert(this as usize);
        return;
    }
    if let Some(real) = real(c"_ZN3c1035ApproximateClockToUnixTimeConverterC1Ev") {
        // SAFETY: libc10's function of this name has this signature; the rest is the caller's.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(real)(this) }
    }
}

/// `makeConverter` of the class, which its callers call once per profile.
///
/// # Safety
/// The contract is libc10's.
#[unsafe(export_name = "_ZN3c1035ApproximateClockToUnixTimeConverter13makeConverterEv")]
pub unsafe extern "C" fn make(this: *mut c_void) -> Converter {
    let is_ours = PROFILES.lock().unwrap_or_else(PoisonError::into_inner).remove(&(this as usize));
    if is_ours && let Some(timeline) = program().and_then(|client| asked(client, Client::end_timeline)) {
        return Converter::new(timeline);
    }
    let real = real(c"_ZN3c1035ApproximateClockToUnixTimeConverter13makeConverterEv");
    let real = real.expect("its callers are linked with libc10");
    // SAFETY: libc10's function of this name has this signature; the rest is the caller's.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> Converter>(real)(this) }
}

/// Implements the operations of `std::function` on its target (`_Manager_operation`): 2 copies the target, 3 destroys
/// it, others ask for its type.
unsafe extern "C" fn manage(to: *mut [usize; 2], from: *const [usize; 2], operation: u32) -> bool {
    // SAFETY: `std::function` passes states that `Converter::new` has filled.
    unsafe {
        match operation {
            2 => {
                Arc::increment_strong_count((*from)[0] as *const Timeline);
                *to = *from;
            }
            3 => drop(Arc::from_raw((*to)[0] as *const Timeline)),
            // A request for the type of the callable gets a null pointer: the type is not revealed.
            _ => (*to)[0] = 0,
        }
    }
    false
}

/// The date at a reading, in nanoseconds since 1970.
unsafe extern "C" fn call(state: *const [usize; 2], reading: *const Ticks) -> i64 {
    // SAFETY: `std::function` passes states that `Converter::new` has filled, and a reading that exists during the
    // call.
    let (timeline, reading) = unsafe { (&*((*state)[0] as *const Timeline), *reading) };
    match reading.checked_sub(PROFILER_DATES) {
        Some(date) => date as i64,
        None => EPOCH_S * 1_000_000_000 + (timeline.at(reading).as_ps() / PS_PER_NS) as i64,
    }
}

/// Asks the rank's client without the interpreter's lock, because other threads may have to send operations first.
fn asked<T>(client: &Client, question: impl FnOnce(&Client) -> Result<T, ClientError>) -> Option<T> {
    let holds_lock = |interpreter: &&interpreter::Interpreter| client.has_threads() && interpreter.has_lock();
    answered(match interpreter::get().filter(holds_lock) {
        Some(interpreter) => interpreter.without_lock(|| question(client)),
        None => question(client),
    })
}

fn real(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both names end with a zero; libc10 is already loaded, or does not exist.
    let found = unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies, calls and destroys the target like `std::function`.
    #[test]
    fn a_converter_lives_as_long_as_its_copies() {
        let timeline = Arc::new(Timeline::of([(100, 0), (200, 50_000)]));
        let one = Converter { state: [Arc::into_raw(timeline.clone()) as usize, 0], manage, call };
        let mut other = [0; 2];
        // SAFETY: `one` is a converter with a state of its own; `other` is copied from it before it is used.
        unsafe {
            (one.manage)(&raw mut other, &raw const one.state, 2);
            assert_eq!(Arc::strong_count(&timeline), 3);
            // 50 ns pass in 100 ticks.
            assert_eq!((one.call)(&raw const other, &150), EPOCH_S * 1_000_000_000 + 25);
            // A date, in contrast to ticks, is not converted.
            assert_eq!((one.call)(&raw const other, &(PROFILER_DATES + 7)), 7);
            (one.manage)(&raw mut other, std::ptr::null(), 3);
            let mut state = one.state;
            (one.manage)(&raw mut state, std::ptr::null(), 3);
        }
        assert_eq!(Arc::strong_count(&timeline), 1);
    }
}
