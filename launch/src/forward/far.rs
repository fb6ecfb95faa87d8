//! The far end: an agent that connects streams to the targets its site allows.

use std::collections::HashMap;
use std::time::Duration;

use channel::Route;
use client::{ClientError, Frame, News};
use member::Post;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use types::sites::{Forward, Target};
use wire::{FrameKind, Passage};

use super::streams::Streams;
use super::{MOST, Piece};
use crate::agent::{AgentError, GOODBYE, Joined, Lifeline, join};
use crate::message::{Down, Up};
use crate::order::Order;

/// How long connecting to a target may take.
const DIAL: Duration = Duration::from_secs(10);

/// A target that was dialled for a stream, and what came of it.
type Dialled = (u32, Result<TcpStream, String>);

/// Connects streams until the job is over.
///
/// # Errors
/// As [`crate::agent::run`].
pub(crate) async fn work(
    order: Order,
    allowed: Forward,
    mut lifeline: oneshot::Receiver<Lifeline>,
) -> Result<(), AgentError> {
    let system = |what| move |source| AgentError::System { what, source };
    let mut terminate = signal(SignalKind::terminate()).map_err(system("signals"))?;
    let _heard = signal(SignalKind::hangup()).map_err(system("signals"))?;
    let Joined { mut connections, max_payload, .. } = join(&order).await?;
    let me = order.identity()?;
    let (sink, mut dialled) = mpsc::channel(MOST);
    let mut post = Post::new(order.job, me, max_payload);
    post.route_open(Route(0));
    let mut far = Far {
        post,
        order,
        since: Instant::now(),
        allowed,
        streams: Streams::new(),
        dialling: HashMap::new(),
        dialled: sink,
        finished: false,
    };
    far.post.send(far.order.launcher(), &Up::Here)?;
    let mut torn = false;
    while !far.finished {
        while let Some((route, header, payload)) = far.post.next_frame(far.now_ns()) {
            connections.send(usize::from(route.0), header, payload);
        }
        let room = far.post.has_room(far.order.launcher());
        tokio::select! {
            biased;
            (gateway, news) = connections.next() => match news {
                News::Open => far.post.route_open(Route(gateway as u8)),
                News::Frame(frame) => far.frame(Route(gateway as u8), &frame)?,
                News::Failed(error) => tracing::debug!(%error, "gateway not used"),
                News::Lost(error) => {
                    far.post.route_lost(Route(gateway as u8));
                    if connections.open().next().is_none() {
                        return Err(error.into());
                    }
                }
            },
            cut = &mut lifeline, if !torn => {
                torn = cut == Ok(Lifeline::Torn) && connections.open().any(|gateway| gateway > 0);
                if !torn {
                    return Err(AgentError::Orphaned("the gateway that started this agent"));
                }
            }
            _ = terminate.recv() => return Err(AgentError::Orphaned("this agent's keeper")),
            () = crate::until(far.since, far.post.next_tick_ns()) => {}
            Some((stream, outcome)) = dialled.recv() => far.connected(stream, outcome)?,
            event = far.streams.next(), if room => {
                if let Some(piece) = far.streams.piece(event) {
                    far.send(piece)?;
                }
            }
        }
    }
    connections.goodbye(far.order.job, GOODBYE).await;
    Ok(())
}

struct Far {
    order: Order,
    post: Post,
    /// Times of the post count from here.
    since: Instant,
    allowed: Forward,
    streams: Streams,
    dialling: HashMap<u32, JoinHandle<()>>,
    dialled: mpsc::Sender<Dialled>,
    finished: bool,
}

impl Far {
    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn send(&mut self, piece: Piece) -> Result<(), AgentError> {
        Ok(self.post.send(self.order.launcher(), &Up::Forward(piece))?)
    }

    fn frame(&mut self, route: Route, Frame { header, payload }: &Frame) -> Result<(), AgentError> {
        let (from, now_ns) = (header.from, self.now_ns());
        match header.kind {
            FrameKind::Passage => {
                let address = self.order.gateways.first().map_or_else(String::new, |first| first.address.clone());
                let passage = Passage::decode(payload).map_err(|source| ClientError::Wire { address, source })?;
                self.post.passage(route, from.site, &passage);
            }
            FrameKind::Undeliverable => self.post.undeliverable(route, from, now_ns),
            FrameKind::Refused => self.post.refused(route, from, now_ns),
            kind if kind.acknowledges() => {
                let messages = self.post.receive::<Down>(route, header, payload, now_ns)?;
                if from != self.order.launcher() {
                    return Err(AgentError::Message { from, problem: "only the launcher forwards ports" });
                }
                messages.into_iter().try_for_each(|message| self.down(message))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn down(&mut self, message: Down) -> Result<(), AgentError> {
        let from = self.order.launcher();
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

    /// Why a target may not be reached.
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
            return Err(AgentError::Message { from: self.order.launcher(), problem });
        }
        let crowded = self.streams.len() + self.dialling.len() >= MOST;
        let crowded = crowded.then(|| format!("{MOST} connections are open already"));
        if let Some(reason) = crowded.or_else(|| self.refusal(&target)) {
            return self.send(Piece::Reset { stream, reason });
        }
        let sink = self.dialled.clone();
        let task = tokio::spawn(async move {
            let connecting = timeout(DIAL, TcpStream::connect((target.host.as_str(), target.port)));
            let outcome = match connecting.await {
                Ok(Ok(tcp)) => Ok(tcp),
                Ok(Err(error)) => Err(format!("{target}: {error}")),
                Err(_) => Err(format!("{target}: no answer within {} s", DIAL.as_secs())),
            };
            let _ = sink.send((stream, outcome)).await;
        });
        self.dialling.insert(stream, task);
        Ok(())
    }

    fn connected(&mut self, stream: u32, outcome: Result<TcpStream, String>) -> Result<(), AgentError> {
        // It was reset meanwhile: its connection closes.
        if self.dialling.remove(&stream).is_none() {
            return Ok(());
        }
        let added = outcome.and_then(|tcp| self.streams.add_tcp(stream, tcp, true).map_err(|error| error.to_string()));
        self.send(match added {
            Ok(()) => Piece::Opened { stream },
            Err(reason) => Piece::Reset { stream, reason },
        })
    }
}
