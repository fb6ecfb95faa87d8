//! Couplings: programs that look for each other post their sides on boards, and their messages to other sites' boards.
//!
//! A gateway keeps the board of its own site's couplings and compares names only. For couplings at other sites it
//! forwards messages to all boards there, and remembers which of its users asked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::time::Instant;
use wire::Control;
use wire::control::coupling::{Coupling, CouplingMessage};

use crate::path::member::Member;
use crate::table::TrunkId;
use crate::table::error::Violation;
use crate::table::job::trunks_to;
use crate::trunks::board::{Answers, Board};
use crate::trunks::list::TrunkList;

/// The way to a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poster {
    /// A user of this site, by the number of its connection.
    Member(u64),
    Trunk(TrunkId),
}

/// A gateway's state of couplings.
pub(crate) struct Couplings {
    list: Rc<TrunkList>,
    board: RefCell<Board<Poster>>,
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
            member.send_control(
                &self.list.path,
                CouplingMessage::Refused { coupling, side, board: None, silent_ms: None, reason },
            );
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
                let leave = CouplingMessage::Leave { coupling: coupling.clone(), side, everywhere: false };
                self.list.get(trunk).send_control(&self.list.path, leave);
            }
        }
    }

    fn on_board(&self, place: Poster, home: &str, message: CouplingMessage) {
        let most = self.list.path.table.read().grants.described();
        let answers = self.board.borrow_mut().take((place, home, most), message, Instant::now());
        self.answer(answers);
    }

    fn answer(&self, answers: Answers<Poster>) {
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
