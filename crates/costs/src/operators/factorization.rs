//! Owns dense linear algebra: factorizations of matrices and solvers, by the blocked algorithms of LAPACK (Anderson et
//! al., LAPACK Users' Guide, third edition, 1999, with its counts of operations).
//!
//! A factorization proceeds block by block of columns. The columns of a block depend on each other, so each runs a
//! kernel of its own, except in Cholesky's factorization, whose blocks one multiprocessor computes; GEMMs then update
//! the remaining columns. Matrices of a batch are processed in parallel. Libraries also use other algorithms: several
//! columns in one kernel, which is faster, and Jacobi's method for singular values, which is slower. No device was
//! measured, so [`is_rough`] marks these operators.

use super::Part;
use super::call::{Call, product};
use super::gemm::Gemm;
use uniference_formats::operators::{Argument, Definition, Tensor};
use uniference_sim::device::{Family, FlatKind, Layout};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

/// Columns of a block.
const BLOCK: u64 = 64;

/// Largest number of blocks that are costed one by one; more are costed in this many groups of equal size.
const GROUPS: u64 = 8;

pub(super) fn describe(call: Call<'_>) -> Option<Vec<Part>> {
    let matrix = |at: usize| Matrix::of(call.tensor(at)?);
    let columns = |at: usize| call.tensor(at)?.sizes.last().copied();
    // Number of vectors on the other side of an equation with a matrix on the left, or, by the flag, on the right.
    let vectors = |at: usize, is_left: usize| {
        let right = matrix(at)?;
        let is_right = call.argument(is_left) == Some(&Argument::Bool(false));
        Some(if is_right { right.rows } else { right.columns })
    };
    Some(match call.name {
        "linalg_cholesky_ex" | "cholesky" | "linalg_ldl_factor_ex" => matrix(0)?.cholesky(),
        "linalg_lu_factor_ex" | "linalg_lu" | "_linalg_det" | "_linalg_slogdet" => matrix(0)?.lu(),
        "linalg_inv_ex" => {
            let matrix = matrix(0)?;
            [matrix.lu(), matrix.solve(matrix.columns, 2)].concat()
        }
        "_linalg_solve_ex" => {
            let (matrix, of_a_vector) = (matrix(0)?, call.tensor(1)?.sizes.len() < call.tensor(0)?.sizes.len());
            [matrix.lu(), matrix.solve(if of_a_vector { 1 } else { vectors(1, 2)? }, 2)].concat()
        }
        "linalg_lu_solve" => matrix(0)?.solve(vectors(2, 3)?, 2),
        "linalg_ldl_solve" => matrix(0)?.solve(columns(2)?, 2),
        "cholesky_solve" => matrix(1)?.solve(columns(0)?, 2),
        "cholesky_inverse" => matrix(0)?.solve(columns(0)?, 2),
        "linalg_solve_triangular" => matrix(0)?.solve(vectors(1, 3)?, 1),
        "triangular_solve" => matrix(1)?.solve(columns(0)?, 1),
        "geqrf" => matrix(0)?.qr(),
        "linalg_qr" => {
            let (matrix, r_alone) = (matrix(0)?, Argument::Text("r".to_owned()));
            let q = (call.argument(1) != Some(&r_alone)).then(|| matrix.reflect(columns_of_q(call, &matrix)));
            [matrix.qr(), q.unwrap_or_default()].concat()
        }
        "linalg_householder_product" => {
            let matrix = matrix(0)?;
            matrix.reflect(matrix.columns)
        }
        "ormqr" => matrix(0)?.reflect(vectors(2, 3)?),
        "linalg_lstsq" => {
            let (matrix, right) = (matrix(0)?.upright(), columns(1)?);
            [matrix.qr(), matrix.reflect(right), matrix.square().solve(right, 1)].concat()
        }
        "_linalg_eigh" => matrix(0)?.symmetric_eigenvalues(call.flag(2)),
        "_linalg_svd" => {
            let vectors = if call.flag(1) { Vectors::All } else { Vectors::OfValues };
            matrix(0)?.singular_values(if call.flag(2) { vectors } else { Vectors::None })
        }
        // One status number per matrix, which is zero on success.
        "_linalg_check_errors" => {
            let numbers = call.tensor(0)?;
            let bytes = Bytes(product(&[numbers.elements(), numbers.dtype.bytes()]));
            let family = Family::Flat { kind: FlatKind::Elementwise, elements: numbers.elements() };
            vec![Part::inside(family, numbers.dtype.dtype(), 0, bytes, Bytes(0), "any")]
        }
        "linalg_pinv" => {
            let (matrix, is_hermitian) = (matrix(0)?.upright(), call.flag(3));
            let together = matrix.product(matrix.columns, matrix.rows, matrix.columns);
            let values = || matrix.singular_values(Vectors::OfValues);
            let parts = if is_hermitian { matrix.symmetric_eigenvalues(true) } else { values() };
            [parts, vec![together]].concat()
        }
        _ => return None,
    })
}

