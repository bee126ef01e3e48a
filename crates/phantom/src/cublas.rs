//! Owns cuBLAS: handles, GEMMs, and other routines that torch's linear algebra calls. `cublas_api.h` of CUDA 13 has the
//! prototypes.
//!
//! Results are not computed. Statuses of routines, on the device or on the host, are success; scalar results are zero.

use crate::exports::{Out, Put, exports, family};
use crate::kinds::{C64, C128, F32, F64, Kind};
use crate::matrices::Product;
use crate::streams::{self, Handle};
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

/// `cublasStatus_t`.
type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1;
pub(crate) const INVALID_VALUE: Status = 7;
pub(crate) const NOT_SUPPORTED: Status = 15;

/// A pointer to device memory, or to scalars.
type Pointer = *const c_void;
/// `cublasOperation_t`.
type Operation = c_int;

/// `cublasHandle_t`.
pub(crate) struct Library {
    stream: Handle,
    math_mode: c_int,
    /// `CUBLAS_POINTER_MODE_HOST` (0) or `_DEVICE` (1).
    pointer_mode: c_int,
    atomics_mode: c_int,
    multiprocessors: c_int,
}

/// A handle argument; `None`: a null pointer.
type Of<'a> = Option<&'a mut Library>;

/// cuBLAS 13.4.1, the version of the package from which the name table was made.
pub(crate) const VERSION: c_int = 130_401;

exports! {
    fn cublasCreate_v2(handle: Out<*mut Library>) -> Status {
        let library =
            Library { stream: std::ptr::null_mut(), math_mode: 0, pointer_mode: 0, atomics_mode: 0, multiprocessors: 0 };
        match handle {
            Some(place) => { place.write(Box::into_raw(Box::new(library))); SUCCESS }
            None => INVALID_VALUE,
        }
    }
    fn cublasDestroy_v2(handle: *mut Library) -> Status {
        if handle.is_null() {
            return NOT_INITIALIZED;
        }
        // SAFETY: the pointer comes from `cublasCreate_v2`, and cuBLAS forbids programs to use it after its
        // destruction.
        drop(unsafe { Box::from_raw(handle) });
        SUCCESS
    }
    fn cublasGetVersion_v2(_handle: Pointer, version: Out<c_int>) -> Status { wrote(version.put(VERSION)) }
    fn cublasGetProperty(kind: c_int, value: Out<c_int>) -> Status {
        match kind {
            0 => wrote(value.put(VERSION / 10_000)),
            1 => wrote(value.put(VERSION / 100 % 100)),
            2 => wrote(value.put(VERSION % 100)),
            _ => INVALID_VALUE,
        }
    }
    fn cublasGetStatusString(status: Status) -> *const c_char { describe(status).1.as_ptr() }
    fn cublasGetStatusName(status: Status) -> *const c_char { describe(status).0.as_ptr() }

    fn cublasSetStream_v2(handle: Of, stream: Handle) -> Status { with(handle, |library| library.stream = stream) }
    fn cublasGetStream_v2(handle: Of, stream: Out<Handle>) -> Status { get(handle, stream, |library| library.stream) }
    /// A workspace of the program counts as the program's memory; the library has no other.
    fn cublasSetWorkspace_v2(handle: Of, _workspace: Pointer, _size: usize) -> Status { with(handle, |_| ()) }
    fn cublasSetMathMode(handle: Of, mode: c_int) -> Status { with(handle, |library| library.math_mode = mode) }
    fn cublasGetMathMode(handle: Of, mode: Out<c_int>) -> Status { get(handle, mode, |library| library.math_mode) }
    fn cublasSetPointerMode_v2(handle: Of, mode: c_int) -> Status { with(handle, |library| library.pointer_mode = mode) }
    fn cublasGetPointerMode_v2(handle: Of, mode: Out<c_int>) -> Status { get(handle, mode, |library| library.pointer_mode) }
    fn cublasSetAtomicsMode(handle: Of, mode: c_int) -> Status { with(handle, |library| library.atomics_mode = mode) }
    fn cublasGetAtomicsMode(handle: Of, mode: Out<c_int>) -> Status { get(handle, mode, |library| library.atomics_mode) }
    fn cublasSetSmCountTarget(handle: Of, count: c_int) -> Status { with(handle, |library| library.multiprocessors = count) }
    fn cublasGetSmCountTarget(handle: Of, count: Out<c_int>) -> Status { get(handle, count, |library| library.multiprocessors) }

    fn cublasGemmEx(
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, a_kind: c_int,
        _lda: c_int, _b: Pointer, b_kind: c_int, _ldb: c_int, _beta: Pointer, _c: Pointer, c_kind: c_int, _ldc: c_int,
        _compute: c_int, _algorithm: c_int,
    ) -> Status {
        gemm(handle, [a_kind, b_kind, c_kind].map(Kind::of_cuda), [a_op, b_op], [m, n, k, 1])
    }
    fn cublasSgemmEx(
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, a_kind: c_int,
        _lda: c_int, _b: Pointer, b_kind: c_int, _ldb: c_int, _beta: Pointer, _c: Pointer, c_kind: c_int, _ldc: c_int,
    ) -> Status {
        gemm(handle, [a_kind, b_kind, c_kind].map(Kind::of_cuda), [a_op, b_op], [m, n, k, 1])
    }
    fn cublasGemmStridedBatchedEx(
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, a_kind: c_int,
        _lda: c_int, _a_stride: c_longlong, _b: Pointer, b_kind: c_int, _ldb: c_int, _b_stride: c_longlong, _beta: Pointer,
        _c: Pointer, c_kind: c_int, _ldc: c_int, _c_stride: c_longlong, batch: c_int, _compute: c_int, _algorithm: c_int,
    ) -> Status {
        gemm(handle, [a_kind, b_kind, c_kind].map(Kind::of_cuda), [a_op, b_op], [m, n, k, batch])
    }
    fn cublasGemmBatchedEx(
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, a_kind: c_int,
        _lda: c_int, _b: Pointer, b_kind: c_int, _ldb: c_int, _beta: Pointer, _c: Pointer, c_kind: c_int, _ldc: c_int,
        batch: c_int, _compute: c_int, _algorithm: c_int,
    ) -> Status {
        gemm(handle, [a_kind, b_kind, c_kind].map(Kind::of_cuda), [a_op, b_op], [m, n, k, batch])
    }
    fn cublasDotEx(
        handle: Of, n: c_int, _x: Pointer, kind: c_int, _incx: c_int, _y: Pointer, _y_kind: c_int, _incy: c_int,
        result: *mut c_void, result_kind: c_int, _execution: c_int,
    ) -> Status {
        match (Kind::of_cuda(kind), Kind::of_cuda(result_kind)) {
            (Some(kind), Some(to)) => dot(handle, kind, n, result, to),
            _ => NOT_SUPPORTED,
        }
    }
}

