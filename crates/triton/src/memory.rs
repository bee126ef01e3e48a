//! Owns the memory that kernels access: memory of this process, parts of which have no values.
#![allow(unsafe_code)] // A kernel is given addresses.

use crate::value::{Data, Scalar};
use std::ops::Range;

/// A range of addresses in bytes.
pub type Span = Range<usize>;

/// The memory that a kernel reads and writes.
///
/// The values of `uncomputed` spans were not computed. After a program has read one, its writes make their targets
/// uncomputed, too.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    uncomputed: Vec<Span>,
    has_read: bool,
    pub(crate) written: Vec<Span>,
}

impl Memory {
    pub(crate) fn new(uncomputed: &[Span]) -> Memory {
        Memory { uncomputed: uncomputed.to_vec(), ..Memory::default() }
    }

    /// Begins another program of the grid, which has not read absent memory yet.
    pub(crate) fn begin(&mut self) {
        self.has_read = false;
    }

    /// Elements at these addresses if the mask is not 0; otherwise `other`. `None`: the lengths do not fit together.
    ///
    /// # Safety
    /// All addresses that are read belong to memory of this process.
    pub(crate) unsafe fn load(
        &mut self,
        pointers: &[i64],
        mask: Option<&[i64]>,
        other: Option<&Data>,
        scalar: Scalar,
    ) -> Option<Data> {
        let length = length(&[Some(pointers.len()), mask.map(<[i64]>::len), other.map(Data::len)])?;
        let is_on = |at: usize| mask.is_none_or(|mask| mask[of(mask.len(), at)] != 0);
        let pointer = |at: usize| pointers[of(pointers.len(), at)] as usize;
        self.reads((0..length).filter(|at| is_on(*at)).map(pointer), scalar);
        let one = |at: usize| match (is_on(at), other) {
            // SAFETY: addresses whose mask is not 0 belong to memory of this process, as `load` requires.
            (true, _) => unsafe { read(pointer(at), scalar) },
            (false, Some(other)) => other.bits(of(other.len(), at), scalar),
            (false, None) => 0,
        };
        Some(Data::from_bits((0..length).map(one), scalar))
    }

    /// Writes elements if the mask is not 0. `None`: the lengths do not fit together, and nothing was written.
    ///
    /// # Safety
    /// As for [`Memory::load`], and no other thread accesses the written memory.
    pub(crate) unsafe fn store(
        &mut self,
        pointers: &[i64],
        values: &Data,
        mask: Option<&[i64]>,
        scalar: Scalar,
    ) -> Option<()> {
        let length = length(&[Some(pointers.len()), Some(values.len()), mask.map(<[i64]>::len)])?;
        let is_on = |at: usize| mask.is_none_or(|mask| mask[of(mask.len(), at)] != 0);
        let pointer = |at: usize| pointers[of(pointers.len(), at)] as usize;
        for at in (0..length).filter(|at| is_on(*at)) {
            // SAFETY: addresses whose mask is not 0 belong to memory that no other thread accesses, as `store`
            // requires.
            unsafe { write(pointer(at), values.bits(of(values.len(), at), scalar), scalar) };
        }
        self.writes((0..length).filter(|at| is_on(*at)).map(pointer), scalar);
        Some(())
    }

    /// Reads element by element, writes the value that `change` returns, if any, and returns the values read.
    ///
    /// # Safety
    /// As for [`Memory::store`].
    pub(crate) unsafe fn modify(
        &mut self,
        pointers: &[i64],
        mask: Option<&[i64]>,
        scalar: Scalar,
        length: usize,
        change: impl Fn(usize, Data) -> Option<Option<Data>>,
    ) -> Option<Data> {
        let mut before = Vec::with_capacity(length);
        for at in 0..length {
            if mask.is_some_and(|mask| mask[of(mask.len(), at)] == 0) {
                before.push(0);
                continue;
            }
            let pointer = pointers[of(pointers.len(), at)] as usize;
            self.reads(std::iter::once(pointer), scalar);
            // SAFETY: the address belongs to memory of this process, as `modify` requires.
            let found = unsafe { read(pointer, scalar) };
            before.push(found);
            if let Some(value) = change(at, Data::from_bits(std::iter::once(found), scalar))? {
                // SAFETY: no other thread accesses the memory at the address, as `modify` requires.
                unsafe { write(pointer, value.bits(0, scalar), scalar) };
                self.writes(std::iter::once(pointer), scalar);
            }
        }
        Some(Data::from_bits(before.into_iter(), scalar))
    }

    fn reads(&mut self, addresses: impl Iterator<Item = usize>, scalar: Scalar) {
        if self.has_read || self.uncomputed.is_empty() {
            return;
        }
        let meets = |address: usize| {
            self.uncomputed
                .iter()
                .any(|uncomputed| address < uncomputed.end && address + scalar.bytes() > uncomputed.start)
        };
        self.has_read = addresses.into_iter().any(meets);
    }

    fn writes(&mut self, addresses: impl Iterator<Item = usize> + Clone, scalar: Scalar) {
        if !self.has_read {
            return;
        }
        let (Some(first), Some(last)) = (addresses.clone().min(), addresses.max()) else { return };
        let span = first..last + scalar.bytes();
        // Later programs may read the span.
        if !self.uncomputed.iter().any(|known| known.start <= span.start && span.end <= known.end) {
            self.uncomputed.push(span.clone());
        }
        self.written.push(span);
    }
}

/// Index of an element in data of this length; a single element stands for all.
#[inline]
fn of(length: usize, at: usize) -> usize {
    if length == 1 { 0 } else { at }
}

/// The common length of operands, after broadcasting length 1; `None`: the lengths do not fit together.
pub(crate) fn length(lengths: &[Option<usize>]) -> Option<usize> {
    let longest = lengths.iter().flatten().copied().max()?;
    lengths.iter().flatten().all(|length| *length == longest || *length == 1).then_some(longest)
}

/// # Safety
/// `scalar.bytes()` bytes at the address belong to memory of this process.
#[inline]
unsafe fn read(address: usize, scalar: Scalar) -> u64 {
    // SAFETY: each branch reads `scalar.bytes()` bytes, which need no alignment.
    unsafe {
        match scalar.bytes() {
            1 => u64::from((address as *const u8).read_unaligned()),
            2 => u64::from((address as *const u16).read_unaligned()),
            4 => u64::from((address as *const u32).read_unaligned()),
            _ => (address as *const u64).read_unaligned(),
        }
    }
}

/// # Safety
/// `scalar.bytes()` bytes at the address belong to memory of this process that no other thread accesses.
#[inline]
unsafe fn write(address: usize, bits: u64, scalar: Scalar) {
    // SAFETY: each branch writes `scalar.bytes()` bytes, which need no alignment.
    unsafe {
        match scalar.bytes() {
            1 => (address as *mut u8).write_unaligned(bits as u8),
            2 => (address as *mut u16).write_unaligned(bits as u16),
            4 => (address as *mut u32).write_unaligned(bits as u32),
            _ => (address as *mut u64).write_unaligned(bits),
        }
    }
}
