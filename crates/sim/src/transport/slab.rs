//! Owns a container of values that are identified by small integers, which are reused.

use std::collections::BTreeSet;

/// Values by number. A number is free again once its value is removed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { values: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn keep(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.values[number as usize] = value;
                number
            }
            None => {
                self.values.push(value);
                (self.values.len() - 1) as u32
            }
        }
    }

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.values[number as usize]
    }

    /// Every value and its number, in order of numbers. The cost grows with the largest number of values that were ever
    /// kept at once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let free: BTreeSet<u32> = self.free.iter().copied().collect();
        (0..).zip(&self.values).filter(move |(number, _)| !free.contains(number))
    }

    /// Returns the value with this number, and frees the number.
    pub(crate) fn take(&mut self, number: u32) -> T {
        self.free.push(number);
        self.values[number as usize]
    }
}
