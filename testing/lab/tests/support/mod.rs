//! Support for the tests of labs: the driver, `examples/lab.rs`, and scripts that run in a lab.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code, reason = "each test program uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) const ECHO_GATEWAY: &str = "socat TCP-LISTEN:7700,fork,reuseaddr EXEC:cat";

/// The driver, built by cargo before the tests.
pub(crate) fn driver() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples/lab");
    assert!(path.exists(), "{} is missing; run `cargo build -p landbridge-lab --examples`", path.display());
    path
}

/// True if a test that needs namespaces must be skipped; prints the reason.
pub(crate) fn skip() -> bool {
    if Command::new("socat").arg("-V").output().is_err() {
        println!("skipped: socat, which stands in for a gateway, is not installed");
        return true;
    }
    let output = Command::new(driver()).arg("probe").output().unwrap();
    if output.status.success() {
        return false;
    }
    println!("skipped, no isolated lab here: {}", String::from_utf8_lossy(&output.stdout).trim());
    true
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a shell script on the first node; `$L` is the driver.
pub(crate) fn lab(flags: &[&str], script: &str) -> Output {
    let mut command = Command::new(driver());
    command.args(flags).args(["--namespaces", "--", "bash", "-c", script]).env("L", driver()).stdin(Stdio::null());
    command.output().unwrap()
}

/// The same, but the script must succeed; returns its standard output.
pub(crate) fn lab_ok(flags: &[&str], script: &str) -> String {
    let output = lab(flags, script);
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The command line that runs a copy of the driver as the user nobody. Prints the reason and returns `None` if that is
/// not possible.
pub(crate) fn as_nobody(dir: &Path) -> Option<Command> {
    if Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        println!("skipped: becoming another user needs root (and then every other test ran without privileges)");
        return None;
    }
    std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = dir.join("lab");
    std::fs::copy(driver(), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).current_dir("/").env("L", &copy);
    let mut probe = Command::new("setpriv");
    probe.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).arg("probe").current_dir("/");
    let output = probe.output().unwrap();
    if !output.status.success() {
        println!("skipped: {}{}", text(&output.stdout), text(&output.stderr));
        return None;
    }
    Some(command)
}
