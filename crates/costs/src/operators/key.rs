//! Owns the text of a definition in databases: the same text for calls that do the same work on any device.

use std::fmt::Write;
use uniference_formats::operators::{Argument, Definition, Tensor};

/// The canonical text of a definition: `aten::mm(f32[48,80],f32[80,112]/1,80)`. It omits the devices of tensors, and
/// the strides of contiguous ones; a written tensor has `!`. Results follow from the arguments, and their names from
/// the schema.
pub fn key(definition: &Definition) -> String {
    let mut text = format!("{}(", definition.name);
    for (index, argument) in definition.arguments.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write(&mut text, argument);
    }
    // Trailing absent arguments are dropped, and the names of arguments.
    let length = text.trim_end_matches([',', '-']).len();
    text.truncate(length.max(definition.name.len() + 1));
    text.push(')');
    text
}

fn write(text: &mut String, argument: &Argument) {
    match argument {
        Argument::None => text.push('-'),
        Argument::Bool(flag) => text.push(if *flag { 't' } else { 'f' }),
        Argument::Int(value) => numbers(text, &[*value]),
        Argument::Float => text.push('#'),
        Argument::Text(word) => write!(text, "{word:?}").expect("texts take all"),
        Argument::Ints(values) => {
            text.push('(');
            numbers(text, values);
            text.push(')');
        }
        Argument::Tensor(one) => tensor(text, one),
        Argument::Tensors(several) => {
            text.push('{');
            for (index, item) in several.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                match item {
                    Some(item) => tensor(text, item),
                    None => text.push('-'),
                }
            }
            text.push('}');
        }
        Argument::Other => text.push('?'),
        Argument::Names(_) => {}
    }
}

fn tensor(text: &mut String, tensor: &Tensor) {
    match tensor.dtype.dtype() {
        Some(dtype) => text.push_str(dtype.name()),
        None => write!(text, "type{}", tensor.dtype.0).expect("texts take all"),
    }
    text.push('[');
    numbers(text, &tensor.sizes);
    text.push(']');
    if !tensor.is_contiguous() {
        text.push('/');
        numbers(text, &tensor.strides);
    }
    if tensor.written {
        text.push('!');
    }
}

fn numbers<T: std::fmt::Display>(text: &mut String, values: &[T]) {
    for (index, value) in values.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(text, "{comma}{value}").expect("texts take all");
    }
}
