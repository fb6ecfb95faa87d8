//! The limits that the system sets for this user's processes.

use std::fs::read_to_string;

use super::report::{Report, Verdict};

/// A gateway and a rank open one connection for each peer.
const FEWEST_FILES: u64 = 1024;
/// Two ranks on a node initially share about this much memory.
const LEAST_SHARED: u64 = 16 << 20;

pub(super) fn examine(report: &mut Report) {
    let limits = read_to_string("/proc/self/limits").unwrap_or_default();
    match hard_limit(&limits, "Max open files") {
        Some(files) if files < FEWEST_FILES => report.failed(
            "open files",
            format!("at most {files} for each process, and a large job needs {FEWEST_FILES} or more"),
            "ask the administrators to raise the hard limit (nofile in /etc/security/limits.conf)",
        ),
        Some(files) => report.add("open files", Verdict::Ok, format!("at most {files}")),
        None => report.add("open files", Verdict::Ok, "no limit"),
    }
    match hard_limit(&limits, "Max locked memory") {
        Some(bytes) if bytes < 1 << 30 => {
            let detail = format!("{} KiB; a site's own network (verbs, cxi) may need more, TCP does not", bytes >> 10);
            report.add("locked memory", Verdict::Note, detail);
        }
        _ => report.add("locked memory", Verdict::Ok, "enough for any network"),
    }
    shared_memory(report);
    let spaces = namespaces(|name| read_to_string(format!("/proc/sys/{name}")).ok());
    match &spaces {
        None => report.add("user namespaces", Verdict::Ok, "allowed, so `landbridge lab` needs no root"),
        Some(why) => {
            let detail = format!("{why}: `landbridge lab` has no isolation here except as root; jobs need none");
            report.add("user namespaces", Verdict::Note, detail);
        }
    }
    let scope = read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" | "3" => {
            let detail =
                format!("kernel.yama.ptrace_scope = {}: ranks of a node copy long messages twice", scope.trim());
            report.add("ptrace", Verdict::Note, detail);
        }
        _ => report.add("ptrace", Verdict::Ok, "ranks of a node may read each other's memory"),
    }
    report.section("limits", &limits);
}

fn shared_memory(report: &mut Report) {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(room) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            let detail =
                format!("{} MiB free of {} MiB", free >> 20, room.f_blocks.saturating_mul(room.f_frsize) >> 20);
            if free < LEAST_SHARED {
                let remedy = "free it (`ls -l /dev/shm`), give a container more (`--shm-size`), or set `memory = \"off\"` for this site in the sites file";
                report.failed("/dev/shm", detail, remedy);
            } else {
                report.add("/dev/shm", Verdict::Ok, detail);
            }
        }
        Err(error) => report.failed("/dev/shm", error.to_string(), "mount it, or set `memory = \"off\"` for this site"),
    }
}

/// A hard limit from `/proc/self/limits`. `None`: unlimited.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The kernel setting that forbids this user to create user namespaces, if one does.
fn namespaces(read: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let is = |name: &str, value: &str| read(name).is_some_and(|text| text.trim() == value);
    if is("user/max_user_namespaces", "0") {
        Some("user.max_user_namespaces = 0")
    } else if is("kernel/unprivileged_userns_clone", "0") {
        Some("kernel.unprivileged_userns_clone = 0")
    } else if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        Some("kernel.apparmor_restrict_unprivileged_userns = 1")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max locked memory         8388608              unlimited            bytes     \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(hard_limit(text, "Max open files"), Some(524_288));
        assert_eq!(hard_limit(text, "Max locked memory"), None);
    }

    #[test]
    fn a_switch_that_forbids_namespaces_is_named() {
        let off = |name: &str| (name == "kernel/unprivileged_userns_clone").then(|| "0\n".to_owned());
        assert_eq!(namespaces(off), Some("kernel.unprivileged_userns_clone = 0"));
        assert_eq!(namespaces(|_| None), None);
    }
}
