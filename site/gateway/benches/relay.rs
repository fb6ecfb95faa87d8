//! Added latency and CPU of two gateways in a row (member, gateway, trunk, gateway, member), compared on loopback with
//! two `socat` in a row, which neither encrypt nor check anything, with `ssh -L` and its sshd, and with a direct
//! connection. A second comparison, over a veth pair, is with wireguard-go and nebula tunnels. All in one run.
//!
//! `cargo bench -p landbridge-gateway --bench relay` prints a table. Only ratios within one run mean anything.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![allow(clippy::print_stderr, reason = "a benchmark reports what it leaves out")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "threads.rs"]
mod threads;
#[path = "tunnels.rs"]
mod tunnels;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use member::handshake::{Answer, Initiator};
use support::{Job, Plan, data, free_address, open, rank, start};
use threads::{cpu_of_processes, cpu_of_threads, threads_named};
use tunnels::{Process, SshForward, Tunnel, connect};
use types::{Address, Identity};
use wire::handshake::{Handshake, Hello, Purpose};
use wire::{FrameHeader, FrameKind};

const HEADER: usize = wire::frame::HEADER_LEN;
const ROUNDS: usize = 40;
const PINGS: usize = 250;
const STREAM: usize = 1 << 30;
const FRAME: usize = 16 << 10;
/// Most bytes in flight, as an end-to-end window would allow.
const WINDOW: usize = 2 << 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sites = start(&Plan { memory: "256MiB", ..Plan::default() });
    let job = runtime.block_on(open(&sites[0], "a", 1, "a:n1*1;b:n1*1"));
    let (a, b) = (rank(0, 0), rank(1, 1));
    let mut table = Vec::new();
    let mut compare = |path, ends, cpu: &dyn Fn() -> Duration| table.push((path, measure(ends, cpu, &job, a, b)));

    let ends = (member("a", &sites[0].inside, &job, a), member("b", &sites[1].inside, &job, b));
    let threads = threads_named("gateway");
    compare("two gateways", ends, &|| cpu_of_threads(&threads));

    let address = free_address("127.0.0.1");
    let listener = TcpListener::bind(&address).unwrap();
    let through = |front: &str| (connect(front), listener.accept().unwrap().0);
    compare("direct", through(&address), &|| Duration::ZERO);

    let (middle, front) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
    let socats = [socat(&middle, &address), socat(&front, &middle)];
    let pids = socats.each_ref().map(Process::id);
    compare("two socat", through(&front), &|| cpu_of_processes(&pids));
    drop(socats);

    // As with two gateways, one end encrypts and the other decrypts. The same holds for the tunnels below.
    let front = free_address("127.0.0.1");
    let ssh = SshForward::start(&front, &address);
    compare("ssh -L", through(&front), &|| ssh.cpu());
    drop(ssh);

    let mut compare_tunnel = |path, tunnel: Result<Tunnel, Box<dyn Error>>| match tunnel {
        Ok(tunnel) => compare(path, tunnel.connect(), &|| tunnel.cpu()),
        Err(missing) => eprintln!("skipping {path}: {missing}"),
    };
    compare_tunnel("wireguard-go", Tunnel::wireguard());
    compare_tunnel("nebula", Tunnel::nebula());

    print(&table).unwrap();
}

/// Measurements of one path.
struct Figures {
    /// Half a round trip of a 64-byte message, in the best round.
    latency: Duration,
    /// The time for [`STREAM`] bytes.
    seconds: Duration,
    /// CPU time that both programs in the path used for those bytes.
    cpu: Duration,
}

fn print(table: &[(&str, Figures)]) -> std::io::Result<()> {
    let [(_, gateways), (_, direct), others @ ..] = table else { panic!("two gateways and direct come first") };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<14} {:>14} {:>18} {:>10} {:>14}",
        "path", "half rtt / µs", "added per hop / µs", "GB/s", "CPU s/GB each"
    )?;
    for (path, figures) in table {
        let added = (figures.latency.as_secs_f64() - direct.latency.as_secs_f64()) * 1e6 / 2.0;
        writeln!(
            out,
            "{path:<14} {:>14.1} {added:>18.1} {:>10.2} {:>14.2}",
            figures.latency.as_secs_f64() * 1e6,
            STREAM as f64 / 1e9 / figures.seconds.as_secs_f64(),
            figures.cpu.as_secs_f64() / 2.0 / (STREAM as f64 / 1e9),
        )?;
    }
    for (path, figures) in others {
        let ratio = figures.cpu.as_secs_f64() / gateways.cpu.as_secs_f64();
        writeln!(out, "{path}: {ratio:.2} times the CPU of two gateways per byte")?;
    }
    Ok(())
}

