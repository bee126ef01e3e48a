//! Owns the layout of a file of version 2 or later: frames of one rank each, an index of them at the end, and the
//! search for them without the index.

use super::schema::{FullHeader, Header, Step};
use super::{Contents, Extent, FRAME_HEAD, FileEnd, LONGEST_FRAME, Version, checksum, decode, frame_head, read_frame};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};

/// Size of the last bytes of a file: the position of the file's end frame, and the position's checksum.
pub(super) const TRAILER: usize = 12;
/// Maximum number of bytes of a block's variant and rank, which are the block's first bytes.
const LONGEST_START: u64 = 10;

/// The rank of a block, and the block's length including the head of its frame.
type Block = (u32, u32);

/// The start of a frame.
#[derive(Serialize, Deserialize)]
pub(super) enum Start {
    /// The first frame of a file of version 2; it has no other content.
    Header(Header),
    /// The start of a block: steps of a rank follow, each a task's number and a [`Step`].
    Block { rank: u32 },
    /// The file's last frame; it has no other content: the number of steps, and the blocks in the file's order.
    End { steps: u64, blocks: Vec<Block> },
    /// The first frame of a file of version 3 or later.
    FullHeader(FullHeader),
}

/// The header of a file of this version, which comes before the first step.
pub(super) fn header(frame: &[u8], version: u8) -> Result<super::Header, String> {
    match (decode(frame)?, version) {
        (Start::Header(header), 2) => Ok(header.read()),
        (Start::FullHeader(header), 3..) => Ok(header.read()),
        _ => Err("the header is missing".to_owned()),
    }
}

/// The file's last bytes.
pub(super) fn trailer(end: u64) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&end.to_le_bytes());
    let sum = checksum(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The extents of each rank's blocks, the first one at `start`: by the index, or without a valid index by reading the
/// start of each block.
pub(super) fn contents(input: &mut (impl Read + Seek), start: u64, world_size: u32) -> io::Result<Contents> {
    let size = input.seek(SeekFrom::End(0))?;
    let (blocks, ending) = match indexed(input, start, size)? {
        Some((blocks, steps)) => (blocks, FileEnd::Whole { steps }),
        None => scanned(input, start, size)?,
    };
    let mut ranks: Vec<VecDeque<Extent>> = vec![VecDeque::new(); world_size as usize];
    let mut offset = start;
    for (rank, length) in blocks {
        let Some(extents) = ranks.get_mut(rank as usize) else {
            let ending = FileEnd::Damaged(format!("rank {rank} is out of range ({world_size} ranks)"));
            return Ok(Contents { version: Version::Indexed, ranks, lines: Vec::new(), ending });
        };
        extents.push_back(Extent { offset, length });
        offset += u64::from(length);
    }
    Ok(Contents { version: Version::Indexed, ranks, lines: Vec::new(), ending })
}

/// The blocks of a complete file, and the number of their steps.
fn indexed(input: &mut (impl Read + Seek), start: u64, size: u64) -> io::Result<Option<(Vec<Block>, u64)>> {
    let Some(before) = size.checked_sub(TRAILER as u64).filter(|before| *before >= start) else { return Ok(None) };
    let mut found = [0; TRAILER];
    input.seek(SeekFrom::Start(before))?;
    input.read_exact(&mut found)?;
    let [o0, o1, o2, o3, o4, o5, o6, o7, ..] = found;
    let end = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
    if trailer(end) != found || end < start || end > before {
        return Ok(None);
    }
    input.seek(SeekFrom::Start(end))?;
    let Ok(frame) = read_frame(input)? else { return Ok(None) };
    let Ok(Start::End { steps, blocks }) = decode(&frame) else { return Ok(None) };
    let between: u64 = blocks.iter().map(|(_, length)| u64::from(*length)).sum();
    let whole = start + between == end && end + FRAME_HEAD + frame.len() as u64 == before;
    Ok(whole.then_some((blocks, steps)))
}

/// The blocks up to the end of a truncated file, or up to the first invalid block.
fn scanned(input: &mut (impl Read + Seek), start: u64, size: u64) -> io::Result<(Vec<Block>, FileEnd)> {
    let mut blocks = Vec::new();
    let mut offset = start;
    let ending = loop {
        input.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        input.by_ref().take(FRAME_HEAD + LONGEST_START).read_to_end(&mut bytes)?;
        let Some((head, inside)) = bytes.split_first_chunk() else { break FileEnd::CutShort };
        let (length, _) = frame_head(*head);
        let all = FRAME_HEAD + u64::from(length);
        if length > LONGEST_FRAME {
            break FileEnd::Damaged(format!("invalid frame length {length}"));
        }
        if offset + all > size {
            break FileEnd::CutShort;
        }
        match postcard::take_from_bytes::<(u32, u32)>(inside) {
            // A block: its variant is 1, and its rank follows.
            Ok(((1, rank), _)) => blocks.push((rank, all as u32)),
            Ok(((2, _), _)) if size - offset - all < TRAILER as u64 => break FileEnd::CutShort,
            _ => break FileEnd::Damaged("unexpected frame type".to_owned()),
        }
        offset += all;
    };
    Ok((blocks, ending))
}

/// The position of the first step in a frame, which must be complete and of this rank.
pub(super) fn start_of_steps(frame: &[u8], rank: usize) -> Result<usize, String> {
    let Ok(bytes) = read_frame(&mut &frame[..]).map_err(|error| error.to_string())? else {
        return Err("checksum mismatch".to_owned());
    };
    match postcard::take_from_bytes(&bytes) {
        Ok((Start::Block { rank: of }, steps)) if of as usize == rank => Ok(frame.len() - steps.len()),
        Ok(_) => Err(format!("a frame does not belong to rank {rank}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The next task and its step in these bytes, and the rest.
pub(super) fn step(bytes: &[u8]) -> Result<(u32, Step, &[u8]), String> {
    let ((task, step), rest) = postcard::take_from_bytes(bytes).map_err(|error| error.to_string())?;
    Ok((task, step, rest))
}
