//! Compares predictions with published measurements of real clusters. Usage:
//! `cargo run --release -p uniference-studies --example hardware -- FOLDER`
//!
//! The folder holds `real_allgather_time_vs_size.csv` (Gloo's all-gather by size, on two clusters),
//! `sim_vs_real_orin_tp4_comm.csv` and `real_tp_comm_totals.csv` (communication time of whole tensor-parallel runs).
//! The fit uses every other size of the all-gathers, with the parameters bandwidth, latency and cost of a message;
//! everything else is predicted from the fit.
#![allow(clippy::disallowed_types, reason = "a check on files")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, DType, Outcome, Program, ProgramError, ReduceOp, Reply, Request, Shape,
};
use uniference_sim::time::SimTime;

/// The fitted parameters.
#[derive(Clone, Copy, Debug)]
struct Fit {
    /// Bits per second.
    bandwidth: f64,
    /// Latency in seconds.
    latency: f64,
    message: f64,
}

/// One measured all-gather.
#[derive(Clone, Copy)]
struct Sample {
    ranks: usize,
    bytes: u64,
    seconds: f64,
}

fn main() {
    let folder = std::env::args().nth(1).expect("usage: hardware FOLDER");
    let folder = Path::new(&folder);
    let gathers = all_gathers(folder);
    println!("{:<24} {:>6} {:>9} {:>9} {:>9}  fit", "Gloo all-gather", "cells", "median %", "p95 %", "signed %");
    let mut fits = BTreeMap::new();
    for (cluster, samples) in &gathers {
        let (fitted, held_out) = halves(samples);
        let fit = fit(&fitted);
        let errors: Vec<f64> = held_out.iter().map(|sample| predict(fit, sample) / sample.seconds - 1.0).collect();
        report(cluster, &errors, &format!("{fit:?}"));
        for ranks in 3..=8 {
            let of = held_out.iter().zip(&errors).filter(|(sample, _)| sample.ranks == ranks);
            let errors: Vec<f64> = of.map(|(_, error)| *error).collect();
            if !errors.is_empty() {
                report(&format!("  {cluster}, {ranks} ranks"), &errors, "");
            }
        }
        fits.insert(cluster.clone(), fit);
    }
    println!("\n{:<24} {:>6} {:>9} {:>9} {:>9}", "tensor parallel, total", "runs", "mean %", "p95 %", "signed %");
    for (name, cluster, runs) in tensor_parallel(folder) {
        let errors: Vec<f64> = runs.iter().map(|run| run.predict(fits[cluster]) / run.seconds - 1.0).collect();
        let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
        let [_, p95, signed] = summary(&errors);
        println!("{name:<24} {:>6} {:>9.1} {:>9.1} {:>+9.1}", runs.len(), 100.0 * mean, 100.0 * p95, 100.0 * signed);
    }
}

fn report(name: &str, errors: &[f64], fit: &str) {
    let [median, p95, signed] = summary(errors).map(|error| 100.0 * error);
    println!("{name:<24} {:>6} {median:>9.2} {p95:>9.2} {signed:>+9.2}  {fit}", errors.len());
}

/// Median and 95th percentile of the absolute errors, and the median of the signed ones.
fn summary(errors: &[f64]) -> [f64; 3] {
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let absolute = sorted(errors.iter().map(|error| error.abs()).collect());
    let signed = sorted(errors.to_vec());
    let at = |values: &[f64], share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    [at(&absolute, 0.5), at(&absolute, 0.95), at(&signed, 0.5)]
}

/// The rows of a file, by column.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let cell = |(name, value): (&&str, &str)| (name.to_string(), value.to_owned());
    lines.map(|line| names.iter().zip(line.split(',')).map(cell).collect()).collect()
}

/// Means of five repetitions, by cluster.
fn all_gathers(folder: &Path) -> BTreeMap<String, Vec<Sample>> {
    let mut clusters: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for row in rows(&folder.join("real_allgather_time_vs_size.csv")) {
        if row["backend"] == "gloo" && row["stat"] == "mean5" {
            let (ranks, bytes) = (row["devices"].parse().unwrap(), row["bytes_per_rank"].parse().unwrap());
            let sample = Sample { ranks, bytes, seconds: row["time_s"].parse().unwrap() };
            clusters.entry(row["cluster"].clone()).or_default().push(sample);
        }
    }
    clusters
}

