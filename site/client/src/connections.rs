//! A member's connections to the gateways of its site: which are up, and which frames arrive on any of them.
//!
//! Each connection has its own task ([`task`]), which reconnects when it is lost. The first connection is the one over
//! which the member joined its job.

mod task;
mod vigil;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use member::Route;
use member::last_route::{LastRoute, Limit, RETURN};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until, timeout};
use types::{Identity, JobId};
use wire::{Control, FrameHeader};

use self::task::{Errand, Task, TaskReport};
use crate::client::{Client, Frame, Gateway, Role};
use crate::error::ClientError;

/// A change of a connection's state, or a frame that arrived on it.
#[derive(Debug)]
pub enum News {
    /// The connection is up.
    Open,
    /// A frame arrived.
    Frame(Frame),
    /// The gateway sent a frame after this many seconds of silence: gateways of other sites may have given it up.
    Back(u64),
    /// The connection was up and is lost.
    Lost(ClientError),
    /// The last connection broke, which a single reset can do, and its gateway is dialled again. `Open` follows if it
    /// still runs, otherwise `Lost`. Frames in flight are lost. With the reason.
    Broken(String),
    /// The gateway could not be reached. Reported once; the task keeps trying.
    Failed(ClientError),
}

/// A gateway to connect to.
#[derive(Clone, Debug)]
pub struct Entry {
    pub gateway: Gateway,
    /// The role in which to connect.
    pub role: Role,
    /// The first message to send to it.
    pub opening: Option<Control>,
}

#[derive(Debug)]
struct GatewayConnection {
    errands: UnboundedSender<Errand>,
    open: bool,
    /// True if this member belongs to its job on a new connection to this gateway too.
    returns: bool,
    silent: Arc<AtomicBool>,
}

/// See the module docs. Dropping it closes all connections.
#[derive(Debug)]
pub struct Connections {
    me: Identity,
    reports: UnboundedReceiver<(usize, TaskReport)>,
    sink: UnboundedSender<(usize, TaskReport)>,
    connections: Vec<GatewayConnection>,
    /// The last connection that was open, with the error if it broke.
    last: LastRoute<ClientError>,
    began: Instant,
    tasks: tokio::task::JoinSet<()>,
    standing_by: Arc<AtomicBool>,
    impatient: Arc<AtomicBool>,
}

impl Connections {
    /// Starts with the connection over which this member joined.
    pub fn new(me: Identity, first: Client, entry: Entry) -> Connections {
        let (sink, reports) = unbounded_channel();
        let (connections, tasks) = (Vec::new(), tokio::task::JoinSet::new());
        let (standing_by, impatient) = (Arc::default(), Arc::default());
        let (last, began) = (LastRoute::new(Limit::Time(RETURN)), Instant::now());
        let mut all = Connections { me, reports, sink, connections, last, began, tasks, standing_by, impatient };
        all.begin(Some(first), entry);
        all.connections[0].open = true;
        all
    }

    /// Adds a connection; returns its number.
    pub fn add(&mut self, entry: Entry) -> usize {
        self.begin(None, entry)
    }

    fn begin(&mut self, client: Option<Client>, entry: Entry) -> usize {
        let number = self.connections.len();
        let (errands, list) = unbounded_channel();
        let (reports, standing_by, impatient) = (self.sink.clone(), self.standing_by.clone(), self.impatient.clone());
        let (me, silent) = (self.me, Arc::<AtomicBool>::default());
        let reported = silent.clone();
        let returns = matches!(entry.role, Role::Member { .. });
        let task =
            Task { number, entry, me, errands: list, reports, has_failed: false, standing_by, impatient, silent };
        self.tasks.spawn(task.run(client));
        self.connections.push(GatewayConnection { errands, open: false, returns, silent: reported });
        number
    }

