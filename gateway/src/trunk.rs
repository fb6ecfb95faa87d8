//! Trunks: everything between this gateway and one other. Dialling, accepting, heartbeats, and the links themselves.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};
use types::sites::Fingerprint;
use types::{Address, Identity, JobId};
use wire::handshake::{Handshake, Hello, Purpose, Welcome};
use wire::{Control, FrameHeader, FrameKind, Secret};

use crate::forward::{GATEWAY, MAX_DATA, READ, Stop, Target};
use crate::handshake::{self, HandshakeError, initiate};
use crate::join;
use crate::outlet::Outlet;
use crate::relay::TrunkId;
use crate::server::{Gateway, HANDSHAKE_TIMEOUT};
use crate::tls::{Session, TlsStream, sealed_len};

/// From how many queued bytes on the members that write to a link pause.
const BACKED_UP: usize = 1 << 20;
/// Bytes encrypted at once.
const PIECE: usize = READ;
/// Room that [`Session::seal`] needs for a piece.
pub(crate) const SEALED: usize = sealed_len(PIECE);
/// Unsent bytes the kernel may hold per link. What is sent and not acknowledged comes on top, as the path needs it.
const UNSENT: u32 = 256 << 10;

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const REDIAL_FIRST: Duration = Duration::from_millis(100);
const REDIAL_MOST: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub(crate) struct Trunk {
    pub id: TrunkId,
    /// The other site.
    pub site: String,
    /// Its gateway.
    pub gateway: String,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// Where to dial; `None`: the other side dials.
    pub dial: Option<String>,
    links: RefCell<Vec<Option<Rc<Link>>>>,
    up: Cell<bool>,
    /// It came up.
    changed: Notify,
    /// Dial now.
    kick: Notify,
    problem: RefCell<String>,
}

/// One TLS connection of a trunk.
#[derive(Debug)]
pub(crate) struct Link {
    pub trunk: TrunkId,
    index: usize,
    address: SocketAddr,
    session: RefCell<Session>,
    pub outlet: Outlet,
    pub pending: RefCell<Vec<Range<usize>>>,
    heard: Cell<Instant>,
    spoke: Cell<Instant>,
    cut: Notify,
    cut_reason: RefCell<String>,
    pings: RefCell<HashMap<u64, (Instant, oneshot::Sender<Duration>)>>,
}

impl Trunk {
    pub fn new(
        id: TrunkId,
        site: String,
        gateway: String,
        key: Fingerprint,
        dial: Option<String>,
        links: u16,
    ) -> Trunk {
        Trunk {
            id,
            site,
            gateway,
            fingerprint: key,
            dial,
            links: RefCell::new(vec![None; usize::from(links)]),
            up: Cell::new(false),
            changed: Notify::new(),
            kick: Notify::new(),
            problem: RefCell::default(),
        }
    }

    pub fn links(&self) -> usize {
        self.links.borrow().len()
    }

