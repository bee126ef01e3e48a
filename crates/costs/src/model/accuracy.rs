//! Owns the errors of the model's layers, on database rows that the layers are not shown.

use super::surface::{Surface, kernel, quantile};
use super::{Model, Place, Target};
use crate::database::{DatabaseError, Databases, Row, Series};
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_formats::devices;
use uniference_sim::device::{Elements, Family, FlatKind, Layout, Operator, Pass, Resource, RowKind};
use uniference_sim::time::Bytes;

/// Largest number of predicted rows per series.
const JUDGES: usize = 40;

/// Absolute values of the relative errors of one family's rows, by layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// Each row is predicted from the other rows of its device.
    pub interpolated: Vec<f64>,
    /// The same errors, of logarithms, in units of their spreads.
    pub standardized: Vec<f64>,
    /// Each row is predicted from other devices: its own device is left out.
    pub transferred: Vec<f64>,
    /// Each row is predicted from the rates of its device alone.
    pub roofline: Vec<f64>,
}

/// Errors by family. `open` reads the databases, once per device.
///
/// # Errors
/// If a database cannot be read.
pub fn errors(open: impl Fn() -> Result<Databases, DatabaseError>) -> Result<BTreeMap<String, Errors>, DatabaseError> {
    let all = Arc::new(open()?);
    let mut found: BTreeMap<String, Errors> = BTreeMap::new();
    for device in devices::all() {
        let Some(rates) = device.rates() else { continue };
        let series: Vec<&(usize, Series)> = all.series().iter().filter(|(_, s)| s.device == device.name).collect();
        if series.is_empty() {
            continue;
        }
        let model = |databases| Model::new(Target { name: Some(device.name.clone()), rates }, databases);
        let (own, without) = (model(all.clone()), model(Arc::new(open()?.without(&device.name))));
        let bare = model(Arc::new(Databases::none()));
        for (index, series) in series {
            let rows = all.rows(*index, series)?;
            // A row includes the launch overhead, which a program that keeps the queue filled does not pay.
            let elements = Elements::from_name(&series.dtype);
            let overhead =
                |elements| own.overhead_of_host(&device.name, &series.family, Some(&series.variant), elements);
            let host = elements.map_or(0.0, overhead);
            let errors = found.entry(series.family.clone()).or_default();
            if let Some(surface) = rows.first().and_then(|row| surface(&own, series, row)) {
                for (residual, spread) in surface.residuals() {
                    errors.interpolated.push(libm::expm1(residual).abs());
                    errors.standardized.push(residual.abs() / spread);
                }
            }
            for row in rows.iter().step_by(rows.len().div_ceil(JUDGES)) {
                let Some(operator) = operator(series, row) else { continue };
                let error = |model: &Model| {
                    let estimate = model.part(&operator, Some(&series.variant));
                    let measured = row.microseconds * 1e-6;
                    let hidden = measured - kernel(measured, host);
                    ((estimate.duration.as_secs_f64() + hidden) / measured - 1.0).abs()
                };
                errors.transferred.push(error(&without));
                errors.roofline.push(error(&bare));
            }
        }
    }
    Ok(found)
}

fn surface(model: &Model, series: &Series, row: &Row) -> Option<Arc<Surface>> {
    let operator = operator(series, row)?;
    let place = Place {
        device: series.device.clone(),
        family: operator.family.name(),
        variant: Some(series.variant.clone()),
        elements: operator.elements?,
    };
    model.surface(place, &operator)
}

/// The operator that a row measures.
fn operator(series: &Series, row: &Row) -> Option<Operator> {
    let [a, b, c, d] = row.dimensions;
    let rows = |kind| Family::Rows { kind, pass: Pass::Forward, rows: a, columns: b };
    let flat = |kind| Family::Flat { kind, elements: a };
    let layout = if series.variant == "nt" { Layout::NT } else { Layout::NN };
    let family = match series.family.as_str() {
        "gemm" => Family::Gemm { batch: a, m: b, n: c, k: d, layout },
        "convolution" => Family::Convolution { pass: Pass::Forward, groups: a, m: b, n: c, k: d },
        "attention" | "attention_backward" => {
            let pass = if series.family == "attention" { Pass::Forward } else { Pass::Backward };
            Family::Attention { pass, heads: a, queries: b, keys: c, width: d, causal: false }
        }
        "normalization" => rows(RowKind::Normalization),
        "softmax" => rows(RowKind::Softmax),
        "elementwise" => flat(FlatKind::Elementwise),
        "gather" => flat(FlatKind::Gather),
        _ => return None,
    };
    let (flops, read) = (row.flops, Bytes(row.bytes));
    let elements = Some(Elements::from_name(&series.dtype)?);
    Some(Operator { resource: Resource::Accelerator, family, elements, flops, read, written: Bytes(0) })
}

/// Quantiles of a normal distribution between which 80 and 95 % lie, in standard deviations.
const LEVELS: [f64; 2] = [1.281_552, 1.959_964];

/// Shares of the interpolated errors that lie in the intervals of 80 and of 95 %.
pub fn coverage<'a>(errors: impl IntoIterator<Item = &'a Errors>) -> [f64; 2] {
    let all: Vec<f64> = errors.into_iter().flat_map(|errors| errors.standardized.iter().copied()).collect();
    LEVELS.map(|level| all.iter().filter(|error| **error <= level).count() as f64 / all.len().max(1) as f64)
}

/// The table of docs/devices.md: number of rows, median and 90th percentile of the errors of each layer in %, and shares
/// in % of the rows in their intervals of 80 and of 95 %.
pub fn table(errors: &BTreeMap<String, Errors>) -> String {
    let mut text = "| family | rows | interpolated | in 80 % / 95 % | another device | roofline |\n".to_owned();
    text += "|---|---|---|---|---|---|\n";
    let covered = |[narrow, wide]: [f64; 2]| format!("{:.0} / {:.0}", 100.0 * narrow, 100.0 * wide);
    for (family, errors) in errors {
        let percent = |errors: &[f64], part| 100.0 * quantile(errors, part);
        let cell = |errors: &[f64]| format!("{:.0} / {:.0}", percent(errors, 0.5), percent(errors, 0.9));
        let [interpolated, transferred, roofline] =
            [&errors.interpolated, &errors.transferred, &errors.roofline].map(|errors| cell(errors));
        let (rows, covered) = (errors.interpolated.len(), covered(coverage([errors])));
        text += &format!("| {family} | {rows} | {interpolated} | {covered} | {transferred} | {roofline} |\n");
    }
    let rows: usize = errors.values().map(|errors| errors.interpolated.len()).sum();
    text + &format!("| all | {rows} | | {} | | |\n", covered(coverage(errors.values())))
}
