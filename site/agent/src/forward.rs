//! The far end: an agent that connects streams to the targets that its site allows.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use channel::Route;
use client::Frame;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use types::Identity;
use types::sites::{Forward, Target};

use crate::error::AgentError;
use crate::membership::{Lifeline, Membership};
use job::forward::streams::Streams;
use job::forward::{MOST, Piece};
use job::host_name;
use job::message::{Down, Up};
use job::order::Order;

/// Time limit for connecting to a target.
const DIAL: Duration = Duration::from_secs(10);

/// A stream's number, and the outcome of dialling its target.
type Dialled = (u32, Result<TcpStream, NotConnected>);

/// Reasons why a stream has no connection to its target.
#[derive(Debug, Error)]
enum NotConnected {
    #[error("{target}, dialled from {machine}: {error}")]
    Refused { target: Target, machine: String, error: io::Error },
    #[error("{target}, dialled from {machine}: no answer within {} s", DIAL.as_secs())]
    Silent { target: Target, machine: String },
    /// The stream cannot use the connection.
    #[error(transparent)]
    Socket(io::Error),
}

/// Connects streams to their targets until the job is over.
///
/// # Errors
/// As [`crate::run`].
pub(crate) async fn work(
    order: Order,
    allowed: Forward,
    lifeline: oneshot::Receiver<Lifeline>,
) -> Result<(), AgentError> {
    let (membership, _) = Membership::join(&order, lifeline).await?;
    let (sink, mut dialled) = mpsc::channel(MOST);
    let mut far = Far {
        launcher: order.launcher(),
        membership,
        allowed,
        streams: Streams::default(),
        dialling: HashMap::new(),
        dialled: sink,
        finished: false,
    };
    far.membership.send(far.launcher, &Up::Here)?;
    while !far.finished {
        let room = far.membership.has_room(far.launcher);
        tokio::select! {
            biased;
            frame = far.membership.next() => if let Some((route, frame)) = frame? {
                far.frame(route, &frame)?;
            },
            Some((stream, outcome)) = dialled.recv() => far.connected(stream, outcome)?,
            event = far.streams.next(), if room => {
                if let Some(piece) = far.streams.piece(event) {
                    far.send(piece)?;
                }
            }
        }
    }
    far.membership.leave().await;
    Ok(())
}

struct Far {
    launcher: Identity,
    membership: Membership,
    allowed: Forward,
    streams: Streams,
    dialling: HashMap<u32, JoinHandle<()>>,
    dialled: mpsc::Sender<Dialled>,
    finished: bool,
}

impl Far {
    fn send(&mut self, piece: Piece) -> Result<(), AgentError> {
        self.membership.send(self.launcher, &Up::Forward(piece))
    }

    fn frame(&mut self, route: Route, frame: &Frame) -> Result<(), AgentError> {
        let from = frame.header.from;
        for message in self.membership.take::<Down>(route, frame)? {
            if from != self.launcher {
                return Err(AgentError::Message { from, problem: "only the launcher forwards ports" });
            }
            self.down(message)?;
        }
        Ok(())
    }

    fn down(&mut self, message: Down) -> Result<(), AgentError> {
        let from = self.launcher;
        match message {
            Down::Forward(Piece::Check { target }) => {
                let problem = self.refusal(&target);
                self.send(Piece::Checked { problem })
            }
            Down::Forward(Piece::Open { stream, target }) => self.open(stream, target),
            Down::Forward(Piece::Reset { stream, .. }) => {
                if let Some(task) = self.dialling.remove(&stream) {
                    task.abort();
                }
                self.streams.reset(stream);
                Ok(())
            }
            Down::Forward(piece) => self.streams.receive(piece).map_err(|misuse| {
                tracing::warn!(%misuse, "the launcher broke the rules");
                AgentError::Message { from, problem: "broke the rules of a stream" }
            }),
            Down::Finish | Down::Kill { .. } => {
                self.finished = true;
                Ok(())
            }
            _ => Err(AgentError::Message { from, problem: "this agent forwards ports and runs no ranks" }),
        }
    }

    /// The reason for refusing a target; `None` if it is allowed.
    fn refusal(&self, target: &Target) -> Option<String> {
        (!self.allowed.allows(target)).then(|| {
            format!(
                "{target} is not allowed: `[site.forward]` in the sites file of its gateway allows {}",
                self.allowed
            )
        })
    }

    fn open(&mut self, stream: u32, target: Target) -> Result<(), AgentError> {
        if self.streams.contains(stream) || self.dialling.contains_key(&stream) {
            let problem = "opened a stream twice";
            return Err(AgentError::Message { from: self.launcher, problem });
        }
        let crowded = self.streams.count() + self.dialling.len() >= MOST;
        let crowded = crowded.then(|| format!("{MOST} connections are open already"));
        if let Some(reason) = crowded.or_else(|| self.refusal(&target)) {
            return self.send(Piece::Reset { stream, reason });
        }
        let sink = self.dialled.clone();
        let place = target.to_string();
        let task = tokio::spawn(async move {
            let connecting = timeout(DIAL, client::dial::dial(&place));
            let outcome = match connecting.await {
                Ok(Ok(tcp)) => Ok(tcp),
                // A site with several gateways dials targets from several machines.
                Ok(Err(error)) => Err(NotConnected::Refused { target, machine: host_name(), error }),
                Err(_) => Err(NotConnected::Silent { target, machine: host_name() }),
            };
            let _ = sink.send((stream, outcome)).await;
        });
        self.dialling.insert(stream, task);
        Ok(())
    }

    fn connected(&mut self, stream: u32, outcome: Result<TcpStream, NotConnected>) -> Result<(), AgentError> {
        // The stream was reset meanwhile, so its connection is dropped.
        if self.dialling.remove(&stream).is_none() {
            return Ok(());
        }
        let added = outcome.and_then(|tcp| self.streams.add_tcp(stream, tcp, true).map_err(NotConnected::Socket));
        self.send(match added {
            Ok(()) => Piece::Opened { stream },
            Err(error) => Piece::Reset { stream, reason: error.to_string() },
        })
    }
}
