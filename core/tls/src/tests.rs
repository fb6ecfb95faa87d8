use super::*;

/// Passes bytes between both ends until neither has more to send.
fn shake(client: &mut Session, server: &mut Session) -> Result<(), Error> {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let one = client.open(&mut to_client, &mut |_| {}, &mut to_server)?;
        to_client.drain(..one.consumed);
        let two = server.open(&mut to_server, &mut |_| {}, &mut to_client)?;
        to_server.drain(..two.consumed);
        if one.established && two.established && to_server.is_empty() && to_client.is_empty() {
            return Ok(());
        }
    }
    Err(Error::HandshakeNotComplete)
}

fn sealed(session: &mut Session, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; sealed_len(bytes.len())];
    let length = session.seal(bytes, &mut out).unwrap();
    out.truncate(length);
    out
}

#[test]
fn who_dials_learns_the_key_of_the_process_and_bytes_pass() {
    let (a, b) = (Ephemeral::new().unwrap(), Ephemeral::new().unwrap());
    assert_ne!(a.fingerprint(), b.fingerprint());
    let (mut client, mut server) = (a.dial().unwrap(), b.accept().unwrap());
    shake(&mut client, &mut server).unwrap();
    assert_eq!((client.peer(), server.peer()), (Some(b.fingerprint()), None));
    let message: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let bytes = sealed(&mut client, &message);
    let (mut got, mut pending) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(7000) {
        pending.extend_from_slice(piece);
        let opened = server.open(&mut pending, &mut |bytes| got.extend_from_slice(bytes), &mut Vec::new()).unwrap();
        pending.drain(..opened.consumed);
    }
    assert!(got == message && pending.is_empty());
}

#[test]
fn a_changed_byte_anywhere_in_a_record_is_noticed_and_half_a_record_gives_nothing() {
    for at in [5, 20, 60] {
        let ends = Ephemeral::new().unwrap();
        let (mut client, mut server) = (ends.dial().unwrap(), ends.accept().unwrap());
        shake(&mut client, &mut server).unwrap();
        let mut bytes = sealed(&mut client, &[7; 50]);
        let half = server.open(&mut bytes[..40], &mut |_| panic!("from half a record"), &mut Vec::new()).unwrap();
        assert_eq!(half.consumed, 0);
        bytes[at] ^= 1;
        assert!(server.open(&mut bytes, &mut |_| panic!("from a changed record"), &mut Vec::new()).is_err());
    }
}

#[test]
fn strangers_bytes_are_refused() {
    let ends = Ephemeral::new().unwrap();
    for seed in 0..200u32 {
        let mut bytes: Vec<u8> = (0..300u32).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect();
        bytes[..5].copy_from_slice(&[0x16, 3, 1, 0, 200]);
        assert!(ends.accept().unwrap().open(&mut bytes.clone(), &mut |_| {}, &mut Vec::new()).is_err());
        assert!(ends.dial().unwrap().open(&mut bytes, &mut |_| {}, &mut Vec::new()).is_err());
    }
}

#[test]
fn who_expects_a_certificate_does_not_take_a_bare_key() {
    let ends = Ephemeral::new().unwrap();
    assert!(shake(&mut dial_without_key(None).unwrap(), &mut ends.accept().unwrap()).is_err());
}
