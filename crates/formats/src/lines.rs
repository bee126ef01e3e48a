//! Owns the names that users give lines of a program, and factors on the compute of lines.

use crate::operators::BACKWARD;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineName(String);

impl FromStr for LineName {
    type Err = String;

    fn from_str(text: &str) -> Result<LineName, String> {
        let numbered = text.rsplit_once(':').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        numbered.then(|| LineName(text.to_owned())).ok_or_else(|| "must be FILE:LINE, as in model.py:41".to_owned())
    }
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LineName {
    /// Whether `line` is this line of the program, in either pass: the name has as many folders as make it unique.
    pub fn is(&self, line: &str) -> bool {
        Path::new(line.strip_suffix(BACKWARD).unwrap_or(line)).ends_with(&self.0)
    }
}

/// A line of a program whose compute duration is scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct LineScale {
    /// The line of the program.
    pub line: LineName,
    /// Factor on the duration of the line's compute; finite, not negative.
    pub factor: f64,
}

impl FromStr for LineScale {
    type Err = String;

    fn from_str(text: &str) -> Result<LineScale, String> {
        let problem = || "must be FILE:LINE=FACTOR, as in model.py:41=0.5".to_owned();
        let (line, factor) = text.rsplit_once('=').ok_or_else(problem)?;
        let line = line.parse().map_err(|_| problem())?;
        match factor.trim().parse::<f64>() {
            Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(LineScale { line, factor }),
            _ => Err(problem()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_by_the_end_of_their_path() {
        let scale: LineScale = "layers/model.py:41=0.5".parse().unwrap();
        let is = |line| scale.line.is(line);
        assert_eq!(scale.factor, 0.5);
        assert!(is("/home/a/layers/model.py:41") && is("layers/model.py:41"));
        assert!(!is("/home/a/other_layers/model.py:41") && !is("/home/a/layers/model.py:4") && !is(""));
        for wrong in ["model.py:41", "model.py=2", "model.py:x=2", "model.py:1=-1", "model.py:1=inf", ""] {
            assert!(wrong.parse::<LineScale>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_is_named_for_both_of_its_passes() {
        let name: LineName = "model.py:41".parse().unwrap();
        for (line, is) in [
            ("/a/model.py:41", true),
            ("/a/model.py:41 (backward)", true),
            ("/a/model.py:4 (backward)", false),
            ("/a/a_model.py:41", false),
        ] {
            assert_eq!(name.is(line), is, "{line}");
        }
    }
}
