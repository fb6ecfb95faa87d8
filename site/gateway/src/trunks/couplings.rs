//! Couplings: the board on which programs that look for each other post their sides, and the messages to other sites'
//! boards.
//!
//! A gateway keeps the board of its own site's couplings and compares names only. For couplings at other sites it
//! forwards messages, and remembers which of its users asked. A site with several gateways has a board at each of them:
//! a side from another site posts itself on all of them, a side of the site itself only where it is connected.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;
use types::roster::is_name;
use wire::Control;
use wire::control::coupling::{Coupling, CouplingMessage, Posted, SILENCE_S};

use crate::path::member::Member;
use crate::table::TrunkId;
use crate::table::error::Violation;
use crate::table::job::trunks_to;
use crate::trunks::list::TrunkList;

/// Most sides that one site may have posted here.
const MOST_OF_SITE: usize = 256;
const SILENCE: Duration = Duration::from_secs(SILENCE_S);

/// The poster of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poster {
    /// A user of this site, by the number of its connection.
    Member(u64),
    Trunk(TrunkId),
}

/// Reasons for refusing a post. The text is for the user who posted.
#[derive(Debug, Error)]
enum PostError {
    #[error("`{0}` cannot name a coupling: names are 1 to 64 letters, digits, `.`, `_` and `-`")]
    Name(String),
    #[error("{coupling} already has two sides, from {one} and {other}: take another name")]
    TwoSides { coupling: Coupling, one: String, other: String },
    #[error("site {home} already has {count} sides of couplings posted: wait until some end")]
    TooMany { home: String, count: usize },
}

/// The sides that are posted here. No I/O and no clock: the methods return the messages to send.
#[derive(Debug)]
pub(crate) struct Board {
    /// Name of this gateway. A side may be posted at several gateways.
    name: String,
    sides: HashMap<Coupling, Vec<PostedSide>>,
}

#[derive(Debug)]
struct PostedSide {
    place: Poster,
    posted: Posted,
    renewed: Instant,
}

type Answers = Vec<(Poster, CouplingMessage)>;

impl Board {
    pub(crate) fn new(name: &str) -> Board {
        Board { name: name.to_owned(), sides: HashMap::new() }
    }

    /// Handles a message from or about a side. `home`: the site of its sender; the sides of that site may take `most`
    /// bytes.
    pub(crate) fn take(
        &mut self,
        (place, home, most): (Poster, &str, u64),
        message: CouplingMessage,
        now: Instant,
    ) -> Answers {
        let mut answers = self.forget(|side| now - side.renewed > SILENCE);
        match message {
            CouplingMessage::Post { coupling, side, about } => {
                match self.may_post(&coupling, (side, about.len()), (home, most)) {
                    Err(error) => {
                        let reason = error.to_string();
                        answers.push((place, CouplingMessage::Refused { coupling, side, reason }));
                    }
                    Ok(()) => {
                        let sides = self.sides.entry(coupling.clone()).or_default();
                        sides.retain(|one| one.posted.side != side);
                        let posted = Posted { side, home: home.to_owned(), about };
                        sides.push(PostedSide { place, posted, renewed: now });
                        answers.extend(tell(&self.name, &coupling, sides));
                    }
                }
            }
            CouplingMessage::Renew { coupling, side } => {
                let sides = self.sides.get_mut(&coupling).map(Vec::as_mut_slice).unwrap_or_default();
                let other = sides.iter().map(|one| one.posted.side).find(|one| *one != side);
                match sides.iter_mut().find(|one| one.posted.side == side && one.place == place) {
                    Some(found) => {
                        found.renewed = now;
                        let board = self.name.clone();
                        answers.push((place, CouplingMessage::Renewed { coupling, side, board, other }));
                    }
                    None => answers.push((place, CouplingMessage::Unposted { coupling, side })),
                }
            }
            CouplingMessage::Leave { coupling, side } => {
                answers.extend(
                    self.forget_in(&coupling, |one| one.posted.side == side && one.place == place).unwrap_or_default(),
                );
            }
            // Answers of boards: the caller never passes them to a board.
            CouplingMessage::Other { .. }
            | CouplingMessage::Renewed { .. }
            | CouplingMessage::Unposted { .. }
            | CouplingMessage::Unreached { .. }
            | CouplingMessage::Refused { .. } => {}
        }
        answers
    }

