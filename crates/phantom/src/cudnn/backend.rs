//! Owns cuDNN's operation graphs: descriptors with attributes, a single engine for every graph, its plan, and the
//! kernel that its execution launches.

use super::{BAD_PARAM, Library, NOT_SUPPORTED, NULL_POINTER, SUCCESS, Status, create, destroy, elements, sizes};
use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::streams;
use crate::unimplemented::report;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;
use std::sync::Arc;

// `cudnnBackendDescriptorType_t`
const ENGINE: c_int = 2;
const ENGINE_CONFIGURATION: c_int = 3;
const HEURISTIC: c_int = 4;
const PLAN: c_int = 5;
const CONVOLUTION_FORWARD: c_int = 10;
const CONVOLUTION_BACKWARD_FILTER: c_int = 11;
const CONVOLUTION_BACKWARD_DATA: c_int = 12;
const VARIANT_PACK: c_int = 16;
const TENSOR: c_int = 17;
const MATMUL: c_int = 19;
const REDUCTION: c_int = 22;
const ATTENTION_FORWARD: c_int = 41;
const ATTENTION_BACKWARD: c_int = 43;
const SOFTMAX: c_int = 45;

// `cudnnBackendAttributeName_t`
const HEURISTIC_GRAPH: c_int = 201;
const HEURISTIC_RESULTS: c_int = 202;
const CONFIGURATION_ENGINE: c_int = 300;
const CONFIGURATION_KNOBS: c_int = 302;
const CONFIGURATION_WORKSPACE: c_int = 303;
const CONFIGURATION_SHARED_MEMORY: c_int = 304;
const PLAN_CONFIGURATION: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const GRAPH_OPERATIONS: c_int = 801;
const GRAPH_ENGINES: c_int = 802;
const TENSOR_TYPE: c_int = 901;
const TENSOR_DIMENSIONS: c_int = 902;
const TENSOR_ID: c_int = 906;
const TENSOR_IS_VIRTUAL: c_int = 907;
const ENGINE_GRAPH: c_int = 1300;
const ENGINE_INDEX: c_int = 1301;
const ENGINE_KNOBS: c_int = 1302;
const ENGINE_NUMERICAL_NOTES: c_int = 1303;
const ENGINE_LAYOUTS: c_int = 1304;
const ENGINE_BEHAVIOUR_NOTES: c_int = 1305;

/// `CUDNN_TYPE_BACKEND_DESCRIPTOR`
const DESCRIPTOR: c_int = 15;

/// `cudnnBackendDescriptor_t`. A descriptor that is an attribute of another is copied: later changes do not affect the
/// copy.
pub(super) struct Descriptor(Arc<Contents>);

#[derive(Clone, Default)]
struct Contents {
    kind: c_int,
    values: BTreeMap<c_int, Vec<u8>>,
    children: BTreeMap<c_int, Vec<Arc<Contents>>>,
    /// Name and bytes of a plan's launch.
    launch: Option<(String, u64)>,
}

