//! Owns costs of kernels from a cluster file: formulas of the kernels' arguments.

use super::raw::RawKernel;
use super::source::Source;
use crate::diagnostic::Diagnostic;
use exmex::prelude::*;
use std::collections::BTreeMap;
use toml::Spanned;

/// Cost of the kernels with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCost {
    /// Name of an operator or a kernel in reports: `triton::softmax`. An asterisk at the end matches any rest.
    pub name: String,
    /// Number of floating-point operations.
    pub flops: Option<Formula>,
    /// Bytes that pass through the device's memory.
    pub bytes: Option<Formula>,
    /// Duration on the device, in place of `flops` and `bytes`.
    pub microseconds: Option<Formula>,
}

/// A formula of named numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula(exmex::FlatEx<f64>);

impl KernelCost {
    /// Whether the cost applies to this kernel.
    pub fn is_about(&self, kernel: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(beginning) => kernel.starts_with(beginning),
            None => kernel == self.name,
        }
    }
}

impl Formula {
    /// The formula's value; at least 0.
    ///
    /// # Errors
    /// If a name has no value, or the result is not such a number.
    pub fn value(&self, values: &BTreeMap<String, f64>) -> Result<f64, String> {
        let given: Result<Vec<f64>, String> = self
            .0
            .var_names()
            .iter()
            .map(|name| {
                let known: Vec<&str> = values.keys().map(String::as_str).collect();
                let missing = || format!("`{name}` is not among what it is called with: {}", known.join(", "));
                values.get(name).copied().ok_or_else(missing)
            })
            .collect();
        let value = self.0.eval(&given?).map_err(|error| error.to_string())?;
        if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(format!("it comes to {value}")) }
    }
}

pub(super) fn resolve(raw: &[Spanned<RawKernel>], source: &Source) -> Result<Vec<KernelCost>, Diagnostic> {
    raw.iter().map(|kernel| one(kernel, source)).collect()
}

fn one(raw: &Spanned<RawKernel>, source: &Source) -> Result<KernelCost, Diagnostic> {
    let RawKernel { name, flops, bytes, microseconds } = raw.get_ref();
    let has_work = flops.is_some() || bytes.is_some();
    if has_work == microseconds.is_some() {
        let hint =
            "give `flops` and `bytes`, or one of them, from which the device's rates make a time; or `microseconds`";
        return Err(source.error("a kernel costs either work or time", raw.span()).hint(hint));
    }
    let formula = |text: &Option<Spanned<String>>| text.as_ref().map(|text| formula(text, source)).transpose();
    Ok(KernelCost {
        name: name.get_ref().clone(),
        flops: formula(flops)?,
        bytes: formula(bytes)?,
        microseconds: formula(microseconds)?,
    })
}

fn formula(text: &Spanned<String>, source: &Source) -> Result<Formula, Diagnostic> {
    exmex::parse::<f64>(text.get_ref()).map(Formula).map_err(|error| {
        let hint = "write numbers and names of what the kernel is called with, as in \"2 * M * N * K\"";
        source.error(format!("this is no formula: {error}"), text.span()).hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;

    fn resolved(kernel: &str) -> Result<Resolved, Diagnostic> {
        let text = format!("[[device]]\nname = \"gpu\"\nmodel = \"h100-sxm\"\n[network]\n[[kernel]]\n{kernel}");
        ClusterFile::parse("c.toml", &text, &[])?.resolve(&Choices::default())
    }

    #[test]
    fn formulas_are_of_what_a_kernel_is_called_with() {
        let found = resolved("name = \"triton::mm*\"\nflops = \"2 * M * N ^ 2\"\nbytes = \"bytes / 2\"").unwrap();
        let cost = &found.kernels[0];
        assert!(cost.is_about("triton::mm_kernel") && !cost.is_about("triton::m"));
        let values = BTreeMap::from([("M".to_owned(), 3.0), ("N".to_owned(), 4.0), ("bytes".to_owned(), 10.0)]);
        assert_eq!(cost.flops.as_ref().unwrap().value(&values), Ok(96.0));
        assert_eq!(cost.bytes.as_ref().unwrap().value(&values), Ok(5.0));
        let missing = cost.flops.as_ref().unwrap().value(&BTreeMap::from([("K".to_owned(), 1.0)]));
        assert_eq!(missing, Err("`M` is not among what it is called with: K".to_owned()));
        // The resolved file has the same costs.
        let again = ClusterFile::parse("kept", &found.toml, &[]).unwrap().resolve(&Choices::default()).unwrap();
        assert_eq!(again.kernels, found.kernels);
    }

    #[test]
    fn a_result_that_is_no_amount_is_refused() {
        let found = resolved("name = \"k\"\nmicroseconds = \"1 - n\"").unwrap();
        let value = |n| found.kernels[0].microseconds.as_ref().unwrap().value(&BTreeMap::from([("n".to_owned(), n)]));
        assert_eq!((value(0.25), value(2.0)), (Ok(0.75), Err("it comes to -1".to_owned())));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_hint() {
        for (wrong, message) in [
            ("name = \"k\"", "a kernel costs either work or time"),
            ("name = \"k\"\nflops = \"1\"\nmicroseconds = \"1\"", "a kernel costs either work or time"),
            ("name = \"k\"\nflops = \"2 * (M\"", "this is no formula"),
            ("name = \"k\"\nflop = \"2\"", "unknown"),
        ] {
            let error = resolved(wrong).err().unwrap().to_string();
            assert!(error.contains(message) && error.contains("hint"), "{wrong}: {error}");
        }
    }
}
