//! The partitions, accounts and qualities of service that a user may request from Slurm, for the message about a
//! refusal.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::command::slurm_command;

/// Time limit for one command.
const ANSWER: Duration = Duration::from_secs(2);
/// Most bytes of an answer that are read, and most names of a kind that are shown.
const READ: u64 = 64 << 10;
const SHOWN: usize = 16;
/// The longest name that is shown, in bytes.
const LONGEST: usize = 64;

/// ` (partitions here: …; your accounts: …; QOS: …)`, or an empty text if Slurm answers nothing.
pub(super) async fn choices() -> String {
    let user = format!("user={}", rustix::process::getuid().as_raw());
    let partitions = ask("sinfo", &["--noheader", "--format=%R"]).await;
    let words = ["--noheader", "--parsable2", "show", "associations", &user, "format=account,qos"];
    let associations = ask("sacctmgr", &words).await;
    describe(&partitions, &associations)
}

/// Lists all names. `associations`: one line for each association, with an account, `|` and names of QOS.
fn describe(partitions: &str, associations: &str) -> String {
    let fields = |at: usize| associations.lines().filter_map(move |line| line.split('|').nth(at));
    let kinds = [
        ("partitions here", names(partitions.lines())),
        ("your accounts", names(fields(0))),
        ("QOS", names(fields(1).flat_map(|list| list.split(',')))),
    ];
    let known: Vec<String> = kinds
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(kind, names)| format!("{kind}: {names}"))
        .collect();
    if known.is_empty() { String::new() } else { format!(" ({})", known.join("; ")) }
}

fn names<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let is_name = |text: &&str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "._-+@".contains(c);
        (1..=LONGEST).contains(&text.len()) && text.chars().all(known)
    };
    let all: BTreeSet<&str> = texts.map(|text| text.trim().trim_end_matches('*')).filter(is_name).collect();
    let more = if all.len() > SHOWN { format!(", and {} more", all.len() - SHOWN) } else { String::new() };
    all.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ") + &more
}

/// The beginning of a command's output; empty if the command fails or takes too long.
async fn ask(program: &str, words: &[&str]) -> String {
    let answer = async {
        let mut command = slurm_command(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().ok()?;
        let mut text = Vec::new();
        child.stdout.take()?.take(READ).read_to_end(&mut text).await.ok()?;
        child.wait().await.ok().filter(std::process::ExitStatus::success)?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    timeout(ANSWER, answer).await.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_once_and_what_is_no_name_is_left_out() {
        let told = describe("main*\nbig\nmain\n\u{1b}[2J\n", "physics|normal,long\nbio|normal\nevil name|x\u{7}\n");
        assert_eq!(told, " (partitions here: big, main; your accounts: bio, physics; QOS: long, normal)");
        assert_eq!(describe("", ""), "");
        let many: String = (0..40).map(|number| format!("p{number:02}\n")).collect();
        assert!(describe(&many, "").ends_with("p15, and 24 more)"));
    }
}
