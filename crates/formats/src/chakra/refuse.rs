//! Owns the reasons why a single node cannot be run: values that the schema does not define, and values that
//! contradict each other or the rank of the trace. Every caller that runs or checks traces asks this module about every
//! node.
//!
//! Checks that need more than the node, such as the members of its process group, belong to the callers that run
//! traces.

use super::attributes::{COMM_DST, COMM_GROUP, COMM_SIZE, COMM_SRC, COMM_TAG, COMM_TYPE, INVOLVED_DIM, PG_NAME};
use super::schema::{Node, NodeType, Value};

/// Attributes that start with a prefix in [`COMMUNICATION`] and are understood, or have no effect.
const UNDERSTOOD: [&str; 8] = [COMM_TYPE, COMM_SIZE, COMM_SRC, COMM_DST, COMM_TAG, COMM_GROUP, PG_NAME, "pg_desc"];

/// Prefixes of the names of attributes that describe communication.
const COMMUNICATION: [&str; 3] = ["comm_", "pg_", "group"];

/// The reason why a node cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Text of an error message after the name of the node.
    pub problem: String,
    /// Advice how to fix the trace.
    pub hint: &'static str,
}

/// The reason why the node cannot be run in the trace of `rank`; `None` if the node itself can be run.
pub fn refusal(node: &Node, rank: u32) -> Option<Refusal> {
    let own = match node.r#type() {
        NodeType::CommColl => None,
        NodeType::CommSend => Some(COMM_SRC),
        NodeType::CommRecv => Some(COMM_DST),
        _ => return None,
    };
    unknown_collective(node)
        .or_else(|| unclear_group(node))
        .or_else(|| spans_some_dimensions(node))
        .or_else(|| contradicts_rank(node, own?, rank))
}

/// Names of a communication node's attributes that seem to describe the communication and are not understood.
pub fn ignored(node: &Node) -> impl Iterator<Item = &str> {
    let communicates = matches!(node.r#type(), NodeType::CommColl | NodeType::CommSend | NodeType::CommRecv);
    let names = node.attr.iter().filter(move |_| communicates).map(|attribute| attribute.name.as_str());
    names.filter(|name| COMMUNICATION.iter().any(|prefix| name.starts_with(prefix)) && !UNDERSTOOD.contains(name))
}

/// Refuses a collective of unknown type. The CPU's node of a collective may lack the type.
fn unknown_collective(node: &Node) -> Option<Refusal> {
    if node.r#type() != NodeType::CommColl || node.comm_type().is_some() {
        return None;
    }
    let hint = "check the program that wrote the trace: `comm_type` is one of 0 (ALL_REDUCE) to 9 (BARRIER)";
    match node.attribute(COMM_TYPE) {
        None if node.is_cpu_op() => None,
        None => Some(Refusal { problem: "does not say which collective it is (`comm_type`)".to_owned(), hint }),
        Some(value) => {
            Some(Refusal { problem: format!("has comm_type {}, which is no collective", shown(value)), hint })
        }
    }
}

fn unclear_group(node: &Node) -> Option<Refusal> {
    let hint = "give the process group in one attribute, `pg_name`, as text or an integer";
    for name in [PG_NAME, COMM_GROUP] {
        match node.attribute(name) {
            None | Some(Value::String(_)) => {}
            Some(value) if value.integer().is_some() => {}
            Some(value) => {
                let problem = format!("names its process group (`{name}`) by a {}", value.type_name());
                return Some(Refusal { problem, hint });
            }
        }
    }
    if let (Some(first), Some(second)) = (node.group_of(PG_NAME), node.group_of(COMM_GROUP))
        && first != second
    {
        let problem = format!("is in process group `{first}` (`{PG_NAME}`) and in `{second}` (`{COMM_GROUP}`)");
        return Some(Refusal { problem, hint });
    }
    None
}

/// Refuses communication along only some of the network's dimensions, which would run along all of them.
fn spans_some_dimensions(node: &Node) -> Option<Refusal> {
    let narrowing = node.attr.iter().find(|attribute| {
        attribute.name.starts_with(INVOLVED_DIM)
            && match &attribute.value {
                Some(Value::Bool(involved)) => !involved,
                Some(Value::BoolList(list)) => list.values.contains(&false),
                Some(Value::Int32List(list)) => list.values.contains(&0),
                Some(Value::Int64List(list)) => list.values.contains(&0),
                _ => false,
            }
    });
    narrowing.map(|attribute| Refusal {
        problem: format!("spans only some dimensions of the network (`{}`), which is not supported", attribute.name),
        hint: "name the process group of the node in `pg_name`, and define it with --astra-comm-groups FILE",
    })
}

