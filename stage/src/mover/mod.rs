//! A mover: a rank of an ordinary job that serves the sources of its node and fetches blocks for its targets.
//!
//! The receiver decides the rate. Blocks travel in one of three ways ([`Mode`]):
//! - pull: the receiver requests blocks (`Message::Fetch`), the feeder reads them into its memory and returns their
//!   address (`Message::Ready`), and the receiver reads them from there, one-sided, when they are due (`flow`).
//! - send: the receiver lists the blocks it lacks, posts receives for some (`Message::Take`), and the feeder sends them
//!   at the receiver's rate (`pushing`, `sending`).
//! - bcast: the same, but the source sends each block once, to all targets that lack it.
//!
//! If several nodes of a site are targets of one task, the data crosses each trunk once: the source feeds the first
//! node, the first node feeds the second, and so on; in a broadcast, gateways copy. Nothing is put in place before the
//! last target is complete and the source has confirmed that its files have not changed.
//!
//! A mover has one thread, which sleeps on the endpoint's descriptors. File reads and writes block it, so two or more
//! blocks are kept in flight meanwhile.

mod console;
mod dispatch;
mod error;
mod feeding;
mod flow;
mod lead;
#[allow(unsafe_code)]
mod lent;
mod message;
mod muster;
mod peers;
mod pmi;
mod pulling;
mod pushing;
mod receiving;
mod sending;
mod targets;

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use memory::Pages;

pub use error::MoverError;
pub use message::{Control, Event, Look, Mode, Order, Placed, Settings, Spot, Task};
pub use pmi::PmiError;

use crate::look::look;
use crate::pressure::Whose;
use crate::supervise::{Before, Work, WorkState, supervise};
pub(crate) use console::Console;
use feeding::Feeding;
use lead::Lead;
use lent::Lent;
pub(crate) use message::TELL;
use message::{MoverMessage, Origin, at_home};
use muster::Muster;
use peers::Peers;
use receiving::Receiving;

/// Longest sleep before the order is known.
const SOON: Duration = Duration::from_millis(20);
/// Minimum size of a long block, in bytes.
const LONG: u32 = 1 << 20;
/// Time that a failed mover waits for the first mover to end the job.
const LEAVE: Duration = Duration::from_secs(5);

/// Maximum number of tasks with posted receives. Earlier tasks of the order come first, so all targets of a broadcast
/// choose the same tasks.
const MOST_OPEN: usize = 16;

/// A transfer that this mover awaits from another one.
enum Wanted {
    Order,
    Manifest {
        task: u32,
        from: Origin,
    },
    Block {
        task: u32,
        block: u32,
    },
    /// A block that its feeder sends.
    Pushed {
        task: u32,
        block: u32,
    },
}

struct Mover<'a> {
    peers: Peers,
    began: Instant,
    order: Option<Order>,
    /// True if the order is known and nothing of it has been begun.
    fresh: bool,
    muster: Muster,
    /// Rank 0: the order, until it is sent.
    held: Option<Order>,
    /// Rank 0: the order in memory that the others read.
    order_lent: Option<Lent>,
    console: Option<Console<'a>>,
    lead: Lead,
    feeding: HashMap<u32, Feeding>,
    receiving: HashMap<u32, Receiving>,
    wanted: HashMap<usize, Wanted>,
    next_context: usize,
    /// Messages that arrived before the order, or before their target's manifest.
    early: Vec<(u32, MoverMessage)>,
    placed: HashSet<u32>,
    paused: bool,
    cancelled: bool,
    /// Time at which this mover's own work failed: it then only waits for the first mover to end the job.
    failed: Option<Instant>,
    /// Bytes of targets that are in place.
    before: u64,
    /// A new rate limit by the user.
    limit: Option<Option<u64>>,
    /// Rank 0: number of other movers that have read the order. Rank 0 ends the job only once all have.
    begun: u32,
    ending: bool,
    ended: bool,
}

