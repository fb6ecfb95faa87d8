//! Packets as read from a packet socket with `PACKET_VNET_HDR`: a virtio network header of ten bytes, then Ethernet.
//!
//! A sender's kernel hands over TCP super-packets that a real network card would cut into segments. This file computes
//! their size on the wire, and cuts out the surviving runs of segments if some are lost. Pure.

use std::ops::Range;

use super::link::Size;

/// Length of `struct virtio_net_hdr`.
pub(crate) const HEADER: usize = 10;
const ETHERNET: usize = 14;
/// Preamble 8, frame check 4, gap 12; the 14 bytes of Ethernet header are in the packet. 38 in all.
const FRAMING: u64 = 24;
const GSO_TCPV4: u8 = 1;
const GSO_ECN: u8 = 0x80;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The destination address: the first six bytes of the Ethernet header.
pub(crate) fn destination(packet: &[u8]) -> Option<[u8; 6]> {
    packet.get(HEADER..HEADER + 6)?.try_into().ok()
}

/// The size on the wire. `None` for data that is too short to be a packet.
pub(crate) fn size(packet: &[u8]) -> Option<Size> {
    let frame = packet.len().checked_sub(HEADER).filter(|length| *length >= ETHERNET)?;
    let plain = Size { segments: 1, wire_bytes: frame as u64 + FRAMING };
    let headers = usize::from(u16::from_ne_bytes([packet[2], packet[3]]));
    let segment = usize::from(u16::from_ne_bytes([packet[4], packet[5]]));
    if packet[1] & !GSO_ECN == 0 || segment == 0 || frame <= headers {
        return Some(plain);
    }
    let segments = (frame - headers).div_ceil(segment);
    let bytes = frame + (segments - 1) * headers;
    Some(Size { segments: segments as u32, wire_bytes: bytes as u64 + segments as u64 * FRAMING })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// Writes the segments of `run` to `out` as a packet of their own. Returns `None` if this is not a TCP/IPv4
/// super-packet: other packets can only be lost whole.
pub(crate) fn cut(packet: &[u8], run: Range<u32>, out: &mut Vec<u8>) -> Option<()> {
    if packet.len() < HEADER || packet[1] & !GSO_ECN != GSO_TCPV4 {
        return None;
    }
    let segment = usize::from(u16::from_ne_bytes([packet[4], packet[5]]));
    let frame = &packet[HEADER..];
    if segment == 0 || frame.len() < ETHERNET + 40 || frame[12..14] != [8, 0] || frame[ETHERNET] >> 4 != 4 {
        return None;
    }
    let ip_length = usize::from(frame[ETHERNET] & 15) * 4;
    let tcp_at = ETHERNET + ip_length;
    if ip_length < 20 || frame.len() < tcp_at + 20 || frame[ETHERNET + 9] != 6 {
        return None;
    }
    let headers = tcp_at + usize::from(frame[tcp_at + 12] >> 4) * 4;
    if headers < tcp_at + 20 || frame.len() <= headers {
        return None;
    }
    let payload = &frame[headers..];
    let count = payload.len().div_ceil(segment);
    let (first, last) = (run.start as usize, run.end as usize);
    if first >= last || last > count {
        return None;
    }
    let part = &payload[first * segment..(last * segment).min(payload.len())];

    out.clear();
    out.extend_from_slice(&packet[..HEADER + headers]);
    out.extend_from_slice(part);
    if last - first == 1 {
        out[1] = 0;
        out[4..6].fill(0);
    }
    let frame = &mut out[HEADER..];
    let ip = &mut frame[ETHERNET..];
    let ip_total = ip.len() as u16;
    ip[2..4].copy_from_slice(&ip_total.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let sum = !fold((0..ip_length).step_by(2).map(|at| word(ip, at)).sum());
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    // The checksum field of a partial checksum holds the sum of the pseudo-header (virtio 1.2, 5.1.6.2).
    let addresses: u32 = (12..20).step_by(2).map(|at| word(ip, at)).sum();
    let tcp_length = (ip.len() - ip_length) as u32;
    let pseudo = fold(addresses + 6 + tcp_length);
    let tcp = &mut ip[ip_length..];
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add((first * segment) as u32);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if last < count {
        tcp[13] &= !(TCP_FIN | TCP_PSH);
    }
    if first > 0 {
        tcp[13] &= !TCP_CWR;
    }
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MSS: u16 = 1448;

    /// A super-packet of `payload` bytes with timestamps (32 bytes of TCP header), as the kernel hands it over.
    fn super_packet(payload: usize) -> Vec<u8> {
        let mut packet = vec![0u8; HEADER];
        packet[0] = 1; // VIRTIO_NET_HDR_F_NEEDS_CSUM
        packet[1] = GSO_TCPV4;
        packet[2..4].copy_from_slice(&66u16.to_ne_bytes());
        packet[4..6].copy_from_slice(&MSS.to_ne_bytes());
        packet[6..8].copy_from_slice(&34u16.to_ne_bytes());
        packet[8..10].copy_from_slice(&16u16.to_ne_bytes());
        packet.extend_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        packet.extend_from_slice(&[0x45, 0, 0, 0, 0xFF, 0xFF, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]);
        let total = (20 + 32 + payload) as u16;
        packet[HEADER + 16..HEADER + 18].copy_from_slice(&total.to_be_bytes());
        let mut tcp = [0u8; 32];
        tcp[4..8].copy_from_slice(&0xFFFF_FF00u32.to_be_bytes());
        tcp[12] = 8 << 4;
        tcp[13] = 0x10 | TCP_PSH | TCP_FIN | TCP_CWR;
        packet.extend_from_slice(&tcp);
        packet.extend((0..payload).map(|i| (i / usize::from(MSS)) as u8));
        packet
    }

    #[test]
    fn wire_size_counts_framing_and_headers_per_segment() {
        let three = super_packet(3 * 1448);
        assert_eq!(size(&three), Some(Size { segments: 3, wire_bytes: 3 * 1538 }));
        let short = super_packet(2 * 1448 + 1);
        assert_eq!(size(&short), Some(Size { segments: 3, wire_bytes: 2 * 1538 + 66 + 1 + 24 }));
        let mut plain = super_packet(100);
        plain[1] = 0;
        assert_eq!(size(&plain), Some(Size { segments: 1, wire_bytes: 66 + 100 + 24 }));
        assert_eq!(size(&plain[..20]), None);
    }

    #[test]
    fn a_run_in_the_middle_is_a_valid_packet() {
        let whole = super_packet(4 * 1448 + 10);
        let mut out = Vec::new();
        cut(&whole, 1..3, &mut out).unwrap();
        assert_eq!(size(&out).unwrap().segments, 2);
        let ip = &out[HEADER + ETHERNET..];
        assert_eq!(word(ip, 2) as usize, ip.len());
        assert_eq!(word(ip, 4), 0, "the identification wraps");
        assert_eq!(fold((0..20).step_by(2).map(|at| word(ip, at)).sum()), 0xFFFF, "the header's checksum holds");
        let tcp = &ip[20..];
        assert_eq!(u32::from_be_bytes(tcp[4..8].try_into().unwrap()), 0xFFFF_FF00u32.wrapping_add(1448));
        assert_eq!(tcp[13], 0x10, "no FIN and PSH before the end, no CWR after the start");
        let pseudo = fold(0x0A01 + 1 + 0x0A01 + 2 + 6 + tcp.len() as u32);
        assert_eq!(word(tcp, 16), u32::from(pseudo));
        assert!(tcp[32..32 + 1448].iter().all(|b| *b == 1) && tcp[32 + 1448..].iter().all(|b| *b == 2));
    }

    #[test]
    fn a_single_segment_is_no_super_packet() {
        let whole = super_packet(2 * 1448 + 10);
        let mut out = Vec::new();
        cut(&whole, 2..3, &mut out).unwrap();
        assert_eq!(out[1], 0);
        assert_eq!(&out[4..6], [0, 0]);
        assert_eq!(size(&out), Some(Size { segments: 1, wire_bytes: 66 + 10 + 24 }));
        assert_eq!(out[HEADER + ETHERNET + 20 + 13], 0x10 | TCP_PSH | TCP_FIN);
    }

    #[test]
    fn all_runs_together_are_the_whole() {
        let whole = super_packet(5 * 1448 - 3);
        let mut payload = Vec::new();
        let mut out = Vec::new();
        for run in [0..1, 1..4, 4..5] {
            cut(&whole, run, &mut out).unwrap();
            payload.extend_from_slice(&out[HEADER + 66..]);
        }
        assert_eq!(payload, &whole[HEADER + 66..]);
    }

    #[test]
    fn what_cannot_be_cut_is_refused_without_a_panic() {
        let whole = super_packet(3 * 1448);
        let mut out = Vec::new();
        assert!(cut(&whole, 2..4, &mut out).is_none());
        assert!(cut(&whole, 2..2, &mut out).is_none());
        for length in 0..HEADER + 70 {
            assert!(cut(&whole[..length.min(whole.len())], 1..3, &mut out).is_none());
        }
        let mut random = crate::wan::link::SplitMix64(5);
        for _ in 0..2000 {
            let mut noise = whole[..200].to_vec();
            for _ in 0..4 {
                let at = random.next() as usize % noise.len();
                noise[at] = random.next() as u8;
            }
            let _ = (size(&noise), cut(&noise, 0..1, &mut out));
        }
    }
}
