//! The gateway's one port: classifies incoming connections by their first byte, and admits or refuses each within
//! bounded time and memory.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use client::handshake::{self, Accepting, HandshakeError};
use client::tls::{HelloToken, MAX_HELLO, hello_token};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use types::JobId;
use types::id::plain;
use types::sites::Inside;
use wire::handshake::{Handshake, Hello, PREFACE, Purpose, Refusal, RefusalCode, Welcome};
use wire::token::TOKEN_LEN;
use wire::{Control, Secret};

use crate::config::GatewayConfig;
use crate::door::Door;
use crate::door::error::DoorError;
use crate::door::lobby::LobbySeat;
use crate::door::stream::DoorStream;
use crate::door::tokens::Credential;
use crate::error::GatewayError;
use crate::log::{STRANGERS, log, short};
use crate::path::limits::MAX_DATA;
use crate::path::member::{Member, task};
use crate::path::outlet::LINGER;
use crate::path::reading::Inflow;
use crate::table::error::{JobError, Violation};
use crate::trunks::handshake::{self as trunk_handshake, Accepted, HANDSHAKE_TIMEOUT, TlsPeer};
use crate::trunks::meeting::{Met, host};

/// First byte of a TLS ClientHello.
const TLS_HANDSHAKE: u8 = 0x16;
const BACKLOG: u32 = 1024;
/// Number of turns that other tasks get before a newcomer takes the place of another connection. In each turn the
/// runtime reads arrived data and runs some 60 tasks.
const READS: usize = 4;
/// Longest wait of a member that arrives before its job. It keeps its position in the lobby meanwhile.
const EARLY: Duration = Duration::from_secs(2);

/// Binds the gateway's port.
pub(crate) fn bind(config: &GatewayConfig) -> Result<TcpListener, GatewayError> {
    let own = config.own();
    let listen = |source: io::Error| GatewayError::Listen {
        site: config.own_site().name.clone(),
        gateway: own.name.clone(),
        address: own.listen.clone(),
        hint: match source.kind() {
            io::ErrorKind::AddrInUse => {
                ": another program has this port (another gateway?); `ss -ltnp` shows which; stop it, or set `listen` \
                 and `inside` to another port"
            }
            io::ErrorKind::AddrNotAvailable => ": no interface of this machine has this address; correct `listen`",
            io::ErrorKind::PermissionDenied => ": ports under 1024 need root; set `listen` to a higher one",
            _ => "",
        },
        source,
    };
    let address: SocketAddr = own.listen.parse().map_err(|_| {
        listen(io::Error::new(io::ErrorKind::InvalidInput, "`listen` must be an IP address and a port"))
    })?;
    open(address, BACKLOG).map_err(listen)
}

/// Listens on an address. `[::]` means all addresses of both families, regardless of the system's default
/// (`net.ipv6.bindv6only`). On a machine whose kernel has no IPv6, it means 0.0.0.0.
pub(crate) fn open(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    if address.is_ipv4() {
        return listen(TcpSocket::new_v4()?, address, backlog);
    }
    let socket = match TcpSocket::new_v6() {
        Err(error) if error.raw_os_error() == Some(NO_IPV6) && address.ip().is_unspecified() => {
            let every = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            tracing::info!("this machine has no IPv6: listening on {every}");
            return listen(TcpSocket::new_v4()?, every, backlog);
        }
        socket => socket?,
    };
    if address.ip().is_unspecified() {
        socket2::SockRef::from(&socket).set_only_v6(false)?;
    }
    listen(socket, address, backlog)
}

/// `EAFNOSUPPORT`, for which the standard library has no name.
const NO_IPV6: i32 = 97;

