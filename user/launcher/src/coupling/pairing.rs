//! A side of a coupling and its choice of a partner: it reads what boards report and decides what to post. No I/O; time
//! is an argument.
//!
//! A board has room for two sides, so sides that join at the same time may see different others. A pair needs two
//! posts: the side with the lower number *offers* a job to one other side at a time, and that one *accepts* it, once.
//! Both sides of a pair refuse a third side. A side without a partner accepts the refusal only if the pair persists.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use types::Roster;
use types::coupling::{Coupled, HelperReport};
use types::untrusted::{UntrustedText, printable};
use wire::control::coupling::{Coupling, CouplingMessage, Posted, SILENCE_S};

use super::CouplingError;
use super::side::{About, Offer, RefusedSide, matched};

/// Time for which the other side may be missing from all boards that knew it.
const ABSENT: Duration = Duration::from_secs(4);
/// Time for which it may be missing from a board that has just been restarted: long enough for several of its messages.
const UNKNOWN: Duration = Duration::from_secs(12);
/// Time until a report counts that a side is missing: reports can overtake each other.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// Time for a board to take this side, after one refused it: long enough for boards to forget sides that were killed.
const ELSEWHERE: Duration = Duration::from_secs(SILENCE_S + 2);
/// Time for a pair that refuses this side to end: long enough for one of them to notice that the other was killed, so
/// that a program that is started again finds the survivor.
const OCCUPIED: Duration = Duration::from_secs(6);
/// Most refusals that a side posts at a time.
const REFUSALS: usize = 16;

/// A step for the helper, which carries them out in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Post [`Pairing::post`].
    Post,
    /// Open a job of this roster, to offer it to this side. It replaces the one before.
    Open { roster: Roster, to: u64 },
    /// End the job that is open or being opened.
    Abandon,
    /// Pass a line to the process.
    Say(HelperReport),
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Looking,
    /// This side opens a job for the other.
    Opening {
        to: u64,
    },
    /// It has offered the job.
    Offering {
        to: u64,
    },
    Coupled {
        with: u64,
    },
}

/// A side that looks for a partner, or has one.
#[derive(Debug)]
pub(super) struct Pairing {
    coupling: Coupling,
    side: u64,
    about: About,
    revision: u64,
    state: State,
    /// For each board, its latest report, and when that came.
    boards: HashMap<String, (View, Instant)>,
    /// The latest post of each other side.
    met: HashMap<u64, Met>,
    /// Time since which no board has named the side that this one has chosen.
    absent: Option<Instant>,
    /// True if a board has lost this side's post, and has not named the partner since.
    unknown: bool,
    /// Time since which this side has been refused and is on no board, and the reason.
    refused: Option<(Instant, String)>,
    /// A side with a partner that refuses this one.
    turned_down: Option<TurnedDown>,
    /// The last side that has left without a pair, for messages.
    left: Option<String>,
}

/// A refusal of this side by one of a pair.
#[derive(Debug)]
struct TurnedDown {
    by: u64,
    since: Instant,
    /// The home sites of the pair.
    pair: [String; 2],
}

#[derive(Debug, PartialEq, Eq)]
enum View {
    /// This side is posted there, together with this other one, if any.
    Seen(Option<u64>),
    /// Two others are posted there.
    Full,
}

#[derive(Debug)]
struct Met {
    revision: u64,
    about: About,
}

type Actions = Result<Vec<Action>, CouplingError>;

impl Pairing {
    /// `side`: this side's number, which is random.
    pub(super) fn new(coupling: Coupling, side: u64, about: About) -> Pairing {
        Pairing {
            coupling,
            side,
            about,
            revision: 1,
            state: State::Looking,
            boards: HashMap::new(),
            met: HashMap::new(),
            absent: None,
            unknown: false,
            refused: None,
            turned_down: None,
            left: None,
        }
    }