    /// The link that carries frames of this pair: always the same, so that they stay in order. `None` while the trunk
    /// is down.
    pub fn link(&self, from: Identity, to: Identity) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        let at = if links.len() == 1 {
            0
        } else {
            let mut hasher = DefaultHasher::new();
            (from, to).hash(&mut hasher);
            (hasher.finish() % links.len() as u64) as usize
        };
        links[at].clone().filter(|_| self.up.get())
    }

    /// Dials at once if it is waiting to.
    pub fn kick(&self) {
        if !self.up.get() {
            self.kick.notify_waiters();
        }
    }

    pub fn send_control(&self, gateway: &Gateway, message: &Control) {
        let Some(link) = self.link(GATEWAY, GATEWAY) else {
            tracing::debug!(site = self.site, "control message dropped: the trunk is down");
            return;
        };
        match message.encode() {
            Ok(payload) => {
                let job = message.job().unwrap_or_default();
                link.send_own(gateway, FrameHeader::plain(FrameKind::Control, job, GATEWAY, GATEWAY), &payload);
            }
            Err(error) => tracing::error!(%error, "control message not sent"),
        }
    }

    /// Notes why the trunk is not up, and logs it if it is news.
    pub fn failed(&self, gateway: &Gateway, problem: String) {
        gateway.relay.borrow_mut().trunk_problem(self.id, problem.clone());
        if *self.problem.borrow() != problem {
            tracing::warn!(site = self.site, gateway = self.gateway, problem, "trunk down");
            self.problem.replace(problem);
        }
    }

    /// Why it is not up before anything was tried.
    pub fn expect(&self, problem: String) {
        self.problem.replace(problem);
    }

    /// Waits until the trunk is up; `Err` with the last problem when that takes too long.
    pub async fn wait_up(&self, limit: Duration) -> Result<(), String> {
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
        timeout(limit, wait).await.map_err(|_| self.problem.borrow().clone())
    }

    /// Sends a ping over the first link and waits for the answer.
    pub async fn ping(&self, gateway: &Gateway, limit: Duration) -> Result<Duration, String> {
        let link = self.link(GATEWAY, GATEWAY).ok_or_else(|| self.problem.borrow().clone())?;
        let (sender, receiver) = oneshot::channel();
        let id = gateway.next_id();
        link.pings.borrow_mut().insert(id, (Instant::now(), sender));
        link.send_own(
            gateway,
            FrameHeader::plain(FrameKind::Ping, JobId::default(), GATEWAY, GATEWAY),
            &id.to_le_bytes(),
        );
        let answer = timeout(limit, receiver).await;
        link.pings.borrow_mut().remove(&id);
        match answer {
            Ok(Ok(rtt)) => Ok(rtt),
            Ok(Err(_)) => Err(format!("site {}: the trunk broke during the probe", self.site)),
            Err(_) => Err(format!("site {}: no answer over the trunk within {limit:?}", self.site)),
        }
    }

    /// Says goodbye on all links.
    pub fn goodbye(&self, gateway: &Gateway, reason: &str) {
        let links: Vec<_> = self.links.borrow().iter().flatten().cloned().collect();
        for link in links {
            link.send_own(
                gateway,
                FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY),
                reason.as_bytes(),
            );
        }
    }
}

