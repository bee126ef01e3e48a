//! Owns cuSPARSELt: GEMMs with matrices in which two of four elements are zero. `cusparseLt.h` of version 0.8 has the
//! prototypes.
//!
//! Its descriptors are in the program's memory, 512 bytes each, of which only the beginning is used. Results are not
//! computed.

use crate::cusparse::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::matrices::Product;
use crate::streams::{self, Handle};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// `cusparseStatus_t`.
type Status = c_int;
type Pointer = *const c_void;

/// `cusparseLtMatDescriptor_t`.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Matrix {
    rows: i64,
    columns: i64,
    /// `cudaDataType`
    kind: c_int,
}

/// `cusparseLtMatmulDescriptor_t`, `cusparseLtMatmulPlan_t`.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Multiplication {
    a: Matrix,
    b: Matrix,
    d: Matrix,
    transposed: [c_int; 2],
}

/// `cusparseLtHandle_t`, `cusparseLtMatmulAlgSelection_t`.
#[repr(C, align(16))]
struct Nothing {
    bytes: [u8; 16],
}

const NOTHING: Nothing = Nothing { bytes: [0; 16] };

exports! {
    fn cusparseLtInit(handle: Out<Nothing>) -> Status { wrote(handle.put(NOTHING)) }
    fn cusparseLtDestroy(_handle: Pointer) -> Status { SUCCESS }
    /// Version 0.8.1, of the package from which the name table was made.
    fn cusparseLtGetVersion(_handle: Pointer, version: Out<c_int>) -> Status { wrote(version.put(801)) }
    fn cusparseLtDenseDescriptorInit(
        _handle: Pointer, matrix: Out<Matrix>, rows: i64, columns: i64, _leading: i64, _alignment: u32, kind: c_int, _order: c_int,
    ) -> Status { wrote(matrix.put(Matrix { rows, columns, kind })) }
    fn cusparseLtStructuredDescriptorInit(
        _handle: Pointer, matrix: Out<Matrix>, rows: i64, columns: i64, _leading: i64, _alignment: u32, kind: c_int, _order: c_int,
        _sparsity: c_int,
    ) -> Status { wrote(matrix.put(Matrix { rows, columns, kind })) }
    fn cusparseLtMatDescriptorDestroy(_matrix: Pointer) -> Status { SUCCESS }
    fn cusparseLtMatDescSetAttribute(_handle: Pointer, _matrix: Pointer, _attribute: c_int, _data: Pointer, _size: usize) -> Status { SUCCESS }
    fn cusparseLtMatmulDescriptorInit(
        _handle: Pointer, place: Out<Multiplication>, a_op: c_int, b_op: c_int, a: Option<&Matrix>, b: Option<&Matrix>, _c: Option<&Matrix>,
        d: Option<&Matrix>, _compute: c_int,
    ) -> Status {
        let (Some(&a), Some(&b), Some(&d)) = (a, b, d) else { return INVALID_VALUE };
        wrote(place.put(Multiplication { a, b, d, transposed: [a_op, b_op] }))
    }
    fn cusparseLtMatmulDescSetAttribute(_handle: Pointer, _description: Pointer, _attribute: c_int, _data: Pointer, _size: usize) -> Status {
        SUCCESS
    }
    fn cusparseLtMatmulAlgSelectionInit(_handle: Pointer, selection: Out<Nothing>, _description: Pointer, _algorithm: c_int) -> Status {
        wrote(selection.put(NOTHING))
    }
    fn cusparseLtMatmulAlgSelectionDestroy(_selection: Pointer) -> Status { SUCCESS }
    fn cusparseLtMatmulAlgSetAttribute(_handle: Pointer, _selection: Pointer, _attribute: c_int, _data: Pointer, _size: usize) -> Status {
        SUCCESS
    }
    /// All attributes of the only algorithm are zero, except the number of algorithms (attribute 1).
    fn cusparseLtMatmulAlgGetAttribute(
        _handle: Pointer, _selection: Pointer, attribute: c_int, data: *mut c_void, size: usize,
    ) -> Status {
        if data.is_null() || size < 4 {
            return INVALID_VALUE;
        }
        // SAFETY: cuSPARSELt requires that the program's buffer has `size` bytes.
        unsafe {
            data.cast::<u8>().write_bytes(0, size);
            data.cast::<c_int>().write_unaligned(c_int::from(attribute == 1));
        }
        SUCCESS
    }
    fn cusparseLtMatmulPlanInit(
        _handle: Pointer, plan: Out<Multiplication>, description: Option<&Multiplication>, _selection: Pointer,
    ) -> Status { description.map_or(INVALID_VALUE, |&description| wrote(plan.put(description))) }
    fn cusparseLtMatmulPlanDestroy(_plan: Pointer) -> Status { SUCCESS }
    fn cusparseLtMatmulGetWorkspace(_handle: Pointer, _plan: Pointer, size: Out<usize>) -> Status { wrote(size.put(0)) }
    fn cusparseLtMatmul(
        _handle: Pointer, plan: Option<&Multiplication>, _alpha: Pointer, _a: Pointer, _b: Pointer, _beta: Pointer, _c: Pointer, _d: Pointer,
        _workspace: Pointer, streams: *const Handle, count: i32,
    ) -> Status { multiply(plan, streams, count) }
    /// Finds the only algorithm by running it once.
    fn cusparseLtMatmulSearch(
        _handle: Pointer, plan: Option<&Multiplication>, _alpha: Pointer, _a: Pointer, _b: Pointer, _beta: Pointer, _c: Pointer, _d: Pointer,
        _workspace: Pointer, streams: *const Handle, count: i32,
    ) -> Status { multiply(plan, streams, count) }
    /// Size of a compressed matrix: half of the elements, and two bits for each of these.
    fn cusparseLtSpMMACompressedSize2(_handle: Pointer, matrix: Option<&Matrix>, size: Out<usize>, buffer: Out<usize>) -> Status {
        let Some(Matrix { rows, columns, kind }) = matrix else { return INVALID_VALUE };
        let Some(kind) = Kind::of_cuda(*kind) else { return NOT_SUPPORTED };
        let kept = u64::try_from(rows * columns).unwrap_or(0) / 2;
        wrote(size.put((kind.bytes(kept) + kept / 4) as usize) && buffer.put(0))
    }
    fn cusparseLtSpMMACompress2(
        _handle: Pointer, matrix: Option<&Matrix>, _is_first: c_int, _operation: c_int, _dense: Pointer, _compressed: Pointer,
        _buffer: Pointer, stream: Handle,
    ) -> Status {
        let Some(Matrix { rows, columns, kind }) = matrix else { return INVALID_VALUE };
        let Some(kind) = Kind::of_cuda(*kind) else { return NOT_SUPPORTED };
        let elements = u64::try_from(rows * columns).unwrap_or(0);
        streams::launch(stream, &format!("cusparseLt compress {} {rows}x{columns}", kind.name), kind.bytes(elements) * 3 / 2);
        SUCCESS
    }
}

