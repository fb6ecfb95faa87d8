//! A member's connections to the gateways of its site: which are up, and which frames arrive on any of them.
//!
//! Each connection has its own task, which reconnects when it is lost. The first connection is the one over which the
//! member joined its job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use member::pulse::{GATEWAY_SILENCE_S, LINK_SILENCE_S, LOOK_NS, Nod};
use member::{Beat, Pulse};
use tcp_info::Machine;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use types::patience::CoreTime;
use types::{Identity, JobId, Slot};
use wire::{Control, FrameHeader, FrameKind};

use crate::patience::{core_time, slowness_in};
use crate::{Client, ClientError, Frame, Gateway, Receiver, Role, Sender};

/// A gateway that has sent nothing for this many seconds counts as silent: it sends a frame each second.
const SILENT_S: u64 = 2;
/// Least time between two checks that counts as a pause of this process, and the time for which it explains a loss.
const PAUSE: Duration = Duration::from_secs(3);
const EXPLAINS: Duration = Duration::from_secs(10);
/// Delays before dialling a gateway again: after its connection broke, and after it could not be reached.
const SOON: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(1);
/// Time limit for dialling the last gateway again after its connection broke. Gateways wait as long for its members.
const RETURN: Duration = Duration::from_secs(2);

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

/// A task's report.
#[derive(Debug)]
enum TaskReport {
    News(News),
    /// The gateway could not be reached after a loss.
    Gone(ClientError),
}

/// The last connection that was up, which broke.
#[derive(Debug)]
struct LastBroken {
    number: usize,
    error: ClientError,
    until: Instant,
}

