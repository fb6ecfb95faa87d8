//! Cost of many ranks and flows: gateway CPU per frame and gateway memory held, from 20 ranks with 100 flows up to
//! 1,000 ranks with 10,000. Every rank has ten flows with one 1 KiB frame in flight each. The next frame is sent when
//! that one is answered.
//!
//! `cargo bench -p landbridge-gateway --bench crowd` prints a table. Only ratios within one run mean anything.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "threads.rs"]
mod threads;

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

use client::{Client, Receiver, Sender};
use support::{Plan, Running, data, open, rank, start};
use threads::{cpu_of_threads, threads_named};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;
use tokio::time::Instant;
use types::Identity;
use wire::{FrameHeader, FrameKind};

const FLOWS_EACH: usize = 10;
const PAYLOAD: usize = 1 << 10;
/// Total frames, questions plus answers.
const FRAMES: u64 = 300_000;
const WARM_UP: u64 = 50_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>6} {:>7} {:>17} {:>8} {:>12} {:>13}",
        "ranks", "flows", "CPU us per frame", "of first", "held at most", "allowed"
    )
    .unwrap();
    let mut first = None;
    for ranks in [20, 100, 300, 1000] {
        // Windows are promised per pair of ranks. Almost none of the memory they may take in total is used.
        let sites = start(&Plan { memory: "64GiB", ..Plan::default() });
        let cpu_us = LocalSet::new().block_on(&runtime, crowd(&sites, ranks / 2));
        let first = *first.get_or_insert(cpu_us);
        let high = sites.iter().map(|site| site.counters.snapshot().high_water).max().unwrap();
        let flows = ranks / 2 * FLOWS_EACH * 2;
        let allowed = flows * (PAYLOAD + 32);
        writeln!(out, "{ranks:>6} {flows:>7} {cpu_us:>17.2} {:>8.2} {high:>12} {allowed:>13}", cpu_us / first).unwrap();
        assert!(high <= (2 * allowed + (1 << 20)) as u64, "more was held than was in flight");
    }
}

/// Number of frames that have arrived at all ranks.
struct Count {
    come: Cell<u64>,
    warm: Notify,
    all: Notify,
}

/// CPU microseconds per frame, for both gateways together.
async fn crowd(sites: &[Running], half: usize) -> f64 {
    let job = open(&sites[0], "a", 1, &format!("a:n1*{half};b:n1*{half}")).await;
    let count = Rc::new(Count { come: Cell::new(0), warm: Notify::new(), all: Notify::new() });
    let mut all = Vec::new();
    for at in 0..2 * half {
        let site = usize::from(at >= half);
        let me = rank(site as u16, at as u32);
        let client = sites[site].member(&job, me).await;
        // This rank's flows go to ranks of the other site.
        let peers = (0..FLOWS_EACH).map(|flow| (at + flow * (half / FLOWS_EACH).max(1)) % half + (1 - site) * half);
        let peers = peers.map(|peer| rank(1 - site as u16, peer as u32)).collect::<Vec<_>>();
        all.push((client, me, peers));
    }
    let files = threads_named("gateway");
    for (client, me, peers) in all {
        let header = data(&job, me, me, 0);
        tokio::task::spawn_local(serve(client, header, peers, count.clone()));
    }
    count.warm.notified().await;
    let (before, frames, since) = (cpu_of_threads(&files), count.come.get(), Instant::now());
    count.all.notified().await;
    let (used, frames) = (cpu_of_threads(&files) - before, count.come.get() - frames);
    assert!(since.elapsed().as_secs() < 120, "the gateways make almost no progress");
    used.as_secs_f64() * 1e6 / frames as f64
}

/// A rank: sends a frame to each of its peers, answers the frames it receives, and sends again when it is answered. An
/// acknowledgement counts as an answer.
async fn serve(client: Client, header: FrameHeader, peers: Vec<Identity>, count: Rc<Count>) {
    let (receiver, sender) = client.split();
    let (queue, queued) = mpsc::unbounded_channel();
    peers.iter().for_each(|peer| queue.send((FrameKind::Data, *peer)).unwrap());
    tokio::task::spawn_local(write(sender, queued, header));
    read(receiver, queue, count).await;
}

async fn write(mut sender: Sender, mut queued: mpsc::UnboundedReceiver<(FrameKind, Identity)>, header: FrameHeader) {
    while let Some((kind, to)) = queued.recv().await {
        let payload: &[u8] = if kind == FrameKind::Data { &[1; PAYLOAD] } else { &[] };
        if sender.send(FrameHeader { kind, to, ..header }, payload).await.is_err() {
            return;
        }
    }
}

async fn read(mut receiver: Receiver, queue: mpsc::UnboundedSender<(FrameKind, Identity)>, count: Rc<Count>) {
    while let Ok(Some(frame)) = receiver.receive().await {
        let answer = match frame.header.kind {
            FrameKind::Data => FrameKind::Ack,
            FrameKind::Ack => FrameKind::Data,
            _ => continue,
        };
        count.come.set(count.come.get() + 1);
        match count.come.get() {
            WARM_UP => count.warm.notify_one(),
            come if come == WARM_UP + FRAMES => count.all.notify_one(),
            _ => {}
        }
        if queue.send((answer, frame.header.from)).is_err() {
            return;
        }
    }
}
