//! Owns which operators and kernels of PyTorch's are communication, and what they say about it.
//!
//! Gloo runs an operation beside the thread that issues it (`c10d::allreduce_`) and marks it there (`gloo:all_reduce`): the mark is
//! the communication. NCCL's are kernels, whose arguments in the profiler's trace say what they do.

use super::device::Event;
use super::host::{HostTrace, Operator};
use crate::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, COMM_TYPE, IS_CPU_OP, PG_NAME, ROOT_RANK};
use crate::chakra::schema::{CommType, Node, NodeType, Value};
use serde_json::Value as Json;
use std::collections::{BTreeMap, VecDeque};

/// The host's half of what is communicated.
pub(super) struct Communication {
    /// Marks by node.
    marks: BTreeMap<u64, Mark>,
}

/// A mark of Gloo's.
struct Mark {
    kind: Kind,
    bytes: u64,
    /// Who issued it, with its arguments behind the group.
    issuer: Option<(u64, Vec<u64>)>,
}

/// What it does.
#[derive(Clone, Copy)]
enum Kind {
    Collective(CommType),
    Send,
    Recv,
}

impl Communication {
    pub(super) fn new(host: &HostTrace) -> Communication {
        // Each group's operations are carried out in the order of issue, so the marks of a kind come in that order.
        let mut issued: BTreeMap<String, VecDeque<&Operator>> = BTreeMap::new();
        let mut in_order: Vec<&Operator> = host.operators.iter().collect();
        in_order.sort_by_key(|operator| operator.function);
        for operator in &in_order {
            if let Some(name) = operator.name.strip_prefix("c10d::") {
                issued.entry(plain(name)).or_default().push_back(operator);
            }
        }
        let mut marks = BTreeMap::new();
        for operator in in_order {
            let Some(name) = operator.name.strip_prefix("gloo:") else { continue };
            let Some(kind) = kind(name) else { continue };
            let issuer = issued.get_mut(&plain(name)).and_then(VecDeque::pop_front);
            let own = operator.inputs.bytes();
            let bytes = if own > 0 { own } else { issuer.map_or(0, |issuer| issuer.inputs.bytes()) };
            let issuer = issuer.map(|issuer| (issuer.id, arguments(issuer)));
            marks.insert(operator.id, Mark { kind, bytes, issuer });
        }
        Communication { marks }
    }

    pub(super) fn of_operator(&self, node: u64) -> Option<()> {
        self.marks.get(&node).map(drop)
    }

    /// The operator that issued the communication.
    pub(super) fn issuer(&self, node: u64) -> Option<u64> {
        self.marks.get(&node)?.issuer.as_ref().map(|(id, _)| *id)
    }

    /// Turns the marks' nodes into communication.
    pub(super) fn describe_operators(&self, nodes: &mut BTreeMap<u64, Node>, warnings: &mut Vec<String>) {
        let groups = nodes.values().find_map(|node| crate::chakra::groups::process_groups(node).ok().flatten());
        let groups = groups.unwrap_or_default();
        if groups.len() > 1 && !self.marks.is_empty() {
            let problem = "the host trace does not say of which process group Gloo's operations are";
            warnings.push(format!("{problem}: all are taken to be of `{}`", groups[0].name));
        }
        for (id, mark) in &self.marks {
            let node = nodes.get_mut(id).expect("every mark is an operator");
            node.attr.retain(|attribute| attribute.name != IS_CPU_OP);
            node.set(IS_CPU_OP, Value::Bool(false));
            if let Some(group) = groups.first() {
                node.set(PG_NAME, Value::String(group.name.clone()));
            }
            let numbers = mark.issuer.as_ref().map_or(&[][..], |(_, numbers)| numbers);
            mark.kind.describe(node, mark.bytes, numbers);
        }
    }