fn listen(socket: TcpSocket, address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    // A restarted gateway must not wait until the previous one's connections time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

/// Accepts connections forever. `own` handles members' control messages to the gateway.
pub(crate) async fn accept(
    door: &Rc<Door>,
    listener: TcpListener,
    own: impl Fn(&Rc<Member>, Control) -> Result<(), Violation> + Clone + 'static,
) -> Infallible {
    loop {
        let (stream, peer) = match listener.accept().await {
            // A dual-stack socket reports an IPv4 peer by an IPv4-mapped IPv6 address.
            Ok((stream, peer)) => (stream, plain(peer)),
            Err(error) => {
                // Out of descriptors, or the peer is already gone: either way, keep accepting.
                log!(warn, STRANGERS, %error, "cannot accept");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Reads the data of earlier arrivals before a newcomer takes the place of one of them.
        for _ in 0..READS {
            if !door.lobby.is_full() {
                break;
            }
            yield_now().await;
        }
        let place = door.lobby.enter(peer.ip(), Instant::now());
        let (door, own) = (door.clone(), own.clone());
        tokio::task::spawn_local(async move { admit(&door, place, stream, peer, own).await });
    }
}

/// The peer behind an accepted connection.
enum Admitted {
    Member(Rc<Member>, Inflow),
    Link(Box<Accepted>),
    /// A gateway that meets another one here. `None`: the other has not connected yet.
    Guest(Option<Met<TcpStream>>),
    /// A site that joined; nothing more is sent on its connection.
    Joined,
    /// Closed without sending anything, as port scanners and health checks do.
    Nobody,
}

async fn admit(
    door: &Rc<Door>,
    place: LobbySeat,
    stream: TcpStream,
    peer: SocketAddr,
    own: impl Fn(&Rc<Member>, Control) -> Result<(), Violation>,
) {
    let admitted = tokio::select! {
        admitted = door.path.load.patiently(HANDSHAKE_TIMEOUT, shake_hands(door, &place, stream, peer)) => admitted,
        () = place.must_go() => Ok(Err(DoorError::Crowded)),
    };
    drop(place);
    match admitted {
        Ok(Ok(Admitted::Member(member, inflow))) => serve(door, member, inflow, own).await,
        Ok(Ok(Admitted::Link(accepted))) => door.trunks.serve(*accepted, peer).await,
        Ok(Ok(Admitted::Guest(Some(met)))) => host::serve(&door.trunks.host, met).await,
        Ok(Ok(Admitted::Guest(None))) => tracing::debug!(%peer, "waiting here for the other gateway of a meeting"),
        Ok(Ok(Admitted::Joined)) => tracing::info!(%peer, "a site joined"),
        Ok(Ok(Admitted::Nobody)) => tracing::debug!(%peer, "connection closed before its first byte"),
        Ok(Err(error)) => refused(door, peer, &error),
        Err(waited) => refused(door, peer, &DoorError::Slow(waited.as_secs())),
    }
}

/// Serves an admitted connection until it ends.
async fn serve(
    door: &Door,
    member: Rc<Member>,
    mut inflow: Inflow,
    own: impl Fn(&Rc<Member>, Control) -> Result<(), Violation>,
) {
    task::serve(&door.path, &member, &mut inflow, |message| own(&member, message)).await;
    if member.client {
        door.trunks.couplings.remove_member(&member);
    }
    task::finish(&member, inflow).await;
}

/// Counts a refusal and logs it, unless too many were logged.
fn refused(door: &Door, peer: SocketAddr, error: &DoorError) {
    door.path.counters.refused();
    let reason = error.to_string();
    log!(warn, STRANGERS, %peer, reason = short(&reason), "connection refused");
}

async fn shake_hands(
    door: &Rc<Door>,
    place: &LobbySeat,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Admitted, DoorError> {
    let mut first = [0; 1];
    prepare(&stream)?;
    match stream.peek(&mut first).await? {
        0 => Ok(Admitted::Nobody),
        _ if first[0] == TLS_HANDSHAKE => {
            let (read, token) = read_token(&mut stream).await?;
            let proved = token.and_then(|token| door.credential(token));
            take_place(place, proved, peer)?;
            if proved.is_none() {
                door.hellos.turn(peer.ip()).await;
            }
            let admitted = match trunk_handshake::accept(&door.trunks.list, (read, stream), peer).await? {
                TlsPeer::Link(accepted) => Admitted::Link(accepted),
                TlsPeer::Newcomer(newcomer) => {
                    door.services.joining.admit(*newcomer).await?;
                    Admitted::Joined
                }
                TlsPeer::Inside(tls, accepting, key) => {
                    let stream = DoorStream::Tls(tls, key);
                    let (member, inflow) = accept_member(door, place, stream, peer, *accepting).await?;
                    Admitted::Member(member, inflow)
                }
            };
            if proved.is_none() {
                door.hellos.proved(peer.ip());
            }
            Ok(admitted)
        }
        _ if first[0] == PREFACE[0] => {
            let accepting = match Accepting::begin(&mut stream).await {
                Ok(accepting) => accepting,
                Err(error) => return turn_away(DoorStream::Plain(stream), error).await,
            };
            take_place(place, door.credential_of(&accepting.hello), peer)?;
            if accepting.hello.purpose == Purpose::Meet {
                return Ok(Admitted::Guest(host::admit(&door.trunks.host, stream, accepting).await?));
            }
            if door.inside == Inside::Encrypted {
                let text =
                    format!("site {}: `inside` is \"encrypted\"; this rank connected without TLS", door.sites.site);
                return refuse(DoorStream::Plain(stream), Refusal::new(RefusalCode::Purpose, text)).await;
            }
            let (member, inflow) = accept_member(door, place, DoorStream::Plain(stream), peer, accepting).await?;
            Ok(Admitted::Member(member, inflow))
        }
        _ => Err(DoorError::Stranger(first[0])),
    }
}

/// Reads the first message of a TLS handshake, and its token if it has one. Returns all bytes read.
async fn read_token(stream: &mut TcpStream) -> Result<(Vec<u8>, Option<[u8; TOKEN_LEN]>), DoorError> {
    let mut read = Vec::with_capacity(MAX_HELLO);
    loop {
        match hello_token(&read) {
            HelloToken::Token(token) => return Ok((read, Some(token))),
            HelloToken::None => return Ok((read, None)),
            HelloToken::Partial
                if (&mut *stream).take((MAX_HELLO - read.len()) as u64).read_buf(&mut read).await? == 0 =>
            {
                return Err(
                    io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed during the handshake").into()
                );
            }
            HelloToken::Partial => {}
        }
    }
}

/// Moves a connection that has sent its first message to the proven or the unproven ones.
fn take_place(place: &LobbySeat, proved: Option<Credential>, peer: SocketAddr) -> Result<(), DoorError> {
    let now = Instant::now();
    let stays = match proved {
        Some(credential) => place.proved(credential, now),
        None => place.proved_nothing(peer.ip(), now),
    };
    if stays { Ok(()) } else { Err(DoorError::Crowded) }
}

async fn accept_member(
    door: &Rc<Door>,
    place: &LobbySeat,
    mut stream: DoorStream,
    peer: SocketAddr,
    mut accepting: Accepting,
) -> Result<(Rc<Member>, Inflow), DoorError> {
    let (secret, whose) = match may_prove(door, &accepting.hello, stream.is_plain()).await {
        Ok(secret) => secret,
        Err(refusal) => return refuse(stream, refusal).await,
    };
    if accepting.hello.purpose == Purpose::Member && stream.is_plain() {
        // The job may have been opened since the first check. Without a valid token, nothing changes.
        if let Some(credential) = door.credential_of(&accepting.hello) {
            take_place(place, Some(credential), peer)?;
        }
    }
    let key = stream.key();
    if let Err(error) = accepting.challenge(&mut stream, &secret, whose, &key).await {
        return turn_away(stream, error).await;
    }
    match welcome(door, stream, peer, &accepting.hello) {
        Ok(admitted) => Ok(admitted),
        Err((stream, why)) => refuse(*stream, Refusal::new(RefusalCode::NotAdmitted, why.to_string())).await,
    }
}

/// Returns the secret that this peer must prove, and the error text if it fails to. A peer that wants another gateway
/// is refused before this gateway proves anything to it: an attacker may be relaying a connection meant for that other
/// gateway.
async fn may_prove(door: &Door, hello: &Hello, plain: bool) -> Result<(Secret, &'static str), Refusal> {
    let refuse = |code, text: String| Err(Refusal::new(code, text));
    match hello.purpose {
        Purpose::Client | Purpose::Member
            if (&hello.site, &hello.gateway) != (&door.sites.site, &door.sites.gateway) =>
        {
            let (site, name) = (&door.sites.site, &door.sites.gateway);
            let text = format!(
                "this is gateway {name} of site {site}, not {} of {}: another program uses its port or forwards \
                 connections to here",
                hello.gateway, hello.site
            );
            refuse(RefusalCode::OtherPeer, text)
        }
        Purpose::Client if plain => refuse(RefusalCode::Purpose, "users must connect to gateways with TLS".into()),
        Purpose::Client => Ok((door.sites.credentials().client_secret.clone(), "the site's key is a different one")),
        Purpose::Member => match job_secret(door, hello.job).await {
            Ok(secret) => Ok((secret, "not the job's secret")),
            Err(why) => {
                door.services.agents.asked_for(hello.job);
                refuse(RefusalCode::Unknown, why.to_string())
            }
        },
        Purpose::Peer => refuse(RefusalCode::Purpose, "this is a gateway, not a rank".into()),
        Purpose::Trunk | Purpose::Join | Purpose::Meet => {
            refuse(RefusalCode::Purpose, "gateways must connect to each other with TLS".into())
        }
    }
}

/// Returns the secret of a job. A member may connect before a trunk or the launcher announces the job to this gateway,
/// so it waits for up to [`EARLY`].
async fn job_secret(door: &Door, job: JobId) -> Result<Secret, JobError> {
    let deadline = Instant::now() + EARLY;
    loop {
        let opened = door.path.table.job_opened.notified();
        let found = door.path.table.read().secret(job);
        if found.is_ok() || !door.path.table.read().may_come(job) || timeout_at(deadline, opened).await.is_err() {
            return found;
        }
    }
}

/// Registers a peer that has proved its identity. Contains no await, so no other peer can claim the identity meanwhile.
fn welcome(
    door: &Rc<Door>,
    stream: DoorStream,
    peer: SocketAddr,
    hello: &Hello,
) -> Result<(Rc<Member>, Inflow), (Box<DoorStream>, JobError)> {
    let (job, identity) = (hello.job, hello.from.identity);
    if hello.purpose == Purpose::Client {
        let (member, inflow) = Member::new(&door.path, stream.into_parts(), peer, true);
        member.welcome(Welcome { max_payload: MAX_DATA, window: 0, run: 0 });
        return Ok((member, inflow));
    }
    // The old connection of a peer whose cable was pulled does not close by itself.
    let before =
        door.path.table.change(|table| table.displace(job, identity.slot, |member| member.is_quiet(&door.path)));
    if let Some(before) = before {
        before.dismiss("it has reconnected");
    }
    let window = match door.path.table.read().may_join(job, identity) {
        Ok(window) => window,
        Err(why) => return Err((Box::new(stream), why)),
    };
    let (member, inflow) = Member::new(&door.path, stream.into_parts(), peer, false);
    member.becomes(job, identity);
    member.welcome(Welcome { max_payload: MAX_DATA, window, run: 0 });
    if let Err(why) = door.path.table.change(|table| table.join(job, identity, member.clone())) {
        // Should not happen after the check above; if it does, the connection ends with the reason.
        member.dismiss(&why.to_string());
    } else {
        door.trunks.survey.tell_links(&member);
    }
    tracing::debug!(%peer, %job, member = %identity.slot, "member admitted");
    Ok((member, inflow))
}

/// Ends a failed handshake. An honest peer is sent the reason.
async fn turn_away<T>(stream: DoorStream, error: HandshakeError) -> Result<T, DoorError> {
    match error.refusal() {
        Some(refusal) => refuse(stream, refusal).await,
        None => Err(error.into()),
    }
}

/// Sends a refusal with its reason, and returns the reason as the error.
async fn refuse<T>(mut stream: DoorStream, refusal: Refusal) -> Result<T, DoorError> {
    // Best effort within the handshake's time limit: the reason is logged here in any case.
    if handshake::write(&mut stream, &Handshake::Refuse(refusal.clone())).await.is_ok() {
        let _ = stream.shutdown().await;
        let mut sink = [0; 1024];
        let _ = timeout(LINGER, async { while matches!(stream.read(&mut sink).await, Ok(1..)) {} }).await;
    }
    Err(DoorError::Refused(refusal.text))
}

/// Sets TCP options. With them, a member whose machine vanishes is noticed within 15 s.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(5);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
