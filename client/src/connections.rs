//! A member's connections to the gateways of its site: what comes by any of them, and which are there.
//!
//! Each has a task of its own, which dials again when it is lost. The first is the one by which the member came.

use std::time::Duration;

use member::pulse::{GATEWAY_SILENCE_S, LOOK_NS};
use member::{Beat, Pulse};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use types::{Identity, JobId, Slot};
use wire::{Control, FrameHeader, FrameKind};

use crate::{Client, ClientError, Frame, Gateway, Receiver, Role, Sender};

/// When a gateway is dialled again: after its connection broke, and after it could not be had.
const SOON: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(1);

/// What became of a connection, or came by it.
#[derive(Debug)]
pub enum News {
    /// It is there.
    Open,
    /// A frame came.
    Frame(Frame),
    /// It was there, and is not any more.
    Lost(ClientError),
    /// It could not be had. Said once; it is tried again.
    Failed(ClientError),
}

/// A gateway to connect to.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is.
    pub gateway: Gateway,
    /// Who connects.
    pub role: Role,
    /// The first thing it is told.
    pub opening: Option<Control>,
}

/// What a task is to do. Windows bound how much there is.
#[derive(Debug)]
enum Errand {
    Frame(FrameHeader, Vec<u8>),
    Control(Control),
    Opening(Control),
    Goodbye(JobId),
}

#[derive(Debug)]
struct Connection {
    errands: UnboundedSender<Errand>,
    open: bool,
}

/// See the module. Dropped, all connections end.
#[derive(Debug)]
pub struct Connections {
    me: Identity,
    news: UnboundedReceiver<(usize, News)>,
    sink: UnboundedSender<(usize, News)>,
    connections: Vec<Connection>,
    tasks: tokio::task::JoinSet<()>,
}

impl Connections {
    /// Goes on with the connection by which this member came.
    pub fn new(me: Identity, first: Client, entry: Entry) -> Connections {
        let (sink, news) = unbounded_channel();
        let mut all = Connections { me, news, sink, connections: Vec::new(), tasks: tokio::task::JoinSet::new() };
        all.begin(Some(first), entry);
        all.connections[0].open = true;
        all
    }

    /// One more; gives its number.
    pub fn add(&mut self, entry: Entry) -> usize {
        self.begin(None, entry)
    }

    fn begin(&mut self, client: Option<Client>, entry: Entry) -> usize {
        let number = self.connections.len();
        let (errands, list) = unbounded_channel();
        let task = Task { number, entry, me: self.me, errands: list, news: self.sink.clone(), told: false };
        self.tasks.spawn(task.run(client));
        self.connections.push(Connection { errands, open: false });
        number
    }

    /// What came next, and by which. May be dropped before it is done.
    pub async fn next(&mut self) -> (usize, News) {
        // The list does not end: we hold its other end ourselves.
        let Some((number, news)) = self.news.recv().await else { return std::future::pending().await };
        match news {
            News::Open => self.connections[number].open = true,
            News::Lost(_) => self.connections[number].open = false,
            _ => {}
        }
        (number, news)
    }

    /// The numbers of those that are there.
    pub fn open(&self) -> impl Iterator<Item = usize> {
        self.connections.iter().enumerate().filter(|(_, connection)| connection.open).map(|(number, _)| number)
    }

    /// Sends a frame by one of them; it is lost if that is.
    pub fn send(&self, number: usize, header: FrameHeader, payload: Vec<u8>) {
        self.give(number, Errand::Frame(header, payload));
    }

    /// Tells a gateway something.
    pub fn control(&self, number: usize, message: impl Into<Control>) {
        self.give(number, Errand::Control(message.into()));
    }

    /// What a gateway is told first when it is dialled again.
    pub fn reopen_with(&self, number: usize, opening: impl Into<Control>) {
        self.give(number, Errand::Opening(opening.into()));
    }

    fn give(&self, number: usize, errand: Errand) {
        // A task ends only when it was told to.
        let _ = self.connections[number].errands.send(errand);
    }

