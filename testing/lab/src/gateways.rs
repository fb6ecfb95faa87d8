//! Starts the gateways of a lab and waits until each listens.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use client::patience::Wait;

use crate::enter::{Session, connect};
use crate::error::LabError;
use crate::layout::{Host, LabLayout, site_name};
use crate::message::{Channel, LabMessageKind};
use crate::process::{PATIENCE, expect, readable};
use crate::state::LabDirectory;

/// A gateway that was started.
#[derive(Debug)]
pub(crate) struct RunningGateway {
    pub name: String,
    pub session: Session,
}

/// The command line of one gateway, its placeholders replaced.
fn command(template: &[String], gateway: Host, state: &LabDirectory) -> Vec<OsString> {
    let sites_file = state.sites_file().display().to_string();
    let fill = |word: &String| {
        word.replace("{sites_file}", &sites_file)
            .replace("{site}", &site_name(gateway.site).to_string())
            .replace("{gateway}", &gateway.short_name())
            .into()
    };
    template.iter().map(fill).collect()
}

/// Starts all gateways at once and waits, at most ten seconds on a machine that is not overloaded, until each listens
/// on its port. A signal from `caller` ends the wait.
pub(crate) fn start(
    template: &[String],
    layout: &LabLayout,
    state: &LabDirectory,
    environment: &[(OsString, OsString)],
    caller: &Channel,
) -> Result<Vec<RunningGateway>, LabError> {
    let mut started = Vec::new();
    let mut waiting = Vec::new();
    for host in layout.gateways() {
        let name = host.name();
        let log_path = state.log(&name);
        let wrong = |e: std::io::Error| LabError::setup(log_path.display().to_string(), e);
        let log = File::create(&log_path).map_err(wrong)?;
        let null = File::open("/dev/null").map_err(|e| LabError::setup("/dev/null", e))?;
        let files = [null.as_fd(), log.as_fd(), log.as_fd()];
        let command = command(template, host, state);
        let session = Session::start(state, &name, &command, environment, Path::new("/"), files)?;
        waiting.push((started.len(), layout.listen(host), connect(state, &name)?));
        started.push(RunningGateway { name, session });
    }
    let mut wait = Wait::new(PATIENCE);
    while !waiting.is_empty() {
        let mut still = Vec::new();
        for (index, address, channel) in waiting {
            let gateway: &RunningGateway = &started[index];
            if let Some(outcome) = gateway.session.outcome_within(Duration::ZERO) {
                let how = outcome.map_or_else(|e| e.to_string(), |status| status.to_string());
                return Err(failed(gateway, state, format!("ended before it listened on {address}: {how}")));
            }
            channel
                .send(LabMessageKind::Listens, &[address.to_string().as_bytes()])
                .map_err(|e| LabError::setup(&gateway.name, e))?;
            let answer = expect(&channel, LabMessageKind::Answer, &gateway.name)?;
            if answer.fields.first().is_none_or(|field| field.as_slice() != [1]) {
                if wait.left().is_none() {
                    let problem = format!("does not listen on {address} after {} s", wait.elapsed().as_secs());
                    return Err(failed(gateway, state, problem));
                }
                still.push((index, address, channel));
            }
        }
        waiting = still;
        let pause = if waiting.is_empty() { Duration::ZERO } else { Duration::from_millis(2) };
        if readable(caller, pause) {
            let message = expect(caller, LabMessageKind::Signal, "the lab's caller")?;
            let signal = message.number().map_err(|e| LabError::setup("a signal", e))?;
            return Err(LabError::Interrupted { signal });
        }
    }
    Ok(started)
}

fn failed(gateway: &RunningGateway, state: &LabDirectory, problem: String) -> LabError {
    LabError::Gateway { gateway: gateway.name.clone(), problem, log_tail: log_tail(state, &gateway.name) }
}

/// The last lines of a gateway's log, at most 20 lines and 4 KiB.
pub(crate) fn log_tail(state: &LabDirectory, name: &str) -> String {
    let bytes = std::fs::read(state.log(name)).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(4096)..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return "(it printed nothing)".to_owned();
    }
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Asks every gateway to end and waits for them, one second in all.
pub(crate) fn stop(gateways: &[RunningGateway]) {
    for gateway in gateways {
        // One that is already gone is fine.
        let _ = gateway.session.signal(libc::SIGTERM);
    }
    let end = Instant::now() + Duration::from_secs(1);
    for gateway in gateways {
        // A gateway that does not end in time is killed with its host.
        let _ = gateway.session.outcome_within(end.saturating_duration_since(Instant::now()));
    }
}
