//! A site of a job as one gateway sees it: its phase, and the routes of frames to it.

use crate::table::TrunkId;

/// A gateway's state of a site of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteState {
    /// The route to the gateway that leads the job there, for control messages; `None` for the own site.
    pub trunk: Option<TrunkId>,
    pub phase: SitePhase,
    /// The routes for frames: trunks to gateways of the site at which the job is open, preferred ones first.
    pub routes: Vec<TrunkId>,
    /// Routes to gateways that do not reach all ranks, seen while ranks were already running: the last choice.
    pub late: Vec<TrunkId>,
    /// The trunk to the gateway there that this one pairs off with.
    pub partner: Option<TrunkId>,
    /// Counts frames that took other routes.
    turn: usize,
    /// This is the launcher's site, and the launcher was notified that no route is left.
    pub told_lost: bool,
}

/// Number of frames that take one route before the next has its turn.
const FRAMES_A_TURN: usize = 4;

impl SiteState {
    pub(crate) fn new(trunk: Option<TrunkId>, phase: SitePhase) -> SiteState {
        SiteState { trunk, phase, routes: Vec::new(), late: Vec::new(), partner: None, turn: 0, told_lost: false }
    }

    /// The route for the next frame: the one to the partner. While the partner is down, all other routes take turns, so
    /// that no gateway has to carry the load of two while its neighbours are idle.
    pub(crate) fn route(&mut self, is_up: impl Fn(TrunkId) -> bool) -> Option<TrunkId> {
        if !self.phase.reachable() {
            return None;
        }
        let usable = |route: &&TrunkId| is_up(**route) && !self.late.contains(route);
        if let Some(partner) = self.routes.iter().filter(usable).find(|route| self.partner == Some(**route)) {
            return Some(*partner);
        }
        let others = self.routes.iter().filter(usable).count();
        if others == 0 {
            return self.routes.iter().find(|route| is_up(**route)).copied();
        }
        let route = self.routes.iter().filter(usable).nth(self.turn / FRAMES_A_TURN % others).copied();
        self.turn = self.turn.wrapping_add(1);
        route
    }

    /// The routes to the site; none if it is not reachable.
    pub(crate) fn routes(&self) -> &[TrunkId] {
        if self.phase.reachable() { &self.routes } else { &[] }
    }
}

/// The phase of a site in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SitePhase {
    /// Its trunk is not up yet.
    Waiting,
    /// It was asked to open the job, or this gateway does not need to ask it.
    Asked,
    /// It takes part.
    Open,
    /// It takes part, but the gateway that led it there is lost.
    Leaderless,
    /// It does not take part.
    Refused,
    /// Its trunk is lost.
    Lost,
    /// It has nothing left of the job.
    Closed,
}

impl SitePhase {
    pub(crate) fn reachable(self) -> bool {
        matches!(self, SitePhase::Waiting | SitePhase::Asked | SitePhase::Open | SitePhase::Leaderless)
    }

    /// Returns true if a gateway leads the job there and can report its state.
    pub(crate) fn is_led(self) -> bool {
        matches!(self, SitePhase::Waiting | SitePhase::Asked | SitePhase::Open)
    }
}
