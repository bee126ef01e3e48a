//! Owns the answer to "which line of the user's program is this?": the first frame outside the libraries that Python names.

// Frames are reached by the interpreter's C functions: each call of torch.distributed asks, and attributes take several times as long.
#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// What was found out, once.
#[derive(Default)]
struct Known {
    /// Beginnings of library files' names.
    libraries: Vec<String>,
    /// Whether code is a library's. It is kept, because the address of a code object that has gone may be another's.
    codes: BTreeMap<usize, (Py<PyAny>, bool)>,
    /// By code object and instruction, as finding the line of one takes long.
    lines: BTreeMap<(usize, i32), Py<PyString>>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// From here on code in files whose names begin so is not the user's.
#[pyfunction]
pub(crate) fn set_libraries(beginnings: Vec<OsString>) {
    let libraries = beginnings.iter().map(|beginning| beginning.to_string_lossy().into_owned()).collect();
    *known() = Known { libraries, ..Known::default() };
}

/// The user's line that is being executed, as "path:line".
#[pyfunction]
pub(crate) fn user_line(py: Python<'_>) -> PyResult<Py<PyString>> {
    // SAFETY: the interpreter's lock is held; a frame that runs, if there is one, is lent.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    while let Some(at) = frame {
        // SAFETY: it is a frame, and its code is a new reference.
        let code = unsafe { Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(at.as_ptr().cast()).cast()) };
        if !is_library(&code)? {
            return line(&at, &code);
        }
        let back = at.getattr(intern!(py, "f_back"))?;
        frame = (!back.is_none()).then_some(back);
    }
    Ok(PyString::new(py, "unknown:0").unbind())
}

fn is_library(code: &Bound<'_, PyAny>) -> PyResult<bool> {
    let address = code.as_ptr() as usize;
    if let Some((_, is_library)) = known().codes.get(&address) {
        return Ok(*is_library);
    }
    let file = file_of(code)?;
    let mut known = known();
    let is_library = known.libraries.iter().any(|beginning| file.starts_with(beginning));
    known.codes.insert(address, (code.clone().unbind(), is_library));
    Ok(is_library)
}

fn line(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
    let py = frame.py();
    let at = (code.as_ptr() as usize, frame.getattr(intern!(py, "f_lasti"))?.extract()?);
    if let Some(line) = known().lines.get(&at) {
        return Ok(line.clone_ref(py));
    }
    // SAFETY: it is a frame.
    let number = unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) };
    let line = PyString::new(py, &format!("{}:{number}", file_of(code)?)).unbind();
    known().lines.insert(at, line.clone_ref(py));
    Ok(line)
}

/// For people, and for the beginnings above: what is not UTF-8 in it is not shown.
fn file_of(code: &Bound<'_, PyAny>) -> PyResult<String> {
    let name: OsString = code.getattr(intern!(code.py(), "co_filename"))?.extract()?;
    Ok(name.to_string_lossy().into_owned())
}

/// Nothing of Python's may run while it is held: that could be a destructor that ends up here again.
fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().expect("no holder of this lock panics")
}
