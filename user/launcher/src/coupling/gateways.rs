//! The helper's connections to the gateways of its own site.

use client::{ClientError, Connections, Entry, Frame, News, Role};
use tokio::time::Instant;
use wire::control::coupling::CouplingMessage;
use wire::{Control, FrameKind};

use super::{CouplingError, CouplingRequest, NOBODY, RETURN};
use crate::SessionError;
use crate::deadline::until;
use crate::session::dialled;

/// The connections to the gateways of the own site. A message goes through all of them, so that none is missed.
pub(super) struct Gateways {
    pub(super) site: String,
    pub(super) connections: Connections,
    /// Time since which none is connected, and why the last one was lost.
    lost: Option<(Instant, ClientError)>,
    /// The last time when none was connected, since the coupling began: why the last one was lost.
    pub(super) outage: Option<String>,
}

impl Gateways {
    /// Connects to the first gateway that answers, and then to the others.
    pub(super) async fn connect(request: &CouplingRequest) -> Result<Gateways, SessionError> {
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

    pub(super) fn send(&self, message: &CouplingMessage) {
        self.connections.all().for_each(|gateway| self.connections.control(gateway, message.clone()));
    }

    /// Posts this side; also at gateways that are connected later.
    pub(super) fn post(&self, post: &CouplingMessage) {
        self.connections.all().for_each(|gateway| self.connections.reopen_with(gateway, post.clone()));
        self.send(post);
    }

    /// The next message about couplings; `None` when the last connected gateway is lost. Cancel-safe.
    ///
    /// # Errors
    /// A gateway does not follow the protocol, or no gateway has been connected for a while.
    pub(super) async fn next(&mut self) -> Result<Option<CouplingMessage>, CouplingError> {
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
                // A helper does not return by itself: its losses are reported at once.
                News::Lost(_) | News::Broken(_) | News::Failed(_) | News::Back(_) => {}
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
