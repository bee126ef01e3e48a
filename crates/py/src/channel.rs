//! Owns `Channel`: a rank's client, in Python's types, with the interpreter's lock released while a call blocks.

// `memoryview` over the arena needs the interpreter's C function; there is no safe form for memory that Python does not own.
#![allow(unsafe_code)]

mod alone;
mod calls;
mod communication;
mod device;

use crate::capture::{Extension, functions_at};
use crate::tensors::Tensors;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use uniference_client::{Blocking, Client, ClientError, Ran};
use uniference_protocol::memory::{Kernel, Region};
use uniference_protocol::messages::{Compute, Lack, Span};
use uniference_protocol::settings;
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{Collective, CollectiveKind, DType, Mark, ReduceOp, Shape, StoreOp, StoreValue};
use uniference_sim::time::{Bytes, SimDuration};

/// `PyBUF_WRITE` of CPython's memoryobject.h.
const WRITABLE: std::ffi::c_int = 0x200;

/// This rank's connection to the engine.
#[pyclass(frozen, module = "uniference._native")]
pub(crate) struct Channel {
    client: Arc<Client>,
}

#[pymethods]
impl Channel {
    #[staticmethod]
    fn adopt(py: Python<'_>, fd: i32, rank: u32, world_size: u32) -> PyResult<Channel> {
        if fd < 0 {
            return Err(PyValueError::new_err(format!("{fd} is not a valid file descriptor")));
        }
        // SAFETY: the caller hands the descriptor over, as the method's documentation says.
        let socket = unsafe { UnixStream::from_raw_fd(fd) };
        let client = py.detach(|| Client::adopt(socket, rank, world_size)).map_err(raise)?;
        Ok(Channel { client: Arc::new(client) })
    }

    #[staticmethod]
    fn of_child() -> Option<Channel> {
        let client = uniference_interpose::relative()?;
        client.find_lines_with(crate::site::line_of_thread);
        Some(Channel { client })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.client.rank()
    }

    #[getter]
    fn world_size(&self) -> u32 {
        self.client.world_size()
    }

    #[getter]
    fn stacks(&self) -> (i32, i32) {
        (uniference_protocol::STACKS_SIGNAL.as_raw(), self.client.stacks().map_or(-1, |stacks| stacks.as_raw_fd()))
    }

    #[getter]
    fn captures(&self) -> bool {
        self.client.compute() != Compute::None
    }

    #[getter]
    fn is_inside(&self) -> bool {
        self.client.is_inside()
    }

    fn capture(&self, functions: usize) -> PyResult<()> {
        self.client.capture_with(Box::new(Extension(functions_at(functions)?)));
        Ok(())
    }

    fn available_memory(&self) -> usize {
        extern "C" fn available() -> u64 {
            uniference_host::capacity::available_memory().unwrap_or(u64::MAX)
        }
        available as *const () as usize
    }

    fn calls(&self) -> (usize, usize, usize, usize) {
        calls::addresses(&self.client)
    }

    fn device_link(&self, functions: usize) -> PyResult<usize> {
        let link = device::link(&self.client, &functions_at(functions)?.launches);
        Ok(std::ptr::from_ref(link) as usize)
    }

    fn communication(&self, functions: usize) -> PyResult<usize> {
        let functions = functions_at(functions)?;
        self.client.join_threads();
        let table = match self.client.relay() {
            None => communication::table(&self.client, functions),
            Some(_) if self.client.borrows_gpus() => communication::table(&self.client, functions),
            Some(_) => alone::table(&self.client, functions),
        };
        Ok(std::ptr::from_ref(table) as usize)
    }

    #[getter]
    fn arena_descriptor(&self) -> Option<i32> {
        self.client.arena_descriptor()
    }

    fn lend(&self) {
        self.client.lends();
    }

