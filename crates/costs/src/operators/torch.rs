//! Owns what torch itself states about its operators: the kind of each, from the generated lists in [`names`].

pub(super) mod names;

/// Kind of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The result aliases an argument; no data is touched.
    View,
    /// A variant of a view whose result has memory of its own.
    ViewCopy,
    Pointwise,
    Reduction,
}

/// The kind of an operator by its name without namespace, and its overload; `None`: torch states none.
pub(super) fn kind(name: &str, overload: &str) -> Option<Kind> {
    const LISTS: [(Kind, &[&str]); 4] = [
        (Kind::View, names::VIEWS),
        (Kind::ViewCopy, names::VIEW_COPIES),
        (Kind::Pointwise, names::POINTWISE),
        (Kind::Reduction, names::REDUCTIONS),
    ];
    let listed = |name: &str| LISTS.iter().find(|(_, names)| names.binary_search(&name).is_ok());
    let (kind, _) = listed(&format!("{name}.{overload}")).or_else(|| listed(name))?;
    Some(*kind)
}
