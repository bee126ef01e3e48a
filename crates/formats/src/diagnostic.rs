//! Owns how a mistake in a user's text is shown: the line, a caret under the place, and a hint that can be acted upon.
//!
//! It finds no mistakes itself, and writes nothing: the caller decides where the text goes and whether that is a terminal.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::fmt;
use std::ops::Range;

/// A mistake in what a user wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    message: String,
    place: Option<Box<Place>>,
    hint: Option<String>,
}

/// Where the mistake is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    origin: String,
    text: String,
    span: Range<usize>,
    label: String,
}

impl Diagnostic {
    /// A mistake that is nowhere in particular.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), place: None, hint: None }
    }

    /// The mistake is at `span` (in bytes) of `text`, which came from `origin` (a path or an option).
    #[must_use]
    pub fn at(mut self, origin: &str, text: &str, span: Range<usize>) -> Diagnostic {
        let span = widened(text, span);
        let place = Place { origin: origin.to_owned(), text: text.to_owned(), span, label: String::new() };
        self.place = Some(Box::new(place));
        self
    }

    /// What to write beside the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        if let Some(place) = &mut self.place {
            place.label = label.into();
        }
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }

    /// Several lines without a newline at the end: `error: `, the place, `hint: `; in colours for a terminal.
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let title = Level::ERROR.primary_title(&*self.message);
        let hint = self.hint.as_deref().map(|hint| Level::HELP.with_name("hint").secondary_title(hint));
        let hint = hint.map(Group::with_title);
        match &self.place {
            Some(place) => {
                let mut report = vec![title.element(place.snippet())];
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

impl Place {
    fn snippet(&self) -> Snippet<'_, annotate_snippets::Annotation<'_>> {
        let caret = AnnotationKind::Primary.span(self.span.clone());
        let caret = if self.label.is_empty() { caret } else { caret.label(&*self.label) };
        Snippet::source(&*self.text).path(&*self.origin).annotation(caret)
    }
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

/// `did you mean ...?` if a candidate is near `word`, else the list of all candidates, which are called `what` (`presets`).
pub fn suggest<'a>(word: &str, what: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let nearest = candidates.iter().map(|candidate| (distance(word, candidate), candidate)).min();
    match nearest {
        Some((distance, candidate)) if distance <= 1 + word.chars().count() / 4 => {
            format!("did you mean `{candidate}`?")
        }
        Some(_) if candidates.len() <= 16 => format!("the {what} are: {}", candidates.join(", ")),
        Some(_) => format!("the {what} are: {}, ... ({} in all)", candidates[..8].join(", "), candidates.len()),
        None => format!("there are no {what}"),
    }
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment), in either case.
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
    fn near_words_are_suggested_and_far_ones_listed() {
        assert_eq!(suggest("swtich", "presets", ["star", "switch"]), "did you mean `switch`?");
        assert_eq!(suggest("mesh", "presets", ["star", "switch"]), "the presets are: star, switch");
        assert_eq!(suggest("orin.7", "hosts", ["orin.0", "laptop"]), "did you mean `orin.0`?");
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
