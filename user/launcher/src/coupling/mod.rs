//! One side of a coupling, run by a helper beside the side's processes. The helper holds the site's key, so that no
//! rank does.
//!
//! The side's first process starts the helper and exchanges lines of JSON with it ([`types::coupling`]). The helper
//! posts its side at the coupling's site, through all gateways of its own site. When two sides are there, one opens a
//! job without agents, in which all processes of both sides are ranks, and offers it to the other (`pairing`). The
//! coupling lasts as long as both helpers do; each helper ends with its process.

mod pairing;
pub mod side;

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use client::patience::{core_time, slowness_in};
use client::{ClientError, Connections, Entry, Frame, News, Role};
use thiserror::Error;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, Lines};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use types::coupling::{CouplingSite, Said, Told};
use types::id::SlotKind;
use types::patience::{CoreTime, Patience};
use types::sites::Inside;
use types::untrusted::UntrustedText;
use types::{Identity, JobId, Roster, SiteId, Slot};
use wire::control::coupling::{Coupling, CouplingMessage, RENEW_S};
use wire::control::{JobMessage, Part};
use wire::{Control, FrameKind};

use self::pairing::{Action, Pairing};
use self::side::{About, Offer, SideError, matched};
use crate::deadline::until;
use crate::own_gateways::OwnGateways;
use crate::session::{Connection, Incoming, Session, dialled};
use crate::{SessionError, Sites};

/// Time limit for opening the job at all sites, on a machine that is not overloaded.
const OPEN: Duration = Duration::from_secs(10);
/// Time limit for processes to connect to gateways once the sides are coupled, on a machine that is not overloaded.
const CONNECT: Duration = Duration::from_secs(8);
/// Time limit for gateways to close the job.
const CLOSE: Duration = Duration::from_secs(2);
/// Time for the partner to appear on a board, for a side that leaves.
const LINGER: Duration = Duration::from_secs(4);
/// Longest time in which a helper need not run: boards have forgotten its side after 8 s, and its partner has given it
/// up soon after that.
const PAUSE: Duration = Duration::from_secs(12);
/// Time for which lost gateways are dialled again while none is connected.
const RETURN: Duration = Duration::from_secs(8);
/// The longest line from the process, in bytes.
const LONGEST: usize = 64 << 20;

/// A request to join a coupling.
#[derive(Clone, Debug)]
pub struct Request {
    pub sites: Sites,
    /// The user's own site.
    pub home: String,
    pub coupling: Coupling,
}

/// Reasons why a coupling fails or ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CouplingError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Refused(String),
    #[error("{coupling} already has two sides, from {one} and {other}: take another name")]
    TwoSides { coupling: Coupling, one: String, other: UntrustedText },
    #[error("the other side, {home}: {source}")]
    Other { home: String, source: SideError },
    /// A trusted site has posted a side in the name of another site.
    #[error(
        "site {home} has posted the other side of {coupling}, which says that it is of site {said}: ask the \
         administrators of site {home}, or take another name"
    )]
    Posing { home: String, said: UntrustedText, coupling: Coupling },
    #[error("the processes of this side: {0}")]
    Own(#[from] SideError),
    #[error("site {site}: {reason}")]
    Site { site: String, reason: String },
    #[error("site {site}: did not open the coupling within {seconds} s; `landbridge sites check` shows what works")]
    Slow { site: String, seconds: u64 },
    #[error("the other side ({other}) has left: {reason}")]
    Left { other: String, reason: String },
    #[error("this side did not run for {seconds} s, so the other side has given it up")]
    Paused { seconds: u64 },
    #[error("no random numbers: {0}")]
    Random(String),
    #[error("bad line from the process: {0}")]
    Input(String),
}

