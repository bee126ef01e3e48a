//! Owns the points of a sweep: all combinations, or a number of drawn ones.

use uniference_formats::sweep::{Domain, MOST_POINTS, Method, Parameter, Sweep, Value};

/// The points that are tried, each with a value for each parameter, without repetitions and without points that the
/// file's condition leaves out. Equal files give equal points.
pub fn points(sweep: &Sweep) -> Vec<Vec<Value>> {
    let domains: Vec<&Domain> = sweep.parameters.iter().map(|parameter| &parameter.domain).collect();
    let all = match sweep.method {
        Method::Grid => grid(&domains),
        Method::Random { points, seed } => {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..points).map(|_| domains.iter().map(|domain| domain.at(random.f64())).collect()).collect()
        }
        Method::LatinHypercube { points, seed } => latin_hypercube(&domains, points, seed),
    };
    let mut kept: Vec<Vec<Value>> = Vec::with_capacity(all.len());
    let mut seen = std::collections::BTreeSet::new();
    for point in all {
        let name: Vec<String> = point.iter().map(Value::toml).collect();
        if holds(sweep, &point) && seen.insert(name) {
            kept.push(point);
        }
    }
    kept
}

/// All combinations; the first parameter varies slowest.
fn grid(domains: &[&Domain]) -> Vec<Vec<Value>> {
    domains.iter().fold(vec![Vec::new()], |points, domain| {
        let Domain::Values(values) = domain else { unreachable!("a grid has no intervals") };
        let with = |point: &Vec<Value>| -> Vec<Vec<Value>> {
            values.iter().map(|(value, _)| [&point[..], std::slice::from_ref(value)].concat()).collect()
        };
        points.iter().flat_map(with).collect()
    })
}

/// A Latin hypercube: each parameter has one value in each of `points` equal parts (McKay, Beckman and Conover,
/// Technometrics 21 (2), 1979).
fn latin_hypercube(domains: &[&Domain], points: usize, seed: u64) -> Vec<Vec<Value>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut columns: Vec<Vec<Value>> = Vec::new();
    for domain in domains {
        let mut parts: Vec<usize> = (0..points).collect();
        random.shuffle(&mut parts);
        let share = |part: usize, random: &mut fastrand::Rng| (part as f64 + random.f64()) / points as f64;
        columns.push(parts.into_iter().map(|part| domain.at(share(part, &mut random))).collect());
    }
    (0..points).map(|point| columns.iter().map(|column| column[point].clone()).collect()).collect()
}

/// A point that is not `known` yet, drawn among all; `None`: there is none, or as many draws as a sweep may have points
/// did not find it.
pub fn untried(sweep: &Sweep, seed: u64, known: impl Fn(&[Value]) -> bool) -> Option<Vec<f64>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let counts: Option<Vec<usize>> = sweep.parameters.iter().map(|parameter| parameter.domain.count()).collect();
    let all = counts.as_ref().and_then(|counts| counts.iter().try_fold(1_usize, |all, count| all.checked_mul(*count)));
    let is_new = |shares: &Vec<f64>| {
        let at = |(parameter, share): (&Parameter, &f64)| parameter.domain.at(*share);
        let point: Vec<Value> = sweep.parameters.iter().zip(shares).map(at).collect();
        holds(sweep, &point) && !known(&point)
    };
    let (Some(counts), Some(all)) = (counts, all.filter(|all| *all <= MOST_POINTS)) else {
        let mut draw = || sweep.parameters.iter().map(|_| random.f64()).collect();
        return (0..MOST_POINTS).map(|_| draw()).find(is_new);
    };
    // All points of the grid in order, beginning with a randomly drawn one.
    let first = random.usize(0..all);
    let shares = |number: usize| -> Vec<f64> {
        let mut rest = number;
        let share = |count: &usize| {
            let index = rest % count;
            rest /= count;
            (index as f64 + 0.5) / *count as f64
        };
        counts.iter().map(share).collect()
    };
    (0..all).map(|step| shares((first + step) % all)).find(is_new)
}

/// Whether the file's condition holds, if there is one.
pub fn holds(sweep: &Sweep, point: &[Value]) -> bool {
    let Some(condition) = &sweep.condition else { return true };
    let of = |name: &str| {
        let at = sweep.parameters.iter().position(|parameter| parameter.name == name)?;
        point[at].number()
    };
    condition.value(of).is_some_and(|holds| holds != 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Vec<Value>> {
        points(
            &Sweep::parse("s.toml", &format!("{text}\n[program]\nscript = \"a.py\"\n[arguments]\n{VALUES}")).unwrap(),
        )
    }

    const VALUES: &str = "a = [1, 2, 3, 4]\nb = [\"x\", \"y\"]\n";

    #[test]
    fn a_grid_has_all_combinations_but_those_that_are_left_out() {
        let all = of("");
        assert_eq!(all.len(), 8);
        assert_eq!(all[1], [Value::Integer(1), Value::Text("y".into())]);
        let some = of("where = \"a >= 3\"");
        assert_eq!(some.len(), 4);
        assert!(some.iter().all(|point| point[0].number().unwrap() >= 3.0));
    }

    #[test]
    fn what_is_untried_is_found_as_long_as_there_is_any() {
        let sweep =
            Sweep::parse("s.toml", &format!("where = \"a >= 3\"\n[program]\nscript = \"a.py\"\n[arguments]\n{VALUES}"));
        let sweep = sweep.unwrap();
        let mut known: Vec<Vec<Value>> = Vec::new();
        while let Some(shares) = untried(&sweep, known.len() as u64, |point| known.iter().any(|other| other == point)) {
            known.push(
                sweep.parameters.iter().zip(&shares).map(|(parameter, share)| parameter.domain.at(*share)).collect(),
            );
        }
        // 3 and 4, each with x and y
        assert_eq!(known.len(), 4);
    }

    #[test]
    fn draws_are_those_of_their_seed() {
        let drawn = of("method = \"random\"\npoints = 6\nseed = 3");
        assert_eq!(drawn, of("method = \"random\"\npoints = 6\nseed = 3"));
        assert!(drawn.len() <= 6 && drawn != of("method = \"random\"\npoints = 6\nseed = 4"));
    }

    #[test]
    fn a_latin_hypercube_covers_each_parameter_evenly() {
        let text = "method = \"latin-hypercube\"\npoints = 8\n[program]\nscript = \"a.py\"\n[arguments]\n\
                    a = [1, 2, 3, 4]\nc = { from = 0.0, to = 8.0 }\n";
        let points = points(&Sweep::parse("s.toml", text).unwrap());
        // 8 points over 4 values: each twice. Over [0, 8): one between every two whole numbers.
        for value in 1..=4 {
            assert_eq!(points.iter().filter(|point| point[0] == Value::Integer(value)).count(), 2);
        }
        let mut parts: Vec<i64> = points.iter().map(|point| point[1].number().unwrap() as i64).collect();
        parts.sort_unstable();
        assert_eq!(parts, (0..8).collect::<Vec<_>>());
    }
}
