//! The life of a trunk's links: dialled or accepted, registered, served, lost, dialled again.

use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use types::JobId;
use types::sites::{Approach, Links};
use wire::{FrameHeader, FrameKind};

use crate::log::{log, shorten};
use crate::path::limits::GATEWAY;
use crate::path::link::{Link, task};
use crate::path::reading::Stop;
use crate::trunks::handshake::{self, Accepted, DIAL_TIMEOUT, Dialled};
use crate::trunks::meeting::visit::Called;
use crate::trunks::trunk::{Gone, Trunk};
use crate::trunks::{Trunks, tunnel};

const REDIAL_FIRST: Duration = Duration::from_millis(100);
const REDIAL_MOST: Duration = Duration::from_secs(2);
/// Longest pause before dialling again through ssh. It is longer because login nodes ban addresses that connect too
/// often.
const REDIAL_MOST_SSH: Duration = Duration::from_secs(30);
const WATCH: Duration = Duration::from_millis(500);
/// Fewest links through ssh, unless the sites file gives a number: one carries frames while the other is dialled again.
const LINKS_THROUGH_SSH: u16 = 2;
/// Most links through ssh, unless the sites file gives a number. Each link is a login: an sshd accepts few at a time
/// (`MaxStartups`), and login nodes ban addresses that log in too often.
const MOST_LINKS_THROUGH_SSH: u16 = 4;
/// Number of pings that measure a link through ssh; the shortest counts. [`PING`] is the time limit for each.
const PINGS: usize = 3;
const PING: Duration = Duration::from_secs(2);

impl Trunks {
    /// Starts to dial a trunk's links, or to ask for meetings, if this side does that.
    pub(crate) fn dial(self: &Rc<Self>, trunk: &Rc<Trunk>) {
        self.dial_links(trunk, 0..trunk.wanted());
    }

    /// Like [`Trunks::dial`], for the links in `which`.
    fn dial_links(self: &Rc<Self>, trunk: &Rc<Trunk>, which: Range<u16>) {
        if trunk.dials().is_some() || trunk.asks() {
            which.for_each(|index| drop(tokio::task::spawn_local(keep_dialling(self.clone(), trunk.clone(), index))));
        }
    }

    /// Gives up the trunk if it is down: the other machine refuses connections, so its gateway does not run and has
    /// lost its state of all jobs.
    fn does_not_run(&self, trunk: &Trunk, problem: &str) {
        if !trunk.up.get() {
            self.path.table.change(|table| table.trunk_lost(trunk.id, problem));
        }
    }

    /// Registers a link; with the first one the trunk is up.
    fn link_up(self: &Rc<Self>, trunk: &Trunk, link: &Rc<Link>, run: u32) {
        let replaced = |old: &Rc<Link>, reason: String| {
            self.link_down(trunk, old, &reason, false);
            old.cut(reason);
        };
        let old = trunk.links.get(link.index);
        if let Some(old) = old {
            replaced(&old, format!("replaced by a new connection from {}", link.address));
        }
        if trunk.control.borrow_mut().meets(run) {
            let reason = format!("site {}: gateway {} was restarted", trunk.site, trunk.gateway);
            trunk.up_links().iter().for_each(|old| replaced(old, reason.clone()));
            self.path.table.change(|table| table.trunk_lost(trunk.id, &reason));
            self.survey.restarted(trunk);
        }
        trunk.links.insert(link.clone());
        self.want_links(trunk, link);
        if !trunk.up.replace(true) {
            trunk.problem.borrow_mut().clear();
            let (site, gateway, address) = (&trunk.site, &trunk.gateway, link.address);
            let key = link.key.map_or_else(String::new, |key| key.to_string());
            log!(info, site, site, gateway, %address, fingerprint = key, links = trunk.wanted(), "trunk up");
            self.path.table.change(|table| table.trunk_up(trunk.id));
            trunk.changed.notify_waiters();
            self.visits.place_reached(trunk);
        }
        trunk.flush_control(&self.path);
    }

