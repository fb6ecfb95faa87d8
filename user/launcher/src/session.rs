//! An open job, as its launcher sees it: the connections to gateways of the user's own site, and messages to agents.

use std::collections::BTreeSet;
use std::time::Duration;

use channel::Route;
use client::{ClientError, Connections, Entry, Frame, News, Role};
use job::message::Up;
use member::Post;
use serde::Serialize;
use tokio::time::{Instant, timeout};
use types::{Identity, JobId, Roster};
use wire::control::{JobMessage, Part};
use wire::{Control, FrameKind, Secret};

use super::deadline::until;
use super::suspects::Suspects;
use losses::RollCall;

mod connection;
mod error;
mod losses;
mod sites;

pub use connection::Connection;
pub use error::SessionError;
pub use sites::{Sites, dialled};

/// An open job, as its launcher sees it.
pub struct Session {
    job: JobId,
    secret: Secret,
    home: String,
    gateway: String,
    /// The site's other gateways, until they are dialled.
    others: Vec<client::Gateway>,
    /// Names of the gateways that were dialled before [`Session::gateway`] and have not answered. The user has not been
    /// notified of them yet.
    silent: Vec<String>,
    /// Names of the sites that have several gateways.
    several: BTreeSet<String>,
    roster: Roster,
    role: Role,
    /// The part of the gateways that lead the job.
    part: Part,
    /// Names of the other gateways in use; the first one has number 1.
    named: Vec<String>,
    post: Post,
    connections: Connections,
    /// Zero of the post's clock.
    since: Instant,
    suspects: Suspects,
    /// After the last loss of a gateway: the time at which agents are asked whether they are still there.
    roll_call: Option<RollCall>,
    /// Gateways that have not confirmed the announced stop of this process.
    unaware: BTreeSet<usize>,
    /// True once all sites have opened the job and the other gateways have been asked to relay.
    relayed: bool,
    /// True once the gateways have the order to close the job. They close their connections afterwards.
    closing: bool,
}

/// The gateway that first opened the job; it leads the job at the user's own site.
const LEAD: Route = Route(0);

/// An event of the session.
#[derive(Debug)]
pub enum Incoming {
    /// A message about the job from the gateway with this number. Number 0 leads the job.
    Job(usize, JobMessage),
    /// The gateway with this number is connected, perhaps not for the first time.
    GatewayOpen(usize),
    /// The gateway with this number is lost, for this reason. Others are still connected.
    GatewayLost(usize, String),
    /// An own gateway has ended a silence, which `reason` describes. `alone`: no other own gateway served the job
    /// meanwhile, so other sites may have given it up.
    GatewayBack {
        /// The gateway and the length of its silence.
        reason: String,
        /// True if all other own gateways are silent or not connected.
        alone: bool,
    },
    /// A note for the user.
    Note(String),
    /// A message from an agent.
    Up(Identity, Up),
}

impl Session {
    /// Queues a message to an agent; [`Session::flush`] sends it.
    pub fn send<M: Serialize>(&mut self, to: Identity, message: &M) -> Result<(), SessionError> {
        Ok(self.post.send(to, message)?)
    }

    /// Counts output of an agent as queued here, so that the agent stops sending more.
    pub fn hold(&mut self, agent: Identity, bytes: u64) {
        self.post.hold(agent, bytes);
    }

    /// Counts queued output of an agent as handled.
    pub fn release(&mut self, agent: Identity, bytes: u64) {
        self.post.release(agent, bytes);
    }

    /// True if more messages may be queued for an agent. Urgent messages are sent in any case.
    pub fn has_room(&self, agent: Identity) -> bool {
        self.post.has_room(agent)
    }

    /// Sends all queued messages that may be sent now.
    pub fn flush(&mut self) {
        while let Some((route, header, payload)) = self.post.next_frame(self.now_ns()) {
            self.connections.send(usize::from(route.0), header, payload);
        }
    }

    /// Asks the other gateways of all sites to relay the job's frames too.
    pub fn open_relays(&mut self, roster: &Roster, window: u32) {
        let open = open_message(self.job, &self.secret, roster, &self.home, self.part.relay(window));
        let lead = usize::from(LEAD.0);
        self.relayed = true;
        self.roll_call = self.part.has_agents().then(|| RollCall::routine(Instant::now()));
        self.connections.control(lead, open.clone());
        // After a restart, the lead is only one more relaying gateway.
        self.connections.reopen_with(lead, open.clone());
        if self.others.is_empty() {
            // An only gateway that was restarted does not know the job, and refuses it. One of several would relay the
            // job, though nobody leads it any longer.
            self.connections.returns(lead);
        }
        for gateway in std::mem::take(&mut self.others) {
            self.named.push(gateway.name.clone());
            self.connections.add(Entry { gateway, role: self.role.clone(), opening: Some(open.clone().into()) });
        }
    }

    /// Announces to the gateways that this process will stop, or that it runs again.
    pub fn stop(&mut self, stopped: bool) {
        self.unaware = self.connections.open().collect();
        let message = JobMessage::Stopped { job: self.job, stopped };
        self.unaware.iter().for_each(|gateway| self.connections.control(*gateway, message.clone()));
    }

    /// True if all gateways have confirmed the announced stop.
    pub fn is_stop_known(&self) -> bool {
        self.unaware.is_empty()
    }

