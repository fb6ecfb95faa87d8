//! One side of a coupling, run by a helper beside the side's processes. The helper holds the site's key, so that no
//! rank does.
//!
//! The side's first process starts the helper and exchanges lines of JSON with it ([`types::coupling`]). The helper
//! posts its side at the coupling's site. When both sides are there, the one with the lower number opens a job without
//! agents, in which all processes of both sides are ranks, and offers it to the other side. The coupling lasts as long
//! as both helpers do; each helper ends with its process.

pub mod side;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use client::patience::{core_time, slowness_in};
use client::{ClientError, Connections, Entry, News, Role};
use thiserror::Error;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, Lines};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use types::coupling::{Coupled, CouplingSite, Said, Told};
use types::id::SlotKind;
use types::patience::CoreTime;
use types::sites::Inside;
use types::untrusted::{UntrustedText, printable};
use types::{Identity, JobId, Roster, SiteId, Slot};
use wire::control::coupling::{Coupling, CouplingMessage, Posted, RENEW_S, SILENCE_S};
use wire::control::{JobMessage, Part};
use wire::{Control, FrameKind};

use self::side::{About, Offer, Refusal, SideError, matched};
use crate::own_gateways::OwnGateways;
use crate::session::{Connection, Incoming, Session, dialled};
use crate::{SessionError, Sites};

/// Time for which the other side may be missing from a board that knew it, while its gateway is restarted. A side whose
/// gateway is silent is posted at another one before boards forget it: see [`Connections::be_impatient`].
const ABSENT: Duration = Duration::from_secs(4);
/// Time for which it may be missing from a board that has just been restarted: long enough for several of its messages.
const UNKNOWN: Duration = Duration::from_secs(12);
/// Time limit for opening the job at all sites, on a machine that is not overloaded.
const OPEN: Duration = Duration::from_secs(10);
/// Time limit for gateways to close the job.
const CLOSE: Duration = Duration::from_secs(2);
/// Time for which a lost gateway is dialled again.
const RETURN: Duration = Duration::from_secs(8);
const AGAIN: Duration = Duration::from_millis(200);
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
    #[error("no random numbers: {0}")]
    Random(String),
    #[error("what the process says: {0}")]
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
    let (client, gateway) = connect(&request, None).await?;
    said(say(home(&request)))?;
    let processes = match next(&mut input).await? {
        Some(Told::Processes(processes)) => processes,
        Some(Told::Leave(_)) | None => return Ok(()),
    };
    let side = getrandom::u64().map_err(|e| CouplingError::Random(e.to_string()))?;
    let about = About::new(&request.home, &processes);
    matched(&about, &about)?;
    let mut board = Board { request: &request, client: Some(client), gateway, side, about };
    let mut pair = Pair::default();
    let result = board.couple(&mut pair, &mut input, &mut |line| said(say(line))).await;
    let reason = match &result {
        Ok(reason) => reason.clone(),
        Err(error) => error.to_string(),
    };
    board.about.ended = Some(reason);
    board.about.offer = None;
    board.leave().await;
    if let Some(open) = pair.opened.take() {
        open.session.end(CLOSE).await;
    }
    result.map(drop)
}

/// Connects to a gateway of the own site, and returns its name too. `lost`: the gateway to dial last.
async fn connect(request: &Request, lost: Option<&str>) -> Result<(Connections, String), SessionError> {
    let mut site = request.sites.site(&request.home)?.clone();
    site.gateways.sort_by_key(|gateway| lost == Some(&gateway.name));
    let (client, name) = request.sites.connect(&site).await?;
    let named = site.gateways.iter().find(|gateway| gateway.name == name);
    let gateway = dialled(&site, named.unwrap_or(&site.gateways[0]));
    let role = Role::Client { secret: request.sites.client_secret(&site)? };
    let client = Connections::new(NOBODY, client, Entry { gateway, role, opening: None });
    // The other side does not know how busy this machine is, and takes a side that is posted nowhere for gone.
    client.be_impatient();
    Ok((client, name))
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

/// This side at the board of the coupling's site.
struct Board<'a> {
    request: &'a Request,
    /// `None`: the connection is lost and is being dialled again. There is one; it notices a silent gateway.
    client: Option<Connections>,
    /// Name of the gateway that it is or was connected to.
    gateway: String,
    side: u64,
    about: About,
}

