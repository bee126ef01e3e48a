//! Owns the text of a cluster: the file, and the options that override its values. Every value keeps its place of
//! origin.
//!
//! File and options are concatenated, so one range identifies the place of a value in either.

use super::keys::{element, named};
use super::raw::RawCluster;
use super::relative::{Factor, scaled};
use crate::diagnostic::{Diagnostic, suggest};
use crate::syntax::syntax_error;
use serde::Deserialize;
use std::borrow::Cow;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

/// A file and the options that override it.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    origin: String,
    text: String,
    /// Start of the piece in the concatenation of all pieces.
    start: usize,
}

impl Piece {
    fn error(&self, message: impl Into<String>, span: Range<usize>) -> Diagnostic {
        Diagnostic::new(message).at(&self.origin, &self.text, span)
    }
}

type Slot<'a> = Spanned<DeValue<'a>>;

impl Source {
    /// The text of a file, and `KEY=VALUE` assignments in the order in which they apply.
    ///
    /// # Errors
    /// If a value is relative to a missing one.
    pub(super) fn new(origin: &str, text: &str, assignments: &[String]) -> Result<Source, Diagnostic> {
        let mut source = Source { pieces: Vec::new() };
        source.push(origin, text);
        for assignment in assignments {
            let absolute = source.absolute(assignment)?;
            source.push("--set", absolute.as_ref().unwrap_or(assignment));
        }
        Ok(source)
    }

    /// The assignment with the resulting value, if it assigns `*2` or `/2`. `None`: it is another assignment.
    fn absolute(&self, assignment: &str) -> Result<Option<String>, Diagnostic> {
        let option = Piece { origin: "--set".into(), text: assignment.into(), start: 0 };
        let Some(equals) = find_equals(assignment) else { return Ok(None) };
        let Some(factor) = Factor::parse(assignment[equals + 1..].trim()) else { return Ok(None) };
        let keys = split_key(&option, equals)?;
        let keys: Vec<&str> = keys.iter().map(|(key, _)| &**key).collect();
        match scaled(self.root()?.get_ref(), &keys, factor) {
            Some(value) => Ok(Some(format!("{}={value}", &assignment[..equals]))),
            None => {
                let message = format!("`{}` has no value that could be multiplied", assignment[..equals].trim());
                Err(option.error(message, 0..equals).hint("give a value: the cluster file has none, or no number"))
            }
        }
    }

    fn push(&mut self, origin: &str, text: &str) {
        let start = self.pieces.last().map_or(0, |last| last.start + last.text.len() + 1);
        self.pieces.push(Piece { origin: origin.to_owned(), text: text.to_owned(), start });
    }

    /// The error at a place.
    pub(super) fn error(&self, message: impl Into<String>, span: Range<usize>) -> Diagnostic {
        let piece = self.pieces.iter().rev().find(|piece| piece.start <= span.start).expect("the file starts at 0");
        piece.error(message, span.start - piece.start..span.end.saturating_sub(piece.start))
    }

    /// The file's values, overridden by the options'.
    fn root(&self) -> Result<Slot<'_>, Diagnostic> {
        let (file, options) = self.pieces.split_first().expect("there is a file");
        let table =
            DeTable::parse(&file.text).map_err(|error| syntax_error(&file.origin, &file.text, &error, DOCUMENTED))?;
        let mut root = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
        for option in options {
            assign(&mut root, option)?;
        }
        Ok(root)
    }

    /// Reads the file and the options.
    pub(super) fn read(&self) -> Result<RawCluster, Diagnostic> {
        let root = self.root()?;
        self.refuse_lists(root.get_ref())?;
        let span = root.span();
        let DeValue::Table(table) = root.into_inner() else { unreachable!("an assignment has a key") };
        RawCluster::deserialize(Deserializer::from(Spanned::new(span, table))).map_err(|error| self.type_error(&error))
    }

    /// Refuses lists where a table belongs: Serde reads a list as a table, by the order of its keys.
    fn refuse_lists(&self, root: &DeValue<'_>) -> Result<(), Diagnostic> {
        match root.get("network").filter(|network| network.get_ref().is_array()) {
            Some(list) => {
                let hint = "a cluster has one network; write [network] with single brackets";
                Err(self.error("expected a table, found a list of tables", list.span()).hint(hint))
            }
            None => Ok(()),
        }
    }

    /// Serde's error, with a hint from the names that it lists.
    fn type_error(&self, error: &toml::de::Error) -> Diagnostic {
        let (message, hint) = split_hint(error.message());
        let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let (shown, hint) = match (hint, &names[..]) {
            (Some(hint), _) => (message.to_owned(), hint.to_owned()),
            (None, [wrong, ..]) if message.starts_with("unknown field") && wrong.parse::<u32>().is_ok() => {
                let hint = "quote a name that contains a dot: network.host.\"orin.2\".latency";
                (format!("unknown key `{wrong}`"), hint.to_owned())
            }
            (None, [wrong, known @ ..]) if message.starts_with("unknown field") => {
                (format!("unknown key `{wrong}`"), suggest(wrong, "keys", known.iter().copied()))
            }
            (None, [wrong, known @ ..]) if message.starts_with("unknown variant") => {
                (format!("unknown value `{wrong}`"), suggest(wrong, "values", known.iter().copied()))
            }
            (None, [missing, ..]) if message.starts_with("missing field") => {
                (format!("missing key `{missing}`"), format!("add `{missing} = ...`"))
            }
            (None, _) if message.ends_with("map, expected a sequence") => {
                let hint = "write a list of tables with double brackets, for example [[device]]";
                ("expected a list of tables, found a table".to_owned(), hint.to_owned())
            }
            (None, _) => (plain_types(message), DOCUMENTED.to_owned()),
        };
        self.error(shown, error.span().unwrap_or(0..0)).hint(hint)
    }
}

