//! replay
use crate::error::{Exit, HostError};
/// replay
#[derive(clap::Args)]
pub(super) struct Args {}
pub(super) fn replay(_a: &Args, _argv: &[String]) -> Result<Exit, HostError> {
    Ok(Exit::Ok)
}
