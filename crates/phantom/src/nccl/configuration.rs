//! Owns the fields of `ncclConfig_t` that a program has set. The effects of these fields are in
//! `uniference_protocol::settings`.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

/// Fields that are set, by their names in `nccl.h`; a pointer that is set has the value 1.
pub(super) type Configuration = Vec<(&'static str, i64)>;

/// Value of an integer field that is not set: `NCCL_CONFIG_UNDEF_INT`.
const UNSET: c_int = c_int::MIN;

/// Fields in the order of `nccl.h`, and whether each is a pointer. A size, a magic number and a version precede the
/// fields. Structures of older NCCL versions have only the first fields.
const FIELDS: [(&str, bool); 18] = [
    ("blocking", false),
    ("cgaClusterSize", false),
    ("minCTAs", false),
    ("maxCTAs", false),
    ("netName", true),
    ("splitShare", false),
    ("trafficClass", false),
    ("commName", true),
    ("collnetEnable", false),
    ("CTAPolicy", false),
    ("shrinkShare", false),
    ("nvlsCTAs", false),
    ("nChannelsPerNetPeer", false),
    ("nvlinkCentricSched", false),
    ("graphUsageMode", false),
    ("numRmaCtx", false),
    ("maxP2pPeers", false),
    ("graphStreamOrdering", false),
];

/// Fields of a configuration that are set; none for a null pointer.
pub(super) fn read(config: *const c_void) -> Configuration {
    if config.is_null() {
        return Vec::new();
    }
    let at = config.cast::<u8>();
    // SAFETY: a configuration begins with its size, a magic number and a version; its fields are read within its size.
    let (size, version) = unsafe { (at.cast::<usize>().read_unaligned(), at.add(12).cast::<c_int>().read_unaligned()) };
    let mut offset = size_of::<usize>() + 2 * size_of::<c_int>();
    let mut set = Vec::new();
    for (name, is_pointer) in FIELDS {
        // Before NCCL 2.25, the structure has padding in this place (`src/init.cc`).
        if name == "trafficClass" && version < 22_500 {
            break;
        }
        let length = if is_pointer { size_of::<usize>() } else { size_of::<c_int>() };
        offset = offset.next_multiple_of(length);
        if offset + length > size {
            break;
        }
        // SAFETY: the field lies within the size that the configuration names.
        let value = unsafe {
            match is_pointer {
                true => (at.add(offset).cast::<usize>().read_unaligned() != 0).then_some(1),
                false => {
                    Some(at.add(offset).cast::<c_int>().read_unaligned()).filter(|value| *value != UNSET).map(i64::from)
                }
            }
        };
        set.extend(value.map(|value| (name, value)));
        offset += length;
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are found at their offsets in `ncclConfig_v23000` of NCCL 2.30, and in the shorter structure of NCCL
    /// 2.18.
    #[test]
    fn fields_are_found_where_the_header_has_them() {
        let mut words = [UNSET; 24];
        words[..4].copy_from_slice(&[96, 0, 0, 23_000]);
        // The words 4 to 7 are blocking, cgaClusterSize, minCTAs and maxCTAs (from byte 16); the words 8 and 9 are a
        // pointer.
        (words[6], words[7]) = (2, 4);
        (words[8], words[9]) = (0, 0);
        words[10] = 1;
        (words[12], words[13]) = (0, 7);
        (words[14], words[23]) = (1, 1);
        let known = |words: &[c_int; 24]| read(words.as_ptr().cast());
        let mut expected =
            vec![("minCTAs", 2), ("maxCTAs", 4), ("splitShare", 1), ("commName", 1), ("collnetEnable", 1)];
        expected.push(("graphStreamOrdering", 1));
        assert_eq!(known(&words), expected);
        // The size of 48 has padding behind `splitShare` in NCCL 2.18, and `trafficClass` in NCCL 2.25.
        (words[0], words[3], words[11]) = (48, 21_800, 5);
        assert_eq!(known(&words), expected[..3]);
        words[3] = 22_500;
        assert_eq!(known(&words)[3..], [("trafficClass", 5)]);
        words[0] = 32;
        assert_eq!(known(&words), expected[..2]);
        assert_eq!(read(std::ptr::null()), []);
    }
}