    fn borrow(&self, arena: PathBuf) -> PyResult<()> {
        self.client.borrows(&arena).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    fn has_in_flight(&self, some: bool) {
        calls::IN_FLIGHT.store(some, Relaxed);
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.client.start()).map_err(raise)?;
        self.client.find_lines_with(crate::site::line_of_thread);
        uniference_interpose::activate(self.client.clone()).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    fn finish(&self, py: Python<'_>, ok: bool) -> PyResult<()> {
        py.detach(|| self.client.finish(ok)).map_err(raise)
    }

    fn lacks_memory(&self, wanted: u64, available: u64, line: String) {
        self.client.lacks_memory(Lack { wanted, available, line });
    }

    fn lacks_values(&self, text: &str) {
        self.client.lacks_values(text);
    }

    fn enter(&self) {
        self.client.enter();
    }

    fn leave(&self) {
        self.client.leave();
    }

    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.client.now()).map(|(now, _)| now.as_ps()).map_err(raise)
    }

    fn sleep(&self, py: Python<'_>, duration: u64) -> PyResult<()> {
        let mut left = SimDuration::from_ps(duration);
        loop {
            left = py.detach(|| uniference_interpose::sleep(&self.client, Span::For(left))).map_err(raise)?;
            if left == SimDuration::ZERO {
                return Ok(());
            }
            // A signal handler of the program may raise an exception, which ends the sleep.
            py.check_signals()?;
        }
    }

    fn begin_range(&self, name: &str) -> PyResult<u32> {
        self.client.enter_range(name).map_err(raise)
    }

    fn end_range(&self, number: u32) -> PyResult<()> {
        self.client.leave_range(number).map_err(raise)
    }

    fn open_range(&self, name: &str) -> PyResult<u32> {
        self.client.open_range(name).map_err(raise)
    }

    fn close_range(&self, number: u32) -> PyResult<()> {
        self.client.mark(Mark::Close { range: number }).map_err(raise)
    }

    fn warn(&self, text: &str) {
        self.client.warn(text);
    }

    /// Creates a process group. With `nccl`, the NCCL variables of the environment apply to the group.
    #[pyo3(signature = (ranks, nccl = false, rendezvous = false))]
    fn group(&self, py: Python<'_>, ranks: Vec<u32>, nccl: bool, rendezvous: bool) -> PyResult<u32> {
        let environment = if nccl { settings::environment() } else { BTreeMap::new() };
        // Ranks of a server have consecutive numbers, which follow from variables that `torchrun` sets.
        let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let spans_servers = number("LOCAL_RANK").zip(number("LOCAL_WORLD_SIZE")).is_some_and(|(local, count)| {
            let first = self.client.rank().saturating_sub(local);
            !ranks.iter().all(|rank| (first..first.saturating_add(count)).contains(rank))
        });
        let said = settings::of_communicator(&environment, &[], spans_servers).map_err(PyValueError::new_err)?;
        said.warnings.iter().for_each(|text| self.client.warn(text));
        py.detach(|| self.client.group(ranks, said.settings, rendezvous)).map(|group| group.0).map_err(raise)
    }

    fn name_group(&self, name: &str, members: u32, call: &str, site: &str) -> PyResult<()> {
        self.client.name_group(name, members, call, site).map_err(raise)
    }

    #[pyo3(signature = (group, kind, dtype, reduce, root, shape, input, site))]
    #[allow(clippy::too_many_arguments)] // the signature that `_native.pyi` documents
    fn collective(
        &self,
        py: Python<'_>,
        group: u32,
        kind: &str,
        dtype: &str,
        reduce: Option<&str>,
        root: Option<u32>,
        shape: Elements,
        input: Option<Tensors<'_>>,
        site: &str,
    ) -> PyResult<u32> {
        let op = collective(kind, dtype, reduce, root, shape)?;
        let input = input.as_ref().map(Tensors::regions);
        let issue = || self.client.collective(GroupId(group), op, input, site);
        detached_if_long(py, input.unwrap_or_default(), issue)
    }

    #[pyo3(signature = (group, kind, dtype, reduce, root, shape, input, output, timeout, site))]
    #[allow(clippy::too_many_arguments)] // the signature that `_native.pyi` documents
    fn run(
        &self,
        py: Python<'_>,
        group: u32,
        kind: &str,
        dtype: &str,
        reduce: Option<&str>,
        root: Option<u32>,
        shape: Elements,
        input: Option<Tensors<'_>>,
        output: Option<Tensors<'_>>,
        timeout: Option<u64>,
        site: &str,
    ) -> PyResult<(bool, Option<u32>, bool)> {
        let blocking = Blocking {
            op: collective(kind, dtype, reduce, root, shape)?,
            input: input.as_ref().map(Tensors::regions),
            output: output.as_ref().or(input.as_ref()).map(Tensors::regions).unwrap_or_default(),
            timeout: timeout.map(SimDuration::from_ps),
            site,
        };
        let ran = match calls::ended() {
            Some(ran) => ran,
            None => py.detach(|| self.client.run(GroupId(group), blocking)).map_err(raise)?,
        };
        if let Some(output) = output.as_ref().or(input.as_ref()).filter(|_| matches!(ran, Ran::Delivered { .. })) {
            output.written()?;
        }
        let closed_by = if let Ran::ClosedBy(peer) = ran { Some(peer) } else { None };
        Ok((ran != Ran::TimedOut, closed_by, ran == Ran::Delivered { lacks_values: true }))
    }

    #[allow(clippy::too_many_arguments)] // the signature that `_native.pyi` documents
    fn send(
        &self,
        py: Python<'_>,
        group: u32,
        to: u32,
        tag: u64,
        input: Tensors<'_>,
        has_values: bool,
        site: &str,
    ) -> PyResult<u32> {
        let input = input.regions();
        detached_if_long(py, input, || self.client.send(GroupId(group), GroupRank(to), tag, input, has_values, site))
    }

    fn recv(&self, group: u32, source: Option<u32>, tag: u64, nbytes: u64, site: &str) -> PyResult<u32> {
        self.client.recv(GroupId(group), source.map(GroupRank), tag, Bytes(nbytes), site).map_err(raise)
    }

    fn write(&self, py: Python<'_>, to: u32, nbytes: u64, site: &str) -> PyResult<u32> {
        py.detach(|| self.client.write(to, Bytes(nbytes), site)).map_err(raise)
    }

    fn wait(
        &self,
        py: Python<'_>,
        handles: Vec<u32>,
        timeout: Option<u64>,
        any: bool,
        site: &str,
    ) -> PyResult<Option<Vec<u32>>> {
        py.detach(|| self.client.wait(&handles, timeout.map(SimDuration::from_ps), any, site)).map_err(raise)
    }

    fn take_over(&self) -> Vec<u32> {
        self.client.take_over()
    }

    fn poll(&self, py: Python<'_>, handle: u32) -> PyResult<bool> {
        py.detach(|| self.client.poll(handle)).map_err(raise)
    }

    fn folds(&self, handle: u32) -> Vec<(u64, u64, u64)> {
        self.client.folds(handle)
    }

    fn folded(&self, handle: u32) -> PyResult<()> {
        self.client.folded(handle).map_err(raise)
    }

    fn deliver(&self, py: Python<'_>, handle: u32, output: Tensors<'_>) -> PyResult<(Option<u32>, bool)> {
        let regions = output.regions();
        let delivered = detached_if_long(py, regions, || self.client.deliver(handle, regions))?;
        output.written()?;
        Ok((delivered.peer, delivered.lacks_values))
    }

    fn closed_by(&self, handle: u32) -> PyResult<Option<u32>> {
        self.client.closed_by(handle).map_err(raise)
    }

    fn release(&self, handle: u32) -> PyResult<()> {
        self.client.release(handle).map_err(raise)
    }

    fn abort(&self, group: u32) -> PyResult<()> {
        self.client.abort(GroupId(group)).map_err(raise)
    }

    fn close(&self, group: u32) -> PyResult<()> {
        self.client.close(GroupId(group)).map_err(raise)
    }

    fn store_set(&self, py: Python<'_>, key: Vec<u8>, value: Vec<u8>) -> PyResult<()> {
        self.ask_store(py, StoreOp::Set { key, value }, None, "").map(drop)
    }

    fn store_get<'py>(
        &self,
        py: Python<'py>,
        key: Vec<u8>,
        timeout: Option<u64>,
        site: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.ask_store(py, StoreOp::Get { key }, timeout, site)?.map(|value| bytes(py, value)).transpose()
    }

    fn store_add(&self, py: Python<'_>, key: Vec<u8>, amount: i64) -> PyResult<i64> {
        number(self.ask_store(py, StoreOp::Add { key, amount }, None, "")?)
    }

    fn store_append(&self, py: Python<'_>, key: Vec<u8>, value: Vec<u8>) -> PyResult<()> {
        self.ask_store(py, StoreOp::Append { key, value }, None, "").map(drop)
    }

    fn store_compare_set<'py>(
        &self,
        py: Python<'py>,
        key: Vec<u8>,
        expected: Vec<u8>,
        desired: Vec<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.ask_store(py, StoreOp::CompareSet { key, expected, desired }, None, "")?;
        bytes(py, value.unwrap_or(StoreValue::Absent))
    }

    fn store_wait(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout: Option<u64>, site: &str) -> PyResult<bool> {
        Ok(self.ask_store(py, StoreOp::Wait { keys }, timeout, site)?.is_some())
    }

    fn store_check(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<bool> {
        flag(self.ask_store(py, StoreOp::Check { keys }, None, "")?)
    }

    fn store_delete(&self, py: Python<'_>, key: Vec<u8>) -> PyResult<bool> {
        flag(self.ask_store(py, StoreOp::Delete { key }, None, "")?)
    }

    fn store_count(&self, py: Python<'_>, prefix: Vec<u8>) -> PyResult<i64> {
        number(self.ask_store(py, StoreOp::Count { prefix }, None, "")?)
    }

    fn store_list<'py>(&self, py: Python<'py>, prefix: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        match self.ask_store(py, StoreOp::List { prefix }, None, "")? {
            Some(StoreValue::Keys(keys)) => Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect()),
            other => panic!("the store listed {other:?}"),
        }
    }

    fn store_queue_push(&self, py: Python<'_>, key: Vec<u8>, value: Vec<u8>) -> PyResult<()> {
        self.ask_store(py, StoreOp::QueuePush { key, value }, None, "").map(drop)
    }

    fn store_queue_pop<'py>(
        &self,
        py: Python<'py>,
        key: Vec<u8>,
        block: bool,
        timeout: Option<u64>,
        site: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match self.ask_store(py, StoreOp::QueuePop { key, block }, timeout, site)? {
            None | Some(StoreValue::Absent) => Ok(None),
            Some(value) => bytes(py, value).map(Some),
        }
    }

    fn store_queue_length(&self, py: Python<'_>, key: Vec<u8>) -> PyResult<i64> {
        number(self.ask_store(py, StoreOp::QueueLength { key }, None, "")?)
    }

    fn arena<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // The view may outlive this object, but not the mapping, so the client is never freed.
        std::mem::forget(self.client.clone());
        let (address, len) = self.client.arena().expect("ranks of this machine have the arena mapped");
        // SAFETY: the mapping has this address and size, is writable, and stays, because its client is not freed.
        unsafe {
            let view = ffi::PyMemoryView_FromMemory(address.cast(), len as ffi::Py_ssize_t, WRITABLE);
            Bound::from_owned_ptr_or_err(py, view)
        }
    }
}