    /// Sets the number of links by the round trip of a new link. The kernel knows the round trip, except through ssh,
    /// where pings measure it.
    fn want_links(self: &Rc<Self>, trunk: &Trunk, link: &Rc<Link>) {
        if !trunk.through_ssh {
            return self.want_links_for(trunk, link, link.kernel().map_or(Duration::ZERO, |kernel| kernel.round_trip));
        }
        let (trunk, link) = (self.list.get(trunk.id), link.clone());
        let trunks = self.clone();
        tokio::task::spawn_local(async move {
            for _ in 0..PINGS {
                let Ok(Some(measured)) = link.ping(&trunks.path, PING).await else { break };
                link.measured.set(link.measured.get().map_or(Some(measured), |before| Some(before.min(measured))));
            }
            if !link.is_cut() {
                // The shortest of all links: a login that has just begun makes its node slow.
                let measured = trunk.up_links().iter().filter_map(|link| link.measured.get()).min();
                trunks.want_links_for(&trunk, &link, measured.unwrap_or_default());
            }
        });
    }

    fn want_links_for(self: &Rc<Self>, trunk: &Trunk, link: &Link, round_trip: Duration) {
        let mut wanted = trunk.how_many.wanted(round_trip).max(link.index as u16 + 1);
        let had = trunk.wanted();
        if trunk.through_ssh && trunk.how_many == Links::ByRoundTrip {
            wanted = links_through_ssh(wanted, had);
        }
        if wanted <= had {
            return;
        }
        trunk.wanted.set(wanted);
        self.dial_links(&self.list.get(trunk.id), had..wanted);
    }

    /// Handles a link that has closed: the frames in flight on it are lost. Another link takes over; without any the
    /// trunk is down. `for_good`: the other gateway sent a goodbye.
    fn link_down(self: &Rc<Self>, trunk: &Trunk, link: &Rc<Link>, reason: &str, for_good: bool) {
        if !trunk.links.remove(link) {
            return;
        }
        let Gone { links, sent, received } = trunk.gone.get();
        let (sent, received) = (sent + link.sent.get(), received + link.received.get());
        trunk.gone.set(Gone { links: links + 1, sent, received });
        trunk.control.borrow_mut().lost(link.route());
        let (site, gateway, address) = (&trunk.site, &trunk.gateway, link.address);
        let problem = format!("site {site}: gateway {gateway} {}: {reason}", trunk.whereabouts(address));
        let left = trunk.links.count();
        if left > 0 {
            log!(warn, site, site, gateway, %address, link = link.index, left, reason, "link down");
            self.path.table.change(|table| table.trunk_broken(trunk.id));
        } else {
            log!(warn, site, site, gateway, %address, link = link.index, reason, "trunk down");
            trunk.up.set(false);
            trunk.problem.replace(problem.clone());
            self.path.table.change(|table| table.trunk_away(trunk.id, &problem));
            if trunk.lets_meet {
                self.visits.expect_meetings();
            }
            // The trunk to the place may have gone down before this link through it.
            if trunk.hidden && !self.visits.may_meet(trunk) {
                self.visits.expect(trunk);
            }
            if for_good {
                self.path.table.change(|table| table.trunk_lost(trunk.id, &problem));
            } else if let (false, false, Some(address)) = (trunk.dials, trunk.through_ssh, trunk.address.clone())
                && !trunk.watched.replace(true)
            {
                let (trunk, patience) = (self.list.get(trunk.id), self.sites.own_site().patience);
                tokio::task::spawn_local(watch(self.clone(), trunk, address, patience));
            }
        }
        trunk.flush_control(&self.path);
    }

    /// Serves an established link until it closes.
    pub(crate) async fn serve(self: &Rc<Self>, accepted: Accepted, address: SocketAddr) {
        let Accepted { trunk, index, stream, run } = accepted;
        // The sites file may have changed during the handshake.
        if let Err(error) = trunk.check(stream.session().peer()) {
            let reason = error.to_string();
            log!(warn, &trunk.site, site = trunk.site, gateway = trunk.gateway, %address, reason, "link refused");
            return;
        }
        let (link, inflow) = Link::new(&self.path, trunk.id, index, stream, address);
        self.link_up(&trunk, &link, run);
        let stop = task::serve(&self.path, &link, inflow, |header, payload| self.handle(&link, header, payload)).await;
        let final_words = matches!(stop, Stop::Goodbye(_));
        let reason = match stop {
            Stop::Goodbye(reason) => shorten(reason),
            Stop::Lost(reason) => reason,
            Stop::Violation(reason) => {
                self.path.counters.violation();
                let header = FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY);
                link.send_own(&self.path, header, reason.as_bytes());
                format!("rules broken: {reason}")
            }
        };
        self.link_down(&trunk, &link, &reason, final_words);
        task::finish(&self.path, &link).await;
    }

    /// Follows a call to a meeting, in a task of its own. An earlier task for the same link ends.
    pub(super) fn follow(self: &Rc<Self>, call: Called) {
        let (trunks, id) = (self.clone(), call.link_id());
        let coming = tokio::task::spawn_local(async move {
            if let Some((accepted, peer)) = trunks.visits.come(call).await {
                trunks.serve(accepted, peer).await;
            }
        });
        self.visits.comes(id, coming.abort_handle());
    }
}

