//! Owns the sequences of attention calls whose lengths are values of arguments.
//!
//! If the values are unknown, the operator's description assumes lengths by the sizes of its tensors.

use super::Part;
use super::call::Call;
use super::lengths::{KvSplits, Lengths, MaxSplits, Queries, Sequences};
use super::{attention, serving};
use uniference_formats::operators::Definition;

/// The sequences of an attention call, by the known values of its arguments: those with one query, which are in decode,
/// and those with more. `None`: the operator's arithmetic does not depend on sequence lengths, or they are unknown.
pub fn sequences<'a>(definition: &Definition, values: impl Fn(usize) -> Option<&'a [i64]>) -> Option<[Sequences; 2]> {
    let Lengths { queries, key_borders, used_keys, before_queries, may_be_empty, mask, splits } = lengths(definition)?;
    let between = |borders: &[i64]| -> Vec<i64> { borders.windows(2).map(|pair| pair[1] - pair[0]).collect() };
    let mut keys = match (used_keys.and_then(&values), key_borders) {
        (Some(used), _) => used.to_vec(),
        (None, borders) => between(values(borders?)?),
    };
    let queries = match queries {
        Queries::Borders(borders) => between(values(borders)?),
        Queries::Each { queries, sequences } => {
            // A lengths tensor may have room for more sequences than there are.
            keys.truncate(usize::try_from(sequences).unwrap_or(usize::MAX));
            vec![i64::try_from(queries).ok()?; keys.len()]
        }
    };
    if keys.len() != queries.len() {
        return None;
    }
    let most: Vec<u64> = match splits.most {
        MaxSplits::Number(most) => vec![most; keys.len()],
        MaxSplits::Argument(place) => {
            values(place)?.iter().map(|most| u64::try_from(*most).unwrap_or_default()).collect()
        }
    };
    if most.len() < keys.len() {
        return None;
    }
    let mut found = [Sequences::default(); 2];
    for ((queries, keys), most) in queries.into_iter().zip(keys).zip(most) {
        // Zero or negative counts: of a partly filled batch, or of memory whose values were lost.
        let [queries, keys] = [queries, keys].map(|count| u64::try_from(count).unwrap_or_default());
        let keys = if before_queries { keys.saturating_add(queries) } else { keys }.max(u64::from(may_be_empty));
        if queries > 0 && keys > 0 {
            let splits = KvSplits::of(keys, most, splits.multiple);
            found[usize::from(queries > 1)].add(queries, keys, mask, splits);
        }
    }
    found.iter().any(|group| group.count > 0).then_some(found)
}

/// Parts of an attention call over sequences that [`sequences`] returned.
pub fn with_sequences(definition: &Definition, sequences: &[Sequences]) -> Option<Vec<Part>> {
    let call = Call::new(definition);
    let attended = if is_of_pytorch(definition) { attention::attended } else { serving::attended };
    sequences.iter().filter(|group| group.count > 0).map(|group| attended(call, group)).collect()
}

/// Whether the operator's arithmetic depends on lengths of sequences that are values of its tensors.
pub fn lengths_are_values(definition: &Definition) -> bool {
    lengths(definition).is_some()
}

fn lengths(definition: &Definition) -> Option<Lengths> {
    let call = Call::new(definition);
    if is_of_pytorch(definition) { attention::lengths(call) } else { serving::lengths(call) }
}

fn is_of_pytorch(definition: &Definition) -> bool {
    definition.name.starts_with("aten::")
}
