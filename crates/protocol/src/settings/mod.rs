//! Owns the interpretation of the settings of NVIDIA's libraries: environment variables, and NCCL's configuration of a
//! communicator. The effect of honoured settings on virtual time is computed in `uniference_sim`.

mod table;

pub use table::{CONFIGURATION, CUDA, NCCL, Setting};

use std::collections::BTreeMap;
use uniference_sim::program::NcclSettings;

/// The effect of a setting on virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The setting changes virtual time as it changes time on a real GPU.
    Honoured,
    /// The setting changes time on a real GPU but not virtual time; the run warns about it.
    NotModelled,
    /// The setting is not modelled, and only matters to communicators that span several servers; the run warns about it
    /// for these.
    BetweenServers,
    /// The setting changes no time on a real GPU, or less than the simulation resolves.
    NoTime,
}

impl Effect {
    /// Name of the effect in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Honoured => "honoured",
            Effect::NotModelled => "warned about",
            Effect::BetweenServers => "warned about between servers",
            Effect::NoTime => "changes no time",
        }
    }
}

/// Entry for a name: the entry of exactly this name, or else the one with the longest matching prefix.
fn find<'a>(settings: &'a [Setting], name: &str) -> Option<&'a Setting> {
    let begins = |setting: &&Setting| setting.name.strip_suffix('*').is_some_and(|begin| name.starts_with(begin));
    let exact = settings.iter().find(|setting| setting.name == name);
    exact.or_else(|| settings.iter().filter(begins).max_by_key(|setting| setting.name.len()))
}

/// Variables of the process's environment that are listed in the tables and not blank.
pub fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let is_listed = |name: &str| find(NCCL, name).is_some() || find(CUDA, name).is_some();
    std::env::vars_os().filter_map(text).filter(|(name, value)| is_listed(name) && !value.trim().is_empty()).collect()
}

fn warning(what: &str, value: &str, setting: &Setting) -> String {
    let note = if setting.note.is_empty() { String::new() } else { format!(" ({})", setting.note) };
    format!(
        "{what}={value} is not modelled and changes no virtual time{note}; docs/reference/settings.md lists all settings"
    )
}

/// Warnings about variables of CUDA and PyTorch that are set and not modelled.
pub fn of_cuda(environment: &BTreeMap<String, String>) -> Vec<String> {
    let unmodelled = environment.iter().filter_map(|(name, value)| {
        let setting = find(CUDA, name)?;
        let is_unmodelled = match name.as_str() {
            // NVIDIA documents no other value than 0.
            "NVIDIA_TF32_OVERRIDE" => value.trim() != "0",
            _ => setting.effect == Effect::NotModelled && value.trim() != setting.default,
        };
        is_unmodelled.then(|| warning(name, value, setting))
    });
    unmodelled.collect()
}

/// Whether a variable is switched on by CUDA's rule: its value is an integer other than 0.
pub fn is_on(environment: &BTreeMap<String, String>, name: &str) -> bool {
    environment.get(name).and_then(|value| value.trim().parse::<i64>().ok()).is_some_and(|number| number != 0)
}

/// Settings of a communicator, as read from the environment and its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Settings of the communicator; `None` if every choice is left to NCCL.
    pub settings: Option<NcclSettings>,
    /// Warnings about settings that are not modelled.
    pub warnings: Vec<String>,
}