/// Runs the coupling until one side ends it. `say` passes lines to the process.
///
/// # Errors
/// The reason why the coupling ended, unless the process ended it.
pub async fn run<R: AsyncBufRead + Unpin>(
    request: Request,
    input: R,
    mut say: impl FnMut(Said) -> io::Result<()>,
) -> Result<(), CouplingError> {
    let mut input = input.lines();
    let said = |result: io::Result<()>| result.map_err(|e| CouplingError::Input(e.to_string()));
    said(say(Said::Waiting(format!("no gateway of site {} has answered yet", request.home))))?;
    let gateways = Gateways::connect(&request).await?;
    said(say(home(&request)))?;
    let processes = match next(&mut input).await? {
        Some(Told::Processes(processes)) => processes,
        Some(Told::Leave(_)) | None => return Ok(()),
    };
    let side = getrandom::u64().map_err(|e| CouplingError::Random(e.to_string()))?;
    let about = About::new(&request.home, &processes);
    matched(&about, &about)?;
    let pairing = Pairing::new(request.coupling.clone(), side, about);
    let mut helper = Helper { request, gateways, pairing, opening: None, opened: None, absent: None, refused: None };
    let result = helper.couple(&mut input, &mut |line| said(say(line))).await;
    let reason = match &result {
        Ok(reason) => reason.clone(),
        Err(error) => {
            // The process need not wait until the partner has been told. It may have ended.
            let _ = say(Said::Over(error.to_string()));
            error.to_string()
        }
    };
    let lost = matches!(result, Err(CouplingError::Session(_))) || helper.gateways.outage.is_some();
    helper.leave(reason, lost).await;
    result.map(drop)
}

fn home(request: &Request) -> Said {
    let place = |site: &types::sites::Site| CouplingSite {
        name: site.name.clone(),
        gateways: site.gateways.iter().map(|gateway| (gateway.name.clone(), gateway.inside.clone())).collect(),
        keys: match site.inside {
            Inside::Encrypted => {
                let keys = site.keys();
                std::iter::once(keys.current).chain(keys.next).map(|key| key.to_string()).collect()
            }
            _ => Vec::new(),
        },
    };
    Said::Home { site: request.home.clone(), sites: request.sites.file.sites.iter().map(place).collect() }
}

/// The process's next line; `None` at its end.
async fn next<R: AsyncBufRead + Unpin>(input: &mut Lines<R>) -> Result<Option<Told>, CouplingError> {
    match input.next_line().await {
        Ok(None) => Ok(None),
        Ok(Some(line)) if line.len() > LONGEST => Err(CouplingError::Input(format!("a line of {} bytes", line.len()))),
        Ok(Some(line)) => serde_json::from_str(&line).map(Some).map_err(|e| CouplingError::Input(e.to_string())),
        Err(error) => Err(CouplingError::Input(error.to_string())),
    }
}

/// The connections to the gateways of the own site. A message goes through all of them, so that none is missed.
struct Gateways {
    site: String,
    connections: Connections,
    /// Time since which none is connected, and why the last one was lost.
    lost: Option<(Instant, ClientError)>,
    /// The last time when none was connected, since the coupling began: why the last one was lost.
    outage: Option<String>,
}

impl Gateways {
    /// Connects to the first gateway that answers, and then to the others.
    async fn connect(request: &Request) -> Result<Gateways, SessionError> {
        let site = request.sites.site(&request.home)?;
        let (client, name) = request.sites.connect(site).await?;
        let role = Role::Client { secret: request.sites.client_secret(site)? };
        let mut entries: Vec<Entry> = site
            .gateways
            .iter()
            .map(|gateway| Entry { gateway: dialled(site, gateway), role: role.clone(), opening: None })
            .collect();
        let first = entries.iter().position(|entry| entry.gateway.name == name).unwrap_or(0);
        let mut connections = Connections::new(NOBODY, client, entries.remove(first));
        // The other side does not know how busy this machine is, and takes a side that is posted nowhere for gone.
        connections.be_impatient();
        for entry in entries {
            connections.add(entry);
        }
        Ok(Gateways { site: site.name.clone(), connections, lost: None, outage: None })
    }

    fn send(&self, message: &CouplingMessage) {
        self.connections.all().for_each(|gateway| self.connections.control(gateway, message.clone()));
    }

    /// Posts this side; also at gateways that are connected later.
    fn post(&self, post: &CouplingMessage) {
        self.connections.all().for_each(|gateway| self.connections.reopen_with(gateway, post.clone()));
        self.send(post);
    }

