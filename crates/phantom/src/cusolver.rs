//! Owns cuSOLVER's dense factorisations and eigenvalues, as torch's linear algebra calls them. `cusolverDn.h` of CUDA
//! 13 has the prototypes.
//!
//! Results are not computed: each routine reports success, and LU exchanges no rows. Workspaces have the sizes that
//! LAPACK recommends for the routines of the same names, with blocks of 64 columns.

use crate::cublas::{pivot, went_well};
use crate::exports::{Out, Put, exports, family};
use crate::kinds::{C64, C128, F32, F64, Kind};
use crate::streams::{self, Handle};
use std::ffi::{c_int, c_longlong, c_void};

/// `cusolverStatus_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 3;
const NOT_SUPPORTED: Status = 9;
type Pointer = *const c_void;
type Info = *mut c_int;

/// LAPACK's block size (`ilaenv.f`).
const BLOCK: i64 = 64;

/// `cusolverDnHandle_t`.
struct Library {
    stream: Handle,
}

type Of<'a> = Option<&'a mut Library>;

/// `gesvdjInfo_t`, `cusolverDnParams_t`: settings without an effect.
struct Settings;

exports! {
    fn cusolverDnCreate(handle: Out<*mut Library>) -> Status { create(handle, Library { stream: std::ptr::null_mut() }) }
    fn cusolverDnDestroy(handle: *mut Library) -> Status { destroy(handle) }
    fn cusolverDnSetStream(handle: Of, stream: Handle) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| { library.stream = stream; SUCCESS })
    }
    fn cusolverDnGetStream(handle: Of, stream: Out<Handle>) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| wrote(stream.put(library.stream)))
    }
    fn cusolverDnCreateParams(parameters: Out<*mut Settings>) -> Status { create(parameters, Settings) }
    fn cusolverDnDestroyParams(parameters: *mut Settings) -> Status { destroy(parameters) }
    fn cusolverDnCreateGesvdjInfo(info: Out<*mut Settings>) -> Status { create(info, Settings) }
    fn cusolverDnDestroyGesvdjInfo(info: *mut Settings) -> Status { destroy(info) }
    fn cusolverDnXgesvdjSetTolerance(_info: *mut Settings, _tolerance: f64) -> Status { SUCCESS }
    fn cusolverDnXgesvdjSetMaxSweeps(_info: *mut Settings, _sweeps: c_int) -> Status { SUCCESS }
    fn cusolverDnXgesvdjSetSortEig(_info: *mut Settings, _sorts: c_int) -> Status { SUCCESS }
    fn cusolverDnCreateSyevjInfo(info: Out<*mut Settings>) -> Status { create(info, Settings) }
    fn cusolverDnDestroySyevjInfo(info: *mut Settings) -> Status { destroy(info) }
    fn cusolverDnXsyevjSetTolerance(_info: *mut Settings, _tolerance: f64) -> Status { SUCCESS }
    fn cusolverDnXsyevjSetMaxSweeps(_info: *mut Settings, _sweeps: c_int) -> Status { SUCCESS }
    fn cusolverDnXsyevjSetSortEig(_info: *mut Settings, _sorts: c_int) -> Status { SUCCESS }
}

// Factorisations.

