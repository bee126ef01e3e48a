//! The command line.
/// Runs it.
pub fn main(_argv: Vec<String>) -> i32 {
    2
}
