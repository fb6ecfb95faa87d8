//! A site of a job as one gateway knows it: how far it is, and by which routes frames get there.

use crate::table::TrunkId;

/// What a gateway knows of a site of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteState {
    /// The route to the gateway that leads the job there, for control messages; `None` for the own site.
    pub trunk: Option<TrunkId>,
    pub phase: SitePhase,
    /// The routes for frames: trunks to gateways of the site at which the job is open, the preferred first.
    pub routes: Vec<TrunkId>,
    /// Those of them that came when ranks were at work, and may not have all ranks yet: the last choice.
    pub late: Vec<TrunkId>,
    /// The trunk to the gateway there that this one pairs off with.
    pub partner: Option<TrunkId>,
    /// Counts frames that went by others.
    turn: usize,
    /// The launcher, whose site this is, was told that no route is left.
    pub told_lost: bool,
}

/// So many frames go by one route before the next has its turn.
const FRAMES_A_TURN: usize = 4;

impl SiteState {
    pub(crate) fn new(trunk: Option<TrunkId>, phase: SitePhase) -> SiteState {
        SiteState { trunk, phase, routes: Vec::new(), late: Vec::new(), partner: None, turn: 0, told_lost: false }
    }

    /// The route for the next frame: to the partner; while it is not there, to all others in turn, so that none of them
    /// has to carry what two did while its neighbours idle.
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

    /// The routes there.
    pub(crate) fn routes(&self) -> &[TrunkId] {
        if self.phase.reachable() { &self.routes } else { &[] }
    }
}

/// How far a site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SitePhase {
    /// Its trunk is not up yet.
    Waiting,
    /// It was asked to open the job (or need not be, by us).
    Asked,
    /// It takes part.
    Open,
    /// It takes part, but the gateway that led it there is lost.
    Leaderless,
    /// It does not.
    Refused,
    /// Its trunk is gone.
    Lost,
    /// It has nothing of the job any more.
    Closed,
}

impl SitePhase {
    pub(crate) fn reachable(self) -> bool {
        matches!(self, SitePhase::Waiting | SitePhase::Asked | SitePhase::Open | SitePhase::Leaderless)
    }

    /// A gateway leads it there that can say how it is.
    pub(crate) fn is_led(self) -> bool {
        matches!(self, SitePhase::Waiting | SitePhase::Asked | SitePhase::Open)
    }
}
