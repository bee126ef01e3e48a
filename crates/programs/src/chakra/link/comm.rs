//! Owns the description of communication in PyTorch's files: the operation of an NCCL kernel or a mark of Gloo, its
//! number and type of elements, and its process group.
//!
//! The place of the description depends on the version of PyTorch. It is searched in this order: the kernel's own
//! arguments (`Collective name`), the operator around its launch (`record_param_comms`, in the profile or in the host
//! trace), the annotations around it (`nccl:all_reduce`), and the name of the kernel
//! (`ncclKernel_AllReduce_RING_LL_Sum_float`), which has no size.

use super::profile::CommArgs;
use uniference_formats::chakra::schema::CommType;
use uniference_sim::program::DType;

/// Kind of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommKind {
    Collective(CommType),
    Send,
    Recv,
}

/// Identification of a process group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupName {
    /// The name, as in all other files.
    Text(String),
    /// An address, which differs between ranks (host traces of 1.0.1).
    Address(u64),
}

/// Description of communication by an operator of a host trace.
#[derive(Clone, Debug)]
pub(super) struct HostComm {
    /// The operation of a `record_param_comms`, such as `all_to_allv`; else the operator's name.
    pub(super) operation: String,
    pub(super) dtype: Option<DType>,
    pub(super) in_elements: u64,
    pub(super) out_elements: u64,
    pub(super) bytes: u64,
    pub(super) in_split: Vec<u64>,
    pub(super) out_split: Vec<u64>,
    pub(super) group: Option<GroupName>,
    /// Source, destination or root, as a group rank; then the tag.
    pub(super) numbers: Vec<u64>,
}

/// Communication, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comm {
    pub(super) kind: CommKind,
    /// Bytes as in the attribute `comm_size`.
    pub(super) bytes: u64,
    pub(super) dtype: Option<DType>,
    /// Elements for and from each rank of the group; empty: equal.
    pub(super) in_split: Vec<u64>,
    pub(super) out_split: Vec<u64>,
    pub(super) group: Option<GroupName>,
    pub(super) ranks: Option<Vec<u32>>,
    /// Source, destination or root, as a group rank.
    pub(super) peer: Option<u64>,
    pub(super) tag: u64,
}

/// A description of a kernel or mark: its own arguments, or an operator or annotation around its launch.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) args: Option<&'a CommArgs>,
    pub(super) host: Option<&'a HostComm>,
}

