//! Owns ASTRA-sim's files: the system (JSON) and the network (a few lines of YAML). Keys that the analytical model does
//! not use are ignored, as in ASTRA-sim.

use crate::chakra::schema::CommType;
use serde::Deserialize;

/// Maximum number of ranks.
const LARGEST_WORLD: u64 = 1 << 20;

/// An invalid file, or a file that needs features that the analytical model does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}\nhint: {hint}")]
pub struct InputError {
    /// Description of the mistake.
    pub message: String,
    /// Advice on how to correct the error.
    pub hint: String,
}

/// Maximum number of chunks: each needs memory and time, whatever its size.
const MOST_SPLITS: u32 = 1 << 20;

impl InputError {
    /// An error with advice.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> InputError {
        InputError { message: message.into(), hint: hint.into() }
    }
}

/// `--astra-system`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct System {
    /// Delay of a rank between receiving a message and sending the next, in ns.
    #[serde(default = "ten")]
    pub endpoint_delay: u64,
    /// Number of chunk phases that a dimension serves at once.
    #[serde(default = "one")]
    pub active_chunks_per_dimension: u32,
    /// Number of chunks of a collective.
    #[serde(default = "one")]
    pub preferred_dataset_splits: u32,
    /// `localBWAware` or `baseline`.
    #[serde(default)]
    pub collective_optimization: Optimization,
    /// Memory bandwidth in 1e9 bytes per second.
    #[serde(default)]
    pub local_mem_bw: f64,
    /// Peak rate in 1e12 operations per second.
    #[serde(default)]
    pub peak_perf: f64,
    /// Whether compute is costed by its operations, instead of its recorded duration.
    #[serde(default)]
    pub roofline_enabled: u8,
    /// Algorithm of all-reduces in each dimension.
    #[serde(default)]
    pub all_reduce_implementation: Vec<String>,
    /// Algorithm of reduce-scatters in each dimension.
    #[serde(default)]
    pub reduce_scatter_implementation: Vec<String>,
    /// Algorithm of all-gathers in each dimension.
    #[serde(default)]
    pub all_gather_implementation: Vec<String>,
    /// Algorithm of all-to-alls in each dimension.
    #[serde(default)]
    pub all_to_all_implementation: Vec<String>,
    /// Prefixes of traces, for collectives that are given as traces.
    #[serde(default)]
    all_reduce_implementation_custom: Vec<String>,
    #[serde(default)]
    reduce_scatter_implementation_custom: Vec<String>,
    #[serde(default)]
    all_gather_implementation_custom: Vec<String>,
    #[serde(default)]
    all_to_all_implementation_custom: Vec<String>,
}

fn one() -> u32 {
    1
}

fn ten() -> u64 {
    10
}

/// Use of several dimensions by an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Optimization {
    /// An all-reduce in each dimension.
    #[default]
    #[serde(rename = "baseline")]
    Baseline,
    /// Reduce-scatter on the way up, all-gather on the way down.
    #[serde(rename = "localBWAware")]
    LocalBwAware,
}

/// An algorithm on one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Implementation {
    Ring,
    Direct,
    HalvingDoubling,
}

impl Implementation {
    /// The algorithm by its name in the system file; `None`: unknown.
    pub fn by_name(name: &str) -> Option<Implementation> {
        match name {
            "ring" => Some(Implementation::Ring),
            "direct" => Some(Implementation::Direct),
            "halvingDoubling" => Some(Implementation::HalvingDoubling),
            _ => None,
        }
    }
}

/// `--astra-network`.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The dimensions; neighbours in the first one have neighbouring ranks.
    pub dimensions: Vec<Dimension>,
}

/// One dimension of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dimension {
    /// Connection of the members.
    pub topology: TopologyKind,
    /// Number of members.
    pub members: u64,
    /// Bandwidth in 2^30 bytes per second.
    pub bandwidth: f64,
    /// Latency of a hop in ns.
    pub latency: f64,
}

/// Connection of the members of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum TopologyKind {
    Ring,
    FullyConnected,
    Switch,
}

/// The collectives that ASTRA-sim has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum AstraCollective {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

impl AstraCollective {
    /// All collectives, in order.
    pub const ALL: [AstraCollective; 4] = [
        AstraCollective::AllReduce,
        AstraCollective::ReduceScatter,
        AstraCollective::AllGather,
        AstraCollective::AllToAll,
    ];

    /// The collective of a trace's type; `None`: ASTRA-sim does not have it.
    pub fn of(kind: CommType) -> Option<AstraCollective> {
        match kind {
            CommType::AllReduce => Some(AstraCollective::AllReduce),
            CommType::ReduceScatter | CommType::ReduceScatterBlock => Some(AstraCollective::ReduceScatter),
            CommType::AllGather => Some(AstraCollective::AllGather),
            CommType::AllToAll => Some(AstraCollective::AllToAll),
            _ => None,
        }
    }

