//! A place with a real port; this test plays the two gateways that meet there.

use std::time::Duration;

use client::handshake::{HandshakeError, initiate};
use member::handshake::Fault;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use types::{Address, JobId};
use wire::handshake::{Hello, Purpose};

use super::*;
use crate::gateway::Gateway;
use crate::tests;

#[test]
fn repeated_notices_that_a_gateway_can_come_are_limited() {
    let (host, start) = (&tests::gateway("h:1").trunks.host, Instant::now());
    let (one, two, three) = (TrunkId(1), TrunkId(2), TrunkId(3));
    let notified = (0..1000).filter(|_| host.may_notify(one, two, start)).count();
    assert_eq!((notified, host.may_notify(one, three, start), host.may_notify(three, two, start)), (1, true, true));
    assert!(host.may_notify(one, two, start + AGAIN));
}

struct MeetingPlace {
    gateway: Rc<Gateway>,
    address: String,
}

impl MeetingPlace {
    async fn open() -> MeetingPlace {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let gateway = tests::gateway(&address);
        let accepting = gateway.clone();
        tokio::task::spawn_local(async move { accepting.accept(listener).await });
        MeetingPlace { gateway, address }
    }

    /// Site a asks to meet site b, as if both trunks were up. Returns the meeting and both secrets.
    fn call(&self, link: u16) -> (JobId, [Secret; 2]) {
        let mut guests = self.gateway.trunks.host.guests();
        guests.iter_mut().for_each(|guest| guest.up = true);
        let secrets = [Secret::new([1; 32]), Secret::new([2; 32])];
        let wish = Wish { site: "b".into(), gateway: "gw1".into(), link };
        let mut meetings = self.gateway.trunks.host.meetings.borrow_mut();
        let calls = meetings.ask(TrunkId(0), &wish, &guests, secrets.clone(), Instant::now()).unwrap();
        (calls.number, secrets)
    }

    async fn go(&self, number: JobId, site: &str, secret: &Secret) -> Result<TcpStream, HandshakeError> {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let nowhere = Address::standalone("0.0.0.0:0".parse().unwrap());
        let hello = Hello {
            purpose: Purpose::Meet,
            job: number,
            from: nowhere,
            to: nowhere,
            site: site.into(),
            gateway: "gw1".into(),
            link: 0,
            nonce: [0; 32],
        };
        initiate(&mut stream, hello, secret, &[]).await.map(|_| stream)
    }

    async fn meet(&self, link: u16) -> [TcpStream; 2] {
        let (number, [one, two]) = self.call(link);
        let (a, b) = tokio::join!(self.go(number, "a", &one), self.go(number, "b", &two));
        [a.unwrap(), b.unwrap()]
    }
}

fn within(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = Duration::from_secs(20);
    LocalSet::new().block_on(&runtime, async { timeout(limit, test()).await.expect("a test that ends") });
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 251) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

#[test]
fn each_gets_what_the_other_sends_and_both_close_together() {
    within(async || {
        let place = MeetingPlace::open().await;
        let [mut a, mut b] = place.meet(0).await;
        let (to_b, to_a) = (content(3_000_000, 1), content(2_000_000, 2));
        {
            let ((mut read_a, mut write_a), (mut read_b, mut write_b)) = (a.split(), b.split());
            let (mut at_a, mut at_b) = (vec![0; to_a.len()], vec![0; to_b.len()]);
            tokio::try_join!(
                write_a.write_all(&to_b),
                write_b.write_all(&to_a),
                read_a.read_exact(&mut at_a),
                read_b.read_exact(&mut at_b)
            )
            .unwrap();
            assert!(at_a == to_a && at_b == to_b, "other bytes than were sent");
        }
        a.write_all(b"last words").await.unwrap();
        drop(a);
        let mut rest = Vec::new();
        b.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last words");
        while !place.gateway.trunks.host.cuts.borrow().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(place.gateway.path.counters.snapshot().held, 0);
    });
}

