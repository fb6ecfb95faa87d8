//! Encrypted paths made by other programs: `ssh -L`, and tunnels of `wireguard-go` and `nebula`, each between two
//! processes in two network namespaces. Everything started here ends when its value is dropped.

use std::error::Error;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::support::free_address;
use crate::threads::{cpu_of_processes, cpu_of_tree};

/// The names of a tunnel's two ends, their addresses on the wire between them, and their addresses inside the tunnel.
const ENDS: [&str; 2] = ["a", "b"];
const OUTER: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const INNER: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// Two processes that join two network namespaces over a veth pair, each with a TUN device.
pub(crate) struct Tunnel {
    // Dropped in this order.
    processes: [Process; 2],
    _leftovers: Vec<Leftover>,
    _folder: TempDir,
    namespaces: [Namespace; 2],
}

impl Tunnel {
    /// A tunnel by wireguard-go, which is WireGuard in user space. The error names the program or right that is missing
    /// here.
    pub(crate) fn wireguard() -> Result<Tunnel, Box<dyn Error>> {
        const REMEDY: &str =
            "go install golang.zx2c4.com/wireguard@v0.0.0-20260522210424-ecfc5a8d5446, and have it on PATH";
        let program = on_path(&["wireguard-go", "wireguard"], REMEDY)?;
        let wg = on_path(&["wg"], "install wireguard-tools")?;
        let namespaces = joined_namespaces()?;
        let folder = tempfile::tempdir().unwrap();
        let keys = ENDS.map(|end| folder.path().join(end));
        let public = keys.each_ref().map(|key| {
            std::fs::write(key, run(Command::new(&wg).arg("genkey"))).unwrap();
            run(Command::new(&wg).arg("pubkey").stdin(File::open(key).unwrap()))
        });
        // These sockets of all namespaces are in one folder.
        let names = ENDS.map(|end| format!("lb{}{end}", std::process::id()));
        let sockets = names.each_ref().map(|name| PathBuf::from(format!("/var/run/wireguard/{name}.sock")));
        let leftovers = sockets.iter().cloned().map(Leftover).collect();
        let processes = [0, 1].map(|end| {
            let mut command = Command::new(&program);
            // Without this it advises using the kernel's implementation.
            command.env("WG_PROCESS_FOREGROUND", "1").env("LOG_LEVEL", "error").args(["-f", &names[end]]);
            namespaces[end].inside(|| Process::start(&mut command))
        });
        for end in [0, 1] {
            let (name, peer) = (&names[end], 1 - end);
            eventually(&sockets[end].display(), || UnixStream::connect(&sockets[end]));
            let mut set = Command::new(&wg);
            set.args(["set", name, "listen-port", "51820", "private-key"]).arg(&keys[end]);
            set.args(["peer", public[peer].trim(), "endpoint", &format!("{}:51820", OUTER[peer])]);
            run(set.args(["allowed-ips", INNER[peer]]));
            namespaces[end].ip(&format!("addr add {}/24 dev {name}", INNER[end]));
            namespaces[end].ip(&format!("link set {name} up"));
        }
        Ok(Tunnel { processes, _leftovers: leftovers, _folder: folder, namespaces })
    }

    /// A tunnel by nebula. The error names the program or right that is missing here.
    pub(crate) fn nebula() -> Result<Tunnel, Box<dyn Error>> {
        const REMEDY: &str = "go install github.com/slackhq/nebula/cmd/nebula@v1.11.1 \
                              github.com/slackhq/nebula/cmd/nebula-cert@v1.11.1, and have them on PATH";
        let program = on_path(&["nebula"], REMEDY)?;
        let cert = on_path(&["nebula-cert"], REMEDY)?;
        let namespaces = joined_namespaces()?;
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        run(Command::new(&cert).args(["ca", "-name", "benchmark"]).current_dir(at));
        let processes = [0, 1].map(|end| {
            let (name, peer) = (ENDS[end], 1 - end);
            let network = format!("{}/24", INNER[end]);
            run(Command::new(&cert).args(["sign", "-name", name, "-networks", &network]).current_dir(at));
            // Defaults, with two exceptions: 1.12 and later use the kernel's offloads, as wireguard-go does by default,
            // and run without a control socket, which both ends would otherwise share.
            let config = format!(
                "pki: {{ ca: ca.crt, cert: {name}.crt, key: {name}.key }}\n\
                 static_host_map: {{ {}: ['{}:4242'] }}\n\
                 lighthouse: {{ am_lighthouse: false }}\n\
                 listen: {{ host: {}, port: 4242, udp_offloads: true }}\n\
                 tun: {{ dev: nebula, use_offloads: true }}\n\
                 local_api: {{ control: {{ enabled: false }} }}\n\
                 logging: {{ level: error }}\n\
                 firewall:\n  \
                   outbound: [{{ port: any, proto: any, host: any }}]\n  \
                   inbound: [{{ port: any, proto: any, host: any }}]\n",
                INNER[peer], OUTER[peer], OUTER[end],
            );
            std::fs::write(at.join(format!("{name}.yml")), config).unwrap();
            let mut command = Command::new(&program);
            command.args(["-config", &format!("{name}.yml")]).current_dir(at);
            namespaces[end].inside(|| Process::start(&mut command))
        });
        Ok(Tunnel { processes, _leftovers: Vec::new(), _folder: folder, namespaces })
    }

