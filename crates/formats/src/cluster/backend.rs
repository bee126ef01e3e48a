//! Owns the backend of a cluster file: which libraries there are, their parameters and their algorithms.

use super::flags::here;
use super::raw::{RawBackend, RawCluster, RawPacket, RawRule, RawRules};
use super::source::{Source, split_hint};
use super::{AlgorithmChoice, Choices, kind_by_name, suggest_kind};
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::Size;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use uniference_sim::cluster::Backend;
use uniference_sim::collective::choose::{AlgorithmTable, Rule, algorithm_by_name, algorithms_for};
use uniference_sim::network::PacketOverhead;
use uniference_sim::program::CollectiveKind;
use uniference_sim::time::Bytes;

/// Ethernet, IPv4 and TCP with timestamps: 66 bytes of headers, an MTU of 1500.
const ETHERNET_TCP: PacketOverhead = PacketOverhead { payload: 1448, wire: 1514 };

/// What can be simulated.
const NAMES: [&str; 2] = ["gloo", "ideal"];

/// The backend with its algorithms, and what headers take of every link.
pub(super) fn resolve(
    raw: &RawCluster,
    choices: &Choices,
    source: &Source,
) -> Result<(Backend, Option<PacketOverhead>), Diagnostic> {
    let (mut backend, mut packet) = by_name(raw, choices, source)?;
    if let Some(table) = &raw.backend {
        override_parameters(table.get_ref(), &mut backend, &mut packet, source)?;
    }
    for (kind, rules) in &raw.collective {
        let Some(known) = kind_by_name(kind.get_ref()) else {
            let message = format!("there is no collective `{}`", kind.get_ref());
            return Err(source.error(message, kind.span()).hint(suggest_kind(kind.get_ref())));
        };
        set_rules(&mut backend.algorithms, known, rules, source)?;
    }
    for choice in &choices.algorithms {
        force(&mut backend.algorithms, choice)?;
    }
    Ok((backend, packet))
}

/// A backend as it is when nothing is overridden. The caller's choice goes before the file's, the script's after it.
fn by_name(
    raw: &RawCluster,
    choices: &Choices,
    source: &Source,
) -> Result<(Backend, Option<PacketOverhead>), Diagnostic> {
    if let Some(name) = &choices.backend {
        return profile(name, |message| Diagnostic::new(message).at("--backend", name, 0..name.len()));
    }
    if let Some(backend) = &raw.backend {
        let span = place_of(&backend.get_ref().name, backend.span());
        return profile(backend.get_ref().name.get_ref(), |message| source.error(message, span));
    }
    profile(choices.fallback_backend.as_deref().unwrap_or("gloo"), Diagnostic::new)
}

fn profile(
    name: &str,
    error: impl FnOnce(String) -> Diagnostic,
) -> Result<(Backend, Option<PacketOverhead>), Diagnostic> {
    let (algorithms, concurrency, packet) = match name {
        "gloo" => (AlgorithmTable::gloo(), 2, Some(ETHERNET_TCP)),
        "ideal" => (AlgorithmTable::ideal(), 1, None),
        "nccl" | "mpi" => {
            let hint = "use `gloo`, or `ideal` for a library without any cost of its own";
            return Err(error(format!("the backend `{name}` cannot be simulated yet")).hint(hint));
        }
        _ => return Err(error(format!("there is no backend `{name}`")).hint(suggest(name, "backends", NAMES))),
    };
    Ok((Backend { name: name.to_owned(), algorithms, concurrency }, packet))
}

/// A name that was written without its table stands where the whole value stands.
fn place_of(name: &Spanned<String>, whole: Range<usize>) -> Range<usize> {
    if name.span().is_empty() { whole } else { name.span() }
}