#[test]
fn an_uncalled_gateway_gets_no_seat_and_harms_nobody() {
    within(async || {
        let place = MeetingPlace::open().await;
        let (number, [one, two]) = place.call(0);
        for (number, site, secret, words) in [
            (JobId(number.0 + 1), "a", &one, "no meeting 1"),
            (number, "z", &one, "no meeting 0 with gateway gw1 of site z"),
            // A guest without the secret cannot tell whether the place knows it, and leaves.
            (number, "a", &two, "it does not know our secret"),
            (number, "b", &one, "it does not know our secret"),
            (number, "a", &Secret::NONE, "it does not know our secret"),
        ] {
            let error = place.go(number, site, secret).await.unwrap_err();
            let fault = matches!(error, HandshakeError::Fault(Fault::Refused(_) | Fault::Impostor));
            assert!(fault && error.to_string().contains(words), "{error}");
        }
        let (a, b) = tokio::join!(place.go(number, "a", &one), async {
            // A second connection with the same secret, as an eavesdropper might try.
            sleep(Duration::from_millis(50)).await;
            let error = place.go(number, "a", &one).await.unwrap_err().to_string();
            assert!(error.contains("this seat is taken"), "{error}");
            place.go(number, "b", &two).await
        });
        let [mut a, mut b] = [a.unwrap(), b.unwrap()];
        a.write_all(b"unharmed").await.unwrap();
        let mut heard = [0; 8];
        b.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"unharmed");
        assert_eq!(place.gateway.path.counters.snapshot().refused, 6);
    });
}

#[test]
fn a_slow_reader_stops_the_writer_and_memory_stays_bounded() {
    within(async || {
        let place = MeetingPlace::open().await;
        let [a, mut b] = place.meet(0).await;
        let sent = content(40 << 20, 3);
        let mut at = 0;
        // Writes as much as all buffers on the path take.
        while timeout(Duration::from_millis(300), a.writable()).await.is_ok() {
            match a.try_write(&sent[at..]) {
                Ok(count) => at += count,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            assert!(at < sent.len(), "nothing stops the writer");
        }
        let held = place.gateway.path.counters.snapshot().high_water;
        assert!(held > 0 && held <= pipe::MOST_HELD / 2, "{held}");
        let mut got = vec![0; at];
        b.read_exact(&mut got).await.unwrap();
        assert!(got == sent[..at], "other bytes than were sent");
    });
}

#[test]
fn a_later_meeting_of_a_pair_ends_the_earlier_one_and_no_other() {
    within(async || {
        let place = MeetingPlace::open().await;
        let [_a, mut b] = place.meet(0).await;
        let [mut other_a, mut other_b] = place.meet(1).await;
        let [mut new_a, mut new_b] = place.meet(0).await;
        assert_eq!(b.read(&mut [0; 8]).await.unwrap(), 0, "the earlier talk is over");
        for (a, b) in [(&mut other_a, &mut other_b), (&mut new_a, &mut new_b)] {
            a.write_all(b"x").await.unwrap();
            assert_eq!(b.read_u8().await.unwrap(), b'x');
        }
        assert_eq!(place.gateway.trunks.host.cuts.borrow().len(), 2);
    });
}

#[test]
fn a_place_that_lets_nobody_meet_says_so() {
    within(async || {
        let place = MeetingPlace::open().await;
        let wish = Wish { site: "b".into(), gateway: "gw1".into(), link: 0 };
        let reason = place.gateway.trunks.host.introduce(TrunkId(0), &wish).unwrap_err();
        assert!(reason.to_string().contains("gateway gw1 of site b is not connected to it"), "{reason}");
        place.gateway.sites.file.borrow_mut().sites[2].gateways[0].meeting = false;
        let reason = place.gateway.trunks.host.introduce(TrunkId(0), &wish).unwrap_err();
        assert!(reason.to_string().contains("does not let others meet there"), "{reason}");
    });
}
