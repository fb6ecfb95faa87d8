//! A trunk: everything between this gateway and one other. Dialling, accepting, choosing a link, control messages.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use client::handshake::{self, Accepting, HandshakeError, initiate};
use client::tls::TlsStream;
use gateway_hooks::Tunnel;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use types::id::NOWHERE;
use types::sites::{Approach, Fingerprint, Keys, Links, Login};
use types::{Address, Identity, JobId};
use wire::handshake::{Handshake, Hello, Purpose, Refusal, RefusalCode, Welcome};
use wire::{FrameHeader, FrameKind, Secret};

use crate::door::stream::{Accepted, Arrival, Begun};
use crate::gateway::{Gateway, HANDSHAKE_TIMEOUT};
use crate::log::{log, short};
use crate::path::forward::{GATEWAY, MAX_DATA};
use crate::services::join;
use crate::table::TrunkId;
use crate::trunks::control::ControlChannel;
use crate::trunks::error::{ArrivalError, LinkError, TrunkError};
use crate::trunks::link::{self, Link};
use crate::trunks::meeting::visit;
use crate::trunks::tunnel;

mod messages;

/// Most unsent bytes in the kernel per link. Bytes sent and not acknowledged come on top, as many as the path needs.
const UNSENT: u32 = 256 << 10;

pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const REDIAL_FIRST: Duration = Duration::from_millis(100);
const REDIAL_MOST: Duration = Duration::from_secs(2);
/// Longest pause before dialling again through ssh. It is longer because login nodes ban addresses that connect too
/// often.
const REDIAL_MOST_SSH: Duration = Duration::from_secs(30);
const WATCH: Duration = Duration::from_millis(500);
/// Fewest links through ssh, unless the sites file gives a number: one carries frames while the other is dialled again.
const LINKS_THROUGH_SSH: u16 = 2;
/// Most links through ssh, unless the sites file gives a number. Each link is a login: an sshd accepts few at a time
/// (`MaxStartups`), and login nodes ban addresses that log in too often.
const MOST_LINKS_THROUGH_SSH: u16 = 4;
/// Number of pings that measure a link through ssh; the shortest counts. [`PING`] is the time limit for each.
const PINGS: usize = 3;
const PING: Duration = Duration::from_secs(2);
/// A frame takes the link with the shortest queue once the usual link of its pair has this many bytes queued.
const SPILL: usize = 64 << 10;

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Trunk {
    pub id: TrunkId,
    end: TrunkEnd,
    /// True if this side dials, or asks for meetings.
    dials: bool,
    /// True if neither end can be dialled, so that they must meet somewhere else.
    pub hidden: bool,
    /// The place of the last meeting.
    met: RefCell<Option<String>>,
    /// Keys of the other end's site; a link needs one of them.
    keys: Cell<Keys>,
    /// The reason why the other gateway was removed from the sites file, if it was.
    retired: RefCell<Option<String>>,
    /// Number of times it was removed from the sites file. Tasks that keep dialling stop when this changes.
    times_retired: Cell<u32>,
    /// True while a task checks if the other gateway runs.
    watched: Cell<bool>,
    links: RefCell<Vec<Option<Rc<Link>>>>,
    how_many: Links,
    /// Number of links there should be; grows when the round trip turns out to be long.
    wanted: Cell<u16>,
    /// True while at least one link is up.
    up: Cell<bool>,
    control: RefCell<ControlChannel>,
    /// Bytes of memory counted for `control`.
    held: Cell<u64>,
    /// Totals of the links that have closed.
    pub gone: Cell<Gone>,
    /// Notified when the trunk comes up.
    changed: Notify,
    /// Notified to dial now.
    kick: Notify,
    problem: RefCell<String>,
}

/// Closed links of a trunk, and the bytes of frames that they carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    pub links: u64,
    pub sent: u64,
    pub received: u64,
}

