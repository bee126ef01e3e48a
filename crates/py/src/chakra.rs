//! Owns Chakra execution traces as Python types: nodes and their attributes, files that are read or written node by
//! node, and the feeder. The file format and the order in which nodes become free belong to `uniference-formats`.
//!
//! `python/uniference/_native.pyi` documents these types for users.

use pyo3::exceptions::{PyKeyError, PyOverflowError, PyStopIteration, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use uniference_formats::chakra::attributes;
use uniference_formats::chakra::own;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::{self, Attribute, GlobalMetadata, IoInfo, NodeType, Value};
use uniference_formats::chakra::write::Writer;
use uniference_programs::chakra::feed::{Feed, IdSet};

pyo3::create_exception!(_native, TraceError, PyValueError);

/// The error of a file that is no valid trace. Errors of the operating system are Python's own `OSError`.
fn trace_error(path: &Path, error: &impl std::fmt::Display) -> PyErr {
    TraceError::new_err(format!("{}: {error}", path.display()))
}

fn os_error(path: &Path, error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(code) => pyo3::exceptions::PyOSError::new_err((
            code,
            error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
            path.to_path_buf(),
        )),
        None => trace_error(path, &error),
    }
}

/// The attributes of a node or of a whole trace, in the order of the file.
#[pyclass(module = "uniference.chakra")]
#[derive(Clone, Default)]
pub(crate) struct Attributes {
    list: Vec<Attribute>,
}

impl Attributes {
    fn find(&self, name: &str) -> Option<&Attribute> {
        let mut named = self.list.iter().filter(|attribute| attribute.name == name);
        let first = named.next()?;
        // As in the simulator, the first attribute with a value counts.
        Some(std::iter::once(first).chain(named).find(|attribute| attribute.value.is_some()).unwrap_or(first))
    }

    fn names(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        self.list.iter().map(|attribute| attribute.name.as_str()).filter(|name| seen.insert(*name)).collect()
    }

    fn store(&mut self, name: &str, value: Value) {
        let Some(place) = self.list.iter().position(|attribute| attribute.name == name) else {
            self.list.push(Attribute::new(name, value));
            return;
        };
        self.list[place].value = Some(value);
        let mut position = 0;
        self.list.retain(|attribute| {
            position += 1;
            attribute.name != name || position == place + 1
        });
    }
}

#[pymethods]
impl Attributes {
    fn __len__(&self) -> usize {
        self.names().len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.names())?.try_iter()?.into_any())
    }

    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        match self.find(name) {
            Some(Attribute { value: Some(value), .. }) => to_python(py, value),
            Some(_) => Ok(py.None()),
            None => Err(PyKeyError::new_err(name.to_owned())),
        }
    }

    fn __setitem__(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let kind = self.find(name).and_then(|attribute| attribute.value.as_ref()).map(Value::type_name);
        let value = match kind.map(|kind| from_python_as(value, kind)) {
            Some(Ok(value)) => value,
            // A number that the old type cannot hold is an error; a value of another kind replaces the type as well.
            Some(Err(error)) if error.is_instance_of::<PyOverflowError>(value.py()) => return Err(error),
            Some(Err(_)) | None => from_python(value)?,
        };
        self.store(name, value);
        Ok(())
    }

    fn __delitem__(&mut self, name: &str) -> PyResult<()> {
        let before = self.list.len();
        self.list.retain(|attribute| attribute.name != name);
        if self.list.len() == before { Err(PyKeyError::new_err(name.to_owned())) } else { Ok(()) }
    }

    #[pyo3(signature = (name, value, r#type))]
    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>, r#type: &str) -> PyResult<()> {
        let value = from_python_as(value, r#type)?;
        self.store(name, value);
        Ok(())
    }

    fn type_of(&self, name: &str) -> PyResult<Option<&'static str>> {
        let attribute = self.find(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        Ok(attribute.value.as_ref().map(Value::type_name))
    }

    #[pyo3(signature = (name, default=None))]
    fn get(&self, py: Python<'_>, name: &str, default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        if self.find(name).is_some() { self.__getitem__(py, name) } else { Ok(default.unwrap_or_else(|| py.None())) }
    }

    fn keys(&self) -> Vec<String> {
        self.names().into_iter().map(str::to_owned).collect()
    }

    fn values(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.names().into_iter().map(|name| self.__getitem__(py, name)).collect()
    }

    fn items(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        self.names().into_iter().map(|name| Ok((name.to_owned(), self.__getitem__(py, name)?))).collect()
    }

    fn update(&mut self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let pairs = PyDict::new(other.py());
        pairs.call_method1("update", (other,))?;
        pairs.iter().try_for_each(|(name, value)| self.__setitem__(&name.extract::<String>()?, &value))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Attributes>() {
            Ok(other) => Ok(self.list == other.borrow().list),
            Err(_) => self.dict(other.py())?.eq(other),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Attributes({})", self.dict(py)?.repr()?))
    }
}

