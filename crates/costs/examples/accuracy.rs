//! Prints the table of docs/devices.md: the error of each layer on the rows of the shipped database.
//!
//! `cargo run --release -p uniference-costs --example accuracy`

use uniference_costs::database::Databases;
use uniference_costs::model::accuracy::{errors, table};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", table(&errors(|| Databases::standard(None, None))?));
    Ok(())
}