    /// Forgets everything posted from a place.
    pub(crate) fn gone(&mut self, place: Poster) -> Answers {
        self.forget(|side| side.place == place)
    }

    /// # Errors
    /// The reason for refusing the post, for the user.
    fn may_post(
        &self,
        coupling: &Coupling,
        (side, length): (u64, usize),
        (home, most): (&str, u64),
    ) -> Result<(), PostError> {
        if !is_name(&coupling.name) {
            return Err(PostError::Name(coupling.name.clone()));
        }
        let others = self.sides.get(coupling).map(Vec::as_slice).unwrap_or_default();
        let others: Vec<&PostedSide> = others.iter().filter(|one| one.posted.side != side).collect();
        if let [one, other, ..] = &others[..] {
            let (one, other) = (one.posted.home.clone(), other.posted.home.clone());
            return Err(PostError::TwoSides { coupling: coupling.clone(), one, other });
        }
        let theirs = || self.sides.values().flatten().filter(|one| one.posted.home == home && one.posted.side != side);
        let bytes = theirs().map(|one| one.posted.about.len()).sum::<usize>() + length;
        if theirs().count() >= MOST_OF_SITE || bytes as u64 > most {
            return Err(PostError::TooMany { home: home.to_owned(), count: theirs().count() });
        }
        Ok(())
    }

    fn forget(&mut self, which: impl Fn(&PostedSide) -> bool) -> Answers {
        let couplings: Vec<Coupling> = self
            .sides
            .iter()
            .filter(|(_, sides)| sides.iter().any(&which))
            .map(|(coupling, _)| coupling.clone())
            .collect();
        couplings.iter().filter_map(|coupling| self.forget_in(coupling, &which)).flatten().collect()
    }

    /// Forgets the matching sides of a coupling. `None`: there was none.
    fn forget_in(&mut self, coupling: &Coupling, which: impl Fn(&PostedSide) -> bool) -> Option<Answers> {
        let sides = self.sides.get_mut(coupling)?;
        let before = sides.len();
        sides.retain(|side| !which(side));
        let answers = if sides.len() == before { None } else { Some(tell(&self.name, coupling, sides)) };
        if sides.is_empty() {
            self.sides.remove(coupling);
        }
        answers
    }
}

/// Reports the other side, if any, to each side.
fn tell(board: &str, coupling: &Coupling, sides: &[PostedSide]) -> Answers {
    let told = |side: &PostedSide| {
        let other = sides.iter().find(|other| other.posted.side != side.posted.side);
        let other = other.map(|other| other.posted.clone());
        (
            side.place,
            CouplingMessage::Other {
                coupling: coupling.clone(),
                side: side.posted.side,
                board: board.to_owned(),
                other,
            },
        )
    };
    sides.iter().map(told).collect()
}

/// A gateway's state of couplings.
pub(crate) struct Couplings {
    list: Rc<TrunkList>,
    board: RefCell<Board>,
    /// Sides that users of this site posted on other sites' boards, by coupling and side.
    away: RefCell<HashMap<(Coupling, u64), Rc<Member>>>,
}

impl Couplings {
    /// `list`: the trunks to other boards.
    pub(crate) fn new(list: Rc<TrunkList>) -> Couplings {
        let board = RefCell::new(Board::new(&list.sites.gateway));
        Couplings { list, board, away: RefCell::default() }
    }