impl Attributes {
    fn dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        self.items(py)?.into_iter().try_for_each(|(name, value)| dict.set_item(name, value))?;
        Ok(dict)
    }
}

/// One operation of one rank.
#[pyclass(module = "uniference.chakra")]
pub(crate) struct Node {
    /// The node without attributes, which are in `self.attr`.
    node: schema::Node,
    attr: Py<Attributes>,
}

impl Node {
    fn new(py: Python<'_>, mut node: schema::Node) -> PyResult<Node> {
        let attr = Py::new(py, Attributes { list: std::mem::take(&mut node.attr) })?;
        Ok(Node { node, attr })
    }

    fn whole(&self, py: Python<'_>) -> schema::Node {
        schema::Node { attr: self.attr.borrow(py).list.clone(), ..self.node.clone() }
    }

    fn number(&self, py: Python<'_>, name: &str) -> Option<u64> {
        let attributes = self.attr.borrow(py);
        u64::try_from(attributes.find(name)?.value.as_ref()?.integer()?).ok()
    }
}

type Info = (String, String, String);

fn to_info(info: Option<&IoInfo>) -> Option<Info> {
    info.map(|info| (info.values.clone(), info.shapes.clone(), info.types.clone()))
}

fn from_info(info: Option<Info>) -> Option<Box<IoInfo>> {
    info.map(|(values, shapes, types)| Box::new(IoInfo { values, shapes, types }))
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (id, name, r#type, *, data_deps=Vec::new(), ctrl_deps=Vec::new(), start_time_micros=0, duration_micros=0, inputs=None, outputs=None, attr=None))]
    #[allow(clippy::too_many_arguments)] // the schema's fields
    fn create(
        py: Python<'_>,
        id: u64,
        name: String,
        r#type: i32,
        data_deps: Vec<u64>,
        ctrl_deps: Vec<u64>,
        start_time_micros: u64,
        duration_micros: u64,
        inputs: Option<Info>,
        outputs: Option<Info>,
        attr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Node> {
        let node = schema::Node {
            id,
            name,
            r#type,
            ctrl_deps,
            data_deps,
            start_time_micros,
            duration_micros,
            inputs: from_info(inputs),
            outputs: from_info(outputs),
            attr: Vec::new(),
        };
        let node = Node::new(py, node)?;
        attr.map_or(Ok(()), |attr| node.attr.borrow_mut(py).update(attr))?;
        Ok(node)
    }

    #[getter]
    fn id(&self) -> u64 {
        self.node.id
    }

    #[setter]
    fn set_id(&mut self, id: u64) {
        self.node.id = id;
    }

    #[getter]
    fn name(&self) -> &str {
        &self.node.name
    }

    #[setter]
    fn set_name(&mut self, name: String) {
        self.node.name = name;
    }

    #[getter]
    fn r#type(&self) -> i32 {
        self.node.r#type
    }

    #[setter]
    fn set_type(&mut self, r#type: i32) {
        self.node.r#type = r#type;
    }

    #[getter]
    fn data_deps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.node.data_deps)
    }

    #[setter]
    fn set_data_deps(&mut self, ids: Vec<u64>) {
        self.node.data_deps = ids;
    }

    #[getter]
    fn ctrl_deps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.node.ctrl_deps)
    }

    #[setter]
    fn set_ctrl_deps(&mut self, ids: Vec<u64>) {
        self.node.ctrl_deps = ids;
    }

    #[getter]
    fn start_time_micros(&self) -> u64 {
        self.node.start_time_micros
    }

    #[setter]
    fn set_start_time_micros(&mut self, micros: u64) {
        self.node.start_time_micros = micros;
    }

    #[getter]
    fn duration_micros(&self) -> u64 {
        self.node.duration_micros
    }

    #[setter]
    fn set_duration_micros(&mut self, py: Python<'_>, micros: u64) {
        self.node.duration_micros = micros;
        // The old duration in picoseconds would take precedence over the new one.
        self.attr.borrow_mut(py).list.retain(|attribute| attribute.name != own::DURATION_PS);
    }

    #[getter]
    fn inputs(&self) -> Option<Info> {
        to_info(self.node.inputs.as_deref())
    }

    #[setter]
    fn set_inputs(&mut self, info: Option<Info>) {
        self.node.inputs = from_info(info);
    }

    #[getter]
    fn outputs(&self) -> Option<Info> {
        to_info(self.node.outputs.as_deref())
    }

    #[setter]
    fn set_outputs(&mut self, info: Option<Info>) {
        self.node.outputs = from_info(info);
    }

    #[getter]
    fn attr(&self, py: Python<'_>) -> Py<Attributes> {
        self.attr.clone_ref(py)
    }

    #[getter]
    fn is_cpu_op(&self, py: Python<'_>) -> bool {
        self.number(py, attributes::IS_CPU_OP).is_some_and(|flag| flag != 0)
    }

    #[getter]
    fn num_ops(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::NUM_OPS)
    }

    #[getter]
    fn tensor_size(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::TENSOR_SIZE)
    }

    #[getter]
    fn comm_type(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::COMM_TYPE)
    }

    #[getter]
    fn comm_size(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::COMM_SIZE)
    }

    #[getter]
    fn comm_src(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::COMM_SRC)
    }

    #[getter]
    fn comm_dst(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::COMM_DST)
    }

    #[getter]
    fn comm_tag(&self, py: Python<'_>) -> Option<u64> {
        self.number(py, attributes::COMM_TAG)
    }

    #[getter]
    fn pg_name(&self, py: Python<'_>) -> Option<String> {
        self.whole(py).process_group()
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Node> {
        Node::new(py, self.whole(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Node>().is_ok_and(|other| {
            let other = other.borrow();
            self.node == other.node && self.attr.borrow(py).list == other.attr.borrow(py).list
        })
    }

    fn __repr__(&self) -> String {
        let kind = NodeType::try_from(self.node.r#type).map_or("unknown type", NodeType::name);
        format!("Node({}, {:?}, {kind})", self.node.id, self.node.name)
    }
}

/// Metadata of a trace.
#[pyclass(module = "uniference.chakra")]
pub(crate) struct Metadata {
    #[pyo3(get, set)]
    version: String,
    attr: Py<Attributes>,
}

impl Metadata {
    fn new(py: Python<'_>, metadata: &GlobalMetadata) -> PyResult<Metadata> {
        let attr = Py::new(py, Attributes { list: metadata.attr.clone() })?;
        Ok(Metadata { version: metadata.version.clone(), attr })
    }
}

#[pymethods]
impl Metadata {
    #[new]
    #[pyo3(signature = (version="1.0.0".to_owned(), attr=None))]
    fn create(py: Python<'_>, version: String, attr: Option<&Bound<'_, PyAny>>) -> PyResult<Metadata> {
        let metadata = Metadata { version, attr: Py::new(py, Attributes::default())? };
        attr.map_or(Ok(()), |attr| metadata.attr.borrow_mut(py).update(attr))?;
        Ok(metadata)
    }

    #[getter]
    fn attr(&self, py: Python<'_>) -> Py<Attributes> {
        self.attr.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Metadata({:?}, {})", self.version, self.attr.borrow(py).dict(py)?.repr()?))
    }
}

/// A trace that is read from its beginning to its end.
#[pyclass(module = "uniference.chakra")]
pub(crate) struct TraceReader {
    path: PathBuf,
    reader: Option<Reader<File>>,
    metadata: Py<Metadata>,
}

fn open(path: &Path) -> PyResult<Reader<File>> {
    let file = File::open(path).map_err(|error| os_error(path, error))?;
    Reader::open(file).map_err(|error| trace_error(path, &error))
}

#[pymethods]
impl TraceReader {
    #[new]
    fn create(py: Python<'_>, path: PathBuf) -> PyResult<TraceReader> {
        let reader = open(&path)?;
        let metadata = Py::new(py, Metadata::new(py, reader.metadata())?)?;
        Ok(TraceReader { path, reader: Some(reader), metadata })
    }

    #[getter]
    fn metadata(&self, py: Python<'_>) -> Py<Metadata> {
        self.metadata.clone_ref(py)
    }

    fn close(&mut self) {
        self.reader = None;
    }

    fn __iter__(this: Py<TraceReader>) -> Py<TraceReader> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Node> {
        let Some(reader) = &mut self.reader else {
            return Err(PyValueError::new_err(format!("{} is closed", self.path.display())));
        };
        match reader.next_node().map_err(|error| trace_error(&self.path, &error))? {
            Some(node) => Node::new(py, node),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    fn __enter__(this: Py<TraceReader>) -> Py<TraceReader> {
        this
    }

    fn __exit__(&mut self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }
}

/// A trace that is written node by node, to a temporary file in the same folder until it is complete.
#[pyclass(module = "uniference.chakra")]
pub(crate) struct TraceWriter {
    path: PathBuf,
    partial: PathBuf,
    writer: Option<Writer<BufWriter<File>>>,
    ids: IdSet,
}

#[pymethods]
impl TraceWriter {
    #[new]
    #[pyo3(signature = (path, metadata=None, *, gzip=false))]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        metadata: Option<PyRef<'_, Metadata>>,
        gzip: bool,
    ) -> PyResult<TraceWriter> {
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let metadata = match metadata {
            Some(metadata) => {
                GlobalMetadata { version: metadata.version.clone(), attr: metadata.attr.borrow(py).list.clone() }
            }
            None => GlobalMetadata { version: "1.0.0".to_owned(), attr: Vec::new() },
        };
        let out = BufWriter::new(File::create(&partial).map_err(|error| os_error(&path, error))?);
        let writer = if gzip { Writer::gzip(out, &metadata) } else { Writer::new(out, &metadata) };
        let writer = writer.map_err(|error| os_error(&path, error))?;
        Ok(TraceWriter { path, partial, writer: Some(writer), ids: IdSet::default() })
    }

    fn write(&mut self, py: Python<'_>, node: PyRef<'_, Node>) -> PyResult<()> {
        let Some(writer) = &mut self.writer else {
            return Err(PyValueError::new_err(format!("{} is closed", self.path.display())));
        };
        if !self.ids.insert(node.node.id) {
            let problem = format!("duplicate node id {}\nhint: node ids must be unique in a file", node.node.id);
            return Err(trace_error(&self.path, &problem));
        }
        writer.node(&node.whole(py)).map_err(|error| os_error(&self.path, error))
    }

    fn close(&mut self) -> PyResult<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let written = writer.finish().and_then(|_| std::fs::rename(&self.partial, &self.path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&self.partial);
            os_error(&self.path, error)
        })
    }

    fn __enter__(this: Py<TraceWriter>) -> Py<TraceWriter> {
        this
    }

    fn __exit__(
        &mut self,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() {
            return self.close();
        }
        self.discard();
        Ok(())
    }
}

impl TraceWriter {
    /// Removes the temporary file of an incomplete trace.
    fn discard(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Returns a trace's nodes in an order that satisfies their dependencies.
#[pyclass(module = "uniference.chakra")]
pub(crate) struct Feeder {
    path: PathBuf,
    feed: Feed<Reader<File>>,
    metadata: Py<Metadata>,
    /// Nodes whose dependencies are done and that have not been returned, the lowest id first.
    free: BinaryHeap<Reverse<u64>>,
    /// Nodes that have been returned and are not done.
    issued: BTreeMap<u64, Py<Node>>,
}

impl Feeder {
    fn fill(&mut self) -> PyResult<()> {
        while let Some((id, free)) = self.feed.plan().map_err(|error| trace_error(&self.path, &error))? {
            if free {
                self.free.push(Reverse(id));
            }
        }
        Ok(())
    }

    fn issued(&mut self, id: u64) -> PyResult<Py<Node>> {
        let unknown = || format!("node {id} has not been issued, or is already complete");
        self.issued.remove(&id).ok_or_else(|| PyKeyError::new_err(unknown()))
    }
}

#[pymethods]
impl Feeder {
    #[new]
    fn create(py: Python<'_>, path: PathBuf) -> PyResult<Feeder> {
        let reader = open(&path)?;
        let metadata = Py::new(py, Metadata::new(py, reader.metadata())?)?;
        let (feed, free, issued) = (Feed::new(reader), BinaryHeap::new(), BTreeMap::new());
        let mut feeder = Feeder { path, feed, metadata, free, issued };
        feeder.fill()?;
        Ok(feeder)
    }

    #[getter]
    fn metadata(&self, py: Python<'_>) -> Py<Metadata> {
        self.metadata.clone_ref(py)
    }

    fn has_nodes(&self) -> bool {
        !self.feed.is_done()
    }

    fn next_issuable(&mut self, py: Python<'_>) -> PyResult<Option<Py<Node>>> {
        let Some(Reverse(id)) = self.free.pop() else { return Ok(None) };
        let node = Py::new(py, Node::new(py, self.feed.node(id).clone())?)?;
        self.issued.insert(id, node.clone_ref(py));
        Ok(Some(node))
    }

    fn push_back(&mut self, id: u64) -> PyResult<()> {
        self.issued(id)?;
        self.free.push(Reverse(id));
        Ok(())
    }

    fn lookup(&self, py: Python<'_>, id: u64) -> PyResult<Py<Node>> {
        let node = self.issued.get(&id).map(|node| node.clone_ref(py));
        node.ok_or_else(|| PyKeyError::new_err(format!("node {id} has not been issued, or is already complete")))
    }

    fn complete(&mut self, id: u64) -> PyResult<()> {
        self.issued(id)?;
        let free = &mut self.free;
        self.feed.complete(id, &mut |id| free.push(Reverse(id)));
        self.fill()
    }
}

fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    macro_rules! given {
        ($value:expr) => {
            $value.into_pyobject(py)?.into_any().unbind()
        };
    }
    Ok(match value {
        Value::Double(number) => given!(*number),
        Value::Float(number) => given!(*number),
        Value::Int32(number) | Value::Sint32(number) | Value::Sfixed32(number) => given!(*number),
        Value::Int64(number) | Value::Sint64(number) | Value::Sfixed64(number) => given!(*number),
        Value::Uint32(number) | Value::Fixed32(number) => given!(*number),
        Value::Uint64(number) | Value::Fixed64(number) => given!(*number),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any().unbind(),
        Value::String(text) => given!(text.as_str()),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any().unbind(),
        Value::DoubleList(list) => given!(list.values.clone()),
        Value::FloatList(list) => given!(list.values.clone()),
        Value::Int32List(list) => given!(list.values.clone()),
        Value::Int64List(list) => given!(list.values.clone()),
        Value::Uint32List(list) => given!(list.values.clone()),
        Value::Uint64List(list) => given!(list.values.clone()),
        Value::Sint32List(list) => given!(list.values.clone()),
        Value::Sint64List(list) => given!(list.values.clone()),
        Value::Fixed32List(list) => given!(list.values.clone()),
        Value::Fixed64List(list) => given!(list.values.clone()),
        Value::Sfixed32List(list) => given!(list.values.clone()),
        Value::Sfixed64List(list) => given!(list.values.clone()),
        Value::BoolList(list) => given!(list.values.clone()),
        Value::StringList(list) => given!(list.values.clone()),
        Value::BytesList(list) => {
            let items: Vec<_> = list.values.iter().map(|bytes| PyBytes::new(py, bytes)).collect();
            PyList::new(py, items)?.into_any().unbind()
        }
    })
}

/// Converts a Python value to its default type: integers have 64 bits, signed if the number fits.
fn from_python(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(items) = value.try_iter().and_then(|items| items.collect::<PyResult<Vec<_>>>())
        && !value.is_instance_of::<PyString>()
        && !value.is_instance_of::<PyBytes>()
    {
        let Some(first) = items.first() else {
            let hint = "give the type, for example set(name, [], type=\"int64_list\")";
            return Err(PyTypeError::new_err(format!("the type of an empty list is ambiguous\nhint: {hint}")));
        };
        let negative = items.iter().any(|item| item.lt(0).unwrap_or(false));
        let large = items.iter().any(|item| item.gt(i64::MAX).unwrap_or(false));
        return from_python_as(value, &format!("{}_list", kind_of(first, large && !negative)?));
    }
    from_python_as(value, kind_of(value, value.gt(i64::MAX).unwrap_or(false))?)
}

fn kind_of(value: &Bound<'_, PyAny>, large: bool) -> PyResult<&'static str> {
    Ok(if value.is_instance_of::<PyBool>() {
        "bool"
    } else if value.is_instance_of::<PyInt>() || value.hasattr("__index__")? {
        if large { "uint64" } else { "int64" }
    } else if value.is_instance_of::<PyFloat>() {
        "double"
    } else if value.is_instance_of::<PyString>() {
        "string"
    } else if value.is_instance_of::<PyBytes>() {
        "bytes"
    } else {
        let name = value.get_type().name()?;
        let kinds = "bool, int, float, str, bytes, or a list of one of these";
        return Err(PyTypeError::new_err(format!("unsupported attribute type {name}\nhint: use {kinds}")));
    })
}

/// A value of one of the schema's types, by the name that [`Value::type_name`] gives it.
fn from_python_as(value: &Bound<'_, PyAny>, kind: &str) -> PyResult<Value> {
    // Python accepts `True` as a number, so a flag would silently become a number.
    let number = kind.contains("int") || kind.contains("fixed") || kind.contains("double") || kind.contains("float");
    if number && value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("a bool is not a valid {kind}")));
    }
    macro_rules! list {
        ($variant:ident, $message:ident) => {
            Value::$variant(schema::$message { values: value.extract()? })
        };
    }
    Ok(match kind {
        "double" => Value::Double(value.extract()?),
        "float" => Value::Float(value.extract()?),
        "int32" => Value::Int32(value.extract()?),
        "int64" => Value::Int64(value.extract()?),
        "uint32" => Value::Uint32(value.extract()?),
        "uint64" => Value::Uint64(value.extract()?),
        "sint32" => Value::Sint32(value.extract()?),
        "sint64" => Value::Sint64(value.extract()?),
        "fixed32" => Value::Fixed32(value.extract()?),
        "fixed64" => Value::Fixed64(value.extract()?),
        "sfixed32" => Value::Sfixed32(value.extract()?),
        "sfixed64" => Value::Sfixed64(value.extract()?),
        "bool" => Value::Bool(value.extract()?),
        "string" => Value::String(value.extract()?),
        "bytes" => Value::Bytes(value.extract()?),
        "double_list" => list!(DoubleList, DoubleList),
        "float_list" => list!(FloatList, FloatList),
        "int32_list" => list!(Int32List, Int32List),
        "int64_list" => list!(Int64List, Int64List),
        "uint32_list" => list!(Uint32List, Uint32List),
        "uint64_list" => list!(Uint64List, Uint64List),
        "sint32_list" => list!(Sint32List, Sint32List),
        "sint64_list" => list!(Sint64List, Sint64List),
        "fixed32_list" => list!(Fixed32List, Fixed32List),
        "fixed64_list" => list!(Fixed64List, Fixed64List),
        "sfixed32_list" => list!(Sfixed32List, Sfixed32List),
        "sfixed64_list" => list!(Sfixed64List, Sfixed64List),
        "bool_list" => list!(BoolList, BoolList),
        "string_list" => list!(StringList, StringList),
        "bytes_list" => list!(BytesList, BytesList),
        other => {
            let hint =
                "types are the names in the schema's AttributeProto without _val, for example int64 or string_list";
            return Err(PyValueError::new_err(format!("unknown type {other:?}\nhint: {hint}")));
        }
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TraceError", module.py().get_type::<TraceError>())?;
    module.add_class::<Attributes>()?;
    module.add_class::<Node>()?;
    module.add_class::<Metadata>()?;
    module.add_class::<TraceReader>()?;
    module.add_class::<TraceWriter>()?;
    module.add_class::<Feeder>()
}