family! {
    cusolverDnSgeqrf_bufferSize (), cusolverDnDgeqrf_bufferSize (), cusolverDnCgeqrf_bufferSize (), cusolverDnZgeqrf_bufferSize ();
    _none => (_handle: Of, _m: c_int, n: c_int, _a: Pointer, _lda: c_int, size: Out<c_int>) -> Status {
        work(size, BLOCK * i64::from(n))
    }
}
family! {
    cusolverDnSgeqrf F32, cusolverDnDgeqrf F64, cusolverDnCgeqrf C64, cusolverDnZgeqrf C128;
    kind => (
        handle: Of, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, _work: Pointer, _size: c_int, info: Info,
    ) -> Status {
        routine(handle, "geqrf", Some(kind), [m, n, 1], info)
    }
}
family! {
    cusolverDnSgetrf_bufferSize (), cusolverDnDgetrf_bufferSize (), cusolverDnCgetrf_bufferSize (), cusolverDnZgetrf_bufferSize ();
    _none => (_handle: Of, _m: c_int, n: c_int, _a: Pointer, _lda: c_int, size: Out<c_int>) -> Status {
        work(size, BLOCK * i64::from(n))
    }
}
family! {
    cusolverDnSgetrf F32, cusolverDnDgetrf F64, cusolverDnCgetrf C64, cusolverDnZgetrf C128;
    kind => (
        handle: Of, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _work: Pointer, pivots: *mut c_int, info: Info,
    ) -> Status {
        pivot(pivots, m.min(n), 1);
        routine(handle, "getrf", Some(kind), [m, n, 1], info)
    }
}
family! {
    cusolverDnSgetrs F32, cusolverDnDgetrs F64, cusolverDnCgetrs C64, cusolverDnZgetrs C128;
    kind => (
        handle: Of, _operation: c_int, n: c_int, right: c_int, _a: Pointer, _lda: c_int, _pivots: Pointer, _b: Pointer, _ldb: c_int, info: Info,
    ) -> Status {
        routine(handle, "getrs", Some(kind), [n, right, 1], info)
    }
}
family! {
    cusolverDnSpotrf_bufferSize (), cusolverDnDpotrf_bufferSize (), cusolverDnCpotrf_bufferSize (), cusolverDnZpotrf_bufferSize ();
    _none => (_handle: Of, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, size: Out<c_int>) -> Status {
        work(size, BLOCK * i64::from(n))
    }
}
family! {
    cusolverDnSpotrf F32, cusolverDnDpotrf F64, cusolverDnCpotrf C64, cusolverDnZpotrf C128;
    kind => (handle: Of, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, _work: Pointer, _size: c_int, info: Info) -> Status {
        routine(handle, "potrf", Some(kind), [n, n, 1], info)
    }
}
family! {
    cusolverDnSpotrfBatched F32, cusolverDnDpotrfBatched F64, cusolverDnCpotrfBatched C64, cusolverDnZpotrfBatched C128;
    kind => (handle: Of, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, info: Info, batch: c_int) -> Status {
        routine(handle, "potrf", Some(kind), [n, n, batch], info)
    }
}
family! {
    cusolverDnSpotrs F32, cusolverDnDpotrs F64, cusolverDnCpotrs C64, cusolverDnZpotrs C128;
    kind => (
        handle: Of, _uplo: c_int, n: c_int, right: c_int, _a: Pointer, _lda: c_int, _b: Pointer, _ldb: c_int, info: Info,
    ) -> Status {
        routine(handle, "potrs", Some(kind), [n, right, 1], info)
    }
}
// These routines have one status per batch.
family! {
    cusolverDnSpotrsBatched F32, cusolverDnDpotrsBatched F64, cusolverDnCpotrsBatched C64, cusolverDnZpotrsBatched C128;
    kind => (
        handle: Of, _uplo: c_int, n: c_int, right: c_int, _a: Pointer, _lda: c_int, _b: Pointer, _ldb: c_int, info: Info, batch: c_int,
    ) -> Status {
        went_well(info, 1);
        routine(handle, "potrs", Some(kind), [n, right, batch], std::ptr::null_mut())
    }
}
family! {
    cusolverDnSsytrf_bufferSize (), cusolverDnDsytrf_bufferSize (), cusolverDnCsytrf_bufferSize (), cusolverDnZsytrf_bufferSize ();
    _none => (_handle: Of, n: c_int, _a: Pointer, _lda: c_int, size: Out<c_int>) -> Status { work(size, BLOCK * i64::from(n)) }
}
family! {
    cusolverDnSsytrf F32, cusolverDnDsytrf F64, cusolverDnCsytrf C64, cusolverDnZsytrf C128;
    kind => (
        handle: Of, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, pivots: *mut c_int, _work: Pointer, _size: c_int, info: Info,
    ) -> Status {
        pivot(pivots, n, 1);
        routine(handle, "sytrf", Some(kind), [n, n, 1], info)
    }
}
family! {
    cusolverDnSorgqr_bufferSize (), cusolverDnDorgqr_bufferSize (), cusolverDnCungqr_bufferSize (), cusolverDnZungqr_bufferSize ();
    _none => (
        _handle: Of, _m: c_int, n: c_int, _k: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, size: Out<c_int>,
    ) -> Status {
        work(size, BLOCK * i64::from(n))
    }
}
family! {
    cusolverDnSorgqr F32, cusolverDnDorgqr F64, cusolverDnCungqr C64, cusolverDnZungqr C128;
    kind => (
        handle: Of, m: c_int, n: c_int, _k: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, _work: Pointer, _size: c_int, info: Info,
    ) -> Status {
        routine(handle, "orgqr", Some(kind), [m, n, 1], info)
    }
}
family! {
    cusolverDnSormqr_bufferSize (), cusolverDnDormqr_bufferSize (), cusolverDnCunmqr_bufferSize (), cusolverDnZunmqr_bufferSize ();
    _none => (
        _handle: Of, _side: c_int, _operation: c_int, m: c_int, n: c_int, _k: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, _c: Pointer,
        _ldc: c_int, size: Out<c_int>,
    ) -> Status {
        work(size, BLOCK * i64::from(m.max(n)))
    }
}
family! {
    cusolverDnSormqr F32, cusolverDnDormqr F64, cusolverDnCunmqr C64, cusolverDnZunmqr C128;
    kind => (
        handle: Of, _side: c_int, _operation: c_int, m: c_int, n: c_int, _k: c_int, _a: Pointer, _lda: c_int, _tau: Pointer, _c: Pointer,
        _ldc: c_int, _work: Pointer, _size: c_int, info: Info,
    ) -> Status {
        routine(handle, "ormqr", Some(kind), [m, n, 1], info)
    }
}