fn override_parameters(
    table: &RawBackend,
    backend: &mut Backend,
    packet: &mut Option<PacketOverhead>,
    source: &Source,
) -> Result<(), Diagnostic> {
    if let Some(concurrency) = &table.concurrency {
        if *concurrency.get_ref() == 0 {
            let hint = "1 carries out the operations of a group one after the other";
            return Err(source.error("a concurrency of 0 carries out nothing", concurrency.span()).hint(hint));
        }
        backend.concurrency = *concurrency.get_ref();
    }
    if let Some(raw) = &table.packet {
        *packet = Some(packet_overhead(raw, source)?);
    }
    Ok(())
}

fn packet_overhead(raw: &Spanned<RawPacket>, source: &Source) -> Result<PacketOverhead, Diagnostic> {
    let RawPacket { payload, wire } = raw.get_ref();
    let sizes = (u32::try_from(payload.get_ref().0.0), u32::try_from(wire.get_ref().0.0));
    match sizes {
        (Ok(payload @ 1..), Ok(wire)) if payload <= wire => Ok(PacketOverhead { payload, wire }),
        _ => {
            let message = format!("packets of {} cannot carry {}", wire.get_ref(), payload.get_ref());
            Err(source.error(message, raw.span()).hint("Ethernet with TCP carries \"1448 B\" in \"1514 B\""))
        }
    }
}

fn set_rules(
    table: &mut AlgorithmTable,
    kind: CollectiveKind,
    raw: &Spanned<RawRules>,
    source: &Source,
) -> Result<(), Diagnostic> {
    let mut rules = Vec::new();
    for rule in &raw.get_ref().0 {
        let name = rule.algorithm.get_ref();
        let algorithm = algorithm_by_name(kind, name).map_err(|_| {
            unknown_algorithm(kind, name, |message| source.error(message, place_of(&rule.algorithm, raw.span())))
        })?;
        rules.push(Rule { up_to: rule.up_to.map(|size| size.0), algorithm });
    }
    table.set_rules(kind, rules).map_err(|error| {
        let text = error.to_string();
        let (message, hint) = split_hint(&text);
        source.error(message, raw.span()).hint(hint.unwrap_or_default())
    })
}

fn unknown_algorithm(kind: CollectiveKind, name: &str, error: impl FnOnce(String) -> Diagnostic) -> Diagnostic {
    let known: Vec<&str> = algorithms_for(kind).iter().map(|algorithm| algorithm.name()).collect();
    error(format!("there is no algorithm `{name}` for {kind}")).hint(suggest(name, "algorithms", known))
}

fn force(table: &mut AlgorithmTable, choice: &AlgorithmChoice) -> Result<(), Diagnostic> {
    let AlgorithmChoice { kind, name } = choice;
    let algorithm = algorithm_by_name(*kind, name).map_err(|_| {
        let text = format!("{kind}={name}");
        unknown_algorithm(*kind, name, |message| {
            Diagnostic::new(message).at("--algorithm", &text, text.len() - name.len()..text.len())
        })
    })?;
    table.force(*kind, algorithm);
    Ok(())
}

/// The backend as a table that says everything.
pub(super) fn canonical(backend: &Backend, packet: Option<PacketOverhead>) -> Spanned<RawBackend> {
    let size = |bytes: u32| here(Size(Bytes(bytes.into())));
    here(RawBackend {
        name: here(backend.name.clone()),
        concurrency: Some(here(backend.concurrency)),
        packet: packet.map(|packet| here(RawPacket { payload: size(packet.payload), wire: size(packet.wire) })),
    })
}

/// The whole choice of algorithms.
pub(super) fn canonical_rules(table: &AlgorithmTable) -> BTreeMap<Spanned<String>, Spanned<RawRules>> {
    let rule = |rule: &Rule| RawRule { up_to: rule.up_to.map(Size), algorithm: here(rule.algorithm.name().to_owned()) };
    CollectiveKind::ALL
        .into_iter()
        .map(|kind| (here(kind.name().to_owned()), here(RawRules(table.rules(kind).iter().map(rule).collect()))))
        .collect()
}