impl Channel {
    fn ask_store(
        &self,
        py: Python<'_>,
        operation: StoreOp,
        timeout: Option<u64>,
        site: &str,
    ) -> PyResult<Option<StoreValue>> {
        py.detach(|| self.client.store(operation, timeout.map(SimDuration::from_ps), site)).map_err(raise)
    }
}

/// Number of bytes whose copy takes longer than a release of the interpreter's lock.
const LONG: u64 = 64 << 10;

/// Carries out a call, without the interpreter's lock if it copies at least [`LONG`] bytes.
fn detached_if_long<T: Send>(
    py: Python<'_>,
    memory: &[Region],
    call: impl FnOnce() -> Result<T, ClientError> + Send,
) -> PyResult<T> {
    let long = memory.iter().map(Region::bytes).sum::<u64>() >= LONG;
    if long { py.detach(call) } else { call() }.map_err(raise)
}

/// `int | Sequence[int] | tuple[Sequence[int], Sequence[int]]`.
#[derive(FromPyObject)]
enum Elements {
    Even(u64),
    Blocks(Vec<u64>),
    Pairs(Vec<u64>, Vec<u64>),
}

impl From<Elements> for Shape {
    fn from(elements: Elements) -> Shape {
        match elements {
            Elements::Even(count) => Shape::Even(count),
            Elements::Blocks(blocks) => Shape::Blocks(blocks),
            Elements::Pairs(send, recv) => Shape::Pairs { send, recv },
        }
    }
}

