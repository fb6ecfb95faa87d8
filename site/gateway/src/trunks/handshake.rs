//! The handshake of a link, on both sides, and the peers that dial with TLS.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client::handshake::{self, Accepting, HandshakeError, initiate};
use client::tls::TlsStream;
use gateway_tasks::Tunnel;
use tokio::net::TcpStream;
use types::id::NOWHERE;
use types::sites::Fingerprint;
use types::{Address, JobId};
use wire::Secret;
use wire::handshake::{Handshake, Hello, Purpose, Refusal, RefusalCode, Welcome};

use crate::path::limits::MAX_DATA;
use crate::trunks::error::{ArrivalError, LinkError};
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// Time limit for a whole handshake on a machine that is not overloaded: see [`crate::load::Load::patiently`].
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Most unsent bytes in the kernel per link. Bytes sent and not acknowledged come on top, as many as the path needs.
const UNSENT: u32 = 256 << 10;

/// A handshake that has begun: the bytes read so far, and the socket.
pub(crate) type Begun = (Vec<u8>, TcpStream);

/// A peer that dialled this gateway with TLS.
pub(crate) enum TlsPeer {
    Link(Box<Accepted>),
    /// A site that wants to join and has sent only its hello.
    Newcomer(Box<Newcomer>),
    /// A user, agent or rank of this site that has sent only its hello, and the key that this gateway presented to it.
    Inside(Box<TlsStream>, Box<Accepting>, Fingerprint),
}

/// A link that the other gateway dialled.
pub(crate) struct Accepted {
    pub trunk: Rc<Trunk>,
    pub index: usize,
    pub stream: TlsStream,
    /// Run number of the other gateway's program.
    pub run: u32,
}

/// A site that wants to join by a ticket.
pub(crate) struct Newcomer {
    pub stream: TlsStream,
    pub accepting: Accepting,
    /// The key that it presented.
    pub presented: Option<Fingerprint>,
    /// The key that this gateway presented.
    pub own: Fingerprint,
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

pub(crate) async fn dial(list: &TrunkList, trunk: &Trunk, index: usize, address: &str) -> Result<Dialled, LinkError> {
    let dialled = async {
        let tcp = connect(list, address).await?;
        let peer = tcp.peer_addr()?;
        let (stream, run) = shake(list, trunk, index, tcp, HANDSHAKE_TIMEOUT).await?;
        Ok(Dialled { stream, run, peer, tunnel: None })
    };
    let (site, gateway) = (trunk.site.clone(), trunk.gateway.clone());
    let at = |source| LinkError::At { site, gateway, address: address.to_owned(), source: Box::new(source) };
    dialled.await.map_err(at)
}

pub(crate) async fn connect(list: &TrunkList, address: &str) -> Result<TcpStream, LinkError> {
    match list.path.load.patiently(DIAL_TIMEOUT, client::dial::dial(address)).await {
        Ok(connected) => Ok(connected?),
        Err(waited) => Err(LinkError::NoAnswer(waited.as_secs())),
    }
}

/// The dialling side of a link's handshake. Returns the run number of the other gateway's process as well.
pub(crate) async fn shake(
    list: &TrunkList,
    trunk: &Trunk,
    index: usize,
    tcp: TcpStream,
    limit: Duration,
) -> Result<(TlsStream, u32), LinkError> {
    let shake = async {
        prepare(&tcp)?;
        let session = list.sites.credentials().tls.dial(None)?;
        let mut stream = TlsStream::handshake(tcp, session).await?;
        let presented = stream.session().peer();
        trunk.check(presented)?;
        let nowhere = Address::standalone(NOWHERE);
        let hello = Hello {
            purpose: Purpose::Trunk,
            job: JobId(list.run_number),
            from: nowhere,
            to: nowhere,
            site: list.sites.site.clone(),
            gateway: list.sites.gateway.clone(),
            link: index as u16,
            nonce: [0; 32],
        };
        let key = presented.map_or([0; 32], |key| key.0);
        let welcome = initiate(&mut stream, hello, &Secret::NONE, &key).await?;
        Ok((stream, welcome.run))
    };
    match list.path.load.patiently(limit, shake).await {
        Ok(result) => result,
        Err(waited) => Err(LinkError::Slow(waited.as_secs())),
    }
}

pub(crate) fn prepare(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    socket2::SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT)
}

/// The accepting side of TLS and of a link's handshake. The caller sets the time limit.
pub(crate) async fn accept(list: &TrunkList, begun: Begun, peer: SocketAddr) -> Result<TlsPeer, ArrivalError> {
    let (read, tcp) = begun;
    prepare(&tcp)?;
    let credentials = list.sites.credentials();
    let session = credentials.tls.accept()?;
    let mut stream = TlsStream::handshake_after(read, tcp, session).await?;
    let presented = stream.session().peer();
    let mut accepting = match Accepting::begin(&mut stream).await {
        Ok(accepting) => accepting,
        Err(HandshakeError::Io(_)) => {
            if presented.is_none() {
                return Err(ArrivalError::OurKey(peer));
            }
            let trunk = list.in_use().into_iter().find(|trunk| trunk.keys().accept(presented));
            let whose =
                trunk.as_ref().map_or("of no site we know".to_owned(), |trunk| format!("of site {}", trunk.site));
            let (fingerprint, own) = (list.sites.credentials().fingerprint, list.sites.site.clone());
            let error = ArrivalError::OurKeyToGateway { whose, peer, fingerprint, own };
            if let Some(trunk) = trunk {
                trunk.failed(&list.path, error.to_string());
            }
            return Err(error);
        }
        Err(error) => return Err(error.into()),
    };
    let own = credentials.fingerprint;
    match accepting.hello.purpose {
        Purpose::Join => {
            return Ok(TlsPeer::Newcomer(Box::new(Newcomer { stream, accepting, presented, own })));
        }
        Purpose::Client | Purpose::Member => return Ok(TlsPeer::Inside(Box::new(stream), Box::new(accepting), own)),
        Purpose::Trunk | Purpose::Meet | Purpose::Peer => {}
    }
    match admit(list, &accepting.hello, presented, peer) {
        Ok(trunk) => {
            let shaken = accepting.challenge(&mut stream, &Secret::NONE, "a trunk's is public", &own.0).await;
            shaken?;
            let hello = accepting.hello;
            let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0, run: list.run_number });
            handshake::write(&mut stream, &welcome).await?;
            let accepted = Accepted { trunk, index: usize::from(hello.link), stream, run: hello.job.0 };
            Ok(TlsPeer::Link(Box::new(accepted)))
        }
        Err(refusal) => {
            // Best effort: the reason is logged here in any case.
            let _ = handshake::write(&mut stream, &Handshake::Refuse(refusal.clone())).await;
            Err(ArrivalError::Refused(refusal.text))
        }
    }
}

fn admit(
    list: &TrunkList,
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
    let known = list.in_use().into_iter().find(|trunk| trunk.site == *site && trunk.gateway == *name);
    let trunk = known.ok_or_else(|| {
        let text = format!("site {}: no trunk to gateway {name} of site {site} in its sites file", list.sites.site);
        refusal(RefusalCode::Unknown, text)
    })?;
    if let Err(problem) = trunk.check(presented) {
        let problem = format!("site {site}: gateway {name} at {peer} {problem}");
        trunk.failed(&list.path, problem.clone());
        return Err(refusal(RefusalCode::NotAdmitted, problem));
    }
    if trunk.dials {
        let own = &list.sites.site;
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
