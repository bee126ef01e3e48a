//! Owns the report page: the data of each run on it, and their rendering into one HTML file. The caller chooses the
//! runs and simulates them again.
//!
//! [`Watched`] observes a simulated run and keeps the charts' data in bounded size: the `timeline`, whose rows join
//! `marks` that cannot be told apart, `links`, and `operations` with their lower `bound`. [`render`] puts data, script
//! and style into `page.html`.

mod bound;
mod links;
mod marks;
mod operations;
#[cfg(test)]
mod tests;
mod timeline;

pub use links::{LinkChart, LinksChart};
pub use marks::Mark;
pub use operations::OperationsRow;
pub use timeline::{TimelineChart, TimelineRow};

use crate::critical::Explanation;
use crate::memory::{Held, Kind, Point};
use crate::whatif::WhatIf;
use operations::Operations;
use serde::Serialize;
use std::collections::BTreeMap;
use timeline::Timeline;
use uniference_formats::column::{Column, Kind as ColumnKind};
use uniference_formats::report::{Report, TABLES};
use uniference_formats::sweep::{FIGURES, ResultColumn, Results, Sweep};
use uniference_formats::trace::LinkRates;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Apache ECharts 6.1.0, `dist/echarts.min.js` of the package `echarts`, as published; its notice, with the licences of
/// what it embeds, is in each page.
const ECHARTS: &str = include_str!("echarts.min.js");
const NOTICE: &str = include_str!("ECHARTS-NOTICE");
const PAGE: &str = include_str!("page.html");
/// Parts of the page, named by the comments that they replace, in the page's order.
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [include_str!("elements.js"), include_str!("charts.js"), include_str!("frame.js")];
/// The scripts of the page of runs, and of the page of a sweep.
const RUNS: &str = include_str!("page.js");
const SWEEP: &str = include_str!("sweep.js");

/// Number of ranks whose memory is shown over time: those that held most.
const MOST_MEMORY_RANKS: usize = 16;
/// Number of parts of the critical path that are listed.
const MOST_PARTS: usize = 100;

/// Observes a run for its page.
pub struct Watched {
    ranks: usize,
    cluster: Option<Cluster>,
    timeline: Timeline,
    rates: LinkRates,
    operations: Operations,
    end: SimTime,
    events: u64,
}

/// A run on a page.
#[derive(Serialize)]
pub struct RunPage {
    /// Name of the run on the page.
    pub name: String,
    /// The run's report.
    pub report: Report,
    /// Data from simulating the run again, or from the files of a real run.
    pub seen: Option<Seen>,
    /// Results of changes to the cluster.
    pub what_if: Option<WhatIf>,
    /// Missing parts of the page, with reasons: whole sentences.
    pub missing: Vec<String>,
}

/// Data of an observed run.
#[derive(Serialize)]
pub struct Seen {
    /// Makespan in picoseconds.
    pub makespan_ps: u64,
    /// Number of events of the run.
    pub events: u64,
    /// The ranks' activities over time.
    pub timeline: TimelineChart,
    /// Load of links; `None` (null): unknown for a real run.
    pub links: Option<LinksChart>,
    /// Operations by size.
    pub operations: Vec<OperationsRow>,
    /// Memory over time, of ranks whose allocations are known.
    pub memory: Vec<MemoryChart>,
    /// The critical path, without its spans; `None` (null): causes are unknown.
    pub critical: Option<Explanation>,
}

/// The memory of one rank over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryChart {
    /// The rank that held the memory.
    pub rank: u32,
    /// Kinds of memory that the rank ever held.
    pub kinds: Vec<&'static str>,
    /// Bytes of each kind from a time in picoseconds on.
    pub points: Vec<(u64, Vec<u64>)>,
}

impl Watched {
    /// A run that is simulated on a cluster.
    pub fn simulated(cluster: &Cluster) -> Watched {
        Watched { cluster: Some(cluster.clone()), ..Watched::real(cluster.devices.len()) }
    }

    /// A real run of `ranks` ranks on an unknown network.
    pub fn real(ranks: usize) -> Watched {
        let (rates, operations) = (LinkRates::default(), Operations::default());
        let (timeline, end) = (Timeline::new(ranks), SimTime::ZERO);
        Watched { ranks, cluster: None, timeline, rates, operations, end, events: 0 }
    }

