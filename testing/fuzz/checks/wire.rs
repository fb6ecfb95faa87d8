//! Bytes from a stranger, read as each thing a connection can carry: refused, or a value that survives being
//! re-encoded.

use types::{Roster, SiteId};
use wire::control::JobMessage;
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};
use wire::handshake::{Handshake, MAX_HANDSHAKE, PREFACE_LEN};
use wire::many::{Astray, Block, BlockReceiver, MAX_BLOCK, MAX_RECEIVERS};
use wire::message::MAX_HEADER;
use wire::{Control, FrameHeader, Message, Passage, WireError};

/// The 32 bytes that gateways route by.
pub fn frame_header(bytes: &[u8]) {
    for limit in [0, 16 << 10, MAX_PAYLOAD] {
        if let Ok(header) = FrameHeader::decode(bytes, limit) {
            assert!(header.length <= limit, "{header:?} is beyond the limit {limit}");
            assert_eq!(header.encode(), bytes[..HEADER_LEN], "{header:?} has another encoding");
        }
    }
    if let (Ok(header), Some(rest)) = (FrameHeader::decode(bytes, MAX_PAYLOAD), bytes.get(HEADER_LEN..)) {
        let frame = header.with_payload(rest).expect("inputs are shorter than the longest payload");
        let again = FrameHeader::decode(&frame, MAX_PAYLOAD).expect("what was encoded is read");
        assert_eq!(again, FrameHeader { length: rest.len() as u32, ..header });
    }
}

/// A gateway's report to its members about its route to a site.
pub fn passage(bytes: &[u8]) {
    let Ok(passage) = Passage::decode(bytes) else { return };
    let encoded = passage.encode();
    assert!(encoded.len() <= 4096, "{passage:?} takes {} bytes", encoded.len());
    // A reason may be cut, and invalid UTF-8 in it is replaced; our own encoding is read back unchanged.
    let said = Passage::decode(&encoded).expect("what was encoded is read");
    assert_eq!(said.encode(), encoded);
}

/// The payload of a frame for several receivers. The first byte is the site where it is; site 0 sends it.
pub fn many(bytes: &[u8]) {
    if let Ok(astray) = Astray::decode(bytes) {
        assert_eq!(astray.encode(), bytes);
    }
    let Some((at, payload)) = bytes.split_first() else { return };
    let (at, root) = (SiteId(u16::from(*at)), SiteId(0));
    let Ok((block, data)) = Block::split(payload, at, root) else { return };
    assert!(block.bytes().len() <= MAX_BLOCK, "{} bytes", block.bytes().len());
    assert_eq!([block.bytes(), data].concat(), payload);
    let (mut sites, mut count) = (Vec::new(), 0);
    let add = &mut |site: SiteId, _: BlockReceiver| -> Result<(), ()> {
        count += 1;
        sites.push(site);
        Ok(())
    };
    block.each(at, add).expect("nothing is refused");
    assert!((1..=MAX_RECEIVERS).contains(&count) && !sites.contains(&root), "{count} receivers at {sites:?}");
    for (site, below) in block.branches() {
        // What is sent on is read at the next site.
        let onward = [below.bytes(), data].concat();
        assert_eq!(Block::split(&onward, site, root), Ok((below, data)));
    }
}

/// A receiver's report about each route.
pub fn receipt(bytes: &[u8]) {
    if let Ok(arrived) = wire::receipt::decode(bytes) {
        assert_eq!(wire::receipt::encode(&arrived), bytes);
    }
}

/// The first message of a connection, with the preface.
pub fn handshake_first(bytes: &[u8]) {
    handshake(bytes, true);
}

/// Any later message of a handshake.
pub fn handshake_later(bytes: &[u8]) {
    handshake(bytes, false);
}

fn handshake(bytes: &[u8], first: bool) {
    let preface = if first { PREFACE_LEN } else { 0 };
    let Ok(Some((message, used))) = Handshake::decode(bytes, first) else { return };
    assert!(
        used <= bytes.len() && used <= preface + 4 + MAX_HANDSHAKE,
        "{message:?} took {used} of {} bytes",
        bytes.len()
    );
    for cut in 0..used {
        assert_eq!(Handshake::decode(&bytes[..cut], first), Ok(None), "{message:?} cut at {cut}");
    }
    let encoded = message.encode();
    // Only a hello has a preface of its own; other messages are read after one, but are never sent with one.
    let ours = if matches!(message, Handshake::Hello(_)) { PREFACE_LEN } else { 0 };
    assert_eq!(encoded[ours..], bytes[preface..used], "{message:?} has another encoding");
}

/// An endpoint's message header. The first two bytes give the number of bytes of the frame that have not arrived yet.
pub fn message(bytes: &[u8]) {
    let Some((extra, payload)) = bytes.split_first_chunk::<2>() else { return };
    // A decoder is called with the whole frame, or with at least the longest header.
    let missing = if payload.len() < MAX_HEADER { 0 } else { u32::from(u16::from_le_bytes(*extra)) };
    let frame_length = payload.len() as u32 + missing;
    let Ok((message, used)) = Message::decode(payload, frame_length) else { return };
    assert!(used <= payload.len().min(MAX_HEADER), "{message:?} took {used} of {} bytes", payload.len());
    let following = frame_length - used as u32;
    let encoded = message.encode(following.into());
    let length = encoded.as_slice().len();
    assert_eq!(Message::decode(encoded.as_slice(), length as u32 + following), Ok((message, length)));
}

/// Messages between launchers and gateways.
pub fn control(bytes: &[u8]) {
    let Ok(message) = Control::decode(bytes) else { return };
    let _ = message.job();
    if let Control::Job(JobMessage::Open { roster, .. }) = &message {
        // The receiver of a roster relies on what `Roster::new` checks.
        assert_eq!(Roster::new(roster.sites().to_vec()).as_ref(), Ok(roster));
        assert_eq!(roster.nodes().map(|(_, _, _, node)| u64::from(node.ranks)).sum::<u64>(), u64::from(roster.size()));
    }
    match message.encode() {
        Ok(encoded) => assert_eq!(Control::decode(&encoded), Ok(message)),
        // Escaped characters make a text longer.
        Err(error) => assert!(matches!(error, WireError::TooLong { .. }), "{error}"),
    }
}
