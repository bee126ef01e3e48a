//! Owns cuSPARSE: products and triangular solutions with sparse matrices, and their sorting. `cusparse.h` of CUDA 13
//! has the prototypes.
//!
//! Values are not computed, and no routine needs a buffer. Only the structure of a sparse result is computed
//! ([`structure`]), because the program allocates memory for its elements.

mod structure;

use crate::exports::{Out, Put, exports, family};
use crate::kinds::{C64, C128, F32, F64, Kind};
use crate::streams::{self, Handle};
use std::ffi::{CStr, c_char, c_int, c_void};

/// `cusparseStatus_t`.
type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
pub(crate) const INVALID_VALUE: Status = 3;
const EXECUTION_FAILED: Status = 6;
pub(crate) const NOT_SUPPORTED: Status = 10;
type Pointer = *const c_void;

/// `cusparseHandle_t`.
struct Library {
    stream: Handle,
    /// `cusparsePointerMode_t`
    pointer_mode: c_int,
}

type Of<'a> = Option<&'a mut Library>;

/// `cusparseSpMatDescr_t`, `cusparseDnMatDescr_t`, `cusparseDnVecDescr_t`.
struct Matrix {
    rows: i64,
    columns: i64,
    /// Number of stored elements.
    count: i64,
    kind: c_int,
    batch: c_int,
    is_sparse: bool,
    /// For compressed rows: addresses of row offsets and of the elements' columns, their `cusparseIndexType_t`, and the
    /// first index, 0 or 1.
    offsets: *mut c_void,
    places: *mut c_void,
    offset_kind: c_int,
    place_kind: c_int,
    base: c_int,
}

type At<'a> = Option<&'a Matrix>;

/// A matrix without a format.
const NONE: Matrix = Matrix {
    rows: 0,
    columns: 0,
    count: 0,
    kind: 0,
    batch: 1,
    is_sparse: false,
    offsets: std::ptr::null_mut(),
    places: std::ptr::null_mut(),
    offset_kind: 0,
    place_kind: 0,
    base: 0,
};

/// A descriptor whose settings have no effect.
struct Settings;

