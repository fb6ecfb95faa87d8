//! The place where two other gateways meet: messages, connections and timers around [`Meetings`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use client::handshake::{self, Accepting};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::JobId;
use types::sites::Links;
use wire::Secret;
use wire::control::MeetingMessage;
use wire::handshake::{Handshake, Refusal, RefusalCode, Welcome};

use super::{AGAIN, Guest, Meetings, Met, Wish, pipe};
use crate::log::{STRANGERS, log};
use crate::table::TrunkId;
use crate::trunks::error::{ArrivalError, MeetingError};
use crate::trunks::handshake::{HANDSHAKE_TIMEOUT, prepare};
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// The state of a gateway as a place where others meet.
pub(crate) struct Host {
    list: Rc<TrunkList>,
    meetings: RefCell<Meetings<TcpStream>>,
    /// For each talk, the means to end it.
    cuts: RefCell<HashMap<JobId, Rc<Notify>>>,
    /// Last time at which the gateway at the end of the first trunk had the gateway at the end of the second notified
    /// that it can come.
    notified: RefCell<HashMap<(TrunkId, TrunkId), Instant>>,
}

impl Host {
    /// `list`: the trunks to the guests.
    pub(crate) fn new(list: Rc<TrunkList>) -> Host {
        // Members' windows take half of the memory.
        let most = (list.path.memory / 8 / pipe::MOST_HELD).max(1);
        Host {
            list,
            meetings: RefCell::new(Meetings::new(most as usize)),
            cuts: RefCell::default(),
            notified: RefCell::default(),
        }
    }
}

impl Host {
    /// The secret of a free seat.
    pub(crate) fn secret(&self, number: JobId, site: &str, gateway: &str) -> Option<Secret> {
        self.meetings.borrow().secret(number, site, gateway).ok()
    }

    /// Returns true if `from` may have `to` notified now. Without this limit a gateway could fill another's trunk with
    /// notices.
    fn may_notify(&self, from: TrunkId, to: TrunkId, now: Instant) -> bool {
        let before = self.notified.borrow().get(&(from, to)).copied();
        let may = before.is_none_or(|before| now.saturating_duration_since(before) >= AGAIN);
        if may {
            self.notified.borrow_mut().insert((from, to), now);
        }
        may
    }
}

impl Host {
    /// Handles a request to meet another gateway here: calls both, or refuses.
    pub(crate) fn wish(self: &Rc<Self>, asker: TrunkId, wish: Wish) {
        match self.introduce(asker, &wish) {
            Ok(calls) => {
                calls.into_iter().for_each(|(trunk, call)| self.list.get(trunk).send_control(&self.list.path, call))
            }
            Err(error) => {
                let (Wish { site, gateway, link }, reason) = (wish, error.to_string());
                tracing::debug!(asker = self.list.get(asker).site, site, gateway, reason, "no meeting");
                self.list
                    .get(asker)
                    .send_control(&self.list.path, MeetingMessage::Refused { site, gateway, link, reason });
            }
        }
    }

    /// Handles the notice that a gateway can be called now: notifies the gateway that asks to meet it.
    pub(crate) fn news(&self, from: TrunkId, site: &str, gateway: &str) {
        let guests = self.guests();
        let find = |is_it: &dyn Fn(&Guest) -> bool| guests.iter().find(|guest| guest.hidden && is_it(guest));
        let here = find(&|guest| guest.trunk == from);
        let asks = find(&|guest| guest.up && guest.site == site && guest.gateway == gateway);
        if let (Some(here), Some(asks)) = (here, asks)
            && self.may_notify(here.trunk, asks.trunk, Instant::now())
        {
            let (site, gateway) = (here.site.clone(), here.gateway.clone());
            self.list.get(asks.trunk).send_control(&self.list.path, MeetingMessage::CanCome { site, gateway });
        }
    }