    /// Handles a message of a user's side.
    ///
    /// # Errors
    /// Users may not send it: close the connection.
    pub(crate) fn handle_member_message(&self, member: &Rc<Member>, message: CouplingMessage) -> Result<(), Violation> {
        if !message.is_of_side() {
            return Err("only gateways answer sides of couplings".into());
        }
        let (coupling, side) = message.about();
        if coupling.site == self.list.sites.site {
            self.on_board(Poster::Member(member.id()), &self.list.sites.site, message);
            return Ok(());
        }
        let (trunks, problem) = {
            let table = self.list.path.table.read();
            let all: Vec<TrunkId> = trunks_to(&table.trunks, &coupling.site).collect();
            let up: Vec<TrunkId> = all.iter().copied().filter(|trunk| table.trunks[trunk.0].up).collect();
            let problem = all.first().map(|trunk| table.trunks[trunk.0].problem.clone());
            (up, problem)
        };
        let (coupling, key) = (coupling.clone(), (coupling.clone(), side));
        let Some(problem) = problem else {
            let reason = format!("site {} has no site {} in its sites file", self.list.sites.site, coupling.site);
            member.send_control(&self.list.path, CouplingMessage::Refused { coupling, side, reason });
            return Ok(());
        };
        match message {
            CouplingMessage::Leave { .. } => drop(self.away.borrow_mut().remove(&key)),
            _ => drop(self.away.borrow_mut().insert(key, member.clone())),
        }
        if trunks.is_empty() {
            self.list.kick();
            member.send_control(&self.list.path, CouplingMessage::Unreached { coupling, side, reason: problem });
        }
        for trunk in trunks {
            self.list.get(trunk).send_control(&self.list.path, message.clone());
        }
        Ok(())
    }

    /// Handles a message about a coupling from another site.
    ///
    /// # Errors
    /// No gateway that follows the protocol sends it: close the link.
    pub(crate) fn handle_trunk_message(&self, trunk: TrunkId, message: CouplingMessage) -> Result<(), Violation> {
        let peer = self.list.get(trunk).site.clone();
        let (coupling, side) = message.about();
        if message.is_of_side() {
            if coupling.site != self.list.sites.site {
                return Err(Violation(format!(
                    "site {peer} sent a side of {coupling} here, which is site {}",
                    self.list.sites.site
                )));
            }
            self.on_board(Poster::Trunk(trunk), &peer, message);
            return Ok(());
        }
        if coupling.site != peer {
            return Err(Violation(format!("site {peer} may not answer for {coupling}")));
        }
        // The user who asked may have left meanwhile.
        let asker = self.away.borrow().get(&(coupling.clone(), side)).cloned();
        if let Some(asker) = asker {
            asker.send_control(&self.list.path, message);
        }
        Ok(())
    }

    /// Removes the sides of a user whose connection has ended.
    pub(crate) fn remove_member(&self, member: &Rc<Member>) {
        let answers = self.board.borrow_mut().gone(Poster::Member(member.id()));
        self.answer(answers);
        let left: Vec<(Coupling, u64)> = {
            let mut away = self.away.borrow_mut();
            away.extract_if(|_, asker| asker == member).map(|(key, _)| key).collect()
        };
        for (coupling, side) in left {
            let trunks: Vec<TrunkId> = trunks_to(&self.list.path.table.read().trunks, &coupling.site).collect();
            for trunk in trunks {
                let leave = CouplingMessage::Leave { coupling: coupling.clone(), side };
                self.list.get(trunk).send_control(&self.list.path, leave);
            }
        }
    }

    fn on_board(&self, place: Poster, home: &str, message: CouplingMessage) {
        let most = self.list.path.table.read().grants.described();
        let answers = self.board.borrow_mut().take((place, home, most), message, Instant::now());
        self.answer(answers);
    }

