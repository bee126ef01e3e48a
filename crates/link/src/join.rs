//! Owns how a worker comes to a driver.

use crate::handshake::{self, Failure, PATIENCE, Refusal};
use crate::stream::{Receiver, Stream};
use crate::token::Token;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use uniference_protocol::hello::{Disagreement, Hello};

/// Why a worker is not part of a run.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody takes it there just now; it may try again.
    #[error("{0}")]
    Unavailable(io::Error),
    /// The run does not wait for it just now; it may try again.
    #[error("{0}")]
    Unwanted(Refusal),
    /// The driver has refused it.
    #[error("the driver at {address} refuses worker {name}: {why}\nhint: {hint}")]
    Refused {
        /// The driver's address.
        address: String,
        /// The worker's name.
        name: String,
        /// The driver's reason.
        why: Refusal,
        /// What to do.
        hint: &'static str,
    },
    /// It is of another version, or machines differ too much.
    #[error("cannot work with the driver at {address}: {why}")]
    Disagreement {
        /// The driver's address.
        address: String,
        /// What differs.
        why: Disagreement,
    },
    /// Who listens there does not know the token, or is something else.
    #[error("who listens at {address} is no driver of this run: {why}\nhint: check the address and the token file")]
    Imposter {
        /// The address that was connected to.
        address: String,
        /// What went wrong in the handshake.
        why: String,
    },
}

/// Connects to the driver that listens at `address` (`HOST:PORT`).
///
/// # Errors
/// See [`JoinError`].
pub fn join(address: &str, token: &Token, name: &str) -> Result<(Arc<Stream>, Receiver), JoinError> {
    join_as(address, token, name, Hello::new(false))
}

pub(crate) fn join_as(
    address: &str,
    token: &Token,
    name: &str,
    ours: Hello,
) -> Result<(Arc<Stream>, Receiver), JoinError> {
    let socket = connect(address).map_err(JoinError::Unavailable)?;
    let address = address.to_owned();
    handshake::claim(socket, token, ours, name).map_err(|failure| match failure {
        Failure::Io(error) => JoinError::Unavailable(error),
        Failure::Refused(why @ Refusal::Unknown) => JoinError::Unwanted(why),
        Failure::Refused(why) => {
            let hint = match why {
                Refusal::Token => "give both sides the same token file",
                _ => "give each worker a name of its own",
            };
            JoinError::Refused { address, name: name.to_owned(), why, hint }
        }
        Failure::Disagreement(why) => JoinError::Disagreement { address, why },
        other @ (Failure::Stranger | Failure::DriverProof) => JoinError::Imposter { address, why: other.to_string() },
    })
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
