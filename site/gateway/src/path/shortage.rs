//! Memory shortage: frames for members that read slowly are refused, members are not read for a while, and as a last
//! resort the connection with the longest queue is dropped.
//!
//! The bytes waiting for one member may take as much memory as is free: dynamic thresholds (Choudhury and Hahne,
//! "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6, 1998).
//! One slow reader can take half of the memory for queues, two slow readers a third each; members that read always find
//! room. Senders keep refused frames.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::log::{log, quantity};
use crate::path::Path;
use crate::path::link::Link;
use crate::path::member::Member;
use crate::path::trunk_links::TrunkLinks;
use crate::table::window;

/// Time for which memory may be short before the connection with the longest queue is dropped.
const SHORT: Duration = Duration::from_secs(1);

impl Path {
    /// Returns true if further frames for a member must be refused.
    pub(crate) fn is_too_slow(&self, member: &Member) -> bool {
        self.is_too_much(member.outlet.queued() as u64)
    }

    /// Like [`Path::is_too_slow`], for frames that another site's gateway relays through this one.
    pub(crate) fn is_link_too_slow(&self, link: &Link) -> bool {
        self.is_too_much(link.queued() as u64)
    }

    fn is_too_much(&self, queued: u64) -> bool {
        queued >= window::LEAST && queued >= (self.memory / 2).saturating_sub(self.counters.held())
    }

    /// Drops the connection with the longest queue, a member's or a link, when usage is near the limit. Frames waiting
    /// for members take half of the memory at most, so at that usage some sender is ignoring refusals.
    pub(crate) fn check_memory(&self) {
        if self.counters.held() > self.memory / 4 * 3 {
            self.drop_largest();
        }
    }

    fn drop_largest(&self) {
        let connections = self.connections.borrow();
        let largest = connections.values().max_by_key(|member| member.outlet.queued());
        let queued = largest.map_or(0, |member| member.outlet.queued()) as u64;
        if let Some((trunk, link)) = self.largest_link().filter(|(_, link)| link.queued() as u64 > queued) {
            let reason = self.not_read(link.queued() as u64);
            self.counters.violation();
            let (site, gateway) = (&trunk.site, &trunk.gateway);
            log!(warn, site, site, gateway, link = link.index, reason, "link dropped");
            link.cut(reason);
            return;
        }
        let Some(member) = largest else { return };
        if queued == 0 || self.drops.borrow().iter().any(|(id, _)| *id == member.id()) {
            return;
        }
        self.drop_later(member.id(), self.not_read(queued));
    }

    fn largest_link(&self) -> Option<(Rc<TrunkLinks>, Rc<Link>)> {
        let trunks = self.trunks.borrow();
        let links = trunks.iter().flat_map(|trunk| trunk.up().into_iter().map(move |link| (trunk.clone(), link)));
        links.filter(|(_, link)| !link.is_cut()).max_by_key(|(_, link)| link.queued())
    }

    fn not_read(&self, queued: u64) -> String {
        format!(
            "dropped: {} queued for it, the longest queue, while {} of {} of gateway memory is in use; it is not \
             reading",
            quantity(queued),
            quantity(self.counters.held()),
            quantity(self.memory)
        )
    }

    /// Returns true while members should not be read.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.counters.held() > self.memory / 8 * 5
    }

    /// Waits until members may be read again.
    pub(crate) async fn memory_eased(&self) {
        let since = Instant::now();
        while self.is_memory_short() {
            sleep(Duration::from_millis(5)).await;
            if since.elapsed() > SHORT {
                self.drop_largest();
                self.after_turn();
            }
        }
    }
}
