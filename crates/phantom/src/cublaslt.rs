//! Owns cuBLASLt: descriptions of GEMMs, and their launch. `cublasLt.h` of CUDA 13 has the prototypes and numbers.
//!
//! The heuristic returns one algorithm, which needs no workspace.

use crate::cublas::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS, VERSION, is_transposed, wrote};
use crate::device;
use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::matrices::Product;
use crate::streams::Handle;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// `cublasStatus_t`.
type Status = c_int;
type Pointer = *const c_void;

/// Attributes that the program has set on a matrix layout, a GEMM or preferences.
type Attributes = BTreeMap<c_int, Vec<u8>>;
type Of<'a> = Option<&'a Attributes>;

/// `cublasLtMatmulDescAttributes_t`
const COMPUTE_TYPE: c_int = 0;
const SCALE_TYPE: c_int = 1;
const TRANSPOSED_A: c_int = 3;
const TRANSPOSED_B: c_int = 4;
const EPILOGUE: c_int = 7;
/// `cublasLtMatrixLayoutAttribute_t`
const TYPE: c_int = 0;
const ROWS: c_int = 2;
const COLUMNS: c_int = 3;
const LEADING: c_int = 4;
const BATCH: c_int = 5;

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
pub(crate) struct Heuristic {
    /// `cublasLtMatmulAlgo_t`
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

const ONE_WAVE: Heuristic = Heuristic { algorithm: [0; 8], workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] };

exports! {
    fn cublasLtGetVersion() -> usize { VERSION as usize }
    fn cublasLtCreate(handle: Out<*mut Attributes>) -> Status { create(handle, []) }
    fn cublasLtDestroy(handle: *mut Attributes) -> Status { destroy(handle) }

    fn cublasLtMatmulDescCreate(description: Out<*mut Attributes>, compute: c_int, scale: c_int) -> Status {
        create(description, [(COMPUTE_TYPE, compute.to_ne_bytes().to_vec()), (SCALE_TYPE, scale.to_ne_bytes().to_vec())])
    }
    fn cublasLtMatmulDescDestroy(description: *mut Attributes) -> Status { destroy(description) }
    fn cublasLtMatmulDescSetAttribute(
        description: Option<&mut Attributes>, attribute: c_int, value: Pointer, size: usize,
    ) -> Status {
        set(description, attribute, value, size)
    }
    fn cublasLtMatmulDescGetAttribute(
        description: Of, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>,
    ) -> Status {
        get(description, attribute, value, size, written)
    }

    fn cublasLtMatrixLayoutCreate(layout: Out<*mut Attributes>, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status {
        let batch: i32 = 1;
        create(layout, [
            (TYPE, kind.to_ne_bytes().to_vec()),
            (ROWS, rows.to_ne_bytes().to_vec()),
            (COLUMNS, columns.to_ne_bytes().to_vec()),
            (LEADING, leading.to_ne_bytes().to_vec()),
            (BATCH, batch.to_ne_bytes().to_vec()),
        ])
    }
    fn cublasLtMatrixLayoutDestroy(layout: *mut Attributes) -> Status { destroy(layout) }
    fn cublasLtMatrixLayoutSetAttribute(
        layout: Option<&mut Attributes>, attribute: c_int, value: Pointer, size: usize,
    ) -> Status {
        set(layout, attribute, value, size)
    }
    fn cublasLtMatrixLayoutGetAttribute(
        layout: Of, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>,
    ) -> Status {
        get(layout, attribute, value, size, written)
    }

    fn cublasLtMatmulPreferenceCreate(preference: Out<*mut Attributes>) -> Status { create(preference, []) }
    fn cublasLtMatmulPreferenceDestroy(preference: *mut Attributes) -> Status { destroy(preference) }
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: Option<&mut Attributes>, attribute: c_int, value: Pointer, size: usize,
    ) -> Status {
        set(preference, attribute, value, size)
    }
    fn cublasLtMatmulPreferenceGetAttribute(
        preference: Of, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>,
    ) -> Status {
        get(preference, attribute, value, size, written)
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: Pointer, description: Of, a: Of, b: Of, _c: Of, d: Of, _preference: Of, requested: c_int, results: *mut Heuristic,
        found: Out<c_int>,
    ) -> Status {
        if requested < 1 || results.is_null() {
            return INVALID_VALUE;
        }
        match product(description, a, b, d) {
            Ok(_) => {
                // SAFETY: cuBLASLt requires space for as many results as requested, which is at least one.
                unsafe { results.write(ONE_WAVE) };
                found.put(1);
                SUCCESS
            }
            Err(status) => {
                found.put(0);
                status
            }
        }
    }
    fn cublasLtMatmulAlgoInit(
        _handle: Pointer, _compute: c_int, _scale: c_int, _a: c_int, _b: c_int, _c: c_int, _d: c_int, _id: c_int, algorithm: Out<[u64; 8]>,
    ) -> Status {
        wrote(algorithm.put(ONE_WAVE.algorithm))
    }
    fn cublasLtMatmulAlgoCheck(
        _handle: Pointer, description: Of, a: Of, b: Of, _c: Of, d: Of, _algorithm: Pointer, result: Out<Heuristic>,
    ) -> Status {
        product(description, a, b, d).map_or_else(|status| status, |_| wrote(result.put(ONE_WAVE)))
    }
    /// All attributes of the only algorithm are zero.
    fn cublasLtMatmulAlgoConfigGetAttribute(
        _algorithm: Pointer, _attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>,
    ) -> Status {
        if value.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: cuBLASLt requires that the program's buffer has `size` bytes.
        unsafe { value.cast::<u8>().write_bytes(0, size) };
        written.put(size);
        SUCCESS
    }
    fn cublasLtMatmulAlgoConfigSetAttribute(_algorithm: Pointer, _attribute: c_int, _value: Pointer, _size: usize) -> Status { SUCCESS }

    fn cublasLtMatmul(
        _handle: Pointer, description: Of, _alpha: Pointer, _a: Pointer, a_layout: Of, _b: Pointer, b_layout: Of, _beta: Pointer,
        _c: Pointer, _c_layout: Of, _d: Pointer, d_layout: Of, _algorithm: Pointer, _workspace: Pointer, _size: usize, stream: Handle,
    ) -> Status {
        match product(description, a_layout, b_layout, d_layout) {
            Ok(product) => {
                let epilogue = description.and_then(|description| number(description, EPILOGUE)).unwrap_or(1);
                product.launch("cublasLt", &suffix(epilogue), stream);
                SUCCESS
            }
            Err(status) => status,
        }
    }
}

