//! Owns Triton kernels as Python objects: parsed once from the text of their TTIR, then run for a grid.

// Kernels get addresses.
#![allow(unsafe_code)]

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use uniference_triton::{Argument, Kernel, Stopped};

/// A kernel that can be run; documented in `_native.pyi`.
#[pyclass(frozen)]
pub(crate) struct TritonKernel(Kernel);

/// An integer, an address or a floating-point number.
#[derive(FromPyObject)]
enum Number {
    Integer(i64),
    /// An address or an unsigned integer above the signed range.
    Unsigned(u64),
    Float(f64),
}

#[pymethods]
impl TritonKernel {
    #[new]
    fn new(text: &str) -> PyResult<TritonKernel> {
        Kernel::read(text).map(TritonKernel).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Number of arguments.
    fn __len__(&self) -> usize {
        self.0.parameters().count()
    }

    /// Indices of arguments through which the kernel may write.
    fn written(&self) -> Option<Vec<usize>> {
        self.0.written()
    }

    /// Runs the kernel; the caller guarantees that the addresses are valid.
    fn run(
        &self,
        py: Python<'_>,
        arguments: Vec<Number>,
        grid: (u32, u32, u32),
        uncomputed: Vec<(usize, usize)>,
    ) -> PyResult<Vec<(usize, usize)>> {
        let arguments: Vec<Argument> = arguments.into_iter().map(Argument::from).collect();
        let uncomputed: Vec<_> = uncomputed.into_iter().map(|(from, to)| from..to).collect();
        let mut signal = None;
        let mut goes_on = || py.check_signals().map_err(|error| signal = Some(error)).is_ok();
        // SAFETY: simulated memory lies in this process, and the program has launched the kernel with these addresses.
        let written =
            unsafe { self.0.run(&arguments, grid.into(), &uncomputed, &mut goes_on, &mut |text| print(py, text)) };
        match written {
            Ok(written) => Ok(written.into_iter().map(|span| (span.start, span.end)).collect()),
            Err(Stopped::Interrupted) => Err(signal.expect("it was asked")),
            Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
        }
    }

    /// Runs the kernel without writing to memory.
    fn work(
        &self,
        py: Python<'_>,
        arguments: Vec<Number>,
        grid: (u32, u32, u32),
        memory: Vec<(usize, usize)>,
    ) -> PyResult<Option<Amounts>> {
        let memory: Vec<_> = memory.into_iter().map(|(from, to)| from..to).collect();
        let arguments: Vec<Argument> = arguments.into_iter().map(Argument::from).collect();
        let mut signal = None;
        let mut goes_on = || py.check_signals().map_err(|error| signal = Some(error)).is_ok();
        // SAFETY: simulated memory lies in this process, and the program launches the kernel with these addresses.
        let work = unsafe { self.0.work(&arguments, grid.into(), &memory, &mut goes_on) };
        match work {
            Ok(work) => Ok(work.map(|work| {
                let integers = work.integers.into_iter().map(|span| (span.start, span.end)).collect();
                (work.products, work.operations, work.read, work.written, integers)
            })),
            Err(Stopped::Interrupted) => Err(signal.expect("it was asked")),
            Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
        }
    }
}

/// Prints to Python's `sys.stdout`, so that the order with the program's own lines is kept. Errors, as from a closed
/// stream, are ignored.
fn print(py: Python<'_>, text: &str) {
    let write = || py.import("sys")?.getattr("stdout")?.call_method1("write", (text,));
    let _ = write();
}

/// `Work` of `uniference_triton`, in its order.
type Amounts = ([u64; 4], [u64; 2], u64, u64, Vec<(usize, usize)>);

impl From<Number> for Argument {
    fn from(number: Number) -> Argument {
        match number {
            Number::Integer(number) => Argument::Integer(number),
            Number::Unsigned(number) => Argument::Integer(number as i64),
            Number::Float(number) => Argument::Float(number),
        }
    }
}