    /// The name that files and messages use.
    pub const fn name(self) -> &'static str {
        match self {
            AstraCollective::AllReduce => "all-reduce",
            AstraCollective::ReduceScatter => "reduce-scatter",
            AstraCollective::AllGather => "all-gather",
            AstraCollective::AllToAll => "all-to-all",
        }
    }
}

impl System {
    /// The collectives that are given as traces, each with the traces' prefix.
    pub fn custom(&self) -> impl Iterator<Item = (AstraCollective, &str)> {
        let lists = [
            (AstraCollective::AllReduce, &self.all_reduce_implementation_custom),
            (AstraCollective::ReduceScatter, &self.reduce_scatter_implementation_custom),
            (AstraCollective::AllGather, &self.all_gather_implementation_custom),
            (AstraCollective::AllToAll, &self.all_to_all_implementation_custom),
        ];
        lists.into_iter().filter_map(|(kind, list)| Some((kind, list.first()?.as_str())))
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// If the text is no such file. An unknown algorithm is an error only when a collective needs it.
    pub fn parse(text: &str) -> Result<System, InputError> {
        let hint = "an implementation must be a list of ring, direct or halvingDoubling, one per dimension";
        let system: System = serde_json::from_str(text)
            .map_err(|error| InputError::new(format!("cannot read the ASTRA-sim system file: {error}"), hint))?;
        if system.preferred_dataset_splits > MOST_SPLITS {
            let message = format!("preferred-dataset-splits = {} is too large", system.preferred_dataset_splits);
            return Err(InputError::new(message, format!("the maximum is {MOST_SPLITS}")));
        }
        if system.preferred_dataset_splits == 0 || system.active_chunks_per_dimension == 0 {
            let message = "the ASTRA-sim system file has no chunks";
            let hint = "preferred-dataset-splits and active-chunks-per-dimension must be at least 1";
            return Err(InputError::new(message, hint));
        }
        Ok(system)
    }
}

impl Network {
    /// Reads the file's text: `topology`, `npus_count`, `bandwidth` and `latency`, each a list in brackets.
    ///
    /// # Errors
    /// If the text is no such file.
    pub fn parse(text: &str) -> Result<Network, InputError> {
        let topology = list(text, "topology")?;
        let (members, bandwidth, latency) =
            (numbers(text, "npus_count")?, numbers(text, "bandwidth")?, numbers(text, "latency")?);
        if topology.is_empty() || [members.len(), bandwidth.len(), latency.len()] != [topology.len(); 3] {
            return Err(wrong("the lists have different lengths".to_owned()));
        }
        let mut dimensions = Vec::new();
        for (index, name) in topology.iter().enumerate() {
            let topology = match *name {
                "Ring" => TopologyKind::Ring,
                "FullyConnected" => TopologyKind::FullyConnected,
                "Switch" => TopologyKind::Switch,
                other => return Err(wrong(format!("unknown topology `{other}`"))),
            };
            let (bandwidth, latency) = (bandwidth[index], latency[index]);
            if members[index] < 1.0 || members[index].fract() != 0.0 || bandwidth <= 0.0 || latency < 0.0 {
                return Err(wrong(format!(
                    "dimension {index} must have at least one member, a bandwidth greater than 0 and no negative latency"
                )));
            }
            dimensions.push(Dimension { topology, members: members[index] as u64, bandwidth, latency });
        }
        let ranks = dimensions.iter().try_fold(1_u64, |ranks, dimension| ranks.checked_mul(dimension.members));
        match ranks.is_some_and(|ranks| ranks <= LARGEST_WORLD) {
            true => Ok(Network { dimensions }),
            false => Err(wrong(format!("more than {LARGEST_WORLD} ranks"))),
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.dimensions.iter().map(|dimension| dimension.members).product()
    }
}

fn wrong(problem: String) -> InputError {
    let message = format!("cannot read the ASTRA-sim network file: {problem}");
    InputError::new(
        message,
        "example, with one key per line: topology: [ Ring ], npus_count: [ 8 ], bandwidth: [ 50.0 ], latency: [ 500.0 ]",
    )
}

fn list<'a>(text: &'a str, key: &str) -> Result<Vec<&'a str>, InputError> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    let value = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key);
    let value = value.ok_or_else(|| wrong(format!("`{key}` is missing")))?.1.trim();
    let inside = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
    let inside = inside.ok_or_else(|| wrong(format!("`{key}` must be a list in brackets")))?;
    Ok(inside.split(',').map(|item| item.trim().trim_matches(['"', '\''])).filter(|item| !item.is_empty()).collect())
}

fn numbers(text: &str, key: &str) -> Result<Vec<f64>, InputError> {
    let number = |item: &str| match item.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(wrong(format!("`{item}` in `{key}` is not a number"))),
    };
    list(text, key)?.into_iter().map(number).collect()
}
