//! Half round-trip times between two endpoints in two processes on this host, over shared memory and over the network,
//! compared with a plain TCP socket that carries the same bytes: `cargo run --release -p landbridge-endpoint --example
//! pingpong`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use endpoint::operation::{CompleteWhen, Match, RecvOp, SendOp};
use endpoint::{Config, Endpoint, JobConfig, PeerId, UserData};
use memory::{Buffer, Regions};
use pool::{Region, Shape};
use types::{Address, JobId, Rank};
use wire::Secret;

const SIZES: [usize; 8] = [0, 64, 1024, 4096, 16_384, 65_536, 1 << 20, 4 << 20];

fn rounds(size: usize) -> usize {
    if size > 100_000 { 200 } else { 4000 }
}

/// Opens rank `rank` of the two; in a job with shared memory if there is a region.
fn open(rank: u32, memory: Option<&str>) -> Endpoint {
    let mut config = Config::standalone("127.0.0.1:0".parse().unwrap());
    config.job = memory.map(|path| JobConfig {
        id: JobId(1),
        secret: Secret::new([1; 32]),
        roster: "here:n1*2".parse().unwrap(),
        rank: Rank(rank),
        gateways: Vec::new(),
        watched: false,
        window: 1 << 20,
        encrypted: None,
        memory: vec![path.into()],
    });
    let bytes = |name, limit: &mut u64| {
        if let Ok(text) = std::env::var(name) {
            *limit = types::quantity::parse_bytes(&text).unwrap();
        }
    };
    bytes("LANDBRIDGE_EAGER_MEMORY", &mut config.limits.eager_memory);
    let mut single_copy = 0;
    bytes("LANDBRIDGE_SINGLE_COPY", &mut single_copy);
    config.limits.single_copy = Some(single_copy).filter(|least| *least > 0);
    Endpoint::open(config, 0, Arc::new(Regions::default())).unwrap()
}

struct Side {
    endpoint: Endpoint,
    peer: PeerId,
    out: Option<Buffer>,
    inn: Option<Buffer>,
}

impl Side {
    fn send(&mut self, size: usize) {
        let buffer = self.out.take().unwrap_or_else(|| Buffer::owned(vec![1; size]));
        let user = UserData::default();
        let op = SendOp { to: self.peer, tag: Some(1), data: None, buffer, complete: CompleteWhen::Sent, user };
        self.endpoint.send(op).unwrap();
    }

    fn receive(&mut self, size: usize) {
        let buffer = self.inn.take().unwrap_or_else(|| Buffer::owned(vec![0; size]));
        let matching = Match { from: Some(self.peer), tagged: true, tag: 1, ignore: 0 };
        self.endpoint.receive(RecvOp { matching, buffer, multi: None, user: UserData::default() }).unwrap();
        loop {
            match self.endpoint.next_completion() {
                Some(done) if done.buffer.is_some() => {
                    self.inn = done.buffer;
                    return;
                }
                Some(_) => {}
                None => {
                    self.endpoint.progress();
                }
            }
        }
    }
}

fn report(name: &str, size: usize, mut samples: Vec<f64>) {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[(samples.len() as f64 * share) as usize];
    println!("{name:10} {size:8} B   min {:8.2}   p50 {:8.2} us", samples[0], at(0.5));
}

fn child(memory: Option<&str>) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let bytes: Vec<u8> = line.trim().split(',').map(|word| word.parse().unwrap()).collect();
    let mut endpoint = open(1, memory);
    let peer = endpoint.peer(Address::from_bytes(&bytes.try_into().unwrap()).unwrap());
    let mut side = Side { endpoint, peer, out: None, inn: None };
    let own = side.endpoint.address().to_bytes().map(|byte| byte.to_string()).join(",");
    println!("{own}");
    for size in SIZES {
        (side.out, side.inn) = (None, None);
        for _ in 0..rounds(size) {
            side.receive(size);
            side.send(size);
        }
    }
    while !side.endpoint.is_idle() {
        side.endpoint.progress();
    }
    if memory.is_some() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    for size in SIZES {
        let mut bytes = vec![0; size.max(1)];
        for _ in 0..rounds(size) {
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    }
}

fn main() {
    let memory = std::env::args().nth(2);
    if std::env::args().nth(1).as_deref() == Some("child") {
        return child(memory.as_deref());
    }
    let shape = Shape { job: JobId(1), first: 0, ranks: 2 };
    let region = Region::unnamed(Path::new("/dev/shm"), shape).unwrap();
    measure(Some(&format!("/proc/{}/fd/{}", std::process::id(), region.file().as_raw_fd())));
    measure(None);
}

fn measure(memory: Option<&str>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("child").args(memory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut endpoint = open(0, memory);
    let own = endpoint.address().to_bytes().map(|byte| byte.to_string()).join(",");
    writeln!(process.stdin.as_mut().unwrap(), "{own}").unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let bytes: Vec<u8> = lines.next().unwrap().unwrap().split(',').map(|word| word.parse().unwrap()).collect();
    let peer = endpoint.peer(Address::from_bytes(&bytes.try_into().unwrap()).unwrap());
    let mut side = Side { endpoint, peer, out: None, inn: None };
    for size in SIZES {
        (side.out, side.inn) = (None, None);
        let mut samples = Vec::new();
        for _ in 0..rounds(size) {
            let start = Instant::now();
            side.send(size);
            side.receive(size);
            samples.push(start.elapsed().as_secs_f64() * 5e5);
        }
        report(if memory.is_some() { "memory" } else { "network" }, size, samples);
    }
    if memory.is_none() {
        let mut stream = TcpStream::connect(lines.next().unwrap().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        for size in SIZES {
            let mut bytes = vec![0; size.max(1)];
            let mut samples = Vec::new();
            for _ in 0..rounds(size) {
                let start = Instant::now();
                stream.write_all(&bytes).unwrap();
                stream.read_exact(&mut bytes).unwrap();
                samples.push(start.elapsed().as_secs_f64() * 5e5);
            }
            report("socket", size, samples);
        }
    }
    drop(side);
    process.wait().unwrap();
}
