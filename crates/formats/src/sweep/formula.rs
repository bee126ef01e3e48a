//! Owns formulas of parameters and figures: conditions and derived figures.

use exmex::{BinOp, Express, FlatEx, FloatOpsFactory, MakeOperators, Operator};

/// A formula of named numbers. Names with other characters than letters, digits and `_` are in braces.
#[derive(Clone, Debug)]
pub struct Formula(FlatEx<f64, Comparing>);

/// Operators: arithmetic, and with lower precedence comparisons, `&&` and `||`, whose results are 1 and 0.
#[derive(Clone, Debug)]
struct Comparing;

impl MakeOperators<f64> for Comparing {
    fn make<'a>() -> Vec<Operator<'a, f64>> {
        let truth = |repr, apply, prio, is_commutative| Operator::make_bin(repr, BinOp { apply, prio, is_commutative });
        let mut operators = FloatOpsFactory::<f64>::make();
        // exmex's own priorities start at 0.
        operators.extend([
            truth("==", |a, b| f64::from(a == b), -1, true),
            truth("!=", |a, b| f64::from(a != b), -1, true),
            truth("<=", |a, b| f64::from(a <= b), -1, false),
            truth(">=", |a, b| f64::from(a >= b), -1, false),
            truth("<", |a, b| f64::from(a < b), -1, false),
            truth(">", |a, b| f64::from(a > b), -1, false),
            truth("&&", |a, b| f64::from(a != 0.0 && b != 0.0), -2, true),
            truth("||", |a, b| f64::from(a != 0.0 || b != 0.0), -3, true),
        ]);
        operators
    }
}

impl Formula {
    /// Reads a formula.
    ///
    /// # Errors
    /// If `text` is no formula.
    pub fn parse(text: &str) -> Result<Formula, String> {
        FlatEx::parse(text).map(Formula).map_err(|error| error.to_string())
    }

    /// The names in the formula.
    pub fn names(&self) -> &[String] {
        self.0.var_names()
    }

    /// The formula's value; true is 1 and false 0. `None`: a name has no value, or the result is not finite.
    pub fn value(&self, of: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.names().iter().map(|name| of(name)).collect();
        self.0.eval(&values?).ok().filter(|number| number.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<f64> {
        let known = |name: &str| match name {
            "tp" => Some(4.0),
            "pp" => Some(2.0),
            "decode.p50_s" => Some(0.25),
            _ => None,
        };
        Formula::parse(text).unwrap().value(known)
    }

    #[test]
    fn formulas_are_of_numbers_with_names() {
        assert_eq!(value("1 / 2 * tp"), Some(2.0));
        assert_eq!(value("1 / {decode.p50_s}"), Some(4.0));
        assert_eq!(value("tp * pp == 8 && tp >= pp"), Some(1.0));
        assert_eq!(value("tp * pp > 8 || tp < pp && 1 == 1"), Some(0.0));
        assert_eq!(value("tp - pp != 2 || pp + 1 <= 3"), Some(1.0));
        assert_eq!((value("tp / (pp - 2)"), value("unknown + 1")), (None, None));
        assert!(Formula::parse("2 * (tp").is_err());
    }
}
