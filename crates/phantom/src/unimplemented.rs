//! Owns what is said of functions that are not implemented: their library's own error is returned, and each is named once, in the rank's log
//! and the run's warnings. The functions themselves are in [`crate::missing`].

use crate::attach;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Says once that the program has called a function which is not implemented. The caller then returns its library's error.
pub(crate) fn report(library: &str, symbol: &str) {
    warn(&format!("{library}: {symbol} is not implemented for simulated GPUs; the program got an error"));
}

/// Says a thing once in the life of the process.
pub(crate) fn warn(text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned());
    match attach::link() {
        _ if !is_new => {}
        // SAFETY: the text is there during the call.
        Some(link) => unsafe { (link.warn)(text.as_ptr(), text.len()) },
        None => eprintln!("uniference: warning: {text}"),
    }
}
