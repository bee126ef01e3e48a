//! Owns the number of tokens that each expert receives, and that each rank with experts receives. It does not know
//! their use.
//!
//! All ranks send the same fractions of their tokens to an expert, in every micro-batch: only the experts' shares may
//! be unequal.

use super::{Experts, LayerKind, Spec, WorkloadError, refuse};
use std::sync::Arc;

/// Distribution of tokens over the experts of a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ExpertLoad {
    /// Experts receive equal numbers of tokens.
    #[default]
    Uniform,
    /// The n-th most popular expert receives a share in proportion to n^-exponent (Zipf's law), at most all tokens. The
    /// order of popularity is drawn for each layer.
    Zipf {
        /// Degree of inequality; 0: equal shares.
        exponent: f64,
        /// Seed of the draws.
        seed: u64,
    },
    /// The fraction of all routed tokens that each expert receives, the same in all layers; the sum is 1.
    Shares(Arc<[f64]>),
}

/// Maximum number of experts with individual shares.
const MOST: usize = 1 << 16;

/// Destinations of the tokens that one rank sends to the experts of a layer.
pub(super) struct Routing {
    /// Number of tokens to each expert-parallel rank. A token counts once per expert that it is sent to.
    pub(super) sent: Vec<u64>,
    /// Number of experts of each expert-parallel rank that receive any tokens.
    pub(super) busy: Vec<u64>,
}

impl ExpertLoad {
    /// Reads the share of each expert: a table with the columns `expert`, which counts from 0, and `share`, in any
    /// unit. Experts that are not listed receive no tokens.
    ///
    /// # Errors
    /// A message with the invalid line, and a hint.
    pub fn parse(text: &str, experts: u64) -> Result<ExpertLoad, String> {
        let hint = "the file is a table with the columns expert,share; experts count from 0";
        let wrong = |line: u64, problem: String| format!("line {line}: {problem}\nhint: {hint}");
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| wrong(1, error.to_string()))?.clone();
        if header.iter().collect::<Vec<_>>() != ["expert", "share"] {
            return Err(wrong(1, format!("the columns are `{}`", header.iter().collect::<Vec<_>>().join(","))));
        }
        let count = usize::try_from(experts).ok().filter(|count| *count <= MOST);
        let count = count.ok_or_else(|| format!("{experts} experts are too many for shares\nhint: check --experts"))?;
        let mut shares = vec![None; count];
        for row in reader.records() {
            let row = row.map_err(|error| wrong(error.position().map_or(0, csv::Position::line), error.to_string()))?;
            let line = row.position().map_or(0, csv::Position::line);
            let place = row[0].parse::<usize>().ok().filter(|expert| *expert < shares.len());
            let Some(place) = place else {
                return Err(wrong(line, format!("there is no expert `{}` among {experts}", &row[0])));
            };
            let share = row[1].parse::<f64>().ok().filter(|share| share.is_finite() && *share >= 0.0);
            let Some(share) = share else { return Err(wrong(line, format!("`{}` is not a share", &row[1]))) };
            if shares[place].replace(share).is_some() {
                return Err(wrong(line, format!("expert {place} is listed twice")));
            }
        }
        let shares: Vec<f64> = shares.into_iter().map(|share| share.unwrap_or(0.0)).collect();
        let total: f64 = shares.iter().sum();
        if !(total.is_finite() && total > 0.0) {
            return Err(format!("the shares sum to {total}\nhint: {hint}"));
        }
        Ok(ExpertLoad::Shares(shares.iter().map(|share| share / total).collect()))
    }

    pub(super) fn is_uniform(&self) -> bool {
        *self == ExpertLoad::Uniform
    }

    pub(super) fn check(&self, experts: Option<Experts>) -> Result<(), WorkloadError> {
        let Some(experts) = experts else {
            return match self {
                ExpertLoad::Uniform => Ok(()),
                _ => refuse(
                    "there are no experts to which tokens could be sent".into(),
                    "add --experts, or remove --expert-load",
                ),
            };
        };
        if !self.is_uniform() && experts.count > MOST as u64 {
            return refuse(format!("{} experts are too many for shares", experts.count), "check --experts");
        }
        match self {
            ExpertLoad::Uniform => Ok(()),
            ExpertLoad::Zipf { exponent, .. } if !(0.0..=100.0).contains(exponent) => refuse(
                format!("Zipf's exponent {exponent} is out of range"),
                "use an exponent from 0 to 100, as in --expert-load zipf=1",
            ),
            ExpertLoad::Zipf { .. } => Ok(()),
            ExpertLoad::Shares(shares) => {
                let most = shares.iter().fold(0.0_f64, |most, share| most.max(*share));
                if shares.len() as u64 != experts.count {
                    let problem = format!("there are {} shares of {} experts", shares.len(), experts.count);
                    return refuse(problem, "give the share of each expert");
                }
                // A rounded share of all tokens is accepted.
                if most * experts.top_k as f64 > 1.0 + 1e-6 {
                    let problem = format!(
                        "an expert has a share of {most:.4}, but of tokens that are sent to {} experts each it gets {:.4} at most",
                        experts.top_k,
                        1.0 / experts.top_k as f64
                    );
                    return refuse(problem, "lower its share: a token is sent to an expert once");
                }
                Ok(())
            }
        }
    }

    /// The fraction of all routed tokens that each expert of a layer receives.
    fn shares(&self, experts: Experts, layer: u32) -> Vec<f64> {
        let count = experts.count as usize;
        match self {
            ExpertLoad::Uniform => vec![1.0 / experts.count as f64; count],
            ExpertLoad::Shares(shares) => shares.to_vec(),
            ExpertLoad::Zipf { exponent, seed } => {
                let popular = zipf(experts, *exponent);
                let mut order: Vec<u64> = (0..experts.count).collect();
                order.sort_by_key(|expert| (mixed(mixed(seed ^ mixed(u64::from(layer))) ^ *expert), *expert));
                let mut shares = vec![0.0; count];
                order.iter().zip(popular).for_each(|(expert, share)| shares[*expert as usize] = share);
                shares
            }
        }
    }
}

