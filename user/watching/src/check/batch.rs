//! Checks of sites whose nodes come from a batch system: asks it whether it would grant nodes or, on request, proves it
//! with a job.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use types::sites::Site;
use types::{NodeRoster, Roster, SiteRoster};
use wire::Control;
use wire::control::{AllocatedNode, AllocationMessage, JobMessage, NodeAsk};

use super::{AGENTS, CheckError, Finding, News, nodes};
use launcher::session::Connection;
use launcher::tailor::Typed;
use launcher::{REPLY_GRACE, Sites};

/// Time limit for a job's agent to start and reply, once the job has its node.
const IN_JOB: Duration = Duration::from_secs(60);
/// Added to a finding if a job was asked for, but Landbridge cannot submit one to this batch system.
const NO_JOB: &str = "; no job was tried: Landbridge submits jobs only to Slurm, so type `run` in a job of your own";

/// Checks all these sites at once. `job`: makes a job at each site, which may wait this long; `None`: only asks.
pub(super) async fn check(
    sites: &Sites,
    home: &str,
    of: &[&Site],
    typed: &Typed,
    job: Option<Duration>,
    news: News<'_>,
) -> Vec<Finding> {
    let (sender, mut states) = tokio::sync::mpsc::unbounded_channel();
    let asked = async {
        let mut findings = Vec::new();
        let asked = of.iter().map(|site| {
            let sender = sender.clone();
            async move {
                let state = |text: &str| drop(sender.send((site.name.clone(), text.to_owned())));
                match job {
                    Some(wait) if site.starter.makes_jobs() => {
                        run_job(sites, home, &site.name, typed, wait, state).await
                    }
                    _ => {
                        let mut found = Finding::new(&site.name, "nodes", would_give(sites, home, &site.name).await);
                        if job.is_some() {
                            found.detail += NO_JOB;
                        }
                        vec![found]
                    }
                }
            }
        });
        for found in all(asked).await {
            findings.extend(found);
        }
        findings
    };
    tokio::pin!(asked);
    loop {
        tokio::select! {
            findings = &mut asked => return findings,
            Some((site, text)) = states.recv() => news(&site, &text),
        }
    }
}

/// The results of all futures, in order.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, result) in waiting.iter_mut().filter(|(_, result)| result.is_none()) {
            match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => *result = Some(output),
                std::task::Poll::Pending => pending = true,
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    waiting.into_iter().filter_map(|(_, result)| result).collect()
}

/// Asks a site's batch system whether it would grant nodes. Makes no job.
async fn would_give(sites: &Sites, home: &str, site: &str) -> Result<String, CheckError> {
    let mut connection = Connection::new(sites, home).await?;
    connection.ask(site, ask(0, AGENTS)).await?;
    let mut state = String::new();
    let granted = granted(&mut connection, site, 2 * AGENTS, |text| text.clone_into(&mut state)).await;
    connection.give_back(Duration::from_secs(1)).await;
    granted.map(|_| state)
}

/// Makes a job for one rank, checks provider and program there with an agent, and gives the job back.
async fn run_job(
    sites: &Sites,
    home: &str,
    site: &str,
    typed: &Typed,
    wait: Duration,
    state: impl Fn(&str),
) -> Vec<Finding> {
    let begun = Instant::now();
    let allocated = async {
        let mut connection = Connection::new(sites, home).await?;
        connection.ask(site, ask(1, wait)).await?;
        match granted(&mut connection, site, wait + REPLY_GRACE, state).await {
            Ok(granted) => Ok((connection, granted)),
            Err(error) => {
                connection.give_back(Duration::from_secs(2)).await;
                Err(error)
            }
        }
    };
    let (connection, given) = match allocated.await {
        Ok(allocated) => allocated,
        Err(error) => return vec![Finding::new(site, "job", Err(error))],
    };
    let waited = begun.elapsed().as_secs_f64();
    let roster = match roster(home, site, &given) {
        Ok(roster) => roster,
        Err(error) => {
            connection.give_back(Duration::from_secs(2)).await;
            return vec![Finding::new(site, "job", Err(CheckError::from(error)))];
        }
    };
    let given = format!("a batch job got {} after {waited:.1} s, and was given back", names(&given));
    let mut findings = vec![Finding::new(site, "job", Ok::<_, CheckError>(given))];
    findings.extend(nodes::ask_in(Ok(connection), sites, home, &roster, typed, IN_JOB).await);
    findings
}

