//! Owns the current line of the user's program: the line of the innermost frame outside the libraries that Python
//! names.

// Frames are read by the interpreter's C functions, because each call of torch.distributed needs the line, and
// attributes are several times slower.
#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Owner of a code object.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Program,
    /// Modules of Python's standard library. The line of the program that calls such a module says more than a line in
    /// the module.
    Python,
    /// Libraries whose file names begin with a prefix in [`Known::libraries`].
    Library,
}

/// Cache of code objects' owners and of lines.
#[derive(Default)]
struct Known {
    /// Beginnings of library files' names.
    libraries: Vec<String>,
    /// Folder of Python's standard library.
    python: Option<String>,
    /// Owner of each code object, by the code object's address. The code objects are kept alive, because the address of
    /// a deleted one may be reused.
    codes: BTreeMap<usize, (Py<PyAny>, Owner)>,
    /// Lines by code object and instruction, because finding the line of an instruction is slow.
    lines: BTreeMap<(usize, i32), Py<PyString>>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Declares that files whose names begin with one of `beginnings` are libraries, and that files in the folder `python`
/// are Python's standard library, except packages that are installed in that folder.
#[pyfunction]
pub(crate) fn set_libraries(beginnings: Vec<OsString>, python: OsString) {
    let libraries = beginnings.iter().map(|beginning| beginning.to_string_lossy().into_owned()).collect();
    *known() = Known { libraries, python: Some(python.to_string_lossy().into_owned()), ..Known::default() };
}

/// The user's line that is being executed, as "path:line".
#[pyfunction]
pub(crate) fn user_line(py: Python<'_>) -> PyResult<Py<PyString>> {
    Ok(innermost(py)?.unwrap_or_else(|| PyString::new(py, "unknown:0").unbind()))
}

/// User's line on a thread that has called a C library function. `None` if the thread runs no Python code, or may not
/// wait for the interpreter's lock.
pub(crate) fn line_of_thread() -> Option<String> {
    // SAFETY: any thread may call this function at any time.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() || !uniference_interpose::may_ask_interpreter() {
        return None;
    }
    Python::try_attach(|py| innermost(py).ok().flatten().map(|line| line.to_string())).flatten()
}

/// Innermost line of the program; if the stack has only frames of Python's standard library, innermost line of that
/// library.
fn innermost(py: Python<'_>) -> PyResult<Option<Py<PyString>>> {
    // SAFETY: the interpreter's lock is held; a frame that runs, if there is one, is lent.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    let mut of_python = None;
    while let Some(at) = frame {
        // SAFETY: it is a frame, and its code is a new reference.
        let code = unsafe { Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(at.as_ptr().cast()).cast()) };
        match owner(&code)? {
            Owner::Program => return line(&at, &code).map(Some),
            Owner::Python if of_python.is_none() => of_python = Some(line(&at, &code)?),
            _ => {}
        }
        let back = at.getattr(intern!(py, "f_back"))?;
        frame = (!back.is_none()).then_some(back);
    }
    Ok(of_python)
}

fn owner(code: &Bound<'_, PyAny>) -> PyResult<Owner> {
    let address = code.as_ptr() as usize;
    if let Some((_, owner)) = known().codes.get(&address) {
        return Ok(*owner);
    }
    let file = file_of(code)?;
    let mut known = known();
    let is_installed = ["site-packages", "dist-packages"].iter().any(|folder| file.contains(folder));
    let owner = if known.libraries.iter().any(|beginning| file.starts_with(beginning)) {
        Owner::Library
    } else if !is_installed && known.python.as_ref().is_some_and(|python| file.starts_with(python)) {
        Owner::Python
    } else {
        Owner::Program
    };
    known.codes.insert(address, (code.clone().unbind(), owner));
    Ok(owner)
}

fn line(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
    let py = frame.py();
    let at = (code.as_ptr() as usize, frame.getattr(intern!(py, "f_lasti"))?.extract()?);
    if let Some(line) = known().lines.get(&at) {
        return Ok(line.clone_ref(py));
    }
    // SAFETY: `frame` is a reference to a frame, which this function owns.
    let number = unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) };
    let line = PyString::new(py, &format!("{}:{number}", file_of(code)?)).unbind();
    known().lines.insert(at, line.clone_ref(py));
    Ok(line)
}

/// File name of a code object, to be shown and compared with libraries; bytes that are not UTF-8 are replaced.
fn file_of(code: &Bound<'_, PyAny>) -> PyResult<String> {
    let name: OsString = code.getattr(intern!(code.py(), "co_filename"))?.extract()?;
    Ok(name.to_string_lossy().into_owned())
}

/// Locks the cache. No Python code may run while the lock is held, because a destructor could call this function again.
fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().expect("no holder of this lock panics")
}