/// The state of the pair of sides.
#[derive(Default)]
struct Pair {
    other: Option<(u64, About)>,
    /// The other side's number, once both sides are in a job.
    coupled: Option<u64>,
    opened: Option<Opened>,
    /// Time since which the other side of a job has not been posted, and this process's core time then.
    absent: Option<(Instant, CoreTime)>,
    /// True if this side had to post itself again and no board has named the other side since.
    unknown: bool,
    /// For each gateway at which this side is posted: the other side there, and the time of that report.
    boards: HashMap<String, (Option<u64>, Instant)>,
}

impl Pair {
    /// A gateway reports the other side that is posted there.
    fn seen(&mut self, board: String, other: Option<u64>) {
        let now = Instant::now();
        self.boards.insert(board, (other, now));
        // A lost gateway sends no more reports, so its last one expires.
        self.boards.retain(|_, (_, heard)| now - *heard < Duration::from_secs(SILENCE_S));
        match self.coupled {
            Some(coupled) if !self.is_posted(coupled) => drop(self.absent.get_or_insert_with(|| (now, core_time()))),
            _ => (self.absent, self.unknown) = (None, false),
        }
    }

    /// Returns true if a board names this side.
    fn is_posted(&self, side: u64) -> bool {
        self.boards.values().any(|(other, _)| *other == Some(side))
    }

    /// Time for which the other side may be missing.
    fn patience(&self) -> Duration {
        if self.unknown { UNKNOWN } else { ABSENT }
    }
}

/// A job that this side has opened.
struct Opened {
    session: Session,
    roster: Roster,
    gateways: OwnGateways,
}