/// Keeps one link of a trunk up while the other gateway is in the sites file.
async fn keep_dialling(trunks: Rc<Trunks>, trunk: Rc<Trunk>, index: u16) {
    let index = usize::from(index);
    let mut pause = REDIAL_FIRST;
    let list = &trunks.list;
    let times_retired = trunk.times_retired.get();
    while trunk.times_retired.get() == times_retired {
        let dialled = match trunk.dials() {
            Some(Approach::Direct(address)) => handshake::dial(list, &trunk, index, address).await,
            Some(Approach::Ssh(login, to)) => {
                tunnel::dial(list, trunks.tunneller.as_deref(), (&trunk, index), login, to).await
            }
            None => trunks.visits.meet(&trunk, index).await,
        };
        match dialled {
            Ok(Dialled { stream, run, peer, tunnel }) => {
                pause = REDIAL_FIRST;
                trunks.serve(Accepted { trunk: trunk.clone(), index, stream, run }, peer).await;
                if let Some(tunnel) = tunnel {
                    tunnel::close(&trunk, index, tunnel);
                }
            }
            Err(error) => {
                let problem = error.to_string();
                trunk.failed(&trunks.path, problem.clone());
                if error.is_refused() {
                    trunks.does_not_run(&trunk, &problem);
                }
            }
        }
        // The minimum pause, even if `kick` is called often.
        sleep(REDIAL_FIRST / 2).await;
        let _ = timeout(pause.mul_f64(jitter()), trunk.kick.notified()).await;
        pause = (pause * 2).min(if trunk.through_ssh { REDIAL_MOST_SSH } else { REDIAL_MOST });
    }
}

/// Number of links there should be through ssh, if the round trip asks for `wanted` and there are `had`: one more at a
/// time. When the new one is up, it is measured and may ask for the next.
fn links_through_ssh(wanted: u16, had: u16) -> u16 {
    wanted.clamp(LINKS_THROUGH_SSH, MOST_LINKS_THROUGH_SSH).min(had + 1)
}

/// A factor between 0.5 and 1.5, so that sites that lost each other at once do not keep dialling at the same moment.
fn jitter() -> f64 {
    0.5 + f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

/// Checks that the other gateway runs, while it should dial and does not.
async fn watch(trunks: Rc<Trunks>, trunk: Rc<Trunk>, address: String, patience: Duration) {
    let since = Instant::now();
    while !trunk.up.get() && since.elapsed() < patience {
        if let Ok(Err(error)) = timeout(DIAL_TIMEOUT, client::dial::dial(&address)).await
            && error.kind() == std::io::ErrorKind::ConnectionRefused
        {
            let problem = format!("site {}: gateway {} at {address}: {error}", trunk.site, trunk.gateway);
            trunks.does_not_run(&trunk, &problem);
            break;
        }
        sleep(WATCH).await;
    }
    trunk.watched.set(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_through_ssh_are_few_and_come_one_by_one() {
        let mut links = vec![1];
        // A round trip of 200 ms would have eight links.
        while links.last() != Some(&links_through_ssh(8, links[links.len() - 1])) {
            links.push(links_through_ssh(8, links[links.len() - 1]));
        }
        assert_eq!(links, [1, 2, 3, 4]);
        assert_eq!(links_through_ssh(1, 1), LINKS_THROUGH_SSH, "one carries on while the other is dialled again");
        // The first round trip was slow, the second is not.
        assert_eq!(links_through_ssh(6, 1), 2);
        assert_eq!(links_through_ssh(1, 2), 2);
    }
}
