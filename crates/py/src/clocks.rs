//! Owns comparisons of clocks in Python's types.

use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;
use uniference_link::clock::{self, Reading};
use uniference_link::join::JoinError;
use uniference_link::token::Token;

/// Tells this host's time to hosts that know a token, while it lives.
#[pyclass(module = "uniference._native", frozen)]
pub(crate) struct ClockServer(clock::ClockServer);

#[pymethods]
impl ClockServer {
    #[new]
    fn new(addresses: Vec<String>, token: &[u8]) -> PyResult<ClockServer> {
        let opened = clock::ClockServer::open(&addresses, &Token::new(token), clock::now);
        opened.map(ClockServer).map_err(|(address, why)| {
            PyOSError::new_err((why.raw_os_error().unwrap_or_default(), why.to_string(), address))
        })
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.0.addresses().iter().map(ToString::to_string).collect()
    }

    fn expect(&self, names: Vec<String>) {
        self.0.expect(&names);
    }

    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<String>> {
        let timeout = Duration::try_from_secs_f64(timeout_s).map_err(|why| PyValueError::new_err(why.to_string()))?;
        Ok(py.detach(|| self.0.wait(timeout)))
    }
}

/// Compares this host's clock with the one served at `address`: when, offset, and error, in nanoseconds.
#[pyfunction]
pub(crate) fn read_clock(
    py: Python<'_>,
    address: &str,
    token: &[u8],
    name: &str,
    rounds: u32,
) -> PyResult<(i64, i64, i64)> {
    if rounds == 0 {
        return Err(PyValueError::new_err("a comparison of clocks takes at least one round"));
    }
    match py.detach(|| clock::read(address, &Token::new(token), name, rounds, clock::now)) {
        Ok(Reading { at, offset, error }) => Ok((at, offset, error)),
        Err(JoinError::Disagreement { why, .. }) => Err(PyValueError::new_err(why.to_string())),
        Err(JoinError::Unavailable(why)) => Err(PyConnectionError::new_err(why.to_string())),
        Err(JoinError::Unwanted(why) | JoinError::Refused { why, .. }) => {
            Err(PyConnectionError::new_err(why.to_string()))
        }
        Err(JoinError::Imposter { why, .. }) => Err(PyConnectionError::new_err(why)),
    }
}
