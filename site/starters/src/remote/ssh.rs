//! `ssh`: agents started with a login on every node, using the user's own ssh and its configuration.
//!
//! It never asks a question, because nobody sits at a gateway. A lost connection ends both sides within seconds: ssh
//! here with its keep-alive, the agent there with the end of its standard input or of its connection to the gateway.

use std::path::Path;

use gateway_tasks::{AgentOrder, AgentStarter, StartError};
use tokio::process::Command;
use types::shell;
use types::sites::Ssh;

use super::process::{AgentProcess, Manner};
use crate::agent_command::{Started, agent_words, order_line};

/// ssh's exit code when ssh itself failed, not the command that it ran.
const OWN_FAILURE: i32 = 255;
/// Exit codes of shells that do not find a command or must not run it.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// Options that must hold. ssh takes the first value of an option, so these stand before the user's own words.
const ALWAYS: [&str; 3] = ["-T", "-o", "BatchMode=yes"];
/// Options that hold unless the user's words override them.
const DEFAULTS: [&str; 6] = ["-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"];

#[derive(Debug)]
pub(crate) struct SshStarter {
    /// `ssh` and all words before the node.
    words: Vec<String>,
    landbridge: Option<String>,
}

impl SshStarter {
    pub(crate) fn new(ssh: &Ssh, folder: &Path) -> SshStarter {
        let mut words = vec!["ssh".to_owned()];
        words.extend(ALWAYS.map(str::to_owned));
        let mut flag =
            |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|v| [name.to_owned(), v]));
        flag("-l", ssh.user.clone());
        flag("-p", ssh.port.map(|port| port.to_string()));
        if let Some(identity) = &ssh.identity {
            // ssh itself expands `~/`.
            let path = if identity.starts_with("~/") { identity.into() } else { folder.join(identity) };
            flag("-i", Some(path.display().to_string()));
            flag("-o", Some("IdentitiesOnly=yes".to_owned()));
        }
        words.extend(ssh.options.iter().cloned());
        words.extend(DEFAULTS.map(str::to_owned));
        SshStarter { words, landbridge: ssh.landbridge.clone() }
    }

    /// The program and its arguments. The node comes after `--`, so that its name is never taken for an option.
    fn command(&self, node: &str, command: &str) -> Vec<String> {
        let rest = ["--".to_owned(), node.to_owned(), command.to_owned()];
        self.words.iter().cloned().chain(rest).collect()
    }

    /// Explains an exit code to the user, with advice.
    fn explain(&self, node: &str, landbridge: &str, code: i32, words: &str) -> Option<String> {
        let by_hand = shell::line(&self.command(node, "true"));
        let message = if words.is_empty() { "without a message".to_owned() } else { format!("saying: {words}") };
        match code {
            OWN_FAILURE if words.contains("Host key verification failed") => Some(format!(
                "ssh to {node} failed, {message}. Accept the node's key once where the gateway runs: `{}`",
                by_hand.replace("BatchMode=yes", "BatchMode=no")
            )),
            OWN_FAILURE => Some(format!("ssh to {node} failed, {message}. Try it where the gateway runs: `{by_hand}`")),
            NOT_FOUND | NOT_EXECUTABLE => Some(format!(
                "{landbridge} cannot be run there ({words}): put it there, or set `landbridge` in [site.starter] to where it is"
            )),
            _ => None,
        }
    }

    /// Starts an agent by the words that `within` makes of the agent's own.
    pub(crate) fn start_within(&self, order: AgentOrder, within: impl FnOnce(Vec<String>) -> Vec<String>) -> Started {
        let agent = agent_words(self.landbridge.as_deref())?;
        let (node, landbridge) = (order.node.clone(), agent[0].clone());
        let words = self.command(&node, &format!("exec {}", shell::line(&within(agent))));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let starter = SshStarter { words: self.words.clone(), landbridge: self.landbridge.clone() };
        let explain = move |code, words: &str| starter.explain(&node, &landbridge, code, words);
        let process = AgentProcess::start(command, order_line(order)?, Manner::Remote)
            .map_err(|StartError(e)| StartError(format!("{e}: install an ssh client where the gateway runs")))?;
        Ok(Box::new(process.explained(explain)))
    }
}

impl AgentStarter for SshStarter {
    fn start(&self, order: AgentOrder) -> Started {
        self.start_within(order, |agent| agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sites_file_becomes_a_command_line() {
        let ssh = Ssh {
            user: Some("u".into()),
            port: Some(2222),
            identity: Some("keys/id".into()),
            options: vec!["-J".into(), "login".into()],
            landbridge: None,
        };
        let line = shell::line(&SshStarter::new(&ssh, Path::new("/etc/lb")).command("-n1", "true"));
        assert!(line.starts_with("ssh -T -o BatchMode=yes "), "{line}");
        assert!(line.contains(" -l u -p 2222 -i /etc/lb/keys/id -o IdentitiesOnly=yes -J login -o Connect"), "{line}");
        assert!(line.ends_with(" -- -n1 true"), "{line}");
    }

    #[test]
    fn failures_name_the_node_and_what_to_do() {
        let starter = SshStarter::new(&Ssh::default(), Path::new("/"));
        let refused = starter.explain("n1", "lb", 255, "ssh: connect to host n1 port 22: Connection refused").unwrap();
        assert!(
            refused.contains("ssh to n1 failed, saying: ssh: connect to host n1 port 22: Connection refused"),
            "{refused}"
        );
        assert!(refused.ends_with("-- n1 true`"), "{refused}");
        let unknown = starter.explain("n1", "lb", 255, "Host key verification failed.").unwrap();
        assert!(unknown.contains("BatchMode=no"), "{unknown}");
        assert!(
            starter.explain("n1", "/x/lb", 127, "sh: /x/lb: not found").unwrap().contains("/x/lb cannot be run there")
        );
        assert_eq!(starter.explain("n1", "lb", 1, "order"), None);
    }
}