    /// Ends the run. `explanation` has the spans of the path, if its causes are known.
    pub fn finish(self, explanation: Option<Explanation>, held: &Held) -> Seen {
        let Watched { ranks, cluster, timeline, rates, operations, end, events } = self;
        let path = explanation.as_ref().map(|explanation| &explanation.path[..]).unwrap_or_default();
        let timeline = timeline.finish(ranks, path);
        let links = cluster.as_ref().map(|cluster| LinksChart::new(&rates, cluster, end.as_ps()));
        let critical = explanation.map(|mut explanation| {
            explanation.path.clear();
            explanation.parts.truncate(MOST_PARTS);
            explanation.lines.truncate(MOST_PARTS);
            explanation
        });
        let operations = operations.finish(cluster.as_ref());
        Seen { makespan_ps: end.as_ps(), events, timeline, links, operations, memory: memory(held), critical }
    }
}

impl Observer for Watched {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.events += 1;
        match *event {
            Event::Message { wire_bytes, started, sent, links, .. } => self.rates.add(links, started, sent, wire_bytes),
            Event::Finished { .. } => self.end = self.end.max(at),
            _ => {}
        }
        self.timeline.record(at, event);
        self.operations.record(at, event);
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

fn memory(held: &Held) -> Vec<MemoryChart> {
    let peak = |points: &[Point]| points.iter().map(|point| point.held.total()).max().unwrap_or_default();
    let mut known: Vec<(u32, &Vec<Point>)> =
        (0..).zip(&held.timelines).filter(|(_, points)| !points.is_empty()).collect();
    known.sort_by_key(|(_, points)| std::cmp::Reverse(peak(points)));
    known.truncate(MOST_MEMORY_RANKS);
    known.sort_by_key(|(rank, _)| *rank);
    let of_rank = |(rank, points): (u32, &Vec<Point>)| {
        let ever: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| points.iter().any(|point| point.held.of(*kind) > 0)).collect();
        let held = |point: &Point| (point.at.as_ps(), ever.iter().map(|kind| point.held.of(*kind)).collect());
        MemoryChart {
            rank,
            kinds: ever.iter().map(|kind| kind.name()).collect(),
            points: points.iter().map(held).collect(),
        }
    };
    known.into_iter().map(of_rank).collect()
}

/// The data of a page of runs.
#[derive(Serialize)]
struct Runs<'a> {
    /// Columns of the report's tables, by the tables' names.
    tables: BTreeMap<&'static str, Vec<ShownColumn>>,
    runs: &'a [RunPage],
}

/// A column of the report, as the page's scripts read it.
#[derive(Serialize)]
struct ShownColumn {
    name: &'static str,
    title: &'static str,
    kind: ColumnKind,
    meaning: String,
}

/// One HTML file that shows the runs side by side and needs neither another file nor a network.
///
/// # Panics
/// Never.
pub fn render(runs: &[RunPage]) -> String {
    let shown = |column: &Column| {
        let Column { name, title, kind, .. } = *column;
        ShownColumn { name, title, kind, meaning: column.meaning() }
    };
    let tables = TABLES.iter().map(|(table, columns)| (*table, columns.iter().map(shown).collect())).collect();
    let data = serde_json::to_string(&Runs { tables, runs }).expect("texts and numbers are JSON");
    page("Uniference report", &data, RUNS)
}

/// One HTML file with the results of a sweep.
///
/// # Panics
/// Never.
pub fn sweep(sweep: &Sweep, results: &Results) -> String {
    let column = |column: &ResultColumn| {
        let figure = FIGURES.iter().find(|figure| figure.name == column.name);
        serde_json::json!({
            "name": column.name,
            "kind": column.kind,
            "meaning": figure.map(Column::meaning),
            "cells": column.cells,
        })
    };
    let data = serde_json::json!({
        "name": sweep.name,
        "parameters": sweep.parameters.iter().map(|parameter| &parameter.name).collect::<Vec<_>>(),
        "columns": results.columns.iter().map(column).collect::<Vec<_>>(),
    });
    page("Uniference sweep", &data.to_string(), SWEEP)
}

/// A page with its title, its data as JSON, and its script.
fn page(title: &str, data: &str, script: &str) -> String {
    // Only `</script` ends the data of a script element, and JSON can write its first character as an escape sequence.
    let data = data.replace('<', "\\u003c");
    let scripts = SCRIPTS.concat() + script;
    let parts = [
        ("<!--title-->", title),
        ("<!--style-->", STYLE),
        ("<!--title-->", title),
        ("<!--data-->", &*data),
        ("<!--notice-->", NOTICE),
        ("<!--library-->", ECHARTS),
        ("<!--script-->", &*scripts),
    ];
    let mut page = String::with_capacity(PAGE.len() + ECHARTS.len() + data.len() + (1 << 16));
    let mut rest = PAGE;
    for (place, text) in parts {
        let (before, after) = rest.split_once(place).expect("the page has a place for each part");
        page += before;
        page += text;
        rest = after;
    }
    page + rest
}