// Singular values.

family! {
    cusolverDnSgesvd_bufferSize (), cusolverDnDgesvd_bufferSize (), cusolverDnCgesvd_bufferSize (), cusolverDnZgesvd_bufferSize ();
    _none => (_handle: Of, m: c_int, n: c_int, size: Out<c_int>) -> Status { work(size, svd(m, n)) }
}
family! {
    cusolverDnSgesvd F32, cusolverDnDgesvd F64, cusolverDnCgesvd C64, cusolverDnZgesvd C128;
    kind => (
        handle: Of, _u_job: i8, _v_job: i8, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _s: Pointer, _u: Pointer, _ldu: c_int, _v: Pointer,
        _ldv: c_int, _work: Pointer, _size: c_int, _real: Pointer, info: Info,
    ) -> Status {
        routine(handle, "gesvd", Some(kind), [m, n, 1], info)
    }
}
family! {
    cusolverDnSgesvdj_bufferSize (), cusolverDnDgesvdj_bufferSize (), cusolverDnCgesvdj_bufferSize (), cusolverDnZgesvdj_bufferSize ();
    _none => (
        _handle: Of, _job: c_int, _economic: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _s: Pointer, _u: Pointer, _ldu: c_int,
        _v: Pointer, _ldv: c_int, size: Out<c_int>, _parameters: *const Settings,
    ) -> Status {
        work(size, svd(m, n))
    }
}
family! {
    cusolverDnSgesvdj F32, cusolverDnDgesvdj F64, cusolverDnCgesvdj C64, cusolverDnZgesvdj C128;
    kind => (
        handle: Of, _job: c_int, _economic: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _s: Pointer, _u: Pointer, _ldu: c_int,
        _v: Pointer, _ldv: c_int, _work: Pointer, _size: c_int, info: Info, _parameters: *const Settings,
    ) -> Status {
        routine(handle, "gesvdj", Some(kind), [m, n, 1], info)
    }
}
family! {
    cusolverDnSgesvdjBatched_bufferSize (), cusolverDnDgesvdjBatched_bufferSize (), cusolverDnCgesvdjBatched_bufferSize (),
    cusolverDnZgesvdjBatched_bufferSize ();
    _none => (
        _handle: Of, _job: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _s: Pointer, _u: Pointer, _ldu: c_int, _v: Pointer,
        _ldv: c_int, size: Out<c_int>, _parameters: *const Settings, batch: c_int,
    ) -> Status {
        work(size, svd(m, n) * i64::from(batch))
    }
}
family! {
    cusolverDnSgesvdjBatched F32, cusolverDnDgesvdjBatched F64, cusolverDnCgesvdjBatched C64, cusolverDnZgesvdjBatched C128;
    kind => (
        handle: Of, _job: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _s: Pointer, _u: Pointer, _ldu: c_int, _v: Pointer, _ldv: c_int,
        _work: Pointer, _size: c_int, info: Info, _parameters: *const Settings, batch: c_int,
    ) -> Status {
        routine(handle, "gesvdj", Some(kind), [m, n, batch], info)
    }
}
family! {
    cusolverDnSgesvdaStridedBatched_bufferSize (), cusolverDnDgesvdaStridedBatched_bufferSize (),
    cusolverDnCgesvdaStridedBatched_bufferSize (), cusolverDnZgesvdaStridedBatched_bufferSize ();
    _none => (
        _handle: Of, _job: c_int, _rank: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _a_stride: c_longlong, _s: Pointer,
        _s_stride: c_longlong, _u: Pointer, _ldu: c_int, _u_stride: c_longlong, _v: Pointer, _ldv: c_int, _v_stride: c_longlong,
        size: Out<c_int>, batch: c_int,
    ) -> Status {
        work(size, svd(m, n) * i64::from(batch))
    }
}
family! {
    cusolverDnSgesvdaStridedBatched F32, cusolverDnDgesvdaStridedBatched F64, cusolverDnCgesvdaStridedBatched C64,
    cusolverDnZgesvdaStridedBatched C128;
    kind => (
        handle: Of, _job: c_int, _rank: c_int, m: c_int, n: c_int, _a: Pointer, _lda: c_int, _a_stride: c_longlong, _s: Pointer,
        _s_stride: c_longlong, _u: Pointer, _ldu: c_int, _u_stride: c_longlong, _v: Pointer, _ldv: c_int, _v_stride: c_longlong,
        _work: Pointer, _size: c_int, info: Info, residuals: *mut f64, batch: c_int,
    ) -> Status {
        if !residuals.is_null() {
            // SAFETY: cuSOLVER requires a residual per matrix, in host memory.
            unsafe { residuals.write_bytes(0, usize::try_from(batch).unwrap_or(0)) };
        }
        routine(handle, "gesvda", Some(kind), [m, n, batch], info)
    }
}