const DOCUMENTED: &str = "see \"Cluster file\" in the documentation for all keys and their values";

/// Serde's message with the names of types for people.
fn plain_types(message: &str) -> String {
    let names = [
        ("expected f64", "expected a number"),
        ("expected u32", "expected a non-negative integer"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
        ("invalid type: map", "invalid type: a table"),
        ("invalid type: sequence", "invalid type: a list"),
    ];
    names.iter().fold(message.to_owned(), |message, (rust, plain)| message.replace(rust, plain))
}

/// Errors of units and of the simulator end with a line that starts with `hint: `.
pub(super) fn split_hint(message: &str) -> (&str, Option<&str>) {
    message.split_once("\nhint: ").map_or((message, None), |(message, hint)| (message, Some(hint)))
}

/// Applies `KEY=VALUE`. A value that is not TOML is a string: the shell has removed its quotes.
fn assign<'a>(root: &mut Slot<'a>, option: &'a Piece) -> Result<(), Diagnostic> {
    let all = 0..option.text.len();
    let Some(equals) = find_equals(&option.text) else {
        let hint = "write KEY=VALUE, for example --set network.bandwidth=\"1 Gbps\"";
        return Err(option.error("missing `=`", all).hint(hint));
    };
    let mut slot = root;
    for (segment, span) in split_key(option, equals)? {
        slot = descend(slot, &segment, option, span)?;
    }
    let value = option.text[equals + 1..].trim();
    let start = option.text.len() - option.text[equals + 1..].trim_start().len();
    let parsed = DeValue::parse(value).map(Spanned::into_inner);
    let parsed = parsed.unwrap_or(DeValue::String(Cow::Borrowed(value)));
    let offset = option.start + start;
    *slot = moved(Spanned::new(0..value.len(), parsed), offset);
    Ok(())
}

/// The first `=` outside quotes.
fn find_equals(text: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, c)| match (c, quote) {
        ('"' | '\'', None) => {
            quote = Some(c);
            None
        }
        (c, Some(open)) if c == open => {
            quote = None;
            None
        }
        ('=', None) => Some(at),
        _ => None,
    })
}

/// The parts of a dotted key, as TOML reads them, each with its place in the option.
fn split_key(option: &Piece, equals: usize) -> Result<Vec<(String, Range<usize>)>, Diagnostic> {
    let line = format!("{} = 0", &option.text[..equals]);
    let not_a_key = || {
        let hint = "a key consists of names separated by dots; quote a name that contains a dot: network.host.\"orin.2\".latency";
        option.error("invalid key", 0..equals).hint(hint)
    };
    let table = DeTable::parse(&line).map_err(|_| not_a_key())?;
    let mut segments = Vec::new();
    let mut rest = DeValue::Table(table.into_inner());
    while let DeValue::Table(table) = rest {
        // The table is empty if the text is only a comment.
        let (key, value) = table.into_iter().next().ok_or_else(not_a_key)?;
        segments.push((key.get_ref().clone().into_owned(), key.span()));
        rest = value.into_inner();
    }
    Ok(segments)
}

/// One step along a key: into a table (where a missing entry is added), or into an array by number or by its elements'
/// `name`.
fn descend<'t, 'a>(
    slot: &'t mut Slot<'a>,
    segment: &str,
    option: &Piece,
    span: Range<usize>,
) -> Result<&'t mut Slot<'a>, Diagnostic> {
    let kind = slot.get_ref().type_str();
    match slot.get_mut() {
        DeValue::Table(table) => {
            let place = option.start + span.start..option.start + span.end;
            let key = Spanned::new(place.clone(), Cow::Owned(segment.to_owned()));
            Ok(table.entry(key).or_insert_with(|| Spanned::new(place, DeValue::Table(DeTable::new()))))
        }
        DeValue::Array(elements) => {
            let names: Vec<String> = elements.iter().filter_map(|element| named(element.get_ref())).collect();
            let count = elements.len();
            match element(elements, segment) {
                Some(index) => Ok(elements.get_mut(index).expect("it was found")),
                None => Err(option.error(format!("unknown element `{segment}`"), span).hint(format!(
                    "there are {count} elements, numbered from 0; their names are: {}",
                    names.join(", ")
                ))),
            }
        }
        _ => Err(option.error(format!("cannot set `{segment}`: a {kind} has no keys"), span)),
    }
}

/// The value with all of its places shifted by `offset`.
fn moved(slot: Slot<'_>, offset: usize) -> Slot<'_> {
    let span = slot.span();
    let value = match slot.into_inner() {
        DeValue::Array(mut elements) => {
            for element in elements.iter_mut() {
                let taken = std::mem::replace(element, Spanned::new(0..0, DeValue::Boolean(false)));
                *element = moved(taken, offset);
            }
            DeValue::Array(elements)
        }
        DeValue::Table(table) => DeValue::Table(
            table
                .into_iter()
                .map(|(key, value)| {
                    let place = key.span();
                    let key = Spanned::new(place.start + offset..place.end + offset, key.into_inner());
                    (key, moved(value, offset))
                })
                .collect(),
        ),
        simple => simple,
    };
    Spanned::new(span.start + offset..span.end + offset, value)
}