fn collective(
    kind: &str,
    dtype: &str,
    reduce: Option<&str>,
    root: Option<u32>,
    shape: Elements,
) -> PyResult<Collective> {
    Ok(Collective {
        kind: kind_named(kind)?,
        dtype: dtype_named(dtype)?,
        reduce: reduce.map(reduce_named).transpose()?,
        root: root.map(GroupRank),
        shape: shape.into(),
        kernel: None,
    })
}

pub(crate) fn kind_named(name: &str) -> PyResult<CollectiveKind> {
    CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| unknown("collective", name))
}

pub(crate) fn reduce_named(name: &str) -> PyResult<ReduceOp> {
    ReduceOp::ALL
        .into_iter()
        .find(|reduce| reduce.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| unknown("reduction", name))
}

pub(crate) fn dtype_named(name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| unknown("dtype", name))
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown {what} {name:?}"))
}

/// The number of a type of elements in torch (`c10::ScalarType`), by its name without `torch.`.
#[pyfunction]
pub(crate) fn scalar_type(name: &str) -> PyResult<u8> {
    dtype_named(name).map(DType::number)
}

/// Whether the channel itself implements a reduction of elements of this type.
#[pyfunction]
pub(crate) fn combines(reduce: &str, dtype: &str) -> PyResult<bool> {
    Ok(Kernel::of(reduce_named(reduce)?, dtype_named(dtype)?).is_some())
}

