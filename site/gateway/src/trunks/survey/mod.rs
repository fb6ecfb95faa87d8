//! A gateway's survey of the network between sites: it watches its own trunks, measures those whose rate a job needs,
//! reports to the other gateways, and gives the members of each job the table of their sites.
//!
//! [`estimate`] makes a trunk's figures, [`board`] keeps those of all trunks, [`turn`] decides when to measure.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep};
use types::JobId;
use types::links::{LinkTable, MAX_SITES};
use types::sites::SitesFile;
use wire::control::LinksMessage;
use wire::control::links::{GatewayName, MAX_MEASURE_S};
use wire::view::PairView;

use crate::path::link::Link;
use crate::path::member::Member;
use crate::table::TrunkId;
use crate::table::error::Violation;
use crate::table::job::is_rank;
use crate::trunks::list::TrunkList;
use crate::trunks::measure::{Extent, Measuring};
use crate::trunks::trunk::Trunk;

use self::board::{Board, Row, RowRate};
use self::estimate::{Estimate, Look, TICK};

mod board;
mod estimate;
mod turn;

/// Ticks between two rounds of reports: members and gateways get one at most once a second.
const TELL: u64 = 10;
/// Most bytes that an idle trunk is sent in a tick, for heartbeats and control messages.
const LITTLE: u64 = 4 << 10;
/// Time for which a trunk is still looked at after it was last busy: the kernel's queue drains.
const AFTER: Duration = Duration::from_millis(300);
/// Interval between pings of an idle trunk; [`PING_AFTER`] is the time from its last traffic to the first. A busy
/// machine answers some pings late, so the shortest of several counts.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_AFTER: Duration = Duration::from_millis(500);
const PING: Duration = Duration::from_secs(2);
const PINGS: usize = 3;
/// Time for which no rank may have sent or received anything by this gateway before it measures.
const QUIET: Duration = Duration::from_secs(2);
/// While the last frame of another gateway's transfer to this one is younger than this, the transfer is in progress.
const RECEIVING: Duration = Duration::from_millis(300);
/// Limits of a measurement: TCP needs about a second, or bytes beyond slow start.
const EXTENT: Extent = Extent { bytes: 64 << 20, lasts: Duration::from_secs(1) };
/// Rates that other gateways believe.
const RATES: (f64, f64) = (1e3, 1e12);
/// Most pairs in a view, so that it fits a message.
const SHOWN: usize = 3000;

/// See the module docs.
pub(crate) struct Survey {
    list: Rc<TrunkList>,
    measuring: Rc<Measuring>,
    /// The beginning of this gateway's clock.
    since: Instant,
    board: RefCell<Board>,
    trunks: RefCell<HashMap<TrunkId, WatchedTrunk>>,
    /// The table that members of each job have or get.
    tables: RefCell<HashMap<JobId, LinkTable>>,
    /// End of the time in which a user wants stale pairs measured.
    wanted: Cell<Option<Instant>>,
    /// Bytes of ranks' frames, and the time of their last change.
    traffic: Cell<(u64, Option<Instant>)>,
    /// The last turn that was taken.
    taken: Cell<Option<u64>>,
    /// Arrival of the last frame of another gateway's transfer.
    receiving: Cell<Option<Instant>>,
}

/// A trunk of this gateway.
#[derive(Debug)]
struct WatchedTrunk {
    estimate: Estimate,
    /// By index of the link: the time when that link came up, and the last look at it.
    looks: HashMap<usize, (Instant, Look)>,
    looked: Instant,
    sent: u64,
    /// Last time when more than [`LITTLE`] was sent.
    busy: Option<Instant>,
    pinged: Option<Instant>,
    /// While a transfer for this purpose is in progress: the estimate from the kernel's samples of it.
    measuring: Option<Estimate>,
    /// End of the last transfer. Frames that it left in queues show nothing new.
    measured: Option<Instant>,
}

impl Survey {
    /// `list`: the trunks to watch.
    pub(crate) fn new(list: Rc<TrunkList>, measuring: Rc<Measuring>) -> Survey {
        let own = GatewayName { site: list.sites.site.clone(), gateway: list.sites.gateway.clone() };
        let board = Board::new(own, names(&list.sites.file.borrow()));
        Survey {
            list,
            measuring,
            since: Instant::now(),
            board: RefCell::new(board),
            trunks: RefCell::default(),
            tables: RefCell::default(),
            wanted: Cell::default(),
            traffic: Cell::default(),
            taken: Cell::default(),
            receiving: Cell::default(),
        }
    }

    /// Adopts a changed sites file.
    pub(crate) fn adopt(&self, file: &SitesFile) {
        self.board.borrow_mut().adopt(names(file));
    }

    /// Notes that the other gateway's process is a new one.
    pub(crate) fn restarted(&self, trunk: &Trunk) {
        self.board.borrow_mut().restarted(&name(trunk));
    }

