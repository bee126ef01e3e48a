//! The Python extension: conversions and exceptions only. Other crates implement its functions;
//! `python/uniference/_native.pyi` documents them.

mod capture;
mod chakra;
mod channel;
mod child;
mod clocks;
mod gpus;
mod kernels;
mod site;
mod tensors;
mod writes;

use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use uniference_abi::entries::MemoryKind;
use uniference_sim::time::SimTime;

/// Runs the command line; returns the exit code.
#[pyfunction]
fn cli(py: Python<'_>, argv: Vec<OsString>) -> PyResult<i32> {
    let python: PathBuf = py.import("sys")?.getattr("executable")?.extract()?;
    let extension: PathBuf = py.import("uniference._native")?.getattr("__file__")?.extract()?;
    uniference_host::live::zygote::preload(extension);
    let code = py.detach(|| uniference_cli::main(argv, Some(&python)));
    // If Ctrl-C did not end the process, a run has handled it: the interpreter must not raise KeyboardInterrupt again.
    let _ = py.check_signals();
    Ok(code)
}

/// Interval at which a simulation lets Python handle signals, and reports its progress.
const PERIOD: Duration = Duration::from_millis(100);

/// Carries out a command line that needs no other process. Returns the exit code, the output and, for a completed
/// simulation, the folder and the report. `progress` is called with the virtual time in seconds and the number of
/// completed operations.
#[pyfunction]
#[pyo3(signature = (argv, progress = None))]
fn carry_out(py: Python<'_>, argv: Vec<OsString>, progress: Option<Py<PyAny>>) -> PyResult<Ended> {
    let asked = Mutex::new(Instant::now());
    let watch = move |at: SimTime, operations: u64| {
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.elapsed() < PERIOD {
            return;
        }
        let heard = Python::attach(|py| {
            py.check_signals()?;
            progress.as_ref().map(|progress| progress.call1(py, (at.as_secs_f64(), operations))).transpose()
        });
        *asked = Instant::now();
        if let Err(error) = heard {
            // The simulation has no call that ends it, so unwinding ends it, and closes its files.
            resume_unwind(Box::new(error));
        }
    };
    match py.detach(|| catch_unwind(AssertUnwindSafe(|| uniference_cli::carry_out(&argv, watch)))) {
        Ok(uniference_cli::Carried { exit, said, results }) => Ok((exit, said, results)),
        Err(unwound) => match unwound.downcast::<PyErr>() {
            Ok(error) => Err(*error),
            Err(panic) => resume_unwind(panic),
        },
    }
}

type Ended = (i32, String, Option<(PathBuf, String)>);

/// Makes the kernel kill this process when its parent dies; if the parent is already dead, the process ends at once.
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
    let kinds = MemoryKind::ALL.iter().map(|kind| (format!("{kind:?}").to_lowercase(), *kind as u8));
    module.add("MEMORY_KINDS", kinds.collect::<BTreeMap<_, _>>())?;
    module.add_function(wrap_pyfunction!(capture::check_capture, module)?)?;
    module.add_function(wrap_pyfunction!(channel::scalar_type, module)?)?;
    module.add_function(wrap_pyfunction!(site::set_libraries, module)?)?;
    module.add_function(wrap_pyfunction!(site::user_line, module)?)?;
    module.add_function(wrap_pyfunction!(clocks::read_clock, module)?)?;
    module.add_function(wrap_pyfunction!(writes::open_memory, module)?)?;
    module.add_function(wrap_pyfunction!(writes::write_memory, module)?)?;
    module.add_class::<clocks::ClockServer>()?;
    module.add_class::<kernels::TritonKernel>()?;
    chakra::register(module)?;
    module.add_class::<channel::Channel>()
}
