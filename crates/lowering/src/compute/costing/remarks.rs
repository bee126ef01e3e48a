//! Owns the remarks on a completed run's compute: warnings and the headline.

use super::{Costing, KERNEL, RankCosting, What};
use crate::compute::{Earlier, OperatorCosts, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use uniference_costs::operators::{is_rough, lengths_are_values, missing_argument};
use uniference_sim::ids::RankId;
use uniference_sim::program::Origin;

/// Number of names or lines that are listed.
const MOST: usize = 8;

/// Share of compute with unknown cost or arithmetic, in %, above which the headline mentions it.
const UNKNOWN: f64 = 5.0;
/// Share of compute estimated from other devices or operators, in %, above which the headline mentions it.
const TRANSFERRED: f64 = 30.0;

impl Costing {
    /// All warnings about the costs.
    pub(super) fn remarks(&self) -> Vec<String> {
        let of_an_earlier_run = self.earlier.as_ref().and_then(Earlier::warning);
        let all = [
            self.of_streams(),
            self.of_python(),
            self.on_host(),
            self.unknown(),
            self.by_traffic(),
            self.other_schemas(),
            self.bare(),
            self.unknown_lengths(),
            self.rough(),
            self.unused_formulas(),
            substituted(self.ranks.iter().filter_map(|costing| costing.plan.costs.as_deref())),
            self.answered(),
            of_an_earlier_run,
        ];
        all.into_iter().flatten().collect()
    }

    /// A remark on ranks with CUDA streams, or on a host time without such ranks.
    fn of_streams(&self) -> Option<String> {
        let mut with_streams = self.ranks.iter().filter(|costing| costing.has_streams());
        if self.host_asked && with_streams.clone().next().is_none() {
            return Some(
                "--host-time has no effect: no rank has handed anything to streams of a simulated GPU".to_owned(),
            );
        }
        let kernels = |costing: &RankCosting| costing.ran().any(|cost| matches!(cost.what, What::Kernel { .. }));
        with_streams.any(|costing| costing.plan.is_measured && kernels(costing)).then(|| {
            "kernels of no operator took no time on simulated GPUs, as compute was measured and operators alone are computed on the processor: use --compute model with devices that have a `model`".to_owned()
        })
    }

    /// A remark on operators on host CPUs that took no time, or whose cost was estimated only from the bytes of their
    /// tensors.
    fn on_host(&self) -> Option<String> {
        if let Some(name) = self.ranks.iter().find_map(|costing| costing.free_on_host.as_deref()) {
            return Some(format!(
                "operators on CPU tensors of ranks with a GPU took no CPU time of their own, since `host_cpu` is unknown (first: {name})\nhint: set host_cpu = \"NAME\" in the cluster file"
            ));
        }
        let names: BTreeSet<&String> = self.ranks.iter().flat_map(|costing| &costing.by_bytes).collect();
        (!names.is_empty()).then(|| {
            let names = listed(names.into_iter().map(|name| name.to_owned()));
            format!(
                "operators on CPU tensors of ranks with a GPU were costed by the bytes of their tensors alone: {names}"
            )
        })
    }

    /// A warning that the requested Python time has no effect.
    fn of_python(&self) -> Option<String> {
        let charges = |costing: &RankCosting| costing.plan.way == Way::Modelled && costing.python_calls > 0;
        (self.python_asked && !self.ranks.iter().any(charges)).then(|| {
            "--python-time has no effect: no rank whose compute is modelled has counted its calls of Python (a replay needs the record of a run with --python-time)".to_owned()
        })
    }

    /// Operators of unknown cost.
    fn unknown(&self) -> Option<String> {
        let mut found: BTreeMap<&str, (u64, String)> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            let unknown = costing.ran().filter(|cost| cost.estimate.origin == Origin::None);
            for (name, cost) in unknown.filter_map(|cost| Some((costing.name(cost.what)?, cost))) {
                let (count, _) = found.entry(name).or_insert_with(|| (0, costing.line(cost.first)));
                *count += cost.executions;
            }
        }
        let shown = |(name, (count, line)): (&&str, &(u64, String))| match line.is_empty() {
            true => format!("{name} ({count} times)"),
            false => format!("{name} ({count} times, first at {line})"),
        };
        let what =
            if found.len() == 1 { "an operator of unknown cost counts" } else { "operators of unknown cost count" };
        (!found.is_empty()).then(|| format!("{what} as 0 s: {}", listed(found.iter().map(shown))))
    }

    /// Seconds and executions of operators of unknown arithmetic, whose kernels are costed by memory traffic.
    fn kernels_by_traffic(&self) -> BTreeMap<&str, (f64, u64)> {
        let mut found: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for cost in costing.ran().filter(|cost| cost.kind == KERNEL && cost.estimate.origin != Origin::None) {
                if let (What::OnDevice { .. }, Some(name)) = (cost.what, costing.name(cost.what)) {
                    let (seconds, count) = found.entry(name).or_default();
                    *seconds += costing.seconds(cost);
                    *count += cost.executions;
                }
            }
        }
        found
    }

    /// A warning about operators of unknown arithmetic.
    fn by_traffic(&self) -> Option<String> {
        let names = self.longest_first(self.kernels_by_traffic())?;
        Some(format!(
            "kernels of unknown arithmetic take the time in which their tensors pass through memory, which may be far too short, or too long ([[kernel]] in the cluster file says what they take): {names}"
        ))
    }

    /// A warning about operators of extensions whose schemas lack an argument that their descriptions read.
    fn other_schemas(&self) -> Option<String> {
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for cost in costing.ran() {
                let (What::Definition { number, .. } | What::OnDevice { number }) = cost.what else { continue };
                let definition = &costing.decoder.definitions()[number];
                found.extend(missing_argument(definition).map(|argument| (&*definition.name, argument)));
            }
        }
        let shown = found.iter().map(|(name, argument)| format!("{name} (no argument `{argument}`)"));
        (!found.is_empty()).then(|| {
            format!(
                "operators with other arguments than in the checked version of their package are not described, and costed as unknown ones (`uniference doctor` lists the versions): {}",
                listed(shown)
            )
        })
    }

    /// A warning about kernels whose memory traffic is unknown too.
    fn bare(&self) -> Option<String> {
        let mut found: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for cost in costing.ran() {
                if let What::Kernel { number, bytes: 0 } = cost.what {
                    let (seconds, count) = found.entry(costing.decoder.kernel(number)).or_default();
                    *seconds += costing.seconds(cost);
                    *count += cost.executions;
                }
            }
        }
        let names = self.longest_first(found)?;
        Some(format!("kernels that no operator has launched take the shortest time of a kernel: {names}"))
    }

    /// Names, each with its share of the compute and its executions, the longest first.
    fn longest_first(&self, found: BTreeMap<&str, (f64, u64)>) -> Option<String> {
        let mut found: Vec<(&str, (f64, u64))> = found.into_iter().collect();
        found.sort_by(|(_, (one, _)), (_, (other, _))| other.total_cmp(one));
        let known = self.known();
        let shown = |(name, (seconds, count)): &(&str, (f64, u64))| match share(*seconds, known) {
            few if few < 1.0 => format!("{name} ({count} times)"),
            much => format!("{name} ({count} times, {much:.0} % of the compute)"),
        };
        (!found.is_empty()).then(|| listed(found.iter().map(shown)))
    }

    /// Attention on sequences of unknown lengths.
    fn unknown_lengths(&self) -> Option<String> {
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for cost in costing.ran() {
                let What::OnDevice { number } = cost.what else { continue };
                let definition = &costing.decoder.definitions()[number];
                if lengths_are_values(definition) {
                    *found.entry(&definition.name).or_default() += cost.executions;
                }
            }
        }
        let shown = found.iter().map(|(name, count)| format!("{name} ({count} times)"));
        (!found.is_empty()).then(|| {
            format!(
                "attention whose sequences have lengths that are not known takes as long as with equal ones, or with the longest that there may be if their keys lie in pages: {}",
                listed(shown)
            )
        })
    }

    /// Operators whose cost follows from an algorithm that was not measured.
    fn rough(&self) -> Option<String> {
        let mut found: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for cost in costing.ran().filter(|cost| cost.estimate.origin != Origin::Database) {
                let (What::Definition { number, .. } | What::OnDevice { number }) = cost.what else { continue };
                let definition = &costing.decoder.definitions()[number];
                if is_rough(definition) {
                    let (seconds, count) = found.entry(&definition.name).or_default();
                    *seconds += costing.seconds(cost);
                    *count += cost.executions;
                }
            }
        }
        let names = self.longest_first(found)?;
        Some(format!(
            "dense linear algebra is costed by the products and columns of its blocks, which was not measured and may be off by several times: {names}"
        ))
    }

    /// The user's formulas for kernels that did not run, or that no device model uses.
    fn unused_formulas(&self) -> Option<String> {
        let plans = || self.ranks.iter().map(|costing| &costing.plan);
        let said = plans().find_map(|plan| (!plan.kernels.is_empty()).then(|| Rc::clone(&plan.kernels)))?;
        if plans().all(|plan| plan.way != Way::Modelled) {
            return Some("[[kernel]] has no effect: it is for --compute model".to_owned());
        }
        let costed_by = |name: &str| said.iter().position(|said| said.is_about(name));
        let ran = self.ranks.iter().flat_map(|costing| costing.ran().filter_map(|cost| costing.name(cost.what)));
        let used: BTreeSet<usize> = ran.filter_map(costed_by).collect();
        let unused = said.iter().enumerate().filter(|(place, _)| !used.contains(place));
        let names: Vec<String> = unused.map(|(_, said)| said.name.clone()).collect();
        (!names.is_empty()).then(|| {
            format!("[[kernel]] has no effect for {}: nothing of that name has run", listed(names.into_iter()))
        })
    }

    /// A warning about uncomputed values that determined the control flow.
    fn answered(&self) -> Option<String> {
        let found = self.zeros(|_| true)?;
        Some(format!("the program read values that were not computed (--values), and was told zeros: at {found}"))
    }

    /// Lines at which ranks read uncomputed values.
    pub fn zeros(&self, of: impl Fn(RankId) -> bool) -> Option<String> {
        let mut found: BTreeMap<&(String, String), u64> = BTreeMap::new();
        let ranks = (0..).map(RankId).zip(&self.ranks).filter(|(rank, _)| of(*rank));
        for (at, count) in ranks.flat_map(|(_, costing)| &costing.answered) {
            *found.entry(at).or_default() += count;
        }
        let shown = |((line, operator), count): (&&(String, String), &u64)| {
            let place = if line.is_empty() { "an unknown line" } else { line };
            format!("{place} ({operator}, {count} times)")
        };
        (!found.is_empty()).then(|| listed(found.iter().map(shown)))
    }

    /// Subject of the figures, if that differs from the program that ran, and the share of estimates that are not
    /// measurements of the device.
    pub(super) fn headline(&self) -> Option<String> {
        let said: Vec<String> = self.elsewhere().into_iter().chain(self.unsure()).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Seconds of all modelled compute whose cost has this origin.
    fn of(&self, origin: Origin) -> f64 {
        let modelled = self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled);
        let costs = modelled.flat_map(|costing| costing.ran().map(move |cost| (costing, cost)));
        costs.filter(|(_, cost)| cost.estimate.origin == origin).map(|(costing, cost)| costing.seconds(cost)).sum()
    }

    fn known(&self) -> f64 {
        Origin::ALL.iter().map(|origin| self.of(*origin)).sum()
    }

    /// Shares of compute with unknown cost or arithmetic, or estimated from other devices, if they are large.
    fn unsure(&self) -> Vec<String> {
        let modelled = self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled);
        let (unknown, known): (f64, f64) = (modelled.map(RankCosting::unknown_at_least).sum(), self.known());
        let unknown = share(unknown, known + unknown);
        let by_traffic = share(self.kernels_by_traffic().values().map(|(seconds, _)| seconds).sum(), known);
        let transferred = share(self.of(Origin::Transferred), known);
        let mut said = Vec::new();
        if unknown > UNKNOWN {
            said.push(format!("at least {unknown:.0} % of the compute is of unknown cost and counts as 0 s"));
        }
        if by_traffic > UNKNOWN {
            said.push(format!(
                "{by_traffic:.0} % of the compute is kernels of unknown arithmetic, told by the size of their tensors"
            ));
        }
        if transferred > TRANSFERRED {
            said.push(format!(
                "{transferred:.0} % of the compute is transferred from measurements of other devices or operators"
            ));
        }
        said
    }

    /// Choices that the program made because it ran on a CPU, while its operators are costed for a GPU.
    fn elsewhere(&self) -> Option<String> {
        let elsewhere: Vec<&RankCosting> = self
            .ranks
            .iter()
            .filter(|costing| costing.plan.way == Way::Modelled && costing.plan.is_gpu && costing.on_cpu)
            .collect();
        if elsewhere.is_empty() {
            return None;
        }
        let mut chosen: BTreeSet<String> = BTreeSet::new();
        for costing in &elsewhere {
            let names = costing.ran().filter_map(|cost| costing.name(cost.what));
            chosen.extend(names.filter(|name| name.contains("_for_cpu")).map(str::to_owned));
            if costing.single_tensor_optimizer {
                chosen.insert("an optimizer without foreach".to_owned());
            }
        }
        let chosen = match chosen.is_empty() {
            true => String::new(),
            false => format!("; a GPU would run other operators in place of {}", listed(chosen.into_iter())),
        };
        Some(format!("captured on a CPU, costed for a GPU{chosen}"))
    }
}

/// `seconds` in % of `all`.
fn share(seconds: f64, all: f64) -> f64 {
    if all > 0.0 { 100.0 * seconds / all } else { 0.0 }
}

/// A warning about element types that were computed at the rate of another type.
pub fn substituted<'a>(costs: impl Iterator<Item = &'a (dyn OperatorCosts + 'static)>) -> Option<String> {
    let found: BTreeSet<_> = costs.flat_map(OperatorCosts::substituted).collect();
    let shown = found.iter().map(|(asked, served)| format!("{asked} (as {served})"));
    (!found.is_empty()).then(|| format!("`peak_flops` has no rate for {}", listed(shown)))
}

/// The first items of a list, and the number of further ones.
fn listed(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", all[..all.len().min(MOST)].join(", "))
}