family! {
    cublasSgemm_v2 F32, cublasDgemm_v2 F64, cublasCgemm_v2 C64, cublasZgemm_v2 C128;
    kind => (
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, _lda: c_int, _b: Pointer,
        _ldb: c_int, _beta: Pointer, _c: Pointer, _ldc: c_int,
    ) -> Status {
        gemm(handle, [Some(kind); 3], [a_op, b_op], [m, n, k, 1])
    }
}

family! {
    cublasSgemmBatched F32, cublasDgemmBatched F64, cublasCgemmBatched C64, cublasZgemmBatched C128;
    kind => (
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, _lda: c_int, _b: Pointer,
        _ldb: c_int, _beta: Pointer, _c: Pointer, _ldc: c_int, batch: c_int,
    ) -> Status {
        gemm(handle, [Some(kind); 3], [a_op, b_op], [m, n, k, batch])
    }
}

family! {
    cublasSgemmStridedBatched F32, cublasDgemmStridedBatched F64, cublasCgemmStridedBatched C64, cublasZgemmStridedBatched C128;
    kind => (
        handle: Of, a_op: Operation, b_op: Operation, m: c_int, n: c_int, k: c_int, _alpha: Pointer, _a: Pointer, _lda: c_int,
        _a_stride: c_longlong, _b: Pointer, _ldb: c_int, _b_stride: c_longlong, _beta: Pointer, _c: Pointer, _ldc: c_int, _c_stride: c_longlong,
        batch: c_int,
    ) -> Status {
        gemm(handle, [Some(kind); 3], [a_op, b_op], [m, n, k, batch])
    }
}