    /// Opens a connection through the tunnel.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        // Any address, because nebula takes time to give its device one.
        let listener = self.namespaces[1].inside(|| TcpListener::bind("0.0.0.0:0")).unwrap();
        let far = format!("{}:{}", INNER[1], listener.local_addr().unwrap().port());
        let near = self.namespaces[0].inside(|| connect(&far));
        (near, listener.accept().unwrap().0)
    }

    /// CPU time both processes have used so far.
    pub(crate) fn cpu(&self) -> Duration {
        cpu_of_processes(&self.processes.each_ref().map(Process::id))
    }
}

/// An `ssh -L` to a private sshd.
pub(crate) struct SshForward {
    // Dropped in this order.
    ssh: Process,
    sshd: Process,
    _folder: TempDir,
}

impl SshForward {
    /// Starts both programs; `from` listens soon afterwards.
    pub(crate) fn start(from: &str, to: &str) -> SshForward {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["host", "user"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]));
        }
        let daemon = free_address("127.0.0.1");
        let port = daemon.rsplit_once(':').unwrap().1;
        let settings = [
            format!("ListenAddress {daemon}\nHostKey {}\nAuthorizedKeysFile {}\n", path("host"), path("user.pub")),
            "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
                .into(),
        ];
        std::fs::write(path("sshd"), settings.concat()).unwrap();
        // sshd's unprivileged child looks there when it runs as root.
        let _ = std::fs::create_dir_all("/run/sshd");
        let mut sshd = Command::new("/usr/sbin/sshd");
        let sshd = Process::start(sshd.args(["-D", "-f", &path("sshd")]).stderr(Stdio::null()));
        connect(&daemon);
        let options =
            ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes"];
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-N", "-q", "-i", &path("user"), "-p", port, "-L", &format!("{from}:{to}")]);
        for option in options {
            ssh.args(["-o", option]);
        }
        let ssh = Process::start(ssh.arg("127.0.0.1"));
        SshForward { ssh, sshd, _folder: folder }
    }

    /// CPU time both ends have used so far; sshd has one or two processes for the connection.
    pub(crate) fn cpu(&self) -> Duration {
        cpu_of_tree(self.sshd.id()) + cpu_of_tree(self.ssh.id())
    }
}

/// A process that ends when this value is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process whose output goes to stderr.
    pub(crate) fn start(command: &mut Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(std::io::stderr()).spawn();
        Process(child.unwrap_or_else(|e| not_started(command, &e)))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects to `address` as soon as something listens there.
pub(crate) fn connect(address: &str) -> TcpStream {
    let socket: SocketAddr = address.parse().unwrap();
    eventually(&address, || TcpStream::connect_timeout(&socket, Duration::from_secs(1)))
}

/// Repeats `attempt` until it succeeds. The first argument names the attempt in errors.
fn eventually<T>(what: &dyn std::fmt::Display, mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) if Instant::now() > end => panic!("{what}: still {error} after 10 s"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A command's output; the command must succeed.
fn run(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap_or_else(|e| not_started(command, &e));
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn not_started(command: &Command, error: &std::io::Error) -> ! {
    panic!("{}: {error}; install it to compare", command.get_program().display())
}

/// Path of the first of these programs found on PATH.
fn on_path(names: &[&str], remedy: &str) -> Result<PathBuf, Box<dyn Error>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = names.iter().find_map(|name| std::env::split_paths(&path).map(|f| f.join(name)).find(|f| f.is_file()));
    found.ok_or_else(|| format!("no {} on PATH: {remedy}", names.join(" or ")).into())
}

/// A file that a process would leave behind.
struct Leftover(PathBuf);

impl Drop for Leftover {
    fn drop(&mut self) {
        // The process may have removed it, or may not have created it yet.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A network namespace. It disappears with this value and the processes inside.
struct Namespace(File);

impl Namespace {
    fn new(end: &str) -> Result<Namespace, Box<dyn Error>> {
        let ip = on_path(&["ip"], "install iproute2")?;
        let name = format!("landbridge-{}-{end}", std::process::id());
        let made = Command::new(&ip).args(["netns", "add", &name]).output().unwrap();
        if !made.status.success() {
            let error = String::from_utf8_lossy(&made.stderr);
            return Err(format!("no new network namespace ({}): run the benchmark as root", error.trim()).into());
        }
        let file = File::open(Path::new("/run/netns").join(&name));
        // The open file keeps the namespace alive, so nothing remains even if this process is killed.
        run(Command::new(&ip).args(["netns", "delete", &name]));
        Ok(Namespace(file.unwrap()))
    }

    /// Runs `work` on a thread in this namespace and returns its result. Sockets and processes it creates stay in the
    /// namespace.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn ip(&self, arguments: &str) {
        self.inside(|| run(Command::new("ip").args(arguments.split(' '))));
    }
}

/// Two namespaces with a veth pair between their [`OUTER`] addresses.
fn joined_namespaces() -> Result<[Namespace; 2], Box<dyn Error>> {
    let namespaces = [Namespace::new(ENDS[0])?, Namespace::new(ENDS[1])?];
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    tun.map_err(|e| format!("/dev/net/tun ({e}): modprobe tun, and let a container have the device"))?;
    let second = format!("/proc/{}/fd/{}", std::process::id(), namespaces[1].0.as_raw_fd());
    namespaces[0].ip(&format!("link add wire type veth peer name wire netns {second}"));
    for (namespace, address) in namespaces.iter().zip(OUTER) {
        namespace.ip(&format!("addr add {address}/24 dev wire"));
        namespace.ip("link set wire up");
    }
    Ok(namespaces)
}
