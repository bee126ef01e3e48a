//! Owns data movement between a program's memory and the arena: copies, and element-wise reductions whose loop gives
//! torch's bits.
//!
//! `uniference-lowering` decides which bytes are moved (`data`), and `uniference-sim` the order of reductions
//! (`collective::fold`).

// Tensors and the arena are raw memory: other processes write to it, so no Rust reference to it may exist. Everything
// else in live ranks goes through the checked functions of this module.
#![allow(unsafe_code)]

use crate::messages::{Fetched, Offset, OutputPart};
use memmap2::MmapRaw;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uniference_sim::program::{DType, ReduceOp};

/// Size from which writes bypass the caches: data of this size is evicted before it is read back.
const STREAMED: usize = 8 << 20;

/// Buffer size of reductions, in bytes; the buffer stays in the L1 cache.
const BLOCK: usize = 4096;

/// A piece of the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    address: usize,
    bytes: usize,
}

impl Region {
    /// The memory at `address`.
    ///
    /// # Safety
    /// The memory stays valid and unused by other code until the call that receives the region has returned.
    pub unsafe fn new(address: usize, bytes: usize) -> Region {
        Region { address, bytes }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Appends the region's bytes to `buffer`.
    pub fn append_to(&self, buffer: &mut Vec<u8>) {
        let start = buffer.len();
        buffer.resize(start + self.bytes, 0);
        // SAFETY: the region is valid, and `buffer` has room for it.
        unsafe { std::ptr::copy_nonoverlapping(self.address as *const u8, buffer[start..].as_mut_ptr(), self.bytes) };
    }

    /// Copies `data` to the memory.
    ///
    /// # Panics
    /// If `data` has another size.
    pub fn fill(&self, data: &[u8]) {
        assert_eq!(data.len(), self.bytes, "data of another size");
        // SAFETY: the region is valid, and as long as `data`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.address as *mut u8, self.bytes) };
    }
}

/// Access to tensors' data for the driver and the other ranks: offsets are in the run's one arena.
pub trait Tensors: Send + Sync {
    /// Copies `inputs`, one after the other, to `at`.
    ///
    /// # Errors
    /// If the arena is no longer reachable.
    fn write(&self, at: Offset, inputs: &[Region]) -> io::Result<()>;

    /// Fills `outputs`, one after the other, with an operation's pieces: the borders of pieces and outputs need not
    /// coincide.
    ///
    /// # Errors
    /// If the arena is no longer reachable.
    ///
    /// # Panics
    /// If pieces and outputs differ in their total size.
    fn read(&self, fetched: &Fetched, outputs: &[Region]) -> io::Result<()>;

    /// Carries out an operation's folds, in order.
    ///
    /// # Errors
    /// If the arena is no longer reachable.
    ///
    /// # Panics
    /// If [`Kernel`] cannot combine the operation's elements.
    fn fold(&self, fetched: &Fetched) -> io::Result<()>;

    /// Frees the memory of bytes that are no longer needed.
    fn forget(&self, at: Offset, bytes: u64);

    /// Address and size of the arena, if it is mapped into this process.
    fn mapped(&self) -> Option<(*mut u8, usize)>;

    /// The arena's file, if this process has it.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The mapped arena.
#[derive(Clone, Debug)]
pub struct Window(Arc<MmapRaw>);

impl Window {
    /// A window that keeps the mapping `map`.
    pub fn new(map: MmapRaw) -> Window {
        Window(Arc::new(map))
    }

    /// Address and size of the mapping.
    pub fn raw(&self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }

