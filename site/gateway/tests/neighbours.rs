//! Strangers who share an address with the honest: other users of a login node, or machines behind the same NAT. They
//! come back as soon as they are dropped, and peers that prove a secret are served first.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use client::{Client, Gateway, Role};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use types::{Identity, NodeId, SiteId, Slot};

const ROSTER: &str = "a:n1*8;b:n1*2";
/// More than a small gateway has places for connections that it has not admitted.
const STRANGERS: usize = 700;

/// Returns the first bytes that a peer sends when it connects to this gateway. A relay of the test records them, and
/// the peer is admitted.
async fn first_bytes(gateway: &Gateway, role: &Role) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.9:0").await.unwrap();
    let (through, to) = (listener.local_addr().unwrap().to_string(), gateway.address.clone());
    let relay = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        let mut bytes = vec![0; 4096];
        let length = near.read(&mut bytes).await.unwrap();
        bytes.truncate(length);
        far.write_all(&bytes).await.unwrap();
        tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        bytes
    });
    let gateway = Gateway { address: through, ..gateway.clone() };
    within("an honest peer", Client::connect(&gateway, role)).await.unwrap();
    relay.await.unwrap()
}

/// Strangers at the address of everybody else here. They run in a thread of their own until they are dropped.
struct Crowd {
    opened: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Crowd {
    /// `openings`: the first bytes that they send, in turn.
    fn gather(address: &str, openings: Vec<Vec<u8>>) -> Crowd {
        let (opened, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, end, address) = (opened.clone(), ended.clone(), address.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for number in 0..STRANGERS {
                    let (count, address) = (count.clone(), address.clone());
                    let opening = openings[number % openings.len()].clone();
                    tokio::spawn(async move {
                        let mut answer = [0; 4096];
                        loop {
                            // The queue of the port may be full.
                            let Ok(mut stream) = TcpStream::connect(&address).await else {
                                tokio::time::sleep(Duration::from_millis(10)).await;
                                continue;
                            };
                            count.fetch_add(1, Relaxed);
                            if stream.write_all(&opening).await.is_ok() {
                                while let Ok(1..) = stream.read(&mut answer).await {}
                            }
                        }
                    });
                }
                while !end.load(Relaxed) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        });
        Crowd { opened, ended, thread: Some(thread) }
    }

    /// Waits until all have come and many have come again.
    async fn is_busy(&self) {
        within("the crowd", async {
            while self.opened.load(Relaxed) < 2 * STRANGERS {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn a_crowd_at_ones_own_address_that_returns_at_once_keeps_no_user_agent_or_rank_out() {
    gateway_tasks::open_files::raise();
    let sites = start(&Plan::default());
    let first = open(&sites[0], "a", 1, ROSTER).await;
    let user = Role::Client { secret: sites[0].client_secret.clone() };
    let agent = Identity { site: SiteId(0), slot: Slot::agent(NodeId(0)).unwrap() };
    // The strangers have seen an honest user, an honest agent and an honest rank connect.
    let seen = [
        first_bytes(&sites[0].gateway, &user).await,
        first_bytes(&sites[0].gateway, &first.role(agent)).await,
        first_bytes(&sites[0].plain(), &first.role(rank(0, 0))).await,
    ];
    assert!(seen[0][0] == 0x16 && seen[1][0] == 0x16 && seen[2].starts_with(b"LBRIDGE"));
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let openings =
        vec![Vec::new(), half(&seen[0]), half(&seen[2]), seen[0].clone(), seen[1].clone(), seen[2].clone(), Vec::new()];
    let crowd = Crowd::gather(&sites[0].inside, openings);
    crowd.is_busy().await;
    // Each of these users has one attempt.
    for number in 0..20 {
        let connected = within("a user", Client::connect(&sites[0].gateway, &user)).await;
        connected.unwrap_or_else(|error| panic!("user {number}: {error}"));
    }
    let mut job = open(&sites[0], "a", 2, ROSTER).await;
    let at_agent = within("the agent", Client::connect(&sites[0].gateway, &job.role(agent))).await.unwrap();
    // The agent answers pings meanwhile.
    let mut at_agent = Launcher::new(at_agent);
    let mut ranks = Vec::new();
    for number in 0..8 {
        let connected = within("a rank", Client::connect(&sites[0].plain(), &job.role(rank(0, number)))).await;
        ranks.push(connected.unwrap_or_else(|error| panic!("rank {number}: {error}")));
    }
    let mut peer = sites[1].member(&job, rank(1, 8)).await;
    ranks[0].send(data(&job, rank(0, 0), rank(1, 8), 0), b"through the crowd").await.unwrap();
    assert_eq!(receive(&mut peer).await.payload, b"through the crowd");
    at_agent.send(data(&job, agent, launcher(0), 0), b"hello").await.unwrap();
    assert_eq!(receive(&mut job.launcher).await.payload, b"hello");
    assert!(sites[0].counters.snapshot().refused > 100, "nobody was sent away");
}
