//! Rates of a gateway between two looks at it. No I/O and no clock: time is the gateway's own uptime.
//!
//! A gateway's counts never decrease while it runs. If a count or the uptime decreases, the gateway was restarted
//! between the two looks and its activity meanwhile is unknown. There is then no rate, instead of a negative one.

use serde::{Deserialize, Serialize};
use types::JobId;
use wire::View;
use wire::view::{JobView, LinkView, TrunkView};

/// The activity of a gateway, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Seconds between the two looks.
    pub seconds: f64,
    /// Frames relayed.
    pub frames_per_s: Option<f64>,
    /// Bits of these frames, headers included, in millions.
    pub relayed_mbit_s: Option<f64>,
    /// The rates of its trunks, in the order of the view.
    pub trunks: Vec<TrunkRates>,
    /// The rates of its jobs, in the order of the view.
    pub jobs: Vec<JobRates>,
}

/// The traffic of a trunk, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrunkRates {
    /// The site at its other end.
    pub site: String,
    /// The gateway there.
    pub gateway: String,
    /// Bits of frames sent, in millions.
    pub sent_mbit_s: Option<f64>,
    /// Bits of frames received, in millions.
    pub received_mbit_s: Option<f64>,
    /// Segments that the kernel retransmitted on links that are up.
    pub retransmissions_per_s: Option<f64>,
    /// The rates of its links, in the order of the view.
    pub links: Vec<LinkRates>,
}

/// The traffic of a link, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkRates {
    /// The link's number in its trunk.
    pub index: u32,
    /// Like [`TrunkRates::sent_mbit_s`].
    pub sent_mbit_s: Option<f64>,
    /// Like [`TrunkRates::received_mbit_s`].
    pub received_mbit_s: Option<f64>,
    /// Segments that the kernel retransmitted.
    pub retransmissions_per_s: Option<f64>,
}

/// The traffic of a job through a gateway, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRates {
    /// The job.
    pub job: JobId,
    /// Bits from the site's ranks into trunks, in millions.
    pub sent_mbit_s: Option<f64>,
    /// Bits from trunks to the site's ranks, in millions.
    pub received_mbit_s: Option<f64>,
    /// Bits between members of the site, in millions.
    pub local_mbit_s: Option<f64>,
}

/// The rates between two looks at one gateway; `None` if it was restarted meanwhile or no time has passed.
pub fn rates(before: &View, after: &View) -> Option<Rates> {
    let passed = Passed::between(before, after)?;
    let trunk = |trunk: &TrunkView| {
        let same = |other: &&TrunkView| (&other.site, &other.gateway) == (&trunk.site, &trunk.gateway);
        passed.trunk(before.trunks.iter().find(same), trunk)
    };
    Some(Rates {
        seconds: passed.seconds(),
        frames_per_s: passed.rate(before.totals.frames, after.totals.frames),
        relayed_mbit_s: passed.megabits(before.totals.bytes, after.totals.bytes),
        trunks: after.trunks.iter().map(trunk).collect(),
        jobs: after.jobs.iter().map(|job| passed.job(before.jobs.iter().find(|old| old.job == job.job), job)).collect(),
    })
}

/// The interval between two looks, as the gateway's uptimes in milliseconds.
#[derive(Clone, Copy)]
struct Passed {
    from: u64,
    to: u64,
}

impl Passed {
    fn between(before: &View, after: &View) -> Option<Passed> {
        let (from, to) = (before.uptime_ms, after.uptime_ms);
        (to > from).then_some(Passed { from, to })
    }

    fn seconds(self) -> f64 {
        (self.to - self.from) as f64 / 1e3
    }

    fn rate(self, before: u64, after: u64) -> Option<f64> {
        Some(after.checked_sub(before)? as f64 / self.seconds())
    }

    fn megabits(self, before: u64, after: u64) -> Option<f64> {
        self.rate(before, after).map(|bytes| bytes * 8.0 / 1e6)
    }

    /// The rates of a trunk. A new trunk started from zero.
    fn trunk(self, before: Option<&TrunkView>, after: &TrunkView) -> TrunkRates {
        let (sent, received) = before.map_or((0, 0), |before| (before.sent, before.received));
        let old = |link: &LinkView| before?.links.iter().find(|old| old.index == link.index);
        let links: Vec<LinkRates> = after.links.iter().map(|link| self.link(old(link), link)).collect();
        TrunkRates {
            site: after.site.clone(),
            gateway: after.gateway.clone(),
            sent_mbit_s: self.megabits(sent, after.sent),
            received_mbit_s: self.megabits(received, after.received),
            retransmissions_per_s: links.iter().map(|link| link.retransmissions_per_s).sum(),
            links,
        }
    }

    /// The rates of a link. A link that came up between the looks started from zero, even if an earlier link had its
    /// number.
    fn link(self, before: Option<&LinkView>, after: &LinkView) -> LinkRates {
        // Uptimes are truncated to milliseconds. A lost link is not dialled again within this time.
        const SAME_MS: u64 = 20;
        let came_up = self.to.saturating_sub(after.up_ms);
        let same = |before: &&LinkView| self.from.saturating_sub(before.up_ms).abs_diff(came_up) <= SAME_MS;
        let before = before.filter(same);
        let (sent, received, retransmissions) =
            before.map_or((0, 0, 0), |before| (before.sent, before.received, before.retransmissions));
        LinkRates {
            index: after.index,
            sent_mbit_s: self.megabits(sent, after.sent),
            received_mbit_s: self.megabits(received, after.received),
            retransmissions_per_s: self.rate(retransmissions, after.retransmissions),
        }
    }

