//! The command, the provider, and the system they run on.

use job::mpi::find_provider;

use super::command::output;
use super::report::{Question, Report, Verdict};
use crate::release::Release;

pub(super) async fn examine(question: &Question, report: &mut Report) {
    let command = std::env::current_exe().map_or("?".to_owned(), |path| path.display().to_string());
    let command = format!("{} at {command}", question.version);
    report.add("landbridge", Verdict::Ok, &command);
    let provider = find_provider(&question.environment());
    // Reading the release also checks that all its files are for the same machine.
    let release = match Release::read(None) {
        Ok(release) => {
            let detail = format!("{} for {}, release {}", provider.display(), release.architecture, release.id);
            report.add("provider", Verdict::Ok, &detail);
            detail
        }
        Err(error) => {
            let detail = error.to_string();
            let remedy = "install all files of one release side by side, and unset LANDBRIDGE_PROVIDER";
            report.failed("provider", &detail, remedy);
            detail
        }
    };
    let system = rustix::system::uname();
    let kernel = format!("{} {}", system.release().to_string_lossy(), system.machine().to_string_lossy());
    report.add("kernel", Verdict::Ok, format!("Linux {kernel}"));
    let libc = output(&["getconf", "GNU_LIBC_VERSION"]).await;
    match &libc {
        Some(libc) => report.add("C library", Verdict::Ok, libc),
        None => report.add("C library", Verdict::Note, "`getconf GNU_LIBC_VERSION` does not say: is it glibc?"),
    }
    let distribution = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let distribution = distribution.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let libc = libc.unwrap_or_else(|| "unknown".to_owned());
    report.section(
        "versions",
        &format!(
            "landbridge {command}\nprovider {release}\nLinux {kernel}\ndistribution {distribution}\nC library {libc}"
        ),
    );
}