    /// Says in `node` what a kernel communicates; false if it does not.
    pub(super) fn describe_kernel(&self, event: &Event, node: &mut Node) -> bool {
        let text = |name: &str| event.arguments.get(name).and_then(Json::as_str);
        let number = |name: &str| event.arguments.get(name).and_then(Json::as_u64);
        let Some(kind) = text("Collective name").and_then(kind) else { return false };
        let elements = number("In msg nelems").or(number("Out msg nelems")).unwrap_or(0);
        let bytes = elements.saturating_mul(element_size(text("dtype").unwrap_or("")));
        if let Some(group) = text("Process Group Name") {
            node.set(PG_NAME, Value::String(group.to_owned()));
        }
        let peer = match kind {
            Kind::Send => number("Dst Rank"),
            Kind::Recv => number("Src Rank"),
            Kind::Collective(_) => number("Root Rank"),
        };
        kind.describe(node, bytes, &peer.into_iter().collect::<Vec<_>>());
        true
    }
}

impl Kind {
    /// `numbers`: of a message the peer and the tag, of a collective with a root the root.
    fn describe(self, node: &mut Node, bytes: u64, numbers: &[u64]) {
        let number = |value: u64| Value::Int64(i64::try_from(value).unwrap_or(i64::MAX));
        let rooted =
            |kind| matches!(kind, CommType::Broadcast | CommType::Reduce | CommType::Gather | CommType::Scatter);
        node.set(COMM_SIZE, number(bytes));
        match self {
            Kind::Collective(kind) => {
                node.r#type = NodeType::CommColl.into();
                node.set(COMM_TYPE, Value::Int64(kind as i64));
                if let Some(root) = numbers.first().filter(|_| rooted(kind)) {
                    node.set(ROOT_RANK, number(*root));
                }
            }
            Kind::Send | Kind::Recv => {
                let (kind, peer) = match self {
                    Kind::Send => (NodeType::CommSend, COMM_DST),
                    _ => (NodeType::CommRecv, COMM_SRC),
                };
                node.r#type = kind.into();
                node.set(peer, number(numbers.first().copied().unwrap_or(0)));
                node.set(COMM_TAG, number(numbers.get(1).copied().unwrap_or(0)));
            }
        }
    }
}

/// The plain numbers among an operator's arguments, behind the group.
fn arguments(operator: &Operator) -> Vec<u64> {
    let Json::Array(values) = &operator.inputs.values else { return Vec::new() };
    values.iter().filter_map(Json::as_u64).collect()
}

/// `all_reduce`, `allreduce_`, `_allgather_base_` and `all_gather_into_tensor` say the same in different places.
fn plain(name: &str) -> String {
    let name: String = name.chars().filter(|character| character.is_ascii_alphabetic()).collect();
    let name = name.to_ascii_lowercase();
    for (part, plain) in [
        ("allreduce", "allreduce"),
        ("reducescatter", "reducescatter"),
        ("allgather", "allgather"),
        ("alltoall", "alltoall"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("reduce", "reduce"),
        ("send", "send"),
        ("recv", "recv"),
    ] {
        if name.contains(part) {
            return plain.to_owned();
        }
    }
    name
}

fn kind(name: &str) -> Option<Kind> {
    Some(match plain(name).as_str() {
        "allreduce" => Kind::Collective(CommType::AllReduce),
        "reducescatter" => Kind::Collective(CommType::ReduceScatter),
        "allgather" => Kind::Collective(CommType::AllGather),
        "alltoall" => Kind::Collective(CommType::AllToAll),
        "broadcast" => Kind::Collective(CommType::Broadcast),
        "barrier" => Kind::Collective(CommType::Barrier),
        "gather" => Kind::Collective(CommType::Gather),
        "scatter" => Kind::Collective(CommType::Scatter),
        "reduce" => Kind::Collective(CommType::Reduce),
        "send" => Kind::Send,
        "recv" => Kind::Recv,
        _ => return None,
    })
}

/// Of the profiler's names of types (`c10::ScalarType`).
fn element_size(dtype: &str) -> u64 {
    match dtype {
        "Double" | "Long" | "ComplexFloat" | "UInt64" => 8,
        "Half" | "BFloat16" | "Short" | "UInt16" => 2,
        "ComplexDouble" => 16,
        "Byte" | "Char" | "Bool" => 1,
        name if name.starts_with("Float8") => 1,
        _ => 4,
    }
}
