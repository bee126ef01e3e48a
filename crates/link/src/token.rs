//! Owns the secret that both sides of a connection know, and the proof that a side knows it.

use ring::{digest, hmac};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Least length of a token: a shorter token can be guessed from a recorded proof.
const SHORTEST: usize = 16;

/// Largest length of a token file; longer files are no token files.
const LONGEST: u64 = 4096;

/// Length of a proof, in bytes.
pub(crate) const PROOF: usize = digest::SHA256_OUTPUT_LEN;

/// Side that proves that it knows the token: a driver's proof is not valid as a worker's, nor the reverse.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Driver,
    Worker,
}

/// A secret of at least 16 bytes.
#[derive(Clone)]
pub struct Token(hmac::Key);

/// A token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "cannot read the token file {path}: {source}\nhint: give the path of a file that contains the same token on both machines"
    )]
    File {
        /// The path of the token file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is too short or too long.
    #[error(
        "the token file {path} contains {bytes} bytes; a token has 16 to 4096\nhint: write a random one: head -c 32 /dev/urandom | base64 > {path}"
    )]
    Length {
        /// The path of the token file.
        path: String,
        /// Length of the token in bytes, without white space around it.
        bytes: usize,
    },
}

impl Token {
    /// Reads the token from a file; white space around it does not count.
    ///
    /// # Errors
    /// A file that cannot be read, or holds fewer than 16 or more than 4096 bytes.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let shown = || path.display().to_string();
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
        read.map_err(|source| TokenError::File { path: shown(), source })?;
        let secret = bytes.trim_ascii();
        if secret.len() < SHORTEST || bytes.len() as u64 > LONGEST {
            return Err(TokenError::Length { path: shown(), bytes: secret.len() });
        }
        Ok(Token::new(secret))
    }

    /// A token whose secret is `secret`, unchanged.
    pub fn new(secret: &[u8]) -> Token {
        Token(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// HMAC-SHA-256 of the side, the connection's `binding`, and the side's statement about itself.
    pub(crate) fn prove(&self, side: Side, binding: &[u8], said: &[u8]) -> [u8; PROOF] {
        let tag = hmac::sign(&self.0, &message(side, binding, said));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Whether `proof` equals the proof that [`Token::prove`] makes, compared in constant time.
    pub(crate) fn verify(&self, side: Side, binding: &[u8], said: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &message(side, binding, said), proof).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The binding has a fixed length, so that `said` cannot be mistaken for a part of the binding.
fn message(side: Side, binding: &[u8], said: &[u8]) -> Vec<u8> {
    let side: &[u8] = match side {
        Side::Driver => b"driver",
        Side::Worker => b"worker",
    };
    [side, binding, said].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_side_connection_and_name() {
        let (token, other) = (Token::new(b"0123456789abcdef"), Token::new(b"0123456789abcdeg"));
        let proof = token.prove(Side::Worker, &[1; 32], b"a");
        assert!(token.verify(Side::Worker, &[1; 32], b"a", &proof));
        assert!(!other.verify(Side::Worker, &[1; 32], b"a", &proof));
        assert!(!token.verify(Side::Driver, &[1; 32], b"a", &proof));
        assert!(!token.verify(Side::Worker, &[2; 32], b"a", &proof));
        assert!(!token.verify(Side::Worker, &[1; 32], b"b", &proof));
        assert!(!token.verify(Side::Worker, &[1; 32], b"a", &proof[..31]));
    }

    #[test]
    fn files_that_hold_no_token_are_refused_with_a_hint() {
        let folder = std::env::temp_dir().join(format!("uniference-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let written = |text: &str| {
            let path = folder.join("token");
            std::fs::write(&path, text).unwrap();
            Token::read(&path).map_err(|error| error.to_string())
        };
        let proof = |token: Token| token.prove(Side::Worker, &[0; 32], b"");
        assert_eq!(proof(written(" 0123456789abcdef\n").unwrap()), proof(Token::new(b"0123456789abcdef")));
        for text in ["", "0123456789abcde\n", &"x".repeat(5000)] {
            let error = written(text).unwrap_err();
            assert!(error.contains("16 to 4096") && error.contains("\nhint: "), "{error}");
        }
        let error = Token::read(&folder.join("missing")).unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("\nhint: "), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
