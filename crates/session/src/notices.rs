//! Owns how the user hears of something while a simulation is carried out; who shows it is the caller's business.

use std::sync::Arc;

/// Hears what the user should know while a simulation is carried out: texts of whole lines, such as `warning: ...`.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(&str) + Send + Sync>);

impl Notices {
    /// Tells `hear` each.
    pub fn to(hear: impl Fn(&str) + Send + Sync + 'static) -> Notices {
        Notices(Arc::new(hear))
    }

    /// Tells nobody.
    pub fn ignored() -> Notices {
        Notices::to(|_| {})
    }

    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    pub(crate) fn say(&self, text: &str) {
        (self.0)(&format!("{text}\n"));
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notices")
    }
}