/// Combines the descriptions of `sources`, the first of which has precedence; the name of the kernel comes last.
///
/// # Errors
/// The information that no source has.
pub(super) fn describe(sources: &[Source<'_>], kernel: &str) -> Result<Comm, &'static str> {
    let args = || sources.iter().filter_map(|source| source.args);
    let host = || sources.iter().filter_map(|source| source.host);
    let named = args().filter_map(|args| args.collective.as_deref()).find_map(kind);
    let kind = named
        .or_else(|| host().find_map(|host| kind(&host.operation)))
        .or_else(|| sources.iter().find_map(|source| kind(source.name)))
        .or_else(|| kind(kernel).filter(|_| !kernel.contains("SendRecv")))
        .ok_or("the operation is unknown")?;
    let ranks = args().find_map(|args| args.ranks.clone());
    let dtype = args()
        .find_map(|args| dtype(args.dtype.as_deref()?))
        .or_else(|| host().find_map(|host| host.dtype))
        .or_else(|| args().flat_map(|args| &args.types).find_map(|name| dtype(name)));
    let size = args().find_map(|args| args.group_size).or(ranks.as_ref().map(|ranks| ranks.len() as u64));
    let spoken = |of: fn(&CommArgs) -> Option<u64>, host_of: fn(&HostComm) -> u64| {
        let tensors = || host().map(host_of).find(|elements| *elements > 0);
        args().find_map(of).or_else(tensors)
    };
    let dims = || args().map(|args| args.dims.iter().copied().max().unwrap_or(0)).find(|elements| *elements > 0);
    let inwards = spoken(|args| args.in_elements, |host| host.in_elements).or_else(dims);
    let outwards = spoken(|args| args.out_elements, |host| host.out_elements);
    let list = |of: fn(&CommArgs) -> Option<&Vec<u64>>, host_of: fn(&HostComm) -> &Vec<u64>| {
        let given = args().filter_map(of).chain(host().map(host_of)).find(|list| !list.is_empty());
        given.cloned().unwrap_or_default()
    };
    let in_rows = list(|args| args.in_split.as_ref(), |host| &host.in_split);
    let out_rows = list(|args| args.out_split.as_ref(), |host| &host.out_split);
    let elements = elements(kind, inwards, outwards, size);
    let bytes = match (elements, dtype) {
        _ if kind == CommKind::Collective(CommType::Barrier) => 0,
        (Some(elements), Some(dtype)) => elements.saturating_mul(dtype.size()),
        // Bytes of Gloo's marks, whose types are not in the host trace.
        _ => host().map(|host| host.bytes).find(|bytes| *bytes > 0).ok_or("the size is unknown")?,
    };
    let (in_split, out_split) = match kind {
        CommKind::Collective(CommType::AllToAll) if !in_rows.is_empty() && in_rows.len() == out_rows.len() => {
            (in_elements_of(&in_rows, inwards), in_elements_of(&out_rows, outwards))
        }
        _ => (Vec::new(), Vec::new()),
    };
    let group = args().find_map(|args| args.group.clone().map(GroupName::Text));
    let numbers = host().find(|host| !host.numbers.is_empty()).map_or(&[][..], |host| &host.numbers);
    let peer = args().find_map(|args| args.peer).or(numbers.first().copied());
    Ok(Comm {
        kind,
        bytes,
        dtype,
        in_split,
        out_split,
        group: group.or_else(|| host().find_map(|host| host.group.clone())),
        ranks,
        peer,
        tag: numbers.get(1).copied().unwrap_or(0),
    })
}

/// Number of elements as in a trace: each rank's shard for an all-gather and a gather, all blocks together for a
/// reduce-scatter and a scatter.
fn elements(kind: CommKind, inwards: Option<u64>, outwards: Option<u64>, size: Option<u64>) -> Option<u64> {
    let (Some(inwards), Some(outwards)) = (inwards.or(outwards), outwards.or(inwards)) else { return None };
    match kind {
        CommKind::Recv => Some(inwards.max(outwards)),
        _ if inwards > 0 => Some(inwards),
        CommKind::Collective(CommType::AllGather | CommType::Gather) => Some(outwards.div_ceil(size?.max(1))),
        CommKind::Collective(CommType::ReduceScatter | CommType::Scatter) => Some(outwards.saturating_mul(size?)),
        _ => Some(outwards),
    }
}

/// Converts split sizes to elements: PyTorch splits along the first dimension, whose rows may have several elements.
fn in_elements_of(rows: &[u64], elements: Option<u64>) -> Vec<u64> {
    let all = rows.iter().fold(0_u64, |sum, rows| sum.saturating_add(*rows));
    let per_row = elements.filter(|elements| all > 0 && elements % all == 0).map_or(1, |elements| elements / all);
    rows.iter().map(|rows| rows.saturating_mul(per_row)).collect()
}

/// Whether a kernel belongs to NCCL or RCCL.
pub(super) fn is_nccl(kernel: &str) -> bool {
    let name = kernel.to_ascii_lowercase();
    name.starts_with("nccl") || name.contains("nccldevkernel") || name.contains("ncclkernel")
}

/// The kind of communication by its name: `all_reduce`, `allreduce_`, `_allgather_base_` and `all_gather_into_tensor`
/// are spellings in different places.
pub(super) fn kind(name: &str) -> Option<CommKind> {
    let name: String =
        name.chars().filter(char::is_ascii_alphabetic).map(|letter| letter.to_ascii_lowercase()).collect();
    let known = [
        ("allreduce", CommKind::Collective(CommType::AllReduce)),
        ("reducescatter", CommKind::Collective(CommType::ReduceScatter)),
        ("allgather", CommKind::Collective(CommType::AllGather)),
        ("alltoall", CommKind::Collective(CommType::AllToAll)),
        ("broadcast", CommKind::Collective(CommType::Broadcast)),
        ("barrier", CommKind::Collective(CommType::Barrier)),
        ("gather", CommKind::Collective(CommType::Gather)),
        ("scatter", CommKind::Collective(CommType::Scatter)),
        ("reduce", CommKind::Collective(CommType::Reduce)),
        ("send", CommKind::Send),
        ("recv", CommKind::Recv),
    ];
    known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| kind)
}

/// The type by the profiler's name (`c10::ScalarType`), or by the C++ name, as in host traces.
pub(super) fn dtype(name: &str) -> Option<DType> {
    Some(match name.strip_prefix("c10::").unwrap_or(name) {
        "Byte" | "unsigned char" => DType::UInt8,
        "Char" | "signed char" => DType::Int8,
        "Short" | "short" | "short int" => DType::Int16,
        "Int" | "int" => DType::Int32,
        "Long" | "long" | "long int" => DType::Int64,
        "UInt16" => DType::UInt16,
        "UInt32" => DType::UInt32,
        "UInt64" => DType::UInt64,
        "Half" => DType::Float16,
        "BFloat16" => DType::BFloat16,
        "Float" | "float" => DType::Float32,
        "Double" | "double" => DType::Float64,
        "Bool" | "bool" => DType::Bool,
        "ComplexHalf" => DType::Complex32,
        "ComplexFloat" | "complex<float>" => DType::Complex64,
        "ComplexDouble" | "complex<double>" => DType::Complex128,
        "Float8_e4m3fn" => DType::Float8E4M3,
        "Float8_e5m2" => DType::Float8E5M2,
        "Float8_e4m3fnuz" => DType::Float8E4M3Fnuz,
        "Float8_e5m2fnuz" => DType::Float8E5M2Fnuz,
        _ => return None,
    })
}