    /// Returns the next event and the number of its connection. Cancel-safe.
    pub async fn next(&mut self) -> (usize, News) {
        loop {
            let due = self.last.due_ns().map(|due_ns| self.began + Duration::from_nanos(due_ns));
            let late = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                report = self.reports.recv() => report,
                () = late => None,
            };
            // The channel does not end, because this struct holds its other end.
            let Some((number, report)) = report else {
                match self.last.expired(self.now_ns()) {
                    Some((route, error)) => return (route.0.into(), News::Lost(error)),
                    None => continue,
                }
            };
            if let Some(news) = self.judge(number, report) {
                return news;
            }
        }
    }

    /// The event that a task's report means. `None`: nothing has changed.
    fn judge(&mut self, number: usize, report: TaskReport) -> Option<(usize, News)> {
        let route = Route(number as u8);
        match report {
            TaskReport::News(News::Open) => {
                self.connections[number].open = true;
                if let Some((broken, error)) = self.last.opened(route) {
                    // Another gateway has been reached meanwhile. Its event comes first.
                    let _ = self.sink.send((broken.0.into(), TaskReport::News(News::Lost(error))));
                }
                Some((number, News::Open))
            }
            TaskReport::News(News::Lost(error)) => {
                let was_open = std::mem::replace(&mut self.connections[number].open, false);
                let is_last = was_open && self.open().next().is_none();
                if is_last && self.connections[number].returns && error.is_break() {
                    let reason = error.to_string();
                    self.last.broke(route, error, self.now_ns());
                    return Some((number, News::Broken(reason)));
                }
                Some((number, News::Lost(error)))
            }
            TaskReport::News(news) => Some((number, news)),
            TaskReport::Gone(reason) => {
                self.last.failed(route, reason.is_down()).map(|error| (number, News::Lost(error)))
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Numbers of all connections.
    pub fn all(&self) -> std::ops::Range<usize> {
        0..self.connections.len()
    }

    /// Numbers of the connections that are up.
    pub fn open(&self) -> impl Iterator<Item = usize> {
        self.connections.iter().enumerate().filter(|(_, connection)| connection.open).map(|(number, _)| number)
    }

    /// Returns true if a connection is up, but its gateway has sent nothing for 2 s: it may be about to be lost.
    pub fn is_silent(&self, number: usize) -> bool {
        let connection = &self.connections[number];
        connection.open && connection.silent.load(Ordering::Relaxed)
    }

    /// Sends a frame over one connection; if the connection is lost, so is the frame.
    pub fn send(&self, number: usize, header: FrameHeader, payload: Vec<u8>) {
        self.give(number, Errand::Frame(header, payload));
    }

    /// Sends a control message to a gateway.
    pub fn control(&self, number: usize, message: impl Into<Control>) {
        self.give(number, Errand::Control(message.into()));
    }

    /// Sets the first message to send when a gateway is dialled again.
    pub fn reopen_with(&self, number: usize, opening: impl Into<Control>) {
        self.give(number, Errand::Opening(opening.into()));
    }

    /// From now on, this client belongs to its job on a new connection to this gateway too, by the opening message: if
    /// the last connection breaks, [`News::Broken`] comes first. Members of jobs return anyway.
    pub fn returns(&mut self, number: usize) {
        self.connections[number].returns = true;
    }

    /// Sets whether gateways on this machine may be stopped, in which case their silence is no failure. If one has
    /// ended, the system closes the connection.
    pub fn stand_by(&self, stopped: bool) {
        self.standing_by.store(stopped, Ordering::Relaxed);
    }

    /// Gives a silent gateway no more time on a busy machine than on an idle one: for a member that dials again at once
    /// and loses nothing by it.
    pub fn be_impatient(&self) {
        self.impatient.store(true, Ordering::Relaxed);
    }

    fn give(&self, number: usize, errand: Errand) {
        // A task ends only on a goodbye, or when this struct is dropped.
        let _ = self.connections[number].errands.send(errand);
    }

    /// Says goodbye on all connections and waits at most `limit` until they have closed.
    pub async fn goodbye(mut self, job: JobId, limit: Duration) {
        for number in self.all() {
            self.give(number, Errand::Goodbye(job));
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // A gateway that takes longer finds the connection closed.
        let _ = timeout(limit, all).await;
    }
}

#[cfg(test)]
mod tests {
    use types::Slot;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// Connections that are up, without tasks. `returns`: for each, true if the member belongs to its job on a new one.
    fn up(returns: &[bool]) -> Connections {
        let (sink, reports) = unbounded_channel();
        let connection = |returns: &bool| GatewayConnection {
            errands: unbounded_channel().0,
            open: true,
            returns: *returns,
            silent: Arc::default(),
        };
        let connections = returns.iter().map(connection).collect();
        let (standing_by, impatient) = (Arc::default(), Arc::default());
        let me = Identity { site: types::SiteId(0), slot: Slot::LAUNCHER };
        let (last, began, tasks) = (LastRoute::new(Limit::Time(LIMIT)), Instant::now(), Default::default());
        Connections { me, reports, sink, connections, last, began, tasks, standing_by, impatient }
    }

    fn reset() -> ClientError {
        ClientError::Io { address: "g:1".to_owned(), source: std::io::ErrorKind::ConnectionReset.into() }
    }

    async fn after(all: &mut Connections, number: usize, report: TaskReport) -> (usize, News) {
        all.sink.send((number, report)).unwrap();
        all.next().await
    }

    #[tokio::test]
    async fn the_last_connection_that_breaks_is_lost_once_its_gateway_cannot_be_reached() {
        let lost = || TaskReport::News(News::Lost(reset()));
        let mut all = up(&[true]);
        assert!(matches!(after(&mut all, 0, lost()).await, (0, News::Broken(reason)) if reason.contains("reset")));
        assert!(matches!(after(&mut all, 0, TaskReport::News(News::Open)).await, (0, News::Open)));
        assert!(!all.last.is_broken() && all.open().eq([0]));
        // The gateway has not noticed the reset yet, and then its port is closed.
        after(&mut all, 0, lost()).await;
        all.sink.send((0, TaskReport::Gone(reset()))).unwrap();
        let source = std::io::ErrorKind::ConnectionRefused.into();
        let closed = ClientError::Connect { address: "g:1".to_owned(), source };
        let news = after(&mut all, 0, TaskReport::Gone(closed)).await;
        assert!(matches!(news, (0, News::Lost(ClientError::Io { .. }))), "the first reason counts: {news:?}");
        // Time has passed.
        let mut all = up(&[true]);
        after(&mut all, 0, lost()).await;
        assert!(matches!(all.next().await, (0, News::Lost(_))));
    }

    #[tokio::test]
    async fn other_losses_are_reported_at_once() {
        let silent = ClientError::Silent { address: "g:1".to_owned(), seconds: 5 };
        assert!(matches!(after(&mut up(&[true]), 0, TaskReport::News(News::Lost(silent))).await, (0, News::Lost(_))));
        let lost = || TaskReport::News(News::Lost(reset()));
        assert!(
            matches!(after(&mut up(&[false]), 0, lost()).await, (0, News::Lost(_))),
            "it would be a stranger there"
        );
        // Another gateway is left, then none, and then the other one is reached first.
        let mut all = up(&[true, true]);
        assert!(matches!(after(&mut all, 0, lost()).await, (0, News::Lost(_))));
        assert!(matches!(after(&mut all, 1, lost()).await, (1, News::Broken(_))));
        assert!(matches!(after(&mut all, 0, TaskReport::News(News::Open)).await, (0, News::Open)));
        assert!(matches!(all.next().await, (1, News::Lost(_))));
    }
}
