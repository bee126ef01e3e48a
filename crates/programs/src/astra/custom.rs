//! Owns collectives that are given as traces of their own (ASTRA-sim's custom collectives): each rank's sends, receives
//! and computations replace the collective in its trace. Sizes are those of the given traces; the size of the replaced
//! collective has no effect.

use crate::chakra::feed::Expand;
use std::collections::BTreeMap;
use std::io::Read;
use uniference_formats::astra::inputs::{AstraCollective, InputError};
use uniference_formats::chakra::attributes::IS_CPU_OP;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::{Node, NodeType, Value};
use uniference_sim::ids::RankId;

/// Maximum number of a collective's nodes on a rank.
const MOST_NODES: usize = 1 << 20;

/// By kind of collective, each rank's nodes.
#[derive(Debug, Default)]
pub struct Custom {
    kinds: BTreeMap<AstraCollective, Vec<Vec<Node>>>,
}

impl Custom {
    /// Reads the traces of one kind, one for each rank.
    ///
    /// # Errors
    /// There are no traces, one cannot be read, or has nodes that are neither messages nor compute.
    pub fn add<R: Read>(&mut self, kind: AstraCollective, traces: Vec<Reader<R>>) -> Result<(), InputError> {
        let hint =
            "a custom collective consists of one trace per rank, PREFIX.RANK.et, of send, receive and compute nodes";
        let wrong = |problem: String| InputError::new(format!("cannot read the custom collective: {problem}"), hint);
        if traces.is_empty() {
            return Err(wrong("the files do not exist".to_owned()));
        }
        let mut ranks = Vec::new();
        for trace in traces {
            let nodes: Vec<Node> =
                trace.take(MOST_NODES + 1).collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
            let fits =
                |node: &&Node| !matches!(node.r#type(), NodeType::CommSend | NodeType::CommRecv | NodeType::Comp);
            if let Some(node) = nodes.iter().find(fits) {
                return Err(wrong(format!("node {} is a {}", node.id, node.r#type().name())));
            }
            if nodes.len() > MOST_NODES {
                return Err(wrong(format!("more than {MOST_NODES} nodes")));
            }
            ranks.push(nodes.into_iter().map(beside).collect());
        }
        self.kinds.insert(kind, ranks);
        Ok(())
    }

    /// Whether no collective is replaced.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Moves computations of a collective to the CPU: they are part of communication, so they neither occupy the
/// accelerator nor count as its compute.
fn beside(mut node: Node) -> Node {
    node.attr.retain(|attribute| attribute.name != IS_CPU_OP);
    node.set(IS_CPU_OP, Value::Bool(node.r#type() == NodeType::Comp));
    node
}

impl Expand for Custom {
    fn expand(&self, rank: RankId, node: &Node) -> Option<Vec<Node>> {
        // A collective of a named process group need not include all ranks.
        if node.r#type() != NodeType::CommColl || node.is_cpu_op() || node.process_group().is_some() {
            return None;
        }
        self.kinds.get(&AstraCollective::of(node.comm_type()?)?)?.get(rank.index()).cloned()
    }
}
