//! Ranks of a site whose network is shared with strangers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use types::sites::{Fingerprint, Keys};

use super::*;

/// Two ranks of a job that share no memory and use TLS.
pub(super) fn ranks(a: Arc<Regions>, b: Arc<Regions>) -> EndpointPair {
    EndpointPair { a: rank(0, true, a), b: rank(1, true, b) }
}

fn rank(rank: u32, encrypted: bool, regions: Arc<Regions>) -> Endpoint {
    let mut config = rank_config("", rank, EndpointLimits::default());
    if let Some(job) = &mut config.job {
        let keys = Keys { current: Fingerprint([1; 32]), next: None };
        (job.memory, job.encrypted) = (Vec::new(), encrypted.then_some(keys));
    }
    Endpoint::open(config, 0, regions).unwrap()
}

/// The tests that any link must pass.
macro_rules! inside_tls {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            ENCRYPTED.set(true);
            super::$name();
        }
    )*};
}

inside_tls!(
    messages_of_all_lengths_arrive_whole_and_in_order,
    both_dialling_at_once_leaves_one_connection,
    dialling_each_other_at_any_moment_leaves_one_connection,
    untagged_data_and_source_are_reported,
    delivery_means_in_the_receivers_buffer,
    long_messages_are_truncated_and_say_so,
    peek_claim_discard_and_cancel,
    regions_are_written_read_and_updated,
    a_flood_is_bounded_and_nothing_is_lost,
    a_lost_peer_fails_what_waits_for_it,
    a_stranger_on_the_port_harms_nobody,
    a_goodbye_lets_everything_arrive_first
);

/// An attacker between two ranks: the address to dial, and everything that it has seen.
struct Relay {
    address: SocketAddr,
    seen: std::thread::JoinHandle<Vec<u8>>,
    ends: Arc<AtomicBool>,
}

impl Relay {
    /// Relays connections to the rank at `target`. `opens`: it terminates TLS on both sides, with a key of its own.
    fn to(target: SocketAddr, opens: bool) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, ends) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let over = ends.clone();
        let seen = std::thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            carry([near, TcpStream::connect(target).unwrap()], opens, &over)
        });
        Relay { address, seen, ends }
    }

    fn seen(self) -> Vec<u8> {
        self.ends.store(true, Ordering::Relaxed);
        self.seen.join().unwrap()
    }
}

/// Carries bytes between two connections until one closes or `over` is set. Returns the bytes that passed in plaintext.
fn carry(mut sockets: [TcpStream; 2], opens: bool, over: &AtomicBool) -> Vec<u8> {
    let key = tls::Ephemeral::new().unwrap();
    let mut sessions = opens.then(|| [key.accept().unwrap(), key.dial().unwrap()]);
    let (mut cipher, mut plain, mut out) =
        ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut seen = Vec::new();
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    while !over.load(Ordering::Relaxed) {
        for at in 0..2 {
            let mut bytes = [0; 4096];
            match sockets[at].read(&mut bytes) {
                Ok(0) => return seen,
                Ok(count) => cipher[at].extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return seen,
            }
            let Some(sessions) = &mut sessions else {
                seen.extend_from_slice(&cipher[at]);
                out[1 - at].append(&mut cipher[at]);
                continue;
            };
            let mut take = |bytes: &[u8]| plain[at].extend_from_slice(bytes);
            let Ok(opened) = sessions[at].open(&mut cipher[at], &mut take, &mut out[at]) else { return seen };
            cipher[at].drain(..opened.consumed);
            let mut sealed = vec![0; tls::sealed_len(plain[at].len())];
            if !plain[at].is_empty()
                && let Ok(length) = sessions[1 - at].seal(&plain[at], &mut sealed)
            {
                seen.append(&mut plain[at]);
                out[1 - at].extend_from_slice(&sealed[..length]);
            }
        }
        for (socket, out) in sockets.iter_mut().zip(&mut out) {
            // Messages here are short: the socket takes them at once.
            let _ = socket.write_all(&std::mem::take(out));
        }
    }
    seen
}

/// The fate of A's message to B through a relay, and everything that the relay has seen.
fn by_way_of(mut pair: EndpointPair, opens: bool) -> (Result<Vec<u8>, Failure>, Vec<u8>) {
    let relay = Relay::to(pair.b.address().socket, opens);
    let socket = relay.address;
    let b = pair.a.peer(Address { socket, ..pair.b.address() });
    let message = b"Beside the point. ".repeat(20);
    pair.b.receive(recv_op(1, message.len(), 1)).unwrap();
    pair.a.send(SendOp { complete: CompleteWhen::Delivered, ..send_op(b, 1, &message, 2) }).unwrap();
    let outcome = match pair.next(true).result {
        Ok(()) => Ok(pair.next(false).buffer.unwrap().to_vec(0..message.len())),
        Err(failure) => Err(failure),
    };
    (outcome, relay.seen())
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

#[test]
fn whoever_is_on_the_way_reads_what_is_in_clear_and_nothing_that_is_not() {
    let in_clear = EndpointPair { a: rank(0, false, Arc::default()), b: rank(1, false, Arc::default()) };
    let (outcome, seen) = by_way_of(in_clear, false);
    assert!(outcome.is_ok() && contains(&seen, b"Beside the point."));
    let (outcome, seen) = by_way_of(ranks(Arc::default(), Arc::default()), false);
    assert!(outcome.is_ok() && seen.len() > 360);
    assert!(!contains(&seen, b"Beside the point.") && !contains(&seen, b"LBRIDGE"));
}

#[test]
fn whoever_ends_tls_between_two_ranks_gets_no_proof_and_no_byte() {
    let (outcome, seen) = by_way_of(ranks(Arc::default(), Arc::default()), true);
    let Err(Failure::PeerLost { reason, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("it does not know our secret"), "{reason}");
    // The relay sees a hello and the acceptor's answer, which covers only the key that the relay has presented.
    assert!(contains(&seen, b"LBRIDGE") && !contains(&seen, b"Beside the point."));
}

#[test]
fn a_rank_in_clear_is_refused_and_told_why() {
    for (of_a, of_b) in [(false, true), (true, false)] {
        let mut pair = EndpointPair { a: rank(0, of_a, Arc::default()), b: rank(1, of_b, Arc::default()) };
        let b = pair.a.peer(pair.b.address());
        pair.a.send(send_op(b, 1, b"x", 1)).unwrap();
        let done = pair.next(true);
        let Err(Failure::PeerLost { reason, .. }) = &done.result else { panic!("{done:?}") };
        assert!(of_a || reason.contains("this one connected without TLS"), "{reason}");
    }
}
