use std::os::unix::net::UnixStream;

use tls::Ephemeral;

use super::*;

/// Both ends of a connection; the accepting one presents `key`.
fn ends(expected: Expected, key: &Ephemeral) -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    let ours = Expected::Ours(key.fingerprint());
    let dialled = Stream::sealed(a.into(), key.dial().unwrap(), expected).unwrap();
    (dialled, Stream::sealed(b.into(), key.accept().unwrap(), ours).unwrap())
}

/// One end is a stream that dials or accepts, the other one a bare socket.
fn alone(dials: bool) -> (Stream, UnixStream) {
    let (socket, other) = UnixStream::pair().unwrap();
    let key = Ephemeral::new().unwrap();
    let stream = match dials {
        true => Stream::sealed(socket.into(), key.dial().unwrap(), Expected::Unknown),
        false => Stream::sealed(socket.into(), key.accept().unwrap(), Expected::Ours(key.fingerprint())),
    };
    (stream.unwrap(), other)
}

/// Continues the handshake until both ends have their keys.
fn shake(a: &mut Stream, b: &mut Stream) -> io::Result<()> {
    for _ in 0..10 {
        for end in [&mut *a, &mut *b] {
            end.flush()?;
            assert_eq!(end.recv(&mut [0; 100])?, None, "nothing was said");
        }
    }
    Ok(())
}

fn established(stream: &Stream) -> bool {
    stream.tls.as_ref().is_some_and(|tls| tls.established)
}

#[test]
fn bytes_pass_in_any_portions_and_the_socket_is_never_waited_for() {
    let key = Ephemeral::new().unwrap();
    let (mut a, mut b) = ends(Expected::Unknown, &key);
    assert_eq!(a.send(&[IoSlice::new(b"too early")]).unwrap(), None);
    assert!(!a.wants_write(true) || a.has_unsent(), "nobody waits for room that is there");
    shake(&mut a, &mut b).unwrap();
    assert_eq!((a.key(), b.key()), (&key.fingerprint().0[..], &key.fingerprint().0[..]));
    let message: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    let (mut sent, mut got, mut full) = (0, Vec::new(), 0);
    let mut places = (vec![0; 30_000], vec![0; 5_000]);
    for turn in 0.. {
        assert!(turn < 100_000, "{sent} sent, {} have come", got.len());
        let rest = &message[sent..];
        // Send a header, a short piece and a long one.
        let (head, rest) = rest.split_at(rest.len().min(40));
        let (short, long) = rest.split_at(rest.len().min(turn % 5000));
        match a.send(&[head, short, &long[..long.len().min(200_000)]].map(IoSlice::new)).unwrap() {
            Some(count) => sent += count,
            None => full += 1,
        }
        if turn % 3 == 0 {
            continue;
        }
        let (first, second) = (&mut places.0[..1 + turn % 30_000], &mut places.1[..turn % 5000]);
        let asked = first.len() + second.len();
        if let Some(count) = b.recv_both(first, second).unwrap() {
            let in_first = count.min(first.len());
            got.extend_from_slice(&first[..in_first]);
            got.extend_from_slice(&second[..count - in_first]);
            assert!(count == asked || !b.has_unread(), "less than asked for, and more lies here");
        }
        if got.len() == message.len() {
            break;
        }
    }
    assert!(got == message);
    assert!(full > 0, "the socket was never full, so the case that it takes no more is not tested");
    assert!(a.flush().unwrap() && !a.has_unsent());
}

#[test]
fn the_wrong_key_is_refused_before_anything_is_said() {
    let key = Ephemeral::new().unwrap();
    let keys = |current, next| Expected::Site(Keys { current, next });
    let others = [Fingerprint([1; 32]), Fingerprint([2; 32])];
    for (expected, good) in [
        (keys(key.fingerprint(), None), true),
        (keys(others[0], Some(key.fingerprint())), true),
        (keys(others[0], Some(others[1])), false),
    ] {
        let (mut a, mut b) = ends(expected, &key);
        let result = shake(&mut a, &mut b);
        assert_eq!((result.is_ok(), established(&a)), (good, good));
        if let Err(error) = result {
            let text = error.to_string();
            assert!(text.contains(&key.fingerprint().to_string()) && text.contains(&others[0].to_string()), "{text}");
            assert_eq!(a.send(&[IoSlice::new(b"hello")]).unwrap(), None, "not to that one");
        }
    }
}

#[test]
fn what_is_not_tls_is_an_error_at_either_end() {
    use std::io::Write;
    for dials in [true, false] {
        for junk in [&[0u8; 300][..], &[0x16; 300], b"GET / HTTP/1.1\r\n\r\n", b"LBRIDGE\x04\xff\xff\xff\xff"] {
            let (mut stream, mut other) = alone(dials);
            other.write_all(junk).unwrap();
            let result = (0..3).try_for_each(|_| stream.recv(&mut [0; 100]).map(drop));
            assert!(result.is_err(), "{junk:?}");
            assert_eq!(stream.in_clear(), junk.starts_with(b"LBRIDGE"));
        }
        // A record of the maximum length, and more: the stream must not collect bytes forever.
        let (mut stream, mut other) = alone(dials);
        other.set_nonblocking(true).unwrap();
        let mut result = Ok(());
        for _ in 0..100 {
            let _ = other.write(&[[0x16, 3, 1, 0x3f, 0xff].as_slice(), &[0; 4000]].concat());
            result = result.and_then(|()| stream.recv(&mut [0; 100]).map(drop));
        }
        assert!(result.is_err());
    }
}

#[test]
fn a_record_that_is_cut_short_gives_nothing_and_the_end_is_seen() {
    use std::io::{Read, Write};
    let key = Ephemeral::new().unwrap();
    let (near, relay_near) = UnixStream::pair().unwrap();
    let (far, relay_far) = UnixStream::pair().unwrap();
    let mut a = Stream::sealed(near.into(), key.dial().unwrap(), Expected::Unknown).unwrap();
    let mut b = Stream::sealed(far.into(), key.accept().unwrap(), Expected::Ours(key.fingerprint())).unwrap();
    let mut relays = [relay_near, relay_far];
    relays.iter().for_each(|relay| relay.set_nonblocking(true).unwrap());
    let carry = |relays: &mut [UnixStream; 2], from: usize, keep: usize| {
        let mut bytes = vec![0; 100_000];
        let count = relays[from].read(&mut bytes).unwrap_or(0);
        relays[1 - from].write_all(&bytes[..count.min(keep)]).unwrap();
    };
    for _ in 0..6 {
        a.flush().unwrap();
        carry(&mut relays, 0, usize::MAX);
        assert_eq!(b.recv(&mut [0; 100]).unwrap(), None);
        carry(&mut relays, 1, usize::MAX);
        assert_eq!(a.recv(&mut [0; 100]).unwrap(), None);
    }
    assert!(established(&a) && established(&b));
    assert_eq!(a.send(&[IoSlice::new(&[7; 1000])]).unwrap(), Some(1000));
    carry(&mut relays, 0, 600);
    assert_eq!(b.recv(&mut [0; 2000]).unwrap(), None, "not from half a record");
    drop(relays);
    assert_eq!(b.recv(&mut [0; 2000]).unwrap(), Some(0));
}
