//! A connection to a gateway of the user's own site, before a job is opened over it.

use std::collections::BTreeSet;
use std::time::Duration;

use client::{Client, ClientError, Connections, Entry, Receiver, Role, Sender};
use member::Post;
use tokio::time::{Instant, timeout};
use types::{Identity, JobId, Roster, SiteId, Slot};
use wire::control::{AllocationMessage, JobMessage, NodeAsk, Part};
use wire::{Control, FrameKind, Secret};

use super::sites::dialled;
use super::{LEAD, Session, SessionError, Sites, open_message};
use crate::suspects::Suspects;

/// A connection over which a job is about to be opened.
pub struct Connection {
    job: JobId,
    secret: Secret,
    home: String,
    gateway: client::Gateway,
    /// The site's other gateways.
    others: Vec<client::Gateway>,
    /// Names of the gateways that were dialled earlier and have not answered.
    silent: Vec<String>,
    /// Names of the sites that have several gateways.
    several: BTreeSet<String>,
    role: Role,
    receiver: Receiver,
    sender: Sender,
    /// Sites that have been asked for nodes and have not refused.
    asked: Vec<String>,
}

/// A launcher's identity before it has opened its job.
const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Connection {
    /// Connects to a gateway of the user's own site.
    pub async fn new(sites: &Sites, home: &str) -> Result<Connection, SessionError> {
        let site = sites.site(home)?;
        let (client, name, silent) = sites.reach(site).await?;
        let others = site.gateways.iter().filter(|other| other.name != name).map(|other| dialled(site, other));
        let others = others.collect();
        let (address, keys) = (client.address().to_owned(), Some(site.keys()));
        let gateway = client::Gateway { site: home.to_owned(), name, address, keys };
        let role = Role::Client { secret: sites.client_secret(site)? };
        let (receiver, sender) = client.split();
        let (job, secret) = random()?;
        let home = home.to_owned();
        let several = sites.file.sites.iter().filter(|site| site.gateways.len() > 1);
        let several = several.map(|site| site.name.clone()).collect();
        let asked = Vec::new();
        Ok(Connection { job, secret, home, gateway, others, silent, several, role, receiver, sender, asked })
    }

    /// Asks a site for nodes. Not cancel-safe.
    pub async fn ask(&mut self, site: &str, ask: NodeAsk) -> Result<(), SessionError> {
        self.asked.push(site.to_owned());
        let (job, site, home) = (self.job, site.to_owned(), self.home.clone());
        self.control(AllocationMessage::Ask { job, site, home, ask }).await
    }

    /// The gateway's next message. Cancel-safe.
    pub async fn next(&mut self) -> Result<Control, SessionError> {
        loop {
            let frame = self.receiver.receive().await;
            let Some(frame) = frame.map_err(|source| self.lost(source))? else {
                return Err(SessionError::Closed(self.home.clone()));
            };
            if frame.header.kind == FrameKind::Control {
                let control = self.receiver.control(&frame).map_err(|source| self.lost(source))?;
                if let Control::Job(JobMessage::Refused { site, .. } | JobMessage::Closed { site, .. }) = &control {
                    self.asked.retain(|asked| asked != site);
                }
                return Ok(control);
            }
        }
    }

    /// Gives the requested nodes back. Waits for the confirmation, but not longer than `limit`.
    pub async fn give_back(mut self, limit: Duration) {
        let all = async {
            self.control(JobMessage::close(self.job)).await?;
            while !self.asked.is_empty() {
                self.next().await?;
            }
            Ok::<(), SessionError>(())
        };
        // On a timeout or a failure, the gateway gives them back by itself.
        let _ = timeout(limit, all).await;
    }

    /// Opens a job with this roster. `part`: the part of the gateways in it.
    pub async fn open(mut self, roster: &Roster, part: Part) -> Result<Session, SessionError> {
        let place = roster.sites().iter().position(|site| site.name == self.home);
        let place = place.ok_or_else(|| SessionError::NotInRoster(self.home.clone()))?;
        let me = Identity { site: SiteId(place as u16), slot: Slot::LAUNCHER };
        self.control(open_message(self.job, &self.secret, roster, &self.home, part)).await?;
        let mut post = Post::new(self.job, me, self.sender.welcome().max_payload);
        post.route_open(LEAD);
        let Connection { job, secret, home, gateway, others, silent, several, role, receiver, sender, .. } = self;
        let entry = Entry { gateway: gateway.clone(), role: role.clone(), opening: None };
        let gateway = gateway.name;
        let connections = Connections::new(me, Client::joined(receiver, sender), entry);
        Ok(Session {
            job,
            secret,
            home,
            gateway,
            others,
            silent,
            several,
            roster: roster.clone(),
            role,
            part,
            named: Vec::new(),
            post,
            connections,
            since: Instant::now(),
            suspects: Suspects::default(),
            roll_call: None,
            unaware: BTreeSet::new(),
            relayed: false,
            closing: false,
        })
    }

    async fn control(&mut self, message: impl Into<Control>) -> Result<(), SessionError> {
        self.sender.send_control(NOBODY, message).await.map_err(|source| self.lost(source))
    }

    fn lost(&self, source: ClientError) -> SessionError {
        SessionError::Gateway { site: self.home.clone(), gateway: self.gateway.name.clone(), source }
    }
}

fn random() -> Result<(JobId, Secret), SessionError> {
    let (mut job, mut secret) = ([0; 4], [0; 32]);
    for bytes in [&mut job[..], &mut secret[..]] {
        getrandom::fill(bytes).map_err(|e| SessionError::Random(e.to_string()))?;
    }
    // Zero means "outside any job".
    Ok((JobId(u32::from_le_bytes(job).max(1)), Secret::new(secret)))
}