    /// Notes the arrival of a frame of another gateway's transfer.
    pub(crate) fn receives(&self, now: Instant) {
        self.receiving.set(Some(now));
    }

    fn with<R>(&self, trunk: TrunkId, now: Instant, then: impl FnOnce(&mut WatchedTrunk) -> R) -> R {
        then(self.trunks.borrow_mut().entry(trunk).or_insert_with(|| WatchedTrunk {
            estimate: Estimate::default(),
            looks: HashMap::new(),
            looked: now,
            sent: 0,
            busy: None,
            pinged: None,
            measuring: None,
            measured: None,
        }))
    }
}

/// Looks at the bytes that a link has carried until now. `blind`: the kernel does not see the path.
fn look(link: &Link, blind: bool) -> Look {
    let kernel = if blind { None } else { link.kernel().ok() };
    Look {
        kernel: kernel.and_then(|kernel| Some((kernel.acknowledged?, kernel.delivery))),
        sent: link.sent.get(),
        shortest: kernel.and_then(|kernel| kernel.shortest),
        queued: link.queued() as u64,
    }
}

fn names(file: &SitesFile) -> Vec<(String, Vec<String>)> {
    let gateways = |site: &types::sites::Site| site.gateways.iter().map(|gateway| gateway.name.clone()).collect();
    file.sites.iter().map(|site| (site.name.clone(), gateways(site))).collect()
}

fn name(trunk: &Trunk) -> GatewayName {
    GatewayName { site: trunk.site.clone(), gateway: trunk.gateway.clone() }
}

impl Survey {
    /// Watches the trunks forever.
    pub(crate) async fn watch(self: &Rc<Self>) -> Infallible {
        let mut ticks = 0u64;
        loop {
            sleep(TICK).await;
            ticks = ticks.wrapping_add(1);
            let now = self.list.path.tick();
            self.list.in_use().iter().for_each(|trunk| self.look_at(trunk, now));
            self.note_traffic(now);
            self.take_turn(now);
            if ticks.is_multiple_of(TELL) {
                self.tell_gateways(now);
                self.tell_members();
            }
        }
    }