    /// Notes for the user about own gateways that have not answered.
    pub fn notes(&mut self) -> Vec<String> {
        let note = |name| format!("site {}: gateway {name} did not answer in time; the job ran without it", self.home);
        self.silent.drain(..).map(note).collect()
    }

    /// Orders the gateways to close the job. Returns the numbers of the gateways that will confirm it.
    pub fn close(&mut self) -> Vec<usize> {
        self.closing = true;
        self.roll_call = None;
        let open: Vec<usize> = self.connections.open().collect();
        open.iter().for_each(|gateway| self.connections.control(*gateway, JobMessage::close(self.job)));
        open
    }

    /// Closes the job everywhere. Waits for the confirmations, but not longer than `limit`; after that, the gateways
    /// close it by themselves.
    pub async fn end(mut self, limit: Duration) {
        let mut closing = self.close();
        let closed = async {
            while !closing.is_empty() {
                self.flush();
                for incoming in self.next().await? {
                    if let Incoming::GatewayLost(gateway, _) | Incoming::Job(gateway, JobMessage::Closed { .. }) =
                        incoming
                    {
                        closing.retain(|open| *open != gateway);
                    }
                }
            }
            Ok::<(), SessionError>(())
        };
        let _ = timeout(limit, closed).await;
    }

    /// The number and the secret with which members prove that they belong to the job.
    pub fn credentials(&self) -> (JobId, Secret) {
        (self.job, self.secret.clone())
    }

    fn lost(&self, gateway: usize, source: ClientError) -> SessionError {
        SessionError::Gateway { site: self.home.clone(), gateway: self.name_of(gateway).to_owned(), source }
    }

    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn name_of(&self, gateway: usize) -> &str {
        gateway.checked_sub(1).and_then(|at| self.named.get(at)).unwrap_or(&self.gateway)
    }

    /// The next events. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<Incoming>, SessionError> {
        let (suspects, roll_call) = (self.suspects.next(), self.roll_call.as_ref().map(|call| call.at));
        let (gateway, news) = tokio::select! {
            next = self.connections.next() => next,
            () = until(roll_call) => {
                self.call_the_roll();
                return Ok(self.look_at_suspects());
            }
            // The caller flushes next.
            () = job::until(self.since, self.post.next_tick_ns()) => return Ok(Vec::new()),
            () = until(suspects) => return Ok(self.look_at_suspects()),
        };
        let route = Route(gateway as u8);
        match news {
            News::Frame(frame) => self.frame(gateway, frame),
            News::Open => {
                self.post.route_open(route);
                let name = self.name_of(gateway).to_owned();
                self.silent.retain(|silent| *silent != name);
                Ok(vec![Incoming::GatewayOpen(gateway)])
            }
            News::Back(seconds) => {
                let reason = format!("gateway {}: no sign of life for {seconds} s", self.name_of(gateway));
                let alone = self.connections.open().all(|other| other == gateway || self.connections.is_silent(other));
                Ok(vec![Incoming::GatewayBack { reason, alone }])
            }
            News::Failed(error) => {
                let (site, gateway) = (&self.home, self.name_of(gateway).to_owned());
                let text = format!("site {site}: gateway {gateway} is not used: {error}");
                self.silent.retain(|silent| *silent != gateway);
                Ok(vec![Incoming::Note(text)])
            }
            News::Broken(_) => {
                self.post.route_lost(route);
                self.unaware.remove(&gateway);
                // The gateway's reports of losses may have been lost with the connection.
                self.call_the_roll_soon();
                Ok(Vec::new())
            }
            News::Lost(error) => {
                self.post.route_lost(route);
                self.unaware.remove(&gateway);
                if self.connections.open().next().is_none() && !self.closing {
                    return Err(match error {
                        ClientError::Left { .. } => SessionError::Closed(self.home.clone()),
                        error => self.lost(gateway, error),
                    });
                }
                self.call_the_roll_soon();
                Ok(vec![Incoming::GatewayLost(gateway, self.lost(gateway, error).to_string())])
            }
        }
    }

    fn frame(&mut self, gateway: usize, Frame { header, payload }: Frame) -> Result<Vec<Incoming>, SessionError> {
        if header.kind != FrameKind::Control {
            let (from, now_ns) = (header.from, self.now_ns());
            let messages = self.post.take(Route(gateway as u8), &header, &payload, now_ns)?;
            let confirmed = match header.kind {
                FrameKind::Undeliverable => self.suspects.undelivered(from, gateway, self.connections.open()),
                FrameKind::Answer => {
                    self.answered(from);
                    None
                }
                _ => None,
            };
            let confirmed = confirmed.map(|(gateway, report)| Incoming::Job(gateway, report));
            return Ok(messages.into_iter().map(|message| Incoming::Up(from, message)).chain(confirmed).collect());
        }
        let address = || self.name_of(gateway).to_owned();
        let unreadable = |source| self.lost(gateway, ClientError::Wire { address: address(), source });
        match Control::decode(&payload).map_err(unreadable)? {
            Control::Job(message) => Ok(self.job_message(gateway, message)),
            // Reports about the wait for nodes. They are late: the nodes have been granted.
            Control::Allocation(_) => Ok(Vec::new()),
            other => {
                tracing::warn!(gateway = address(), ?other, "not a message about the job");
                Ok(Vec::new())
            }
        }
    }
}

fn open_message(job: JobId, secret: &Secret, roster: &Roster, home: &str, part: Part) -> JobMessage {
    JobMessage::Open { job, secret: secret.clone(), roster: roster.clone(), home: home.to_owned(), part }
}
