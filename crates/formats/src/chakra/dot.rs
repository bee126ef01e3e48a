//! Owns the picture of a trace as a graph in Graphviz' language. Laying it out is Graphviz' business.

use super::ShowError;
use super::read::Reader;
use super::schema::{Node, NodeType};
use std::io::{self, Read, Write};

/// Writes a trace as a directed graph: dependencies of data solid, of control dashed.
///
/// # Errors
/// The trace cannot be read, or the graph not written.
pub fn write<R: Read>(mut trace: Reader<R>, out: &mut impl Write) -> Result<(), ShowError> {
    writeln!(out, "digraph trace {{\n  rankdir=TB;\n  node [style=filled];")?;
    while let Some(node) = trace.next_node()? {
        write_node(&node, out)?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

fn write_node(node: &Node, out: &mut impl Write) -> io::Result<()> {
    let (shape, colour) = look(node);
    let label = escaped(&node.name);
    writeln!(out, "  n{} [label=\"{}: {label}\", shape={shape}, fillcolor={colour}];", node.id, node.id)?;
    for dependency in &node.data_deps {
        writeln!(out, "  n{dependency} -> n{};", node.id)?;
    }
    for dependency in &node.ctrl_deps {
        writeln!(out, "  n{dependency} -> n{} [style=dashed];", node.id)?;
    }
    Ok(())
}

fn look(node: &Node) -> (&'static str, &'static str) {
    match node.r#type() {
        NodeType::Comp if node.is_cpu_op() => ("box", "white"),
        NodeType::Comp => ("box", "lightblue"),
        NodeType::MemLoad | NodeType::MemStore => ("cylinder", "khaki"),
        NodeType::CommSend | NodeType::CommRecv => ("cds", "palegreen"),
        NodeType::CommColl => ("ellipse", "lightsalmon"),
        NodeType::Invalid | NodeType::Metadata => ("note", "lightgrey"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