/// Measures round trips, then a stream, between two ends. `cpu` is the CPU time the programs between them have used so
/// far.
fn measure(ends: (TcpStream, TcpStream), cpu: &dyn Fn() -> Duration, job: &Job, a: Identity, b: Identity) -> Figures {
    let (mut near, mut far) = ends;
    for end in [&near, &far] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let ping = data(job, a, b, 0).with_payload(&[1; 64]).unwrap();
    let pong = data(job, b, a, 0).with_payload(&[1; 64]).unwrap();
    let ack = FrameHeader::plain(FrameKind::Ack, job.id, b, a).encode();
    let echo = std::thread::spawn(move || {
        let mut buffer = vec![0; HEADER + 64];
        for _ in 0..ROUNDS * PINGS {
            far.read_exact(&mut buffer).unwrap();
            far.write_all(&pong).unwrap();
        }
        let mut buffer = vec![0; 256 << 10];
        let (mut got, mut acknowledged) = (0, 0);
        while got < STREAM {
            let count = far.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the path closed before the stream's end");
            got += count;
            if got - acknowledged >= WINDOW / 4 {
                acknowledged += WINDOW / 4;
                far.write_all(&ack).unwrap();
            }
        }
        far.write_all(&ack).unwrap();
        far
    });
    let mut buffer = vec![0; HEADER + 64];
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..PINGS {
            near.write_all(&ping).unwrap();
            near.read_exact(&mut buffer).unwrap();
        }
        best = best.min(begin.elapsed() / (2 * PINGS as u32));
    }
    let frame = data(job, a, b, 0).with_payload(&[2; FRAME - HEADER]).unwrap();
    let several = frame.repeat(4);
    let (begin, before) = (Instant::now(), cpu());
    let mut in_flight = 0;
    for _ in 0..STREAM / several.len() {
        while in_flight + several.len() > WINDOW {
            near.read_exact(&mut buffer[..HEADER]).unwrap();
            in_flight -= WINDOW / 4;
        }
        near.write_all(&several).unwrap();
        in_flight += several.len();
    }
    echo.join().unwrap();
    Figures { latency: best, seconds: begin.elapsed(), cpu: cpu() - before }
}

/// A rank's handshake, without an async runtime.
fn member(site: &str, address: &str, job: &Job, identity: Identity) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let anybody = Address { socket: "0.0.0.0:0".parse().unwrap(), job: job.id.0 as u16, identity };
    let hello = Hello {
        purpose: Purpose::Member,
        job: job.id,
        from: anybody,
        to: anybody,
        site: site.to_owned(),
        gateway: "gw1".to_owned(),
        link: 0,
        nonce: [identity.slot.0 as u8; 32],
    };
    let (mut initiator, first) = Initiator::new(hello, job.secret.clone(), &[]);
    stream.write_all(&first.encode()).unwrap();
    loop {
        match initiator.step(message(&mut stream)).unwrap() {
            Answer::Send(message) => stream.write_all(&message.encode()).unwrap(),
            Answer::Open(_) => return stream,
        }
    }
}

fn message(stream: &mut TcpStream) -> Handshake {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
        if let Some((message, _)) = Handshake::decode(&bytes, false).unwrap() {
            return message;
        }
    }
}

fn socat(from: &str, to: &str) -> Process {
    let (ip, port) = from.rsplit_once(':').unwrap();
    let mut command = Command::new("socat");
    command.arg("-b131072").arg(format!("TCP-LISTEN:{port},bind={ip},nodelay,reuseaddr"));
    // The next program may not be listening yet.
    Process::start(command.arg(format!("TCP:{to},nodelay,retry=100,interval=0.05")))
}