/// The other end of a trunk.
#[derive(Debug)]
pub(crate) struct TrunkEnd {
    pub site: String,
    pub gateway: String,
    /// Its address, if it can be dialled.
    pub address: Option<String>,
    /// The login by ssh that is used instead, and the address dialled from there.
    pub login: Option<(Login, String)>,
    /// True if links go through ssh, whichever side dials.
    pub through_ssh: bool,
    /// True if other gateways may meet there.
    pub lets_meet: bool,
}

impl Deref for Trunk {
    type Target = TrunkEnd;

    fn deref(&self) -> &TrunkEnd {
        &self.end
    }
}

impl Trunk {
    /// The way this side dials; `None` if the other side dials or the two meet elsewhere.
    pub(crate) fn dials(&self) -> Option<Approach<'_>> {
        match &self.login {
            _ if !self.dials => None,
            Some((login, to)) => Some(Approach::Ssh(login, to)),
            None => self.address.as_deref().map(Approach::Direct),
        }
    }

    /// Returns true if this side asks for meetings.
    pub(crate) fn asks(&self) -> bool {
        self.hidden && self.dials
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.get()
    }

    /// The last problem.
    pub(crate) fn problem(&self) -> String {
        self.problem.borrow().clone()
    }

    /// Notes the place of the last meeting.
    pub(crate) fn met_at(&self, place: String) {
        self.met.replace(Some(place));
    }

    /// Describes the location of a link's other end, for messages.
    pub(crate) fn whereabouts(&self, address: SocketAddr) -> String {
        match &*self.met.borrow() {
            Some(place) => format!("met at {place}, {address}"),
            None => match &self.login {
                Some((login, _)) => format!("through ssh to {login}"),
                None if self.through_ssh => "through ssh from there".to_owned(),
                None => format!("at {address}"),
            },
        }
    }

    pub(crate) fn new(id: TrunkId, end: TrunkEnd, keys: Keys, (dials, hidden): (bool, bool), how_many: Links) -> Trunk {
        Trunk {
            id,
            end,
            dials,
            hidden,
            met: RefCell::default(),
            keys: Cell::new(keys),
            retired: RefCell::default(),
            times_retired: Cell::new(0),
            watched: Cell::new(false),
            links: RefCell::new(vec![None; how_many.most().into()]),
            how_many,
            wanted: Cell::new(how_many.wanted(Duration::ZERO)),
            up: Cell::new(false),
            control: RefCell::new(ControlChannel::new()),
            held: Cell::default(),
            gone: Cell::default(),
            changed: Notify::new(),
            kick: Notify::new(),
            problem: RefCell::default(),
        }
    }

    /// The same trunk with another id.
    pub(crate) fn numbered(self, id: TrunkId) -> Trunk {
        Trunk { id, ..self }
    }

    pub(crate) fn keys(&self) -> Keys {
        self.keys.get()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.borrow().is_some()
    }

    /// Replaces the keys of the site at the other end. Links that were opened with another key are cut; they are
    /// dialled again and admitted if the key is one of the new ones.
    pub(crate) fn trust(&self, keys: Keys) {
        self.keys.set(keys);
        for link in self.up_links() {
            if let Err(error) = self.check(link.key) {
                link.cut(error.to_string());
            }
        }
    }

    /// Marks the other gateway as removed from the sites file and cuts all links.
    pub(crate) fn retire(&self, reason: &str) {
        self.retired.replace(Some(reason.to_owned()));
        self.times_retired.set(self.times_retired.get() + 1);
        self.up_links().iter().for_each(|link| link.cut(reason.to_owned()));
        self.kick.notify_waiters();
    }

    /// Marks the other gateway as listed in the sites file again. Control messages continue where they stopped.
    pub(crate) fn take_back(&self, keys: Keys) {
        self.keys.set(keys);
        self.retired.replace(None);
    }

    /// Returns true if both trunks are dialled in the same way, at the same address.
    pub(crate) fn is_dialled_like(&self, other: &Trunk) -> bool {
        let how = |trunk: &Trunk| {
            let TrunkEnd { address, login, through_ssh, lets_meet, .. } = &trunk.end;
            (trunk.dials, trunk.hidden, trunk.how_many, address.clone(), login.clone(), *through_ssh, *lets_meet)
        };
        how(self) == how(other)
    }

    /// Checks that a peer that presents this key may be the other end.
    ///
    /// # Errors
    /// The key is wrong, or the other gateway was removed from the sites file.
    pub(crate) fn check(&self, presented: Option<Fingerprint>) -> Result<(), TrunkError> {
        if let Some(reason) = &*self.retired.borrow() {
            return Err(TrunkError::Retired(reason.clone()));
        }
        let keys = self.keys.get();
        if keys.accept(presented) {
            return Ok(());
        }
        Err(TrunkError::WrongKey { presented, keys })
    }

    /// The most links there may be.
    pub(crate) fn most_links(&self) -> u16 {
        self.how_many.most()
    }

    /// Number of links there should be.
    pub(crate) fn wanted(&self) -> u16 {
        self.wanted.get()
    }

    /// The links that are up.
    pub(crate) fn up_links(&self) -> Vec<Rc<Link>> {
        self.links.borrow().iter().flatten().cloned().collect()
    }

    /// The link for a frame of this pair of members: the same one as long as it keeps up, so that frames rarely
    /// overtake each other. `None` while the trunk is down.
    pub(crate) fn link(&self, from: Identity, to: Identity) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        if let [only] = &links[..] {
            return only.clone();
        }
        let up = || links.iter().flatten();
        let mut hasher = DefaultHasher::new();
        (from, to).hash(&mut hasher);
        let usual = up().nth((hasher.finish() % (up().count() as u64).max(1)) as usize)?;
        if usual.queued() < SPILL {
            return Some(usual.clone());
        }
        up().min_by_key(|link| link.queued()).cloned()
    }

    /// If the trunk is down, dials at once instead of after the pause.
    pub(crate) fn kick(&self) {
        if !self.up.get() {
            self.kick.notify_waiters();
        }
    }

    /// Notes the reason why the trunk, or another link of it, is not up, and logs it if it is new.
    pub(crate) fn failed(&self, gateway: &Gateway, problem: String) {
        gateway.change(|table| table.trunk_problem(self.id, problem.clone()));
        // A part of the last message is not new either.
        if !self.problem.borrow().contains(&problem) {
            let (site, gateway, short) = (&self.site, &self.gateway, short(&problem));
            match self.up.get() {
                true => log!(warn, &self.site, site, gateway, problem = short, "link not up"),
                false => log!(warn, &self.site, site, gateway, problem = short, "trunk down"),
            }
            self.problem.replace(problem);
        }
    }

    /// Sets the problem reported before the first attempt has ended.
    pub(crate) fn expect(&self, problem: String) {
        self.problem.replace(problem);
    }

    /// Waits until the trunk is up. If that takes longer than `limit`, the error carries the last problem.
    pub(crate) async fn wait_up(&self, limit: Duration) -> Result<(), TrunkError> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if self.up.get() {
                    return;
                }
                self.kick();
                changed.await;
            }
        };
        timeout(limit, wait).await.map_err(|_| TrunkError::Down(self.problem()))
    }

    /// Sends a ping over one of the links and waits for the reply.
    pub(crate) async fn ping(&self, gateway: &Gateway, limit: Duration) -> Result<Duration, TrunkError> {
        let link = self.link(GATEWAY, GATEWAY).ok_or_else(|| TrunkError::Down(self.problem()))?;
        match link.ping(gateway, limit).await {
            Ok(Some(rtt)) => Ok(rtt),
            Ok(None) => Err(TrunkError::Broke(self.site.clone())),
            Err(_) => Err(TrunkError::NoAnswer { site: self.site.clone(), limit }),
        }
    }

    /// Sends a goodbye on all links.
    pub(crate) fn goodbye(&self, gateway: &Gateway, reason: &str) {
        for link in self.up_links() {
            link.send_own(
                gateway,
                FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY),
                reason.as_bytes(),
            );
        }
    }
}

