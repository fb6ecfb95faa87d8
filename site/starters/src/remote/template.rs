//! `template`: agents started with any command of the site that runs another command on a node, such as `rsh` or a
//! batch system's own.

use gateway_tasks::{AgentOrder, AgentStarter, StartError};
use tokio::process::Command;
use types::shell;
use types::sites::Template;

use super::process::{AgentProcess, Manner};
use crate::agent_command::{Started, agent_words, order_line};

#[derive(Debug)]
pub(crate) struct TemplateStarter {
    template: Template,
}

impl TemplateStarter {
    pub(crate) fn new(template: &Template) -> TemplateStarter {
        TemplateStarter { template: template.clone() }
    }

    fn words(&self, site: &str, node: &str) -> Result<Vec<String>, StartError> {
        let agent = agent_words(self.template.landbridge.as_deref())?;
        let line = shell::line(&agent);
        let user = self.template.user.as_deref().unwrap_or_default();
        let fill = |word: &String| {
            let known = word.replace("{node}", node).replace("{site}", site).replace("{user}", user);
            known.replace("{agent}", &line)
        };
        let placed = self.template.command.iter().any(|word| word.contains("{agent}"));
        let words = self.template.command.iter().map(fill);
        Ok(words.chain(agent.iter().filter(|_| !placed).cloned()).collect())
    }
}

impl AgentStarter for TemplateStarter {
    fn start(&self, order: AgentOrder) -> Started {
        let words = self.words(&order.site, &order.node)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(Box::new(AgentProcess::start(command, order_line(order)?, Manner::Remote)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<String> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let template = Template { command, user: Some("u".into()), landbridge: Some("/opt/land bridge".into()) };
        TemplateStarter::new(&template).words("lyon", "n1").unwrap()
    }

    #[test]
    fn placeholders_are_filled_and_the_agent_is_placed() {
        assert_eq!(words(&["rsh", "{user}@{node}.{site}"]), ["rsh", "u@n1.lyon", "/opt/land bridge", "agent"]);
        assert_eq!(
            words(&["on", "{node}", "sh", "-c", "exec {agent}"]),
            ["on", "n1", "sh", "-c", "exec '/opt/land bridge' agent"]
        );
    }
}