/// Whether an operator's time may be off by several times, as it follows from an algorithm that was measured on no
/// device.
pub fn is_rough(definition: &Definition) -> bool {
    let call = Call::new(definition);
    definition.name.starts_with("aten::") && call.name != "_linalg_check_errors" && describe(call).is_some()
}

/// Number of columns of Q: from its result, or else the number of rows.
fn columns_of_q(call: Call<'_>, matrix: &Matrix) -> u64 {
    call.result(0).and_then(|q| q.sizes.last().copied()).unwrap_or(matrix.rows)
}

/// A batch of matrices.
#[derive(Clone, Copy)]
struct Matrix {
    batch: u64,
    rows: u64,
    columns: u64,
    dtype: Option<DType>,
    size: u64,
}

/// Requested singular vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vectors {
    None,
    /// One vector per singular value.
    OfValues,
    /// As many vectors as the matrix has rows, and as many as it has columns.
    All,
}

/// Blocks of a factorization with equal cost.
struct Block {
    /// Number of such blocks.
    times: u64,
    /// Columns of each block.
    width: u64,
    /// Mean number of columns before a block.
    done: u64,
}

impl Matrix {
    fn of(tensor: &Tensor) -> Option<Matrix> {
        let [batch @ .., rows, columns] = &tensor.sizes[..] else { return None };
        let (dtype, size) = (tensor.dtype.dtype(), tensor.dtype.bytes());
        Some(Matrix { batch: product(batch), rows: *rows, columns: *columns, dtype, size })
    }

    /// The matrix cut to as many rows as columns.
    fn square(self) -> Matrix {
        Matrix { rows: self.columns, ..self }
    }

    /// The matrix transposed if it has more columns than rows.
    fn upright(self) -> Matrix {
        let (rows, columns) = (self.rows.max(self.columns), self.rows.min(self.columns));
        Matrix { rows, columns, ..self }
    }

    /// The blocks of all columns that have a row.
    fn blocks(&self) -> Vec<Block> {
        let columns = self.columns.min(self.rows);
        let count = columns.div_ceil(BLOCK);
        let groups = count.min(GROUPS);
        let block = |group: u64| {
            let (first, next) = (count * group / groups, count * (group + 1) / groups);
            // Blocks of equal size: the last is no narrower than the others.
            let begin = |block: u64| columns * block / count;
            Block {
                times: next - first,
                width: (columns / count).max(1),
                done: u64::midpoint(begin(first), begin(next - 1)),
            }
        };
        (0..groups).map(block).collect()
    }

    /// Remaining rows and columns, including the block's own.
    fn left(&self, block: &Block) -> (u64, u64) {
        (self.rows.saturating_sub(block.done), self.columns.saturating_sub(block.done))
    }

