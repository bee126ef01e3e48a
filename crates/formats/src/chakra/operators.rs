//! Owns the text of an operator of a compute node in an attribute ([`super::own::OPERATORS`]): eight words or less,
//! `gemm bfloat16 nt 1,8192,10240,8192 1374389534720 301989888 167772160`. This module has no costs of operators.
//!
//! The words are the family, the type of the elements (`-`: unknown), for a GEMM the layout, for attention `causal` or
//! `full`, the sizes in the order of the family, floating-point operations, bytes read and bytes written.

use uniference_sim::device::{Elements, Family, FlatKind, Layout, Operator, Pass, Resource, RowKind};
use uniference_sim::time::Bytes;

const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
const ROWS: [RowKind; 5] = [RowKind::Normalization, RowKind::Softmax, RowKind::Reduction, RowKind::Scan, RowKind::Sort];
const FLAT: [FlatKind; 6] =
    [FlatKind::Elementwise, FlatKind::Copy, FlatKind::Gather, FlatKind::Scatter, FlatKind::Random, FlatKind::Optimizer];

/// The text of an operator. The node says which device runs it.
pub fn write(operator: &Operator) -> String {
    let Operator { family, elements, flops, read, written, .. } = operator;
    let kind = match family {
        Family::Gemm { layout, .. } => format!(" {}", layout.name()),
        Family::Attention { causal, .. } => format!(" {}", if *causal { "causal" } else { "full" }),
        _ => String::new(),
    };
    let sizes: Vec<String> = family.dimensions().iter().flatten().map(|(_, size)| size.to_string()).collect();
    let sizes = if sizes.is_empty() { "-".to_owned() } else { sizes.join(",") };
    let elements = elements.map_or("-", Elements::name);
    format!("{} {elements}{kind} {sizes} {flops} {} {}", family.name(), read.0, written.0)
}

/// The accelerator's operator that a text describes; `None`: the text is not in this module's format.
pub fn parse(text: &str) -> Option<Operator> {
    let mut words = text.split(' ');
    let (name, elements) = (words.next()?, words.next()?);
    let kind = if matches!(name, "gemm" | "attention" | "attention_backward") { words.next()? } else { "" };
    let sizes = words.next().filter(|sizes| *sizes != "-").map_or(Some(Vec::new()), |sizes| {
        sizes.split(',').map(|size| size.parse::<u64>().ok()).collect::<Option<Vec<u64>>>()
    })?;
    let mut numbers = words.map(|word| word.parse::<u64>().ok());
    let [flops, read, written] = [numbers.next()??, numbers.next()??, numbers.next()??];
    if numbers.next().is_some() {
        return None;
    }
    Some(Operator {
        resource: Resource::Accelerator,
        family: family(name, kind, &sizes)?,
        elements: if elements == "-" { None } else { Some(Elements::from_name(elements)?) },
        flops,
        read: Bytes(read),
        written: Bytes(written),
    })
}

fn family(name: &str, kind: &str, sizes: &[u64]) -> Option<Family> {
    let (base, pass) = match (name.strip_suffix("_backward"), name.strip_suffix("_weights")) {
        (Some(base), _) => (base, Pass::Backward),
        (_, Some(base)) => (base, Pass::Weights),
        _ => (name, Pass::Forward),
    };
    let causal = match kind {
        "causal" => Some(true),
        "full" => Some(false),
        _ => None,
    };
    let found = match (base, sizes) {
        ("unspecified", []) => Family::Unspecified,
        ("gemm", &[batch, m, n, k]) => {
            let layout = LAYOUTS.into_iter().find(|layout| layout.name() == kind)?;
            Family::Gemm { batch, m, n, k, layout }
        }
        ("convolution", &[groups, m, n, k]) => Family::Convolution { pass, groups, m, n, k },
        ("attention", &[heads, queries, keys, width]) => {
            Family::Attention { pass, heads, queries, keys, width, causal: causal? }
        }
        (_, &[rows, columns]) => {
            let of = |kind: &RowKind| Family::Rows { kind: *kind, pass, rows, columns };
            ROWS.iter().map(of).find(|family| family.name() == name)?
        }
        (_, &[elements]) => {
            FLAT.iter().map(|kind| Family::Flat { kind: *kind, elements }).find(|family| family.name() == name)?
        }
        _ => return None,
    };
    (found.name() == name).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::program::DType;

    #[test]
    fn every_operator_reads_back_as_it_was_written() {
        let mut families = vec![Family::Unspecified];
        families.extend(LAYOUTS.map(|layout| Family::Gemm { batch: 1, m: 2, n: 3, k: 4, layout }));
        for pass in [Pass::Forward, Pass::Backward, Pass::Weights] {
            families.push(Family::Convolution { pass, groups: 1, m: 2, n: 3, k: 4 });
        }
        for pass in [Pass::Forward, Pass::Backward] {
            for causal in [false, true] {
                families.push(Family::Attention { pass, heads: 1, queries: 2, keys: 3, width: 4, causal });
            }
            families.extend(ROWS.map(|kind| Family::Rows { kind, pass, rows: 5, columns: 6 }));
        }
        families.extend(FLAT.map(|kind| Family::Flat { kind, elements: 7 }));
        for family in families {
            for elements in [None, Some(Elements::Of(DType::BFloat16)), Some(Elements::Tf32)] {
                let (resource, read) = (Resource::Accelerator, Bytes(9));
                let operator = Operator { resource, family, elements, flops: 8, read, written: Bytes(10) };
                let text = write(&operator);
                assert_eq!(parse(&text), Some(operator), "{text}");
            }
        }
    }

    #[test]
    fn what_is_not_ours_is_no_operator() {
        for text in [
            "",
            "gemm",
            "gemm bfloat16 nt 1,2,3 4 5 6",
            "gemm bfloat16 xx 1,2,3,4 4 5 6",
            "gemm what nt 1,2,3,4 4 5 6",
            "gemm_backward bfloat16 nt 1,2,3,4 4 5 6",
            "softmax bfloat16 1,2 3 4",
            "softmax bfloat16 1,2 3 4 5 6",
            "elementwise_backward bfloat16 1 3 4 5",
            "attention bfloat16 1,2,3,4 4 5 6",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
