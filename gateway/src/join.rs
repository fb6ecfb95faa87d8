//! Sites that join by a ticket: for a site that nobody can dial and whose user cannot come to it from elsewhere.
//!
//! A ticket is made by a user of a site (who has proved the site's key) and carried to the new site by hand. It holds the gateway's
//! address and fingerprint, so the newcomer knows whom it talks to, and a number and a secret, so the gateway knows that this
//! newcomer was invited. The newcomer's own key is shown by TLS. A ticket is good once, and not for long; a gateway that
//! ends forgets its tickets. What the new entry says is for a [`Doorkeeper`] to judge.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use types::sites::Fingerprint;
use types::{Address, JobId};
use wire::frame::HEADER_LEN;
use wire::handshake::{Handshake, Hello, Purpose, Welcome};
use wire::{Control, FrameHeader, FrameKind, Secret};

use crate::client::{CONNECT_TIMEOUT, ClientError};
use crate::forward::{GATEWAY, MAX_DATA};
use crate::handshake::{self, initiate};
use crate::key::SiteKey;
use crate::server::Gateway;
use crate::tls::{TlsConfig, TlsStream};

/// Tickets that are open at once, and the longest time one is good.
const MOST: usize = 16;
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The longest entry of a newcomer, and the longest sites file it is answered with, in bytes.
const MAX_ENTRY: u32 = 64 << 10;
const MAX_SITES: u32 = 1 << 20;

/// Takes a site that joins into the sites file.
pub trait Doorkeeper: Send + Sync + std::fmt::Debug {
    /// Judges the entry of a site that has proved a ticket and holds the key of this fingerprint, and writes it down; gives the
    /// sites file as it is then.
    ///
    /// # Errors
    /// Why not, for the newcomer's user.
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, String>;
}

/// The tickets that are open.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Vec<Ticket>);

#[derive(Debug)]
struct Ticket {
    number: JobId,
    secret: Secret,
    until: Instant,
}

impl Tickets {
    /// Makes one.
    fn open(&mut self, number: JobId, secret: Secret, until: Instant) {
        self.prune();
        // The oldest makes room.
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Ticket { number, secret, until });
    }

    fn secret(&mut self, number: JobId) -> Option<Secret> {
        self.prune();
        self.0.iter().find(|ticket| ticket.number == number).map(|ticket| ticket.secret.clone())
    }

    /// It was used.
    fn close(&mut self, number: JobId) {
        self.0.retain(|ticket| ticket.number != number);
    }

    fn prune(&mut self) {
        let now = Instant::now();
        self.0.retain(|ticket| ticket.until > now);
    }
}

impl Gateway {
    /// Makes a ticket.
    pub fn invite(&self, seconds: u32) -> Result<Control, String> {
        let (mut number, mut secret) = ([0; 4], [0; 32]);
        for bytes in [&mut number[..], &mut secret[..]] {
            getrandom::fill(bytes).map_err(|e| format!("no random numbers: {e}"))?;
        }
        let (ticket, secret) = (JobId(u32::from_le_bytes(number)), Secret::new(secret));
        let good = Duration::from_secs(seconds.into()).min(LONGEST);
        self.tickets.borrow_mut().open(ticket, secret.clone(), Instant::now() + good);
        tracing::info!(seconds = good.as_secs(), "a ticket was made");
        Ok(Control::Invited { ticket, secret })
    }
}

/// The accepting side, after the hello. The caller bounds its time.
pub(crate) async fn admit(
    gateway: &Gateway,
    stream: &mut TlsStream,
    hello: &Hello,
    presented: Option<Fingerprint>,
) -> Result<(), String> {
    let secret = gateway.tickets.borrow_mut().secret(hello.job);
    let (Some(secret), Some(fingerprint)) = (secret, presented) else {
        return refuse(stream, "this ticket is unknown, used or expired: `landbridge sites invite` makes another")
            .await;
    };
    if let Err(error) = handshake::challenge(stream, hello, &secret, "not the ticket's secret").await {
        return refuse(stream, &error.to_string()).await;
    }
    let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0, run: 0 });
    handshake::write(stream, &welcome).await.map_err(|e| e.to_string())?;
    let Control::Join { entry } = read(stream, MAX_ENTRY).await? else {
        return Err("a ticket's holder said something else than its entry".to_owned());
    };
    // No await from here to the end of the ticket: it cannot be used twice at once.
    let taken = match &gateway.doorkeeper {
        Some(doorkeeper) => doorkeeper.admit(&hello.site, fingerprint, &entry).and_then(|text| {
            gateway
                .reload()
                .map_err(|problem| format!("the gateway of site {} must be restarted: {problem}", gateway.site))?;
            Ok(text)
        }),
        None => Err("this gateway takes nobody into its sites file".to_owned()),
    };
    if taken.is_ok() {
        gateway.tickets.borrow_mut().close(hello.job);
    }
    let problem = taken.as_ref().err().cloned();
    let answer = Control::Joined { sites: taken.ok(), problem: problem.clone().unwrap_or_default() };
    write(stream, &answer).await?;
    let _ = stream.shutdown().await;
    match problem {
        None => {
            tracing::info!(site = hello.site, %fingerprint, "joined by a ticket");
            Ok(())
        }
        Some(problem) => Err(format!("site {} did not join: {problem}", hello.site)),
    }
}