    fn clock(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn clock_ms(&self, now: Instant) -> i64 {
        i64::try_from(self.clock(now).as_millis()).unwrap_or(i64::MAX)
    }

    /// Notes the bytes that a trunk has carried, and pings it when it is idle.
    fn look_at(self: &Rc<Self>, trunk: &Rc<Trunk>, now: Instant) {
        let links = trunk.up_links();
        if links.is_empty() {
            return self.with(trunk.id, now, |watched| watched.pinged = None);
        }
        // The kernel's figures would describe the path to ssh, or to the gateway where the two have met.
        let blind = trunk.through_ssh || trunk.hidden;
        let sent = links.iter().map(|link| link.sent.get()).sum::<u64>();
        let pings = self.with(trunk.id, now, |watched| {
            if sent.abs_diff(std::mem::replace(&mut watched.sent, sent)) > LITTLE || watched.looks.is_empty() {
                watched.busy = Some(now);
            }
            let since_busy = watched.busy.map(|busy| now - busy);
            if since_busy.is_some_and(|since| since <= AFTER) {
                let passed = now - std::mem::replace(&mut watched.looked, now);
                let mut carried = Vec::new();
                for link in &links {
                    let look = look(link, blind);
                    let before = watched.looks.insert(link.index, (link.since, look));
                    let before = before.filter(|(since, _)| *since == link.since).map(|(_, before)| before);
                    watched.estimate.shortest(look.shortest, before.and_then(|before| before.shortest));
                    carried.extend(before.map(|before| look.since(&before, passed)));
                }
                match &mut watched.measuring {
                    Some(estimate) => estimate.carried(&carried, passed, self.clock(now), blind),
                    None if watched.measured.is_some_and(|measured| now - measured <= AFTER * 2) => {}
                    None => watched.estimate.carried(&carried, passed, self.clock(now), blind),
                }
            }
            let idle = watched.estimate.round_trip().is_none() || since_busy.is_none_or(|since| since >= PING_AFTER);
            let due =
                idle && watched.measuring.is_none() && watched.pinged.is_none_or(|pinged| now - pinged >= PING_EVERY);
            if due {
                watched.pinged = Some(now);
            }
            due
        });
        if pings {
            let trunk = trunk.clone();
            let survey = self.clone();
            tokio::task::spawn_local(async move {
                let mut shortest: Option<Duration> = None;
                for _ in 0..PINGS {
                    let Ok(round_trip) = trunk.ping(&survey.list.path, PING).await else { break };
                    shortest = Some(shortest.map_or(round_trip, |before| before.min(round_trip)));
                }
                if let Some(round_trip) = shortest {
                    let now = Instant::now();
                    survey.with(trunk.id, now, |watched| watched.estimate.pinged(round_trip));
                }
            });
        }
    }

    /// Notes the time if ranks use this gateway.
    fn note_traffic(&self, now: Instant) {
        let total = self.rank_traffic();
        if self.traffic.get().0 != total {
            self.traffic.set((total, Some(now)));
        }
    }

    fn rank_traffic(&self) -> u64 {
        let table = self.list.path.table.read();
        table.jobs.values().fold(0, |sum, job| sum.wrapping_add(job.traffic.sent).wrapping_add(job.traffic.received))
    }

    /// Measures a trunk if it is this gateway's turn, the trunk's rate is stale, a job or a user needs it, and no rank
    /// uses the gateway.
    fn take_turn(self: &Rc<Self>, now: Instant) {
        let wanted = self.wanted.get().is_some_and(|until| now < until);
        if !wanted && self.list.path.table.read().jobs.values().all(|job| job.closing || job.sites.len() < 2) {
            return;
        }
        let recently = |at: Option<Instant>, limit| at.is_some_and(|at| now - at < limit);
        if recently(self.traffic.get().1, QUIET) || recently(self.receiving.get(), RECEIVING) {
            return;
        }
        let clock_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let Some((turn, receiver)) = self.turn_to_send(clock_ms) else { return };
        if self.taken.get() == Some(turn.number) || !(wanted || self.is_in_a_job(&receiver.site)) {
            return;
        }
        let trunk = self.list.in_use().into_iter().find(|trunk| name(trunk) == receiver && trunk.is_up());
        let Some(trunk) = trunk else { return };
        if self.with(trunk.id, now, |watched| watched.estimate.is_stale(self.clock(now))) {
            self.taken.set(Some(turn.number));
            let survey = self.clone();
            tokio::task::spawn_local(async move { survey.measure_rate(&trunk).await });
        }
    }

    /// The turn that begins now, and the gateway to send to.
    fn turn_to_send(&self, clock_ms: u64) -> Option<(turn::SendingTurn, GatewayName)> {
        let (file, (site, number)) = (self.list.sites.file.borrow(), self.list.sites.own.get());
        let turn = turn::turn(file.sites.len(), site, clock_ms)?;
        let there = &file.sites[turn.to];
        let partner = turn::partner(number, file.sites[site].gateways.len(), there.gateways.len(), turn.cycle)?;
        Some((turn, GatewayName { site: there.name.clone(), gateway: there.gateways[partner].name.clone() }))
    }

    /// Returns true if a job with ranks at both sites is open here.
    fn is_in_a_job(&self, site: &str) -> bool {
        self.list.path.table.read().jobs.values().any(|job| {
            let has_ranks = |name: &str| job.roster.sites().iter().any(|one| one.name == name && one.size() > 0);
            !job.closing && has_ranks(&self.list.sites.site) && has_ranks(site)
        })
    }

    async fn measure_rate(&self, trunk: &Trunk) {
        let Some(_turn) = self.measuring.turn() else { return };
        self.with(trunk.id, Instant::now(), |watched| watched.measuring = Some(watched.estimate.afresh()));
        let before = self.rank_traffic();
        let found = match trunk.ping(&self.list.path, PING).await {
            Ok(rtt) => self.measuring.transfer(trunk, rtt, EXTENT, || self.rank_traffic() != before).await,
            Err(error) => Err(error),
        };
        let now = Instant::now();
        self.with(trunk.id, now, |watched| {
            watched.measured = Some(now);
            // After a loss, the frames behind it arrive late and all at once. The kernel counts the delivered bytes.
            let sampled = watched.measuring.take().and_then(|estimate| estimate.rate());
            match &found {
                Ok((bytes, lasted)) => {
                    let timed = *bytes as f64 / lasted.as_secs_f64().max(1e-6);
                    watched.estimate.measured(sampled.map_or(timed, |rate| rate.bytes_s), self.clock(now));
                }
                Err(error) => tracing::debug!(site = trunk.site, gateway = trunk.gateway, %error, "rate not measured"),
            }
        });
    }

    /// Sends the other gateways the figures that have changed.
    fn tell_gateways(&self, now: Instant) {
        let (survey, now_ms) = (self, self.clock_ms(now));
        for trunk in self.list.in_use() {
            let row = survey.with(trunk.id, now, |watched| Row {
                round_trip: watched.estimate.round_trip().map(|trip| trip.max(Duration::from_micros(1))),
                rate: watched.estimate.rate().map(|rate| RowRate {
                    bytes_s: rate.bytes_s.clamp(RATES.0, RATES.1) as u64,
                    at_ms: i64::try_from(rate.at.as_millis()).unwrap_or(i64::MAX),
                    active: rate.active,
                }),
            });
            if row != Row::default() {
                survey.board.borrow_mut().measured(&name(&trunk), row);
            }
        }
        for trunk in self.list.in_use().iter().filter(|trunk| trunk.is_up()) {
            let news = survey.board.borrow_mut().news(&name(trunk), now_ms);
            if let Some(message) = news {
                trunk.send_control(&self.list.path, message);
            }
        }
    }

    /// Sends each job's ranks the table of its sites if it has changed. A rank that has not read the last one gets no
    /// other until it has.
    fn tell_members(&self) {
        let mut told: Vec<(Rc<Member>, LinkTable)> = Vec::new();
        {
            let (table, board) = (self.list.path.table.read(), self.board.borrow());
            let mut tables = self.tables.borrow_mut();
            tables.retain(|id, _| table.jobs.contains_key(id));
            for (id, job) in table.jobs.iter().filter(|(_, job)| !job.closing) {
                let sites = job.roster.sites();
                if !(2..=MAX_SITES).contains(&sites.len()) {
                    continue;
                }
                let before = tables.entry(*id).or_insert_with(|| LinkTable::unknown(sites.len()));
                let now = board.table(sites.iter().map(|site| site.name.as_str()));
                if now.differs(before) {
                    *before = now.numbered(before.version().wrapping_add(1).max(1));
                }
                let ranks = job.members.iter().filter(|(slot, _)| is_rank(**slot)).map(|(_, member)| member);
                let behind = ranks.filter(|rank| rank.links.get() != before.version() && rank.outlet.queued() == 0);
                told.extend(behind.map(|rank| (rank.clone(), before.clone())));
            }
        }
        told.iter().for_each(|(rank, table)| rank.send_links(&self.list.path, table));
    }

    /// Sends a newly admitted rank the table that its job's ranks have.
    pub(crate) fn tell_links(&self, rank: &Member) {
        let known = self.tables.borrow().get(&rank.job.get()).cloned();
        if let Some(table) = known.filter(|table| table.version() > 0 && is_rank(rank.identity.get().slot)) {
            rank.send_links(&self.list.path, &table);
        }
    }

    /// Handles a message about links from a trunk.
    ///
    /// # Errors
    /// No gateway that follows the protocol sends it: close the link.
    pub(crate) fn handle_trunk_message(&self, trunk: TrunkId, message: LinksMessage) -> Result<(), Violation> {
        let trunk = self.list.get(trunk);
        match message {
            LinksMessage::Figures { version, rows } => {
                let now_ms = self.clock_ms(self.list.path.tick());
                self.board.borrow_mut().take(&name(&trunk), version, rows, now_ms)
            }
            LinksMessage::Measure { seconds } => {
                self.want_measured(seconds);
                Ok(())
            }
            LinksMessage::Measuring { .. } => {
                Err(Violation(format!("site {} may not send a message for users", trunk.site)))
            }
        }
    }

    /// Handles a message about links from a member.
    ///
    /// # Errors
    /// A member may not send this message: close its connection.
    pub(crate) fn handle_member_message(&self, member: &Member, message: LinksMessage) -> Result<(), Violation> {
        let LinksMessage::Measure { seconds } = message else {
            return Err("only gateways send figures of links".into());
        };
        self.want_measured(seconds);
        for trunk in self.list.in_use().iter().filter(|trunk| trunk.is_up()) {
            trunk.send_control(&self.list.path, LinksMessage::Measure { seconds: seconds.min(MAX_MEASURE_S) });
        }
        let file = self.list.sites.file.borrow();
        let most = file.sites.iter().map(|site| site.gateways.len()).max().unwrap_or(1);
        let seconds = u32::try_from(turn::all_within_s(file.sites.len(), most)).unwrap_or(u32::MAX);
        member.send_control(&self.list.path, LinksMessage::Measuring { seconds });
        Ok(())
    }

    fn want_measured(&self, seconds: u32) {
        let until = self.list.path.tick() + Duration::from_secs(seconds.min(MAX_MEASURE_S).into());
        let before = self.wanted.get();
        self.wanted.set(Some(before.map_or(until, |before| before.max(until))));
    }

    /// The figures of each pair of sites, for users.
    pub(crate) fn pair_views(&self) -> Vec<PairView> {
        let now_ms = self.clock_ms(Instant::now());
        let board = self.board.borrow();
        let view = |(from, to, pair): (&str, &str, board::PathFigures)| PairView {
            from: from.to_owned(),
            to: to.to_owned(),
            rtt_us: pair.round_trip.map(|trip| u64::try_from(trip.as_micros()).unwrap_or(u64::MAX)),
            rate: pair.rate.map(|rate| rate.bytes_s),
            age_ms: pair.age_ms(now_ms),
            active: pair.rate.is_some_and(|rate| rate.active),
            stale: pair.is_stale(now_ms),
        };
        board.pairs().take(SHOWN).map(view).collect()
    }
}