/// Commands for a task. Flow-control windows limit the number queued.
#[derive(Debug)]
enum Errand {
    Frame(FrameHeader, Vec<u8>),
    Control(Control),
    Opening(Control),
    Goodbye(JobId),
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
    broken: Option<LastBroken>,
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
        let broken = None;
        let mut all = Connections { me, reports, sink, connections, broken, tasks, standing_by, impatient };
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
        let task = Task { number, entry, me, errands: list, reports, told: false, standing_by, impatient, silent };
        self.tasks.spawn(task.run(client));
        self.connections.push(GatewayConnection { errands, open: false, returns, silent: reported });
        number
    }

    /// Returns the next event and the number of its connection. Cancel-safe.
    pub async fn next(&mut self) -> (usize, News) {
        loop {
            let until = self.broken.as_ref().map(|broken| broken.until);
            let late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                report = self.reports.recv() => report,
                () = late => None,
            };
            // The channel does not end, because this struct holds its other end.
            let Some((number, report)) = report else {
                match self.broken.take() {
                    Some(LastBroken { number, error, .. }) => return (number, News::Lost(error)),
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
        match report {
            TaskReport::News(News::Open) => {
                self.connections[number].open = true;
                if let Some(LastBroken { number: broken, error, .. }) =
                    self.broken.take().filter(|broken| broken.number != number)
                {
                    // Another gateway has been reached meanwhile. Its event comes first.
                    let _ = self.sink.send((broken, TaskReport::News(News::Lost(error))));
                }
                Some((number, News::Open))
            }
            TaskReport::News(News::Lost(error)) => {
                let was_open = std::mem::replace(&mut self.connections[number].open, false);
                let is_last = was_open && self.open().next().is_none();
                if is_last && self.connections[number].returns && error.is_break() {
                    let reason = error.to_string();
                    self.broken = Some(LastBroken { number, error, until: Instant::now() + RETURN });
                    return Some((number, News::Broken(reason)));
                }
                Some((number, News::Lost(error)))
            }
            TaskReport::News(news) => Some((number, news)),
            TaskReport::Gone(reason) => {
                let LastBroken { number, error, .. } =
                    self.broken.take_if(|broken| broken.number == number && reason.is_down())?;
                Some((number, News::Lost(error)))
            }
        }
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

struct Task {
    number: usize,
    entry: Entry,
    me: Identity,
    errands: UnboundedReceiver<Errand>,
    reports: UnboundedSender<(usize, TaskReport)>,
    told: bool,
    standing_by: Arc<AtomicBool>,
    impatient: Arc<AtomicBool>,
    /// Set if the gateway is silent.
    silent: Arc<AtomicBool>,
}

/// Heartbeats in both directions.
struct Vigil {
    began: Instant,
    looks: Interval,
    pulse: Pulse,
    nod: Nod,
    heard_ns: u64,
    asked: bool,
    /// The gateway's machine.
    machine: Machine,
    /// The core time at the first check of the current silence.
    before: CoreTime,
    /// True if something arrived since the last check.
    heard: bool,
    /// Time of the last check.
    looked: Instant,
    /// The last pause of this process: its end and its length.
    pause: Option<(Instant, Duration)>,
}

impl Vigil {
    fn new() -> Vigil {
        let mut looks = interval(Duration::from_nanos(LOOK_NS));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (pulse, nod) = (Pulse::new(GATEWAY_SILENCE_S, 0), Nod::new(0));
        let (machine, before, now) = (Machine::default(), core_time(), Instant::now());
        Vigil {
            began: now,
            looks,
            pulse,
            nod,
            heard_ns: 0,
            asked: false,
            machine,
            before,
            heard: false,
            looked: now,
            pause: None,
        }
    }

    /// Notes the time since the last check if this process did not run in it.
    fn note_pause(&mut self, now: Instant) {
        let pause = now - std::mem::replace(&mut self.looked, now);
        if pause >= PAUSE {
            self.pause = Some((now, pause));
        }
    }

    /// The error of a lost connection. If this process did not run shortly before, that is part of it.
    fn explained(&mut self, error: ClientError, now: Instant) -> ClientError {
        self.note_pause(now);
        match self.pause {
            Some((end, pause)) if now - end < EXPLAINS => {
                ClientError::Paused { seconds: pause.as_secs(), source: Box::new(error) }
            }
            _ => error,
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// A frame of this kind arrived.
    fn heard(&mut self, kind: FrameKind) {
        self.heard_ns = self.now_ns();
        self.pulse.heard(self.heard_ns);
        self.heard = true;
        self.asked |= kind == FrameKind::Ping;
    }

    /// Waits until the next check is due. Cancel-safe.
    async fn due(&mut self) {
        self.looks.tick().await;
    }

    /// Checks for silence. A gateway whose machine answers gets a longer limit if this machine is busy, because both
    /// may be the same machine, unless `impatient`. `stopped`: a gateway on this machine may be stopped.
    fn beat(&mut self, receiver: &Receiver, stopped: bool, impatient: bool) -> Beat {
        self.note_pause(Instant::now());
        let now_ns = self.now_ns();
        if stopped && receiver.is_on_this_machine() {
            self.pulse.heard(now_ns);
        }
        let answers = self.machine.answers(receiver.arrived(), now_ns);
        if std::mem::take(&mut self.heard) {
            self.before = core_time();
        }
        let before = self.before;
        let stretch =
            |limit, silent| if answers && !impatient { slowness_in(silent, before).stretch(limit) } else { limit };
        self.pulse.look_patiently(now_ns, stretch)
    }

    /// Returns true, once per occasion, if the gateway asked for a sign of life or is due one.
    fn owes_a_word(&mut self) -> bool {
        let now_ns = self.now_ns();
        let due = self.nod.is_due(self.heard_ns, now_ns);
        std::mem::take(&mut self.asked) || due
    }
}

impl Task {
    async fn run(mut self, mut client: Option<Client>) {
        let mut lost = false;
        loop {
            let mut again = AGAIN;
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(&self.entry.gateway, &self.entry.role).await,
            };
            match connected {
                Ok(client) => {
                    self.silent.store(false, Ordering::Relaxed);
                    self.tell(News::Open);
                    let (mut receiver, mut sender) = client.split();
                    match self.serve(&mut receiver, &mut sender).await {
                        Err(error) => {
                            // A single reset does not mean that the gateway is down.
                            (lost, again) = (true, SOON);
                            self.tell(News::Lost(error));
                        }
                        Ok(()) => return,
                    }
                }
                Err(error) if lost => self.report(TaskReport::Gone(error)),
                Err(error) if !std::mem::replace(&mut self.told, true) => self.tell(News::Failed(error)),
                Err(_) => {}
            }
            if self.pause(again).await.is_err() {
                return;
            }
        }
    }

    /// Waits before the next attempt; returns an error if there will be none.
    async fn pause(&mut self, again: Duration) -> Result<(), ()> {
        let until = sleep(again);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return Ok(()),
                errand = self.errands.recv() => match errand {
                    None | Some(Errand::Goodbye(_)) => return Err(()),
                    Some(Errand::Opening(opening)) => self.entry.opening = Some(opening),
                    // Frames for the previous connection are useless now: the component that keeps them retransmits
                    // them.
                    Some(Errand::Frame(..) | Errand::Control(_)) => {}
                },
            }
        }
    }

    /// Serves a connection until this member is done or the connection is lost.
    async fn serve(&mut self, receiver: &mut Receiver, sender: &mut Sender) -> Result<(), ClientError> {
        let mut vigil = Vigil::new();
        let served = self.serve_watched(receiver, sender, &mut vigil).await;
        served.map_err(|error| vigil.explained(error, Instant::now()))
    }

    async fn serve_watched(
        &mut self,
        receiver: &mut Receiver,
        sender: &mut Sender,
        vigil: &mut Vigil,
    ) -> Result<(), ClientError> {
        if let Some(opening) = &self.entry.opening {
            sender.send_control(self.me, opening.clone()).await?;
        }
        loop {
            let mut word = None;
            tokio::select! {
                frame = receiver.receive() => self.heard(frame, vigil)?,
                () = vigil.due() => match self.beat(vigil, receiver) {
                    Beat::Quiet => {}
                    Beat::Ping => word = Some(FrameKind::Ping),
                    Beat::Lost(seconds) => return Err(self.silent(seconds)),
                },
                errand = self.errands.recv() => match errand {
                    Some(Errand::Frame(header, payload)) => {
                        self.while_listening(sender.send(header, &payload), receiver, vigil).await?;
                    }
                    Some(Errand::Opening(opening)) => self.entry.opening = Some(opening),
                    Some(Errand::Control(message)) => {
                        self.while_listening(sender.send_control(self.me, message), receiver, vigil).await?;
                    }
                    Some(Errand::Goodbye(job)) => {
                        if sender.goodbye(job, self.me).await.is_ok() {
                            while let Ok(Some(_)) = receiver.receive().await {}
                        }
                        return Ok(());
                    }
                    None => return Ok(()),
                },
            }
            if let Some(kind) = word.or_else(|| vigil.owes_a_word().then_some(FrameKind::Pong)) {
                let sending = sender.send(self.about_life(kind), &[]);
                self.while_listening(sending, receiver, vigil).await?;
            }
        }
    }

    /// Completes a send, and listens meanwhile: a live gateway sends signs of life even while it does not read; a hung
    /// one does neither.
    async fn while_listening(
        &self,
        sending: impl Future<Output = Result<(), ClientError>>,
        receiver: &mut Receiver,
        vigil: &mut Vigil,
    ) -> Result<(), ClientError> {
        tokio::pin!(sending);
        loop {
            tokio::select! {
                done = &mut sending => return done,
                frame = receiver.receive() => self.heard(frame, vigil)?,
                () = vigil.due() => if let Beat::Lost(seconds) = self.beat(vigil, receiver) {
                    return Err(self.silent(seconds));
                },
            }
        }
    }

    /// Handles an arrived frame, or the end of the stream.
    fn heard(&self, frame: Result<Option<Frame>, ClientError>, vigil: &mut Vigil) -> Result<(), ClientError> {
        let Some(frame) = frame? else { return Err(self.closed()) };
        let silent_s = vigil.pulse.silent_s();
        vigil.heard(frame.header.kind);
        self.silent.store(false, Ordering::Relaxed);
        if silent_s >= LINK_SILENCE_S {
            self.tell(News::Back(silent_s));
        }
        if !matches!(frame.header.kind, FrameKind::Ping | FrameKind::Pong) {
            self.tell(News::Frame(frame));
        }
        Ok(())
    }

    fn beat(&self, vigil: &mut Vigil, receiver: &Receiver) -> Beat {
        let (stopped, impatient) = (self.standing_by.load(Ordering::Relaxed), self.impatient.load(Ordering::Relaxed));
        let beat = vigil.beat(receiver, stopped, impatient);
        self.silent.store(vigil.pulse.silent_s() >= SILENT_S, Ordering::Relaxed);
        beat
    }

    fn silent(&self, seconds: u64) -> ClientError {
        ClientError::Silent { address: self.entry.gateway.address.clone(), seconds }
    }

    fn about_life(&self, kind: FrameKind) -> FrameHeader {
        let to = Identity { site: self.me.site, slot: Slot::GATEWAY };
        FrameHeader::plain(kind, JobId::default(), self.me, to)
    }

    fn closed(&self) -> ClientError {
        ClientError::Left { address: self.entry.gateway.address.clone() }
    }

    fn tell(&self, news: News) {
        self.report(TaskReport::News(news));
    }

    fn report(&self, report: TaskReport) {
        // The receiver may be gone.
        let _ = self.reports.send((self.number, report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Connections { me, reports, sink, connections, broken: None, tasks: Default::default(), standing_by, impatient }
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
        assert!(all.broken.is_none() && all.open().eq([0]));
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
        all.broken.as_mut().unwrap().until = Instant::now();
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

    #[tokio::test]
    async fn a_loss_after_a_pause_of_this_process_names_the_pause() {
        let left = || ClientError::Left { address: "g:1".to_owned() };
        let mut vigil = Vigil::new();
        let begun = vigil.looked;
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(vigil.explained(left(), after(2)).to_string(), "gateway at g:1 closed the connection");
        let text = "gateway at g:1 closed the connection; this process did not run for 8 s before, so the gateway may \
                    have given it up";
        assert_eq!(vigil.explained(left(), after(10)).to_string(), text);
        // Checks each second, after the pause.
        (11..=19).for_each(|second| vigil.note_pause(after(second)));
        assert_eq!(vigil.explained(left(), after(19)).to_string(), text);
        vigil.note_pause(after(20));
        assert_eq!(vigil.explained(left(), after(20)).to_string(), "gateway at g:1 closed the connection");
    }
}
