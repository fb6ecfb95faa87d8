use super::*;
use std::time::{Duration, Instant};

/// Opens a port with the system's libfabric, or the one that `LANDBRIDGE_LIBFABRIC` names.
fn port(provider: &str, frame: usize, receives: usize) -> Port {
    let named = std::env::var_os("LANDBRIDGE_LIBFABRIC").map(std::path::PathBuf::from);
    let (library, offer) = Libfabric::offering(provider, named.as_deref(), None).unwrap();
    Port::open(&library, offer, frame, receives).unwrap()
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

/// Posts a frame, if there is room for it now. Returns true if it was sent at once, false if it is in flight.
fn try_send(port: &mut Port, to: PeerAddress, bytes: &[u8], ticket: u64) -> Option<bool> {
    let staged = port.stage().unwrap();
    port.bytes(&staged)[..bytes.len()].copy_from_slice(bytes);
    match port.post(staged, bytes.len(), to, ticket).unwrap() {
        Posted::Left => Some(true),
        Posted::UnderWay => Some(false),
        Posted::Again(staged) => {
            port.unstage(staged);
            None
        }
    }
}

fn frames_arrive_whole(provider: &str) {
    let (mut a, mut b) = (port(provider, 1 << 16, 8), port(provider, 1 << 16, 8));
    let to = a.insert(b.name()).unwrap();
    assert_eq!(a.insert(b.name()).unwrap(), to);
    let lengths = [1, 8, 100, 4096, 16_384, 65_536];
    let count = 200;
    let (mut sent, mut left, mut seen) = (0, 0, vec![false; count]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while left < count || seen.contains(&false) {
        assert!(Instant::now() < deadline, "{left} left, {seen:?}");
        if sent < count {
            let length = lengths[sent % lengths.len()].max(8);
            let mut bytes = pattern(length, sent);
            bytes[..8].copy_from_slice(&(sent as u64).to_le_bytes());
            if let Some(gone) = try_send(&mut a, to, &bytes, sent as u64) {
                sent += 1;
                left += usize::from(gone);
            }
        }
        a.poll(&mut |event| match event {
            PortEvent::Sent(_) => left += 1,
            other => panic!("{other:?}"),
        })
        .unwrap();
        b.poll(&mut |event| {
            let PortEvent::Received(bytes) = event else { panic!("{event:?}") };
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(bytes.len(), lengths[number % lengths.len()].max(8));
            assert!(bytes[8..] == pattern(bytes.len(), number)[8..], "frame {number}");
            assert!(!std::mem::replace(&mut seen[number], true), "frame {number} twice");
        })
        .unwrap();
    }
}

#[test]
fn frames_arrive_whole_over_tcp() {
    frames_arrive_whole("tcp");
}

#[test]
fn frames_arrive_whole_over_shm() {
    frames_arrive_whole("shm");
}

#[test]
fn a_slow_receiver_is_not_overrun() {
    let (mut a, mut b) = (port("tcp", 1 << 14, 4), port("tcp", 1 << 14, 4));
    let to = a.insert(b.name()).unwrap();
    let (mut sent, mut seen, mut refused) = (0u32, 0u32, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    // B polls until they are connected, and then stops until A can send no more.
    while refused < 1000 && sent < 5000 {
        assert!(Instant::now() < deadline, "{sent} sent");
        if seen == 0 {
            b.poll(&mut |_| seen += 1).unwrap();
            refused = 0;
        }
        match try_send(&mut a, to, &[7; 1 << 14], 0) {
            Some(_) => sent += 1,
            None => refused += 1,
        }
        a.poll(&mut |event| assert!(matches!(event, PortEvent::Sent(_)), "{event:?}")).unwrap();
    }
    assert!(sent > 4, "{sent}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while seen < sent {
        assert!(Instant::now() < deadline, "{seen} of {sent}");
        a.poll(&mut |_| {}).unwrap();
        b.poll(&mut |event| seen += u32::from(matches!(event, PortEvent::Received(_)))).unwrap();
    }
}

#[test]
fn a_wait_has_its_descriptor_or_none() {
    let tcp = port("tcp", 4096, 4);
    assert!(tcp.wait_fd().is_some());
    assert!(tcp.may_sleep(), "nothing has come yet");
}

#[test]
fn names_of_another_shape_are_refused() {
    let mut a = port("tcp", 4096, 4);
    for name in [&b"short"[..], &[7; 300]] {
        assert_eq!(a.insert(name).unwrap_err().code, libc::EINVAL);
    }
}

#[test]
fn what_is_not_offered_is_named_with_what_is() {
    let error = Libfabric::offering("cxi", None, None).unwrap_err().to_string();
    assert!(error.contains("no provider `cxi` here"), "{error}");
    assert!(error.contains("tcp") && error.contains("shm"), "{error}");
    let missing = std::path::Path::new("/nowhere/libfabric.so.1");
    let error = Libfabric::offering("tcp", Some(missing), None).unwrap_err().to_string();
    assert!(error.contains("/nowhere/libfabric.so.1"), "{error}");
    let other = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libm.so.6");
    let error = Libfabric::offering("tcp", Some(other), None).unwrap_err().to_string();
    assert!(error.contains("is not a libfabric"), "{error}");
}

/// MPI's choice of our provider hides the others from other callers; we find them, and leave the variable unchanged.
#[test]
fn mpis_choice_of_a_provider_does_not_hide_the_others() {
    const INSIDE: &str = "LANDBRIDGE_TEST_INSIDE";
    if let Ok(provider) = std::env::var(INSIDE) {
        return frames_arrive_whole(&provider);
    }
    let name = "port::tests::mpis_choice_of_a_provider_does_not_hide_the_others";
    for provider in ["tcp", "shm"] {
        let inside = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(INSIDE, provider)
            .env("FI_PROVIDER", crate::offer::mpis_choice(provider))
            .output()
            .unwrap();
        assert!(inside.status.success(), "{provider}: {}", String::from_utf8_lossy(&inside.stdout));
    }
}
