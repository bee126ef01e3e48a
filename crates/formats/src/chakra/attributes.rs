//! Owns the meaning of a node's attributes. The schema does not define attributes; by convention, tools agree on their
//! names only. Each writer chooses its own integer types, so all integer types are read alike.

use super::schema::{Attribute, CommType, GlobalMetadata, Node, Value};

/// True for a node that runs on the host's CPU, false for a node on the accelerator.
pub const IS_CPU_OP: &str = "is_cpu_op";
/// The kind of collective: a [`CommType`].
pub const COMM_TYPE: &str = "comm_type";
/// Size in bytes; for an all-gather the size of each rank's shard.
pub const COMM_SIZE: &str = "comm_size";
/// The sending rank.
pub const COMM_SRC: &str = "comm_src";
/// The receiving rank.
pub const COMM_DST: &str = "comm_dst";
/// The tag that matches a receive with its send.
pub const COMM_TAG: &str = "comm_tag";
/// The root of a collective that has one.
pub const ROOT_RANK: &str = "root_rank";
/// The process group.
pub const PG_NAME: &str = "pg_name";
/// The process group in STG traces with legacy attributes.
pub const COMM_GROUP: &str = "comm_group";
/// The network dimensions that a collective spans, in ASTRA-sim 1.0 traces; a list of bools, or one bool per attribute
/// `involved_dim_N`.
pub const INVOLVED_DIM: &str = "involved_dim";
/// Floating-point operations of a compute node.
pub const NUM_OPS: &str = "num_ops";
/// Bytes that a compute or memory node moves.
pub const TENSOR_SIZE: &str = "tensor_size";
/// The thread's number.
pub const TID: &str = "tid";
/// Type of the elements, by torch's name.
pub const DTYPE: &str = "dtype";
/// Operator of a reduction, by torch's name.
pub const REDUCE_OP: &str = "reduce_op";
/// Number of elements for each rank of the group, if they are unequal.
pub const IN_SPLIT: &str = "in_split_size";
/// Number of elements from each rank of the group, if they are unequal.
pub const OUT_SPLIT: &str = "out_split_size";

impl Attribute {
    /// A named value without a description.
    pub fn new(name: &str, value: Value) -> Attribute {
        Attribute { name: name.to_owned(), doc_string: String::new(), value: Some(value) }
    }
}

impl Value {
    /// A number of any integer type; a bool counts as 0 or 1.
    pub fn integer(&self) -> Option<i128> {
        Some(match self {
            Value::Int32(n) | Value::Sint32(n) | Value::Sfixed32(n) => i128::from(*n),
            Value::Int64(n) | Value::Sint64(n) | Value::Sfixed64(n) => i128::from(*n),
            Value::Uint32(n) | Value::Fixed32(n) => i128::from(*n),
            Value::Uint64(n) | Value::Fixed64(n) => i128::from(*n),
            Value::Bool(b) => i128::from(*b),
            _ => return None,
        })
    }

    /// The field's name in the schema, without `_val`: `int64`, `bool_list`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Value::Double(_) => "double",
            Value::DoubleList(_) => "double_list",
            Value::Float(_) => "float",
            Value::FloatList(_) => "float_list",
            Value::Int32(_) => "int32",
            Value::Int32List(_) => "int32_list",
            Value::Int64(_) => "int64",
            Value::Int64List(_) => "int64_list",
            Value::Uint32(_) => "uint32",
            Value::Uint32List(_) => "uint32_list",
            Value::Uint64(_) => "uint64",
            Value::Uint64List(_) => "uint64_list",
            Value::Sint32(_) => "sint32",
            Value::Sint32List(_) => "sint32_list",
            Value::Sint64(_) => "sint64",
            Value::Sint64List(_) => "sint64_list",
            Value::Fixed32(_) => "fixed32",
            Value::Fixed32List(_) => "fixed32_list",
            Value::Fixed64(_) => "fixed64",
            Value::Fixed64List(_) => "fixed64_list",
            Value::Sfixed32(_) => "sfixed32",
            Value::Sfixed32List(_) => "sfixed32_list",
            Value::Sfixed64(_) => "sfixed64",
            Value::Sfixed64List(_) => "sfixed64_list",
            Value::Bool(_) => "bool",
            Value::BoolList(_) => "bool_list",
            Value::String(_) => "string",
            Value::StringList(_) => "string_list",
            Value::Bytes(_) => "bytes",
            Value::BytesList(_) => "bytes_list",
        }
    }
}

impl GlobalMetadata {
    /// An attribute as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// An attribute as an unsigned number.
    pub fn unsigned(&self, name: &str) -> Option<u64> {
        u64::try_from(self.attribute(name)?.integer()?).ok()
    }

    fn attribute(&self, name: &str) -> Option<&Value> {
        self.attr.iter().find(|attribute| attribute.name == name)?.value.as_ref()
    }
}

impl Node {
    /// The first attribute of this name that has a value.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attr.iter().filter(|attribute| attribute.name == name).find_map(|attribute| attribute.value.as_ref())
    }

    /// The attribute as an unsigned number; `None` if it is missing, negative or no integer.
    pub fn unsigned(&self, name: &str) -> Option<u64> {
        u64::try_from(self.attribute(name)?.integer()?).ok()
    }

    /// The attribute as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The attribute as a list of unsigned numbers.
    pub fn numbers(&self, name: &str) -> Option<&[u64]> {
        match self.attribute(name)? {
            Value::Uint64List(list) => Some(&list.values),
            _ => None,
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &str, value: Value) {
        self.attr.push(Attribute::new(name, value));
    }

    /// Whether the node runs on the host's CPU; false if there is no attribute.
    pub fn is_cpu_op(&self) -> bool {
        self.attribute(IS_CPU_OP).and_then(Value::integer).is_some_and(|flag| flag != 0)
    }

    /// The kind of collective.
    pub fn comm_type(&self) -> Option<CommType> {
        CommType::try_from(i32::try_from(self.attribute(COMM_TYPE)?.integer()?).ok()?).ok()
    }

    /// The name of the node's process group, which some writers store as a number; `None`: all ranks.
    pub fn process_group(&self) -> Option<String> {
        self.group_of(PG_NAME).or_else(|| self.group_of(COMM_GROUP))
    }

    /// The process group that the attribute names.
    pub(super) fn group_of(&self, attribute: &str) -> Option<String> {
        match self.attribute(attribute)? {
            Value::String(name) if name.is_empty() => None,
            Value::String(name) => Some(name.clone()),
            number => number.integer().map(|number| number.to_string()),
        }
    }
}