impl Link {
    /// Sends a frame made here.
    pub fn send_own(&self, gateway: &Gateway, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.send(gateway, &bytes),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    /// Sends the frames that were gathered from `bytes`.
    pub fn send_pending(&self, gateway: &Gateway, bytes: &[u8]) {
        let mut ranges = self.pending.borrow_mut();
        if let [range] = ranges.as_slice() {
            self.send(gateway, &bytes[range.clone()]);
        } else {
            // A record each would cost more than the copy.
            let mut stage = gateway.stage.take();
            ranges.iter().for_each(|range| stage.extend_from_slice(&bytes[range.clone()]));
            self.send(gateway, &stage);
            stage.clear();
            gateway.stage.replace(stage);
        }
        ranges.clear();
    }

    fn send(&self, gateway: &Gateway, bytes: &[u8]) {
        let mut session = self.session.borrow_mut();
        let mut sealed = gateway.sealed.borrow_mut();
        for piece in bytes.chunks(PIECE) {
            match session.seal(piece, &mut sealed) {
                Ok(length) => self.outlet.send(&[IoSlice::new(&sealed[..length])]),
                Err(error) => {
                    self.cut(format!("TLS: {error}"));
                    return;
                }
            };
        }
        self.spoke.set(gateway.now());
    }

    /// Ends the link.
    pub fn cut(&self, reason: String) {
        self.cut_reason.replace(reason);
        self.outlet.seal();
        self.cut.notify_one();
    }

    /// An answer to a ping came.
    pub fn pong(&self, payload: &[u8]) {
        let Ok(id) = payload.try_into().map(u64::from_le_bytes) else { return };
        if let Some((sent, answer)) = self.pings.borrow_mut().remove(&id) {
            // Whoever asked may have given up.
            let _ = answer.send(sent.elapsed());
        }
    }

    /// Sends a ping when nothing else was said; returns when the peer is silent for too long.
    async fn heartbeat(&self, gateway: &Gateway) -> String {
        loop {
            sleep(HEARTBEAT / 4).await;
            let now = Instant::now();
            if now - self.heard.get() > SILENCE {
                return format!("no sign of life for {} s", SILENCE.as_secs());
            }
            if now - self.spoke.get() >= HEARTBEAT {
                let header = FrameHeader::plain(FrameKind::Ping, JobId::default(), GATEWAY, GATEWAY);
                self.send_own(gateway, header, &[]);
                self.spoke.set(now);
            }
        }
    }
}

/// Keeps one link of a trunk up, for ever.
pub(crate) async fn keep_dialling(gateway: Rc<Gateway>, trunk: Rc<Trunk>, index: usize, address: String) {
    let mut pause = REDIAL_FIRST;
    loop {
        match dial(&gateway, &trunk, index, &address).await {
            Ok((stream, peer)) => {
                pause = REDIAL_FIRST;
                serve(&gateway, &trunk, index, stream, peer).await;
            }
            Err(problem) => {
                let problem = format!("site {}: gateway {} at {address}: {problem}", trunk.site, trunk.gateway);
                trunk.failed(&gateway, problem);
            }
        }
        // At least this long, however often somebody is impatient.
        sleep(REDIAL_FIRST / 2).await;
        let _ = timeout(pause.mul_f64(jitter()), trunk.kick.notified()).await;
        pause = (pause * 2).min(REDIAL_MOST);
    }
}

/// Between 0.5 and 1.5, so that sites that lost each other at once do not dial at once for ever.
fn jitter() -> f64 {
    0.5 + f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

async fn dial(
    gateway: &Gateway,
    trunk: &Trunk,
    index: usize,
    address: &str,
) -> Result<(TlsStream, SocketAddr), String> {
    let tcp = match timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(tcp)) => tcp,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", DIAL_TIMEOUT.as_secs())),
    };
    let peer = tcp.peer_addr().map_err(|e| e.to_string())?;
    let shake = async {
        prepare(&tcp).map_err(|e| e.to_string())?;
        let session = gateway.tls.dial().map_err(|e| e.to_string())?;
        let mut stream = TlsStream::handshake(tcp, session).await.map_err(|e| e.to_string())?;
        let presented = stream.session().peer();
        if presented != Some(trunk.fingerprint) {
            return Err(mismatch(presented, trunk.fingerprint));
        }
        let nowhere = Address::standalone(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let hello = Hello {
            purpose: Purpose::Trunk,
            job: JobId::default(),
            from: nowhere,
            to: nowhere,
            site: gateway.site.clone(),
            gateway: gateway.name.clone(),
            link: index as u16,
        };
        initiate(&mut stream, hello, &Secret::NONE).await.map_err(|e| e.to_string())?;
        Ok((stream, peer))
    };
    match timeout(HANDSHAKE_TIMEOUT, shake).await {
        Ok(result) => result,
        Err(_) => Err(format!("handshake took longer than {} s: is it a gateway?", HANDSHAKE_TIMEOUT.as_secs())),
    }
}

fn mismatch(presented: Option<Fingerprint>, expected: Fingerprint) -> String {
    let presented = presented.map_or("none".to_owned(), |f| f.to_string());
    format!("presented fingerprint {presented}, sites file says {expected}")
}

fn prepare(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    socket2::SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT)
}

/// The accepting side of a link's handshake. The caller bounds its time. `None`: it was a site that joined.
pub(crate) async fn accept(
    gateway: &Rc<Gateway>,
    tcp: TcpStream,
    peer: SocketAddr,
) -> Result<Option<(Rc<Trunk>, usize, TlsStream)>, String> {
    prepare(&tcp).map_err(|e| e.to_string())?;
    let session = gateway.tls.accept().map_err(|e| e.to_string())?;
    let mut stream = TlsStream::handshake(tcp, session).await.map_err(|e| e.to_string())?;
    let presented = stream.session().peer();
    let hello = match handshake::read_hello(&mut stream).await {
        Ok(hello) => hello,
        Err(HandshakeError::Io(_)) => {
            let whose = gateway.trunks.borrow().iter().find(|trunk| presented == Some(trunk.fingerprint)).cloned();
            let name =
                whose.as_ref().map_or("of no site we know".to_owned(), |trunk| format!("of site {}", trunk.site));
            let problem = format!(
                "a gateway {name} at {peer} dialled and closed after seeing our key: does its sites file show {} for \
                 site {}?",
                gateway.fingerprint, gateway.site
            );
            if let Some(trunk) = whose {
                trunk.failed(gateway, problem.clone());
            }
            return Err(problem);
        }
        Err(error) => return Err(error.to_string()),
    };
    if hello.purpose == Purpose::Join {
        return join::admit(gateway, &mut stream, &hello, presented).await.map(|()| None);
    }
    match admit(gateway, &hello, presented, peer) {
        Ok(trunk) => {
            let shaken = handshake::challenge(&mut stream, &hello, &Secret::NONE, "a trunk's is public").await;
            shaken.map_err(|e| e.to_string())?;
            let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0 });
            handshake::write(&mut stream, &welcome).await.map_err(|e| e.to_string())?;
            Ok(Some((trunk, usize::from(hello.link), stream)))
        }
        Err(reason) => {
            // Best effort: the reason is logged here in any case.
            let _ = handshake::write(&mut stream, &Handshake::Refuse(reason.clone())).await;
            Err(reason)
        }
    }
}

