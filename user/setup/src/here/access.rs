//! The keys with which gateways of other sites log in here, if trunks go through ssh.
//!
//! Each site has one key for all its trunks, beside its sites file. The site that others log in to has one line for
//! each of them in `~/.ssh/authorized_keys`. A line allows only a connection to the gateway: no shell, no command, no
//! other address.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use job::capture::capture_blocking;

use super::error::HereError;
use super::folders::{self, Folders};

/// The public half of the key with which a site's gateways log in at other sites. Makes the key if it does not exist.
pub(super) fn trunk_key(folders: &Folders, site: &str) -> Result<String, HereError> {
    let [private, public] = folders.trunk_key(site);
    if !private.exists() || !public.exists() {
        folders::make(&folders.configuration)?;
        folders.remove(&private)?;
        folders.remove(&public)?;
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-C", &format!("landbridge trunks of {site}"), "-f"])
            .arg(&private);
        let made = capture_blocking(&mut command, b"", LIMIT);
        let made = made.map_err(|error| HereError::Keygen(std::io::Error::other(error)))?;
        if !made.status.success() {
            let words = made.stderr.last_lines();
            return Err(HereError::Keygen(std::io::Error::other(format!("{}: {words}", made.status))));
        }
    }
    let text = folders::read(&public)?.unwrap_or_default();
    Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// Lets the gateways of site `of` log in here, to reach the gateway of `site` at `to`; without a key, revokes that.
/// Returns true if that changed anything.
pub(super) fn let_in(site: &str, of: &str, to: &str, key: Option<&str>) -> Result<bool, HereError> {
    let path = authorized_keys()?;
    let before = folders::read(&path)?.unwrap_or_default();
    let line = key.map(|key| line(site, of, to, key)).transpose()?;
    let after = with_line(&before, &mark(site, of), line.as_deref());
    write(&path, &before, &after)
}

/// Revokes all logins of gateways here for `site`. Returns true if that changed anything.
pub(super) fn let_nobody_in(site: &str) -> Result<bool, HereError> {
    let path = authorized_keys()?;
    let before = folders::read(&path)?.unwrap_or_default();
    let end = format!("->{site}");
    let ours =
        |line: &str| line.rsplit_once(' ').is_some_and(|(_, word)| word.starts_with(MARK) && word.ends_with(&end));
    let after: String = before.split_inclusive('\n').filter(|line| !ours(line.trim_end())).collect();
    write(&path, &before, &after)
}

fn write(path: &std::path::Path, before: &str, after: &str) -> Result<bool, HereError> {
    if after != before {
        folders::write(path, after)?;
    }
    Ok(after != before)
}

fn authorized_keys() -> Result<PathBuf, HereError> {
    std::env::home_dir().map(|home| home.join(".ssh/authorized_keys")).ok_or(HereError::NoHome)
}

const MARK: &str = "landbridge-trunk:";
/// Time limit for making a key.
const LIMIT: Duration = Duration::from_secs(20);

/// The comment that identifies a line of ours.
fn mark(site: &str, of: &str) -> String {
    format!("{MARK}{of}->{site}")
}

fn line(site: &str, of: &str, to: &str, key: &str) -> Result<String, HereError> {
    let plain = |text: &str, others: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c));
    let is_key = key.strip_prefix("ssh-ed25519 ").is_some_and(|blob| !blob.is_empty() && plain(blob, "+/="));
    if !is_key || !plain(to, ".:-_[]") {
        return Err(HereError::NoPublicKey { of: of.to_owned(), key: key.to_owned(), to: to.to_owned() });
    }
    Ok(format!(r#"restrict,port-forwarding,permitopen="{to}",command="exit 1" {key} {}"#, mark(site, of)))
}

/// Returns the text with `line` in place of the line that has the mark. All other lines stay as they are.
fn with_line(text: &str, mark: &str, line: Option<&str>) -> String {
    let is_marked = |line: &str| line.trim_end().rsplit_once(' ').is_some_and(|(_, word)| word == mark);
    if let Some(line) = line
        && text.lines().any(|known| known == line)
    {
        return text.to_owned();
    }
    let mut after: String = text.split_inclusive('\n').filter(|line| !is_marked(line)).collect();
    if let Some(line) = line {
        if !after.is_empty() && !after.ends_with('\n') {
            after.push('\n');
        }
        after.push_str(line);
        after.push('\n');
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_reach_the_gateway_and_nothing_else() {
        let line = line("kyoto", "lyon", "10.0.0.1:7700", "ssh-ed25519 AAAAC3+/x=").unwrap();
        assert_eq!(
            line,
            r#"restrict,port-forwarding,permitopen="10.0.0.1:7700",command="exit 1" ssh-ed25519 AAAAC3+/x= landbridge-trunk:lyon->kyoto"#
        );
        for (to, key) in [
            ("10.0.0.1:7700\",command=\"sh", "ssh-ed25519 AAAA"),
            ("10.0.0.1:7700", "ssh-ed25519 AAAA\nssh-rsa BBBB"),
            ("10.0.0.1:7700", "ssh-rsa AAAA"),
            ("10.0.0.1:7700", ""),
        ] {
            let error = super::line("kyoto", "lyon", to, key).unwrap_err().to_string();
            assert!(error.contains("lyon"), "{error}");
        }
    }

    #[test]
    fn what_others_wrote_stays_and_a_line_is_there_once() {
        let (mark, mine) = (mark("kyoto", "lyon"), "ssh-rsa MINE me@laptop");
        let one = with_line(mine, &mark, Some("x landbridge-trunk:lyon->kyoto"));
        assert_eq!(one, format!("{mine}\nx landbridge-trunk:lyon->kyoto\n"));
        assert_eq!(with_line(&one, &mark, Some("x landbridge-trunk:lyon->kyoto")), one);
        let two = with_line(&one, &mark, Some("y landbridge-trunk:lyon->kyoto"));
        assert_eq!(two, format!("{mine}\ny landbridge-trunk:lyon->kyoto\n"));
        assert_eq!(with_line(&two, &mark, None), format!("{mine}\n"));
        assert_eq!(with_line(&two, "landbridge-trunk:nancy->kyoto", None), two);
    }
}