    /// This side's post.
    pub(super) fn post(&self) -> CouplingMessage {
        let (coupling, side, revision) = (self.coupling.clone(), self.side, self.revision);
        let (partner, ended) = (self.chosen(), self.about.ended.is_some());
        CouplingMessage::Post { coupling, side, revision, partner, ended, about: self.about.text() }
    }

    /// The message that keeps the post on boards.
    pub(super) fn renewal(&self) -> CouplingMessage {
        CouplingMessage::Renew { coupling: self.coupling.clone(), side: self.side, revision: self.revision }
    }

    /// The message that removes it from them.
    pub(super) fn leave(&self) -> CouplingMessage {
        CouplingMessage::Leave { coupling: self.coupling.clone(), side: self.side, everywhere: true }
    }

    /// Forgets the reports of all boards: no gateway is connected, or may not be.
    pub(super) fn forget_boards(&mut self) {
        self.boards.clear();
    }

    pub(super) fn is_coupled(&self) -> bool {
        matches!(self.state, State::Coupled { .. })
    }

    /// Returns true if this side has a partner that no board names.
    pub(super) fn lacks_partner(&self) -> bool {
        matches!(self.state, State::Coupled { with } if !self.is_posted(with))
    }

    /// Notes whom a board's report names, and nothing else: this side has ended.
    pub(super) fn note(&mut self, message: &CouplingMessage, now: Instant) {
        let named = match message {
            CouplingMessage::Other { board, other, .. } => Some((board, other.as_ref().map(|posted| posted.side))),
            CouplingMessage::Renewed { board, other, .. } => Some((board, *other)),
            _ => None,
        };
        if let Some((board, other)) = named.filter(|_| message.about() == (&self.coupling, self.side)) {
            self.saw(board.clone(), View::Seen(other), now);
        }
    }

    /// Notes the end of this side, for the last post.
    pub(super) fn end(&mut self, reason: String) {
        self.change(|about| (about.ended, about.offer) = (Some(reason), None));
    }

    /// Time since which the partner has been missing from all boards, and the time for which it may be.
    pub(super) fn absent(&self) -> Option<(Instant, Duration)> {
        let since = self.absent.filter(|_| self.is_coupled());
        since.map(|since| (since, if self.unknown { UNKNOWN } else { ABSENT }))
    }

    /// The error for a partner that has been missing for too long.
    pub(super) fn gone(&self) -> CouplingError {
        let other = self.partner().map(About::summary).unwrap_or_default();
        CouplingError::Left { other, reason: "there is no sign of life of it".into() }
    }

    /// Time since which this side has been refused, and the time after which that counts.
    pub(super) fn refused(&self) -> Option<(Instant, Duration)> {
        let by_boards = self.refused.as_ref().map(|(since, _)| (*since, ELSEWHERE));
        by_boards.into_iter().chain(self.turned_down()).min_by_key(|(since, patience)| *since + *patience)
    }

    fn turned_down(&self) -> Option<(Instant, Duration)> {
        self.turned_down.as_ref().map(|refusal| (refusal.since, OCCUPIED))
    }

    /// The error for a side that no board has taken, or that a pair has refused.
    pub(super) fn refusal(&self) -> CouplingError {
        match &self.turned_down {
            Some(TurnedDown { pair: [one, other], .. }) if self.turned_down() == self.refused() => {
                let (one, other) = (one.clone(), other.clone().into());
                CouplingError::TwoSides { coupling: self.coupling.clone(), one, other }
            }
            _ => CouplingError::Refused(self.refused.as_ref().map(|(_, reason)| reason.clone()).unwrap_or_default()),
        }
    }