async fn refuse(stream: &mut TlsStream, reason: &str) -> Result<(), String> {
    // Best effort: the reason is logged here in any case.
    let _ = handshake::write(stream, &Handshake::Refuse(reason.to_owned())).await;
    Err(reason.to_owned())
}

async fn write(stream: &mut TlsStream, message: &Control) -> Result<(), String> {
    let payload = message.encode().map_err(|e| e.to_string())?;
    let header = FrameHeader::plain(FrameKind::Control, JobId::default(), GATEWAY, GATEWAY);
    let bytes = header.with_payload(&payload).map_err(|e| e.to_string())?;
    stream.write_all(&bytes).await.map_err(|e| e.to_string())?;
    stream.flush().await.map_err(|e| e.to_string())
}

async fn read(stream: &mut TlsStream, limit: u32) -> Result<Control, String> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await.map_err(|e| e.to_string())?;
    let header = FrameHeader::decode(&header, limit).map_err(|e| e.to_string())?;
    if header.kind != FrameKind::Control {
        return Err(format!("a {:?} frame instead of a control message", header.kind));
    }
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).await.map_err(|e| e.to_string())?;
    Control::decode(&payload).map_err(|e| e.to_string())
}

/// What a ticket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Where the gateway is dialled.
    pub address: String,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// The ticket's number.
    pub ticket: JobId,
    /// The ticket's secret.
    pub secret: Secret,
}

/// The newcomer's side: shows the ticket and the entry of site `site`, whose key this is; gives the sites file.
///
/// # Errors
/// [`ClientError`]: nobody answers, it is not the gateway of the ticket, or it refuses and says why.
pub async fn join(invitation: &Invitation, key: &SiteKey, site: &str, entry: &str) -> Result<String, ClientError> {
    let address = || invitation.address.clone();
    let wrong = |problem: String| ClientError::Join { address: address(), problem };
    let joining = async {
        let connect = |source| ClientError::Connect { address: address(), source };
        let tcp = TcpStream::connect(&invitation.address).await.map_err(connect)?;
        let session =
            TlsConfig::new(key).map_err(|e| wrong(e.to_string()))?.dial().map_err(|e| wrong(e.to_string()))?;
        let mut stream = TlsStream::handshake(tcp, session).await.map_err(|e| wrong(e.to_string()))?;
        let presented = stream.session().peer();
        if presented != Some(invitation.fingerprint) {
            let shown = presented.map_or("no key".to_owned(), |key| key.to_string());
            return Err(wrong(format!("it is not the gateway that the ticket is from: it shows {shown}")));
        }
        let nowhere = Address::standalone(std::net::SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0));
        let hello = Hello {
            purpose: Purpose::Join,
            job: invitation.ticket,
            from: nowhere,
            to: nowhere,
            site: site.to_owned(),
            gateway: String::new(),
            link: 0,
        };
        let shaken = initiate(&mut stream, hello, &invitation.secret).await;
        shaken.map_err(|source| ClientError::Handshake { address: address(), source })?;
        write(&mut stream, &Control::Join { entry: entry.to_owned() }).await.map_err(wrong)?;
        match read(&mut stream, MAX_SITES).await.map_err(wrong)? {
            Control::Joined { sites: Some(text), .. } => Ok(text),
            Control::Joined { problem, .. } => Err(wrong(problem)),
            _ => Err(wrong("an answer to another question".to_owned())),
        }
    };
    let limit = CONNECT_TIMEOUT * 2;
    match timeout(limit, joining).await {
        Ok(result) => result,
        Err(_) => Err(ClientError::Timeout { address: address(), what: "joining", seconds: limit.as_secs() }),
    }
}
