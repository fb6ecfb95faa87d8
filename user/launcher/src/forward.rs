//! The near end: a launcher that accepts connections and lets the far end connect each of them to the target.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use client::patience::patiently_here;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use types::roster::{FORWARDER, RosterError};
use types::sites::Target;
use types::{Identity, NodeId, NodeRoster, Roster, SiteId, SiteRoster, Slot};
use wire::control::{JobMessage, Part};

use crate::deadline::{CLOSE, OPEN};
use crate::own_gateways::OwnGateways;
use crate::session::{Connection, Incoming, Session};
use crate::{SessionError, Sites};
use job::forward::streams::Streams;
use job::forward::{MOST, Piece};
use job::message::{Down, Up};
use job::signals::{self, Signals};

/// The port to reach.
#[derive(Clone, Debug)]
pub struct ForwardRequest {
    pub sites: Sites,
    /// The user's own site.
    pub home: String,
    /// The site of the target.
    pub site: String,
    pub target: Target,
}

/// The connections to carry to the target.
pub enum Near {
    /// Every connection to this listener.
    Listener(TcpListener),
    /// One byte stream, given by its two halves. The forward ends with it.
    Stream(Box<dyn AsyncRead + Unpin + Send>, Box<dyn AsyncWrite + Unpin + Send>),
}

/// Reasons why a forward could not be opened, or why it ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForwardError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Roster(#[from] RosterError),
    #[error("signals: {0}")]
    Signals(io::Error),
    #[error("site {site}: {reason}")]
    Site { site: String, reason: String },
    #[error("site {site}: did not open the forward within {seconds} s; `landbridge sites check` shows what works")]
    Slow { site: String, seconds: u64 },
    #[error("interrupted")]
    Interrupted(i32),
}

/// Runs a forward until it is interrupted or its one stream has ended. `ready` is called once, when the target's site
/// is connected and allows the target. `note` gets the problems of single connections.
///
/// # Errors
/// [`ForwardError`].
pub async fn run(
    request: ForwardRequest,
    near: Near,
    ready: impl FnOnce(),
    note: impl FnMut(String),
) -> Result<(), ForwardError> {
    let mut interrupts = Signals::catch(&signals::ENDING).map_err(ForwardError::Signals)?;
    let (roster, far) = roster(&request.home, &request.site)?;
    let connection = Connection::new(&request.sites, &request.home).await?;
    let mut open = Open {
        session: connection.open(&roster, Part::Lead).await?,
        roster,
        far,
        site: request.site,
        target: request.target,
        streams: Streams::default(),
        last: 0,
        gateways: OwnGateways::new(&request.home),
        note,
    };
    let result = tokio::select! {
        signal = interrupts.next() => Err(ForwardError::Interrupted(signal)),
        result = open.forward(near, ready) => result,
    };
    open.close().await;
    result
}

/// The roster of a forward: one node at the target's site, the gateway's machine, and no node at home. Also returns the
/// far end's identity.
fn roster(home: &str, site: &str) -> Result<(Roster, Identity), RosterError> {
    let far = SiteRoster { name: site.to_owned(), nodes: vec![NodeRoster { name: FORWARDER.to_owned(), ranks: 0 }] };
    let mut sites = vec![far];
    if home != site {
        sites.push(SiteRoster { name: home.to_owned(), nodes: Vec::new() });
    }
    let slot = Slot::agent(NodeId(0)).unwrap_or(Slot::LAUNCHER);
    Ok((Roster::new(sites)?, Identity { site: SiteId(0), slot }))
}

/// An open forward.
struct Open<N> {
    session: Session,
    roster: Roster,
    far: Identity,
    site: String,
    target: Target,
    streams: Streams,
    /// The number of the latest stream.
    last: u32,
    gateways: OwnGateways,
    note: N,
}