fn bytes(py: Python<'_>, value: StoreValue) -> PyResult<Bound<'_, PyBytes>> {
    match value {
        StoreValue::Bytes(value) => Ok(PyBytes::new(py, &value)),
        StoreValue::Absent => Ok(PyBytes::new(py, b"")),
        other => panic!("the store answered {other:?} where bytes were asked for"),
    }
}

fn number(value: Option<StoreValue>) -> PyResult<i64> {
    match value {
        Some(StoreValue::Number(number)) => Ok(number),
        Some(StoreValue::NotANumber) => Err(PyRuntimeError::new_err("the key's value is not a number")),
        other => panic!("the store answered {other:?} where a number was asked for"),
    }
}

fn flag(value: Option<StoreValue>) -> PyResult<bool> {
    match value {
        Some(StoreValue::Flag(flag)) => Ok(flag),
        other => panic!("the store answered {other:?} where yes or no was asked for"),
    }
}

fn raise(error: ClientError) -> PyErr {
    let message = error.to_string();
    match error {
        ClientError::ArenaFull { .. } => PyMemoryError::new_err(message),
        ClientError::Arguments { .. } => PyValueError::new_err(message),
        ClientError::Forked { .. } | ClientError::Severed { .. } | ClientError::Processes { .. } => {
            PyRuntimeError::new_err(message)
        }
        ClientError::Adopt(_) | ClientError::Thread { .. } => PyOSError::new_err(message),
    }
}
