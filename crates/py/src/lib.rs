//! The Python extension: conversions and exceptions only. What is behind them is `uniference-host`'s; `python/uniference/_native.pyi`
//! is its documentation.

mod chakra;
mod channel;
mod site;
mod tensors;

use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the command line; returns the exit code.
#[pyfunction]
fn cli(py: Python<'_>, argv: Vec<OsString>) -> PyResult<i32> {
    let python: PathBuf = py.import("sys")?.getattr("executable")?.extract()?;
    let extension: PathBuf = py.import("uniference._native")?.getattr("__file__")?.extract()?;
    uniference_host::live::zygote::preload(extension);
    let code = py.detach(|| uniference_host::cli::main(argv, &python));
    // A Ctrl-C that did not end the process was a run's to handle, and was: the interpreter must not raise KeyboardInterrupt for it again.
    let _ = py.check_signals();
    Ok(code)
}

/// The kernel kills this process when its parent dies; if that has already happened, it ends at once.
#[pyfunction]
fn die_with_parent() {
    uniference_host::live::zygote::die_with_parent();
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cli, module)?)?;
    module.add_function(wrap_pyfunction!(die_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(channel::combines, module)?)?;
    module.add_function(wrap_pyfunction!(site::set_libraries, module)?)?;
    module.add_function(wrap_pyfunction!(site::user_line, module)?)?;
    chakra::register(module)?;
    module.add_class::<channel::Channel>()
}