    fn introduce(self: &Rc<Self>, asker: TrunkId, wish: &Wish) -> Result<[(TrunkId, MeetingMessage); 2], MeetingError> {
        let guests = self.guests();
        let (site, own) = self.list.sites.own.get();
        let own = &self.list.sites.file.borrow().sites[site].gateways[own];
        if !own.meeting || own.advertise.is_none() {
            return Err(MeetingError::NotLet);
        }
        let mut bytes = [[0; 32]; 2];
        getrandom::fill(bytes.as_flattened_mut()).map_err(MeetingError::Random)?;
        let now = Instant::now();
        let calls = self.meetings.borrow_mut().ask(asker, wish, &guests, bytes.map(Secret::new), now)?;
        let host = self.clone();
        tokio::task::spawn_local(async move {
            // The meeting expires after this time, even if the two have met.
            let _ = host.list.path.load.patiently(HANDSHAKE_TIMEOUT, std::future::pending::<()>()).await;
            let left = host.meetings.borrow_mut().expire(calls.number);
            if let Some((stream, reason)) = left {
                send_away(stream, Refusal::new(RefusalCode::NotAdmitted, reason)).await;
            }
        });
        Ok(calls.messages)
    }

    /// All gateways at the ends of trunks.
    fn guests(&self) -> Vec<Guest> {
        let sites = self.list.sites.file.borrow();
        let entry = |trunk: &Trunk| {
            let site = sites.site(&trunk.site)?.1;
            site.gateways.iter().find(|entry| entry.name == trunk.gateway)
        };
        let trunks = self.list.in_use();
        let guest = |trunk: &Rc<Trunk>| Guest {
            trunk: trunk.id,
            site: trunk.site.clone(),
            gateway: trunk.gateway.clone(),
            links: entry(trunk).map_or(Links::Fixed(0), |entry| entry.links),
            hidden: entry(trunk).is_some_and(|entry| entry.advertise.is_none() && entry.ssh.is_none()),
            up: trunk.is_up(),
        };
        trunks.iter().map(guest).collect()
    }
}

/// Admits a connection for a meeting, after its hello. The caller sets the time limit. Returns both connections if this
/// is the second.
pub(crate) async fn admit(
    host: &Host,
    mut stream: TcpStream,
    mut accepting: Accepting,
) -> Result<Option<Met<TcpStream>>, ArrivalError> {
    let hello = accepting.hello.clone();
    let secret = host.meetings.borrow().secret(hello.job, &hello.site, &hello.gateway);
    let admitted = match secret {
        Ok(secret) => match accepting.challenge(&mut stream, &secret, "not the secret of this seat", &[]).await {
            // No await between here and the end of the block, so nobody can take the seat meanwhile.
            Ok(()) => {
                let arrived = host.meetings.borrow_mut().arrive(hello.job, &hello.site, &hello.gateway, stream);
                arrived.map_err(|(stream, error)| (stream, Refusal::new(RefusalCode::NotAdmitted, error.to_string())))
            }
            Err(error) => match error.refusal() {
                Some(refusal) => Err((stream, refusal)),
                None => return Err(error.into()),
            },
        },
        Err(error) => Err((stream, Refusal::new(RefusalCode::Unknown, error.to_string()))),
    };
    match admitted {
        Ok(met) => Ok(met),
        Err((stream, refusal)) => {
            send_away(stream, refusal.clone()).await;
            Err(ArrivalError::Refused(refusal.text))
        }
    }
}

/// Connects two guests that have met, until one closes.
pub(crate) async fn serve(host: &Host, met: Met<TcpStream>) {
    let Met { number, names: [one, two], mut streams, replaces } = met;
    if let Some(older) = replaces
        && let Some(cut) = host.cuts.borrow_mut().remove(&older)
    {
        cut.notify_one();
    }
    let cut = Rc::new(Notify::new());
    host.cuts.borrow_mut().insert(number, cut.clone());
    let welcome = Handshake::Welcome(Welcome { max_payload: 0, window: 0, run: 0 });
    let mut welcomed = Ok(());
    for stream in &mut streams {
        // A socket without earlier writes takes these few bytes at once.
        welcomed = match welcomed.and_then(|()| Ok(prepare(stream)?)) {
            Ok(()) => handshake::write(stream, &welcome).await,
            failed => failed,
        };
    }
    if welcomed.is_ok() {
        log!(info, STRANGERS, one, two, "two gateways meet here");
        let bytes = tokio::select! {
            bytes = pipe::carry(&host.list.path, streams) => Some(bytes),
            () = cut.notified() => None,
        };
        log!(info, STRANGERS, one, two, bytes, "their meeting is over");
    }
    host.cuts.borrow_mut().remove(&number);
    host.meetings.borrow_mut().over(number);
}

/// Refuses a connection. Best effort: the peer may be gone.
async fn send_away(mut stream: TcpStream, refusal: Refusal) {
    if handshake::write(&mut stream, &Handshake::Refuse(refusal)).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