// Eigenvalues.

family! {
    cusolverDnSsyevd_bufferSize (), cusolverDnDsyevd_bufferSize (), cusolverDnCheevd_bufferSize (), cusolverDnZheevd_bufferSize ();
    _none => (
        _handle: Of, _job: c_int, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, _w: Pointer, size: Out<c_int>,
    ) -> Status {
        work(size, eigen(i64::from(n)))
    }
}
family! {
    cusolverDnSsyevd F32, cusolverDnDsyevd F64, cusolverDnCheevd C64, cusolverDnZheevd C128;
    kind => (
        handle: Of, _job: c_int, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, _w: Pointer, _work: Pointer, _size: c_int, info: Info,
    ) -> Status {
        routine(handle, "syevd", Some(kind), [n, n, 1], info)
    }
}
family! {
    cusolverDnSsyevjBatched_bufferSize (), cusolverDnDsyevjBatched_bufferSize (), cusolverDnCheevjBatched_bufferSize (),
    cusolverDnZheevjBatched_bufferSize ();
    _none => (
        _handle: Of, _job: c_int, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, _w: Pointer, size: Out<c_int>,
        _parameters: *const Settings, batch: c_int,
    ) -> Status {
        work(size, eigen(i64::from(n)) * i64::from(batch))
    }
}
family! {
    cusolverDnSsyevjBatched F32, cusolverDnDsyevjBatched F64, cusolverDnCheevjBatched C64, cusolverDnZheevjBatched C128;
    kind => (
        handle: Of, _job: c_int, _uplo: c_int, n: c_int, _a: Pointer, _lda: c_int, _w: Pointer, _work: Pointer, _size: c_int, info: Info,
        _parameters: *const Settings, batch: c_int,
    ) -> Status {
        routine(handle, "syevj", Some(kind), [n, n, batch], info)
    }
}