/// Two halves of the samples: those of every second size, and all others.
fn halves(samples: &[Sample]) -> (Vec<Sample>, Vec<Sample>) {
    let mut sizes: Vec<u64> = samples.iter().map(|sample| sample.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    samples.iter().partition(|sample| sizes.binary_search(&sample.bytes).expect("its size") % 2 == 0)
}

/// The fit with the smallest sum of absolute relative errors, by steps along each parameter that shrink.
fn fit(samples: &[Sample]) -> Fit {
    let loss = |fit: Fit| samples.iter().map(|sample| (predict(fit, sample) / sample.seconds).ln().abs()).sum::<f64>();
    let mut best = Fit { bandwidth: 1e9, latency: 5e-5, message: 1e-4 };
    let (mut least, mut step) = (loss(best), 1.5);
    while step > 1.002 {
        let mut improved = false;
        for parameter in 0..3 {
            for factor in [step, 1.0 / step] {
                let mut fit = best;
                *[&mut fit.bandwidth, &mut fit.latency, &mut fit.message][parameter] *= factor;
                let loss = loss(fit);
                if loss < least {
                    (best, least, improved) = (fit, loss, true);
                }
            }
        }
        if !improved {
            step = step.sqrt();
        }
    }
    best
}

/// The predicted duration in seconds.
fn predict(fit: Fit, sample: &Sample) -> f64 {
    // The measurements repeat an operation on connections that are open.
    operation(&cluster(fit, sample.ranks), AllGather, DType::UInt8, sample.bytes)
}

fn cluster(fit: Fit, ranks: usize) -> Cluster {
    let Fit { bandwidth, latency, message } = fit;
    let text = format!(
        "[[device]]\nname = \"board\"\ncount = {ranks}\n[backend]\nname = \"gloo\"\nwindow = \"none\"\nmessage = \"{0} ps\"\n\
         wake = \"{0} ps\"\n[network]\nbandwidth = \"{1} bps\"\nlatency = \"{2} ps\"\n",
        (message * 1e12) as u64,
        bandwidth as u64,
        (latency * 1e12) as u64
    );
    let file = ClusterFile::parse("fit", &text, &[]).unwrap_or_else(|error| panic!("{error}"));
    file.resolve(&Choices::default()).unwrap_or_else(|error| panic!("{error}")).cluster
}

/// Duration of one operation that all ranks call together.
fn operation(cluster: &Cluster, kind: CollectiveKind, dtype: DType, elements: u64) -> f64 {
    let world: Arc<[RankId]> = (0..cluster.devices.len()).map(RankId::from).collect();
    let reduce = (kind == AllReduce).then_some(ReduceOp::Sum);
    let call = Collective { kind, dtype, reduce, root: None, shape: Shape::Even(elements), kernel: None };
    let program = || -> Box<dyn Program> { Box::new(OneCall { world: world.clone(), call: call.clone(), turn: 0 }) };
    let mut programs: Vec<_> = world.iter().map(|_| program()).collect();
    let mut engine = Engine::new(cluster);
    assert!(matches!(drive(&mut engine, &mut programs, &mut ()), RunEnd::Finished));
    engine.now().as_secs_f64()
}

struct OneCall {
    world: Arc<[RankId]>,
    call: Collective,
    turn: u32,
}

impl Program for OneCall {
    fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
        self.turn += 1;
        Ok(match self.turn {
            1 => Request::JoinGroup { ranks: self.world.clone(), sequence: 0, settings: None, rendezvous: false },
            2 => {
                let call = Call { group: GroupId(0), op: CallOp::Collective(self.call.clone()) };
                Request::Issue { activity: Activity::Call(call), queue: QueueId(0), after: Vec::new(), site: Site(0) }
            }
            3 => Request::Wait { handles: vec![Handle(0)], any: false, timeout: None, site: Site(0) },
            _ => Request::Exit(Outcome::Ok),
        })
    }
}

/// The communication of one run of a 1 B Llama in bfloat16 (width 2048, 16 layers, vocabulary 128,256): a prefill pass,
/// then a decode pass per token. A pass over t tokens all-reduces 33 times t x 2048 numbers and gathers t x 128,256
/// from the ranks.
struct Run {
    ranks: usize,
    prompt: u64,
    tokens: u64,
    seconds: f64,
}

impl Run {
    fn predict(&self, fit: Fit) -> f64 {
        let cluster = cluster(fit, self.ranks);
        let pass = |tokens: u64| {
            33.0 * operation(&cluster, AllReduce, DType::BFloat16, tokens * 2048)
                + operation(&cluster, AllGather, DType::BFloat16, tokens * 128_256 / self.ranks as u64)
        };
        pass(self.prompt) + (self.tokens - 1) as f64 * pass(1)
    }
}

/// Bytes per token that a rank names in all calls of a pass: they give the prompt's length.
fn bytes_per_token(ranks: f64) -> f64 {
    33.0 * 4096.0 + 2.0 * 128_256.0 / ranks
}

fn tensor_parallel(folder: &Path) -> Vec<(&'static str, &'static str, Vec<Run>)> {
    let number = |row: &BTreeMap<String, String>, name: &str| row[name].parse::<f64>().unwrap();
    let orin = rows(&folder.join("sim_vs_real_orin_tp4_comm.csv"));
    // In that file, sizes are sums over the ranks' three messages per operation.
    let orin = orin.iter().map(|row| {
        let (size, tokens) = (number(row, "orin_size_bytes"), number(row, "max_tokens"));
        let prompt = (size / 3.0 / bytes_per_token(4.0) - (tokens - 1.0)).round() as u64;
        Run { ranks: 4, prompt, tokens: tokens as u64, seconds: number(row, "real_orin_comm_s") }
    });
    let quest = rows(&folder.join("real_tp_comm_totals.csv"));
    let quest = quest.iter().filter(|row| row["backend"] == "gloo" && row["cluster"] == "quest").map(|row| {
        let (ranks, tokens) = (number(row, "devices"), number(row, "max_tokens"));
        let prompt = number(row, "logged_transmit_bytes") / bytes_per_token(ranks) - (tokens - 1.0);
        let seconds = number(row, "total_transmit_duration_s");
        Run { ranks: ranks as usize, prompt: prompt.round() as u64, tokens: tokens as u64, seconds }
    });
    vec![("orin, 4 ranks", "orin", orin.collect()), ("quest, 4 and 8 ranks", "quest", quest.collect())]
}
