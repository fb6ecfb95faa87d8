//! Two sites on loopback with real gateways, in a temporary folder. Commands have time limits, and no process is left
//! over.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// An environment variable that marks all processes of a test.
const MARKER: &str = "LANDBRIDGE_STAGE";
/// Time limit for what happens by itself. No bar: only a hang takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// The soft limit of open files that gateways are started with.
pub(crate) const OPEN_FILES: u64 = 500;

/// The command with default signal handling, as after a new login: a shell that runs these tests in the background
/// makes them and their children ignore some signals.
pub(crate) fn landbridge() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,QUIT,HUP", env!("CARGO_BIN_EXE_landbridge")]);
    command
}

/// Polls until `condition` returns a value; panics after `limit`.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sites `a` and `b`, each with nodes `n1` and `n2` and a gateway.
pub(crate) struct Stage {
    pub folder: tempfile::TempDir,
    marker: String,
    pub ports: [u16; 2],
    gateways: Vec<Child>,
    commands: AtomicU32,
}

/// A running command.
pub(crate) struct Running {
    pub child: Child,
    out: PathBuf,
    err: PathBuf,
    began: Instant,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Running {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    pub(crate) fn finish(mut self, limit: Duration) -> Done {
        let end = Instant::now() + limit;
        let status: Option<ExitStatus> = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break Some(status),
                None if Instant::now() >= end => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let took = self.began.elapsed();
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let err = std::fs::read_to_string(&self.err).unwrap_or_default();
        let done = Done { code: status.and_then(|status| status.code()), out: self.out(), err, took };
        assert!(status.is_some(), "still running after {limit:?}: {done:?}");
        done
    }
}

impl Stage {
    /// A stage with both gateways running.
    pub(crate) fn new() -> Stage {
        let mut stage = Stage::without_gateways();
        stage.start_gateway("a");
        stage.start_gateway("b");
        stage
    }

    pub(crate) fn without_gateways() -> Stage {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let marker = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let ports = [free_port(), free_port()];
        let mut text = String::new();
        for (site, port) in ["a", "b"].into_iter().zip(ports) {
            let file = folder.path().join(format!("{site}.key"));
            let shown = landbridge().arg("key").arg(&file).output().expect("landbridge key");
            assert!(shown.status.success(), "{shown:?}");
            text += &format!("[[site]]\nname = \"{site}\"\nkey = \"{site}.key\"\n");
            text += &String::from_utf8_lossy(&shown.stdout);
            text += &format!("[[site.gateway]]\nname = \"gw1\"\nadvertise = \"127.0.0.1:{port}\"\n");
            text += "[[site.node]]\nname = \"n1\"\n[[site.node]]\nname = \"n2\"\n";
        }
        std::fs::write(folder.path().join("sites.toml"), text).expect("sites.toml");
        Stage { folder, marker, ports, gateways: Vec::new(), commands: AtomicU32::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn start_gateway(&mut self, site: &str) -> u32 {
        let log = File::create(self.path(&format!("{site}.log"))).expect("a log");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -Sn {OPEN_FILES} && exec \"$@\""),
            "sh",
            env!("CARGO_BIN_EXE_landbridge"),
        ]);
        command.args(["gateway", "--site", site, "--sites"]).arg(self.path("sites.toml")).env(MARKER, &self.marker);
        // The provider is never loaded, because no program here uses MPI.
        command.env("LANDBRIDGE_PROVIDER", "/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("a gateway");
        let pid = child.id();
        self.gateways.push(child);
        let port = self.ports[usize::from(site == "b")];
        wait_for("a gateway", SOON, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        pid
    }

    pub(crate) fn log(&self, site: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{site}.log"))).unwrap_or_default()
    }

    /// Starts `landbridge` with these words, in the stage's folder.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        self.start_with(words, |_| {})
    }

    pub(crate) fn start_with(&self, words: &[&str], change: impl FnOnce(&mut Command)) -> Running {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (self.path(&format!("{number}.out")), self.path(&format!("{number}.err")));
        let mut command = landbridge();
        command.args(words).env(MARKER, &self.marker).env("LANDBRIDGE_SITES", self.path("sites.toml"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        change(&mut command);
        Running { child: command.spawn().expect("landbridge"), out, err, began: Instant::now() }
    }

    /// Runs a shell script on ranks and waits for the end.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Done {
        self.start_script(options, script).finish(SOON)
    }

    pub(crate) fn start_script(&self, options: &[&str], script: &str) -> Running {
        let words = [&["run"], options, &["--", "bash", "-c", script]].concat();
        self.start(&words)
    }

    /// Processes of this stage, except gateways, with `word` among their arguments.
    pub(crate) fn processes(&self, word: &str) -> Vec<i32> {
        let marker = format!("{MARKER}={}", self.marker);
        let gateways: Vec<i32> = self.gateways.iter().map(|child| child.id() as i32).collect();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let read =
                |name: &str| std::fs::read(Path::new("/proc").join(pid.to_string()).join(name)).unwrap_or_default();
            let environment = read("environ");
            let marked = environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes());
            let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let matches = word.is_empty() || words.split('\0').any(|known| known == word);
            if marked && !gateways.contains(&pid) && matches {
                found.push(pid);
            }
        }
        found.sort_unstable();
        found
    }

    /// Waits until only gateways are left of the stage's processes.
    pub(crate) fn nothing_left(&self) {
        wait_for("everything to be gone", SOON, || self.processes("").is_empty().then_some(()));
    }
}

pub(crate) fn kill(pid: i32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().expect("kill");
    assert!(status.success(), "kill -{signal} {pid}");
}

impl Drop for Stage {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
        for pid in self.processes("") {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        if std::thread::panicking() {
            for site in ["a", "b"] {
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "--- gateway of {site}\n{}", self.log(site));
            }
        }
    }
}

/// A free port, a different one at each call. It is below 32768, because Linux uses higher ports for outgoing
/// connections, which might take it first.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id();
    let ports = std::iter::repeat_with(|| 10_000 + ((begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000) as u16);
    ports.take(20_000).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