exports! {
    fn cusparseCreate(handle: Out<*mut Library>) -> Status { create(handle, Library { stream: std::ptr::null_mut(), pointer_mode: 0 }) }
    fn cusparseDestroy(handle: *mut Library) -> Status { destroy(handle) }
    fn cusparseSetStream(handle: Of, stream: Handle) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| { library.stream = stream; SUCCESS })
    }
    fn cusparseGetStream(handle: Of, stream: Out<Handle>) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| wrote(stream.put(library.stream)))
    }
    fn cusparseSetPointerMode(handle: Of, mode: c_int) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| { library.pointer_mode = mode; SUCCESS })
    }
    fn cusparseGetPointerMode(handle: Of, mode: Out<c_int>) -> Status {
        handle.map_or(NOT_INITIALIZED, |library| wrote(mode.put(library.pointer_mode)))
    }
    /// cuSPARSE 12.7.10.
    fn cusparseGetVersion(_handle: Of, version: Out<c_int>) -> Status { wrote(version.put(12_710)) }
    fn cusparseGetErrorName(status: Status) -> *const c_char { describe(status).0.as_ptr() }
    fn cusparseGetErrorString(status: Status) -> *const c_char { describe(status).1.as_ptr() }

    fn cusparseCreateMatDescr(place: Out<*mut Settings>) -> Status { create(place, Settings) }
    fn cusparseDestroyMatDescr(settings: *mut Settings) -> Status { destroy(settings) }
    fn cusparseSetMatType(_settings: *mut Settings, _value: c_int) -> Status { SUCCESS }
    fn cusparseSetMatFillMode(_settings: *mut Settings, _value: c_int) -> Status { SUCCESS }
    fn cusparseSetMatDiagType(_settings: *mut Settings, _value: c_int) -> Status { SUCCESS }
    fn cusparseSetMatIndexBase(_settings: *mut Settings, _value: c_int) -> Status { SUCCESS }
    fn cusparseCreateBsrsm2Info(place: Out<*mut Settings>) -> Status { create(place, Settings) }
    fn cusparseDestroyBsrsm2Info(settings: *mut Settings) -> Status { destroy(settings) }
    fn cusparseCreateBsrsv2Info(place: Out<*mut Settings>) -> Status { create(place, Settings) }
    fn cusparseDestroyBsrsv2Info(settings: *mut Settings) -> Status { destroy(settings) }
    fn cusparseSpSM_createDescr(place: Out<*mut Settings>) -> Status { create(place, Settings) }
    fn cusparseSpSM_destroyDescr(settings: *mut Settings) -> Status { destroy(settings) }
    fn cusparseSpSV_createDescr(place: Out<*mut Settings>) -> Status { create(place, Settings) }
    fn cusparseSpSV_destroyDescr(settings: *mut Settings) -> Status { destroy(settings) }

    fn cusparseCreateCoo(
        place: Out<*mut Matrix>, rows: i64, columns: i64, count: i64, _row: Pointer, _column: Pointer, _values: Pointer, _index: c_int,
        _base: c_int, kind: c_int,
    ) -> Status { create(place, Matrix { rows, columns, count, kind, batch: 1, is_sparse: true, ..NONE }) }
    fn cusparseCreateCsr(
        place: Out<*mut Matrix>, rows: i64, columns: i64, count: i64, offsets: *mut c_void, places: *mut c_void, _values: Pointer,
        offset_kind: c_int, place_kind: c_int, base: c_int, kind: c_int,
    ) -> Status {
        create(place, Matrix { rows, columns, count, kind, batch: 1, is_sparse: true, offsets, places, offset_kind, place_kind, base })
    }
    fn cusparseCreateDnMat(
        place: Out<*mut Matrix>, rows: i64, columns: i64, _leading: i64, _values: Pointer, kind: c_int, _order: c_int,
    ) -> Status { create(place, Matrix { rows, columns, count: rows * columns, kind, batch: 1, is_sparse: false, ..NONE }) }
    fn cusparseCreateDnVec(place: Out<*mut Matrix>, rows: i64, _values: Pointer, kind: c_int) -> Status {
        create(place, Matrix { rows, columns: 1, count: rows, kind, batch: 1, is_sparse: false, ..NONE })
    }
    fn cusparseDestroySpMat(matrix: *mut Matrix) -> Status { destroy(matrix) }
    fn cusparseDestroyDnMat(matrix: *mut Matrix) -> Status { destroy(matrix) }
    fn cusparseDestroyDnVec(matrix: *mut Matrix) -> Status { destroy(matrix) }
    fn cusparseCsrSetPointers(matrix: Option<&mut Matrix>, offsets: *mut c_void, places: *mut c_void, _values: Pointer) -> Status {
        let Some(matrix) = matrix else { return INVALID_VALUE };
        (matrix.offsets, matrix.places) = (offsets, places);
        SUCCESS
    }
    fn cusparseCsrSetStridedBatch(matrix: Option<&mut Matrix>, batch: c_int, _offsets: i64, _values: i64) -> Status {
        matrix.map_or(INVALID_VALUE, |matrix| { matrix.batch = batch; SUCCESS })
    }
    fn cusparseDnMatSetStridedBatch(matrix: Option<&mut Matrix>, batch: c_int, _stride: i64) -> Status {
        matrix.map_or(INVALID_VALUE, |matrix| { matrix.batch = batch; SUCCESS })
    }
    fn cusparseSpMatGetSize(matrix: At, rows: Out<i64>, columns: Out<i64>, count: Out<i64>) -> Status {
        let Some(matrix) = matrix else { return INVALID_VALUE };
        wrote(rows.put(matrix.rows) && columns.put(matrix.columns) && count.put(matrix.count))
    }
    fn cusparseSpMatSetAttribute(_matrix: *mut Matrix, _attribute: c_int, _data: Pointer, _size: usize) -> Status { SUCCESS }

    fn cusparseSpMM_bufferSize(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: At, _b: At, _beta: Pointer, _c: At, _compute: c_int, _algorithm: c_int,
        size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSpMM(
        handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, a: At, b: At, _beta: Pointer, c: At, _compute: c_int, _algorithm: c_int,
        _buffer: Pointer,
    ) -> Status { routine(handle, "spmm", [a, b, c]) }
    fn cusparseSpMV_bufferSize(
        _handle: Of, _op: c_int, _alpha: Pointer, _a: At, _x: At, _beta: Pointer, _y: At, _compute: c_int, _algorithm: c_int,
        size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSpMV(
        handle: Of, _op: c_int, _alpha: Pointer, a: At, x: At, _beta: Pointer, y: At, _compute: c_int, _algorithm: c_int, _buffer: Pointer,
    ) -> Status { routine(handle, "spmv", [a, x, y]) }
    fn cusparseSDDMM_bufferSize(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: At, _b: At, _beta: Pointer, _c: At, _compute: c_int, _algorithm: c_int,
        size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSDDMM_preprocess(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: At, _b: At, _beta: Pointer, _c: At, _compute: c_int, _algorithm: c_int,
        _buffer: Pointer,
    ) -> Status { SUCCESS }
    fn cusparseSDDMM(
        handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, a: At, b: At, _beta: Pointer, c: At, _compute: c_int, _algorithm: c_int,
        _buffer: Pointer,
    ) -> Status { routine(handle, "sddmm", [c, a, b]) }
    fn cusparseSpSM_bufferSize(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: At, _b: At, _c: At, _compute: c_int, _algorithm: c_int,
        _settings: *mut Settings, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSpSM_analysis(
        handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, a: At, b: At, c: At, _compute: c_int, _algorithm: c_int,
        _settings: *mut Settings, _buffer: Pointer,
    ) -> Status { routine(handle, "spsm analysis", [a, b, c]) }
    fn cusparseSpSM_solve(
        handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, a: At, b: At, c: At, _compute: c_int, _algorithm: c_int,
        _settings: *mut Settings,
    ) -> Status { routine(handle, "spsm", [a, b, c]) }
    fn cusparseSpSV_bufferSize(
        _handle: Of, _op: c_int, _alpha: Pointer, _a: At, _x: At, _y: At, _compute: c_int, _algorithm: c_int, _settings: *mut Settings,
        size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSpSV_analysis(
        handle: Of, _op: c_int, _alpha: Pointer, a: At, x: At, y: At, _compute: c_int, _algorithm: c_int, _settings: *mut Settings,
        _buffer: Pointer,
    ) -> Status { routine(handle, "spsv analysis", [a, x, y]) }
    fn cusparseSpSV_solve(
        handle: Of, _op: c_int, _alpha: Pointer, a: At, x: At, y: At, _compute: c_int, _algorithm: c_int, _settings: *mut Settings,
    ) -> Status { routine(handle, "spsv", [a, x, y]) }

    fn cusparseXcoo2csr(handle: Of, _row: Pointer, count: c_int, _rows: c_int, _offsets: Pointer, _base: c_int) -> Status {
        indices(handle, "coo2csr", count)
    }
    fn cusparseXcoosort_bufferSizeExt(
        _handle: Of, _m: c_int, _n: c_int, _count: c_int, _row: Pointer, _column: Pointer, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseXcoosortByRow(
        handle: Of, _m: c_int, _n: c_int, count: c_int, _row: Pointer, _column: Pointer, _order: Pointer, _buffer: Pointer,
    ) -> Status { indices(handle, "coosort", count) }
    fn cusparseXcsrsort_bufferSizeExt(
        _handle: Of, _m: c_int, _n: c_int, _count: c_int, _row: Pointer, _column: Pointer, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseXcsrsort(
        handle: Of, _m: c_int, _n: c_int, count: c_int, _matrix: *const Settings, _row: Pointer, _column: Pointer, _order: Pointer,
        _buffer: Pointer,
    ) -> Status { indices(handle, "csrsort", count) }
    fn cusparseCreateIdentityPermutation(handle: Of, count: c_int, _order: Pointer) -> Status { indices(handle, "identity", count) }

    /// Reports that no diagonal element is zero.
    fn cusparseXbsrsm2_zeroPivot(_handle: Of, _settings: *mut Settings, position: Out<c_int>) -> Status { wrote(position.put(-1)) }
    fn cusparseXbsrsv2_zeroPivot(_handle: Of, _settings: *mut Settings, position: Out<c_int>) -> Status { wrote(position.put(-1)) }
}

// Matrices of dense blocks (BSR).

family! {
    cusparseSbsrmm F32, cusparseDbsrmm F64, cusparseCbsrmm C64, cusparseZbsrmm C128;
    kind => (
        handle: Of, _direction: c_int, _a_op: c_int, _b_op: c_int, rows: c_int, n: c_int, columns: c_int, count: c_int, _alpha: Pointer,
        _a: *const Settings, _values: Pointer, _row: Pointer, _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrmm", kind, [rows, columns, count, block, n])
    }
}
family! {
    cusparseSbsrmv F32, cusparseDbsrmv F64, cusparseCbsrmv C64, cusparseZbsrmv C128;
    kind => (
        handle: Of, _direction: c_int, _op: c_int, rows: c_int, columns: c_int, count: c_int, _alpha: Pointer, _a: *const Settings,
        _values: Pointer, _row: Pointer, _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrmv", kind, [rows, columns, count, block, 1])
    }
}
family! {
    cusparseSbsrsm2_bufferSize (), cusparseDbsrsm2_bufferSize (), cusparseCbsrsm2_bufferSize (), cusparseZbsrsm2_bufferSize ();
    _none => (
        _handle: Of, _direction: c_int, _a_op: c_int, _x_op: c_int, _rows: c_int, _n: c_int, _count: c_int, _a: *const Settings,
        _values: Pointer, _row: Pointer, _column: Pointer, _block: c_int, _settings: *mut Settings, size: Out<c_int>,
    ) -> Status {
        wrote(size.put(0))
    }
}
family! {
    cusparseSbsrsm2_analysis F32, cusparseDbsrsm2_analysis F64, cusparseCbsrsm2_analysis C64, cusparseZbsrsm2_analysis C128;
    kind => (
        handle: Of, _direction: c_int, _a_op: c_int, _x_op: c_int, rows: c_int, n: c_int, count: c_int, _a: *const Settings,
        _values: Pointer, _row: Pointer, _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrsm2 analysis", kind, [rows, rows, count, block, n])
    }
}
family! {
    cusparseSbsrsm2_solve F32, cusparseDbsrsm2_solve F64, cusparseCbsrsm2_solve C64, cusparseZbsrsm2_solve C128;
    kind => (
        handle: Of, _direction: c_int, _a_op: c_int, _x_op: c_int, rows: c_int, n: c_int, count: c_int, _alpha: Pointer,
        _a: *const Settings, _values: Pointer, _row: Pointer, _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrsm2", kind, [rows, rows, count, block, n])
    }
}
family! {
    cusparseSbsrsv2_bufferSize (), cusparseDbsrsv2_bufferSize (), cusparseCbsrsv2_bufferSize (), cusparseZbsrsv2_bufferSize ();
    _none => (
        _handle: Of, _direction: c_int, _op: c_int, _rows: c_int, _count: c_int, _a: *const Settings, _values: Pointer, _row: Pointer,
        _column: Pointer, _block: c_int, _settings: *mut Settings, size: Out<c_int>,
    ) -> Status {
        wrote(size.put(0))
    }
}
family! {
    cusparseSbsrsv2_analysis F32, cusparseDbsrsv2_analysis F64, cusparseCbsrsv2_analysis C64, cusparseZbsrsv2_analysis C128;
    kind => (
        handle: Of, _direction: c_int, _op: c_int, rows: c_int, count: c_int, _a: *const Settings, _values: Pointer, _row: Pointer,
        _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrsv2 analysis", kind, [rows, rows, count, block, 1])
    }
}
family! {
    cusparseSbsrsv2_solve F32, cusparseDbsrsv2_solve F64, cusparseCbsrsv2_solve C64, cusparseZbsrsv2_solve C128;
    kind => (
        handle: Of, _direction: c_int, _op: c_int, rows: c_int, count: c_int, _alpha: Pointer, _a: *const Settings, _values: Pointer,
        _row: Pointer, _column: Pointer, block: c_int,
    ) -> Status {
        blocks(handle, "bsrsv2", kind, [rows, rows, count, block, 1])
    }
}

fn wrote(written: bool) -> Status {
    if written { SUCCESS } else { INVALID_VALUE }
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
        // SAFETY: the pointer comes from `create`, and cuSPARSE forbids programs to use it after its destruction.
        drop(unsafe { Box::from_raw(value) });
    }
    SUCCESS
}

/// Launches a kernel whose name contains the first matrix, which is sparse, and the second.
fn routine(handle: Of, name: &str, matrices: [At; 3]) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    let [Some(first), Some(second), Some(third)] = matrices else { return INVALID_VALUE };
    let Some(kind) = Kind::of_cuda(first.kind) else { return NOT_SUPPORTED };
    let Matrix { rows, columns, count, .. } = *first;
    let mut kernel =
        format!("cusparse {name} {} {rows}x{columns} of {count} by {}x{}", kind.name, second.rows, second.columns);
    let batch = first.batch.max(second.batch).max(third.batch);
    if batch > 1 {
        kernel = format!("{kernel} batch {batch}");
    }
    // At most two 32-bit indices per element of a sparse matrix; the program's indices have 32 or 64 bits.
    let bytes = [first, second, third].into_iter().map(|matrix| {
        let count = u64::try_from(matrix.count).unwrap_or(0);
        kind.bytes(count) + if matrix.is_sparse { 8 * count } else { 0 }
    });
    streams::launch(library.stream, &kernel, bytes.sum::<u64>() * u64::try_from(batch).unwrap_or(1));
    SUCCESS
}

/// Launches a kernel on 32-bit indices.
fn indices(handle: Of, name: &str, count: c_int) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    streams::launch(library.stream, &format!("cusparse {name} {count}"), 8 * u64::try_from(count).unwrap_or(0));
    SUCCESS
}

/// Launches a kernel on a sparse matrix of rows and columns of blocks, `count` of them stored, and a dense matrix of n
/// columns.
fn blocks(handle: Of, name: &str, kind: Kind, sizes: [c_int; 5]) -> Status {
    let Some(library) = handle else { return NOT_INITIALIZED };
    let [rows, columns, count, block, n] = sizes.map(|size| u64::try_from(size).unwrap_or(0));
    let kernel = format!("cusparse {name} {} {rows}x{columns} blocks of {block}, {count} by {n}", kind.name);
    let touched = count * block * block + (rows + columns) * block * n;
    streams::launch(library.stream, &kernel, kind.bytes(touched) + 4 * count);
    SUCCESS
}

/// Name and text of a status.
fn describe(status: Status) -> (&'static CStr, &'static CStr) {
    match status {
        0 => (c"CUSPARSE_STATUS_SUCCESS", c"success"),
        1 => (c"CUSPARSE_STATUS_NOT_INITIALIZED", c"initialization error"),
        2 => (c"CUSPARSE_STATUS_ALLOC_FAILED", c"out of memory"),
        3 => (c"CUSPARSE_STATUS_INVALID_VALUE", c"invalid value"),
        6 => (c"CUSPARSE_STATUS_EXECUTION_FAILED", c"execution failed"),
        10 => (c"CUSPARSE_STATUS_NOT_SUPPORTED", c"operation not supported"),
        11 => (c"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", c"insufficient resources"),
        _ => (c"CUSPARSE_STATUS_INTERNAL_ERROR", c"internal error"),
    }
}
