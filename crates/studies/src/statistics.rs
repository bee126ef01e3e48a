//! Owns statistics of repeated measurements: the median and other quantiles, with one definition for all reports.

/// Values in order, at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    /// The sample of these values; `None`: there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Sample> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then_some(Sample(values))
    }

    /// The quantile below which `part` of the values lie, a fraction of 1: interpolated linearly between the sorted
    /// values (Hyndman and Fan 1996, definition 7).
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let place = part * (self.0.len() - 1) as f64;
        let [below, above] = [place.floor(), place.ceil()].map(|place| self.0[place as usize]);
        below + (above - below) * place.fract()
    }

    /// The median; for an even number of values the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Half of the distance between the quartiles, over the median.
    pub(crate) fn scatter(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / 2.0 / self.median()
    }

    /// Number of values in the sample.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_on_the_line_between_neighbours() {
        let sample = Sample::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        // (n - 1) p = 1.5, 0.75, 0 and 3 steps from the first
        assert_eq!([0.5, 0.25, 0.0, 1.0].map(|part| sample.quantile(part)), [2.5, 1.75, 1.0, 4.0]);
        assert_eq!((sample.median(), sample.scatter()), (2.5, 1.5 / 2.0 / 2.5));
        assert_eq!(Sample::of([7.0]).unwrap().quantile(0.975), 7.0);
        assert_eq!(Sample::of([]), None);
    }
}
