//! Owns the clock of PyTorch's profiler: the class of libc10 (`c10::ApproximateClockToUnixTimeConverter`, c10/util/ApproximateClock.h) that turns readings of
//! the processor's counter into dates.
//!
//! The profiler reads the counter at each operator, which costs nothing, and asks for a way from readings to dates when it ends. PyTorch's own way is a straight
//! line between the dates at the beginning and at the end; but a rank's clock leaps where the counter stands still, and the reverse. So here the way leads
//! through all moments at which both are known ([`Timeline`]). What the processor's counter is to the profiler's CPU times, the library of simulated GPUs has in
//! the same unit ([`PROFILER_DATES`]), so both are on one clock.
//!
//! The dynamic linker finds these functions before libc10's, as it does those of the C library. Objects that are not a rank's profile, as the one of the CUDA
//! allocator that is made when its library is loaded, are libc10's business.

use crate::{EPOCH_S, PS_PER_NS, answered, interpreter, program};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use uniference_abi::gpus::PROFILER_DATES;
use uniference_client::{Client, ClientError, Ticks, Timeline};

/// Addresses of the objects that are a profile of this rank's.
static PROFILES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// `std::function<int64_t(uint64_t)>` of libstdc++, as it has been since GCC 5: two words of state and two functions.
#[repr(C)]
pub struct Converter {
    /// The first is an `Arc<Timeline>` of ours.
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

/// The constructor.
///
/// # Safety
/// As in libc10.
#[unsafe(export_name = "_ZN3c1035ApproximateClockToUnixTimeConverterC1Ev")]
pub unsafe extern "C" fn construct(this: *mut c_void) {
    // In a process that a rank has started, the way is PyTorch's own.
    if let Some(client) = program().filter(|client| client.relay().is_none())
        && asked(client, Client::begin_timeline).is_some()
    {
        // What libc10 keeps in the object is not read where `make` is ours.
        PROFILES.lock().unwrap_or_else(PoisonError::into_inner).insert(this as usize);
        return;
    }
    if let Some(real) = real(c"_ZN3c1035ApproximateClockToUnixTimeConverterC1Ev") {
        // SAFETY: libc10's function of this name has this signature; the rest is the caller's.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(real)(this) }
    }
}

/// `makeConverter`, which its callers call once for each profile.
///
/// # Safety
/// As in libc10.
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

/// The operations that `std::function` asks its target for (`_Manager_operation`): 2 copies it, 3 destroys it, others ask for its type.
unsafe extern "C" fn manage(to: *mut [usize; 2], from: *const [usize; 2], operation: u32) -> bool {
    // SAFETY: `std::function` passes states that hold what `Converter::new` has put there.
    unsafe {
        match operation {
            2 => {
                Arc::increment_strong_count((*from)[0] as *const Timeline);
                *to = *from;
            }
            3 => drop(Arc::from_raw((*to)[0] as *const Timeline)),
            // Nobody is told of the type: a null pointer.
            _ => (*to)[0] = 0,
        }
    }
    false
}

/// The date at a reading, in nanoseconds since 1970.
unsafe extern "C" fn call(state: *const [usize; 2], reading: *const Ticks) -> i64 {
    // SAFETY: the same; the reading is there during the call.
    let (timeline, reading) = unsafe { (&*((*state)[0] as *const Timeline), *reading) };
    match reading.checked_sub(PROFILER_DATES) {
        Some(date) => date as i64,
        None => EPOCH_S * 1_000_000_000 + (timeline.at(reading).as_ps() / PS_PER_NS) as i64,
    }
}

/// Asks the rank's client without the interpreter's lock, as other threads may have to say something first.
fn asked<T>(client: &Client, question: impl FnOnce(&Client) -> Result<T, ClientError>) -> Option<T> {
    let holds_lock = |interpreter: &&interpreter::Interpreter| client.has_threads() && interpreter.has_lock();
    answered(match interpreter::get().filter(holds_lock) {
        Some(interpreter) => interpreter.without_lock(|| question(client)),
        None => question(client),
    })
}

fn real(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both names end with a zero; libc10 is loaded already, or there is none.
    let found = unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `std::function` copies, calls and destroys its target.
    #[test]
    fn a_converter_lives_as_long_as_its_copies() {
        let timeline = Arc::new(Timeline::of([(100, 0), (200, 50_000)]));
        let one = Converter { state: [Arc::into_raw(timeline.clone()) as usize, 0], manage, call };
        let mut other = [0; 2];
        // SAFETY: the states are those of converters.
        unsafe {
            (one.manage)(&raw mut other, &raw const one.state, 2);
            assert_eq!(Arc::strong_count(&timeline), 3);
            // 50 ns pass in 100 ticks.
            assert_eq!((one.call)(&raw const other, &150), EPOCH_S * 1_000_000_000 + 25);
            // What is a date already stays one.
            assert_eq!((one.call)(&raw const other, &(PROFILER_DATES + 7)), 7);
            (one.manage)(&raw mut other, std::ptr::null(), 3);
            let mut state = one.state;
            (one.manage)(&raw mut state, std::ptr::null(), 3);
        }
        assert_eq!(Arc::strong_count(&timeline), 1);
    }
}