fn admit(
    gateway: &Gateway,
    hello: &Hello,
    presented: Option<Fingerprint>,
    peer: SocketAddr,
) -> Result<Rc<Trunk>, String> {
    let (site, name) = (&hello.site, &hello.gateway);
    if hello.purpose != Purpose::Trunk {
        return Err("inside TLS only gateways are served".into());
    }
    let known = gateway.trunks.borrow().iter().find(|trunk| trunk.site == *site && trunk.gateway == *name).cloned();
    let trunk = known
        .ok_or_else(|| format!("site {}: no trunk to gateway {name} of site {site} in its sites file", gateway.site))?;
    if presented != Some(trunk.fingerprint) {
        let problem = format!("site {site}: gateway {name} at {peer} {}", mismatch(presented, trunk.fingerprint));
        trunk.failed(gateway, problem.clone());
        return Err(problem);
    }
    if trunk.dial.is_some() {
        let own = &gateway.site;
        return Err(format!(
            "site {own} dials site {site}, not the reverse: list the sites in the same order everywhere"
        ));
    }
    if usize::from(hello.link) >= trunk.links() {
        return Err(format!(
            "link {}: this trunk has {}; compare `links` in the sites files",
            hello.link,
            trunk.links()
        ));
    }
    Ok(trunk)
}

/// Serves an established link until it ends.
pub(crate) async fn serve(
    gateway: &Rc<Gateway>,
    trunk: &Rc<Trunk>,
    index: usize,
    stream: TlsStream,
    address: SocketAddr,
) {
    let (tcp, session, cipher, plain) = stream.into_parts();
    let (mut read, write) = tcp.into_split();
    let now = Instant::now();
    let link = Rc::new(Link {
        trunk: trunk.id,
        index,
        address,
        session: RefCell::new(session),
        outlet: Outlet::new(write, gateway.counters.clone(), BACKED_UP),
        pending: RefCell::default(),
        heard: Cell::new(now),
        spoke: Cell::new(now),
        cut: Notify::new(),
        cut_reason: RefCell::default(),
        pings: RefCell::default(),
    });
    gateway.link_up(trunk, &link);
    let stop = tokio::select! {
        biased;
        stop = read_loop(gateway, &link, &mut read, cipher, plain) => stop,
        error = link.outlet.run() => Stop::Lost(error.to_string()),
        reason = link.heartbeat(gateway) => Stop::Lost(reason),
        () = link.cut.notified() => Stop::Lost(link.cut_reason.take()),
    };
    let reason = match stop {
        Stop::Goodbye(reason) => reason,
        Stop::Lost(reason) => reason,
        Stop::Violation(reason) => {
            gateway.counters.violation();
            let header = FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY);
            link.send_own(gateway, header, reason.as_bytes());
            format!("rules broken: {reason}")
        }
    };
    gateway.link_down(trunk, &link, &reason);
    link.pings.borrow_mut().clear();
    link.outlet.finish().await;
}