/// Shares of experts in descending order of popularity. No share exceeds that of an expert to which every token is
/// sent; the excess is distributed to other experts in proportion.
fn zipf(experts: Experts, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=experts.count).map(|place| libm::pow(place as f64, -exponent)).collect();
    let most = 1.0 / experts.top_k as f64;
    let mut full = 0;
    loop {
        let rest: f64 = weights[full..].iter().sum();
        let scale = (1.0 - full as f64 * most) / rest;
        // The largest share first: the remaining shares decrease in the same ratio.
        if full + 1 < weights.len() && weights[full] * scale > most {
            full += 1;
            continue;
        }
        return (0..weights.len()).map(|place| if place < full { most } else { weights[place] * scale }).collect();
    }
}

/// A pseudorandom number, determined by `number` (Steele et al., "Fast splittable pseudorandom number generators",
/// 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Divides `total` in proportion to `shares`, which sum to 1: units lost to rounding go to the largest remainders.
fn divided(total: u64, shares: &[f64]) -> Vec<u64> {
    let exact: Vec<f64> = shares.iter().map(|share| share * total as f64).collect();
    let mut parts: Vec<u64> = exact.iter().map(|part| part.floor() as u64).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|a, b| (exact[*b] - exact[*b].floor()).total_cmp(&(exact[*a] - exact[*a].floor())).then(a.cmp(b)));
    let left = total.saturating_sub(parts.iter().sum());
    // Rounding errors of the shares may leave more units than there are parts.
    (0..left).zip(order.iter().cycle()).for_each(|(_, place)| parts[*place] += 1);
    parts
}

impl Spec {
    /// Destinations of a micro-batch's tokens on one rank in the `layer`-th layer of the model; `None`: each expert
    /// receives equally many, or the layer has no experts.
    pub(super) fn routing(&self, layer: u32) -> Option<Routing> {
        let experts = self.model.experts.filter(|_| self.model.kind(layer) == LayerKind::Experts)?;
        if self.expert_load.is_uniform() {
            return None;
        }
        let sent = self.tokens() / u64::from(self.layout.tensor) * experts.top_k;
        let each = divided(sent, &self.expert_load.shares(experts, layer));
        let of_ranks = each.chunks((experts.count / u64::from(self.layout.expert)) as usize);
        Some(Routing {
            sent: of_ranks.clone().map(|of_rank| of_rank.iter().sum()).collect(),
            busy: of_ranks.map(|of_rank| of_rank.iter().filter(|tokens| **tokens > 0).count() as u64).collect(),
        })
    }