const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Board<'_> {
    /// Returns the process's reason for leaving.
    async fn couple<R: AsyncBufRead + Unpin>(
        &mut self,
        pair: &mut Pair,
        input: &mut Lines<R>,
        say: &mut impl FnMut(Said) -> Result<(), CouplingError>,
    ) -> Result<String, CouplingError> {
        let mut renew = interval(Duration::from_secs(RENEW_S));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.post();
        loop {
            let gone = absence(pair.absent, pair.patience());
            let message = tokio::select! {
                biased;
                told = next(input) => match told? {
                    Some(Told::Leave(reason)) => return Ok(reason),
                    Some(Told::Processes(_)) => return Err(CouplingError::Input("processes again".into())),
                    None => return Ok("its first process has ended".into()),
                },
                message = receive(self.client.as_mut()) => message,
                incoming = opened_next(pair.opened.as_mut()) => {
                    if let Some(opened) = &mut pair.opened {
                        opened.incoming(incoming?)?;
                    }
                    continue;
                }
                _ = renew.tick() => {
                    let (coupling, side) = (self.request.coupling.clone(), self.side);
                    self.send(CouplingMessage::Renew { coupling, side });
                    continue;
                }
                () = gone => {
                    let other = pair.other.as_ref().map(|(_, about)| about.summary()).unwrap_or_default();
                    return Err(CouplingError::Left { other, reason: "there is no sign of life of it".into() });
                }
            };
            match message {
                Ok(message) => self.heard(message, pair, say).await?,
                Err(error) => self.return_to(error).await?,
            }
        }
    }

    async fn heard(
        &mut self,
        message: CouplingMessage,
        pair: &mut Pair,
        say: &mut impl FnMut(Said) -> Result<(), CouplingError>,
    ) -> Result<(), CouplingError> {
        if message.about() != (&self.request.coupling, self.side) {
            return Ok(());
        }
        match message {
            CouplingMessage::Other { board, other: Some(posted), .. } => {
                pair.seen(board, Some(posted.side));
                self.meets(posted, pair, say).await
            }
            CouplingMessage::Other { board, other: None, .. } => {
                pair.seen(board, None);
                if pair.coupled.is_some() {
                    return Ok(());
                }
                say(Said::Waiting(format!("nobody else has joined {}", self.request.coupling)))
            }
            CouplingMessage::Renewed { board, other, .. } => {
                pair.seen(board, other);
                Ok(())
            }
            CouplingMessage::Unposted { .. } => {
                pair.unknown = true;
                self.post();
                Ok(())
            }
            CouplingMessage::Unreached { reason, .. } => {
                say(Said::Waiting(format!("no trunk to site {} is up: {reason}", self.request.coupling.site)))
            }
            CouplingMessage::Refused { reason, .. } => Err(CouplingError::Refused(reason)),
            CouplingMessage::Post { .. } | CouplingMessage::Renew { .. } | CouplingMessage::Leave { .. } => Ok(()),
        }
    }

    /// The other side is posted, perhaps not for the first time.
    async fn meets(
        &mut self,
        Posted { side, home, about }: Posted,
        pair: &mut Pair,
        say: &mut impl FnMut(Said) -> Result<(), CouplingError>,
    ) -> Result<(), CouplingError> {
        if let Some(before) = pair.coupled.filter(|before| *before != side) {
            return self.meets_third(side, before, pair);
        }
        let about = read_other(home, &about, &self.request.coupling)?;
        if let Some(refusal) = about.refused.as_ref().filter(|refusal| refusal.side == self.side) {
            let (coupling, other) = (self.request.coupling.clone(), refusal.partner.clone().into());
            return Err(CouplingError::TwoSides { coupling, one: about.home, other });
        }
        if let Some(reason) = &about.ended {
            // Without a job, the other side's end does not concern this one.
            if pair.coupled.is_some() || pair.opened.is_some() {
                return Err(CouplingError::Left { other: about.summary(), reason: printable(reason) });
            }
            return Ok(());
        }
        let first = self.side < side;
        let (one, two) = if first { (&self.about, &about) } else { (&about, &self.about) };
        let (roster, ranks) =
            matched(one, two).map_err(|source| CouplingError::Other { home: about.home.clone(), source })?;
        if pair.coupled.is_none() && first {
            if let Some(stale) = pair.opened.take() {
                stale.session.end(CLOSE).await;
            }
            let (opened, offer) = open(self.request, &roster, side).await?;
            pair.opened = Some(opened);
            self.about.offer = Some(offer);
            self.post();
        }
        let offer = if first { &self.about.offer } else { &about.offer };
        let mine = if first { side } else { self.side };
        if let Some(offer) = offer.as_ref().filter(|offer| offer.to == mine && pair.coupled.is_none()) {
            let [one, two] = ranks;
            pair.coupled = Some(side);
            say(Said::Coupled(Box::new(Coupled {
                job: offer.job.to_string(),
                secret: offer.secret.to_hex(),
                roster: roster.to_string(),
                window: offer.window,
                ranks: if first { [one, two] } else { [two, one] },
                addresses: about.addresses(),
                first,
                other: about.summary(),
            })))?;
        }
        pair.other = Some((side, about));
        Ok(())
    }

    /// A third side is posted at a board, although this side has a job with another. A site with several gateways has a
    /// board at each; a side of that site is posted only at one, so a board may not know both sides of a pair.
    fn meets_third(&mut self, side: u64, before: u64, pair: &Pair) -> Result<(), CouplingError> {
        if !pair.is_posted(before) {
            let other = pair.other.as_ref().map(|(_, about)| about.summary()).unwrap_or_default();
            return Err(CouplingError::Left { other, reason: "another has taken its place".into() });
        }
        let partner = pair.other.as_ref().map(|(_, about)| about.home.clone()).unwrap_or_default();
        let refused = Some(Refusal { side, partner });
        // The answer to a post reports the third side again.
        if self.about.refused != refused {
            self.about.refused = refused;
            self.post();
        }
        Ok(())
    }

    fn post(&mut self) {
        let (coupling, side, about) = (self.request.coupling.clone(), self.side, self.about.text());
        self.send(CouplingMessage::Post { coupling, side, about });
    }

    /// Sends a message to the gateway. If the connection is lost, this side is posted again on the next one.
    fn send(&mut self, message: CouplingMessage) {
        if let Some(client) = &mut self.client {
            client.control(0, message);
        }
    }

    /// Dials a gateway again and posts this side there.
    async fn return_to(&mut self, error: ClientError) -> Result<(), CouplingError> {
        if let ClientError::Wire { source, .. } = error {
            return Err(CouplingError::Refused(source.to_string()));
        }
        self.client = None;
        let again = async {
            loop {
                match connect(self.request, Some(&self.gateway)).await {
                    Ok(connected) => return connected,
                    Err(_) => sleep(AGAIN).await,
                }
            }
        };
        match timeout(RETURN, again).await {
            Ok((client, gateway)) => {
                (self.client, self.gateway) = (Some(client), gateway);
                self.post();
                Ok(())
            }
            Err(_) => {
                let reason = format!("the gateway is lost: {error}");
                Err(CouplingError::Site { site: self.request.home.clone(), reason })
            }
        }
    }

    /// Posts the reason for leaving, and leaves.
    async fn leave(&mut self) {
        let (coupling, side) = (self.request.coupling.clone(), self.side);
        self.post();
        self.send(CouplingMessage::Leave { coupling, side });
        if let Some(client) = self.client.take() {
            client.goodbye(JobId::default(), CLOSE).await;
        }
    }
}

