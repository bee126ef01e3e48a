//! Owns reports of functions that are not implemented: each is named once, in the rank's log and the run's warnings,
//! and returns its library's own error. The functions themselves are in [`crate::missing`].

use crate::attach;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Reports once that the program called a function that is not implemented.
pub(crate) fn report(library: &str, symbol: &str) {
    warn(&format!("{library}: {symbol} is not implemented for simulated GPUs; the program got an error"));
}

/// Prints a warning once per process.
pub(crate) fn warn(text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned());
    match attach::link() {
        _ if !is_new => {}
        // SAFETY: the pointer and the length are those of `text`, which outlives the call.
        Some(link) => unsafe { (link.warn)(text.as_ptr(), text.len()) },
        None => eprintln!("uniference: warning: {text}"),
    }
}