/// Keeps one link of a trunk up while the other gateway is in the sites file.
pub(crate) async fn keep_dialling(gateway: Rc<Gateway>, trunk: Rc<Trunk>, index: u16) {
    let index = usize::from(index);
    let mut pause = REDIAL_FIRST;
    let times_retired = trunk.times_retired.get();
    while trunk.times_retired.get() == times_retired {
        let dialled = match trunk.dials() {
            Some(Approach::Direct(address)) => dial(&gateway, &trunk, index, address).await,
            Some(Approach::Ssh(login, to)) => tunnel::dial(&gateway, &trunk, index, login, to).await,
            None => visit::meet(&gateway, &trunk, index).await,
        };
        match dialled {
            Ok(Dialled { stream, run, peer, tunnel }) => {
                pause = REDIAL_FIRST;
                link::serve(&gateway, &trunk, index, (stream, run), peer).await;
                if let Some(tunnel) = tunnel {
                    tunnel::close(&gateway, &trunk, index, tunnel);
                }
            }
            Err(error) => {
                let problem = error.to_string();
                trunk.failed(&gateway, problem.clone());
                if error.is_refused() {
                    gateway.does_not_run(&trunk, &problem);
                }
            }
        }
        // The minimum pause, even if `kick` is called often.
        sleep(REDIAL_FIRST / 2).await;
        let _ = timeout(pause.mul_f64(jitter()), trunk.kick.notified()).await;
        pause = (pause * 2).min(if trunk.through_ssh { REDIAL_MOST_SSH } else { REDIAL_MOST });
    }
}

