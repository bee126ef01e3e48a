//! Owns a worker's connection to a driver: connect, handshake, and the reasons why it fails.

use crate::handshake::{self, Failure, PATIENCE, Refusal};
use crate::stream::{Receiver, Stream};
use crate::token::Token;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use uniference_protocol::hello::{Disagreement, Hello};

/// Reason why a worker cannot join a run.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No driver accepts the connection at the moment; the worker may try again.
    #[error("{0}")]
    Unavailable(io::Error),
    /// The run does not wait for this worker at the moment; the worker may try again.
    #[error("{0}")]
    Unwanted(Refusal),
    /// The driver has refused the worker.
    #[error("the driver at {address} refuses worker {name}: {why}\nhint: {hint}")]
    Refused {
        /// The driver's address.
        address: String,
        /// The worker's name.
        name: String,
        /// The driver's reason.
        why: Refusal,
        /// Advice to the user.
        hint: &'static str,
    },
    /// The worker has another version than the driver, or their machines differ too much.
    #[error("cannot work with the driver at {address}: {why}")]
    Disagreement {
        /// The driver's address.
        address: String,
        /// The difference.
        why: Disagreement,
    },
    /// The listener at the address does not know the token, or is not a driver.
    #[error("who listens at {address} is no driver of this run: {why}\nhint: check the address and the token file")]
    Imposter {
        /// The address that was connected to.
        address: String,
        /// The failure of the handshake.
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
