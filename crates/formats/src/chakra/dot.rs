//! Owns the picture of a trace as a graph in Graphviz' language. Graphviz computes the layout.

use super::ShowError;
use super::read::Reader;
use super::schema::NodeType;
use std::io::{Read, Write};

/// Writes a trace as a directed graph: data dependencies solid, control dependencies dashed.
///
/// # Errors
/// If the trace cannot be read, or the graph cannot be written.
pub fn write<R: Read>(mut trace: Reader<R>, out: &mut impl Write) -> Result<(), ShowError> {
    writeln!(out, "digraph trace {{\n  rankdir=TB;\n  node [style=filled];")?;
    while let Some(node) = trace.next_node()? {
        let (shape, colour) = match node.r#type() {
            NodeType::Comp if node.is_cpu_op() => ("box", "white"),
            NodeType::Comp => ("box", "lightblue"),
            NodeType::MemLoad | NodeType::MemStore => ("cylinder", "khaki"),
            NodeType::CommSend | NodeType::CommRecv => ("cds", "palegreen"),
            NodeType::CommColl => ("ellipse", "lightsalmon"),
            NodeType::Invalid | NodeType::Metadata => ("note", "lightgrey"),
        };
        let label = node.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        writeln!(out, "  n{} [label=\"{}: {label}\", shape={shape}, fillcolor={colour}];", node.id, node.id)?;
        for dependency in &node.data_deps {
            writeln!(out, "  n{dependency} -> n{};", node.id)?;
        }
        for dependency in &node.ctrl_deps {
            writeln!(out, "  n{dependency} -> n{} [style=dashed];", node.id)?;
        }
    }
    writeln!(out, "}}")?;
    Ok(())
}
