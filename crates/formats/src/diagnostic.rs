//! Owns the rendering of a mistake in a user's text: the line, a caret under the place, and a hint that the user can
//! act on.
//!
//! The caller finds the mistakes, and decides where the text goes and whether that is a terminal.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::borrow::Cow;
use std::fmt;
use std::fmt::Write;
use std::ops::Range;

/// A mistake in a user's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    message: String,
    place: Option<Box<Location>>,
    hint: Option<String>,
}

/// The place of the mistake in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    origin: String,
    /// The shown part of the lines of the place.
    text: String,
    /// Number of the first line.
    line: usize,
    span: Range<usize>,
    label: String,
}

impl Diagnostic {
    /// A mistake without a place.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), place: None, hint: None }
    }

    /// Sets the place: `span` (in bytes) of `text`, which came from `origin` (a path or an option).
    #[must_use]
    pub fn at(mut self, origin: &str, text: &str, span: Range<usize>) -> Diagnostic {
        let (text, span, line) = shown(text, widened(text, span));
        let place = Location { origin: origin.to_owned(), text, line, span, label: String::new() };
        self.place = Some(Box::new(place));
        self
    }

    /// Sets the text next to the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        if let Some(place) = &mut self.place {
            place.label = label.into();
        }
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }

    /// Several lines without a newline at the end: `error: `, the place, `hint: `; in colours for a terminal.
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let message = shortened(&self.message);
        let hint = self.hint.as_deref().map(shortened);
        let title = Level::ERROR.primary_title(&*message);
        let hint = hint.as_deref().map(|hint| Level::HELP.with_name("hint").secondary_title(hint));
        let hint = hint.map(Group::with_title);
        match &self.place {
            Some(place) => {
                let (origin, label) = (shortened(&place.origin), shortened(&place.label));
                let mut report = vec![title.element(place.snippet(&origin, &label))];
                report.extend(hint);
                renderer.render(&report)
            }
            None => {
                let parts = std::iter::once(Group::with_title(title)).chain(hint);
                parts.map(|part| renderer.render(&[part])).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl Location {
    fn snippet<'a>(&'a self, origin: &'a str, label: &'a str) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let caret = AnnotationKind::Primary.span(self.span.clone());
        let caret = if label.is_empty() { caret } else { caret.label(label) };
        Snippet::source(&*self.text).line_start(self.line).path(origin).annotation(caret)
    }
}

/// Maximum number of characters of a name or value; longer ones are shortened.
const LONGEST: usize = 1_000;
/// Number of bytes that are shown of a long line, from a little before the place on.
const WINDOW: usize = 400;
const BEFORE: usize = 80;

/// Whether the character could move a terminal's cursor, change its state, or make a text look like another one.
fn is_control(c: char) -> bool {
    let marks = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}');
    let bidirectional = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || marks || bidirectional
}

/// `text` with escapes for a terminal: control characters (except newlines and tabs) and characters that change the
/// direction of writing become `\u001b` and the like.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_control(c) {
            true => write!(safe, "\\u{:04x}", u32::from(c)).expect("memory takes it"),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// The escaped text, without the middle of long texts.
fn shortened(text: &str) -> String {
    let mut from_end = text.char_indices().rev();
    match (text.char_indices().nth(LONGEST / 2), from_end.nth(LONGEST / 2)) {
        (Some((head, _)), Some((tail, _))) if head < tail => {
            escaped(&format!("{}[...]{}", &text[..head], &text[tail..])).into_owned()
        }
        _ => escaped(text).into_owned(),
    }
}

/// The lines of a place, with the place in them and the number of the first line; of long lines a part. Control
/// characters are replaced by characters of as many bytes, so that places do not move.
fn shown(text: &str, span: Range<usize>) -> (String, Range<usize>, usize) {
    let mut from = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
    let line = 1 + text[..from].bytes().filter(|byte| *byte == b'\n').count();
    let mut to = text[span.end..].find('\n').map_or(text.len(), |newline| span.end + newline);
    if to - from > 4 * WINDOW {
        from = widened(text, from.max(span.start.saturating_sub(BEFORE))..span.start).start;
        to = widened(text, from..to.min(from + WINDOW)).end;
    }
    let replaced = |c: char| match (is_control(c) && c != '\r', c.len_utf8()) {
        (false, _) => c,
        (true, 1) => '?',
        (true, 2) => '\u{bf}',
        (true, _) => '\u{fffd}',
    };
    let part: String = text[from..to].chars().map(replaced).collect();
    (part, span.start - from..span.end.clamp(span.start, to) - from, line)
}

/// A range inside `text`, at character boundaries.
fn widened(text: &str, span: Range<usize>) -> Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostic {}

