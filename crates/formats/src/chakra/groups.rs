//! Owns the process groups that a PyTorch trace describes: metadata nodes whose inputs hold JSON inside a Python
//! string.

use super::attributes::IS_CPU_OP;
use super::schema::{IoInfo, Node, NodeType, Value};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The name of the nodes that describe process groups.
pub const PROCESS_GROUP_NODE: &str = "## process_group:init ##";

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessGroup {
    /// The group's name in communication nodes.
    pub name: String,
    /// The program's description of the group, if it gave one: `default_pg`.
    pub description: Option<String>,
    /// The group's ranks in the group's order; empty: all ranks.
    pub ranks: Vec<u32>,
}

/// A metadata node with an invalid description of process groups.
#[derive(Debug, thiserror::Error)]
#[error(
    "node {node} has an invalid description of process groups: {problem}\nhint: describe the groups in a separate file, or remove the node"
)]
pub struct GroupsError {
    /// The id of the node that describes the groups.
    pub node: u64,
    /// The invalid part.
    pub problem: String,
}

#[derive(Deserialize)]
struct Raw {
    pg_name: Name,
    #[serde(default)]
    pg_desc: Option<String>,
    #[serde(default)]
    ranks: Option<Ranks>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Number(u64),
}

/// A list; or, in older versions of PyTorch, each rank with its rank in the group.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ranks {
    List(Vec<u32>),
    Places(BTreeMap<String, u32>),
}

/// The process groups that `node` describes; `None` if it is another kind of node.
///
/// # Errors
/// If `node` is of this kind and invalid.
pub fn process_groups(node: &Node) -> Result<Option<Vec<ProcessGroup>>, GroupsError> {
    if node.name != PROCESS_GROUP_NODE || node.r#type() != NodeType::Metadata {
        return Ok(None);
    }
    let failed = |problem: String| GroupsError { node: node.id, problem };
    let values = node.inputs.as_ref().map_or("", |inputs| inputs.values.as_str());
    let json = first_string(values).unwrap_or_else(|| values.to_owned());
    let raw: Vec<Raw> = serde_json::from_str(&json).map_err(|error| failed(error.to_string()))?;
    let mut groups = Vec::new();
    for Raw { pg_name, pg_desc, ranks } in raw {
        let name = match pg_name {
            Name::Text(name) => name,
            Name::Number(number) => number.to_string(),
        };
        let ranks = match ranks {
            None => Vec::new(),
            Some(Ranks::List(ranks)) => ranks,
            Some(Ranks::Places(places)) => {
                let mut in_order: Vec<(u32, u32)> = Vec::new();
                for (rank, place) in places {
                    in_order.push((place, rank.parse().map_err(|_| failed(format!("`{rank}` is not a rank")))?));
                }
                in_order.sort_unstable();
                in_order.into_iter().map(|(_, rank)| rank).collect()
            }
        };
        groups.push(ProcessGroup { name, description: pg_desc, ranks });
    }
    Ok(Some(groups))
}

/// The node that describes one group, in the form of [`process_groups`].
pub fn describe(name: &str, ranks: &[u32]) -> Node {
    let size = ranks.len();
    let json = format!(r#"[{{"pg_name": "{name}", "pg_desc": "", "ranks": {ranks:?}, "group_size": {size}}}]"#);
    let list = |values: &str| IoInfo { values: values.into(), shapes: "[[]]".into(), types: "['String']".into() };
    let mut node = Node { name: PROCESS_GROUP_NODE.into(), r#type: NodeType::Metadata.into(), ..Node::default() };
    node.inputs = Some(Box::new(list(&format!("['{json}']"))));
    node.outputs = Some(Box::new(IoInfo { values: "[]".into(), shapes: "[]".into(), types: "[]".into() }));
    node.set(IS_CPU_OP, Value::Bool(true));
    node
}

/// The first string inside a list in Python's notation (`repr`).
fn first_string(repr: &str) -> Option<String> {
    let rest = repr.trim_start().strip_prefix('[')?.trim_start();
    let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let mut text = String::new();
    let mut characters = rest[1..].chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.push(match characters.next()? {
                'n' => '\n',
                't' => '\t',
                other => other,
            }),
            end if end == quote => return Some(text),
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chakra::schema::IoInfo;

    fn node(values: &str) -> Node {
        let inputs = Some(Box::new(IoInfo { values: values.to_owned(), ..IoInfo::default() }));
        Node { id: 3, name: PROCESS_GROUP_NODE.into(), r#type: NodeType::Metadata.into(), inputs, ..Node::default() }
    }

    #[test]
    fn groups_are_read_from_json_inside_a_string_of_python() {
        let text = r#"['[{"pg_name": "0", "pg_desc": "it\'s", "ranks": [], "group_size": 2}, {"pg_name": 7, "ranks": {"3": 1, "5": 0}}]']"#;
        let groups = process_groups(&node(text)).unwrap().unwrap();
        let expected = [
            ProcessGroup { name: "0".into(), description: Some("it's".into()), ranks: vec![] },
            ProcessGroup { name: "7".into(), description: None, ranks: vec![5, 3] },
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn what_is_described_is_read_back() {
        let groups = process_groups(&describe("3", &[4, 0])).unwrap().unwrap();
        assert_eq!((groups[0].name.as_str(), &groups[0].ranks[..]), ("3", &[4, 0][..]));
    }

    #[test]
    fn other_nodes_describe_none_and_damaged_ones_are_refused() {
        assert_eq!(process_groups(&Node { name: "a".into(), ..node("[]") }).unwrap(), None);
        let error = process_groups(&node("['[{']")).unwrap_err().to_string();
        assert!(
            error.starts_with("node 3 has an invalid description of process groups: EOF") && error.contains("hint: "),
            "{error}"
        );
        assert!(process_groups(&node(r#"['[{"pg_name": "1", "ranks": {"x": 0}}]']"#)).is_err());
    }
}