/// Reads the settings of a communicator from the variables of an environment and the fields of a configuration that the
/// program has set.
///
/// # Errors
/// A message for NCCL's log if NCCL refuses a setting.
pub fn of_communicator(
    environment: &BTreeMap<String, String>,
    configuration: &[(&'static str, i64)],
    spans_servers: bool,
) -> Result<Read, String> {
    let mut warnings = Vec::new();
    let mut settings = NcclSettings::default();
    let matters = |setting: &Setting, value: &str| match setting.effect {
        Effect::NotModelled => value != setting.default,
        Effect::BetweenServers => spans_servers && value != setting.default,
        Effect::Honoured | Effect::NoTime => false,
    };
    let field = |name: &str| configuration.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    for (name, value) in configuration {
        let setting = find(CONFIGURATION, name).expect("fields are those of the table");
        if matters(setting, &value.to_string()) {
            warnings.push(warning(&format!("NCCL's configuration {name}"), &value.to_string(), setting));
        }
    }
    for (name, value) in environment {
        let value = value.trim();
        if let Some(setting) = find(NCCL, name).filter(|setting| matters(setting, value)) {
            warnings.push(warning(name, value, setting));
        }
    }
    if let (Some(least), Some(most)) = (field("minCTAs"), field("maxCTAs"))
        && (least < 1 || most < least)
    {
        return Err(format!("invalid minCTAs={least} and maxCTAs={most} of NCCL's configuration"));
    }
    let number = |name: &str| environment.get(name).and_then(|value| value.trim().parse::<i64>().ok());
    let channels = |names: [&str; 3], field: Option<i64>| {
        let said = names.iter().find_map(|name| number(name)).or(field)?;
        u32::try_from(said).ok().filter(|channels| *channels > 0)
    };
    if let Some(least) = channels(["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"], field("minCTAs")) {
        settings.channels[0] = least;
    }
    if let Some(most) = channels(["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"], field("maxCTAs")) {
        settings.channels[1] = most;
    }
    settings.peer_access = !is_on(environment, "NCCL_P2P_DISABLE");
    match environment.get("NCCL_P2P_LEVEL").map(|level| level.trim()) {
        None => {}
        Some("LOC" | "0") => settings.peer_access = false,
        Some(level) => {
            let setting = find(NCCL, "NCCL_P2P_LEVEL").expect("it is listed");
            warnings.push(warning("NCCL_P2P_LEVEL", level, setting));
        }
    }
    let algorithms = [("RING", NcclSettings::RING), ("TREE", NcclSettings::TREE), ("NVLS", NcclSettings::NVLS)];
    let protocols = [("LL128", NcclSettings::LL128), ("LL", NcclSettings::LL), ("SIMPLE", NcclSettings::SIMPLE)];
    if let Some(list) = environment.get("NCCL_ALGO") {
        settings.algorithms = masks("NCCL_ALGO", list, &algorithms, &mut warnings);
    }
    if let Some(list) = environment.get("NCCL_PROTO") {
        settings.protocols = masks("NCCL_PROTO", list, &protocols, &mut warnings);
    }
    if environment.get("NCCL_NVLS_ENABLE").is_some_and(|value| value.trim() == "0") {
        settings.algorithms = settings.algorithms.map(|mask| mask & !NcclSettings::NVLS);
    }
    Ok(Read { settings: (settings != NcclSettings::default()).then_some(settings), warnings })
}

/// Reads a list in the syntax of NCCL 2.24 and later: `ring,tree`, `^nvls` (all except these),
/// `ring;allreduce:tree,nvls` (per function).
fn masks(variable: &str, list: &str, known: &[(&str, u8)], warnings: &mut Vec<String>) -> [u8; 5] {
    const FUNCTIONS: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
    // NCCL's other algorithms. The simulation never chooses them, so excluding them has no effect.
    const UNMODELLED: [&str; 4] = ["NVLSTree", "CollnetDirect", "CollnetChain", "PAT"];
    let mut masks = [NcclSettings::ANY; 5];
    for part in list.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (function, names) =
            part.split_once(':').map_or((None, part), |(function, names)| (Some(function.trim()), names));
        let names = names.trim();
        let (is_negated, names) = names.strip_prefix('^').map_or((false, names), |names| (true, names));
        let mut mask = 0;
        for name in names.split(',').map(str::trim) {
            match known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
                Some((_, bit)) => mask |= bit,
                None if is_negated && UNMODELLED.iter().any(|known| known.eq_ignore_ascii_case(name)) => {}
                None => warnings.push(format!(
                    "{variable}={list}: `{name}` is not modelled; docs/reference/settings.md lists all settings"
                )),
            }
        }
        let mask = if is_negated { NcclSettings::ANY & !mask } else { mask };
        if is_negated && mask == 0 {
            warnings.push(format!(
                "{variable}={list} excludes everything that is modelled: the simulation chooses by itself; docs/reference/settings.md lists all settings"
            ));
        }
        match function.map(|function| FUNCTIONS.iter().position(|known| known.eq_ignore_ascii_case(function))) {
            None => masks = [mask; 5],
            Some(Some(place)) => masks[place] = mask,
            Some(None) => warnings.push(format!("{variable}={list}: NCCL has no such function")),
        }
    }
    // If a function's settings exclude everything that is modelled, all modelled choices are allowed instead; a warning
    // was already given.
    for mask in &mut masks {
        if *mask == 0 {
            *mask = NcclSettings::ANY;
        }
    }
    if variable == "NCCL_ALGO" {
        let lacks = (0..5)
            .find(|place| masks[*place] & (NcclSettings::RING | if *place == 4 { NcclSettings::TREE } else { 0 }) == 0);
        if let Some(place) = lacks {
            warnings.push(format!(
                "{variable}={list} leaves {} no algorithm that is always possible: NCCL fails where the others are not, and the simulation chooses by itself",
                FUNCTIONS[place]
            ));
        }
    }
    masks
}

#[cfg(test)]
mod tests;
