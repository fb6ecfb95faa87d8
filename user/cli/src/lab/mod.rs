//! `landbridge lab`.

pub(crate) mod args;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;

use anyhow::Result;
use lab::{Isolation, LabOptions};

use self::args::{LabArgs, LabCommand};

/// Runs a lab, or a command inside one, and returns the exit code.
pub(crate) fn lab(args: LabArgs) -> Result<i32> {
    match args.command {
        None => run(args),
        Some(LabCommand::Enter { host, program }) => Ok(exit_code(lab::enter(&host, &program)?)),
        Some(LabCommand::Kill { host }) => done(lab::kill(&host)),
        Some(LabCommand::Freeze { host }) => done(lab::freeze(&host)),
        Some(LabCommand::Thaw { host }) => done(lab::thaw(&host)),
        Some(LabCommand::Unplug { host }) => done(lab::unplug(&host)),
        Some(LabCommand::Plug { host }) => done(lab::plug(&host)),
        Some(LabCommand::Reset { host, to, of }) => {
            writeln!(crate::output::stdout(), "{}", lab::reset(&host, &lab::Wanted { to, of })?)?;
            Ok(0)
        }
        Some(LabCommand::Wan { words }) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let answer = lab::wan::control(&words)?;
            writeln!(crate::output::stdout(), "{}", answer.trim_end())?;
            Ok(0)
        }
    }
}

fn done(result: Result<(), lab::LabError>) -> Result<i32> {
    Ok(result.map(|()| 0)?)
}

fn run(args: LabArgs) -> Result<i32> {
    let options = LabOptions {
        sites: args.sites,
        nodes: args.nodes,
        gateways: args.gateways,
        delay: args.delay,
        jitter: args.jitter,
        loss: args.loss,
        wan_rate: args.wan_rate,
        nic_rate: args.nic_rate,
        gateway_nic_rate: args.gateway_nic_rate,
        nic_burst: args.nic_burst,
        seed: args.seed,
        same_range: args.same_range,
        families: args.ip,
        route_directly: args.route_directly,
        isolation: match args.isolation {
            args::Isolation::Auto => Isolation::Auto,
            args::Isolation::Namespaces => Isolation::Namespaces,
            args::Isolation::Loopback => Isolation::Loopback,
        },
        gateway_memory: args.gateway_memory,
        links: args.links,
        gateway_command: args.gateway_command.map(|command| command.split_whitespace().map(str::to_owned).collect()),
        pool: args.pool,
        pool_bytes: args.pool_size,
        visible: args.visible,
        report: args.report,
        logs: args.logs,
        command: args.program,
        ..LabOptions::default()
    };
    let mut notice = |text: &str| {
        crate::output::note(text);
    };
    Ok(exit_code(lab::run(&options, &mut notice)?.status))
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