    /// The next message about couplings; `None` when the last connected gateway is lost. Cancel-safe.
    ///
    /// # Errors
    /// A gateway does not follow the protocol, or no gateway has been connected for a while.
    async fn next(&mut self) -> Result<Option<CouplingMessage>, CouplingError> {
        loop {
            let given_up = self.lost.as_ref().map(|(since, _)| *since + RETURN);
            let (_, news) = tokio::select! {
                next = self.connections.next() => next,
                () = until(given_up) => {
                    let reason = self.lost.take().map(|(_, error)| error.to_string()).unwrap_or_default();
                    let reason = format!("the gateway is lost: {reason}");
                    return Err(CouplingError::Site { site: self.site.clone(), reason });
                }
            };
            match news {
                News::Frame(frame) => {
                    if let Some(message) = coupling_message(&frame)? {
                        return Ok(Some(message));
                    }
                }
                News::Open => self.lost = None,
                News::Lost(error) if self.connections.open().next().is_none() => {
                    if let ClientError::Wire { source, .. } = error {
                        return Err(CouplingError::Refused(source.to_string()));
                    }
                    self.outage = Some(error.to_string());
                    self.lost.get_or_insert((Instant::now(), error));
                    return Ok(None);
                }
                News::Lost(_) | News::Failed(_) | News::Back(_) => {}
            }
        }
    }
}

fn coupling_message(frame: &Frame) -> Result<Option<CouplingMessage>, CouplingError> {
    if frame.header.kind != FrameKind::Control {
        return Ok(None);
    }
    match Control::decode(&frame.payload) {
        Ok(Control::Coupling(message)) => Ok(Some(message)),
        Ok(_) => Ok(None),
        Err(error) => Err(CouplingError::Refused(error.to_string())),
    }
}

/// A job that is being opened for the other side.
type Opening = Pin<Box<dyn Future<Output = Result<(Opened, Offer), CouplingError>>>>;

struct Helper {
    request: Request,
    gateways: Gateways,
    pairing: Pairing,
    opening: Option<Opening>,
    opened: Option<Opened>,
    /// The beginnings of [`Pairing::absent`] and [`Pairing::refused`], with this process's core time then.
    absent: Option<(Instant, CoreTime)>,
    refused: Option<(Instant, CoreTime)>,
}

/// A job that this side has opened.
struct Opened {
    session: Session,
    roster: Roster,
    gateways: OwnGateways,
}