fn names(nodes: &[AllocatedNode]) -> String {
    nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The roster of a job without ranks on these nodes. It contains the launcher's site, as every roster must.
fn roster(home: &str, site: &str, nodes: &[AllocatedNode]) -> Result<Roster, types::roster::RosterError> {
    let named = nodes.iter().map(|node| NodeRoster { name: node.name.clone(), ranks: 0 }).collect();
    let own = (home != site).then(|| SiteRoster { name: home.to_owned(), nodes: Vec::new() });
    Roster::new(own.into_iter().chain([SiteRoster { name: site.to_owned(), nodes: named }]).collect())
}

fn ask(ranks: u32, wait: Duration) -> NodeAsk {
    let wait_s = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    NodeAsk { ranks, per_node: None, wait_s, held: None, elsewhere: 0, beyond_home: 0 }
}

/// Waits for a site's nodes and returns them. Calls `state` with each state of the queue.
async fn granted(
    connection: &mut Connection,
    site: &str,
    limit: Duration,
    mut state: impl FnMut(&str),
) -> Result<Vec<AllocatedNode>, CheckError> {
    let answer = async {
        loop {
            match connection.next().await? {
                Control::Allocation(AllocationMessage::Waiting { state: now, .. }) => state(&now),
                Control::Allocation(AllocationMessage::Granted { nodes, .. }) => return Ok(nodes),
                Control::Job(JobMessage::Refused { reason, .. } | JobMessage::SiteLost { reason, .. }) => {
                    let advice = nodes_advice(site, &reason);
                    return Err(CheckError::Reported(format!("{reason}{advice}")));
                }
                _ => {}
            }
        }
    };
    let answer = timeout_at(Instant::now() + limit, answer).await;
    let (what, log) = ("no answer", "its gateway's log");
    answer.unwrap_or(Err(CheckError::Silent { what, seconds: limit.as_secs(), log }))
}

/// The command that sets the missing option, if Slurm refused the job because it requires that option.
pub(super) fn nodes_advice(site: &str, reason: &str) -> String {
    if !reason.contains("salloc") {
        return String::new();
    }
    let reason = reason.to_lowercase();
    // The reason has salloc's command line in backquotes, followed by Slurm's reply.
    let answer = reason.rsplit('`').next().unwrap_or_default();
    let key = [
        ("qos", "qos=NAME"),
        ("partition", "partition=NAME"),
        ("account", "account=NAME"),
        ("time limit", "time=TIME"),
    ];
    // Slurm's "account or account/partition combination" also names a partition, but it is about accounts.
    let key = match answer.contains("invalid account") {
        true => Some("account=NAME"),
        false => key.into_iter().find(|(word, _)| answer.contains(word)).map(|(_, setting)| setting),
    };
    let setting = key.unwrap_or("KEY=VALUE");
    format!("; `landbridge sites add {site} --slurm {setting}` sets it for every job")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_misses_is_named_with_the_flag() {
        let advice = |answer: &str| {
            nodes_advice("lyon", &format!("Slurm gave no nodes: `salloc --account=x`: exit status 1: {answer}"))
        };
        for (answer, flag) in [
            ("error: Job submit/allocate failed: No partition specified or system default partition", "partition=NAME"),
            ("Invalid account or account/partition combination specified", "account=NAME"),
            ("Invalid qos specification", "qos=NAME"),
            ("Job violates accounting/QOS policy", "qos=NAME"),
            ("Requested time limit is invalid (missing or exceeds some limit)", "time=TIME"),
            ("Requested node configuration is not available", "KEY=VALUE"),
        ] {
            assert!(advice(answer).contains(&format!("`landbridge sites add lyon --slurm {flag}`")), "{answer}");
        }
        assert_eq!(nodes_advice("lyon", "no answer"), "");
    }
}
