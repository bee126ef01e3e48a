//! Owns the tokenizer of MLIR: the next tokens, and their position in the text.

use crate::value::{Scalar, Type};

/// Reason that a text cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text has an unknown element.
    #[error("{0} is not known")]
    Unknown(String),
    /// The text is not valid MLIR.
    #[error("line {line}: expected {expected}, found {found:?}")]
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// Expected token.
        expected: String,
        /// Found text.
        found: String,
    },
}

pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    pub(crate) fn wrong(&self, expected: &str) -> Unreadable {
        let line = 1 + self.text[..self.at].matches('\n').count();
        let found: String = self.text[self.at..].chars().take_while(|letter| *letter != '\n').take(40).collect();
        Unreadable::Syntax { line, expected: expected.to_owned(), found }
    }

    /// The rest of the text after spaces and comments.
    pub(crate) fn rest(&mut self) -> &'a str {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return trimmed;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    pub(crate) fn sees(&mut self, mark: &str) -> bool {
        self.rest().starts_with(mark)
    }

    pub(crate) fn eat(&mut self, mark: &str) -> bool {
        let is_next = self.sees(mark);
        if is_next {
            self.at += mark.len();
        }
        is_next
    }

    pub(crate) fn expect(&mut self, mark: &str) -> Result<(), Unreadable> {
        if self.eat(mark) { Ok(()) } else { Err(self.wrong(mark)) }
    }

    /// Accepts a whole word: `to` is not the beginning of `total`.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let is_next = self.rest().strip_prefix(word).is_some_and(|rest| !rest.starts_with(is_of_name));
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn take(&mut self, is_of: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|letter| !is_of(letter)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// A name of letters, digits and `._$-`; possibly empty.
    pub(crate) fn name(&mut self) -> &'a str {
        self.take(is_of_name)
    }

    /// The next name, without consuming it.
    pub(crate) fn peek(&mut self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len())]
    }

    /// `%name`, followed by `#2` if it is one of several values.
    pub(crate) fn value(&mut self) -> Result<(&'a str, usize), Unreadable> {
        self.expect("%")?;
        let name = self.name();
        let part = if self.text[self.at..].starts_with('#') {
            self.at += 1;
            self.number()? as usize
        } else {
            0
        };
        Ok((name, part))
    }

    pub(crate) fn number(&mut self) -> Result<i64, Unreadable> {
        let rest = self.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let length = rest.len() - digits.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let number = rest[..length].parse().map_err(|_| self.wrong("an integer"))?;
        self.at += length;
        Ok(number)
    }

    /// `"text"` without its quotes.
    pub(crate) fn string(&mut self) -> Result<&'a str, Unreadable> {
        self.expect("\"")?;
        let rest = &self.text[self.at..];
        let mut is_escaped = false;
        let end = rest.find(|letter| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        });
        let end = end.ok_or_else(|| self.wrong("the end of a string"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    /// The text up to the bracket that closes the one just consumed, which is consumed, too.
    pub(crate) fn closed(&mut self, open: char, close: char) -> Result<&'a str, Unreadable> {
        let from = self.at;
        let mut depth = 1;
        while let Some(letter) = self.text[self.at..].chars().next() {
            if letter == '"' {
                self.string()?;
                continue;
            }
            self.at += letter.len_utf8();
            depth += i32::from(letter == open) - i32::from(letter == close);
            if depth == 0 {
                return Ok(&self.text[from..self.at - close.len_utf8()]);
            }
        }
        Err(self.wrong("a closing bracket"))
    }

    pub(crate) fn skip_line(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    /// Skips a source location.
    pub(crate) fn skip_location(&mut self) -> Result<(), Unreadable> {
        if self.eat("loc(") {
            self.closed('(', ')')?;
        }
        Ok(())
    }

    /// `key = value` pairs, if a dictionary comes next.
    pub(crate) fn attributes(&mut self) -> Result<Vec<(&'a str, &'a str)>, Unreadable> {
        if !self.eat("{") {
            return Ok(Vec::new());
        }
        let text = self.closed('{', '}')?;
        let mut found = Vec::new();
        let mut inner = Scanner::new(text);
        while !inner.rest().is_empty() {
            let key = if inner.sees("\"") { inner.string()? } else { inner.name() };
            let value = if inner.eat("=") { inner.until_comma()? } else { "" };
            found.push((key, value));
            if !inner.eat(",") && !inner.rest().is_empty() {
                return Err(inner.wrong(","));
            }
        }
        Ok(found)
    }

    /// The text up to a comma outside of brackets.
    fn until_comma(&mut self) -> Result<&'a str, Unreadable> {
        self.rest();
        let from = self.at;
        while let Some(letter) = self.text[self.at..].chars().next() {
            match letter {
                ',' => break,
                '"' => {
                    self.string()?;
                    continue;
                }
                _ => self.at += letter.len_utf8(),
            }
            for (open, close) in [('(', ')'), ('[', ']'), ('<', '>'), ('{', '}')] {
                if letter == open {
                    self.closed(open, close)?;
                }
            }
        }
        Ok(self.text[from..self.at].trim_end())
    }

    /// The next type, if there is one.
    pub(crate) fn maybe_type(&mut self) -> Result<Option<Type>, Unreadable> {
        let rest = self.rest();
        let scalar = rest.starts_with(['i', 'f', 'b', '!']) || rest.starts_with("tensor<") || rest.starts_with("index");
        let is_word = ["to ", "loc(", "into ", "from ", "iter_args"].iter().any(|word| rest.starts_with(word));
        if scalar && !is_word { self.a_type().map(Some) } else { Ok(None) }
    }

    pub(crate) fn a_type(&mut self) -> Result<Type, Unreadable> {
        if !self.eat("tensor<") {
            let (scalar, pointee) = self.scalar()?;
            return Ok(Type { scalar, pointee, shape: [].into() });
        }
        let mut shape = Vec::new();
        while self.rest().starts_with(|letter: char| letter.is_ascii_digit()) {
            shape.push(self.number()? as usize);
            self.expect("x")?;
        }
        let (scalar, pointee) = self.scalar()?;
        // Layouts matter only to later stages of the compiler.
        self.closed('<', '>')?;
        if shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).is_none_or(|all| all > MOST_ELEMENTS) {
            return Err(self.wrong("a tensor of at most 2^24 elements"));
        }
        Ok(Type { scalar, pointee, shape: shape.into() })
    }

    fn scalar(&mut self) -> Result<(Scalar, Option<Scalar>), Unreadable> {
        if self.eat("!tt.ptr<") {
            let (pointee, _) = self.scalar()?;
            self.closed('<', '>')?;
            return Ok((Scalar::Pointer, Some(pointee)));
        }
        if self.sees("!") {
            self.expect("!")?;
            return Err(Unreadable::Unknown(format!("type !{}", self.name())));
        }
        let name = self.take(|letter| letter.is_ascii_alphanumeric());
        let scalar = match name {
            "f8E4M3FN" => Scalar::F8E4M3,
            "f8E5M2" => Scalar::F8E5M2,
            "f16" => Scalar::F16,
            "bf16" => Scalar::BF16,
            "f32" => Scalar::F32,
            "f64" => Scalar::F64,
            "index" => Scalar::Int(64),
            _ => match name.strip_prefix('i').and_then(|bits| bits.parse().ok()) {
                Some(bits @ (1 | 8 | 16 | 32 | 64)) => Scalar::Int(bits),
                _ => return Err(Unreadable::Unknown(format!("type {name}"))),
            },
        };
        Ok((scalar, None))
    }
}

/// Largest number of elements of a tensor. Triton itself allows 2^20.
const MOST_ELEMENTS: usize = 1 << 24;

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '$' | '-')
}
