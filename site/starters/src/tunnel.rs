//! Links of trunks through the user's own ssh: `ssh -W`, one process and one connection for each link.
//!
//! ssh never asks a question, and it ends with the gateway, however the gateway ends; see [`crate::leash`]. It logs in
//! with the key that `sites add` made for this purpose, if that is beside the sites file, else with the user's own
//! configuration. The bytes that it carries are in the gateways' own TLS. An unknown host key is therefore accepted and
//! remembered: an impostor would get only ciphertext. A changed host key is refused.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitStatus;

use gateway_tasks::{StartError, Tunnel, TunnelOrder, Tunneller};
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::process::{Child, Command};
use types::shell;

use crate::leash::LEASH;
use crate::remote::process::last_words;

/// Options that must hold; ssh takes the first value of an option. A shared connection would put all links on one TCP
/// connection.
const OPTIONS: [&str; 13] = [
    "-oBatchMode=yes",
    "-oStrictHostKeyChecking=accept-new",
    "-oControlMaster=no",
    "-oControlPath=none",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
    "-oExitOnForwardFailure=yes",
    "-oCompression=no",
    "-oLogLevel=INFO",
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
];

/// Lines of ssh's output that are shown.
const WORDS: usize = 3;

/// The private key with which the gateways of site `own` log in at other sites. `folder`: the folder of the sites file.
pub fn key_file(folder: &Path, own: &str) -> PathBuf {
    folder.join(format!("{own}.trunk"))
}

/// The file of the host keys seen so far.
pub fn known_hosts(folder: &Path) -> PathBuf {
    folder.join("trunk_known_hosts")
}

/// Opens tunnels with ssh.
#[derive(Debug)]
pub struct SshTunneller {
    folder: PathBuf,
}

impl SshTunneller {
    /// `folder`: the folder of the sites file.
    pub fn new(folder: &Path) -> SshTunneller {
        SshTunneller { folder: folder.to_owned() }
    }

    /// The words of the ssh command.
    fn words(&self, order: &TunnelOrder) -> Vec<String> {
        let mut words = vec!["ssh".to_owned()];
        words.extend(OPTIONS.map(str::to_owned));
        words.push(format!("-oUserKnownHostsFile=\"{}\" ~/.ssh/known_hosts", known_hosts(&self.folder).display()));
        let key = key_file(&self.folder, &order.own);
        if key.exists() {
            words.extend(["-oIdentitiesOnly=yes".to_owned(), "-i".to_owned(), key.display().to_string()]);
        }
        words.extend(["-W".to_owned(), order.to.clone()]);
        words.extend(order.login.arguments());
        words
    }
}

impl Tunneller for SshTunneller {
    fn open(&self, order: &TunnelOrder, socket: OwnedFd) -> Result<Box<dyn Tunnel>, StartError> {
        let wrong = |what: &str, error: io::Error| StartError(format!("cannot {what}: {error}"));
        let words = memfd_create("landbridge-ssh", MemfdFlags::CLOEXEC);
        let words = File::from(words.map_err(|e| wrong("keep ssh's output", e.into()))?);
        let theirs = words.try_clone().map_err(|e| wrong("keep ssh's output", e))?;
        let input = socket.try_clone().map_err(|e| wrong("hand ssh its socket", e))?;
        // The running program, even if a newer one has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.args([LEASH, &std::process::id().to_string(), "--"]).args(self.words(order));
        // A process group of its own keeps Ctrl-C from ssh: the gateway gets it and first sends a goodbye.
        command.stdin(input).stdout(socket).stderr(theirs).kill_on_drop(true).process_group(0);
        let child = command.spawn().map_err(|e| wrong("start ssh", e))?;
        Ok(Box::new(SshTunnel { child, words, order: order.clone(), folder: self.folder.clone() }))
    }
}

struct SshTunnel {
    child: Child,
    /// The standard error of ssh.
    words: File,
    order: TunnelOrder,
    folder: PathBuf,
}

impl Tunnel for SshTunnel {
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async {
            let status = self.child.wait().await;
            let words = last_words(&self.words);
            explain(status, &tidied(&words), &self.order, &self.folder)
        })
    }
}

