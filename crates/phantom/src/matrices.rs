//! Owns names and bytes of GEMMs, which cuBLAS and cuBLASLt launch.

use crate::kinds::Kind;
use crate::streams::{self, Handle};
use std::fmt::Write as _;

/// `C = A B`, with `A` of m rows and k columns, for each element of a batch.
pub(crate) struct Product {
    /// Element types of `A`, `B` and `C`.
    pub(crate) kinds: [Kind; 3],
    /// Whether `A` and `B` are transposed (`CUBLAS_OP_T`, `CUBLAS_OP_C`).
    pub(crate) transposed: [bool; 2],
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) depth: u64,
    pub(crate) batch: u64,
}

impl Product {
    /// Launches a kernel that is named by library, types, layout and sizes: `cublas gemm bf16 tn 4096x1024x512`.
    /// `suffix` describes the epilogue.
    pub(crate) fn launch(&self, library: &str, suffix: &str, stream: Handle) {
        let Product { kinds: [a, b, c], transposed, rows, columns, depth, batch } = *self;
        if rows == 0 || columns == 0 || batch == 0 {
            return;
        }
        let letter = |transposed: bool| if transposed { 't' } else { 'n' };
        let mut name = String::with_capacity(80);
        name.extend([library, " gemm ", a.name]);
        if b != a {
            name.extend([",", b.name]);
        }
        if c != a {
            name.extend(["->", c.name]);
        }
        // Writing to a string cannot fail.
        let _ = write!(name, " {}{} {rows}x{columns}x{depth}", letter(transposed[0]), letter(transposed[1]));
        if batch > 1 {
            let _ = write!(name, " batch {batch}");
        }
        name.push_str(suffix);
        let bytes = a.bytes(rows * depth) + b.bytes(depth * columns) + c.bytes(rows * columns);
        streams::launch(stream, &name, bytes.saturating_mul(batch));
    }
}
