//! Strangers on a site's own network: one that takes the port of a gateway that is down, one that relays a connection
//! meant for another gateway, and one that eavesdrops.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex};

use client::key::SiteKey;
use client::{Client, ClientError, Gateway, Role};
use support::{Plan, data, free_address, open, rank, receive, start, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use types::sites::Keys;
use wire::handshake::Handshake;
use wire::{FrameKind, ProvingEnd, Secret};

const ROSTER: &str = "a:n1*2;b:n1*1";

/// All bytes that went through it, in both directions.
type Captured = Arc<Mutex<Vec<u8>>>;

/// Relays connections to an address of its own, and records them.
async fn recorder(to: &str) -> (String, Captured) {
    let listener = TcpListener::bind("127.0.0.9:0").await.unwrap();
    let (address, captured) = (listener.local_addr().unwrap().to_string(), Captured::default());
    let (to, keep) = (to.to_owned(), captured.clone());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            // The gateway may still be starting.
            let Ok(far) = TcpStream::connect(&to).await else { continue };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            for (mut from, mut to) in [(near_in, far_out), (far_in, near_out)] {
                let keep = keep.clone();
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes).await {
                        keep.lock().unwrap().extend_from_slice(&bytes[..count]);
                        if to.write_all(&bytes[..count]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    (address, captured)
}

/// Answers every connection with these bytes once something has arrived, and records the bytes it receives.
async fn impostor(answer: Vec<u8>) -> (String, Captured) {
    let listener = TcpListener::bind("127.0.0.9:0").await.unwrap();
    let (address, told) = (listener.local_addr().unwrap().to_string(), Captured::default());
    let keep = told.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = [0; 4096];
            let mut answered = false;
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                keep.lock().unwrap().extend_from_slice(&bytes[..count]);
                if !std::mem::replace(&mut answered, true) {
                    let _ = stream.write_all(&answer).await;
                }
            }
        }
    });
    (address, told)
}

fn holds(captured: &Captured, what: &[u8]) -> bool {
    captured.lock().unwrap().windows(what.len()).any(|bytes| bytes == what)
}

/// Returns true if the captured bytes contain a usable part of a secret, as bytes or as text.
fn holds_secret(captured: &Captured, secret: &Secret) -> bool {
    let hex = secret.to_hex();
    let raw: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    holds(captured, &raw[..16]) || holds(captured, &hex.as_bytes()[..32])
}

fn connect_error(result: Result<Client, ClientError>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

#[tokio::test]
async fn who_takes_the_port_of_a_gateway_learns_nothing() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let user = Role::Client { secret: sites[0].client_secret.clone() };
    let expected = sites[0].gateway.keys.unwrap().current.to_string();
    let refusal = Handshake::Challenge { nonce: [1; 32], proof: [2; 32] }.encode();
    for answer in [Vec::new(), b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), refusal] {
        let (address, told) = impostor(answer.clone()).await;
        for role in [&user, &job.role(rank(0, 0))] {
            let gateway = Gateway { address: address.clone(), ..sites[0].gateway.clone() };
            // An impostor that sends nothing is given up after a while; this test does not wait for that.
            if answer.is_empty() {
                let _ =
                    tokio::time::timeout(std::time::Duration::from_millis(300), Client::connect(&gateway, role)).await;
                continue;
            }
            let error = connect_error(within("refusal", Client::connect(&gateway, role)).await);
            assert!(error.contains(&address) && error.contains(&expected), "{error}");
        }
        // A TLS hello, which reveals nothing about anybody.
        assert!(!holds(&told, b"LBRIDGE") && told.lock().unwrap().first() == Some(&0x16));
    }
    // Another user's gateway, as a user may run one on the login node.
    let gateway = Gateway { address: sites[1].inside.clone(), ..sites[0].gateway.clone() };
    let error = connect_error(Client::connect(&gateway, &user).await);
    let shown = sites[1].gateway.keys.unwrap().current.to_string();
    for named in [&gateway.address, &expected, &shown] {
        assert!(error.contains(named.as_str()), "{error}");
    }
}

#[tokio::test]
async fn a_user_does_not_show_a_secret_to_a_gateway_without_a_key() {
    let (address, told) = impostor(Vec::new()).await;
    let gateway = Gateway { site: "a".into(), name: "gw1".into(), address, keys: None };
    let error = Client::connect(&gateway, &Role::Client { secret: Secret::new([1; 32]) }).await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownKey { .. }), "{error}");
    assert!(told.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_passed_on_to_another_gateway_of_the_site_is_refused() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (relay, captured) = recorder(&sites[0].inside).await;
    // gw0 is down; the program on its port relays to gw1, which has the same key and the same job.
    let dead = Gateway { name: "gw0".into(), address: relay, ..sites[0].gateway.clone() };
    let user = Role::Client { secret: sites[0].client_secret.clone() };
    for (role, keys) in [(&user, dead.keys), (&job.role(rank(0, 0)), dead.keys), (&job.role(rank(0, 0)), None)] {
        let gateway = Gateway { keys, ..dead.clone() };
        let error = connect_error(within("refusal", Client::connect(&gateway, role)).await);
        assert!(error.contains("this is gateway gw1 of site a, not gw0 of a"), "{error}");
    }
    assert!(holds(&captured, b"LBRIDGE"), "the rank's hello was passed on");
    assert!(!holds_secret(&captured, &job.secret) && !holds_secret(&captured, &sites[0].client_secret));
    // The same identity is free: nobody was admitted under its name.
    sites[0].member(&job, rank(0, 0)).await;
}

