//! Owns the costs of kernels whose formulas the user gives.

use super::shape::Roof;
use super::{Model, estimate};
use crate::operators::values;
use uniference_formats::cluster::{Formula, KernelCost};
use uniference_formats::operators::Definition;
use uniference_sim::device::{Elements, Estimate, Origin, Precision};

impl Model {
    /// Cost of a kernel by its formulas: its work at the device's rates, or a duration. The user answers for the error.
    ///
    /// # Errors
    /// If a formula is wrong: which one, and why.
    pub fn by_formula(&self, cost: &KernelCost, definition: &Definition) -> Result<Estimate, String> {
        let called = values(definition);
        let value = |formula: &Option<Formula>, key: &str| match formula {
            Some(formula) => formula.value(&called).map_err(|error| format!("`{key}`: {error}")),
            None => Ok(0.0),
        };
        if cost.microseconds.is_some() {
            let microseconds = value(&cost.microseconds, "microseconds")?;
            return Ok(estimate(microseconds * 1e-6, 0.0, Origin::Database));
        }
        let work = (value(&cost.flops, "flops")?, value(&cost.bytes, "bytes")?);
        let dtype = definition.tensors().find_map(|tensor| tensor.dtype.dtype());
        let roof = Roof::of(&self.target.rates, Precision::of(dtype.map(Elements::Of)), self.grain());
        Ok(estimate(self.target.rates.launch.as_secs_f64() + roof.bare(work), 0.0, Origin::Roofline))
    }
}

#[cfg(test)]
mod tests {
    use crate::database::Databases;
    use crate::model::{Model, Target};
    use std::sync::Arc;
    use uniference_formats::cluster::{Choices, ClusterFile};
    use uniference_formats::operators::{Argument, Definition, Place, ScalarType, Tensor};
    use uniference_sim::device::Rates;

    /// A Triton GEMM of 64 x 32 and 32 x 16.
    fn product() -> Definition {
        let tensor = |sizes: [u64; 2]| {
            let (sizes, strides) = (sizes.to_vec(), vec![sizes[1] as i64, 1]);
            Some(Tensor { dtype: ScalarType(6), place: Place::CUDA, written: true, sizes, strides })
        };
        Definition {
            name: "triton::mm".to_owned(),
            arguments: vec![
                Argument::Text(";a,b,c;M,N,K,grid_x".to_owned()),
                Argument::Tensors(Vec::new()),
                Argument::Tensors(vec![tensor([64, 32]), tensor([32, 16]), tensor([64, 16])]),
                Argument::Ints(vec![64, 16, 32, 4]),
            ],
            results: Vec::new(),
        }
    }

    fn microseconds(kernel: &str) -> Result<f64, String> {
        let text = format!("[[device]]\nname = \"d\"\n[network]\n[[kernel]]\nname = \"triton::mm\"\n{kernel}");
        let file = ClusterFile::parse("c.toml", &text, &[]).unwrap();
        let cost = file.resolve(&Choices::default()).unwrap().kernels.remove(0);
        let target = Target { name: None, rates: Rates::uniform(1e9, 1e9) };
        let launch = target.rates.launch.as_secs_f64();
        let estimate = Model::new(target, Arc::new(Databases::default())).by_formula(&cost, &product())?;
        let overhead = if kernel.contains("microseconds") { 0.0 } else { launch };
        Ok((estimate.duration.as_secs_f64() - overhead) * 1e6)
    }

    #[test]
    fn work_takes_the_devices_rates_and_time_is_as_said() {
        let close = |kernel: &str, expected: f64| {
            let found = microseconds(kernel).unwrap();
            assert!((found - expected).abs() < 1e-6, "{kernel}: {found}");
        };
        // 2 * 64 * 16 * 32 operations at 1e9 per second; 4 bytes per element.
        close("flops = \"2 * M * N * K\"", 65.536);
        close("flops = \"2 * M * N * K\"\nbytes = \"10 ^ 6\"", 1000.0);
        close("bytes = \"4 * (a + b + c)\"", 4.0 * f64::from(64 * 32 + 32 * 16 + 64 * 16) * 1e-3);
        close("bytes = \"bytes\"", 4.0 * f64::from(64 * 32 + 32 * 16 + 64 * 16) * 1e-3);
        close("microseconds = \"10 + grid_x / 2\"", 12.0);
    }

    #[test]
    fn a_name_that_the_kernel_does_not_have_is_an_error() {
        let error = microseconds("flops = \"2 * M * L\"").unwrap_err();
        assert_eq!(
            error,
            "`flops`: `L` is not among what it is called with: K, M, N, a, b, bytes, c, elements, grid_x"
        );
    }
}
