//! Owns the command as a program of its own, as `cargo install` makes it: without Python, so it replays and generates, and starts no programs.

use std::env::args_os;
use std::process::exit;

fn main() {
    exit(uniference_cli::main(args_os().collect(), None));
}
