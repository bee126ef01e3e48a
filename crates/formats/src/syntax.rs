//! Owns the rendering of syntax errors in a user's TOML. Each format checks its values.

use crate::diagnostic::Diagnostic;

/// The error at its place in `text`, which came from `origin`; `documented` names the page about the format.
pub(crate) fn syntax_error(origin: &str, text: &str, error: &toml::de::Error, documented: &str) -> Diagnostic {
    let span = error.span().unwrap_or(0..0);
    let diagnostic = Diagnostic::new(error.message()).at(origin, text, span.clone());
    let start = text[..span.start.min(text.len())].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or("");
    match line.split_once('=').map(|(_, value)| value.split('#').next().unwrap_or("").trim()) {
        Some(value) if error.message().contains("must be quoted") => diagnostic.hint(format!("write \"{value}\"")),
        _ => diagnostic.hint(documented),
    }
}