exports! {
    fn cudnnBackendCreateDescriptor(kind: c_int, place: Out<*mut Descriptor>) -> Status {
        create(place, Descriptor(Arc::new(Contents { kind, ..Contents::default() })))
    }
    fn cudnnBackendDestroyDescriptor(descriptor: *mut Descriptor) -> Status { destroy(descriptor) }
    fn cudnnBackendInitialize(_descriptor: *mut Descriptor) -> Status { SUCCESS }
    fn cudnnBackendSetAttribute(
        descriptor: Option<&mut Descriptor>, attribute: c_int, kind: c_int, count: i64, values: *const c_void,
    ) -> Status {
        let Some(Descriptor(contents)) = descriptor else { return NULL_POINTER };
        let Ok(count) = usize::try_from(count) else { return BAD_PARAM };
        // Only kernels would read the addresses of tensors.
        if contents.kind == VARIANT_PACK {
            return SUCCESS;
        }
        if values.is_null() && count > 0 {
            return NULL_POINTER;
        }
        let Some(size) = size_of(kind) else {
            report("cudnn", &format!("cudnnBackendSetAttribute with values of type {kind}"));
            return NOT_SUPPORTED;
        };
        let contents = Arc::make_mut(contents);
        if kind == DESCRIPTOR {
            // SAFETY: cuDNN requires that `values` has `count` descriptors, which come from this library.
            let given = if count == 0 { &[] } else { unsafe { from_raw_parts(values.cast::<Option<&Descriptor>>(), count) } };
            let Some(children) = given.iter().map(|child| child.map(|child| child.0.clone())).collect() else { return NULL_POINTER };
            contents.children.insert(attribute, children);
        } else {
            // SAFETY: cuDNN requires that `values` has `count` values of this type, which `size_of` knows.
            let bytes = if count == 0 { &[] } else { unsafe { from_raw_parts(values.cast::<u8>(), count * size) } };
            contents.values.insert(attribute, bytes.to_vec());
        }
        SUCCESS
    }
    fn cudnnBackendGetAttribute(
        descriptor: Option<&Descriptor>, attribute: c_int, kind: c_int, requested: i64, count: Out<i64>, values: *mut c_void,
    ) -> Status {
        let Some(Descriptor(contents)) = descriptor else { return NULL_POINTER };
        let requested = if values.is_null() { 0 } else { usize::try_from(requested).unwrap_or(0) };
        let Some(size) = size_of(kind) else {
            report("cudnn", &format!("cudnnBackendGetAttribute with values of type {kind}"));
            return NOT_SUPPORTED;
        };
        if kind == DESCRIPTOR {
            let Some(children) = contents.children_of(attribute) else { return contents.has_no(attribute) };
            count.put(children.len() as i64);
            for (index, child) in children.into_iter().enumerate().take(requested) {
                // SAFETY: cuDNN requires that the program has created as many descriptors as it requests.
                match unsafe { values.cast::<*mut Descriptor>().add(index).read().as_mut() } {
                    Some(place) => place.0 = child,
                    None => return NULL_POINTER,
                }
            }
            return SUCCESS;
        }
        let Some(bytes) = contents.value_of(attribute) else { return contents.has_no(attribute) };
        count.put((bytes.len() / size) as i64);
        let length = bytes.len().min(requested * size);
        // SAFETY: cuDNN requires space for as many values as requested.
        unsafe { values.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), length) };
        SUCCESS
    }
    fn cudnnBackendFinalize(descriptor: Option<&mut Descriptor>) -> Status {
        let Some(Descriptor(contents)) = descriptor else { return NULL_POINTER };
        match contents.kind {
            // Engine 0 is the only engine.
            ENGINE if contents.number(ENGINE_INDEX).is_some_and(|index| index != 0) => NOT_SUPPORTED,
            PLAN => {
                let graph = contents.child(PLAN_CONFIGURATION).and_then(|it| it.child(CONFIGURATION_ENGINE)).and_then(|it| it.child(ENGINE_GRAPH));
                let Some(graph) = graph else { return BAD_PARAM };
                let launch = graph.launch();
                Arc::make_mut(contents).launch = Some(launch);
                SUCCESS
            }
            _ => SUCCESS,
        }
    }
    fn cudnnBackendExecute(handle: Option<&Library>, plan: Option<&Descriptor>, pack: Option<&Descriptor>) -> Status {
        let (Some(library), Some(Descriptor(plan)), Some(_)) = (handle, plan, pack) else { return NULL_POINTER };
        let Some((name, bytes)) = &plan.launch else { return BAD_PARAM };
        streams::launch(library.stream, name, *bytes);
        SUCCESS
    }
}