/// Takes part in a job of movers until it ends. Rank 0 reads the [`Order`] and then [`Control`]s from `input`, one line
/// of JSON each, and writes [`Event`]s to `output`. `lookup` returns a variable of the environment.
///
/// # Errors
/// [`MoverError`]. A failure of a source or target is an [`Event::Failed`] instead.
pub fn run(
    lookup: impl Fn(&str) -> Option<String>,
    input: BorrowedFd<'_>,
    output: &mut (dyn std::io::Write + Send),
) -> Result<(), MoverError> {
    let whose = Whose::of(&lookup);
    let mut before = Before::look(whose);
    let peers = Peers::open(lookup)?;
    let console = (peers.me() == 0).then(|| Console::new(input, output));
    let mut mover = Mover::new(peers, console);
    let (mut shared, mut told) = (WorkState::new(None), false);
    // Measure nothing until there is something to move.
    while !mover.ended && mover.order.is_none() {
        mover.turn(&shared)?;
        if !told && let Some(busy) = before.is_busy() {
            told = true;
            mover.peers.send(0, &MoverMessage::Busy(busy))?;
        }
        mover.give_out()?;
    }
    if mover.order.as_ref().is_some_and(|order| !order.looks.is_empty()) {
        // A check moves nothing, so it runs at normal priority: at a low one, a busy machine would delay the answer.
        mover.fresh = true;
        while !mover.ended {
            mover.turn(&shared)?;
        }
    } else if let Some(order) = &mover.order {
        let aim = whose.allows(order.options.aim());
        shared = WorkState::new(aim.rate);
        // Listing a source needs cores too, so it runs under supervision as well.
        mover.fresh = true;
        // `true`: agents are started in sessions of their own.
        supervise(&mut mover, &shared, aim, true, before)?;
    }
    mover.feeding.clear();
    mover.receiving.clear();
    mover.peers.close()
}

impl Work for Mover<'_> {
    type Error = MoverError;

    /// Does all pending work, then sleeps.
    fn turn(&mut self, shared: &WorkState) -> Result<bool, MoverError> {
        let mut moved = false;
        if std::mem::take(&mut self.fresh) {
            self.guarded(|mover| mover.begin(shared))?;
        }
        while let Some(happened) = self.peers.step()? {
            moved = true;
            self.guarded(|mover| mover.happened(happened, shared))?;
            if self.ended {
                return Ok(false);
            }
        }
        moved |= self.listen()?;
        let mut wake = if self.order.is_some() { TELL } else { SOON };
        let mut result = Ok(());
        if self.failed.is_none() {
            result = self.drive(&mut wake, shared.rate());
            if result.is_ok() && !moved {
                result = self.check(shared.has_time()).map(|checked| moved |= checked);
            }
        }
        self.guarded(|_| result)?;
        if self.failed.is_some_and(|since| since.elapsed() > LEAVE) {
            return Err(MoverError::Message("the first mover does not answer".to_owned()));
        }
        self.print()?;
        self.tell(shared);
        if !moved {
            let also = self.console.as_ref().and_then(Console::waits_on);
            let gathers = self.is_busy() && self.order.as_ref().is_some_and(|order| order.options.block >= LONG);
            self.peers.sleep(wake, also, gathers)?;
        }
        Ok(true)
    }
}

impl<'a> Mover<'a> {
    fn new(peers: Peers, console: Option<Console<'a>>) -> Mover<'a> {
        Mover {
            muster: Muster::new(peers.size()),
            held: None,
            peers,
            began: Instant::now(),
            order: None,
            fresh: false,
            order_lent: None,
            console,
            lead: Lead::default(),
            feeding: HashMap::new(),
            receiving: HashMap::new(),
            wanted: HashMap::new(),
            next_context: 0,
            early: Vec::new(),
            placed: HashSet::new(),
            paused: false,
            cancelled: false,
            failed: None,
            before: 0,
            limit: None,
            begun: 0,
            ending: false,
            ended: false,
        }
    }
}

impl Mover<'_> {
    /// Publishes the progress for the measuring thread.
    fn tell(&mut self, shared: &WorkState) {
        let volumes = self.receiving.values().map(Receiving::volume).chain(self.feeding.values().map(Feeding::volume));
        let (arrived, total) =
            volumes.fold((self.before, self.before), |(a, t), (arrived, all)| (a + arrived, t + all));
        shared.tell(arrived, total, self.is_busy());
        if let Some(limit) = self.limit.take() {
            shared.limit(limit);
        }
    }

    /// Returns true if blocks are in flight or may be.
    fn is_busy(&self) -> bool {
        self.receiving.values().any(Receiving::is_busy) || self.feeding.values().any(Feeding::is_busy)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reports a failure of a source or a target to the first mover, which ends the job.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> Result<(), MoverError>) -> Result<(), MoverError> {
        match work(self) {
            Err(MoverError::Stage(error)) => {
                let text = format!("{}: {error}", self.peers.shown(self.peers.me()));
                // A path may have 4 KiB, and each byte may be printed as three.
                let text = text.chars().take(message::LONGEST / 4 - 16).collect();
                self.failed.get_or_insert(Instant::now());
                self.peers.send(0, &MoverMessage::Failed { text })
            }
            other => other,
        }
    }

    /// Rank 0: sends the order to all, once it is known in which order nodes feed each other.
    fn give_out(&mut self) -> Result<(), MoverError> {
        let now = self.now();
        let enough = |order: &mut Order| !self.lead.is_over() && self.muster.is_enough(order, now);
        let Some(mut order) = self.held.take_if(enough) else { return Ok(()) };
        self.muster.arrange(&mut order);
        self.lead = Lead::new(&order);
        let bytes = postcard::to_stdvec(&order).map_err(|error| MoverError::Order(error.to_string()))?;
        let (length, lent) = (bytes.len() as u64, self.peers.lend(Pages::from(&bytes[..]))?);
        for rank in 1..self.peers.size() {
            self.peers.send(rank, &MoverMessage::Order { key: lent.key(), length })?;
        }
        self.order_lent = Some(lent);
        self.order = Some(order);
        Ok(())
    }

