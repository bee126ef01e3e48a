//! Owns the messages of an execution trace in their encoding: `et_def.proto` (package `ChakraProtoMsg`, proto3) of
//! <https://github.com/mlcommons/chakra>, written by hand, so that no build needs `protoc`.
//!
//! [`super::attributes`] interprets attributes. Enumerations stay plain numbers, so that numbers of later versions are
//! kept.

use prost::{Enumeration, Message, Oneof};

/// The first message of a file.
#[derive(Clone, PartialEq, Message)]
pub struct GlobalMetadata {
    /// `0.0.4`, `1.0.0`; PyTorch's converter leaves it empty.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The writer's attributes of the whole trace.
    #[prost(message, repeated, tag = "2")]
    pub attr: Vec<Attribute>,
}

/// One operation of one rank.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Id of the node, unique in its file.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name of the node for people; the simulation does not depend on it.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Type of the node: the number of a [`NodeType`].
    #[prost(enumeration = "NodeType", tag = "3")]
    pub r#type: i32,
    /// Nodes that end before this node starts: control dependencies.
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    /// Nodes that end before this node starts: data dependencies.
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    /// Start of the node, in microseconds.
    #[prost(uint64, tag = "6")]
    pub start_time_micros: u64,
    /// Duration of the node, in microseconds.
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    /// Inputs of the node. They are boxed as few nodes have them, and many nodes are kept.
    #[prost(message, optional, boxed, tag = "8")]
    pub inputs: Option<Box<IoInfo>>,
    /// Outputs of the node.
    #[prost(message, optional, boxed, tag = "9")]
    pub outputs: Option<Box<IoInfo>>,
    /// All other attributes, by name.
    #[prost(message, repeated, tag = "10")]
    pub attr: Vec<Attribute>,
}

/// Values, shapes and types in Python's notation (`repr`).
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct IoInfo {
    /// `[[1], 6, 'cpu']`.
    #[prost(string, tag = "1")]
    pub values: String,
    /// `[[[]], [], []]`.
    #[prost(string, tag = "2")]
    pub shapes: String,
    /// `['GenericList[Int]', 'Int', 'Device']`.
    #[prost(string, tag = "3")]
    pub types: String,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
#[allow(missing_docs)] // the names say it
pub enum NodeType {
    Invalid = 0,
    Metadata = 1,
    MemLoad = 2,
    MemStore = 3,
    Comp = 4,
    CommSend = 5,
    CommRecv = 6,
    CommColl = 7,
}

/// The kind of a collective, in the attribute `comm_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
#[allow(missing_docs)] // the names say it
pub enum CommType {
    AllReduce = 0,
    Reduce = 1,
    AllGather = 2,
    Gather = 3,
    Scatter = 4,
    Broadcast = 5,
    AllToAll = 6,
    ReduceScatter = 7,
    ReduceScatterBlock = 8,
    Barrier = 9,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// Name of the attribute.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Description for people.
    #[prost(string, tag = "2")]
    pub doc_string: String,
    /// `AttributeProto.value`.
    #[prost(
        oneof = "Value",
        tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32"
    )]
    pub value: Option<Value>,
}

/// An attribute's value; writers choose different integer types for the same attribute.
#[derive(Clone, PartialEq, Oneof)]
#[allow(missing_docs)] // the names say it
pub enum Value {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(message, tag = "4")]
    DoubleList(DoubleList),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(message, tag = "6")]
    FloatList(FloatList),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(message, tag = "8")]
    Int32List(Int32List),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(message, tag = "10")]
    Int64List(Int64List),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(message, tag = "12")]
    Uint32List(Uint32List),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(message, tag = "14")]
    Uint64List(Uint64List),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(message, tag = "16")]
    Sint32List(Sint32List),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(message, tag = "18")]
    Sint64List(Sint64List),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(message, tag = "20")]
    Fixed32List(Fixed32List),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(message, tag = "22")]
    Fixed64List(Fixed64List),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(message, tag = "24")]
    Sfixed32List(Sfixed32List),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(message, tag = "26")]
    Sfixed64List(Sfixed64List),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(message, tag = "28")]
    BoolList(BoolList),
    #[prost(string, tag = "29")]
    String(String),
    #[prost(message, tag = "30")]
    StringList(StringList),
    #[prost(bytes, tag = "31")]
    Bytes(Vec<u8>),
    #[prost(message, tag = "32")]
    BytesList(BytesList),
}

macro_rules! lists {
    ($($name:ident $element:ident $rust:ty),* $(,)?) => {$(
        /// A list inside an attribute.
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            /// The elements of the list.
            #[prost($element, repeated, tag = "1")]
            pub values: Vec<$rust>,
        }
    )*};
}

lists! {
    DoubleList double f64, FloatList float f32, Int32List int32 i32, Int64List int64 i64, Uint32List uint32 u32,
    Uint64List uint64 u64, Sint32List sint32 i32, Sint64List sint64 i64, Fixed32List fixed32 u32, Fixed64List fixed64 u64,
    Sfixed32List sfixed32 i32, Sfixed64List sfixed64 i64, BoolList bool bool, StringList string String,
}

/// A list inside an attribute.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct BytesList {
    /// The elements of the list.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub values: Vec<Vec<u8>>,
}

impl NodeType {
    /// The name that the official tools use in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            NodeType::Invalid => "INVALID_NODE",
            NodeType::Metadata => "METADATA_NODE",
            NodeType::MemLoad => "MEM_LOAD_NODE",
            NodeType::MemStore => "MEM_STORE_NODE",
            NodeType::Comp => "COMP_NODE",
            NodeType::CommSend => "COMM_SEND_NODE",
            NodeType::CommRecv => "COMM_RECV_NODE",
            NodeType::CommColl => "COMM_COLL_NODE",
        }
    }
}

impl CommType {
    /// The schema's name.
    pub const fn name(self) -> &'static str {
        match self {
            CommType::AllReduce => "ALL_REDUCE",
            CommType::Reduce => "REDUCE",
            CommType::AllGather => "ALL_GATHER",
            CommType::Gather => "GATHER",
            CommType::Scatter => "SCATTER",
            CommType::Broadcast => "BROADCAST",
            CommType::AllToAll => "ALL_TO_ALL",
            CommType::ReduceScatter => "REDUCE_SCATTER",
            CommType::ReduceScatterBlock => "REDUCE_SCATTER_BLOCK",
            CommType::Barrier => "BARRIER",
        }
    }
}

impl Node {
    /// All dependencies, data dependencies first; duplicates included.
    pub fn dependencies(&self) -> impl Iterator<Item = u64> {
        self.data_deps.iter().chain(&self.ctrl_deps).copied()
    }
}
