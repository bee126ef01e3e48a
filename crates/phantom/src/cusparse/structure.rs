//! Owns the structure of sparse results: products and sums of two sparse matrices, whose sizes the program must know.
//! Indices are read from memory and the result's indices are computed; values are not computed.

use super::{
    EXECUTION_FAILED, INVALID_VALUE, Matrix, Of, Pointer, SUCCESS, Settings, Status, create, destroy, routine, wrote,
};
use crate::exports::{Out, Put, exports, family};
use crate::kinds::{C64, C128, F32, F64, Kind};
use crate::streams;
use crate::unimplemented::warn;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};

/// `CUSPARSE_INDEX_32I`, `CUSPARSE_INDEX_64I`
const INDEX_32: c_int = 2;
const INDEX_64: c_int = 3;

/// Compressed rows: the offset of each row in the list of columns, and the sorted columns of its elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    offsets: Vec<i64>,
    columns: Vec<i64>,
}

/// `cusparseSpGEMMDescr_t`: structure of the product, once it was computed.
#[derive(Default)]
struct Product(Option<Rows>);

exports! {
    fn cusparseSpGEMM_createDescr(place: Out<*mut Product>) -> Status { create(place, Product::default()) }
    fn cusparseSpGEMM_destroyDescr(product: *mut Product) -> Status { destroy(product) }
    /// The buffer size is 0: neither this step nor the next needs a device buffer.
    fn cusparseSpGEMM_workEstimation(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: Option<&Matrix>, _b: Option<&Matrix>, _beta: Pointer,
        _c: Option<&Matrix>, _compute: c_int, _algorithm: c_int, _product: *mut Product, size: Out<usize>, _buffer: Pointer,
    ) -> Status { wrote(size.put(0)) }
    fn cusparseSpGEMM_compute(
        handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, a: Option<&Matrix>, b: Option<&Matrix>, _beta: Pointer,
        c: Option<&mut Matrix>, _compute: c_int, _algorithm: c_int, product: Option<&mut Product>, size: Out<usize>, _buffer: Pointer,
    ) -> Status {
        let (Some(a), Some(b), Some(c), Some(product)) = (a, b, c, product) else { return INVALID_VALUE };
        // Programs call this function again if the buffer size is zero.
        if product.0.is_none() {
            let Some(rows) = a.rows_of().zip(b.rows_of()).and_then(|(a, b)| multiply(&a, &b)) else { return no_indices("products") };
            c.count = rows.columns.len() as i64;
            product.0 = Some(rows);
            let status = routine(handle, "spgemm", [Some(a), Some(b), Some(&*c)]);
            if status != SUCCESS {
                return status;
            }
        }
        wrote(size.put(0))
    }
    fn cusparseSpGEMM_copy(
        _handle: Of, _a_op: c_int, _b_op: c_int, _alpha: Pointer, _a: Option<&Matrix>, _b: Option<&Matrix>, _beta: Pointer,
        c: Option<&Matrix>, _compute: c_int, _algorithm: c_int, product: Option<&Product>,
    ) -> Status {
        let (Some(c), Some(Product(Some(rows)))) = (c, product) else { return INVALID_VALUE };
        c.write(rows);
        SUCCESS
    }

    fn cusparseXcsrgeam2Nnz(
        _handle: Of, m: c_int, n: c_int, _a: *const Settings, a_count: c_int, a_rows: *const i32, a_columns: *const i32, _b: *const Settings,
        b_count: c_int, b_rows: *const i32, b_columns: *const i32, _c: *const Settings, c_rows: *mut i32, total: Out<c_int>,
        _workspace: Pointer,
    ) -> Status {
        let Some(sum) = add([m, n], [a_count, b_count], [a_rows, b_rows], [a_columns, b_columns]) else { return no_indices("sums") };
        // SAFETY: cuSPARSE requires space for an offset per row and the end.
        unsafe { put(&sum.offsets, c_rows.cast(), INDEX_32) };
        wrote(total.put(sum.columns.len() as c_int))
    }
}