// The same routines with 64-bit sizes: the workspace is in bytes, on the device and on the host, where none is needed.
exports! {
    fn cusolverDnXgeqrf_bufferSize(
        _handle: Of, _parameters: *const Settings, _m: i64, n: i64, kind: c_int, _a: Pointer, _lda: i64, _tau_kind: c_int, _tau: Pointer,
        _compute: c_int, device: Out<usize>, host: Out<usize>,
    ) -> Status {
        bytes(kind, BLOCK * n, device, host)
    }
    fn cusolverDnXgeqrf(
        handle: Of, _parameters: *const Settings, m: i64, n: i64, kind: c_int, _a: Pointer, _lda: i64, _tau_kind: c_int, _tau: Pointer,
        _compute: c_int, _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info,
    ) -> Status {
        routine(handle, "geqrf", Kind::of_cuda(kind), [m, n, 1], info)
    }
    fn cusolverDnXpotrf_bufferSize(
        _handle: Of, _parameters: *const Settings, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _compute: c_int,
        device: Out<usize>, host: Out<usize>,
    ) -> Status {
        bytes(kind, BLOCK * n, device, host)
    }
    fn cusolverDnXpotrf(
        handle: Of, _parameters: *const Settings, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _compute: c_int,
        _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info,
    ) -> Status {
        routine(handle, "potrf", Kind::of_cuda(kind), [n, n, 1], info)
    }
    fn cusolverDnXpotrs(
        handle: Of, _parameters: *const Settings, _uplo: c_int, n: i64, right: i64, kind: c_int, _a: Pointer, _lda: i64, _b_kind: c_int,
        _b: Pointer, _ldb: i64, info: Info,
    ) -> Status {
        routine(handle, "potrs", Kind::of_cuda(kind), [n, right, 1], info)
    }
    fn cusolverDnXsytrs_bufferSize(
        _handle: Of, _uplo: c_int, n: i64, _right: i64, kind: c_int, _a: Pointer, _lda: i64, _pivots: Pointer, _b_kind: c_int, _b: Pointer,
        _ldb: i64, device: Out<usize>, host: Out<usize>,
    ) -> Status {
        bytes(kind, BLOCK * n, device, host)
    }
    fn cusolverDnXsytrs(
        handle: Of, _uplo: c_int, n: i64, right: i64, kind: c_int, _a: Pointer, _lda: i64, _pivots: Pointer, _b_kind: c_int, _b: Pointer,
        _ldb: i64, _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info,
    ) -> Status {
        routine(handle, "sytrs", Kind::of_cuda(kind), [n, right, 1], info)
    }
    fn cusolverDnXsyevd_bufferSize(
        _handle: Of, _parameters: *const Settings, _job: c_int, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _w_kind: c_int,
        _w: Pointer, _compute: c_int, device: Out<usize>, host: Out<usize>,
    ) -> Status {
        bytes(kind, eigen(n), device, host)
    }
    fn cusolverDnXsyevd(
        handle: Of, _parameters: *const Settings, _job: c_int, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _w_kind: c_int,
        _w: Pointer, _compute: c_int, _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info,
    ) -> Status {
        routine(handle, "syevd", Kind::of_cuda(kind), [n, n, 1], info)
    }
    fn cusolverDnXsyevBatched_bufferSize(
        _handle: Of, _parameters: *const Settings, _job: c_int, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _w_kind: c_int,
        _w: Pointer, _compute: c_int, device: Out<usize>, host: Out<usize>, batch: i64,
    ) -> Status {
        bytes(kind, eigen(n) * batch, device, host)
    }
    fn cusolverDnXsyevBatched(
        handle: Of, _parameters: *const Settings, _job: c_int, _uplo: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64, _w_kind: c_int,
        _w: Pointer, _compute: c_int, _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info, batch: i64,
    ) -> Status {
        routine(handle, "syev", Kind::of_cuda(kind), [n, n, batch], info)
    }
    fn cusolverDnXgeev_bufferSize(
        _handle: Of, _parameters: *const Settings, _left_job: c_int, _right_job: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64,
        _w_kind: c_int, _w: Pointer, _left_kind: c_int, _left: Pointer, _ldl: i64, _right_kind: c_int, _right: Pointer, _ldr: i64,
        _compute: c_int, device: Out<usize>, host: Out<usize>,
    ) -> Status {
        bytes(kind, eigen(n), device, host)
    }
    fn cusolverDnXgeev(
        handle: Of, _parameters: *const Settings, _left_job: c_int, _right_job: c_int, n: i64, kind: c_int, _a: Pointer, _lda: i64,
        _w_kind: c_int, _w: Pointer, _left_kind: c_int, _left: Pointer, _ldl: i64, _right_kind: c_int, _right: Pointer, _ldr: i64,
        _compute: c_int, _device: Pointer, _device_size: usize, _host: Pointer, _host_size: usize, info: Info,
    ) -> Status {
        routine(handle, "geev", Kind::of_cuda(kind), [n, n, 1], info)
    }
}

