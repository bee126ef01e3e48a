//! Owns the repair of profiles that are not valid JSON, on their way to the parser: non-finite numbers, in any of their
//! spellings (pytorch/kineto#105 writes a bare `inf`), become `null`; a byte-order mark is removed; control characters
//! and invalid UTF-8 inside of strings are replaced by valid JSON.
//!
//! Only words outside of strings and single bytes inside of strings are changed. All other invalid JSON remains an
//! error; its column may be off by the repairs before it in that line.

use std::io::{self, BufRead, Read};

/// Spellings of non-finite numbers, without a sign.
const NOT_FINITE: [&[u8]; 5] = [b"nan", b"NaN", b"inf", b"Infinity", b"infinity"];

/// The maximum length of a word that is compared with [`NOT_FINITE`].
const LONGEST_WORD: usize = 16;

/// A reader that repairs the JSON of `input` as described above.
pub(super) struct Lenient<R> {
    input: R,
    /// Repaired bytes that are ready for the caller, and in `given` the number of them that were passed on.
    ready: Vec<u8>,
    given: usize,
    /// First bytes of a UTF-8 character whose other bytes have not been read.
    begun: Vec<u8>,
    /// Letters and signs of a word outside of strings, kept until the word is known to be in [`NOT_FINITE`] or not.
    word: Vec<u8>,
    context: JsonContext,
    started: bool,
    ended: bool,
}

/// Context of a byte in the JSON text.
#[derive(Clone, Copy, PartialEq)]
enum JsonContext {
    /// Outside of strings.
    Outside,
    String,
    /// Inside of a string, after a backslash.
    Escape,
}

impl<R: BufRead> Lenient<R> {
    pub(super) fn new(input: R) -> Lenient<R> {
        Lenient {
            input,
            ready: Vec::new(),
            given: 0,
            begun: Vec::new(),
            word: Vec::new(),
            context: JsonContext::Outside,
            started: false,
            ended: false,
        }
    }

    /// Repairs the next bytes of the input, if there are any.
    fn repair_next_chunk(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.given = 0;
        let piece = self.input.fill_buf()?;
        let (read, mut bytes) = (piece.len(), std::mem::take(&mut self.begun));
        bytes.extend_from_slice(piece);
        self.input.consume(read);
        if read == 0 {
            self.ended = true;
            self.repair_text(&String::from_utf8_lossy(&bytes));
            self.end_word();
            return Ok(());
        }
        if !self.started && bytes.len() >= 3 {
            self.started = true;
            if bytes.starts_with("\u{feff}".as_bytes()) {
                bytes.drain(..3);
            }
        } else if !self.started {
            self.begun = bytes;
            return Ok(());
        }
        let mut rest = &bytes[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.repair_text(text);
                    return Ok(());
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.repair_text(std::str::from_utf8(valid).expect("it was just found to be"));
                    let Some(invalid) = error.error_len() else {
                        self.begun = after.to_vec();
                        return Ok(());
                    };
                    self.repair_text("\u{fffd}");
                    rest = &after[invalid..];
                }
            }
        }
    }

    fn repair_text(&mut self, text: &str) {
        for byte in text.bytes() {
            match (self.context, byte) {
                (JsonContext::Outside, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'+' | b'.')
                    if self.word.len() < LONGEST_WORD =>
                {
                    self.word.push(byte);
                }
                (JsonContext::Outside, _) => {
                    self.end_word();
                    self.ready.push(byte);
                    if byte == b'"' {
                        self.context = JsonContext::String;
                    }
                }
                (JsonContext::String, 0..0x20) => self.ready.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                (JsonContext::String, b'"') => {
                    self.ready.push(byte);
                    self.context = JsonContext::Outside;
                }
                (JsonContext::String, b'\\') => {
                    self.ready.push(byte);
                    self.context = JsonContext::Escape;
                }
                (JsonContext::String, _) => self.ready.push(byte),
                (JsonContext::Escape, _) => {
                    self.ready.push(byte);
                    self.context = JsonContext::String;
                }
            }
        }
    }

    fn end_word(&mut self) {
        let letters = self.word.strip_prefix(b"-").unwrap_or(&self.word);
        match NOT_FINITE.contains(&letters) {
            true => self.ready.extend_from_slice(b"null"),
            false => self.ready.extend_from_slice(&self.word),
        }
        self.word.clear();
    }
}

impl<R: BufRead> Read for Lenient<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() && !self.ended {
            self.repair_next_chunk()?;
        }
        let count = buffer.len().min(self.ready.len() - self.given);
        buffer[..count].copy_from_slice(&self.ready[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// The repaired text of `bytes`; the text does not depend on the size of the chunks in which `bytes` are read.
    fn read(bytes: &[u8]) -> String {
        let of = |size: usize| {
            let mut text = String::new();
            Lenient::new(BufReader::with_capacity(size, bytes)).read_to_string(&mut text).unwrap();
            text
        };
        let whole = of(1 << 16);
        for size in 1..9 {
            assert_eq!(of(size), whole, "{size}");
        }
        whole
    }

    #[test]
    fn json_stays_as_it_is() {
        let text = "{\"a\": [1, -2.5e+10, true, null, \"NaN inf \\\" \\u0001 ü 🎉\"], \"b\": -0.1}\n";
        assert_eq!(read(text.as_bytes()), text);
    }

    #[test]
    fn numbers_that_are_not_finite_become_null_and_texts_become_whole() {
        assert_eq!(read(b"[NaN,-Infinity, inf ,nan,-inf]"), "[null,null, null ,null,null]");
        assert_eq!(read(b"\xef\xbb\xbf{\"a\": inf}"), "{\"a\": null}");
        assert_eq!(read(b"[\"a\x01b\xe9c\", inf]"), "[\"a\\u0001b\u{fffd}c\", null]");
        // Other invalid JSON is left to the parser.
        assert_eq!(read(b"[infinite, +inf, 1inf]"), "[infinite, +inf, 1inf]");
    }
}