    /// A batched GEMM with one GEMM per matrix: `m x k` by `k x n`.
    fn product(&self, m: u64, n: u64, k: u64) -> Part {
        let gemm = Gemm { batch: self.batch, m, n, k, layout: Layout::NN };
        let bytes = |elements: u64| Bytes(product(&[self.batch, elements, self.size]));
        let read = bytes(product(&[m, k]).saturating_add(product(&[k, n])));
        let written = bytes(product(&[m, n]));
        Part::inside(gemm.family(), self.dtype, gemm.flops(), read, written, gemm.layout.name())
    }

    /// A kernel that reads and writes so many elements of each matrix.
    fn pass(&self, elements: u64) -> Part {
        let elements = self.batch.saturating_mul(elements);
        let bytes = Bytes(elements.saturating_mul(self.size));
        let family = Family::Flat { kind: FlatKind::Elementwise, elements };
        Part::inside(family, self.dtype, 0, bytes, bytes, "add")
    }

    /// Parts of all groups of blocks; `parts` gets the block and the remaining rows and columns.
    fn by_blocks(&self, parts: impl Fn(&Block, u64, u64) -> Vec<Part>) -> Vec<Part> {
        let group = |block: Block| {
            let (rows, columns) = self.left(&block);
            parts(&block, rows, columns).into_iter().map(move |part| part.repeated(block.times))
        };
        // A GEMM with a zero dimension is dropped.
        let is_one = |part: &Part| part.operator.written.0 > 0 && part.operator.read.0 > 0;
        self.blocks().into_iter().flat_map(group).filter(is_one).collect()
    }

    /// n^3 / 3 operations. One kernel factorizes the block on the diagonal.
    fn cholesky(self) -> Vec<Part> {
        self.by_blocks(|block, rows, _| {
            let (width, below) = (block.width, rows.saturating_sub(block.width));
            let triangle = self.product(below, width, width.div_ceil(2));
            vec![self.pass(width * width), triangle, self.product(below, below.div_ceil(2), width)]
        })
    }

    /// 2 n^3 / 3 operations, with rows exchanged in each column.
    fn lu(self) -> Vec<Part> {
        self.by_blocks(|block, rows, columns| {
            let (width, below, beside) =
                (block.width, rows.saturating_sub(block.width), columns.saturating_sub(block.width));
            let column = self.pass(rows.saturating_mul(width)).repeated(width);
            let triangle = self.product(width, beside, width.div_ceil(2));
            vec![column, triangle, self.product(below, beside, width)]
        })
    }

    /// 2 n^2 (m - n / 3) operations: reflectors of a block's columns, which are then applied to the remaining columns.
    fn qr(self) -> Vec<Part> {
        self.by_blocks(|block, rows, columns| {
            let (width, beside) = (block.width, columns.saturating_sub(block.width));
            let column = self.pass(rows.saturating_mul(width)).repeated(width);
            vec![column, self.product(width, beside, rows), self.product(rows, beside, width)]
        })
    }

    /// Applies the reflectors of all columns to so many vectors.
    fn reflect(self, vectors: u64) -> Vec<Part> {
        self.by_blocks(|block, rows, _| {
            vec![self.product(block.width, vectors, rows), self.product(rows, vectors, block.width)]
        })
    }

    /// Solves with one triangle or two, for so many vectors: n^2 operations for each.
    fn solve(self, vectors: u64, triangles: u64) -> Vec<Part> {
        self.by_blocks(|block, rows, _| {
            let (width, below) = (block.width, rows.saturating_sub(block.width));
            let solved = self.product(width, vectors, width.div_ceil(2));
            [solved, self.product(below, vectors, width)].map(|part| part.repeated(triangles)).into()
        })
    }

