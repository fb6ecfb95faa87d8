//! Namespaces and mounts: the outer set that holds a lab, and the set of each host.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::error::LabError;
use crate::message::{Channel, LabMessageKind};
use crate::process;
use crate::sys;

const REMEDY: &str = "run as root, or allow unprivileged user namespaces (user.max_user_namespaces above 0, \
                      kernel.unprivileged_userns_clone = 1, kernel.apparmor_restrict_unprivileged_userns = 0), \
                      or use the loopback lab";

fn unavailable(what: impl Into<String>, error: impl std::fmt::Display) -> LabError {
    LabError::Unavailable { what: format!("{}: {error}", what.into()), remedy: REMEDY.to_owned() }
}

/// The entry point of the hidden command `lab-outer`: makes the outer namespaces, starts the supervisor inside and
/// waits for it.
///
/// It leaves the terminal's session, so that Ctrl-C reaches only the process that called the lab, which forwards it.
pub(crate) fn main() -> i32 {
    let Ok(channel) = Channel::from_stdin() else { return 1 };
    let started = (|| {
        rustix::process::setsid().map_err(|e| LabError::setup("setsid", e))?;
        process::follow_parent(&channel)?;
        enter_outer()?;
        // A change of credentials may have cleared the parent-death signal.
        process::follow_parent(&channel)?;
        process::start(&["lab-supervisor", "isolated"], Stdio::inherit())
    })();
    match started {
        Ok(mut child) => child.wait().ok().and_then(|status| status.code()).unwrap_or(1),
        Err(error) => {
            // If the caller is gone, no one can read the failure.
            let _ = channel.send_json(LabMessageKind::Failed, &error);
            1
        }
    }
}

/// Moves this process into a fresh network, mount, UTS and IPC namespace and its children into a fresh PID namespace;
/// an ordinary user also gets a user namespace where that user is root.
fn enter_outer() -> Result<(), LabError> {
    let flags =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC | UnshareFlags::NEWPID;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() && sys::unshare(flags).is_ok() {
        return Ok(());
    }
    sys::unshare(flags | UnshareFlags::NEWUSER).map_err(|e| unavailable("new namespaces", e))?;
    let write = |file: &str, text: String| fs::write(file, text).map_err(|e| unavailable(file, e));
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))
}

/// Mounts of the outer namespace: own /proc, private /run.
pub(crate) fn mount_outer(visible: &[PathBuf]) -> Result<(), LabError> {
    mount_proc()?;
    cover(Path::new("/run"), c"mode=0755", visible)
}

/// Moves this process, the first of a PID namespace, into its own network, UTS, IPC and mount namespace.
pub(crate) fn enter_host(name: &str, hosts_file: &Path, visible: &[PathBuf]) -> Result<(), LabError> {
    let flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    sys::unshare(flags).map_err(|e| unavailable("namespaces of a host", e))?;
    mount_proc()?;
    rustix::system::sethostname(name.as_bytes()).map_err(|e| LabError::setup("hostname", e))?;
    // Shared /tmp or /dev/shm would let an MPI library notice that it is on one machine and bypass the network.
    cover(Path::new("/tmp"), c"mode=1777", visible)?;
    cover(Path::new("/dev/shm"), c"mode=1777", visible)?;
    rustix::mount::mount_bind(hosts_file, "/etc/hosts").map_err(|e| LabError::setup("bind mount on /etc/hosts", e))
}

/// Mounts a site's pool: memory that its nodes share.
pub(crate) fn mount_pool(at: &Path, bytes: Option<u64>) -> Result<(), LabError> {
    fs::create_dir_all(at).map_err(|e| LabError::setup(at.display().to_string(), e))?;
    let options = bytes.map_or("mode=1777".to_owned(), |bytes| format!("mode=1777,size={bytes}"));
    let options = CString::new(options).map_err(|e| LabError::setup("options of a pool", e))?;
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
        .map_err(|e| unavailable(format!("mount of a tmpfs on {}", at.display()), e))
}

/// Mounts a pool at a path of this host.
pub(crate) fn show_pool(pool: &Path, at: &Path) -> Result<(), LabError> {
    rustix::mount::mount_bind(pool, at).map_err(|e| LabError::setup(format!("pool at {}", at.display()), e))
}

fn mount_proc() -> Result<(), LabError> {
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| unavailable("private mounts", e))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", flags, None).map_err(|e| unavailable("mount of /proc", e))
}

/// Mounts an empty tmpfs over `target`. Of the paths below it, only those in `visible` stay visible.
fn cover(target: &Path, options: &std::ffi::CStr, visible: &[PathBuf]) -> Result<(), LabError> {
    let below = |path: &&PathBuf| path.starts_with(target) && *path != target;
    let kept: Vec<(&PathBuf, OwnedFd)> = visible
        .iter()
        .filter(below)
        .map(|path| {
            let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            fd.map(|fd| (path, fd)).map_err(|e| LabError::setup(path.display().to_string(), e))
        })
        .collect::<Result<_, _>>()?;
    rustix::mount::mount("tmpfs", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options)
        .map_err(|e| unavailable(format!("mount of a tmpfs on {}", target.display()), e))?;
    for (path, fd) in kept {
        bind_back(path, &fd).map_err(|e| LabError::setup(format!("keeping {} visible", path.display()), e))?;
    }
    Ok(())
}

fn bind_back(path: &Path, fd: &OwnedFd) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if fs::metadata(&source)?.is_dir() {
        fs::create_dir_all(path)?;
    } else {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::File::create(path)?;
    }
    Ok(rustix::mount::mount_bind_recursive(source, path)?)
}

/// Sets IP forwarding. Without `ipv6`, disables IPv6 in this network namespace, because its addresses take a second to
/// settle; with it, disables only duplicate address detection.
pub(crate) fn settle_network(forward: bool, ipv6: bool) -> Result<(), LabError> {
    let (setting, value) = if ipv6 { ("accept_dad", "0") } else { ("disable_ipv6", "1") };
    for scope in ["all", "default"] {
        let file = format!("/proc/sys/net/ipv6/conf/{scope}/{setting}");
        match fs::write(&file, value) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && ipv6 => {
                return Err(unavailable("a lab with IPv6", "this kernel has no IPv6"));
            }
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|e| LabError::setup(file, e))?,
        }
    }
    let file = "/proc/sys/net/ipv4/ip_forward";
    fs::write(file, if forward { "1" } else { "0" }).map_err(|e| LabError::setup(file, e))
}