/// The next message about couplings. Cancel-safe.
///
/// # Errors
/// The connection is lost, or its gateway is silent.
async fn receive(client: Option<&mut Connections>) -> Result<CouplingMessage, ClientError> {
    let Some(client) = client else { return std::future::pending().await };
    loop {
        match client.next().await {
            (_, News::Frame(frame)) if frame.header.kind == FrameKind::Control => {
                let wire = |source| ClientError::Wire { address: "the gateway".to_owned(), source };
                if let Control::Coupling(message) = Control::decode(&frame.payload).map_err(wire)? {
                    return Ok(message);
                }
            }
            (_, News::Lost(error) | News::Failed(error)) => return Err(error),
            (_, News::Open | News::Frame(_) | News::Back(_)) => {}
        }
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

/// Ends when a side that has been absent since then counts as gone; on a machine that is slow meanwhile, later.
/// Cancel-safe.
async fn absence(since: Option<(Instant, CoreTime)>, calm: Duration) {
    let Some((since, before)) = since else { return std::future::pending().await };
    let mut limit = calm;
    loop {
        sleep_until(since + limit).await;
        let later = slowness_in(since.elapsed(), before).stretch(calm);
        if later <= since.elapsed() {
            return;
        }
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
    if roster.sites().len() > 1 {
        opened.session.open_relays(roster, window);
    }
    let (job, secret) = opened.session.credentials();
    Ok((opened, Offer { to, job, secret, window }))
}

impl Opened {
    fn incoming(&mut self, incoming: Vec<Incoming>) -> Result<(), CouplingError> {
        for incoming in incoming {
            match incoming {
                Incoming::Up(..) | Incoming::GatewayBack(_) | Incoming::Note(_) => {}
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
            Some(site) => Err(CouplingError::Site { site: site.to_owned(), reason }),
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

/// Reads the other side's post. `home`: the site that posted it, according to the board's gateway.
///
/// # Errors
/// The post cannot be read, or it claims to be from another site.
fn read_other(home: String, about: &str, coupling: &Coupling) -> Result<About, CouplingError> {
    let about = About::read(about).map_err(|source| CouplingError::Other { home: home.clone(), source })?;
    if about.home != home {
        let (coupling, said) = (coupling.clone(), UntrustedText::from(about.home));
        return Err(CouplingError::Posing { home, said, coupling });
    }
    Ok(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_poses_as_another_is_named() {
        let coupling = Coupling { name: "ocean".into(), site: "lyon".into() };
        let about = About::new("kyoto", &[]).text();
        assert_eq!(read_other("kyoto".into(), &about, &coupling).unwrap().home, "kyoto");
        let error = read_other("mallory".into(), &about, &coupling).unwrap_err().to_string();
        assert!(error.contains("site mallory has posted the other side of ocean@lyon"), "{error}");
        assert!(error.contains("says that it is of site kyoto"), "{error}");
        let error = read_other("mallory".into(), "nonsense", &coupling).unwrap_err().to_string();
        assert!(error.starts_with("the other side, mallory: "), "{error}");
    }

    #[test]
    fn a_board_that_forgot_both_sides_is_no_evidence_for_a_while() {
        let mut pair = Pair { coupled: Some(8), ..Pair::default() };
        let patience = |pair: &Pair| pair.absent.map(|_| pair.patience());
        pair.seen("gw1".into(), Some(8));
        assert_eq!(patience(&pair), None);
        pair.seen("gw1".into(), None);
        assert_eq!(patience(&pair), Some(ABSENT));
        pair.unknown = true;
        assert_eq!(patience(&pair), Some(UNKNOWN));
        pair.seen("gw1".into(), Some(8));
        pair.seen("gw1".into(), None);
        assert_eq!(patience(&pair), Some(ABSENT));
        pair.seen("gw2".into(), Some(8));
        assert_eq!(patience(&pair), None);
    }
}
