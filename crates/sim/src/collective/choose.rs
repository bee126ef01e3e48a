//! Owns the choice: which algorithm carries out which kind of collective at which size.

use super::Algorithm;
use crate::program::CollectiveKind;
use crate::time::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// For each kind the algorithms by size: the first entry whose bound is not exceeded is used.
#[derive(Clone, Default)]
pub struct AlgorithmTable {
    rules: BTreeMap<CollectiveKind, Vec<Rule>>,
}

/// One line of the table.
#[derive(Clone)]
pub struct Rule {
    /// Up to this size of [`crate::program::Collective::bytes`], inclusive; `None`: any.
    pub up_to: Option<Bytes>,
    /// What carries it out.
    pub algorithm: Arc<dyn Algorithm>,
}
