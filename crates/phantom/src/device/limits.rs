//! Owns the device limits that a program can set through the runtime or the driver.

use crate::errors::{INVALID_VALUE, NO_DEVICE, Status, UNSUPPORTED_LIMIT};
use std::sync::{Mutex, PoisonError};

/// Stack size, `printf` buffer, heap, two limits that devices of compute capability 9 and later do not have, fetch
/// granularity of the L2 cache, and its persisting part. The values are the driver's defaults (CUDA Runtime API,
/// `cudaDeviceGetLimit`).
static LIMITS: Mutex<[Option<usize>; 7]> =
    Mutex::new([Some(1024), Some(1 << 20), Some(8 << 20), None, None, Some(64), Some(0)]);

pub(crate) fn get(limit: i32) -> Result<usize, Status> {
    if crate::device::count() == 0 {
        return Err(NO_DEVICE);
    }
    let limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    limits.get(limit as usize).ok_or(INVALID_VALUE)?.ok_or(UNSUPPORTED_LIMIT)
}

pub(crate) fn set(limit: i32, value: usize) -> Result<(), Status> {
    get(limit)?;
    LIMITS.lock().unwrap_or_else(PoisonError::into_inner)[limit as usize] = Some(value);
    Ok(())
}
