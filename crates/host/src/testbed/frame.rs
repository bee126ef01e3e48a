//! Owns the parsing of frames of a TUN device: the receiver, and the number of bytes on an Ethernet link.
//!
//! A frame is an IPv4 packet after the header that the kernel and virtual devices use among themselves (`struct
//! virtio_net_hdr` of linux/virtio_net.h). With segmentation offload, a frame represents several consecutive packets of
//! one connection: the emulator carries them as one, and delivers them as one to the receiver, as NICs with receive
//! offload do (GRO). This way, TCP processes all of them at once.

use super::namespace::MTU;
use super::wire::ETHERNET_HEADER;
use std::net::Ipv4Addr;

/// Size of `struct virtio_net_hdr`.
const HEADER: usize = 10;
/// Length of the longest frame.
pub(super) const LONGEST: usize = HEADER + 65_536;
/// The IP protocol number of TCP.
const TCP: u8 = 6;

/// The receiver of an IPv4 packet.
pub(super) fn receiver(frame: &[u8]) -> Option<Ipv4Addr> {
    let packet = frame.get(HEADER..)?;
    let is_ipv4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    let field: [u8; 4] = packet.get(16..20).filter(|_| is_ipv4)?.try_into().expect("four bytes");
    Some(Ipv4Addr::from(field))
}

/// Number of bytes on the link: every packet has headers of its own.
pub(super) fn wire_bytes(frame: &[u8]) -> u64 {
    let (header, packet) = frame.split_at(HEADER);
    // Segment size in this machine's byte order; 0 in a frame of one packet.
    let segment = u64::from(u16::from_ne_bytes([header[4], header[5]]));
    let length = packet.len() as u64;
    if segment == 0 || packet[9] != TCP || length <= u64::from(MTU) {
        return length + ETHERNET_HEADER;
    }
    let network = u64::from(packet[0] & 15) * 4;
    let transport = u64::from(packet[network as usize + 12] >> 4) * 4;
    let headers = network + transport;
    let count = (length - headers).div_ceil(segment);
    (length - headers) + count * (headers + ETHERNET_HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP frame with 20 + 32 bytes of headers to 10.66.0.2; every `segment` bytes of payload are one packet.
    fn frame(payload: usize, segment: u16) -> Vec<u8> {
        let mut frame = vec![0; HEADER + 52 + payload];
        frame[4..6].copy_from_slice(&segment.to_ne_bytes());
        frame[HEADER] = 0x45;
        frame[HEADER + 9] = TCP;
        frame[HEADER + 16..HEADER + 20].copy_from_slice(&[10, 66, 0, 2]);
        frame[HEADER + 20 + 12] = 8 << 4;
        frame
    }

    /// n bytes of payload at 1,448 per packet are n + ceil(n / 1448) * 66 bytes on the link.
    #[test]
    fn each_packet_of_a_frame_has_headers() {
        for (payload, packets) in [(1, 1), (1_448, 1), (1_449, 2), (14_480, 10), (14_481, 11)] {
            assert_eq!(wire_bytes(&frame(payload, 1_448)), payload as u64 + packets * 66);
        }
        assert_eq!(wire_bytes(&frame(0, 0)), 66);
    }

    #[test]
    fn frames_say_whom_they_are_for() {
        let mut frame = frame(5, 0);
        assert_eq!(receiver(&frame), Some(Ipv4Addr::new(10, 66, 0, 2)));
        frame[HEADER] = 0x65;
        assert_eq!((receiver(&frame), receiver(&frame[..20])), (None, None));
    }
}