family! {
    cublasSgemv_v2 F32, cublasDgemv_v2 F64, cublasCgemv_v2 C64, cublasZgemv_v2 C128;
    kind => (
        handle: Of, operation: Operation, m: c_int, n: c_int, _alpha: Pointer, _a: Pointer, _lda: c_int, _x: Pointer, _incx: c_int,
        _beta: Pointer, _y: Pointer, _incy: c_int,
    ) -> Status {
        routine(handle, "gemv", kind, &[operation_name(operation)], [m, n, 1], elements(m, n))
    }
}

family! {
    cublasSdot_v2 F32, cublasDdot_v2 F64, cublasCdotu_v2 C64, cublasCdotc_v2 C64, cublasZdotu_v2 C128, cublasZdotc_v2 C128;
    kind => (
        handle: Of, n: c_int, _x: Pointer, _incx: c_int, _y: Pointer, _incy: c_int, result: *mut c_void,
    ) -> Status {
        dot(handle, kind, n, result, kind)
    }
}

family! {
    cublasStrsm_v2 F32, cublasDtrsm_v2 F64, cublasCtrsm_v2 C64, cublasZtrsm_v2 C128;
    kind => (
        handle: Of, side: c_int, _uplo: c_int, operation: Operation, _diagonal: c_int, m: c_int, n: c_int, _alpha: Pointer, _a: Pointer,
        _lda: c_int, _b: Pointer, _ldb: c_int,
    ) -> Status {
        triangular(handle, kind, side, operation, [m, n, 1])
    }
}

family! {
    cublasStrsmBatched F32, cublasDtrsmBatched F64, cublasCtrsmBatched C64, cublasZtrsmBatched C128;
    kind => (
        handle: Of, side: c_int, _uplo: c_int, operation: Operation, _diagonal: c_int, m: c_int, n: c_int, _alpha: Pointer, _a: Pointer,
        _lda: c_int, _b: Pointer, _ldb: c_int, batch: c_int,
    ) -> Status {
        triangular(handle, kind, side, operation, [m, n, batch])
    }
}

// LU: pivots and statuses are in device memory.
family! {
    cublasSgetrfBatched F32, cublasDgetrfBatched F64, cublasCgetrfBatched C64, cublasZgetrfBatched C128;
    kind => (
        handle: Of, n: c_int, _a: Pointer, _lda: c_int, pivots: *mut c_int, info: *mut c_int, batch: c_int,
    ) -> Status {
        pivot(pivots, n, batch);
        went_well(info, batch);
        routine(handle, "getrf", kind, &[], [n, n, batch], elements(n, n))
    }
}

family! {
    cublasSgetrsBatched F32, cublasDgetrsBatched F64, cublasCgetrsBatched C64, cublasZgetrsBatched C128;
    kind => (
        handle: Of, operation: Operation, n: c_int, right: c_int, _a: Pointer, _lda: c_int, _pivots: Pointer, _b: Pointer, _ldb: c_int,
        info: *mut c_int, batch: c_int,
    ) -> Status {
        went_well(info, 1);
        routine(handle, "getrs", kind, &[operation_name(operation)], [n, right, batch], elements(n, n + 2 * right))
    }
}

family! {
    cublasSgeqrfBatched F32, cublasDgeqrfBatched F64, cublasCgeqrfBatched C64, cublasZgeqrfBatched C128;
    kind => (
        handle: Of, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, info: *mut c_int, batch: c_int,
    ) -> Status {
        went_well(info, 1);
        routine(handle, "geqrf", kind, &[], [m, n, batch], elements(m, n))
    }
}

family! {
    cublasSgelsBatched F32, cublasDgelsBatched F64, cublasCgelsBatched C64, cublasZgelsBatched C128;
    kind => (
        handle: Of, operation: Operation, m: c_int, n: c_int, right: c_int, _a: Pointer, _lda: c_int, _c: Pointer, _ldc: c_int, info: *mut
        c_int, each: *mut c_int, batch: c_int,
    ) -> Status {
        went_well(info, 1);
        went_well(each, batch);
        routine(handle, "gels", kind, &[operation_name(operation)], [m, n, batch], elements(m, n + right))
    }
}

pub(crate) fn wrote(written: bool) -> Status {
    if written { SUCCESS } else { INVALID_VALUE }
}

fn with(handle: Of, change: impl FnOnce(&mut Library)) -> Status {
    handle.map_or(NOT_INITIALIZED, |library| {
        change(library);
        SUCCESS
    })
}