    /// Processes a message of a board.
    ///
    /// # Errors
    /// This side cannot be coupled, or the coupling has ended.
    pub(super) fn heard(&mut self, message: CouplingMessage, now: Instant) -> Actions {
        if message.about() != (&self.coupling, self.side) {
            return Ok(Vec::new());
        }
        match message {
            CouplingMessage::Other { board, other: Some(posted), .. } => {
                let side = posted.side;
                self.saw(board, View::Seen(Some(side)), now);
                if self.is_third(side) {
                    return Ok(self.refuse_thirds());
                }
                self.read(posted)?;
                let mut actions = self.consider(side, now)?;
                actions.extend(self.look_around(now)?);
                Ok(actions)
            }
            CouplingMessage::Other { board, other: None, .. } => {
                self.saw(board, View::Seen(None), now);
                let actions = self.look_around(now)?;
                Ok(if actions.is_empty() { self.waiting() } else { actions })
            }
            CouplingMessage::Renewed { board, other, revision, .. } => {
                self.saw(board, View::Seen(other), now);
                let is_news = |other| self.met.get(other).is_none_or(|met| met.revision < revision);
                if other.as_ref().filter(|other| !self.is_third(**other)).is_some_and(is_news) {
                    // The report of that post was lost. Boards report again if this side posts again.
                    return Ok(vec![Action::Post]);
                }
                let mut actions = self.refuse_thirds();
                actions.extend(self.look_around(now)?);
                Ok(actions)
            }
            CouplingMessage::Unposted { board, .. } => {
                self.unknown |= !matches!(self.boards.get(&board), Some((View::Full, _)));
                Ok(vec![Action::Post])
            }
            CouplingMessage::Unreached { reason, .. } => {
                let site = &self.coupling.site;
                let text = format!("no trunk to site {site} is up: {reason}");
                Ok(if self.is_seen() { Vec::new() } else { vec![Action::Say(HelperReport::Waiting(text))] })
            }
            CouplingMessage::Refused { board, silent_ms, reason, .. } => {
                if let Some(board) = board {
                    self.saw(board, View::Full, now);
                }
                let mut actions = self.look_around(now)?;
                if self.is_seen() || self.partner().is_some() {
                    return Ok(actions);
                }
                match &self.refused {
                    None => {
                        actions.push(Action::Say(HelperReport::Waiting(reason.clone())));
                        self.refused = Some((now, reason));
                    }
                    // The two at that board have renewed themselves since: they exist.
                    Some((since, _)) => {
                        let exist = silent_ms.is_some_and(|ms| now - *since > Duration::from_millis(ms));
                        if exist && now - *since >= OCCUPIED {
                            return Err(CouplingError::Refused(reason));
                        }
                    }
                }
                Ok(actions)
            }
            CouplingMessage::Post { .. } | CouplingMessage::Renew { .. } | CouplingMessage::Leave { .. } => {
                Ok(Vec::new())
            }
        }
    }

    /// The job for another side is open.
    pub(super) fn opened(&mut self, offer: Offer) -> Vec<Action> {
        if self.state != (State::Opening { to: offer.to }) {
            return vec![Action::Abandon];
        }
        self.state = State::Offering { to: offer.to };
        self.change(|about| about.offer = Some(offer));
        vec![Action::Post]
    }

    fn change(&mut self, change: impl FnOnce(&mut About)) {
        change(&mut self.about);
        self.revision += 1;
    }

    /// A board's report.
    fn saw(&mut self, board: String, view: View, now: Instant) {
        self.boards.insert(board, (view, now));
        // A lost gateway sends no more reports, so its last one expires.
        self.boards.retain(|_, (_, heard)| now - *heard < Duration::from_secs(SILENCE_S));
        if self.is_seen() {
            self.refused = None;
        }
        if self.turned_down.as_ref().is_some_and(|refusal| !self.is_posted(refusal.by)) {
            self.turned_down = None;
        }
        match self.chosen() {
            Some(chosen) if !self.is_posted(chosen) => drop(self.absent.get_or_insert(now)),
            _ => (self.absent, self.unknown) = (None, false),
        }
    }

    /// The side that this one has chosen.
    fn chosen(&self) -> Option<u64> {
        match self.state {
            State::Looking => None,
            State::Opening { to } | State::Offering { to } => Some(to),
            State::Coupled { with } => Some(with),
        }
    }

    /// The other sides that boards name.
    fn posted(&self) -> impl Iterator<Item = u64> {
        self.boards.values().filter_map(|(view, _)| if let View::Seen(other) = view { *other } else { None })
    }