/// Workspace of LAPACK's `gesdd` with vectors, the largest of its cases: `min (7 + 4 min) + max`.
fn svd(m: c_int, n: c_int) -> i64 {
    let (least, most) = (i64::from(m.min(n)), i64::from(m.max(n)));
    least * (7 + 4 * least) + most
}

/// Workspace of LAPACK's `syevd` with vectors: `1 + 6 n + 2 n n`.
fn eigen(n: i64) -> i64 {
    1 + 6 * n + 2 * n * n
}

fn wrote(written: bool) -> Status {
    if written { SUCCESS } else { INVALID_VALUE }
}

/// Writes a routine's workspace size in elements.
fn work(place: Out<c_int>, elements: i64) -> Status {
    c_int::try_from(elements).map_or(INVALID_VALUE, |elements| wrote(place.put(elements)))
}

/// Writes a routine's workspace size in bytes; 0 on the host.
fn bytes(kind: c_int, elements: i64, device: Out<usize>, host: Out<usize>) -> Status {
    let Some(kind) = Kind::of_cuda(kind) else { return NOT_SUPPORTED };
    host.put(0);
    u64::try_from(elements).map_or(INVALID_VALUE, |elements| wrote(device.put(kind.bytes(elements) as usize)))
}

fn create<T>(place: Out<*mut T>, value: T) -> Status {
    match place {
        Some(place) => {
            place.write(Box::into_raw(Box::new(value)));
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}

fn destroy<T>(value: *mut T) -> Status {
    if !value.is_null() {
        // SAFETY: the pointer comes from `create`, and cuSOLVER forbids programs to use it after its destruction.
        drop(unsafe { Box::from_raw(value) });
    }
    SUCCESS
}

/// Launches a routine on a batch of matrices, and writes success for each.
fn routine<T: TryInto<u64>>(handle: Of, name: &str, kind: Option<Kind>, sizes: [T; 3], info: Info) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    let Some(kind) = kind else { return NOT_SUPPORTED };
    let [m, n, batch] = sizes.map(|size| size.try_into().unwrap_or(0));
    went_well(info, c_int::try_from(batch).unwrap_or(0));
    let mut kernel = format!("cusolver {name} {} {m}x{n}", kind.name);
    if batch > 1 {
        kernel = format!("{kernel} batch {batch}");
    }
    streams::launch(library.stream, &kernel, kind.bytes(m * n * batch));
    SUCCESS
}