    fn answer(&self, answers: Answers) {
        for (place, message) in answers {
            match place {
                Poster::Trunk(trunk) => self.list.get(trunk).send_control(&self.list.path, message),
                Poster::Member(id) => {
                    let member = self.list.path.connections.borrow().get(&id).cloned();
                    if let Some(member) = member {
                        member.send_control(&self.list.path, Control::from(message));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (Poster, &str, u64) = (Poster::Member(1), "lyon", 1000);
    const B: (Poster, &str, u64) = (Poster::Trunk(TrunkId(0)), "kyoto", 1000);
    const C: (Poster, &str, u64) = (Poster::Member(3), "lyon", 1000);

    fn ocean() -> Coupling {
        Coupling { name: "ocean".into(), site: "lyon".into() }
    }

    fn post(side: u64, about: &str) -> CouplingMessage {
        CouplingMessage::Post { coupling: ocean(), side, about: about.into() }
    }

    fn others(answers: &Answers) -> Vec<(Poster, Option<String>)> {
        let other = |(place, message): &(Poster, CouplingMessage)| match message {
            CouplingMessage::Other { other, .. } => (*place, other.as_ref().map(|other| other.about.clone())),
            other => panic!("{other:?}"),
        };
        answers.iter().map(other).collect()
    }

    #[test]
    fn two_sides_find_each_other_and_a_third_is_refused() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        assert_eq!(others(&board.take(A, post(7, "a"), now)), [(A.0, None)]);
        assert_eq!(others(&board.take(B, post(8, "b"), now)), [(A.0, Some("b".into())), (B.0, Some("a".into()))]);
        let refused = board.take(C, post(9, "c"), now);
        let text = "ocean@lyon already has two sides, from lyon and kyoto";
        assert!(matches!(&refused[..], [(_, CouplingMessage::Refused { reason, .. })] if reason.starts_with(text)));
        // Posting again replaces the side.
        assert_eq!(others(&board.take(A, post(7, "z"), now)), [(B.0, Some("z".into())), (A.0, Some("b".into()))]);
        let leave = CouplingMessage::Leave { coupling: ocean(), side: 8 };
        assert!(board.take(C, leave.clone(), now).is_empty(), "another's side");
        assert_eq!(others(&board.take(B, leave, now)), [(A.0, None)]);
        assert_eq!(others(&board.take(C, post(9, "c"), now)), [(A.0, Some("c".into())), (C.0, Some("z".into()))]);
        assert_eq!(others(&board.gone(A.0)), [(C.0, None)]);
        board.gone(C.0);
        assert!(board.sides.is_empty());
    }

    #[test]
    fn a_silent_side_is_forgotten() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        let renew = |side| CouplingMessage::Renew { coupling: ocean(), side };
        board.take(A, post(7, "a"), now);
        board.take(B, post(8, "b"), now);
        let renewed = |other| {
            let board = "gw1".to_owned();
            (A.0, CouplingMessage::Renewed { coupling: ocean(), side: 7, board, other })
        };
        assert_eq!(board.take(A, renew(7), now + SILENCE / 2), [renewed(Some(8))]);
        let mut later = board.take(A, renew(7), now + SILENCE * 3 / 2);
        assert_eq!(later.pop(), Some(renewed(None)));
        assert_eq!(others(&later), [(A.0, None)]);
        let unposted = board.take(B, renew(8), now + SILENCE * 3 / 2);
        assert!(matches!(&unposted[..], [(place, CouplingMessage::Unposted { side: 8, .. })] if *place == B.0));
    }

    #[test]
    fn a_site_cannot_fill_the_board() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        for side in 0..MOST_OF_SITE as u64 + 1 {
            let coupling = Coupling { name: format!("c{side}"), site: "lyon".into() };
            let answers = board.take(A, CouplingMessage::Post { coupling, side, about: "x".into() }, now);
            let refused = matches!(answers[0].1, CouplingMessage::Refused { .. });
            assert_eq!(refused, side as usize == MOST_OF_SITE);
        }
        let long = board.take(B, post(9, &"x".repeat(1001)), now);
        assert!(matches!(&long[..], [(_, CouplingMessage::Refused { .. })]));
        let nameless = CouplingMessage::Post {
            coupling: Coupling { name: "o cean".into(), site: "lyon".into() },
            side: 1,
            about: String::new(),
        };
        assert!(matches!(&board.take(B, nameless, now)[..], [(_, CouplingMessage::Refused { .. })]));
    }
}