    /// Returns true if this side is on any board.
    fn is_seen(&self) -> bool {
        self.boards.values().any(|(view, _)| matches!(view, View::Seen(_)))
    }

    /// Returns true if any board names this other side.
    fn is_posted(&self, side: u64) -> bool {
        self.posted().any(|other| other == side)
    }

    /// True for a side that came although this one has a partner.
    fn is_third(&self, side: u64) -> bool {
        matches!(self.state, State::Coupled { with } if with != side)
    }

    fn partner(&self) -> Option<&About> {
        let State::Coupled { with } = self.state else { return None };
        self.met.get(&with).map(|met| &met.about)
    }

    fn waiting(&self) -> Vec<Action> {
        let left = self.left.as_deref().unwrap_or_default();
        match self.state {
            State::Looking => {
                vec![Action::Say(HelperReport::Waiting(format!("nobody else has joined {}{left}", self.coupling)))]
            }
            _ => Vec::new(),
        }
    }

    /// Reads another side's post, unless it is older than what is known.
    ///
    /// # Errors
    /// The post cannot be read, or it claims to be from another site.
    fn read(&mut self, Posted { side, home, revision, about }: Posted) -> Result<(), CouplingError> {
        if self.met.get(&side).is_some_and(|met| met.revision > revision) {
            return Ok(());
        }
        let about = About::read(&about).map_err(|source| CouplingError::Other { home: home.clone(), source })?;
        if about.home != home {
            let (coupling, said) = (self.coupling.clone(), UntrustedText::from(about.home));
            return Err(CouplingError::Posing { home, said, coupling });
        }
        self.met.insert(side, Met { revision, about });
        // Sides that no board names any more are forgotten.
        let posted: Vec<u64> = self.posted().collect();
        let chosen = self.chosen();
        self.met.retain(|known, _| *known == side || posted.contains(known) || chosen == Some(*known));
        Ok(())
    }

    /// Decides what the latest post of another side means for this one.
    fn consider(&mut self, side: u64, now: Instant) -> Actions {
        let Some(about) = self.met.get(&side).map(|met| met.about.clone()) else { return Ok(Vec::new()) };
        let is_chosen = self.chosen() == Some(side);
        let own_job = self.about.offer.as_ref().filter(|offer| offer.to == side).map(|offer| offer.job);
        let has_accepted = own_job.is_some() && about.accepted == own_job;
        if is_chosen && has_accepted && matches!(self.state, State::Offering { .. }) {
            // The pair is complete, even if this side has left since. The next report of it ends the coupling.
            return self.couple(side, &about);
        }
        if let Some(reason) = &about.ended {
            let (other, reason) = (about.summary(), printable(reason));
            if matches!(self.state, State::Coupled { with } if with == side) {
                return Err(CouplingError::Left { other, reason });
            }
            // The end of a side that was no partner is no error: a gateway that was unreachable may still have named a
            // side of before. But it may explain a long wait.
            self.left = Some(format!("; another side ({other}) has left: {reason}"));
            self.turned_down.take_if(|refusal| refusal.by == side);
            let mut actions = if is_chosen { self.withdraw(now)? } else { Vec::new() };
            actions.extend(self.waiting());
            return Ok(actions);
        }
        if let Some(refusal) = about.refused.iter().find(|refusal| refusal.side == self.side) {
            if self.turned_down.is_some() {
                return Ok(Vec::new());
            }
            let pair = [about.home, refusal.partner.clone()];
            self.turned_down = Some(TurnedDown { by: side, since: now, pair });
            return Ok(vec![Action::Say(HelperReport::Waiting(self.refusal().to_string()))]);
        }
        let offered = about.offer.as_ref().filter(|offer| offer.to == self.side).map(|offer| offer.job);
        match self.state {
            State::Coupled { .. } => {
                if has_accepted || (offered.is_some() && offered == self.about.accepted) {
                    return Ok(Vec::new());
                }
                let reason = "it has given up this side".to_owned();
                Err(CouplingError::Left { other: about.summary(), reason })
            }
            State::Opening { .. } | State::Offering { .. } => Ok(Vec::new()),
            State::Looking => {
                let (roster, _) = self.matched(side, &about)?;
                if let Some(job) = offered.filter(|_| side < self.side) {
                    self.change(|own| own.accepted = Some(job));
                    return self.couple(side, &about);
                }
                // A side with a lower number will offer a job, and one that is about to pair with another will refuse
                // this one or look again.
                if side < self.side || about.accepted.is_some() || about.offer.is_some() {
                    return Ok(Vec::new());
                }
                self.state = State::Opening { to: side };
                Ok(vec![Action::Open { roster, to: side }])
            }
        }
    }