/// ssh's output on one line, without banners and without messages that report no problem.
fn tidied(words: &str) -> String {
    let lines = words.lines().map(|line| line.trim().trim_matches('@').trim());
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with("Warning: Permanently added")).collect();
    lines[lines.len().saturating_sub(WORDS)..].join("; ")
}

/// The reason why ssh ended, and advice; empty if it was ended on purpose.
fn explain(status: io::Result<ExitStatus>, words: &str, order: &TunnelOrder, folder: &Path) -> String {
    let ended = match status {
        Ok(status) if status.success() => return String::new(),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let TunnelOrder { own, site, login, to } = order;
    let advice = if words.contains("Permission denied") {
        let key = key_file(folder, own);
        match key.exists() {
            true => format!(
                "; `landbridge sites add {site}` lets the key {0}.pub in there, or add it to ~/.ssh/authorized_keys yourself",
                key.display()
            ),
            false => format!(
                "; no key of this account is accepted without a question: `landbridge sites add {site}` makes one for this"
            ),
        }
    } else if words.contains("ost key") || words.contains("HOST IDENTIFICATION") {
        format!(
            "; if the machine was reinstalled, remove its old key: `ssh-keygen -R {} -f {}`",
            match login.port {
                Some(port) => format!("'[{}]:{port}'", login.host()),
                None => login.host().to_owned(),
            },
            shell::path(known_hosts(folder))
        )
    } else if words.contains("prohibited") {
        format!(
            "; the sshd there must allow forwarding to {to} (AllowTcpForwarding, PermitOpen): ask its administrator"
        )
    } else if words.contains("open failed") {
        format!("; ssh works, but nobody answers at {to}: is the gateway of site {site} running?")
    } else if words.contains("timed out") || words.contains("No route") {
        let port = login.port.unwrap_or(22);
        format!("; does a firewall drop packets to port {port} of {}?", login.host())
    } else {
        String::new()
    };
    match words.is_empty() {
        true => format!("ssh ended without a message, {ended}{advice}"),
        false => format!("{words}{advice}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn order() -> TunnelOrder {
        TunnelOrder {
            own: "lyon".into(),
            site: "kyoto".into(),
            login: "me@login.kyoto:2222".parse().unwrap(),
            to: "10.0.0.1:7700".into(),
        }
    }

    #[test]
    fn the_key_for_trunks_is_used_if_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let tunneller = SshTunneller::new(folder.path());
        let line = tunneller.words(&order()).join(" ");
        assert!(line.ends_with(" -W 10.0.0.1:7700 -p 2222 -- me@login.kyoto"), "{line}");
        assert!(!line.contains(" -i "), "{line}");
        std::fs::write(key_file(folder.path(), "lyon"), "").unwrap();
        let line = tunneller.words(&order()).join(" ");
        assert!(line.contains(&format!("-oIdentitiesOnly=yes -i {}/lyon.trunk -W", folder.path().display())), "{line}");
    }

    #[test]
    fn each_kind_of_failure_says_what_to_do() {
        let said = |words: &str| explain(Ok(ExitStatus::from_raw(255 << 8)), words, &order(), Path::new("/x"));
        for (words, advice) in [
            ("me@login.kyoto: Permission denied (publickey).", "landbridge sites add kyoto"),
            ("Host key verification failed.", "ssh-keygen -R '[login.kyoto]:2222' -f /x/trunk_known_hosts"),
            ("channel 0: open failed: administratively prohibited: open failed", "AllowTcpForwarding"),
            ("channel 0: open failed: connect failed: Connection refused", "is the gateway of site kyoto running?"),
            ("ssh: connect to host login.kyoto port 2222: Connection timed out", "firewall drop packets to port 2222"),
            ("", "without a message"),
        ] {
            let text = said(words);
            assert!(text.contains(words) && text.contains(advice), "{text}");
        }
        assert_eq!(explain(Ok(ExitStatus::from_raw(0)), "", &order(), Path::new("/x")), "");
    }
}