    /// The rates of a job. A new job started from zero.
    fn job(self, before: Option<&JobView>, after: &JobView) -> JobRates {
        let old = before.map_or_else(Default::default, |before| before.traffic);
        let new = after.traffic;
        JobRates {
            job: after.job,
            sent_mbit_s: self.megabits(old.sent, new.sent),
            received_mbit_s: self.megabits(old.received, new.received),
            local_mbit_s: self.megabits(old.local, new.local),
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::control::Traffic;
    use wire::view::Totals;

    use super::*;

    fn link(index: u32, up_ms: u64, sent: u64, retransmissions: u64) -> LinkView {
        LinkView { index, up_ms, sent, received: sent / 2, retransmissions, ..LinkView::default() }
    }

    fn view(uptime_ms: u64, sent: u64, links: Vec<LinkView>) -> View {
        let trunk = TrunkView {
            site: "b".into(),
            gateway: "gw1".into(),
            sent,
            received: sent / 2,
            links,
            ..TrunkView::default()
        };
        let traffic = Traffic { sent, received: sent / 2, local: 0 };
        View {
            uptime_ms,
            totals: Totals { frames: sent / 100, bytes: sent, ..Totals::default() },
            trunks: vec![trunk],
            jobs: vec![JobView { job: JobId(7), traffic, ..JobView::default() }],
            ..View::default()
        }
    }

    #[test]
    fn differences_are_per_second_of_the_gateway() {
        let before = view(10_000, 1_000_000, vec![link(0, 5_000, 1_000_000, 3)]);
        let after = view(12_000, 3_000_000, vec![link(0, 7_000, 3_000_000, 7)]);
        let found = rates(&before, &after).unwrap();
        assert_eq!((found.seconds, found.frames_per_s, found.relayed_mbit_s), (2.0, Some(10_000.0), Some(8.0)));
        let trunk = &found.trunks[0];
        assert_eq!((trunk.sent_mbit_s, trunk.received_mbit_s), (Some(8.0), Some(4.0)));
        assert_eq!((trunk.retransmissions_per_s, trunk.links[0].sent_mbit_s), (Some(2.0), Some(8.0)));
        assert_eq!(
            (found.jobs[0].job, found.jobs[0].sent_mbit_s, found.jobs[0].local_mbit_s),
            (JobId(7), Some(8.0), Some(0.0))
        );
    }

    #[test]
    fn a_restarted_gateway_has_no_rate() {
        let before = view(10_000, 1_000_000, vec![]);
        assert_eq!(rates(&before, &view(900, 2_000_000, vec![])), None, "its uptime went back");
        assert_eq!(rates(&before, &before), None, "no time has passed");
        // It has run for longer than at the last look, but it is another process.
        let found = rates(&before, &view(11_000, 10, vec![])).unwrap();
        assert_eq!((found.frames_per_s, found.relayed_mbit_s), (None, None));
        assert_eq!((found.trunks[0].sent_mbit_s, found.jobs[0].received_mbit_s), (None, None));
        assert_eq!(found.trunks[0].retransmissions_per_s, Some(0.0), "no links, nothing sent again");
    }

    #[test]
    fn new_trunks_links_and_jobs_start_from_zero() {
        let mut before = view(10_000, 1_000_000, vec![link(0, 5_000, 900_000, 50)]);
        before.jobs.clear();
        // The link was lost and dialled again: fewer bytes, fewer segments, the same number.
        let after = view(11_000, 1_125_000, vec![link(0, 400, 125_000, 1), link(1, 300, 0, 0)]);
        let found = rates(&before, &after).unwrap();
        let links: Vec<_> =
            found.trunks[0].links.iter().map(|link| (link.sent_mbit_s, link.retransmissions_per_s)).collect();
        assert_eq!(links, [(Some(1.0), Some(1.0)), (Some(0.0), Some(0.0))]);
        assert_eq!((found.trunks[0].sent_mbit_s, found.trunks[0].retransmissions_per_s), (Some(1.0), Some(1.0)));
        assert_eq!(found.jobs[0].sent_mbit_s, Some(9.0));
        before.trunks.clear();
        assert_eq!(rates(&before, &after).unwrap().trunks[0].sent_mbit_s, Some(9.0));
    }

    #[test]
    fn the_largest_counts_give_finite_rates() {
        let (mut before, mut after) =
            (view(1, 0, vec![]), view(2, u64::MAX, vec![link(0, u64::MAX, u64::MAX, u64::MAX)]));
        assert!(rates(&before, &after).unwrap().relayed_mbit_s.unwrap().is_finite());
        before.trunks[0].links = after.trunks[0].links.clone();
        after.trunks[0].links[0].up_ms = 0;
        assert!(rates(&before, &after).unwrap().trunks[0].links[0].sent_mbit_s.unwrap() >= 0.0);
    }
}
