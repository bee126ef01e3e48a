//! Owns the stand-alone command of `cargo install`: without Python, it replays and generates, and starts no programs.

use std::env::args_os;
use std::process::exit;

fn main() {
    exit(uniference_cli::main(args_os().collect(), None));
}