impl Contents {
    /// Value of an attribute that was set or that follows from others; else `None`.
    fn value_of(&self, attribute: c_int) -> Option<Vec<u8>> {
        let integer = |value: i64| value.to_ne_bytes().to_vec();
        Some(match attribute {
            // The engine needs no workspace and has no knobs or notes.
            CONFIGURATION_WORKSPACE | PLAN_WORKSPACE => integer(0),
            CONFIGURATION_SHARED_MEMORY => integer(0),
            GRAPH_ENGINES => integer(1),
            ENGINE_NUMERICAL_NOTES | ENGINE_BEHAVIOUR_NOTES => Vec::new(),
            ENGINE_INDEX => self.values.get(&attribute).cloned().unwrap_or_else(|| integer(0)),
            _ => self.values.get(&attribute).cloned()?,
        })
    }

    fn children_of(&self, attribute: c_int) -> Option<Vec<Arc<Contents>>> {
        Some(match attribute {
            HEURISTIC_RESULTS if self.kind == HEURISTIC => {
                let engine = Contents {
                    kind: ENGINE,
                    children: BTreeMap::from([(ENGINE_GRAPH, self.children.get(&HEURISTIC_GRAPH)?.clone())]),
                    ..Contents::default()
                };
                let children = BTreeMap::from([(CONFIGURATION_ENGINE, vec![Arc::new(engine)])]);
                vec![Arc::new(Contents { kind: ENGINE_CONFIGURATION, children, ..Contents::default() })]
            }
            CONFIGURATION_KNOBS | ENGINE_KNOBS | ENGINE_LAYOUTS => {
                self.children.get(&attribute).cloned().unwrap_or_default()
            }
            _ => self.children.get(&attribute).cloned()?,
        })
    }

    fn has_no(&self, attribute: c_int) -> Status {
        report(
            "cudnn",
            &format!("cudnnBackendGetAttribute of attribute {attribute} of a descriptor of type {}", self.kind),
        );
        NOT_SUPPORTED
    }

    fn child(&self, attribute: c_int) -> Option<&Contents> {
        self.children.get(&attribute)?.first().map(|child| &**child)
    }

    fn integers(&self, attribute: c_int) -> Vec<i64> {
        let bytes = self.values.get(&attribute).map_or(&[][..], Vec::as_slice);
        bytes.chunks_exact(8).map(|chunk| i64::from_ne_bytes(chunk.try_into().unwrap_or_default())).collect()
    }

    fn number(&self, attribute: c_int) -> Option<i64> {
        self.integers(attribute).first().copied()
    }

    /// Element type of a tensor.
    fn element(&self) -> Option<Kind> {
        let bytes = self.values.get(&TENSOR_TYPE)?;
        Kind::of_cudnn(c_int::from_ne_bytes(bytes.as_slice().try_into().ok()?))
    }

    /// Name and bytes of a graph's only kernel. The name contains the operations, and the type and sizes of the main
    /// operation's tensors; the bytes are those of all tensors in memory.
    fn launch(&self) -> (String, u64) {
        let operations = self.children.get(&GRAPH_OPERATIONS).map_or(&[][..], Vec::as_slice);
        let named = |wanted: fn(c_int) -> bool| operations.iter().find(|operation| wanted(operation.kind));
        let first = named(is_product).or(named(is_main)).or(operations.first());
        let tensors = first.map_or(Vec::new(), |operation| operation.inputs());
        let mut name = format!("cudnn {}", name_of(operations));
        if let Some(kind) = tensors.iter().find_map(|tensor| tensor.element()) {
            name = format!("{name} {}", kind.name);
        }
        for tensor in tensors.iter().take(2) {
            name = format!("{name} {}", sizes(&tensor.integers(TENSOR_DIMENSIONS)));
        }
        let mut seen = BTreeSet::new();
        let all = operations.iter().flat_map(|operation| operation.tensors());
        let bytes = all.filter(|tensor| seen.insert(tensor.number(TENSOR_ID))).map(|tensor| {
            let is_virtual =
                tensor.values.get(&TENSOR_IS_VIRTUAL).is_some_and(|bytes| bytes.iter().any(|&byte| byte != 0));
            let element = tensor.element().filter(|_| !is_virtual);
            element.map_or(0, |kind| kind.bytes(elements(&tensor.integers(TENSOR_DIMENSIONS))))
        });
        (name, bytes.sum())
    }