fn create<const N: usize>(place: Out<*mut Attributes>, attributes: [(c_int, Vec<u8>); N]) -> Status {
    match place {
        Some(place) => {
            place.write(Box::into_raw(Box::new(attributes.into())));
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}

fn destroy(attributes: *mut Attributes) -> Status {
    if !attributes.is_null() {
        // SAFETY: the pointer comes from `create`, and cuBLASLt forbids programs to use it after its destruction.
        drop(unsafe { Box::from_raw(attributes) });
    }
    SUCCESS
}

fn set(attributes: Option<&mut Attributes>, attribute: c_int, value: Pointer, size: usize) -> Status {
    match attributes {
        Some(attributes) if !value.is_null() => {
            // SAFETY: cuBLASLt requires that the program's buffer has `size` bytes.
            attributes.insert(attribute, unsafe { from_raw_parts(value.cast::<u8>(), size) }.to_vec());
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

/// Reads an attribute; an unset attribute is zero.
fn get(attributes: Of, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>) -> Status {
    let Some(attributes) = attributes else { return INVALID_VALUE };
    let is_set = attributes.get(&attribute);
    if !value.is_null() {
        // SAFETY: cuBLASLt requires that the program's buffer has `size` bytes.
        let place = unsafe { from_raw_parts_mut(value.cast::<u8>(), size) };
        place.fill(0);
        for (to, from) in place.iter_mut().zip(is_set.into_iter().flatten()) {
            *to = *from;
        }
    }
    written.put(is_set.map_or(size, Vec::len));
    SUCCESS
}

/// Integer attribute of four or eight bytes; `None` if it is unset.
fn number(attributes: &Attributes, attribute: c_int) -> Option<u64> {
    let bytes = attributes.get(&attribute)?;
    match bytes.len() {
        4 => Some(u64::from(u32::from_ne_bytes(bytes[..].try_into().ok()?))),
        8 => Some(u64::from_ne_bytes(bytes[..].try_into().ok()?)),
        _ => None,
    }
}

/// GEMM of the descriptions. Element types without arithmetic on the device are refused.
fn product(description: Of, a: Of, b: Of, d: Of) -> Result<Product, Status> {
    let (Some(description), Some(a), Some(b), Some(d)) = (description, a, b, d) else { return Err(INVALID_VALUE) };
    let kind = |layout| number(layout, TYPE).and_then(|kind| Kind::of_cuda(kind as c_int)).ok_or(NOT_SUPPORTED);
    let size = |layout, attribute| number(layout, attribute).ok_or(INVALID_VALUE);
    let kinds = [kind(a)?, kind(b)?, kind(d)?];
    // CUDA's programming guide, appendix on compute capabilities: FP8 from 8.9, FP4 from 10.0.
    let least = kinds[..2].iter().map(|kind| match kind.name {
        "f8e4m3" | "f8e5m2" => [8, 9],
        "f4e2m1" => [10, 0],
        _ => [0, 0],
    });
    let has = device::get(device::current()).map_or([u32::MAX; 2], |device| device.capability);
    if least.max().is_some_and(|least| has < least) {
        return Err(NOT_SUPPORTED);
    }
    let transposed = [TRANSPOSED_A, TRANSPOSED_B]
        .map(|side| number(description, side).is_some_and(|operation| is_transposed(operation as c_int)));
    let depth = size(a, if transposed[0] { ROWS } else { COLUMNS })?;
    Ok(Product { kinds, transposed, rows: size(d, ROWS)?, columns: size(d, COLUMNS)?, depth, batch: size(d, BATCH)? })
}

/// Suffix of the kernel's name for an epilogue: bits of `cublasLtEpilogue_t`.
fn suffix(epilogue: u64) -> String {
    let parts = [
        (2, "relu"),
        (4, "bias"),
        (8, "drelu"),
        (16, "bgrad"),
        (32, "gelu"),
        (64, "dgelu"),
        (128, "aux"),
        (256, "bgrada"),
        (512, "bgradb"),
    ];
    parts.iter().filter(|(bit, _)| epilogue & bit != 0).map(|(_, part)| format!(" {part}")).collect()
}