    /// Reduction to tridiagonal form, 4 n^3 / 3 operations, half of them products of the remaining matrix and a vector,
    /// one per column. Then eigenvectors by divide and conquer, 4 n^3 / 3, and their back-transformation, 2 n^3.
    fn symmetric_eigenvalues(self, with_vectors: bool) -> Vec<Part> {
        let mut parts = self.by_blocks(|block, left, _| {
            let width = block.width;
            let vector = self.product(left, 1, left).repeated(width);
            let column = self.pass(left.saturating_mul(width)).repeated(width);
            vec![vector, column, self.product(left, left, width)]
        });
        if with_vectors {
            parts.push(self.product(self.rows, self.rows, self.rows.saturating_mul(2).div_ceil(3)));
            parts.extend(self.reflect(self.columns));
        }
        parts
    }

    /// Reduction to bidiagonal form, 4 n^2 (m - n / 3) operations, half of them products of the remaining matrix and
    /// two vectors per column. Then singular vectors by divide and conquer, 4 n^3, and their back-transformation.
    fn singular_values(self, vectors: Vectors) -> Vec<Part> {
        let matrix = self.upright();
        let mut parts = matrix.by_blocks(|block, rows, columns| {
            let width = block.width;
            let vectors = [matrix.product(rows, 1, columns), matrix.product(columns, 1, rows)];
            let [vectors, others] = vectors.map(|part| part.repeated(width));
            let column = matrix.pass(rows.saturating_mul(width)).repeated(width);
            vec![vectors, others, column, matrix.product(rows, columns, width).repeated(2)]
        });
        if vectors != Vectors::None {
            let columns = matrix.columns;
            parts.push(matrix.product(columns, columns, columns.saturating_mul(2)));
            parts.extend(matrix.reflect(if vectors == Vectors::All { matrix.rows } else { columns }));
            parts.extend(matrix.square().reflect(columns));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Described;

    fn matrix(rows: u64, columns: u64) -> Matrix {
        Matrix { batch: 1, rows, columns, dtype: Some(DType::Float32), size: 4 }
    }

    fn flops(parts: Vec<Part>) -> f64 {
        Described::Parts(parts).flops() as f64
    }

    /// Comparison with LAPACK's counts, which hold for many columns.
    #[test]
    fn operations_are_those_of_lapack() {
        let (m, n) = (8192, 4096);
        let (square, tall, [rows, columns]) = (matrix(n, n), matrix(m, n), [m as f64, n as f64]);
        let cube = columns.powi(3);
        for (what, found, expected) in [
            ("cholesky", square.cholesky(), cube / 3.0),
            ("lu", square.lu(), cube * 2.0 / 3.0),
            ("solve", square.solve(n, 2), cube * 2.0),
            ("qr", tall.qr(), 2.0 * columns.powi(2) * (rows - columns / 3.0)),
            ("reflect", tall.reflect(n), 2.0 * columns.powi(2) * (2.0 * rows - columns)),
            ("tridiagonal", square.symmetric_eigenvalues(false), cube * 4.0 / 3.0),
            ("eigenvectors", square.symmetric_eigenvalues(true), cube * (4.0 + 4.0 + 6.0) / 3.0),
            ("bidiagonal", tall.singular_values(Vectors::None), 4.0 * columns.powi(2) * (rows - columns / 3.0)),
        ] {
            let found = flops(found);
            assert!((found / expected - 1.0).abs() < 0.03, "{what}: {found:e} instead of {expected:e}");
        }
    }

    /// At least one kernel runs per column, and none for a matrix without elements.
    #[test]
    fn columns_come_one_after_the_other() {
        let kernels = |parts: &[Part]| parts.iter().map(|part| part.times).sum::<u64>();
        assert_eq!(kernels(&matrix(1, 1).lu()), 1);
        assert_eq!(kernels(&matrix(5, 5).qr()), 5);
        let parts = matrix(1000, 1000).lu();
        let columns: u64 = parts.iter().filter(|part| part.operator.flops == 0).map(|part| part.times).sum();
        assert!((960..=1000).contains(&columns), "{columns}");
        assert!(matrix(0, 7).qr().is_empty());
        let side_by_side = Matrix { batch: 9, ..matrix(5, 5) };
        assert_eq!(kernels(&side_by_side.qr()), 5);
    }
}
