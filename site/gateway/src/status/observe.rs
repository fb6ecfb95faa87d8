//! A gateway's view of itself, for `landbridge top`, the page and metrics.

use std::rc::Rc;

use tcp_info::TcpInfo;
use tokio::time::Instant;
use types::JobId;
use wire::View;
use wire::control::ObservationMessage;
use wire::view::{JobView, LinkView, MemoryView, RanksView, SiteView, Totals, TrunkView};

use crate::gateway::Gateway;
use crate::path::link::Link;
use crate::path::member::Member;
use crate::services::standing;
use crate::table::error::Violation;
use crate::table::job::Job;
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// Handles a question about this gateway from a member.
///
/// # Errors
/// It is not a question: close the member's connection.
pub(crate) fn handle_member_message(
    gateway: &Gateway,
    member: &Member,
    message: ObservationMessage,
) -> Result<(), Violation> {
    match message {
        ObservationMessage::Observe => {
            let view = Box::new(view(gateway));
            member.send_control(&gateway.path, ObservationMessage::Observed { view });
        }
        ObservationMessage::Status { reload } => {
            member.send_control(&gateway.path, standing::standing(&gateway.trunks, reload))
        }
        ObservationMessage::Observed { .. } | ObservationMessage::Standing { .. } => {
            return Err("only gateways answer questions about themselves".into());
        }
    }
    Ok(())
}

/// The current view.
pub(crate) fn view(gateway: &Gateway) -> View {
    let counted = gateway.path.counters.snapshot();
    let table = gateway.path.table.read();
    let granted = table.grants.granted();
    let list = &gateway.trunks.list;
    let sites = gateway.sites.file.borrow();
    let site = |site: &types::sites::Site| SiteView {
        name: site.name.clone(),
        gateways: site.gateways.iter().map(|gateway| gateway.name.clone()).collect(),
    };
    let mut jobs: Vec<_> = table.jobs.iter().collect();
    jobs.sort_by_key(|(_, job)| job.epoch);
    View {
        site: gateway.sites.site.clone(),
        gateway: gateway.sites.gateway.clone(),
        fingerprint: gateway.sites.credentials().fingerprint.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: milliseconds(gateway.since),
        memory: MemoryView { limit: gateway.path.memory, held: counted.held, high_water: counted.high_water, granted },
        totals: Totals {
            frames: counted.frames,
            bytes: counted.bytes,
            undeliverable: counted.undeliverable,
            refused: counted.refused,
            violations: counted.violations,
            unadmitted: gateway.door.lobby.len() as u64,
        },
        sites: sites.sites.iter().map(site).collect(),
        trunks: list.in_use().iter().map(|trunk| trunk_view(trunk)).collect(),
        jobs: jobs.into_iter().map(|(id, job)| job_view(list, *id, job)).collect(),
        pairs: gateway.trunks.survey.pair_views(),
    }
}

fn job_view(list: &TrunkList, id: JobId, job: &Job<Rc<Member>>) -> JobView {
    let trunks = list.in_use();
    let waits_for_links: usize = trunks.iter().flat_map(|trunk| trunk.up_links()).map(|link| link.queued_of(id)).sum();
    let waits_for_members: usize = job.members.values().map(|member| member.outlet.queued()).sum();
    let ranks = job
        .roster
        .sites()
        .iter()
        .map(|site| RanksView { site: site.name.clone(), ranks: site.nodes.iter().map(|node| node.ranks).sum() });
    JobView {
        job: id,
        home: job.home_name().to_owned(),
        leads: job.leads(),
        closing: job.closing,
        ranks: ranks.collect(),
        members: job.members.len() as u32,
        window: job.grant.window.into(),
        queued: (waits_for_links + waits_for_members) as u64,
        traffic: job.traffic,
    }
}

fn trunk_view(trunk: &Trunk) -> TrunkView {
    let links: Vec<LinkView> = trunk.up_links().iter().map(|link| link_view(trunk, link)).collect();
    let up = !links.is_empty();
    TrunkView {
        site: trunk.site.clone(),
        gateway: trunk.gateway.clone(),
        dials: trunk.dials().is_some(),
        up,
        problem: if up { String::new() } else { trunk.problem() },
        links_wanted: trunk.wanted() as u32,
        losses: trunk.gone.get().links,
        sent: trunk.gone.get().sent + links.iter().map(|link| link.sent).sum::<u64>(),
        received: trunk.gone.get().received + links.iter().map(|link| link.received).sum::<u64>(),
        links,
    }
}

fn link_view(trunk: &Trunk, link: &Link) -> LinkView {
    let kernel = match trunk.through_ssh {
        // The kernel sees only the connection to ssh on this machine.
        true => TcpInfo { round_trip: link.measured.get().unwrap_or_default(), ..TcpInfo::default() },
        // A connection that has just broken shows zeros.
        false => link.kernel().unwrap_or_default(),
    };
    LinkView {
        index: link.index as u32,
        address: match trunk.through_ssh {
            true => trunk.whereabouts(link.address),
            false => link.address.to_string(),
        },
        up_ms: milliseconds(link.since),
        sent: link.sent.get(),
        received: link.received.get(),
        queued: link.queued() as u64,
        rtt_us: u64::try_from(kernel.round_trip.as_micros()).unwrap_or(u64::MAX),
        retransmissions: kernel.retransmissions,
    }
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