async fn read_loop(
    gateway: &Rc<Gateway>,
    link: &Rc<Link>,
    read: &mut OwnedReadHalf,
    cipher_left: Vec<u8>,
    plain_left: Vec<u8>,
) -> Stop {
    let (mut cipher_partial, mut plain_partial) = (gateway.partial(), gateway.partial());
    cipher_partial.save(&cipher_left);
    plain_partial.save(&plain_left);
    let source = Target::Link(link.clone());
    let mut out = Vec::new();
    // What came together with the end of the handshake has been read already.
    let mut first = true;
    loop {
        let turn = poll_fn(|cx| {
            let mut cipher = gateway.cipher.borrow_mut();
            let start = cipher_partial.len();
            let mut count = 0;
            if !first {
                let mut buf = ReadBuf::new(&mut cipher[start..start + READ]);
                match Pin::new(&mut *read).poll_read(cx, &mut buf) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Stop::Lost(error.to_string()))),
                    Poll::Ready(Ok(())) => count = buf.filled().len(),
                }
                if count == 0 {
                    return Poll::Ready(Err(Stop::Lost("connection closed".into())));
                }
            }
            first = false;
            link.heard.set(gateway.tick());
            cipher_partial.restore(&mut cipher);
            let mut plain = gateway.plain.borrow_mut();
            let mut length = plain_partial.len();
            plain_partial.restore(&mut plain);
            let input = &mut cipher[..start + count];
            let opened = link.session.borrow_mut().open(
                input,
                &mut |bytes| {
                    plain[length..length + bytes.len()].copy_from_slice(bytes);
                    length += bytes.len();
                },
                &mut out,
            );
            if !out.is_empty() {
                link.outlet.send(&[IoSlice::new(&out)]);
                out.clear();
            }
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) => return Poll::Ready(Err(Stop::Violation(format!("TLS: {error}")))),
            };
            cipher_partial.save(&input[opened.consumed..]);
            let bytes = &plain[..length];
            let result = gateway.forward(&source, bytes);
            if let Ok(used) = result {
                plain_partial.save(&bytes[used..]);
            }
            Poll::Ready(
                result.and_then(|_| if opened.closed { Err(Stop::Lost("connection closed".into())) } else { Ok(()) }),
            )
        });
        if let Err(stop) = turn.await {
            return stop;
        }
        gateway.after_turn();
    }
}

impl Gateway {
    /// A link is there; with the last one its trunk is up.
    fn link_up(&self, trunk: &Trunk, link: &Rc<Link>) {
        let old = trunk.links.borrow()[link.index].clone();
        if let Some(old) = old {
            let reason = format!("replaced by a new connection from {}", link.address);
            self.link_down(trunk, &old, &reason);
            old.cut(reason);
        }
        trunk.links.borrow_mut()[link.index] = Some(link.clone());
        let complete = trunk.links.borrow().iter().all(Option::is_some);
        if complete {
            trunk.up.set(true);
            trunk.problem.borrow_mut().clear();
            let (site, gateway, address, key) = (&trunk.site, &trunk.gateway, link.address, trunk.fingerprint);
            tracing::info!(site, gateway, %address, fingerprint = %key, links = trunk.links(), "trunk up");
            self.relay.borrow_mut().trunk_up(trunk.id);
            trunk.changed.notify_waiters();
            self.settle();
        }
    }

    /// A link is gone. What was under way on it is lost, so the whole trunk is down until all links are there again.
    fn link_down(&self, trunk: &Trunk, link: &Rc<Link>, reason: &str) {
        let current = trunk.links.borrow()[link.index].as_ref().is_some_and(|l| Rc::ptr_eq(l, link));
        if !current {
            return;
        }
        trunk.links.borrow_mut()[link.index] = None;
        let problem = format!("site {}: gateway {} at {}: {reason}", trunk.site, trunk.gateway, link.address);
        if !trunk.up.replace(false) {
            trunk.failed(self, problem);
            return;
        }
        let (site, gateway, address) = (&trunk.site, &trunk.gateway, link.address);
        tracing::warn!(site, gateway, %address, link = link.index, reason, "trunk down");
        trunk.problem.replace(problem.clone());
        for other in trunk.links.borrow().iter().flatten() {
            other.cut("another link of the trunk is lost".into());
        }
        self.relay.borrow_mut().trunk_down(trunk.id, &problem);
        self.settle();
    }
}
