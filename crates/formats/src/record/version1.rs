//! Owns records of version 1: each step is a frame of its own, in the order of all ranks' requests, and the table of
//! lines is at the end. There is no index, so the whole file is read once before its first step is returned.

use super::schema::{Header, Step};
use super::{Contents, Extent, FRAME_HEAD, FileEnd, Version, decode, read_frame};
use serde::Deserialize;
use std::collections::VecDeque;
use std::io::{self, Read};

/// Maximum length of an extent, except for a single longer frame: ranks that are far apart in the file need little
/// memory.
const LONGEST_EXTENT: u32 = 1 << 16;

#[derive(Deserialize)]
enum Frame {
    Header(Header),
    Request(u32, u32, Step),
    End { requests: u64, lines: Vec<String> },
}

pub(super) fn header(frame: &[u8]) -> Result<Header, String> {
    match decode(frame)? {
        Frame::Header(header) => Ok(header),
        Frame::Request(..) | Frame::End { .. } => Err("the header is missing".to_owned()),
    }
}

/// The extents of each rank's frames, which start at `start`, the position of `input`.
pub(super) fn contents(input: &mut impl Read, start: u64, world_size: u32) -> io::Result<Contents> {
    let mut ranks: Vec<VecDeque<Extent>> = vec![VecDeque::new(); world_size as usize];
    let (mut offset, mut last, mut lines) = (start, None, Vec::new());
    let ending = loop {
        let frame = match read_frame(input)? {
            Ok(frame) => frame,
            Err(ending) => break ending,
        };
        match decode(&frame) {
            Ok(Frame::Request(rank, ..)) if rank < world_size => {
                let length = FRAME_HEAD as u32 + frame.len() as u32;
                let extents = &mut ranks[rank as usize];
                match extents.back_mut().filter(|extent| last == Some(rank) && extent.length < LONGEST_EXTENT) {
                    Some(extent) => extent.length += length,
                    None => extents.push_back(Extent { offset, length }),
                }
                (offset, last) = (offset + u64::from(length), Some(rank));
            }
            Ok(Frame::Request(rank, ..)) => {
                break FileEnd::Damaged(format!("rank {rank} is out of range ({world_size} ranks)"));
            }
            Ok(Frame::Header(_)) => break FileEnd::Damaged("unexpected second header".to_owned()),
            Ok(Frame::End { requests, lines: all }) => {
                lines = all;
                let more = input.by_ref().take(1).read_to_end(&mut Vec::new())? > 0;
                break match more {
                    true => FileEnd::Damaged("trailing bytes after the end".to_owned()),
                    false => FileEnd::Whole { steps: requests },
                };
            }
            Err(problem) => break FileEnd::Damaged(problem),
        }
    };
    Ok(Contents { version: Version::One, ranks, lines, ending })
}

/// The task and the step of the next frame in these bytes, and the rest.
pub(super) fn step(bytes: &[u8]) -> Result<(u32, Step, &[u8]), String> {
    let short = || "a frame has an unexpected length".to_owned();
    let (head, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let (length, _) = super::frame_head(*head);
    let (frame, rest) = rest.split_at_checked(length as usize).ok_or_else(short)?;
    match decode(frame)? {
        Frame::Request(_, task, step) => Ok((task, step, rest)),
        Frame::Header(_) | Frame::End { .. } => Err("a step has changed since it was indexed".to_owned()),
    }
}