    /// Says goodbye to all and waits until they have closed, not longer than `limit`.
    pub async fn goodbye(mut self, job: JobId, limit: Duration) {
        for number in 0..self.connections.len() {
            self.give(number, Errand::Goodbye(job));
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Whoever takes longer sees the connection close.
        let _ = timeout(limit, all).await;
    }
}

struct Task {
    number: usize,
    entry: Entry,
    me: Identity,
    errands: UnboundedReceiver<Errand>,
    news: UnboundedSender<(usize, News)>,
    told: bool,
}

/// Why a connection is not served any more.
enum End {
    Lost(ClientError),
    /// This member is done.
    Left,
}

impl Task {
    async fn run(mut self, mut client: Option<Client>) {
        loop {
            let mut again = AGAIN;
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(&self.entry.gateway, &self.entry.role).await,
            };
            match connected {
                Ok(client) => {
                    self.tell(News::Open);
                    let (mut receiver, mut sender) = client.split();
                    match self.serve(&mut receiver, &mut sender).await {
                        End::Lost(error) => {
                            // One reset says nothing of the gateway.
                            again = SOON;
                            self.tell(News::Lost(error));
                        }
                        End::Left => return,
                    }
                }
                Err(error) if !std::mem::replace(&mut self.told, true) => self.tell(News::Failed(error)),
                Err(_) => {}
            }
            if self.pause(again).await.is_err() {
                return;
            }
        }
    }

    /// Waits before the next try; an error when there is to be none.
    async fn pause(&mut self, again: Duration) -> Result<(), ()> {
        let until = sleep(again);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return Ok(()),
                errand = self.errands.recv() => match errand {
                    None | Some(Errand::Goodbye(_)) => return Err(()),
                    Some(Errand::Opening(opening)) => self.entry.opening = Some(opening),
                    // What was for the connection before is no use: it is sent again by whoever keeps it.
                    Some(Errand::Frame(..) | Errand::Control(_)) => {}
                },
            }
        }
    }

    async fn serve(&mut self, receiver: &mut Receiver, sender: &mut Sender) -> End {
        if let Some(opening) = &self.entry.opening
            && let Err(error) = sender.send_control(self.me, opening.clone()).await
        {
            return End::Lost(error);
        }
        let began = Instant::now();
        let now_ns = || began.elapsed().as_nanos() as u64;
        let mut pulse = Pulse::new(GATEWAY_SILENCE_S, 0);
        let mut looks = interval(Duration::from_nanos(LOOK_NS));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                frame = receiver.receive() => match frame {
                    Ok(Some(frame)) => {
                        pulse.heard(now_ns());
                        self.take(frame, sender).await
                    }
                    Ok(None) => Err(self.closed()),
                    Err(error) => Err(error),
                },
                _ = looks.tick() => match pulse.look(now_ns()) {
                    Beat::Quiet => Ok(()),
                    Beat::Ping => sender.send(self.about_life(FrameKind::Ping), &[]).await,
                    Beat::Lost(seconds) => Err(ClientError::Silent { address: self.entry.gateway.address.clone(), seconds }),
                },
                errand = self.errands.recv() => match errand {
                    Some(Errand::Frame(header, payload)) => sender.send(header, &payload).await,
                    Some(Errand::Opening(opening)) => {
                        self.entry.opening = Some(opening);
                        Ok(())
                    }
                    Some(Errand::Control(message)) => sender.send_control(self.me, message).await,
                    Some(Errand::Goodbye(job)) => {
                        if sender.goodbye(job, self.me).await.is_ok() {
                            while let Ok(Some(_)) = receiver.receive().await {}
                        }
                        return End::Left;
                    }
                    None => return End::Left,
                },
            };
            if let Err(error) = done {
                return End::Lost(error);
            }
        }
    }

    /// A frame came. Pings are answered here.
    async fn take(&mut self, frame: Frame, sender: &mut Sender) -> Result<(), ClientError> {
        match frame.header.kind {
            FrameKind::Ping => sender.send(self.about_life(FrameKind::Pong), &frame.payload).await,
            FrameKind::Pong => Ok(()),
            _ => {
                self.tell(News::Frame(frame));
                Ok(())
            }
        }
    }

    fn about_life(&self, kind: FrameKind) -> FrameHeader {
        let to = Identity { site: self.me.site, slot: Slot::GATEWAY };
        FrameHeader::plain(kind, JobId::default(), self.me, to)
    }

    fn closed(&self) -> ClientError {
        ClientError::Left { address: self.entry.gateway.address.clone() }
    }

    fn tell(&self, news: News) {
        // Whoever would listen may be gone.
        let _ = self.news.send((self.number, news));
    }
}
