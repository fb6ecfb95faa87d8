//! A member that sends a lot still hears that the gateway is alive, and a gateway that hangs is noticed by the members
//! that are sending to it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Connections, Entry, News};
use support::played::{GATEWAY, Key, Link};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::{FrameHeader, FrameKind};

const ROSTER: &str = "a:n1*2;b:n1*2";
const MOMENT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_member_that_sends_hears_each_second_that_its_gateway_is_alive() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut at_b = sites[1].member(&job, b).await;
    let (mut hears, mut says) = sites[0].member(&job, a).await.split();
    let began = Instant::now();
    let sending = async {
        for sequence in 0..70 {
            says.send(FrameHeader { sequence, ..data(&job, a, b, 0) }, b"on and on").await.unwrap();
            tokio::time::sleep(MOMENT).await;
        }
    };
    let receiving = async { while at_b.receive().await.unwrap().is_some() {} };
    let mut signs = 0;
    let listening = async {
        while let Some(frame) = hears.receive().await.unwrap() {
            signs += u32::from(frame.header.kind == FrameKind::Pong);
        }
    };
    tokio::select! { () = sending => {}, () = receiving => {}, () = listening => {} }
    let most = began.elapsed().as_secs() as u32;
    assert!(signs >= 2 && signs <= most, "{signs} signs of life in {most} s, none of which was asked for");
}

#[tokio::test]
async fn a_gateway_hears_each_second_that_the_one_it_sends_to_is_alive() {
    let key = Key::new();
    let played = Some(("m", key.fingerprint()));
    let plan = Plan { names: vec!["m", "a"], absent: vec!["m"], hidden: vec!["m"], played, ..Plan::default() };
    let sites = start(&plan);
    let (mut link, began) = (Link::dial(&sites[1], &key, "m", 1), Instant::now());
    while began.elapsed() < 3 * Duration::from_secs(1) {
        let says = FrameHeader::plain(FrameKind::Pong, types::JobId(0), GATEWAY, GATEWAY);
        assert!(link.write(&says.encode()));
        std::thread::sleep(MOMENT);
    }
    let signs = std::iter::from_fn(|| link.hear()).filter(|(header, _)| header.kind == FrameKind::Pong);
    assert_eq!(signs.take(2).count(), 2);
}

/// A connection to a gateway. Once `hangs` is set, it stops carrying bytes, which looks to the member as if the gateway
/// hung.
async fn way_that_hangs(listener: TcpListener, to: String, hangs: Arc<AtomicBool>) {
    while let Ok((near, _)) = listener.accept().await {
        let far = TcpStream::connect(&to).await.unwrap();
        let (near, far) = (near.into_split(), far.into_split());
        for (mut from, mut to) in [(near.0, far.1), (far.0, near.1)] {
            let hangs = hangs.clone();
            tokio::spawn(async move {
                let mut some = vec![0; 16 << 10];
                while let Ok(count @ 1..) = from.read(&mut some).await {
                    if hangs.load(Ordering::Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    to.write_all(&some[..count]).await.unwrap();
                }
            });
        }
    }
}

#[tokio::test]
async fn a_gateway_that_hangs_is_left_by_a_member_whose_socket_is_full() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gateway = sites[0].plain();
    let real = std::mem::replace(&mut gateway.address, listener.local_addr().unwrap().to_string());
    let hangs = Arc::new(AtomicBool::new(false));
    tokio::spawn(way_that_hangs(listener, real, hangs.clone()));
    let client = client::Client::connect(&gateway, &job.role(a)).await.unwrap();
    let mut all = Connections::new(a, client, Entry { gateway, role: job.role(a), opening: None });
    hangs.store(true, Ordering::Relaxed);
    for sequence in 0..1000 {
        all.send(0, data(&job, a, b, sequence), vec![0; 64 << 10]);
    }
    let lost = within("the end of a gateway that hangs", async {
        loop {
            if let (0, News::Lost(error)) = all.next().await {
                return error;
            }
        }
    });
    let error = tokio::time::timeout(Duration::from_secs(10), lost).await.unwrap();
    assert!(error.to_string().contains("no sign of life"), "{error}");
}
