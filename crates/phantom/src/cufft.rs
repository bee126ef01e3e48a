//! Owns cuFFT: plans and their execution, by the functions with 64-bit sizes. `cufftXt.h` of CUDA 13 has the
//! prototypes. Transforms are not computed.

use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::streams::{self, Handle};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_longlong, c_void};
use std::slice::from_raw_parts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `cufftResult`.
type Status = c_int;
const SUCCESS: Status = 0;
const INVALID_PLAN: Status = 1;
const INVALID_VALUE: Status = 4;
const INVALID_SIZE: Status = 8;
const NOT_SUPPORTED: Status = 16;
type Pointer = *const c_void;

/// The plan of a `cufftHandle`, which is a number.
#[derive(Default)]
struct Plan {
    /// `cudaStream_t`, as a number.
    stream: usize,
    /// Name and bytes of the launch; `None` until the plan is made.
    launch: Option<(String, u64)>,
}

static PLANS: Mutex<BTreeMap<c_int, Plan>> = Mutex::new(BTreeMap::new());

exports! {
    fn cufftCreate(handle: Out<c_int>) -> Status {
        let mut plans = plans();
        let number = plans.last_key_value().map_or(1, |(last, _)| last + 1);
        plans.insert(number, Plan::default());
        if handle.put(number) { SUCCESS } else { INVALID_VALUE }
    }
    fn cufftDestroy(handle: c_int) -> Status { plans().remove(&handle).map_or(INVALID_PLAN, |_| SUCCESS) }
    fn cufftGetVersion(version: Out<c_int>) -> Status { if version.put(12_200) { SUCCESS } else { INVALID_VALUE } }
    fn cufftSetAutoAllocation(handle: c_int, _allocates: c_int) -> Status { with(handle, |_| SUCCESS) }
    fn cufftSetWorkArea(handle: c_int, _area: Pointer) -> Status { with(handle, |_| SUCCESS) }
    fn cufftSetStream(handle: c_int, stream: Handle) -> Status {
        with(handle, |plan| { plan.stream = stream as usize; SUCCESS })
    }
    /// Makes a plan. The work area holds a copy of the transformed data: an upper bound for sizes without large prime
    /// factors.
    fn cufftXtMakePlanMany(
        handle: c_int, rank: c_int, sizes: *const c_longlong, _in_embedding: Pointer, _in_stride: c_longlong, _in_distance: c_longlong,
        in_kind: c_int, _out_embedding: Pointer, _out_stride: c_longlong, _out_distance: c_longlong, out_kind: c_int, batch: c_longlong,
        work: Out<usize>, _kind: c_int,
    ) -> Status {
        if !(1..=3).contains(&rank) || sizes.is_null() {
            return INVALID_SIZE;
        }
        // SAFETY: cuFFT requires that `sizes` has `rank` elements.
        let sizes = unsafe { from_raw_parts(sizes, rank as usize) };
        let (Some(from), Some(to)) = (Kind::of_cuda(in_kind), Kind::of_cuda(out_kind)) else { return NOT_SUPPORTED };
        let elements = sizes.iter().chain([&batch]).map(|&size| u64::try_from(size).unwrap_or(0)).product();
        let shape = sizes.iter().map(c_longlong::to_string).collect::<Vec<_>>().join("x");
        with(handle, |plan| {
            plan.launch = Some((format!("cufft {}->{} {shape} batch {batch}", from.name, to.name), from.bytes(elements) + to.bytes(elements)));
            work.put(from.bytes(elements).max(to.bytes(elements)) as usize);
            SUCCESS
        })
    }
    fn cufftXtExec(handle: c_int, _input: Pointer, _output: Pointer, _direction: c_int) -> Status {
        with(handle, |plan| match &plan.launch {
            Some((name, bytes)) => {
                streams::launch(plan.stream as Handle, name, *bytes);
                SUCCESS
            }
            None => INVALID_PLAN,
        })
    }
}

fn plans() -> MutexGuard<'static, BTreeMap<c_int, Plan>> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with(handle: c_int, act: impl FnOnce(&mut Plan) -> Status) -> Status {
    plans().get_mut(&handle).map_or(INVALID_PLAN, act)
}
