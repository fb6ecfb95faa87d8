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
use wire::Secret;
use wire::handshake::{Handshake, Hello, PREFACE, Purpose, Refusal, RefusalCode, Welcome};
use wire::token::TOKEN_LEN;

use crate::GatewayError;
use crate::config::GatewayConfig;
use crate::door::error::DoorError;
use crate::door::lobby::Place;
use crate::door::stream::{Accepted, Arrival, Stream};
use crate::door::tokens::Credential;
use crate::gateway::{Gateway, HANDSHAKE_TIMEOUT};
use crate::log::{STRANGERS, log, short};
use crate::path::forward::MAX_DATA;
use crate::path::member::{self, Inflow, Member};
use crate::path::outlet::LINGER;
use crate::table::error::JobError;
use crate::trunks::link;
use crate::trunks::meeting::{Met, host};
use crate::trunks::trunk;

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

/// Accepts connections forever.
pub(crate) async fn accept(gateway: &Rc<Gateway>, listener: TcpListener) -> Infallible {
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
            if !gateway.door.lobby.is_full() {
                break;
            }
            yield_now().await;
        }
        let place = gateway.door.lobby.enter(peer.ip(), Instant::now());
        let gateway = gateway.clone();
        tokio::task::spawn_local(async move { admit(&gateway, place, stream, peer).await });
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

async fn admit(gateway: &Rc<Gateway>, place: Place, stream: TcpStream, peer: SocketAddr) {
    let admitted = tokio::select! {
        admitted = gateway.patiently(HANDSHAKE_TIMEOUT, shake_hands(gateway, &place, stream, peer)) => admitted,
        () = place.must_go() => Ok(Err(DoorError::Crowded)),
    };
    drop(place);
    match admitted {
        Ok(Ok(Admitted::Member(member, inflow))) => member::serve(gateway, member, inflow).await,
        Ok(Ok(Admitted::Link(accepted))) => {
            let Accepted { trunk, index, stream, run } = *accepted;
            link::serve(gateway, &trunk, index, (stream, run), peer).await;
        }
        Ok(Ok(Admitted::Guest(Some(met)))) => host::serve(gateway, met).await,
        Ok(Ok(Admitted::Guest(None))) => tracing::debug!(%peer, "waiting here for the other gateway of a meeting"),
        Ok(Ok(Admitted::Joined)) => tracing::info!(%peer, "a site joined"),
        Ok(Ok(Admitted::Nobody)) => tracing::debug!(%peer, "connection closed before its first byte"),
        Ok(Err(error)) => refused(gateway, peer, &error),
        Err(waited) => refused(gateway, peer, &DoorError::Slow(waited.as_secs())),
    }
}

/// Counts a refusal and logs it, unless too many were logged.
fn refused(gateway: &Gateway, peer: SocketAddr, error: &DoorError) {
    gateway.counters.refused();
    let reason = error.to_string();
    log!(warn, STRANGERS, %peer, reason = short(&reason), "connection refused");
}

