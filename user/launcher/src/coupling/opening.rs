//! Opening the job of two sides, until all their processes have connected.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use client::patience::slowness_in;
use tokio::time::{Instant, sleep_until, timeout};
use types::id::SlotKind;
use types::patience::{CoreTime, Patience};
use types::{Identity, Roster};
use wire::control::{JobMessage, Part};

use super::side::Offer;
use super::{CouplingError, CouplingRequest};
use crate::deadline::OPEN;
use crate::own_gateways::OwnGateways;
use crate::session::{Connection, Incoming, Session};

/// A job that is being opened for the other side.
pub(super) type Opening = Pin<Box<dyn Future<Output = Result<(Opened, Offer), CouplingError>>>>;

/// A job that this side has opened.
pub(super) struct Opened {
    pub(super) session: Session,
    roster: Roster,
    gateways: OwnGateways,
}

impl Opened {
    pub(super) fn incoming(&mut self, incoming: Vec<Incoming>) -> Result<(), CouplingError> {
        for incoming in incoming {
            match incoming {
                Incoming::Up(..) | Incoming::GatewayBack { .. } | Incoming::Note(_) => {}
                Incoming::GatewayOpen(gateway) => self.gateways.connected(gateway),
                Incoming::GatewayLost(gateway, reason) => {
                    self.gateways.disconnected(gateway);
                    self.check_reached(reason)?;
                }
                Incoming::Job(gateway, message) => match message {
                    JobMessage::Refused { site, reason, .. } => return Err(CouplingError::Site { site, reason }),
                    JobMessage::MemberLost { member, reason, .. } => self.member_lost(member, reason)?,
                    JobMessage::SiteLost { site, seen_from, reason, .. } => {
                        self.gateways.lost(gateway, &seen_from, &site);
                        self.check_reached(reason)?;
                    }
                    JobMessage::SiteFound { site, .. } => self.gateways.found(gateway, &site),
                    JobMessage::Closed { site, led: true, .. } => {
                        let reason = "its gateway closed the coupling".to_owned();
                        return Err(CouplingError::Site { site, reason });
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Fails when no gateway of the own site reaches one of the sites.
    fn check_reached(&self, reason: String) -> Result<(), CouplingError> {
        match self.gateways.unreached() {
            Some(site) => {
                let reason = format!("all routes to it were lost: {reason}");
                Err(CouplingError::Site { site: site.to_owned(), reason })
            }
            None => Ok(()),
        }
    }

    /// Fails because a process is lost. In a job without agents, the gateways watch the processes.
    fn member_lost(&self, member: Identity, reason: String) -> Result<(), CouplingError> {
        let Some(site) = self.roster.site(member.site).map(|site| &site.name) else { return Ok(()) };
        let SlotKind::Rank(rank, _) = member.slot.kind() else { return Ok(()) };
        let node = self.roster.place(rank).map_or("", |place| place.node_name);
        let reason = format!("a process on node {node} is lost: {reason}");
        Err(CouplingError::Site { site: site.to_owned(), reason })
    }
}

/// Opens the job of both sides.
pub(super) async fn open(
    request: &CouplingRequest,
    roster: &Roster,
    to: u64,
) -> Result<(Opened, Offer), CouplingError> {
    let connection = Connection::new(&request.sites, &request.home).await?;
    let session = connection.open(roster, Part::LeadWithoutAgents).await?;
    let mut opened = Opened { session, roster: roster.clone(), gateways: OwnGateways::new(&request.home) };
    let began = Instant::now();
    let (mut sites, mut window) = (BTreeSet::new(), u32::MAX);
    while sites.len() < roster.sites().len() {
        opened.session.flush();
        let incoming = timeout(OPEN.saturating_sub(began.elapsed()), opened.session.next()).await;
        let Ok(incoming) = incoming else {
            let silent = roster.sites().iter().find(|site| !sites.contains(&site.name));
            let site = silent.map(|site| site.name.clone()).unwrap_or_default();
            return Err(CouplingError::Slow { site, seconds: OPEN.as_secs() });
        };
        for incoming in incoming? {
            if let Incoming::Job(_, JobMessage::Opened { site, window: granted, .. }) = &incoming {
                sites.insert(site.clone());
                window = window.min(*granted);
            }
            opened.incoming(vec![incoming])?;
        }
    }
    opened.session.open_relays(roster, window);
    let (job, secret) = opened.session.credentials();
    Ok((opened, Offer { to, job, secret, window }))
}

pub(super) async fn opening_done(opening: Option<&mut Opening>) -> Result<(Opened, Offer), CouplingError> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

pub(super) async fn opened_next(opened: Option<&mut Opened>) -> Result<Vec<Incoming>, CouplingError> {
    match opened {
        Some(opened) => {
            opened.session.flush();
            Ok(opened.session.next().await?)
        }
        None => std::future::pending().await,
    }
}

/// Ends when a wait is over: after its time, or later on a machine that is slow meanwhile. Cancel-safe.
pub(super) async fn overdue(begun: Option<(Instant, CoreTime)>, wait: Option<(Instant, Duration)>) {
    let Some(((since, before), (_, calm))) = begun.zip(wait) else { return std::future::pending().await };
    let (patience, mut limit) = (Patience::new(calm), calm);
    loop {
        sleep_until(since + limit).await;
        let elapsed = since.elapsed();
        let Some(later) = patience.next_look(elapsed, slowness_in(elapsed, before)) else { return };
        limit = later;
    }
}
