//! The board of a site's couplings at one gateway. No I/O and no clock: it returns the messages to send.
//!
//! Each gateway of a coupling's site has a board, and a side posts itself on all of them, through all gateways of its
//! own site. A board has room for two sides, and for some that have ended and wait for their partners. Boards do not
//! agree with each other; sides do, by what they post.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;
use types::roster::is_name;
use wire::control::coupling::{Coupling, CouplingMessage, Posted, SILENCE_S};

/// Most sides that one site may have posted here.
const MOST_OF_SITE: usize = 256;
const SILENCE: Duration = Duration::from_secs(SILENCE_S);
/// Most sides of a coupling that have ended and have not left.
const MOST_ENDED: usize = 4;
/// Time for which messages of a side that has left are ignored.
const LEFT: Duration = Duration::from_secs(60);
/// Most of these sides; the earliest are forgotten first.
const MOST_LEFT: usize = 1024;

/// Reasons for refusing a post. The text is for the user who posted.
#[derive(Debug, Error)]
enum PostError {
    #[error("`{0}` cannot name a coupling: names are 1 to 64 letters, digits, `.`, `_` and `-`")]
    Name(String),
    #[error("{coupling} already has two sides, from {one} and {other}: take another name")]
    TwoSides { coupling: Coupling, one: String, other: String },
    #[error("site {home} already has {count} sides of couplings posted: wait until some end")]
    TooMany { home: String, count: usize },
    #[error("another site has posted this side")]
    Anothers,
}

/// The sides that are posted at a gateway. `P` is the way to a side: a connection or a trunk.
#[derive(Debug)]
pub struct Board<P> {
    /// Name of the gateway.
    name: String,
    sides: HashMap<Coupling, Vec<PostedSide<P>>>,
    /// Numbers of sides that have left, and when.
    left: VecDeque<(u64, Instant)>,
}

#[derive(Debug)]
struct PostedSide<P> {
    /// The ways on which it has posted itself, and when it last renewed itself on each.
    ways: Vec<(P, Instant)>,
    posted: Posted,
    partner: Option<u64>,
    ended: bool,
}

/// The messages to send, and the ways on which to send them.
pub type Answers<P> = Vec<(P, CouplingMessage)>;

impl<P: Copy + PartialEq> Board<P> {
    /// An empty board. `name`: the gateway's.
    pub fn new(name: &str) -> Board<P> {
        Board { name: name.to_owned(), sides: HashMap::new(), left: VecDeque::new() }
    }

