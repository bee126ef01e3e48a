//! Program records: read to the end or refused. The first byte selects whether the rest is a file, or frames that are
//! put into a file of version 1 or 2 with the right lengths, checksums and position of the end, which random bytes
//! would not have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use uniference_formats::record::RecordReader;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let file = match first % 3 {
        0 => rest.to_vec(),
        1 => framed(rest, 2),
        _ => framed(rest, 1),
    };
    let Ok(reader) = RecordReader::open(Cursor::new(file)) else { return };
    let (ranks, rest) = reader.by_rank();
    for mut rank in ranks.into_iter().take(4).rev() {
        while let Some((_, step)) = rank.next() {
            let _ = rank.line(&step);
        }
    }
    let _ = rest.finish();
});

/// A record's frames from pieces, each of which follows its length in one byte.
fn framed(mut bytes: &[u8], version: u8) -> Vec<u8> {
    let mut file = [b"UNIREC\n".as_slice(), &[version]].concat();
    let mut end = 0;
    while let Some((length, rest)) = bytes.split_first() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        end = file.len() as u64;
        file.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        file.extend_from_slice(&checksum(piece).to_le_bytes());
        file.extend_from_slice(piece);
        bytes = rest;
    }
    if version == 2 {
        file.extend_from_slice(&end.to_le_bytes());
        file.extend_from_slice(&checksum(&end.to_le_bytes()).to_le_bytes());
    }
    file
}

/// The format's checksum, FNV-1a.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