impl<N: FnMut(String)> Open<N> {
    async fn forward(&mut self, near: Near, ready: impl FnOnce()) -> Result<(), ForwardError> {
        let site = self.site.clone();
        let opened = patiently_here(OPEN, self.prepare()).await;
        opened.map_err(|waited| ForwardError::Slow { site, seconds: waited.as_secs() })??;
        ready();
        let mut listener = None;
        match near {
            Near::Listener(accepting) => listener = Some(accepting),
            Near::Stream(read, write) => {
                self.last = 1;
                self.streams.add(1, read, write, None, false);
                self.send(Piece::Open { stream: 1, target: self.target.clone() })?;
            }
        }
        while listener.is_some() || self.streams.count() > 0 {
            self.session.flush();
            let room = self.session.has_room(self.far);
            tokio::select! {
                biased;
                incoming = self.session.next() => {
                    for incoming in incoming? {
                        if let Some(piece) = self.incoming(incoming)? {
                            self.piece(piece, listener.is_some())?;
                        }
                    }
                }
                event = self.streams.next(), if room => {
                    if let Some(piece) = self.streams.piece(event) {
                        self.send(piece)?;
                    }
                }
                accepted = accept(listener.as_ref()), if room && self.streams.count() < MOST => {
                    self.accepted(accepted)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until all sites have opened the job and the far end has confirmed the target.
    async fn prepare(&mut self) -> Result<(), ForwardError> {
        let (mut opened, mut least) = (BTreeSet::new(), u32::MAX);
        let mut relays = false;
        loop {
            self.session.flush();
            for incoming in self.session.next().await? {
                if let Incoming::Job(_, JobMessage::Opened { site, window, .. }) = &incoming {
                    opened.insert(site.clone());
                    least = least.min(*window);
                }
                match self.incoming(incoming)? {
                    Some(Piece::Checked { problem: None }) => return Ok(()),
                    Some(Piece::Checked { problem: Some(reason) }) => return Err(self.failed(reason)),
                    _ => {}
                }
            }
            if opened.len() == self.roster.sites().len() && !relays {
                relays = true;
                self.session.open_relays(&self.roster, least);
                // The post keeps this message until the far end is connected.
                self.send(Piece::Check { target: self.target.clone() })?;
            }
        }
    }

    fn failed(&self, reason: impl Into<String>) -> ForwardError {
        ForwardError::Site { site: self.site.clone(), reason: reason.into() }
    }

    fn send(&mut self, piece: Piece) -> Result<(), ForwardError> {
        Ok(self.session.send(self.far, &Down::Forward(piece))?)
    }

    /// Handles a report about the job. Returns the piece that the far end sent, if there is one.
    fn incoming(&mut self, incoming: Incoming) -> Result<Option<Piece>, ForwardError> {
        match incoming {
            Incoming::Up(from, Up::Forward(piece)) if from == self.far => return Ok(Some(piece)),
            Incoming::Up(..) | Incoming::GatewayBack { .. } => {}
            Incoming::Note(text) => (self.note)(text),
            Incoming::GatewayOpen(gateway) => self.gateways.connected(gateway),
            Incoming::GatewayLost(gateway, reason) => {
                self.gateways.disconnected(gateway);
                self.check_reached(reason)?;
            }
            Incoming::Job(gateway, message) => match message {
                JobMessage::Refused { site, reason, .. } => return Err(ForwardError::Site { site, reason }),
                JobMessage::AgentLost { site, reason, .. } => {
                    let reason = format!("its end of the forward ended: {reason}");
                    return Err(ForwardError::Site { site, reason });
                }
                JobMessage::MemberLost { reason, .. } => return Err(self.failed(reason)),
                JobMessage::SiteLost { site, seen_from, reason, .. } => {
                    self.gateways.lost(gateway, &seen_from, &site);
                    self.check_reached(reason)?;
                }
                JobMessage::SiteFound { site, .. } => self.gateways.found(gateway, &site),
                JobMessage::Closed { site, led: true, .. } => {
                    return Err(ForwardError::Site { site, reason: "its gateway closed the forward".to_owned() });
                }
                _ => {}
            },
        }
        Ok(None)
    }

    /// Fails when no gateway of the own site reaches the target's site. No third site takes part.
    fn check_reached(&self, reason: String) -> Result<(), ForwardError> {
        match self.gateways.unreached() {
            Some(site) => {
                let reason = format!("all routes to it were lost: {reason}");
                Err(ForwardError::Site { site: site.to_owned(), reason })
            }
            None => Ok(()),
        }
    }

    /// Handles a piece from the far end. `listening`: true if a failed connection does not end the forward.
    fn piece(&mut self, piece: Piece, listening: bool) -> Result<(), ForwardError> {
        match piece {
            Piece::Opened { stream } => self.streams.opened(stream),
            Piece::Reset { stream, reason } => {
                if self.streams.reset(stream) {
                    if !listening {
                        return Err(self.failed(reason));
                    }
                    (self.note)(format!("site {}: connection reset: {reason}", self.site));
                }
            }
            piece => self.streams.receive(piece).map_err(|misuse| self.failed(misuse.to_string()))?,
        }
        Ok(())
    }

    fn accepted(&mut self, accepted: io::Result<TcpStream>) -> Result<(), ForwardError> {
        self.last += 1;
        let stream = self.last;
        match accepted.and_then(|tcp| self.streams.add_tcp(stream, tcp, false)) {
            Ok(()) => self.send(Piece::Open { stream, target: self.target.clone() }),
            Err(error) => {
                (self.note)(format!("cannot accept a connection: {error}"));
                Ok(())
            }
        }
    }

    /// Closes the job everywhere.
    async fn close(mut self) {
        let _ = self.session.send(self.far, &Down::Finish);
        self.session.flush();
        self.session.end(CLOSE).await;
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        // Usually the process is out of descriptors. The forward goes on, and retries after a pause.
        Some(listener) => match listener.accept().await {
            Ok((tcp, _)) => Ok(tcp),
            Err(error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(error)
            }
        },
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_a_job_without_ranks() {
        let (two, far) = roster("lyon", "kyoto").unwrap();
        assert_eq!((two.size(), two.to_string().as_str()), (0, "kyoto:_gateway*0;lyon:"));
        assert_eq!(far, Identity { site: SiteId(0), slot: Slot::agent(NodeId(0)).unwrap() });
        let (one, _) = roster("lyon", "lyon").unwrap();
        assert_eq!(one.to_string(), "lyon:_gateway*0");
    }
}
