//! The Python extension: conversions and exceptions only. What is behind them is `uniference-host`'s; `python/uniference/_native.pyi`
//! is its documentation.

mod capture;
mod chakra;
mod channel;
mod gpus;
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
    let code = py.detach(|| uniference_cli::main(argv, Some(&python)));
    // A Ctrl-C that did not end the process was a run's to handle, and was: the interpreter must not raise KeyboardInterrupt for it again.
    let _ = py.check_signals();
    Ok(code)
}

/// Carries out what words of the command line say and no other process is needed for: exit code, what is said, and of a simulation that
/// has come to its end the folder and the report.
#[pyfunction]
fn carry_out(py: Python<'_>, argv: Vec<OsString>) -> (i32, String, Option<(PathBuf, String)>) {
    let uniference_cli::Carried { exit, said, results } = py.detach(|| uniference_cli::carry_out(&argv));
    (exit, said, results)
}

/// The kernel kills this process when its parent dies; if that has already happened, it ends at once.
#[pyfunction]
fn die_with_parent() {
    uniference_client::die_with_parent();
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cli, module)?)?;
    module.add_function(wrap_pyfunction!(carry_out, module)?)?;
    module.add_function(wrap_pyfunction!(die_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(gpus::attach_gpus, module)?)?;
    module.add_function(wrap_pyfunction!(channel::combines, module)?)?;
    module.add_function(wrap_pyfunction!(site::set_libraries, module)?)?;
    module.add_function(wrap_pyfunction!(site::user_line, module)?)?;
    chakra::register(module)?;
    module.add_class::<channel::Channel>()
}
