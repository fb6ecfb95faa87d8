//! Tests the provider under the real libfabric: the C cases in `conformance/`, compiled against libfabric's own headers
//! (which also checks our copy of its interface), run with every libfabric on this machine.
//!
//! The libraries are the system's, those in `.venv*/lib` of the repository, and those in the folders listed in
//! `LANDBRIDGE_TEST_LIBFABRIC`.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// Setup of all cases.
static SETUP: LazyLock<Result<Setup, Missing>> = LazyLock::new(Setup::new);

/// The tool that is missing, so that the cases cannot run here.
enum Missing {
    Compiler,
    Headers,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Missing::Compiler => "no C compiler (cc)",
            Missing::Headers => "no headers of libfabric (package libfabric-dev)",
        })
    }
}

struct Setup {
    program: PathBuf,
    provider_path: PathBuf,
    /// Values of `LD_LIBRARY_PATH`; the first is empty.
    libraries: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

fn provider() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places = [folder.join("liblandbridge_provider.so"), folder.parent().unwrap().join("liblandbridge_provider.so")];
    places.into_iter().find(|path| path.exists()).expect("cargo builds the provider before its tests")
}

fn works(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Setup {
    fn new() -> Result<Setup, Missing> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
        if !works(Command::new("cc").arg("--version")) {
            return Err(Missing::Compiler);
        }
        if !works(Command::new("cc").args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"])) {
            return Err(Missing::Headers);
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("conformance");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(&program);
        cc.args(
            ["main", "pair", "messages", "objects", "remote", "waits"]
                .map(|name| sources.join(name).with_extension("c")),
        );
        let compiled = cc.args(["-lfabric", "-lpthread"]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::os::unix::fs::symlink(provider(), folder.path().join("liblandbridge-fi.so")).unwrap();
        let libraries = libraries();
        Ok(Setup { program, provider_path: folder.path().to_path_buf(), libraries, _folder: folder })
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, library: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("FI_PROVIDER_PATH", &self.provider_path).env("LD_LIBRARY_PATH", library);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn libraries() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut folders: Vec<PathBuf> = std::env::var_os("LANDBRIDGE_TEST_LIBFABRIC")
        .map(|list| std::env::split_paths(&list).collect())
        .unwrap_or_default();
    let venvs = std::fs::read_dir(root).into_iter().flatten().flatten();
    for venv in venvs.filter(|entry| entry.file_name().to_string_lossy().starts_with(".venv")) {
        folders.extend([venv.path().join("lib"), venv.path().join("lib/mpich")]);
    }
    folders.retain(|folder| folder.join("libfabric.so.1").exists());
    folders.insert(0, PathBuf::new());
    folders
}

fn finish(mut child: Child, what: &str) -> Output {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{what}: still running after {LIMIT:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn run(case: &str) {
    let setup = match &*SETUP {
        Ok(setup) => setup,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    for library in &setup.libraries {
        let child = setup.command(&setup.program, library).arg(case).spawn().unwrap();
        let output = finish(child, case);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case} with libfabric of {library:?}: {:?}\n{text}", output.status);
        // Only an endpoint that cannot open writes to standard error; one case makes that happen.
        assert!(case == "names" || text.is_empty(), "{case} wrote to standard error: {text}");
        assert!(output.stdout.is_empty(), "{case} wrote to standard output");
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        const CASES: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { run(stringify!($name)); })*
    };
}

cases! {
    hints addresses names busy options waiting events formats tagged untagged matching self_ peek_tagged peek_untagged
    cancel truncation multi_recv selective delivery confirmation directed flood av_remove counters lost_peer refusals
    threads rma rma_errors registration atomics atomic_forms wait_fd wait_fd_counters wait_fd_events automatic
    text_addresses
}

#[test]
fn every_case_is_run_with_every_library() {
    let setup = match &*SETUP {
        Ok(setup) => setup,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    for library in &setup.libraries {
        let output = finish(setup.command(&setup.program, library).spawn().unwrap(), "list");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines();
        eprintln!("{}: {library:?}", lines.next().unwrap());
        assert_eq!(lines.collect::<Vec<_>>(), CASES);
    }
}

#[test]
fn only_the_entry_points_are_exported_and_nothing_of_libfabric_imported() {
    let list = |which: &str| Command::new("nm").args(["-D", which]).arg(provider()).output();
    let Ok(defined) = list("--defined-only") else { return eprintln!("skipped: no nm (package binutils)") };
    let defined = String::from_utf8(defined.stdout).unwrap();
    let names: Vec<&str> = defined.lines().filter_map(|line| line.split_whitespace().last()).collect();
    // libfabric's core calls the first, the layer under MPI programs calls the second.
    assert_eq!(names, ["fi_prov_ini", "landbridge_collectives"]);
    let undefined = String::from_utf8(list("--undefined-only").unwrap().stdout).unwrap();
    let imported = |name: &&str| name.starts_with("fi_") || name.starts_with("ofi_");
    assert_eq!(undefined.split_whitespace().find(imported), None);
    assert!(undefined.contains("calloc"), "nm lists imports");
}

#[test]
fn libfabrics_own_pingpong_runs() {
    let setup = match &*SETUP {
        Ok(setup) => setup,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    if !works(Command::new("fi_pingpong").arg("-h").env("FI_PROVIDER_PATH", &setup.provider_path))
        && Command::new("fi_pingpong").arg("-h").output().is_err()
    {
        return eprintln!("skipped: no fi_pingpong (package libfabric-bin)");
    }
    // Port of its control connection; depends on the process, so that two test runs do not meet.
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let command = |library: &Path| {
        let mut command = setup.command("fi_pingpong", library);
        command.args(["-p", "landbridge", "-e", "rdm", "-c", "-I", "20"]);
        command
    };
    let library = &setup.libraries[0];
    let server = command(library).args(["-B", &port]).spawn().unwrap();
    let deadline = Instant::now() + LIMIT;
    let client = loop {
        let client = finish(command(library).args(["-P", &port, "127.0.0.1"]).spawn().unwrap(), "client");
        let early = String::from_utf8_lossy(&client.stderr).contains("Connection refused");
        if !early || Instant::now() > deadline {
            break client;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    for (who, output) in [("client", client), ("server", finish(server, "server"))] {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{who}: {text}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1m"), "{who} reached the longest message");
    }
}
