//! Program records: read to the end or refused. The first byte says whether the rest is a file, or frames that are put into one with
//! the right lengths and checksums, which chance would not find.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::record::RecordReader;

const MAGIC: &[u8] = b"UNIREC\n\x01";

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let file = if first % 2 == 0 { rest.to_vec() } else { framed(rest) };
    let Ok(mut reader) = RecordReader::open(&file[..]) else { return };
    while let Ok(Some(_)) = reader.next_request() {}
    let Ok(reader) = RecordReader::open(&file[..]) else { return };
    let (ranks, rest) = reader.by_rank();
    for rank in ranks.into_iter().take(4) {
        rank.for_each(drop);
    }
    let _ = rest.finish();
});

/// Pieces, each after its length in one byte, as frames of a record.
fn framed(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    while let Some((length, rest)) = bytes.split_first() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        // FNV-1a, as in the format.
        let sum = piece.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        file.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        file.extend_from_slice(&sum.to_le_bytes());
        file.extend_from_slice(piece);
        bytes = rest;
    }
    file
}