#[tokio::test]
async fn who_passes_on_to_the_right_gateway_cannot_end_tls_in_between() {
    let sites = start(&Plan::default());
    sites[0].client().await;
    // It shows a key of its own to the user.
    let stranger = SiteKey::random().unwrap();
    let session = client::tls::config(&stranger).unwrap().accept().unwrap();
    let listener = TcpListener::bind(free_address("127.0.0.9")).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let said = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut said = Vec::new();
        if let Ok(mut stream) = client::tls::TlsStream::handshake(tcp, session).await {
            let _ = stream.read_to_end(&mut said).await;
        }
        said
    });
    let gateway = Gateway { address, ..sites[0].gateway.clone() };
    let user = Role::Client { secret: sites[0].client_secret.clone() };
    let error = within("refusal", Client::connect(&gateway, &user)).await.unwrap_err();
    assert!(matches!(error, ClientError::OtherKey { shown, .. } if shown == stranger.fingerprint()), "{error}");
    assert_eq!(within("its end", said).await.unwrap(), b"", "nothing was said to it");
    // Even if the user had been fooled: proofs made in one session are not valid in another.
    let fooled = Gateway { keys: Some(Keys { current: stranger.fingerprint(), next: None }), ..gateway };
    assert_ne!(fooled.keys, sites[0].gateway.keys);
}

#[tokio::test]
async fn a_rank_refuses_a_gateway_that_does_not_know_the_jobs_secret() {
    let secret = Secret::new([7; 32]);
    let proof = Secret::new([8; 32]).prove(ProvingEnd::Acceptor, b"something");
    let (address, told) = impostor(Handshake::Challenge { nonce: [3; 32], proof }.encode()).await;
    let gateway = Gateway { site: "a".into(), name: "gw1".into(), address: address.clone(), keys: None };
    let role = Role::Member { job: types::JobId(1), secret: secret.clone(), identity: rank(0, 0) };
    let error = connect_error(within("refusal", Client::connect(&gateway, &role)).await);
    assert!(error.contains(&address) && error.contains("it does not know our secret"), "{error}");
    let hello = told.lock().unwrap().len();
    assert!(hello < 200 && !holds_secret(&told, &secret), "{hello} bytes: more than a hello");
}

#[tokio::test]
async fn no_secret_is_in_any_byte_on_the_way_to_a_gateway() {
    let mut sites = start(&Plan::default());
    let (address, captured) = recorder(&sites[0].inside).await;
    let direct = std::mem::replace(&mut sites[0].gateway.address, address);
    let job = open(&sites[0], "a", 1, ROSTER).await;
    // Once as an agent and once as a rank.
    let agent = within("agent", Client::connect(&sites[0].gateway, &job.role(rank(0, 1)))).await.unwrap();
    let mut one = sites[0].member(&job, rank(0, 0)).await;
    let mut two = sites[1].member(&job, rank(1, 2)).await;
    one.send(data(&job, rank(0, 0), rank(1, 2), 0), b"as it is").await.unwrap();
    let frame = receive(&mut two).await;
    assert_eq!((frame.header.kind, &frame.payload[..]), (FrameKind::Data, &b"as it is"[..]));
    assert!(holds(&captured, b"as it is"), "what ranks say to their gateway is not encrypted");
    assert!(!holds_secret(&captured, &job.secret), "the job's secret");
    assert!(!holds_secret(&captured, &sites[0].client_secret), "the user's secret");
    assert!(!holds(&captured, b"JobOpen"), "what a launcher says");
    drop((agent, direct));
}

#[tokio::test]
async fn users_and_agents_inside_tls_send_and_receive_whole_frames() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let mut one = within("member", Client::connect(&sites[0].gateway, &job.role(rank(0, 0)))).await.unwrap();
    let mut two = within("member", Client::connect(&sites[1].gateway, &job.role(rank(1, 2)))).await.unwrap();
    for sequence in 0..64u32 {
        let payload: Vec<u8> = (0..sequence * 257).map(|at| (at * 7 + sequence) as u8).collect();
        let payload = &payload[..payload.len().min(16 << 10)];
        one.send(data(&job, rank(0, 0), rank(1, 2), sequence), payload).await.unwrap();
        let frame = receive(&mut two).await;
        assert_eq!(frame.payload, payload);
        two.send(data(&job, rank(1, 2), rank(0, 0), sequence), payload).await.unwrap();
        assert_eq!(receive(&mut one).await.payload, payload);
    }
}

#[tokio::test]
async fn a_site_that_is_encrypted_inside_refuses_ranks_in_clear() {
    let mut sites = start(&Plan { encrypted: vec!["a"], ..Plan::default() });
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let error = connect_error(within("refusal", Client::connect(&sites[0].plain(), &job.role(rank(0, 0)))).await);
    assert!(error.contains("site a: `inside` is \"encrypted\"; this rank connected without TLS"), "{error}");
    // It is counted once the connection is closed.
    within("the count", async {
        while sites[0].counters.snapshot().refused == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    // The same rank with TLS, and one of a site that is not encrypted.
    let (address, captured) = recorder(&sites[0].inside).await;
    sites[0].gateway.address = address;
    let mut one = within("rank", Client::connect(&sites[0].gateway, &job.role(rank(0, 0)))).await.unwrap();
    let mut two = sites[1].member(&job, rank(1, 2)).await;
    one.send(data(&job, rank(0, 0), rank(1, 2), 0), b"as it is").await.unwrap();
    assert_eq!(receive(&mut two).await.payload, b"as it is");
    two.send(data(&job, rank(1, 2), rank(0, 0), 0), b"as it was").await.unwrap();
    assert_eq!(receive(&mut one).await.payload, b"as it was");
    assert!(!holds(&captured, b"as it") && !holds(&captured, b"LBRIDGE"));
    // Agents get the same setting.
    let orders = sites[0].agents.orders();
    assert!(orders.iter().all(|order| order.inside == types::sites::Inside::Encrypted) && !orders.is_empty());
}