/// Number of links there should be through ssh, if the round trip asks for `wanted` and there are `had`: one more at a
/// time. When the new one is up, it is measured and may ask for the next.
fn links_through_ssh(wanted: u16, had: u16) -> u16 {
    wanted.clamp(LINKS_THROUGH_SSH, MOST_LINKS_THROUGH_SSH).min(had + 1)
}

/// A factor between 0.5 and 1.5, so that sites that lost each other at once do not keep dialling at the same moment.
fn jitter() -> f64 {
    0.5 + f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

/// Checks that the other gateway runs, while it should dial and does not.
async fn watch(gateway: Rc<Gateway>, trunk: Rc<Trunk>, address: String, patience: Duration) {
    let since = Instant::now();
    while !trunk.up.get() && since.elapsed() < patience {
        if let Ok(Err(error)) = timeout(DIAL_TIMEOUT, client::dial::dial(&address)).await
            && error.kind() == std::io::ErrorKind::ConnectionRefused
        {
            let problem = format!("site {}: gateway {} at {address}: {error}", trunk.site, trunk.gateway);
            gateway.does_not_run(&trunk, &problem);
            break;
        }
        sleep(WATCH).await;
    }
    trunk.watched.set(false);
}

/// A link that was dialled.
pub(crate) struct Dialled {
    pub stream: TlsStream,
    /// The run number of the other gateway's process.
    pub run: u32,
    pub peer: SocketAddr,
    /// The tunnel that carries it, if it goes through ssh.
    pub tunnel: Option<Box<dyn Tunnel>>,
}

async fn dial(gateway: &Gateway, trunk: &Trunk, index: usize, address: &str) -> Result<Dialled, LinkError> {
    let dialled = async {
        let tcp = connect(gateway, address).await?;
        let peer = tcp.peer_addr()?;
        let (stream, run) = shake(gateway, trunk, index, tcp, HANDSHAKE_TIMEOUT).await?;
        Ok(Dialled { stream, run, peer, tunnel: None })
    };
    let (site, gateway) = (trunk.site.clone(), trunk.gateway.clone());
    let at = |source| LinkError::At { site, gateway, address: address.to_owned(), source: Box::new(source) };
    dialled.await.map_err(at)
}

pub(crate) async fn connect(gateway: &Gateway, address: &str) -> Result<TcpStream, LinkError> {
    match gateway.patiently(DIAL_TIMEOUT, client::dial::dial(address)).await {
        Ok(connected) => Ok(connected?),
        Err(waited) => Err(LinkError::NoAnswer(waited.as_secs())),
    }
}

/// The dialling side of a link's handshake. Returns the run number of the other gateway's process as well.
pub(crate) async fn shake(
    gateway: &Gateway,
    trunk: &Trunk,
    index: usize,
    tcp: TcpStream,
    limit: Duration,
) -> Result<(TlsStream, u32), LinkError> {
    let shake = async {
        prepare(&tcp)?;
        let session = gateway.sites.credentials().tls.dial(None)?;
        let mut stream = TlsStream::handshake(tcp, session).await?;
        let presented = stream.session().peer();
        trunk.check(presented)?;
        let nowhere = Address::standalone(NOWHERE);
        let hello = Hello {
            purpose: Purpose::Trunk,
            job: JobId(gateway.run_number),
            from: nowhere,
            to: nowhere,
            site: gateway.site.clone(),
            gateway: gateway.name.clone(),
            link: index as u16,
            nonce: [0; 32],
        };
        let key = presented.map_or([0; 32], |key| key.0);
        let welcome = initiate(&mut stream, hello, &Secret::NONE, &key).await?;
        Ok((stream, welcome.run))
    };
    match gateway.patiently(limit, shake).await {
        Ok(result) => result,
        Err(waited) => Err(LinkError::Slow(waited.as_secs())),
    }
}

pub(crate) fn prepare(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    socket2::SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT)
}

