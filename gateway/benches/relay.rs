//! Added latency and CPU of two gateways in a row (member, gateway, trunk, gateway, member), against two `socat` in a row,
//! which neither encrypt nor check anything, `ssh -L` and its sshd, and a direct connection; all on loopback, in one run.
//!
//! `cargo bench -p landbridge-gateway --bench relay` prints a table. Only ratios within one run mean anything.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "threads.rs"]
mod threads;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Job, Plan, data, free_address, open, rank, start};
use threads::{cpu_of_processes, cpu_of_threads, cpu_of_tree, threads_named};
use types::{Address, Identity};
use wire::handshake::{Handshake, Hello, Purpose};
use wire::{FrameHeader, FrameKind};

const HEADER: usize = wire::frame::HEADER_LEN;
const ROUNDS: usize = 40;
const PINGS: usize = 250;
const STREAM: usize = 1 << 30;
const FRAME: usize = 16 << 10;
/// Bytes under way at most, as an end-to-end window would allow.
const WINDOW: usize = 2 << 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sites = start(&Plan { memory: "256MiB", ..Plan::default() });
    let job = runtime.block_on(open(&sites[0], "a", 1, "a:n1*1;b:n1*1"));
    let (a, b) = (rank(0, 0), rank(1, 1));
    let mut table = Vec::new();
    let mut compare = |path, ends, cpu: &dyn Fn() -> Duration| table.push((path, measure(ends, cpu, &job, a, b)));

    let ends = (member(&sites[0].inside, &job, a), member(&sites[1].inside, &job, b));
    let threads = threads_named("gateway");
    compare("two gateways", ends, &|| cpu_of_threads(&threads));

    let address = free_address("127.0.0.1");
    let listener = TcpListener::bind(&address).unwrap();
    let direct = || {
        let near = TcpStream::connect(&address).unwrap();
        (near, listener.accept().unwrap().0)
    };
    compare("direct", direct(), &|| Duration::ZERO);

    let (middle, front) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
    let socats = [socat(&middle, &address), socat(&front, &middle)];
    let chain = || {
        let near = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(&front).ok()
        });
        (near.unwrap(), listener.accept().unwrap().0)
    };
    let pids: Vec<u32> = socats.iter().map(|s| s.0.id()).collect();
    compare("two socat", chain(), &|| cpu_of_processes(&pids));
    drop(socats);

    // Like two gateways: one end encrypts, the other decrypts.
    let front = free_address("127.0.0.1");
    let tunnel = Tunnel::start(&front, &address);
    let chain = || {
        let near = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(&front).ok()
        });
        (near.expect("ssh -L does not listen"), listener.accept().unwrap().0)
    };
    compare("ssh -L", chain(), &|| tunnel.cpu());
    drop(tunnel);

    print(&table).unwrap();
}

/// What a path took.
struct Figures {
    /// Half a round trip of a 64-byte message, in the best round.
    latency: Duration,
    /// The time for [`STREAM`] bytes.
    seconds: Duration,
    /// What both programs in the path used for them.
    cpu: Duration,
}

fn print(table: &[(&str, Figures)]) -> std::io::Result<()> {
    let [_, (_, direct), ..] = table else { panic!("two gateways and direct come first") };
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
    Ok(())
}

/// Round trips, then a stream, between two ends; `cpu` is what the programs between them have used so far.
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

/// The handshake of a rank, without a runtime.
fn member(address: &str, job: &Job, identity: Identity) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let whoever = Address { socket: "0.0.0.0:0".parse().unwrap(), job: job.id.0 as u16, identity };
    let hello = Hello {
        purpose: Purpose::Member,
        job: job.id,
        from: whoever,
        to: whoever,
        site: String::new(),
        gateway: String::new(),
        link: 0,
    };
    let claims = hello.claims();
    stream.write_all(&Handshake::Hello(hello).encode()).unwrap();
    let Handshake::Challenge(challenge) = message(&mut stream) else { panic!() };
    stream.write_all(&Handshake::Proof(job.secret.prove(&challenge, &claims)).encode()).unwrap();
    assert!(matches!(message(&mut stream), Handshake::Welcome(_)));
    stream
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

/// An `ssh -L` to a private sshd, which end with this value.
struct Tunnel {
    sshd: Child,
    ssh: Child,
    _folder: tempfile::TempDir,
}

impl Tunnel {
    fn start(from: &str, to: &str) -> Tunnel {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]).status();
            assert!(made.unwrap_or_else(|e| panic!("ssh-keygen: {e}; install OpenSSH to compare")).success());
        }
        let daemon = free_address("127.0.0.1");
        let port = daemon.rsplit_once(':').unwrap().1;
        let settings = [
            format!("ListenAddress {daemon}\nHostKey {}\nAuthorizedKeysFile {}\n", path("host"), path("user.pub")),
            "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
                .into(),
        ];
        std::fs::write(path("sshd"), settings.concat()).unwrap();
        // Where its unprivileged child looks, if it is root.
        let _ = std::fs::create_dir_all("/run/sshd");
        let sshd = Command::new("/usr/sbin/sshd").args(["-D", "-f", &path("sshd")]).stderr(Stdio::null()).spawn();
        let sshd = sshd.unwrap_or_else(|e| panic!("sshd: {e}; install it to compare"));
        while TcpStream::connect(&daemon).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let options =
            ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes"];
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-N", "-q", "-i", &path("user"), "-p", port, "-L", &format!("{from}:{to}")]);
        for option in options {
            ssh.args(["-o", option]);
        }
        let ssh = ssh.arg("127.0.0.1").stdin(Stdio::null()).spawn().unwrap();
        Tunnel { sshd, ssh, _folder: folder }
    }

    /// What both ends have used so far; sshd has a process, or two, for the connection.
    fn cpu(&self) -> Duration {
        cpu_of_tree(self.sshd.id()) + cpu_of_tree(self.ssh.id())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for child in [&mut self.ssh, &mut self.sshd] {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A relay that ends with this value.
struct Socat(Child);

impl Drop for Socat {
    fn drop(&mut self) {
        // It may have ended with its connection.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socat(from: &str, to: &str) -> Socat {
    let (ip, port) = from.rsplit_once(':').unwrap();
    let child = Command::new("socat")
        .arg("-b131072")
        .arg(format!("TCP-LISTEN:{port},bind={ip},nodelay,reuseaddr"))
        .arg(format!("TCP:{to},nodelay"))
        .stdin(Stdio::null())
        .spawn();
    Socat(child.unwrap_or_else(|e| panic!("socat: {e}; install it to compare")))
}