async fn shake_hands(
    gateway: &Rc<Gateway>,
    place: &Place,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Admitted, DoorError> {
    let mut first = [0; 1];
    prepare(&stream)?;
    match stream.peek(&mut first).await? {
        0 => Ok(Admitted::Nobody),
        _ if first[0] == TLS_HANDSHAKE => {
            let (read, token) = read_token(&mut stream).await?;
            let proved = token.and_then(|token| gateway.credential(token));
            take_place(place, proved, peer)?;
            if proved.is_none() {
                gateway.door.hellos.turn(peer.ip()).await;
            }
            let admitted = match trunk::accept(gateway, (read, stream), peer).await? {
                Arrival::Link(accepted) => Admitted::Link(accepted),
                Arrival::Joined => Admitted::Joined,
                Arrival::Inside(tls, accepting, key) => {
                    let stream = Stream::Tls(tls, key);
                    let (member, inflow) = accept_member(gateway, place, stream, peer, *accepting).await?;
                    Admitted::Member(member, inflow)
                }
            };
            if proved.is_none() {
                gateway.door.hellos.proved(peer.ip());
            }
            Ok(admitted)
        }
        _ if first[0] == PREFACE[0] => {
            let accepting = match Accepting::begin(&mut stream).await {
                Ok(accepting) => accepting,
                Err(error) => return turn_away(Stream::Plain(stream), error).await,
            };
            take_place(place, gateway.credential_of(&accepting.hello), peer)?;
            if accepting.hello.purpose == Purpose::Meet {
                return Ok(Admitted::Guest(host::admit(gateway, stream, accepting).await?));
            }
            if gateway.door.inside == Inside::Encrypted {
                let text = format!("site {}: `inside` is \"encrypted\"; this rank connected without TLS", gateway.site);
                return refuse(Stream::Plain(stream), Refusal::new(RefusalCode::Purpose, text)).await;
            }
            let (member, inflow) = accept_member(gateway, place, Stream::Plain(stream), peer, accepting).await?;
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
fn take_place(place: &Place, proved: Option<Credential>, peer: SocketAddr) -> Result<(), DoorError> {
    let now = Instant::now();
    let stays = match proved {
        Some(credential) => place.proved(credential, now),
        None => place.proved_nothing(peer.ip(), now),
    };
    if stays { Ok(()) } else { Err(DoorError::Crowded) }
}

async fn accept_member(
    gateway: &Rc<Gateway>,
    place: &Place,
    mut stream: Stream,
    peer: SocketAddr,
    mut accepting: Accepting,
) -> Result<(Rc<Member>, Inflow), DoorError> {
    let (secret, whose) = match may_prove(gateway, &accepting.hello, stream.is_plain()).await {
        Ok(secret) => secret,
        Err(refusal) => return refuse(stream, refusal).await,
    };
    if accepting.hello.purpose == Purpose::Member && stream.is_plain() {
        // The job may have been opened since the first check. Without a valid token, nothing changes.
        if let Some(credential) = gateway.credential_of(&accepting.hello) {
            take_place(place, Some(credential), peer)?;
        }
    }
    let key = stream.key();
    if let Err(error) = accepting.challenge(&mut stream, &secret, whose, &key).await {
        return turn_away(stream, error).await;
    }
    match welcome(gateway, stream, peer, &accepting.hello) {
        Ok(admitted) => Ok(admitted),
        Err((stream, why)) => refuse(*stream, Refusal::new(RefusalCode::NotAdmitted, why.to_string())).await,
    }
}

/// Returns the secret that this peer must prove, and the error text if it fails to. A peer that wants another gateway
/// is refused before this gateway proves anything to it: an attacker may be relaying a connection meant for that other
/// gateway.
async fn may_prove(gateway: &Gateway, hello: &Hello, plain: bool) -> Result<(Secret, &'static str), Refusal> {
    let refuse = |code, text: String| Err(Refusal::new(code, text));
    match hello.purpose {
        Purpose::Client | Purpose::Member if (&hello.site, &hello.gateway) != (&gateway.site, &gateway.name) => {
            let (site, name) = (&gateway.site, &gateway.name);
            let text = format!(
                "this is gateway {name} of site {site}, not {} of {}: another program uses its port or forwards \
                 connections to here",
                hello.gateway, hello.site
            );
            refuse(RefusalCode::OtherPeer, text)
        }
        Purpose::Client if plain => refuse(RefusalCode::Purpose, "users must connect to gateways with TLS".into()),
        Purpose::Client => Ok((gateway.sites.credentials().client_secret.clone(), "the site's key is a different one")),
        Purpose::Member => match job_secret(gateway, hello.job).await {
            Ok(secret) => Ok((secret, "not the job's secret")),
            Err(why) => {
                gateway.services.agents.asked_for(hello.job);
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
async fn job_secret(gateway: &Gateway, job: JobId) -> Result<Secret, JobError> {
    let deadline = Instant::now() + EARLY;
    loop {
        let opened = gateway.door.job_opened.notified();
        let found = gateway.table().secret(job);
        if found.is_ok() || !gateway.table().may_come(job) || timeout_at(deadline, opened).await.is_err() {
            return found;
        }
    }
}

/// Registers a peer that has proved its identity. Contains no await, so no other peer can claim the identity meanwhile.
fn welcome(
    gateway: &Rc<Gateway>,
    stream: Stream,
    peer: SocketAddr,
    hello: &Hello,
) -> Result<(Rc<Member>, Inflow), (Box<Stream>, JobError)> {
    let (job, identity) = (hello.job, hello.from.identity);
    if hello.purpose == Purpose::Client {
        let (member, inflow) = Member::new(gateway, stream.into_parts(), peer, true);
        member.welcome(Welcome { max_payload: MAX_DATA, window: 0, run: 0 });
        return Ok((member, inflow));
    }
    // The old connection of a peer whose cable was pulled does not close by itself.
    let before = gateway.change(|table| table.displace(job, identity.slot, |member| member.is_quiet(gateway)));
    if let Some(before) = before {
        before.dismiss("it has reconnected");
    }
    let window = match gateway.table().may_join(job, identity) {
        Ok(window) => window,
        Err(why) => return Err((Box::new(stream), why)),
    };
    let (member, inflow) = Member::new(gateway, stream.into_parts(), peer, false);
    member.becomes(job, identity);
    member.welcome(Welcome { max_payload: MAX_DATA, window, run: 0 });
    if let Err(why) = gateway.change(|table| table.join(job, identity, member.clone())) {
        // Should not happen after the check above; if it does, the connection ends with the reason.
        member.dismiss(&why.to_string());
    } else {
        gateway.tell_links(&member);
    }
    tracing::debug!(%peer, %job, member = %identity.slot, "member admitted");
    Ok((member, inflow))
}

/// Ends a failed handshake. An honest peer is sent the reason.
async fn turn_away<T>(stream: Stream, error: HandshakeError) -> Result<T, DoorError> {
    match error.refusal() {
        Some(refusal) => refuse(stream, refusal).await,
        None => Err(error.into()),
    }
}

/// Sends a refusal with its reason, and returns the reason as the error.
async fn refuse<T>(mut stream: Stream, refusal: Refusal) -> Result<T, DoorError> {
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
