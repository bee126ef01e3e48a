//! Owns the notices to the user during a simulation; the caller shows them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use uniference_sim::time::SimTime;

type Hear = Arc<dyn Fn(&str) + Send + Sync>;
type Watch = Arc<dyn Fn(SimTime, u64) + Send + Sync>;

/// Receives notices to the user during a simulation: whole lines, such as `warning: ...`.
#[derive(Clone)]
pub struct Notices {
    hear: Hear,
    watch: Option<Watch>,
    /// Texts passed to [`Notices::say_once`], shared by all copies.
    said: Arc<Mutex<BTreeSet<String>>>,
}

impl Notices {
    /// Passes each notice to `hear`.
    pub fn to(hear: impl Fn(&str) + Send + Sync + 'static) -> Notices {
        Notices { hear: Arc::new(hear), watch: None, said: Arc::default() }
    }

    /// Discards all notices.
    pub fn ignored() -> Notices {
        Notices::to(|_| {})
    }

    /// The same notices with a progress function: every few thousand events `watch` receives the virtual time and the
    /// number of completed process group operations, counted per member. A panic in `watch` ends the simulation.
    #[must_use]
    pub fn with_progress(self, watch: impl Fn(SimTime, u64) + Send + Sync + 'static) -> Notices {
        Notices { watch: Some(Arc::new(watch)), ..self }
    }

    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    pub(crate) fn say(&self, text: &str) {
        (self.hear)(&format!("{text}\n"));
    }

    /// Passes a text on unless it was said before, for notices that several simulations share.
    pub(crate) fn say_once(&self, text: &str) {
        if self.said.lock().expect("nobody panics who holds it").insert(text.to_owned()) {
            self.say(text);
        }
    }

    pub(crate) fn progressed(&self, at: SimTime, operations: u64) {
        if let Some(watch) = &self.watch {
            watch(at, operations);
        }
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notices")
    }
}