    /// Copies `inputs`, one after the other, to `at`.
    pub fn write(&self, mut at: Offset, inputs: &[Region]) {
        for input in inputs {
            // SAFETY: the destination is inside the mapping, the region valid.
            unsafe { copy(self.at(at, input.bytes()), input.address as *const u8, input.bytes) };
            at += input.bytes();
        }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If they are not all inside the arena.
    pub fn store(&self, at: Offset, bytes: &[u8]) {
        // SAFETY: the bytes are lent for the whole call, and only read.
        self.write(at, &[unsafe { Region::new(bytes.as_ptr() as usize, bytes.len()) }]);
    }

    /// Replaces the contents of `buffer` by `pieces`; `kernel` combines pieces with two operands.
    pub fn load(&self, pieces: &[OutputPart], kernel: Option<Kernel>, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.resize(pieces.iter().map(|piece| piece.bytes as usize).sum(), 0);
        // SAFETY: the buffer is lent for the whole call.
        self.read(pieces, &[unsafe { Region::new(buffer.as_mut_ptr() as usize, buffer.len()) }], kernel);
    }

    /// Fills `outputs`, one after the other, with `pieces`: their borders need not coincide. `kernel` combines pieces
    /// with two operands.
    ///
    /// # Panics
    /// If pieces and outputs differ in their total size.
    pub fn read(&self, pieces: &[OutputPart], outputs: &[Region], kernel: Option<Kernel>) {
        let mut pieces = pieces.iter();
        let mut piece = OutputPart::default();
        for output in outputs {
            let (mut address, mut wanted) = (output.address as *mut u8, output.bytes);
            while wanted > 0 {
                if piece.bytes == 0 {
                    piece = *pieces.next().expect("as much data as output");
                    continue;
                }
                let count = wanted.min(piece.bytes as usize);
                self.read_piece(&piece, address, count, kernel);
                piece.skip(count as u64);
                address = address.wrapping_add(count);
                wanted -= count;
            }
        }
        assert!(piece.bytes == 0 && pieces.all(|rest| rest.bytes == 0), "more data than output");
    }

    fn read_piece(&self, piece: &OutputPart, to: *mut u8, bytes: usize, kernel: Option<Kernel>) {
        let from = self.at(piece.offset, bytes as u64);
        match piece.other {
            // SAFETY: `to` has room for the remaining bytes of its region.
            None => unsafe { copy(to, from, bytes) },
            Some(other) => {
                let kernel = kernel.expect("two operands are combined by a kernel");
                let mut block = [0_u64; BLOCK / 8];
                for start in (0..bytes).step_by(BLOCK) {
                    let count = BLOCK.min(bytes - start);
                    // SAFETY: both operands are ranges of the arena, the block has room, and `to` as above.
                    unsafe {
                        let block = block.as_mut_ptr().cast();
                        kernel.0(block, from.add(start), self.at(other, bytes as u64).add(start), count);
                        copy_part(to.add(start), block, count, bytes);
                    }
                }
                finish_streaming(bytes);
            }
        }
    }

    /// Carries out `folds` (destination, source, bytes), in order: destination = destination op source.
    pub fn fold(&self, folds: &[(Offset, Offset, u64)], kernel: Kernel) {
        for (into, other, bytes) in folds {
            let into = self.at(*into, *bytes);
            // SAFETY: `at` has checked that both ranges lie in the arena; a kernel may write to its first operand.
            unsafe { kernel.0(into, into, self.at(*other, *bytes), *bytes as usize) };
        }
    }

    /// Copies `bytes` from one block to another.
    pub fn copy(&self, from: Offset, to: Offset, bytes: u64) {
        // SAFETY: `at` has checked that both ranges lie in the arena, and blocks do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.at(from, bytes), self.at(to, bytes), bytes as usize) };
    }

    /// Checksum of a range: FNV-1a, 64 bits (Fowler, Noll, Vo).
    pub fn checksum(&self, at: Offset, bytes: u64) -> u64 {
        let start = self.at(at, bytes);
        // SAFETY: `at` has checked that the range lies in the arena, and `index` is within it.
        let byte = |index: usize| unsafe { start.add(index).read_volatile() };
        (0..bytes as usize).fold(0xcbf2_9ce4_8422_2325, |sum: u64, index| {
            (sum ^ u64::from(byte(index))).wrapping_mul(0x0100_0000_01b3)
        })
    }

    fn at(&self, offset: Offset, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes);
        let (base, len) = self.raw();
        assert!(end.is_some_and(|end| end <= len as u64), "{bytes} bytes at {offset} are not in the arena");
        base.wrapping_add(offset as usize)
    }
}

/// Loop over (out, a, b, bytes): out = a op b by elements, all aligned to the element size. `out` may be `a`.
type Loop = unsafe fn(*mut u8, *const u8, *const u8, usize);

/// Element-wise combination of two ranges of the arena.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Loop);

macro_rules! elementwise {
    ($element:ty, $op:expr) => {{
        unsafe fn run(out: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
            let (out, a, b) = (out.cast::<$element>(), a.cast::<$element>(), b.cast::<$element>());
            for i in 0..bytes / size_of::<$element>() {
                // SAFETY: the caller passes aligned ranges of `bytes` bytes.
                unsafe { *out.add(i) = $op(*a.add(i), *b.add(i)) };
            }
        }
        run as Loop
    }};
}

/// Loops on unsigned integers, whose bits are the same for signed ones.
macro_rules! integer {
    ($size:expr, $op:ident) => {
        match $size {
            1 => elementwise!(u8, |a: u8, b: u8| a.$op(b)),
            2 => elementwise!(u16, |a: u16, b: u16| a.$op(b)),
            4 => elementwise!(u32, |a: u32, b: u32| a.$op(b)),
            _ => elementwise!(u64, |a: u64, b: u64| a.$op(b)),
        }
    };
}

impl Kernel {
    /// The loop that gives the bits of torch's kernel, where IEEE 754 or modular arithmetic determine them. `None`:
    /// torch's own kernel is needed, for narrow floats (when it rounds), complex numbers (how it multiplies), bools,
    /// and extrema (of zeros and NaNs).
    pub fn of(op: ReduceOp, dtype: DType) -> Option<Kernel> {
        use DType::*;
        use ReduceOp::*;
        let run = match (op, dtype) {
            (Sum | Avg | PremulSum, Float32) => elementwise!(f32, |a: f32, b: f32| a + b),
            (Sum | Avg | PremulSum, Float64) => elementwise!(f64, |a: f64, b: f64| a + b),
            (Product, Float32) => elementwise!(f32, |a: f32, b: f32| a * b),
            (Product, Float64) => elementwise!(f64, |a: f64, b: f64| a * b),
            (op, UInt8 | Int8 | UInt16 | Int16 | UInt32 | Int32 | UInt64 | Int64) => integer(op, dtype.size())?,
            _ => return None,
        };
        Some(Kernel(run))
    }
}

impl Fetched {
    /// The loop that combines the operation's elements, if there is one.
    pub fn kernel(&self) -> Option<Kernel> {
        self.kernel.and_then(|(op, dtype)| Kernel::of(op, dtype))
    }
}

fn integer(op: ReduceOp, size: u64) -> Option<Loop> {
    use std::ops::{BitAnd, BitOr, BitXor};
    Some(match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => integer!(size, wrapping_add),
        ReduceOp::Product => integer!(size, wrapping_mul),
        ReduceOp::Band => integer!(size, bitand),
        ReduceOp::Bor => integer!(size, bitor),
        ReduceOp::Bxor => integer!(size, bitxor),
        ReduceOp::Min | ReduceOp::Max => return None,
    })
}

/// # Safety
/// Both ranges have `bytes` bytes and do not overlap.
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: both ranges have `bytes` bytes and do not overlap, as `copy_part` requires.
    unsafe { copy_part(to, from, bytes, bytes) };
    finish_streaming(bytes);
}