/// Largest number of candidates that a hint lists: more than the keys of any table of a file.
const LISTED: usize = 24;

/// `did you mean ...?` if a candidate is near `word`, else the list of all candidates, or of the first of many; `what` is
/// their plural noun (`presets`).
pub fn suggest<'a>(word: &str, what: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    // A word that is much longer than all candidates resembles none of them, and computing an edit distance costs the
    // product of both lengths.
    let longest = candidates.iter().map(|candidate| candidate.len()).max().unwrap_or(0);
    let word = if word.len() > 4 * longest + 16 { "" } else { word };
    let nearest = candidates.iter().map(|candidate| (distance(word, candidate), candidate)).min();
    match nearest {
        Some((distance, candidate)) if !word.is_empty() && distance <= 1 + word.chars().count() / 4 => {
            format!("did you mean `{candidate}`?")
        }
        Some(_) if candidates.len() <= LISTED => format!("the {what} are: {}", candidates.join(", ")),
        Some(_) => format!("the {what} are: {}, ... ({} in all)", candidates[..8].join(", "), candidates.len()),
        None => format!("there are no {what}"),
    }
}

/// Edit distance without regard to case: letters inserted, deleted, replaced or swapped with their neighbour (optimal
/// string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_place() {
        let text = "name = \"x\"\nbandwith = 3\n";
        let diagnostic =
            Diagnostic::new("unknown key `bandwith`").at("c.toml", text, 11..19).hint("did you mean `bandwidth`?");
        insta::assert_snapshot!(diagnostic.render(false), @r"
        error: unknown key `bandwith`
         --> c.toml:2:1
          |
        2 | bandwith = 3
          | ^^^^^^^^
          |
        hint: did you mean `bandwidth`?
        ");
    }

    #[test]
    fn places_outside_the_text_or_inside_a_character_are_shown_all_the_same() {
        for span in [0..0, 1..1, 100..200, 2..1_000, 0..1] {
            let shown = Diagnostic::new("m").at("f", "µ\nß", span).render(true);
            assert!(shown.contains('m'));
        }
    }

    #[test]
    fn nothing_of_a_file_moves_the_cursor() {
        let name = "a\u{1b}[2J\u{7}\r\u{9b}1m\u{202e}b\u{2066}\u{7f}\u{0}";
        let text = format!("name = \"{name}\"\nother = 1\n");
        for span in 0..text.len() {
            let diagnostic = Diagnostic::new(name).at(name, &text, span..span + 3).label(name).hint(name);
            let shown = diagnostic.render(false);
            assert!(!shown.contains(is_control), "{shown:?}");
        }
        assert_eq!(escaped("a\tb\n\u{1b}\u{202e}"), "a\tb\n\\u001b\\u202e");
        assert_eq!(escaped("plain \u{e4}"), "plain \u{e4}");
    }

    #[test]
    fn what_is_long_is_shown_in_part_and_found_in_no_time() {
        let key = "k".repeat(10 << 20);
        let text = format!("x = 1\n{key} = 1\ny = 2\n");
        let hint = suggest(&key, "keys", ["bandwidth", "latency"]);
        assert_eq!(hint, "the keys are: bandwidth, latency");
        let shown = Diagnostic::new(format!("unknown key `{key}`"))
            .at("c.toml", &text, 6..6 + key.len())
            .hint(hint)
            .render(false);
        assert!(
            shown.len() < 4_000 && shown.contains("c.toml:2:1") && shown.contains("[...]"),
            "{} {shown:.200}",
            shown.len()
        );
    }

    #[test]
    fn near_words_are_suggested_and_far_ones_listed() {
        assert_eq!(suggest("swtich", "presets", ["star", "switch"]), "did you mean `switch`?");
        assert_eq!(suggest("mesh", "presets", ["star", "switch"]), "the presets are: star, switch");
        assert_eq!(suggest("orin.7", "hosts", ["orin.0", "laptop"]), "did you mean `orin.0`?");
        let names: Vec<String> = (0..30).map(|number| format!("node.{number}")).collect();
        let of = |count: usize| suggest("laptop", "hosts", names[..count].iter().map(String::as_str));
        assert!(of(24).ends_with(", node.22, node.23"), "{}", of(24));
        assert!(of(25).ends_with(", node.7, ... (25 in all)"), "{}", of(25));
    }

    #[test]
    fn distance_counts_edits() {
        // swap 1, replace 1, insert 1, case 0
        assert_eq!(
            [distance("ab", "ba"), distance("ab", "ac"), distance("ab", "abc"), distance("AB", "ab")],
            [1, 1, 1, 0]
        );
        assert_eq!(distance("", "abc"), 3);
    }
}
