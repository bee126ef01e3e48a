//! Owns the names of a rank's operations (the rank's own handles and the engine's), and which of them are released.

use std::collections::{BTreeMap, BTreeSet};
use uniference_protocol::messages::LocalHandle;
use uniference_sim::ids::{Handle, RankId};

/// The operations of one rank. A thread may wait for an operation that another thread has just released.
#[derive(Default)]
pub(super) struct Handles {
    /// The engine's handles, by the rank's own handles.
    names: BTreeMap<LocalHandle, Handle>,
    /// The inverse of `names`.
    called: BTreeMap<Handle, LocalHandle>,
    /// The highest engine handle of all operations.
    newest: Option<Handle>,
    /// All operations below this handle are released.
    released_below: LocalHandle,
    /// Released operations at or above `released_below`.
    released: BTreeSet<LocalHandle>,
    /// Operations whose failure was reported to a wait for the device, with the rank that closed the connection. Later
    /// waits for these operations get the same failure.
    failed: BTreeMap<Handle, RankId>,
}

impl Handles {
    pub(super) fn issued(&mut self, handle: LocalHandle, name: Handle) {
        self.names.insert(handle, name);
        self.called.insert(name, handle);
        self.newest = self.newest.max(Some(name));
    }

    /// Releases an operation; its name, if the rank has issued it and not released it before.
    pub(super) fn release(&mut self, handle: LocalHandle) -> Option<Handle> {
        let name = self.names.remove(&handle)?;
        self.called.remove(&name);
        self.failed.remove(&name);
        self.released.insert(handle);
        while self.released.remove(&self.released_below) {
            self.released_below += 1;
        }
        Some(name)
    }

    pub(super) fn is_released(&self, handle: LocalHandle) -> bool {
        handle < self.released_below || self.released.contains(&handle)
    }

    /// The engine's handle of an operation that is not released.
    pub(super) fn name(&self, handle: LocalHandle) -> Option<Handle> {
        self.names.get(&handle).copied()
    }

    /// The rank's own handle of an operation that is not released.
    pub(super) fn own(&self, name: Handle) -> Option<LocalHandle> {
        self.called.get(&name).copied()
    }

    /// Whether the engine has told the handle: it may have started an operation before it answers the issue.
    pub(super) fn is_told(&self, name: Handle) -> bool {
        Some(name) <= self.newest
    }

    /// Keeps failures that a wait for the device has met.
    pub(super) fn fail(&mut self, failed: Vec<(Handle, RankId)>) {
        self.failed.extend(failed.into_iter().filter(|(name, _)| self.called.contains_key(name)));
    }

    /// The rank that closed the connection of an operation, if a wait for the device has met the failure.
    pub(super) fn failure(&self, name: Handle) -> Option<RankId> {
        self.failed.get(&name).copied()
    }
}