    /// Tensors of an operation that its kernel's name contains.
    fn inputs(&self) -> Vec<&Contents> {
        match self.kind {
            CONVOLUTION_FORWARD => [704, 703].iter().filter_map(|&attribute| self.child(attribute)).collect(),
            CONVOLUTION_BACKWARD_FILTER => [716, 715].iter().filter_map(|&attribute| self.child(attribute)).collect(),
            CONVOLUTION_BACKWARD_DATA => [711, 709].iter().filter_map(|&attribute| self.child(attribute)).collect(),
            _ => self.tensors(),
        }
    }

    /// Tensors of an operation, in the order of its attributes.
    fn tensors(&self) -> Vec<&Contents> {
        self.children.values().flatten().map(|child| &**child).filter(|child| child.kind == TENSOR).collect()
    }
}

/// Bytes of a value of a `cudnnBackendAttributeType_t`; `None` for unknown types.
fn size_of(kind: c_int) -> Option<usize> {
    Some(match kind {
        // Handles, 64-bit integers, doubles, pointers, descriptors.
        0 | 3 | 5 | 6 | DESCRIPTOR => 8,
        // Booleans and characters.
        2 | 24 => 1,
        // Fractions.
        26 => 16,
        // Floats, 32-bit integers, and enumerations.
        1 | 4 | 7..=14 | 16..=23 | 25 | 27..=32 => 4,
        _ => return None,
    })
}

/// Whether an operation is part of the kernel's name.
fn is_main(kind: c_int) -> bool {
    !matches!(kind, 13 | 31 | 46 | 47)
}

fn is_product(kind: c_int) -> bool {
    matches!(kind, CONVOLUTION_FORWARD..=CONVOLUTION_BACKWARD_DATA | MATMUL | ATTENTION_FORWARD | ATTENTION_BACKWARD)
}

/// Names of the operations that are not pointwise; several GEMMs with a reduction or a softmax are attention.
fn name_of(operations: &[Arc<Contents>]) -> String {
    let count = |wanted: &[c_int]| operations.iter().filter(|operation| wanted.contains(&operation.kind)).count();
    match (count(&[MATMUL]), count(&[REDUCTION, SOFTMAX])) {
        (2, 1..) => return "attention forward".to_owned(),
        (3.., 1..) => return "attention backward".to_owned(),
        _ => {}
    }
    let mut names: Vec<&str> = operations
        .iter()
        .filter(|operation| is_main(operation.kind))
        .map(|operation| name_of_one(operation.kind))
        .collect();
    if names.is_empty() {
        names.push("pointwise");
    }
    names.dedup();
    names.join("+")
}

fn name_of_one(kind: c_int) -> &'static str {
    match kind {
        CONVOLUTION_FORWARD => "convolution forward",
        CONVOLUTION_BACKWARD_FILTER => "convolution backward filter",
        CONVOLUTION_BACKWARD_DATA => "convolution backward data",
        14 => "statistics",
        MATMUL => "matmul",
        20 => "batch_norm statistics",
        REDUCTION => "reduction",
        23 => "batch_norm backward weights",
        25 | 26 => "resample",
        27 => "concat",
        29 => "norm forward",
        30 => "norm backward",
        33 => "random",
        36 => "quantize",
        37 => "dequantize",
        ATTENTION_FORWARD => "attention forward",
        42 | 48 => "grouped matmul",
        ATTENTION_BACKWARD => "attention backward",
        SOFTMAX => "softmax",
        49 | 50 => "rope",
        _ => "operation",
    }
}