/// The accepting side of TLS and of a link's handshake. The caller sets the time limit.
pub(crate) async fn accept(gateway: &Rc<Gateway>, begun: Begun, peer: SocketAddr) -> Result<Arrival, ArrivalError> {
    let (read, tcp) = begun;
    prepare(&tcp)?;
    let credentials = gateway.sites.credentials();
    let session = credentials.tls.accept()?;
    let mut stream = TlsStream::handshake_after(read, tcp, session).await?;
    let presented = stream.session().peer();
    let mut accepting = match Accepting::begin(&mut stream).await {
        Ok(accepting) => accepting,
        Err(HandshakeError::Io(_)) => {
            if presented.is_none() {
                return Err(ArrivalError::OurKey(peer));
            }
            let trunk = gateway.trunks.in_use().into_iter().find(|trunk| trunk.keys().accept(presented));
            let whose =
                trunk.as_ref().map_or("of no site we know".to_owned(), |trunk| format!("of site {}", trunk.site));
            let (fingerprint, own) = (gateway.sites.credentials().fingerprint, gateway.site.clone());
            let error = ArrivalError::OurKeyToGateway { whose, peer, fingerprint, own };
            if let Some(trunk) = trunk {
                trunk.failed(gateway, error.to_string());
            }
            return Err(error);
        }
        Err(error) => return Err(error.into()),
    };
    let own = credentials.fingerprint;
    match accepting.hello.purpose {
        Purpose::Join => {
            join::admit(gateway, &mut stream, accepting, presented, own).await?;
            return Ok(Arrival::Joined);
        }
        Purpose::Client | Purpose::Member => return Ok(Arrival::Inside(Box::new(stream), Box::new(accepting), own)),
        Purpose::Trunk | Purpose::Meet | Purpose::Peer => {}
    }
    match admit(gateway, &accepting.hello, presented, peer) {
        Ok(trunk) => {
            let shaken = accepting.challenge(&mut stream, &Secret::NONE, "a trunk's is public", &own.0).await;
            shaken?;
            let hello = accepting.hello;
            let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0, run: gateway.run_number });
            handshake::write(&mut stream, &welcome).await?;
            let accepted = Accepted { trunk, index: usize::from(hello.link), stream, run: hello.job.0 };
            Ok(Arrival::Link(Box::new(accepted)))
        }
        Err(refusal) => {
            // Best effort: the reason is logged here in any case.
            let _ = handshake::write(&mut stream, &Handshake::Refuse(refusal.clone())).await;
            Err(ArrivalError::Refused(refusal.text))
        }
    }
}