/// Copies a part of a copy of `whole` bytes. [`finish_streaming`] comes after the last part.
///
/// # Safety
/// The contract of `copy`.
unsafe fn copy_part(to: *mut u8, from: *const u8, bytes: usize, whole: usize) {
    // SAFETY: both ranges have `bytes` bytes and do not overlap.
    unsafe {
        if whole < STREAMED {
            std::ptr::copy_nonoverlapping(from, to, bytes);
        } else {
            stream(to, from, bytes);
        }
    }
}

/// # Safety
/// The contract of `copy`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: SSE2 is in every x86-64 CPU; `to + head` is aligned to a line, and all accesses are within the ranges.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let (to, from) = (to.add(head + line * LINE).cast::<__m128i>(), from.add(head + line * LINE).cast());
            for quarter in 0..LINE / 16 {
                let from: *const __m128i = from;
                _mm_stream_si128(to.add(quarter), _mm_loadu_si128(from.add(quarter)));
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// # Safety
/// The contract of `copy`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: both ranges have `bytes` bytes and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Orders streamed writes before all later writes.
fn finish_streaming(whole: usize) {
    #[cfg(target_arch = "x86_64")]
    if whole >= STREAMED {
        // SAFETY: the fence needs SSE, which every x86-64 CPU has, and accesses no memory.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = whole;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(words: &[u64]) -> Window {
        let map = memmap2::MmapMut::map_anon(size_of_val(words)).unwrap();
        let window = Window::new(map.into());
        window.write(0, &[region(&mut words.to_vec())]);
        window
    }

    fn word(window: &Window, at: u64) -> u64 {
        let mut word = [0_u64];
        window.read(&[piece(8 * at, 8, None)], &[region(&mut word)], None);
        word[0]
    }

    fn region<T>(data: &mut [T]) -> Region {
        // SAFETY: the data outlives the region in each test.
        unsafe { Region::new(data.as_mut_ptr() as usize, size_of_val(data)) }
    }

    fn piece(offset: u64, bytes: u64, other: Option<u64>) -> OutputPart {
        OutputPart { offset, bytes, other }
    }

    #[test]
    fn borders_of_pieces_and_outputs_need_not_coincide() {
        let window = window(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let (mut one, mut two) = ([0_u64; 3], [0_u64; 2]);
        window.read(&[piece(56, 8, None), piece(0, 32, None)], &[region(&mut one), region(&mut two)], None);
        assert_eq!((one, two), ([7, 0, 1], [2, 3]));
    }

    #[test]
    #[should_panic(expected = "more data than output")]
    fn nothing_is_left_over() {
        window(&[0; 2]).read(&[piece(0, 16, None)], &[region(&mut [0_u64])], None);
    }

    #[test]
    #[should_panic(expected = "not in the arena")]
    fn nothing_outside_of_the_arena_is_touched() {
        window(&[0; 2]).write(8, &[region(&mut [1_u64, 2])]);
    }

    #[test]
    fn large_copies_and_sums_are_those_of_small_ones() {
        // The size is more than a streamed copy, with a start and an end in the middle of a cache line: out[i] = i + 3
        // i.
        let count = STREAMED / 8 + 13;
        let words: Vec<u64> = (0..count as u64).chain((0..count as u64).map(|i| 3 * i)).collect();
        let (window, bytes) = (window(&words), 8 * count as u64);
        let mut out = vec![0_u64; count + 1];
        let kernel = Kernel::of(ReduceOp::Sum, DType::Int64);
        window.read(&[piece(0, bytes, Some(bytes))], &[region(&mut out[1..])], kernel);
        assert!((0..count).all(|i| out[i + 1] == 4 * i as u64));
        window.write(8, &[region(&mut out[1..])]);
        assert_eq!((word(&window, 1), word(&window, count as u64)), (0, 4 * (count as u64 - 1)));
    }

    #[test]
    fn folds_come_in_order_and_wrap_as_torchs_do() {
        let window = window(&[u64::from_ne_bytes([200; 8]), u64::from_ne_bytes([100; 8]), 0]);
        let kernel = Kernel::of(ReduceOp::Sum, DType::UInt8).unwrap();
        // b += a; c += b: 200 + 100 = 44 modulo 256.
        window.fold(&[(8, 0, 8), (16, 8, 8)], kernel);
        assert_eq!(word(&window, 2).to_ne_bytes(), [44; 8]);
    }

    #[test]
    fn what_is_not_fixed_by_a_standard_is_torchs() {
        for (op, dtype) in
            [(ReduceOp::Max, DType::Float32), (ReduceOp::Sum, DType::BFloat16), (ReduceOp::Sum, DType::Bool)]
        {
            assert!(Kernel::of(op, dtype).is_none());
        }
        assert!(Kernel::of(ReduceOp::Band, DType::Float64).is_none());
    }
}
