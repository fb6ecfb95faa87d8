//! The command line: the commands, and the flags that they all have. The flags of each command are beside it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::couple::CoupleArgs;
use crate::doctor::DoctorArgs;
use crate::forward::ForwardArgs;
use crate::gateway::GatewayArgs;
use crate::jobs::args::{CancelArgs, JobsArgs, LogsArgs};
use crate::key::KeyArgs;
#[cfg(feature = "lab")]
use crate::lab::args::LabArgs;
use crate::page::PageArgs;
use crate::plan::PlanArgs;
use crate::run::args::RunArgs;
use crate::sites::args::SitesArgs;
use crate::slurm::args::SlurmArgs;
use crate::stage::args::StageArgs;
#[cfg(feature = "top")]
use crate::top::args::TopArgs;

/// Run one unmodified MPI program across private clusters that cannot reach each other.
///
/// Each cluster is a "site" with a gateway; a sites file describes them. Gateways join the sites by encrypted trunks,
/// and a libfabric provider beside this command lets MPICH, Intel MPI and Open MPI use them without change.
#[derive(Debug, Parser)]
#[command(
    name = "landbridge",
    version = crate::version::TEXT,
    after_help = examples()
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Examples of commands in this build.
fn examples() -> String {
    let line = |command: &str, what: &str| format!("  {command:<76}  {what}\n");
    let mut text = "Examples:\n".to_owned();
    if cfg!(feature = "lab") {
        let lab = "landbridge lab -- landbridge run -n 4 -- python3 -m mpi4py.bench helloworld";
        text += &line(lab, "two sites on this machine");
    }
    text += &line("landbridge run -n 64 --prefix -- ./simulation input.dat", "across your sites");
    text += &line("landbridge sites check", "test every connection that a run needs");
    if cfg!(feature = "top") {
        text += &line("landbridge top", "traffic of your gateways");
    }
    text + "\n`landbridge COMMAND --help` explains each command."
}

/// The commands. Each is documented at its flags; a doc comment here would replace its long help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Jobs(JobsArgs),
    Logs(LogsArgs),
    Cancel(CancelArgs),
    /// Started by `run --detach`
    #[command(hide = true)]
    Detached {
        /// The job's folder
        folder: PathBuf,
        /// The command as typed, without --detach
        #[arg(last = true, required = true)]
        typed: Vec<OsString>,
    },
    Gateway(GatewayArgs),
    Key(KeyArgs),
    Sites(SitesArgs),
    #[cfg(feature = "top")]
    Top(TopArgs),
    Forward(ForwardArgs),
    Doctor(DoctorArgs),
    Page(PageArgs),
    Plan(PlanArgs),
    Slurm(SlurmArgs),
    Stage(StageArgs),
    Couple(CoupleArgs),
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Write completions for bash, fish and zsh, and man pages, for a package's share folder
    #[cfg(feature = "share")]
    #[command(hide = true)]
    Share {
        /// The folder; all files are written below it, each where its shell or man looks for it
        folder: PathBuf,
    },
    /// Started by gateways
    #[command(hide = true)]
    Agent {
        /// Run only movers: a node service has started this agent where the user has no job
        #[arg(long = agent::keeper::ONLY_MOVERS)]
        only_movers: bool,
    },
    /// Started by gateways: a program that ends with them
    #[command(hide = true, name = starters::leash::LEASH)]
    Leash {
        /// Process id of the gateway
        holder: i32,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Started by gateways: runs a program that ends with the gateway until it reports its start
    #[command(hide = true, name = starters::leash::HOLD)]
    Hold {
        /// Process id of the gateway
        holder: i32,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Started by the `sites` commands on a site's machine
    #[command(hide = true)]
    SiteEnd,
    /// Started by `stage` as the ranks of a job
    #[command(hide = true)]
    Mover {
        /// Without a job: both ends are on this machine
        #[arg(long)]
        here: bool,
    },
    /// Started by agents
    #[command(hide = true, name = agent::keeper::WORKER)]
    AgentWorker {
        /// Process id of the keeper
        keeper: i32,
        /// Folder for the files of the node's ranks
        folder: PathBuf,
        /// Run only movers
        #[arg(long = agent::keeper::ONLY_MOVERS)]
        only_movers: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::args::LabCommand;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// All visible commands below this one.
    fn commands(of: &clap::Command) -> Vec<clap::Command> {
        let below = of.get_subcommands().filter(|command| !command.is_hide_set());
        below.flat_map(|command| [vec![command.clone()], commands(command)].concat()).collect()
    }

    #[test]
    fn long_help_is_longer_than_short_help() {
        let all = commands(&Cli::command());
        let explained = ["run", "gateway", "key", "add", "invite", "join", "remove", "check", "top", "lab"];
        for name in explained {
            let command = all.iter().find(|command| command.get_name() == name).expect(name);
            let (about, long) =
                (command.get_about().expect(name).to_string(), command.get_long_about().expect(name).to_string());
            assert!(long.len() > about.len() + 50, "{name}: {long}");
            assert!(!about.starts_with('`') && !about.is_empty(), "{name}: {about}");
        }
        for command in all {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn the_contract_is_understood() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        let Ok(Command::Run(run)) = parse(
            "landbridge run -n 4 --ranks-per-node 2 --site a=1 --site b=3:./x:y --mpi mpich --prefix --json -- prog --json x",
        ) else {
            panic!("run")
        };
        assert_eq!((run.ranks, run.ranks_per_node, run.json), (Some(4), Some(2), Some(None)));
        let shares: Vec<_> = run.per_site.iter().map(|s| (s.site.as_str(), s.ranks, s.program.as_deref())).collect();
        assert_eq!(shares, [("a", 1, None), ("b", 3, Some("./x:y"))]);
        assert_eq!(run.program, ["prog", "--json", "x"]);
        let Ok(Command::Run(run)) = parse("landbridge run -n 4 --json=f -- prog") else { panic!("run --json=f") };
        assert_eq!(run.json, Some(Some("f".into())));
        let Ok(Command::Lab(lab)) = parse(
            "landbridge lab --sites 2 --nodes 2 --gateways 1 --delay 5ms --wan-rate 1gbit --nic-rate 200mbit --loss 0 -- a -b",
        ) else {
            panic!("lab")
        };
        assert_eq!((lab.sites, lab.program), (2, vec!["a".into(), "-b".into()]));
        assert!(matches!(
            parse("landbridge lab enter b-n1 -- ip addr"),
            Ok(Command::Lab(LabArgs { command: Some(LabCommand::Enter { .. }), .. }))
        ));
        assert!(parse("landbridge gateway --sites f --site a --gateway gw1").is_ok());
        assert!(parse("landbridge sites check --json -- prog").is_ok());
        for wrong in [
            "landbridge run -n 0 -- p",
            "landbridge run --site a=1: -- p",
            "landbridge run -n 1",
            "landbridge run --site a -- p",
            "landbridge lab",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