fn contradicts_rank(node: &Node, attribute: &str, rank: u32) -> Option<Refusal> {
    let said = node.unsigned(attribute)?;
    (said != u64::from(rank)).then(|| Refusal {
        problem: format!("has {attribute} {said}, but is in the trace of rank {rank}"),
        hint: "the number in the name of a trace is its rank; check the names of the files and the program that wrote them",
    })
}

fn shown(value: &Value) -> String {
    match (value.integer(), value) {
        (Some(number), _) => number.to_string(),
        (None, Value::String(text)) => format!("`{text}`"),
        (None, value) => format!("of type {}", value.type_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::{Attribute, BoolList, Int32List};
    use super::*;

    fn node(kind: NodeType, attributes: &[(&str, Value)]) -> Node {
        let attr = attributes.iter().map(|(name, value)| Attribute::new(name, value.clone())).collect();
        Node { id: 1, r#type: kind.into(), attr, ..Node::default() }
    }

    #[test]
    fn every_value_that_would_be_dropped_is_refused() {
        let all_reduce =
            |more: &[(&str, Value)]| node(NodeType::CommColl, &[&[(COMM_TYPE, Value::Int64(0))], more].concat());
        let dims = |values: &[bool]| Value::BoolList(BoolList { values: values.to_vec() });
        let text = |text: &str| Value::String(text.to_owned());
        let accepted = [
            all_reduce(&[]),
            all_reduce(&[(PG_NAME, text("1")), (COMM_GROUP, Value::Int32(1))]),
            all_reduce(&[(INVOLVED_DIM, dims(&[true, true]))]),
            node(NodeType::CommColl, &[("is_cpu_op", Value::Bool(true))]),
            node(NodeType::CommSend, &[(COMM_SRC, Value::Int32(3)), (COMM_DST, Value::Int32(0))]),
            node(NodeType::CommRecv, &[(COMM_SRC, Value::Int32(0)), (COMM_DST, Value::Int32(-1))]),
            node(NodeType::Comp, &[(COMM_TYPE, Value::Int64(42))]),
        ];
        for node in accepted {
            assert_eq!(refusal(&node, 3), None, "{node:?}");
        }
        let refused = [
            node(NodeType::CommColl, &[(COMM_TYPE, Value::Int64(42))]),
            node(NodeType::CommColl, &[(COMM_TYPE, Value::Int64(42)), ("is_cpu_op", Value::Bool(true))]),
            node(NodeType::CommColl, &[(COMM_TYPE, text("ALL_REDUCE"))]),
            node(NodeType::CommColl, &[]),
            all_reduce(&[(PG_NAME, text("1")), (COMM_GROUP, Value::Int32(2))]),
            all_reduce(&[(PG_NAME, Value::Double(1.0))]),
            all_reduce(&[(COMM_GROUP, Value::Int32List(Int32List { values: vec![0, 1] }))]),
            all_reduce(&[(INVOLVED_DIM, dims(&[true, false]))]),
            all_reduce(&[("involved_dim_2", Value::Bool(false))]),
            node(NodeType::CommSend, &[(COMM_SRC, Value::Int32(1)), (COMM_DST, Value::Int32(0))]),
            node(NodeType::CommRecv, &[(COMM_SRC, Value::Int32(1)), (COMM_DST, Value::Int32(0))]),
        ];
        let problems: Vec<String> =
            refused.iter().map(|node| refusal(node, 3).expect("it is refused").problem).collect();
        insta::assert_snapshot!(problems.join("\n"));
    }

    #[test]
    fn attributes_about_communication_that_are_not_understood_are_named() {
        let said = [(PG_NAME, Value::Int32(1)), ("comm_priority", Value::Int32(7)), ("rf_id", Value::Int32(7))];
        assert_eq!(ignored(&node(NodeType::CommColl, &said)).collect::<Vec<_>>(), ["comm_priority"]);
        assert_eq!(ignored(&node(NodeType::Comp, &said)).count(), 0);
    }
}
