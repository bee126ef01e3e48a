//! Owns access to the arguments of an extension's operator by their names in its schema.
//!
//! Other versions of an extension add, remove and reorder arguments. An operator whose schema lacks a name is not
//! described, rather than read by the positions of another version.

use super::super::call::Call;
use super::stacks;
use std::cell::Cell;
use uniference_formats::operators::{Argument, Tensor};

/// A call of an extension's operator.
pub(super) struct Arguments<'a> {
    pub(super) call: Call<'a>,
    /// Names in the order of the schema.
    names: Vec<&'a str>,
    missing: Cell<Option<&'static str>>,
}

impl<'a> Arguments<'a> {
    /// The arguments of a call: by the names that were recorded with it, or by the schema of the checked version.
    pub(super) fn of(call: Call<'a>) -> Option<Arguments<'a>> {
        let names = match call.definition.argument_names() {
            Some(names) => names.collect(),
            None => stacks::schema(&call.definition.name)?,
        };
        Some(Arguments { call, names, missing: Cell::new(None) })
    }

    /// The first name that was asked for and that the schema lacks.
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.missing.get()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// The first of these names that the schema has, else the first name: versions and packages name an argument
    /// differently.
    pub(super) fn either(&self, names: &[&'static str]) -> &'static str {
        names.iter().find(|name| self.has(name)).unwrap_or(&names[0])
    }

    /// Position of an argument.
    pub(super) fn place(&self, name: &'static str) -> Option<usize> {
        let place = self.names.iter().position(|given| *given == name);
        if place.is_none() && self.missing.get().is_none() {
            self.missing.set(Some(name));
        }
        place
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&'a Argument> {
        self.call.argument(self.place(name)?)
    }

    /// A tensor; `None`: the call has none at this argument, or the schema lacks it.
    pub(super) fn tensor(&self, name: &'static str) -> Option<&'a Tensor> {
        self.call.tensor(self.place(name)?)
    }

    pub(super) fn tensors(&self, names: &[&'static str]) -> Vec<Option<&'a Tensor>> {
        names.iter().map(|name| self.tensor(name)).collect()
    }

    pub(super) fn int(&self, name: &'static str) -> Option<i64> {
        self.call.int(self.place(name)?)
    }

    pub(super) fn size(&self, name: &'static str) -> Option<u64> {
        u64::try_from(self.int(name)?).ok()
    }

    pub(super) fn flag(&self, name: &'static str) -> bool {
        self.place(name).is_some_and(|place| self.call.flag(place))
    }
}