fn admit(
    gateway: &Gateway,
    hello: &Hello,
    presented: Option<Fingerprint>,
    peer: SocketAddr,
) -> Result<Rc<Trunk>, Refusal> {
    let refusal = Refusal::new;
    let (site, name) = (&hello.site, &hello.gateway);
    if hello.purpose != Purpose::Trunk {
        return Err(refusal(
            RefusalCode::Purpose,
            "a connection with TLS cannot be a rank's or a meeting's".to_owned(),
        ));
    }
    let known = gateway.trunks.in_use().into_iter().find(|trunk| trunk.site == *site && trunk.gateway == *name);
    let trunk = known.ok_or_else(|| {
        let text = format!("site {}: no trunk to gateway {name} of site {site} in its sites file", gateway.site);
        refusal(RefusalCode::Unknown, text)
    })?;
    if let Err(problem) = trunk.check(presented) {
        let problem = format!("site {site}: gateway {name} at {peer} {problem}");
        trunk.failed(gateway, problem.clone());
        return Err(refusal(RefusalCode::NotAdmitted, problem));
    }
    if trunk.dials {
        let own = &gateway.site;
        let text =
            format!("site {own} dials site {site}, not the reverse: list the sites in the same order everywhere");
        return Err(refusal(RefusalCode::NotAdmitted, text));
    }
    let most = trunk.most_links();
    if hello.link >= most {
        let text = format!("link {}: this trunk has {most}; compare `links` in the sites files", hello.link);
        return Err(refusal(RefusalCode::NotAdmitted, text));
    }
    Ok(trunk)
}

impl Gateway {
    /// Gives up the trunk if it is down: the other machine refuses connections, so its gateway does not run and has
    /// lost its state of all jobs.
    fn does_not_run(&self, trunk: &Trunk, problem: &str) {
        if !trunk.up.get() {
            self.change(|table| table.trunk_lost(trunk.id, problem));
        }
    }

    /// Registers a link; with the first one the trunk is up.
    pub(crate) fn link_up(&self, trunk: &Trunk, link: &Rc<Link>, run: u32) {
        let replaced = |old: &Rc<Link>, reason: String| {
            self.link_down(trunk, old, &reason, false);
            old.cut(reason);
        };
        let old = trunk.links.borrow()[link.index].clone();
        if let Some(old) = old {
            replaced(&old, format!("replaced by a new connection from {}", link.address));
        }
        if trunk.control.borrow_mut().meets(run) {
            let reason = format!("site {}: gateway {} was restarted", trunk.site, trunk.gateway);
            trunk.up_links().iter().for_each(|old| replaced(old, reason.clone()));
            self.change(|table| table.trunk_lost(trunk.id, &reason));
            self.trunks.survey.restarted(trunk);
        }
        trunk.links.borrow_mut()[link.index] = Some(link.clone());
        self.want_links(trunk, link);
        if !trunk.up.replace(true) {
            trunk.problem.borrow_mut().clear();
            let (site, gateway, address) = (&trunk.site, &trunk.gateway, link.address);
            let key = link.key.map_or_else(String::new, |key| key.to_string());
            log!(info, site, site, gateway, %address, fingerprint = key, links = trunk.wanted(), "trunk up");
            self.change(|table| table.trunk_up(trunk.id));
            trunk.changed.notify_waiters();
            self.place_reached(trunk);
        }
        trunk.flush_control(self);
    }