    /// The roster and the ranks of a pair with this other side, the side with the lower number first.
    fn matched(&self, side: u64, other: &About) -> Result<(Roster, [Vec<u32>; 2]), CouplingError> {
        let (one, two) = if self.side < side { (&self.about, other) } else { (other, &self.about) };
        matched(one, two).map_err(|source| CouplingError::Other { home: other.home.clone(), source })
    }

    /// The pair is complete.
    fn couple(&mut self, side: u64, about: &About) -> Actions {
        let first = self.side < side;
        let (roster, [one, two]) = self.matched(side, about)?;
        let Some(offer) = (if first { &self.about.offer } else { &about.offer }) else { return Ok(Vec::new()) };
        let coupled = Coupled {
            job: offer.job.to_string(),
            secret: offer.secret.to_hex(),
            roster: roster.to_string(),
            window: offer.window,
            ranks: if first { [one, two] } else { [two, one] },
            addresses: about.addresses(),
            first,
            other: about.summary(),
        };
        self.state = State::Coupled { with: side };
        (self.refused, self.turned_down) = (None, None);
        let mut actions = vec![Action::Say(HelperReport::Coupled(Box::new(coupled))), Action::Post];
        actions.extend(self.refuse_thirds());
        Ok(actions)
    }

    /// Refuses the third sides that boards name.
    fn refuse_thirds(&mut self) -> Vec<Action> {
        let Some(partner) = self.partner().map(|about| about.home.clone()) else { return Vec::new() };
        let mut news: Vec<u64> = self.posted().filter(|side| self.is_third(*side)).collect();
        news.retain(|side| self.about.refused.iter().all(|refusal| refusal.side != *side));
        news.sort_unstable();
        news.dedup();
        if news.is_empty() {
            return Vec::new();
        }
        self.change(|about| {
            about.refused.extend(news.into_iter().map(|side| RefusedSide { side, partner: partner.clone() }));
            let beyond = about.refused.len().saturating_sub(REFUSALS);
            about.refused.drain(..beyond);
        });
        vec![Action::Post]
    }

    /// Gives up the side that this one has chosen, if it is no longer posted, but another is.
    fn look_around(&mut self, now: Instant) -> Actions {
        let may_withdraw = matches!(self.state, State::Opening { .. } | State::Offering { .. });
        if !may_withdraw || self.absent.is_none_or(|since| now - since < OVERTAKEN) {
            return Ok(Vec::new());
        }
        if self.others().is_empty() { Ok(Vec::new()) } else { self.withdraw(now) }
    }

    /// The other sides that boards name and that have not ended.
    fn others(&self) -> Vec<u64> {
        let has_ended = |side: &u64| self.met.get(side).is_none_or(|met| met.about.ended.is_some());
        let mut others: Vec<u64> = self.posted().filter(|side| !has_ended(side)).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Gives up the side that this one has chosen and has no job with yet, and considers the others.
    fn withdraw(&mut self, now: Instant) -> Actions {
        (self.state, self.absent) = (State::Looking, None);
        self.change(|about| about.offer = None);
        let mut actions = vec![Action::Abandon, Action::Post];
        for other in self.others() {
            actions.extend(self.consider(other, now)?);
        }
        Ok(actions)
    }
}

#[cfg(test)]
mod tests;