fn get<T>(handle: Of, place: Out<T>, read: impl FnOnce(&Library) -> T) -> Status {
    handle.map_or(NOT_INITIALIZED, |library| wrote(place.put(read(library))))
}

/// Whether an operation is `CUBLAS_OP_T` or `CUBLAS_OP_C`.
pub(crate) fn is_transposed(operation: Operation) -> bool {
    operation != 0
}

fn operation_name(operation: Operation) -> &'static str {
    if is_transposed(operation) { "t" } else { "n" }
}

fn elements(rows: c_int, columns: c_int) -> u64 {
    size(rows) * size(columns)
}

/// A size argument; 0 for negative sizes, which were refused before or launch nothing.
fn size(count: c_int) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

fn gemm(handle: Of, kinds: [Option<Kind>; 3], operations: [Operation; 2], sizes: [c_int; 4]) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    let [Some(a), Some(b), Some(c)] = kinds else { return NOT_SUPPORTED };
    if sizes.iter().any(|&count| count < 0) {
        return INVALID_VALUE;
    }
    let [rows, columns, depth, batch] = sizes.map(size);
    let transposed = operations.map(is_transposed);
    Product { kinds: [a, b, c], transposed, rows, columns, depth, batch }.launch("cublas", "", library.stream);
    SUCCESS
}

/// Launches a routine that accesses `touched` elements of each matrix of a batch.
fn routine(handle: Of, name: &str, kind: Kind, layout: &[&str], sizes: [c_int; 3], touched: u64) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    let [m, n, batch] = sizes.map(size);
    let mut kernel = format!("cublas {name} {}", kind.name);
    for part in layout {
        kernel = format!("{kernel} {part}");
    }
    kernel = format!("{kernel} {m}x{n}");
    if batch > 1 {
        kernel = format!("{kernel} batch {batch}");
    }
    streams::launch(library.stream, &kernel, kind.bytes(touched.saturating_mul(batch)));
    SUCCESS
}

fn triangular(handle: Of, kind: Kind, side: c_int, operation: Operation, sizes: [c_int; 3]) -> Status {
    let [m, n, _] = sizes;
    let (side, order) = if side == 0 { ("left", m) } else { ("right", n) };
    let touched = elements(order, order) / 2 + 2 * elements(m, n);
    routine(handle, "trsm", kind, &[side, operation_name(operation)], sizes, touched)
}

fn dot(handle: Of, kind: Kind, n: c_int, result: *mut c_void, to: Kind) -> Status {
    if result.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: cuBLAS requires a pointer to a scalar of this type; device memory is mapped in this process.
    unsafe { result.cast::<u8>().write_bytes(0, to.bytes(1) as usize) };
    routine(handle, "dot", kind, &[], [n, 1, 1], 2 * size(n))
}

/// Writes success for each matrix of a batch.
pub(crate) fn went_well(info: *mut c_int, batch: c_int) {
    if !info.is_null() {
        // SAFETY: the library's routines require a status per matrix; device memory is mapped in this process.
        unsafe { info.write_bytes(0, size(batch) as usize) };
    }
}

/// Writes pivots of LU without row exchanges: i for row i, from 1.
pub(crate) fn pivot(pivots: *mut c_int, n: c_int, batch: c_int) {
    if !pivots.is_null() {
        for i in 0..size(n) * size(batch) {
            // SAFETY: the library's routines require n pivots per matrix; device memory is mapped in this process.
            unsafe { pivots.add(i as usize).write((i % size(n)) as c_int + 1) };
        }
    }
}

/// Name and text of a status.
fn describe(status: Status) -> (&'static CStr, &'static CStr) {
    match status {
        0 => (c"CUBLAS_STATUS_SUCCESS", c"success"),
        1 => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
        3 => (c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
        7 => (c"CUBLAS_STATUS_INVALID_VALUE", c"an unsupported value or parameter was passed to the function"),
        8 => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"the function requires a feature absent from the device architecture"),
        11 => (c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
        13 => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"the GPU program failed to execute"),
        14 => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
        15 => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality requested is not supported"),
        16 => (c"CUBLAS_STATUS_LICENSE_ERROR", c"the functionality requested requires some license"),
        _ => (c"CUBLAS_STATUS_UNKNOWN", c"<unknown>"),
    }
}