    /// Sets the number of links by the round trip of a new link. The kernel knows the round trip, except through ssh,
    /// where pings measure it.
    fn want_links(&self, trunk: &Trunk, link: &Rc<Link>) {
        if !trunk.through_ssh {
            return self.want_links_for(trunk, link, link.kernel().map_or(Duration::ZERO, |kernel| kernel.round_trip));
        }
        let (trunk, link) = (self.trunks.get(trunk.id), link.clone());
        self.beside(async move |gateway| {
            for _ in 0..PINGS {
                let Ok(Some(measured)) = link.ping(&gateway, PING).await else { break };
                link.measured.set(link.measured.get().map_or(Some(measured), |before| Some(before.min(measured))));
            }
            if !link.is_cut() {
                // The shortest of all links: a login that has just begun makes its node slow.
                let measured = trunk.up_links().iter().filter_map(|link| link.measured.get()).min();
                gateway.want_links_for(&trunk, &link, measured.unwrap_or_default());
            }
        });
    }

    fn want_links_for(&self, trunk: &Trunk, link: &Link, round_trip: Duration) {
        let mut wanted = trunk.how_many.wanted(round_trip).max(link.index as u16 + 1);
        let had = trunk.wanted();
        if trunk.through_ssh && trunk.how_many == Links::ByRoundTrip {
            wanted = links_through_ssh(wanted, had);
        }
        if wanted <= had {
            return;
        }
        trunk.wanted.set(wanted);
        self.dial_links(&self.trunks.get(trunk.id), had..wanted);
    }

    /// Handles a link that has closed: the frames in flight on it are lost. Another link takes over; without any the
    /// trunk is down. `for_good`: the other gateway sent a goodbye.
    pub(crate) fn link_down(&self, trunk: &Trunk, link: &Rc<Link>, reason: &str, for_good: bool) {
        let current = trunk.links.borrow()[link.index].as_ref().is_some_and(|l| Rc::ptr_eq(l, link));
        if !current {
            return;
        }
        trunk.links.borrow_mut()[link.index] = None;
        let Gone { links, sent, received } = trunk.gone.get();
        let (sent, received) = (sent + link.sent.get(), received + link.received.get());
        trunk.gone.set(Gone { links: links + 1, sent, received });
        trunk.control.borrow_mut().lost(link.route());
        let (site, gateway, address) = (&trunk.site, &trunk.gateway, link.address);
        let problem = format!("site {site}: gateway {gateway} {}: {reason}", trunk.whereabouts(address));
        let left = trunk.links.borrow().iter().flatten().count();
        if left > 0 {
            log!(warn, site, site, gateway, %address, link = link.index, left, reason, "link down");
            self.change(|table| table.trunk_broken(trunk.id));
        } else {
            log!(warn, site, site, gateway, %address, link = link.index, reason, "trunk down");
            trunk.up.set(false);
            trunk.problem.replace(problem.clone());
            self.change(|table| table.trunk_away(trunk.id, &problem));
            if trunk.lets_meet {
                self.expect_meetings();
            }
            // The trunk to the place may have gone down before this link through it.
            if trunk.hidden && !self.may_meet(trunk) {
                self.expect(trunk);
            }
            if for_good {
                self.change(|table| table.trunk_lost(trunk.id, &problem));
            } else if let (false, false, Some(address)) = (trunk.dials, trunk.through_ssh, trunk.address.clone())
                && !trunk.watched.replace(true)
            {
                let (trunk, patience) = (self.trunks.get(trunk.id), self.sites.own_site().patience);
                self.beside(|gateway| watch(gateway, trunk, address, patience));
            }
        }
        trunk.flush_control(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_through_ssh_are_few_and_come_one_by_one() {
        let mut links = vec![1];
        // A round trip of 200 ms would have eight links.
        while links.last() != Some(&links_through_ssh(8, links[links.len() - 1])) {
            links.push(links_through_ssh(8, links[links.len() - 1]));
        }
        assert_eq!(links, [1, 2, 3, 4]);
        assert_eq!(links_through_ssh(1, 1), LINKS_THROUGH_SSH, "one carries on while the other is dialled again");
        // The first round trip was slow, the second is not.
        assert_eq!(links_through_ssh(6, 1), 2);
        assert_eq!(links_through_ssh(1, 2), 2);
    }
}