const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Helper {
    /// Returns the process's reason for leaving.
    async fn couple<R: AsyncBufRead + Unpin>(
        &mut self,
        input: &mut Lines<R>,
        say: &mut impl FnMut(Said) -> Result<(), CouplingError>,
    ) -> Result<String, CouplingError> {
        let mut renew = interval(Duration::from_secs(RENEW_S));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        self.gateways.post(&self.pairing.post());
        loop {
            let gone = overdue(self.absent, self.pairing.absent());
            let refused = overdue(self.refused, self.pairing.refused());
            let actions = tokio::select! {
                biased;
                told = next(input) => match told? {
                    Some(Told::Leave(reason)) => return Ok(reason),
                    Some(Told::Processes(_)) => return Err(CouplingError::Input("processes again".into())),
                    None => return Ok("its first process has ended".into()),
                },
                message = self.gateways.next() => match message? {
                    Some(message) => self.pairing.heard(message, Instant::now())?,
                    None => {
                        self.pairing.forget_boards();
                        continue;
                    }
                },
                incoming = opened_next(self.opened.as_mut()) => {
                    if let Some(opened) = &mut self.opened {
                        opened.incoming(incoming?)?;
                    }
                    continue;
                }
                result = opening_done(self.opening.as_mut()) => {
                    let (opened, offer) = result?;
                    (self.opening, self.opened) = (None, Some(opened));
                    self.pairing.opened(offer)
                }
                _ = renew.tick() => {
                    let pause = std::mem::replace(&mut renewed, Instant::now()).elapsed();
                    if pause > PAUSE && self.pairing.is_coupled() {
                        return Err(CouplingError::Paused { seconds: pause.as_secs() });
                    }
                    self.gateways.send(&self.pairing.renewal());
                    continue;
                }
                () = gone => return Err(match self.gateways.outage.take() {
                    // The other side could post its reason nowhere.
                    Some(reason) => {
                        let reason = format!("all its gateways were lost, and the coupling with them: {reason}");
                        CouplingError::Site { site: self.gateways.site.clone(), reason }
                    }
                    None => self.pairing.gone(),
                }),
                () = refused => return Err(self.pairing.refusal()),
            };
            for action in actions {
                self.act(action, say).await?;
            }
            if !self.pairing.lacks_partner() {
                self.gateways.outage = None;
            }
            note(&mut self.absent, self.pairing.absent());
            note(&mut self.refused, self.pairing.refused());
        }
    }

    async fn act(
        &mut self,
        action: Action,
        say: &mut impl FnMut(Said) -> Result<(), CouplingError>,
    ) -> Result<(), CouplingError> {
        match action {
            Action::Post => self.gateways.post(&self.pairing.post()),
            Action::Open { roster, to } => {
                self.abandon().await;
                let request = self.request.clone();
                self.opening = Some(Box::pin(async move {
                    match open(&request, &roster, to).await {
                        // A gateway may have been lost meanwhile that others of its site stand in for.
                        Err(_) => open(&request, &roster, to).await,
                        opened => opened,
                    }
                }));
            }
            Action::Abandon => self.abandon().await,
            Action::Say(line) => {
                if let (Said::Coupled(_), Some(opened)) = (&line, &mut self.opened) {
                    opened.session.question_ranks(CONNECT);
                }
                say(line)?;
            }
        }
        Ok(())
    }

    async fn abandon(&mut self) {
        self.opening = None;
        if let Some(stale) = self.opened.take() {
            stale.session.end(CLOSE).await;
        }
    }

    /// Waits until a board names the partner.
    async fn meet_partner(&mut self) {
        self.pairing.forget_boards();
        while self.pairing.lacks_partner() {
            match self.gateways.next().await {
                Ok(Some(message)) => self.pairing.note(&message, Instant::now()),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Posts the reason for leaving, and leaves. `lost`: the gateways of the job were lost, and perhaps the partner's
    /// post with them.
    async fn leave(mut self, reason: String, lost: bool) {
        self.pairing.end(reason);
        self.gateways.post(&self.pairing.post());
        if lost {
            // The partner learns the reason once a gateway is back.
            let _ = timeout(LINGER, self.meet_partner()).await;
        }
        self.gateways.send(&self.pairing.leave());
        self.gateways.connections.goodbye(JobId::default(), CLOSE).await;
        if let Some(opened) = self.opened.take() {
            opened.session.end(CLOSE).await;
        }
    }
}

async fn opening_done(opening: Option<&mut Opening>) -> Result<(Opened, Offer), CouplingError> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

async fn opened_next(opened: Option<&mut Opened>) -> Result<Vec<Incoming>, CouplingError> {
    match opened {
        Some(opened) => {
            opened.session.flush();
            Ok(opened.session.next().await?)
        }
        None => std::future::pending().await,
    }
}

/// Notes the beginning of a wait, and this process's core time then.
fn note(begun: &mut Option<(Instant, CoreTime)>, wait: Option<(Instant, Duration)>) {
    let since = wait.map(|(since, _)| since);
    if since != begun.map(|(since, _)| since) {
        *begun = since.map(|since| (since, core_time()));
    }
}

/// Ends when a wait is over: after its time, or later on a machine that is slow meanwhile. Cancel-safe.
async fn overdue(begun: Option<(Instant, CoreTime)>, wait: Option<(Instant, Duration)>) {
    let Some(((since, before), (_, calm))) = begun.zip(wait) else { return std::future::pending().await };
    let (patience, mut limit) = (Patience::new(calm), calm);
    loop {
        sleep_until(since + limit).await;
        let elapsed = since.elapsed();
        let Some(later) = patience.next_look(elapsed, slowness_in(elapsed, before)) else { return };
        limit = later;
    }
}

/// Opens the job of both sides.
async fn open(request: &Request, roster: &Roster, to: u64) -> Result<(Opened, Offer), CouplingError> {
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

impl Opened {
    fn incoming(&mut self, incoming: Vec<Incoming>) -> Result<(), CouplingError> {
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
