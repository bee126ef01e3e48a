//! Owns the conversion of torch's tensors to memory regions of a channel, with contiguous elements.
//!
//! Contiguous tensors do not pass through torch's dispatcher.

// Torch owns the memory of tensors and passes addresses.
#![allow(unsafe_code)]

use pyo3::intern;
use pyo3::prelude::*;
use uniference_protocol::memory::Region;

/// Tensors, kept while their memory is used.
pub(crate) struct Tensors<'py> {
    /// The tensors that the program has passed.
    given: Vec<Bound<'py, PyAny>>,
    /// The passed tensors, with copies in place of those that are not contiguous or are on a GPU.
    plain: Vec<Bound<'py, PyAny>>,
    regions: Vec<Region>,
}

impl<'py> FromPyObject<'_, 'py> for Tensors<'py> {
    type Error = PyErr;

    fn extract(sequence: Borrowed<'_, 'py, PyAny>) -> PyResult<Tensors<'py>> {
        let given = sequence.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let plain = given.iter().map(plain).collect::<PyResult<Vec<_>>>()?;
        let regions = plain.iter().map(region).collect::<PyResult<_>>()?;
        Ok(Tensors { given, plain, regions })
    }
}

impl Tensors<'_> {
    /// Memory of the tensors, valid as long as this object.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Copies the memory, which was written to, to the program's tensors that are elsewhere.
    pub(crate) fn written(&self) -> PyResult<()> {
        for (given, plain) in self.given.iter().zip(&self.plain).filter(|(given, plain)| !given.is(*plain)) {
            given.getattr(intern!(given.py(), "data"))?.call_method1(intern!(given.py(), "copy_"), (plain,))?;
        }
        Ok(())
    }
}

/// The tensor, or a contiguous copy in the host's memory.
fn plain<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let is = |name: &Bound<'py, _>| tensor.call_method0(name)?.extract::<bool>();
    if tensor.getattr(intern!(py, "is_cuda"))?.extract::<bool>()? {
        return plain(&tensor.call_method0(intern!(py, "cpu"))?);
    }
    if is(intern!(py, "is_contiguous"))? && !is(intern!(py, "is_conj"))? && !is(intern!(py, "is_neg"))? {
        return Ok(tensor.clone());
    }
    let own = tensor.call_method0(intern!(py, "resolve_conj"))?.call_method0(intern!(py, "resolve_neg"))?;
    own.call_method0(intern!(py, "contiguous"))
}

fn region(tensor: &Bound<'_, PyAny>) -> PyResult<Region> {
    let address = tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract()?;
    let bytes = tensor.getattr(intern!(tensor.py(), "nbytes"))?.extract()?;
    // SAFETY: `Tensors` keeps the tensor, and the program does not use it elsewhere during a call of torch.distributed.
    Ok(unsafe { Region::new(address, bytes) })
}