    /// Opens the sources of this node.
    fn begin(&mut self, shared: &WorkState) -> Result<(), MoverError> {
        let Some(order) = self.order.take() else { return Ok(()) };
        let opened = self.look(&order).and_then(|()| self.open_sources(&order));
        self.order = Some(order);
        opened?;
        self.hear_early(shared)
    }

    /// Checks the places of this node.
    fn look(&mut self, order: &Order) -> Result<(), MoverError> {
        let me = self.peers.me();
        for (number, Look { at, role }) in (0..).zip(&order.looks).filter(|(_, look)| look.at.rank == me) {
            let found = look(&at_home(&at.path), *role).cut(message::LONGEST / 4 - 16);
            self.peers.send(0, &MoverMessage::Looked { look: number, found })?;
        }
        Ok(())
    }

    fn open_sources(&mut self, order: &Order) -> Result<(), MoverError> {
        let me = self.peers.me();
        for (number, task) in (0..).zip(&order.tasks).filter(|(_, task)| task.from.rank == me) {
            let Some((feeding, announcement)) = Feeding::open(number, task, &order.options, &self.peers)? else {
                self.peers.send(0, &MoverMessage::Absent { task: number })?;
                continue;
            };
            self.feeding.insert(number, feeding);
            for target in &task.to {
                self.peers.send(target.rank, &announcement)?;
            }
        }
        Ok(())
    }

    /// Starts all transfers that can start now.
    fn drive(&mut self, wake: &mut Duration, rate: Option<u64>) -> Result<(), MoverError> {
        let now = self.now();
        let busy = self.receiving.values().filter(|receiving| receiving.is_busy()).count().max(1) as u64;
        let each = rate.map(|rate| (rate / busy).max(1));
        self.receiving.values_mut().for_each(|receiving| receiving.set_rate(now, each));
        let mut numbers: Vec<u32> = self.receiving.keys().copied().collect();
        numbers.sort_unstable();
        let mut open = 0;
        for task in numbers {
            self.tell_pace(task)?;
            let has_turn = open < MOST_OPEN;
            open += usize::from(self.receiving.get(&task).is_some_and(Receiving::awaits_blocks));
            while let Some(receiving) = self.receiving.get_mut(&task).filter(|_| has_turn) {
                match receiving.next(now) {
                    flow::Act::Fetch(block) if receiving.mode() != Mode::Pull => self.await_block(task, block)?,
                    flow::Act::Fetch(block) => {
                        let feeder = receiving.feeder();
                        self.peers.send(feeder, &MoverMessage::Fetch { task, block })?;
                    }
                    flow::Act::Read(offer) => {
                        let feeder = receiving.feeder();
                        let what = Wanted::Block { task, block: offer.block };
                        self.want(feeder, offer.key, offer.length.into(), what)?;
                    }
                    flow::Act::Sleep(until) => {
                        *wake = (*wake).min(until.saturating_sub(now));
                        break;
                    }
                    flow::Act::Wait => break,
                }
            }
            if let Some(receiving) = self.receiving.get_mut(&task) {
                receiving.tell(now, false, &mut self.peers)?;
            }
        }
        self.push(now, wake)
    }
}

/// Finds a fault in an order.
pub(crate) fn check(order: &Order, ranks: u32) -> Result<(), MoverError> {
    if order.tasks.is_empty() == order.looks.is_empty() {
        return Err(MoverError::Order("it has nothing to move and nothing to look at, or both".to_owned()));
    }
    let moved = order.tasks.iter().flat_map(|task| std::iter::once(&task.from).chain(&task.to));
    for spot in moved.chain(order.looks.iter().map(|look| &look.at)) {
        if spot.rank >= ranks {
            return Err(MoverError::Order(format!("{}: there is no rank {}", spot.typed, spot.rank)));
        }
        if spot.path.is_empty() || spot.path.contains(&0) {
            return Err(MoverError::Order(format!("{}: no path", spot.typed)));
        }
    }
    for task in &order.tasks {
        let mut ranks: Vec<u32> = task.to.iter().map(|spot| spot.rank).collect();
        ranks.sort_unstable();
        if ranks.is_empty() || ranks.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(MoverError::Order(format!("{}: each target needs a node of its own", task.from.typed)));
        }
    }
    if order.options.rate == Some(0) {
        return Err(MoverError::Order("a rate of 0".to_owned()));
    }
    Ok(())
}