    /// Ratio of the tokens of the rank whose experts receive the most to the mean over all ranks, averaged over layers;
    /// `None`: experts receive equal numbers of tokens.
    pub(super) fn expert_imbalance(&self) -> Option<f64> {
        let ratio = |layer| {
            let Routing { sent, .. } = self.routing(layer)?;
            let (most, all) = (*sent.iter().max()?, sent.iter().sum::<u64>());
            Some(most as f64 * sent.len() as f64 / all as f64)
        };
        let ratios: Vec<f64> = (0..self.model.layers).filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn experts(count: u64, top_k: u64) -> Experts {
        Experts { count, top_k, ffn: 1, shared: 0, dense_layers: 0 }
    }

    #[test]
    fn popular_experts_get_what_zipfs_law_gives_them_but_no_token_twice() {
        // 4 experts, exponent 1: 1, 1/2, 1/3, 1/4 of 25/12.
        let close = |shares: Vec<f64>, expected: &[f64]| {
            assert!(
                shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 1e-12),
                "{shares:?}"
            );
        };
        close(zipf(experts(4, 1), 1.0), &[12.0 / 25.0, 6.0 / 25.0, 4.0 / 25.0, 3.0 / 25.0]);
        // With two experts per token and exponent 2, the first one's share would be 0.7: it receives every token, which
        // is half of all routed ones. The others divide the other half in the ratio 1/4, 1/9, 1/16, or 36, 16, 9 of 61.
        close(zipf(experts(4, 2), 2.0), &[0.5, 18.0 / 61.0, 8.0 / 61.0, 4.5 / 61.0]);
        close(zipf(experts(3, 3), 2.0), &[1.0 / 3.0; 3]);
    }

    #[test]
    fn a_table_of_shares_is_read_or_refused_with_its_line() {
        let parse = |text: &str| ExpertLoad::parse(text, 4);
        assert_eq!(
            parse("# measured\nexpert, share\n2,3\n0,1\n").unwrap(),
            ExpertLoad::Shares([0.25, 0.0, 0.75, 0.0].into())
        );
        let cases = [
            ("expert,tokens\n0,1\n", "line 1: the columns are `expert,tokens`"),
            ("expert,share\n4,1\n", "line 2: there is no expert `4` among 4"),
            ("expert,share\n0,1\n1,-1\n", "line 3: `-1` is not a share"),
            ("expert,share\n0,inf\n", "line 2: `inf` is not a share"),
            ("expert,share\n0,1\n0,1\n", "line 3: expert 0 is listed twice"),
            ("expert,share\n0,1,2\n", "line 2: "),
            ("expert,share\n0,0\n", "the shares sum to 0"),
        ];
        for (text, expected) in cases {
            let message = parse(text).unwrap_err();
            assert!(message.starts_with(expected) && message.contains("\nhint: "), "{message}");
        }
    }

    proptest! {
        #[test]
        fn every_token_goes_somewhere(total in 0_u64..1 << 40, count in 1_u64..300, top_k in 1_u64..9, exponent in 0.0_f64..4.0) {
            let experts = experts(count, top_k.min(count));
            let shares = ExpertLoad::Zipf { exponent, seed: 7 }.shares(experts, 3);
            prop_assert!(shares.iter().all(|share| *share <= 1.0 / experts.top_k as f64 + 1e-12));
            let parts = divided(total, &shares);
            prop_assert_eq!(parts.iter().sum::<u64>(), total);
            let off = |(part, share): (&u64, &f64)| (*part as f64 - share * total as f64).abs();
            prop_assert!(parts.iter().zip(&shares).map(off).all(|off| off < 1.0 + total as f64 * 1e-12));
        }
    }
}