    /// Handles a message from or about a side. `home`: the site of its sender; the sides of that site may take `most`
    /// bytes.
    pub fn take(&mut self, (way, home, most): (P, &str, u64), message: CouplingMessage, now: Instant) -> Answers<P> {
        let mut answers = self.forget(|(_, renewed)| now - *renewed > SILENCE);
        self.left.retain(|(_, at)| now - *at < LEFT);
        let side = message.about().1;
        if self.left.iter().any(|(left, _)| *left == side) {
            return answers;
        }
        match message {
            CouplingMessage::Post { coupling, side, revision, partner, ended, about } => {
                match self.may_post(&coupling, (side, about.len(), ended), (home, most)) {
                    Err(error) => {
                        let sides = self.sides.get(&coupling).map(Vec::as_slice).unwrap_or_default();
                        if let Some(end) = sides.iter().find(|one| one.ended && Some(one.posted.side) == partner) {
                            // There is no room for a side that will leave when it hears this.
                            let (board, other) = (self.name.clone(), Some(end.posted.clone()));
                            answers.push((way, CouplingMessage::Other { coupling, side, board, other }));
                            return answers;
                        }
                        let is_full = matches!(error, PostError::TwoSides { .. });
                        let (board, reason) = (is_full.then(|| self.name.clone()), error.to_string());
                        let silent_ms = is_full.then(|| self.silence(&coupling, now).as_millis() as u64);
                        answers.push((way, CouplingMessage::Refused { coupling, side, board, silent_ms, reason }));
                    }
                    Ok(()) => {
                        let sides = self.sides.entry(coupling.clone()).or_default();
                        let posted = Posted { side, home: home.to_owned(), revision, about };
                        put(sides, (way, now), PostedSide { ways: Vec::new(), posted, partner, ended });
                        answers.extend(report(&self.name, &coupling, sides));
                    }
                }
            }
            CouplingMessage::Renew { coupling, side, revision } => {
                let board = self.name.clone();
                let sides = self.sides.get_mut(&coupling).map(Vec::as_mut_slice).unwrap_or_default();
                let other = other(sides, side).map(|other| (other.side, other.revision));
                let is_current = |one: &&mut PostedSide<P>| one.posted.side == side && one.posted.revision == revision;
                let renewed = sides.iter_mut().find(is_current).and_then(|one| one.way(way));
                answers.push(match renewed {
                    Some(renewed) => {
                        *renewed = now;
                        let (other, revision) = other.unzip();
                        let revision = revision.unwrap_or_default();
                        (way, CouplingMessage::Renewed { coupling, side, board, other, revision })
                    }
                    None => (way, CouplingMessage::Unposted { coupling, side, board }),
                });
            }
            CouplingMessage::Leave { coupling, side, everywhere } => {
                let is_there = |one: &PostedSide<P>| one.posted.side == side && one.posted.home == home;
                let has_left = everywhere && self.sides.get(&coupling).is_some_and(|sides| sides.iter().any(is_there));
                if has_left {
                    // Its messages may still be on their way through a gateway that was suspended.
                    self.left.push_back((side, now));
                    if self.left.len() > MOST_LEFT {
                        self.left.pop_front();
                    }
                }
                let gone = |one, from: P| one == side && (has_left || from == way);
                answers.extend(self.forget_in(&coupling, |one, (from, _)| gone(one, *from)));
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

    /// The longest time since a side of a coupling that has not ended renewed itself.
    fn silence(&self, coupling: &Coupling, now: Instant) -> Duration {
        let sides = self.sides.get(coupling).map(Vec::as_slice).unwrap_or_default();
        let last = |side: &PostedSide<P>| side.ways.iter().map(|(_, renewed)| *renewed).max();
        sides.iter().filter(|side| !side.ended).filter_map(last).min().map_or(Duration::ZERO, |renewed| now - renewed)
    }

    /// Forgets a way, and the sides that no other leads to.
    pub fn gone(&mut self, way: P) -> Answers<P> {
        self.forget(|(one, _)| *one == way)
    }

    /// # Errors
    /// The reason for refusing the post, for the user.
    fn may_post(
        &self,
        coupling: &Coupling,
        (side, length, ended): (u64, usize, bool),
        (home, most): (&str, u64),
    ) -> Result<(), PostError> {
        if !is_name(&coupling.name) {
            return Err(PostError::Name(coupling.name.clone()));
        }
        let all = self.sides.get(coupling).map(Vec::as_slice).unwrap_or_default();
        if all.iter().any(|one| one.posted.side == side && one.posted.home != home) {
            return Err(PostError::Anothers);
        }
        let mut others: Vec<&PostedSide<P>> = all.iter().filter(|one| one.posted.side != side).collect();
        others.retain(|one| one.ended == ended);
        if others.len() >= if ended { MOST_ENDED } else { 2 }
            && let [one, other, ..] = &others[..]
        {
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

    /// Forgets the matching ways, and the sides that no other leads to.
    fn forget(&mut self, which: impl Fn(&(P, Instant)) -> bool) -> Answers<P> {
        let concerned =
            |(_, sides): &(&Coupling, &Vec<PostedSide<P>>)| sides.iter().flat_map(|side| &side.ways).any(&which);
        let all: Vec<Coupling> = self.sides.iter().filter(concerned).map(|(coupling, _)| coupling.clone()).collect();
        all.iter().flat_map(|coupling| self.forget_in(coupling, |_, way| which(way))).collect()
    }

    /// As [`Board::forget`], in one coupling. `which`: gets the side, too.
    fn forget_in(&mut self, coupling: &Coupling, which: impl Fn(u64, &(P, Instant)) -> bool) -> Answers<P> {
        let Some(sides) = self.sides.get_mut(coupling) else { return Answers::new() };
        let before = sides.len();
        sides.iter_mut().for_each(|one| one.ways.retain(|way| !which(one.posted.side, way)));
        sides.retain(|one| !one.ways.is_empty());
        let answers = if sides.len() < before { report(&self.name, coupling, sides) } else { Answers::new() };
        if sides.is_empty() {
            self.sides.remove(coupling);
        }
        answers
    }
}

impl<P: Copy + PartialEq> PostedSide<P> {
    /// The time of the last renewal on a way.
    fn way(&mut self, way: P) -> Option<&mut Instant> {
        self.ways.iter_mut().find(|(one, _)| *one == way).map(|(_, renewed)| renewed)
    }
}

/// Enters a post, unless a later one of its side has arrived on another way.
fn put<P: Copy + PartialEq>(sides: &mut Vec<PostedSide<P>>, (way, now): (P, Instant), new: PostedSide<P>) {
    let Some(side) = sides.iter_mut().find(|one| one.posted.side == new.posted.side) else {
        return sides.push(PostedSide { ways: vec![(way, now)], ..new });
    };
    match side.way(way) {
        Some(renewed) => *renewed = now,
        None => side.ways.push((way, now)),
    }
    if new.posted.revision >= side.posted.revision {
        *side = PostedSide { ways: std::mem::take(&mut side.ways), ..new };
    }
}

/// The side that another one hears of: its partner, or else one that has not ended and has no partner, or any.
fn other<P>(sides: &[PostedSide<P>], side: u64) -> Option<&Posted> {
    let partner = sides.iter().find(|one| one.posted.side == side).and_then(|one| one.partner);
    let strangeness = |one: &&PostedSide<P>| {
        let is_free = one.partner.is_none_or(|partner| partner == side);
        (Some(one.posted.side) != partner, one.ended, !is_free)
    };
    let others = sides.iter().filter(|one| one.posted.side != side);
    others.min_by_key(strangeness).map(|one| &one.posted)
}

/// Reports the other side, if any, to each side.
fn report<P: Copy>(board: &str, coupling: &Coupling, sides: &[PostedSide<P>]) -> Answers<P> {
    let to_side = |one: &PostedSide<P>| {
        let side = one.posted.side;
        let other = other(sides, side).cloned();
        let (coupling, board) = (coupling.clone(), board.to_owned());
        let message = CouplingMessage::Other { coupling, side, board, other };
        one.ways.iter().map(|(way, _)| (*way, message.clone())).collect::<Answers<P>>()
    };
    sides.iter().flat_map(to_side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (u32, &str, u64) = (1, "lyon", 1000);
    const B: (u32, &str, u64) = (10, "kyoto", 1000);
    const C: (u32, &str, u64) = (3, "lyon", 1000);

    fn ocean() -> Coupling {
        Coupling { name: "ocean".into(), site: "lyon".into() }
    }

    fn post(side: u64, about: &str) -> CouplingMessage {
        CouplingMessage::Post { coupling: ocean(), side, revision: 1, partner: None, ended: false, about: about.into() }
    }

    fn renew(side: u64, revision: u64) -> CouplingMessage {
        CouplingMessage::Renew { coupling: ocean(), side, revision }
    }

    fn others(answers: &Answers<u32>) -> Vec<(u32, Option<String>)> {
        let other = |(way, message): &(u32, CouplingMessage)| match message {
            CouplingMessage::Other { other, .. } => (*way, other.as_ref().map(|other| other.about.clone())),
            other => panic!("{other:?}"),
        };
        answers.iter().map(other).collect()
    }

    fn refused(answers: &Answers<u32>) -> Option<(Option<&str>, &str)> {
        match &answers[..] {
            [(_, CouplingMessage::Refused { board, reason, .. })] => Some((board.as_deref(), reason)),
            _ => None,
        }
    }

    #[test]
    fn two_sides_find_each_other_and_a_third_is_refused() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        assert_eq!(others(&board.take(A, post(7, "a"), now)), [(A.0, None)]);
        assert_eq!(others(&board.take(B, post(8, "b"), now)), [(A.0, Some("b".into())), (B.0, Some("a".into()))]);
        board.take(A, renew(7, 1), now + SILENCE / 2);
        let third = board.take(C, post(9, "c"), now + SILENCE / 2);
        let silent_ms = match &third[0].1 {
            CouplingMessage::Refused { silent_ms, .. } => *silent_ms,
            _ => None,
        };
        assert_eq!(silent_ms, Some(SILENCE_S * 500), "the second side has not renewed itself");
        let text = "ocean@lyon already has two sides, from lyon and kyoto: take another name";
        assert_eq!(refused(&third), Some((Some("gw1"), text)));
        // Posting again replaces the side.
        assert_eq!(others(&board.take(A, post(7, "z"), now)), [(A.0, Some("b".into())), (B.0, Some("z".into()))]);
        let leave = CouplingMessage::Leave { coupling: ocean(), side: 8, everywhere: false };
        assert!(board.take(C, leave.clone(), now).is_empty(), "another's side");
        assert_eq!(others(&board.take(B, leave, now)), [(A.0, None)]);
        assert_eq!(others(&board.take(C, post(9, "c"), now)), [(A.0, Some("c".into())), (C.0, Some("z".into()))]);
        assert_eq!(others(&board.gone(A.0)), [(C.0, None)]);
        board.gone(C.0);
        assert!(board.sides.is_empty());
    }

    #[test]
    fn a_side_has_several_ways_and_the_latest_post_counts() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        let (second, later) = ((11, "kyoto", 1000), now + SILENCE / 2);
        let post = |revision, about: &str| CouplingMessage::Post {
            coupling: ocean(),
            side: 8,
            revision,
            partner: None,
            ended: false,
            about: about.into(),
        };
        board.take(A, self::post(7, "a"), now);
        board.take(B, post(2, "new"), now);
        let to_b = Some("a".to_owned());
        let expected = [(A.0, Some("new".into())), (B.0, to_b.clone()), (second.0, to_b.clone())];
        assert_eq!(others(&board.take(second, post(1, "old"), now)), expected, "it was overtaken");
        let answer = |answers: Answers<u32>| match &answers[..] {
            [(_, CouplingMessage::Renewed { revision, .. })] => Some(*revision),
            _ => None,
        };
        assert_eq!(answer(board.take(A, renew(7, 1), later)), Some(2), "the revision of the other's post");
        assert_eq!(answer(board.take(B, renew(8, 3), later)), None, "a post was lost");
        assert_eq!(answer(board.take(B, renew(8, 2), later)), Some(1));
        // The second way was not used for a while. The first is enough.
        assert_eq!(board.take(A, renew(7, 1), now + SILENCE * 5 / 4).len(), 1);
        board.take(second, post(2, "new"), now + SILENCE * 5 / 4);
        assert_eq!(
            board.take(B, CouplingMessage::Leave { coupling: ocean(), side: 8, everywhere: false }, later),
            [],
            "the other way stays"
        );
        assert_eq!(others(&board.gone(second.0)), [(A.0, None)]);
    }

    #[test]
    fn a_side_that_has_left_is_gone_on_all_ways_and_does_not_come_back() {
        let (mut board, second, now) = (Board::new("gw1"), (11, "kyoto", 1000), Instant::now());
        board.take(A, post(7, "a"), now);
        board.take(B, post(8, "b"), now);
        board.take(second, post(8, "b"), now);
        let leave = || CouplingMessage::Leave { coupling: ocean(), side: 8, everywhere: true };
        assert_eq!(board.take(A, leave(), now), [], "it is another site's");
        assert_eq!(others(&board.take(B, leave(), now)), [(A.0, None)]);
        for late in [post(8, "b"), renew(8, 1), leave()] {
            assert_eq!(board.take(second, late, now + SILENCE / 2), [], "from a gateway that was suspended");
        }
        board.take(A, leave(), now + LEFT);
        assert!(board.left.is_empty());
    }

    #[test]
    fn a_side_that_has_ended_takes_no_room_and_its_partner_hears_of_it() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        let post = |side, partner, ended, about: &str| CouplingMessage::Post {
            coupling: ocean(),
            side,
            revision: 2,
            partner,
            ended,
            about: about.into(),
        };
        board.take(A, post(7, Some(8), true, "7 has ended"), now);
        assert_eq!(others(&board.take(A, post(17, None, false, "17"), now))[1], (A.0, Some("7 has ended".into())));
        let partners = board.take(B, post(8, Some(7), false, "8"), now);
        let expected = [(A.0, Some("8")), (A.0, Some("8")), (B.0, Some("7 has ended"))];
        assert_eq!(others(&partners), expected.map(|(way, about)| (way, about.map(str::to_owned))));
        let leave = CouplingMessage::Leave { coupling: ocean(), side: 8, everywhere: true };
        board.take(B, leave, now);
        let anew = board.take(B, post(18, None, false, "18"), now);
        let expected = [(A.0, Some("17")), (A.0, Some("18")), (B.0, Some("17"))];
        assert_eq!(others(&anew), expected.map(|(way, about)| (way, about.map(str::to_owned))));
        // A third is refused, but hears why its own partner has ended.
        assert!(refused(&board.take(C, post(9, None, false, "9"), now)).is_some());
        assert_eq!(others(&board.take(C, post(9, Some(7), false, "9"), now)), [(C.0, Some("7 has ended".into()))]);
        for side in 20..20 + MOST_ENDED as u64 {
            let is_full = side == 19 + MOST_ENDED as u64;
            assert_eq!(refused(&board.take(C, post(side, None, true, "over"), now)).is_some(), is_full, "{side}");
        }
    }

    #[test]
    fn another_site_cannot_replace_a_side() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        board.take(A, post(7, "a"), now);
        assert!(refused(&board.take(B, post(7, "mine"), now)).is_some_and(|(board, _)| board.is_none()));
    }

    #[test]
    fn a_silent_side_is_forgotten() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        board.take(A, post(7, "a"), now);
        board.take(B, post(8, "b"), now);
        let renewed = |other, revision| {
            let (coupling, board) = (ocean(), "gw1".to_owned());
            (A.0, CouplingMessage::Renewed { coupling, side: 7, board, other, revision })
        };
        assert_eq!(board.take(A, renew(7, 1), now + SILENCE / 2), [renewed(Some(8), 1)]);
        let mut later = board.take(A, renew(7, 1), now + SILENCE * 3 / 2);
        assert_eq!(later.pop(), Some(renewed(None, 0)));
        assert_eq!(others(&later), [(A.0, None)]);
        let unposted = board.take(B, renew(8, 1), now + SILENCE * 3 / 2);
        assert!(matches!(&unposted[..], [(way, CouplingMessage::Unposted { side: 8, .. })] if *way == B.0));
    }

    #[test]
    fn a_site_cannot_fill_the_board() {
        let (mut board, now) = (Board::new("gw1"), Instant::now());
        let post = |name: &str, side, about: &str| CouplingMessage::Post {
            coupling: Coupling { name: name.into(), site: "lyon".into() },
            side,
            revision: 1,
            partner: None,
            ended: false,
            about: about.into(),
        };
        for side in 0..MOST_OF_SITE as u64 + 1 {
            let answers = board.take(A, post(&format!("c{side}"), side, "x"), now);
            assert_eq!(refused(&answers).is_some(), side as usize == MOST_OF_SITE);
        }
        assert!(refused(&board.take(B, post("ocean", 9, &"x".repeat(1001)), now)).is_some());
        assert!(refused(&board.take(B, post("o cean", 1, ""), now)).is_some());
    }
}