fn wrote(written: bool) -> Status {
    if written { SUCCESS } else { INVALID_VALUE }
}

fn multiply(plan: Option<&Multiplication>, streams: *const Handle, count: i32) -> Status {
    let Some(plan) = plan else { return INVALID_VALUE };
    let [Some(a), Some(b), Some(d)] = [plan.a, plan.b, plan.d].map(|matrix| Kind::of_cuda(matrix.kind)) else {
        return NOT_SUPPORTED;
    };
    let size = |size: i64| u64::try_from(size).unwrap_or(0);
    let transposed = plan.transposed.map(|operation| operation != 0);
    let depth = size(if transposed[0] { plan.a.rows } else { plan.a.columns });
    let product = Product {
        kinds: [a, b, d],
        transposed,
        rows: size(plan.d.rows),
        columns: size(plan.d.columns),
        depth,
        batch: 1,
    };
    // SAFETY: cuSPARSELt requires that `streams` has `count` elements, which is at least one.
    let stream = if count > 0 && !streams.is_null() { unsafe { *streams } } else { std::ptr::null_mut() };
    product.launch("cusparseLt", "", stream);
    SUCCESS
}

/// Descriptors fit into the program's 512 bytes.
const _: () = assert!(size_of::<MaybeUninit<Multiplication>>() <= 512);