family! {
    cusparseScsrgeam2_bufferSizeExt (), cusparseDcsrgeam2_bufferSizeExt (), cusparseCcsrgeam2_bufferSizeExt (),
    cusparseZcsrgeam2_bufferSizeExt ();
    _none => (
        _handle: Of, _m: c_int, _n: c_int, _alpha: Pointer, _a: *const Settings, _a_count: c_int, _a_values: Pointer, _a_rows: *const i32,
        _a_columns: *const i32, _beta: Pointer, _b: *const Settings, _b_count: c_int, _b_values: Pointer, _b_rows: *const i32,
        _b_columns: *const i32, _c: *const Settings, _c_values: Pointer, _c_rows: *const i32, _c_columns: *const i32, size: Out<usize>,
    ) -> Status {
        wrote(size.put(0))
    }
}
family! {
    cusparseScsrgeam2 F32, cusparseDcsrgeam2 F64, cusparseCcsrgeam2 C64, cusparseZcsrgeam2 C128;
    kind => (
        handle: Of, m: c_int, n: c_int, _alpha: Pointer, _a: *const Settings, a_count: c_int, _a_values: Pointer, a_rows: *const i32,
        a_columns: *const i32, _beta: Pointer, _b: *const Settings, b_count: c_int, _b_values: Pointer, b_rows: *const i32,
        b_columns: *const i32, _c: *const Settings, _c_values: Pointer, _c_rows: *const i32, c_columns: *mut i32, _buffer: Pointer,
    ) -> Status {
        let Some(library) = handle else { return INVALID_VALUE };
        let Some(sum) = add([m, n], [a_count, b_count], [a_rows, b_rows], [a_columns, b_columns]) else { return no_indices("sums") };
        // SAFETY: cuSPARSE requires space for as many columns as the former step has counted.
        unsafe { put(&sum.columns, c_columns.cast(), INDEX_32) };
        let kind: Kind = kind;
        let elements = sum.columns.len() as u64 + u64::from(a_count.unsigned_abs()) + u64::from(b_count.unsigned_abs());
        streams::launch(library.stream, &format!("cusparse csrgeam {} {m}x{n}", kind.name), kind.bytes(elements) + 4 * elements);
        SUCCESS
    }
}

fn no_indices(what: &str) -> Status {
    warn(&format!("libcusparse: {what} of sparse matrices need the values of their indices; the program got an error"));
    EXECUTION_FAILED
}

impl Matrix {
    /// Structure of the matrix; `None` if it has no compressed rows or invalid indices.
    fn rows_of(&self) -> Option<Rows> {
        let (rows, count) = (usize::try_from(self.rows).ok()?, usize::try_from(self.count).ok()?);
        // SAFETY: the program described the matrix with these numbers of rows and elements, as cuSPARSE requires.
        let [offsets, columns] = unsafe {
            [
                read(self.offsets, rows + 1, self.offset_kind, self.base)?,
                read(self.places, count, self.place_kind, self.base)?,
            ]
        };
        Rows { offsets, columns }.checked(self.columns)
    }

    /// Writes the indices to the program's arrays.
    fn write(&self, rows: &Rows) {
        let shifted = |list: &[i64]| list.iter().map(|index| index + i64::from(self.base)).collect::<Vec<_>>();
        // SAFETY: cuSPARSE requires arrays for the number of elements that the former step returned.
        unsafe {
            put(&shifted(&rows.offsets), self.offsets, self.offset_kind);
            put(&shifted(&rows.columns), self.places, self.place_kind);
        }
    }
}

impl Rows {
    /// The rows, if all offsets and columns are in bounds.
    fn checked(self, columns: i64) -> Option<Rows> {
        let end = self.columns.len() as i64;
        let rises = self.offsets.first() == Some(&0) && self.offsets.is_sorted() && self.offsets.last() == Some(&end);
        (rises && self.columns.iter().all(|column| (0..columns).contains(column))).then_some(self)
    }

    fn row(&self, index: usize) -> &[i64] {
        &self.columns[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    fn of(rows: impl Iterator<Item = BTreeSet<i64>>) -> Rows {
        let mut result = Rows { offsets: vec![0], columns: Vec::new() };
        for row in rows {
            result.columns.extend(row);
            result.offsets.push(result.columns.len() as i64);
        }
        result
    }
}

/// Structure of the product of two matrices; `None` if their sizes do not match.
fn multiply(a: &Rows, b: &Rows) -> Option<Rows> {
    let inner = b.offsets.len() as i64 - 1;
    let fits = a.columns.iter().all(|&column| column < inner);
    let row = |i| a.row(i).iter().flat_map(|&k| b.row(k as usize)).copied().collect();
    fits.then(|| Rows::of((0..a.offsets.len() - 1).map(row)))
}

/// Structure of the sum of two matrices with 32-bit indices.
fn add(sizes: [c_int; 2], counts: [c_int; 2], offsets: [*const i32; 2], columns: [*const i32; 2]) -> Option<Rows> {
    let [rows, width] = sizes;
    let read = |which: usize| {
        let (rows, count) = (usize::try_from(rows).ok()?, usize::try_from(counts[which]).ok()?);
        // SAFETY: cuSPARSE requires that the arrays have `rows + 1` and `count` elements.
        let [offsets, columns] = unsafe {
            [read(offsets[which].cast(), rows + 1, INDEX_32, 0)?, read(columns[which].cast(), count, INDEX_32, 0)?]
        };
        Rows { offsets, columns }.checked(i64::from(width))
    };
    let [a, b] = [read(0)?, read(1)?];
    Some(Rows::of((0..rows as usize).map(|i| a.row(i).iter().chain(b.row(i)).copied().collect())))
}

/// # Safety
/// `from` must have `count` indices of this kind; device memory is mapped in this process.
unsafe fn read(from: *const c_void, count: usize, kind: c_int, base: c_int) -> Option<Vec<i64>> {
    if from.is_null() && count > 0 {
        return None;
    }
    // SAFETY: the array has `count` indices of this kind, as the functions that describe matrices require.
    let at = |index| unsafe {
        match kind {
            INDEX_32 => Some(i64::from(from.cast::<i32>().add(index).read())),
            INDEX_64 => Some(from.cast::<i64>().add(index).read()),
            _ => None,
        }
    };
    (0..count).map(|index| at(index).map(|value| value - i64::from(base))).collect()
}

/// # Safety
/// `to` must have space for all indices, of this kind.
unsafe fn put(indices: &[i64], to: *mut c_void, kind: c_int) {
    if to.is_null() {
        return;
    }
    for (at, &index) in indices.iter().enumerate() {
        // SAFETY: the array has space for all indices, as the functions that size the result require.
        unsafe {
            if kind == INDEX_64 {
                to.cast::<i64>().add(at).write(index);
            } else {
                to.cast::<i32>().add(at).write(index as i32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(dense: &[&[i32]]) -> Rows {
        let places =
            |row: &&[i32]| (0..).zip(*row).filter(|(_, element)| **element != 0).map(|(column, _)| column).collect();
        Rows::of(dense.iter().map(places))
    }

    /// All elements are positive, so the product of the dense matrices is zero only for missing elements of the sparse
    /// product.
    #[test]
    fn a_product_has_elements_where_the_dense_one_has() {
        let a = rows(&[&[1, 0, 2], &[0, 0, 0], &[0, 3, 0]]);
        let b = rows(&[&[0, 1], &[0, 0], &[4, 5]]);
        assert_eq!(multiply(&a, &b), Some(rows(&[&[8, 11], &[0, 0], &[0, 0]])));
    }

    #[test]
    fn indices_out_of_bounds_are_refused() {
        let good = Rows { offsets: vec![0, 1, 2], columns: vec![1, 0] };
        assert!(good.clone().checked(2).is_some());
        assert_eq!(good.clone().checked(1), None);
        assert_eq!(Rows { offsets: vec![0, 2, 1], ..good.clone() }.checked(2), None);
        assert_eq!(Rows { offsets: vec![0, 0, 0], ..good }.checked(2), None);
    }

    #[test]
    fn a_sum_has_elements_where_either_has() {
        let offsets = [[0, 1, 1], [0, 1, 2]];
        let columns = [[2, 0], [0, 1]];
        let sum = add(
            [2, 3],
            [1, 2],
            offsets.each_ref().map(|list| list.as_ptr()),
            columns.each_ref().map(|list| list.as_ptr()),
        );
        assert_eq!(sum, Some(rows(&[&[1, 0, 1], &[0, 1, 0]])));
    }
}
