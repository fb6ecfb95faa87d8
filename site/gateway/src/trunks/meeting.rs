//! Meetings: a trunk between two gateways that cannot be dialled, through a gateway of a third site that both have
//! dialled.
//!
//! ```text
//! first  → place    Ask      over their trunk: let me meet that one
//! place  → both     Call     over their trunks: a number, and a secret of its own for each
//! both   → place    Hello … Proof, by TCP     (`Purpose::Meet`)
//! place  → both     Welcome, once the second is there; from now on each receives the bytes of the other
//! first  → second   the TLS handshake of a link, and the link
//! ```
//! The site that comes earlier in the sites file is the first: it asks, asks elsewhere when a place refuses or falls
//! silent, and comes again when the link closes, as a dialling gateway does. The second comes when it is called. When
//! it reaches a place it notifies the first (`CanCome`), which may have asked in vain. To both the link is like any
//! other, with both keys pinned: the place carries ciphertext that it can drop but not read.
//!
//! This file is the memory of a place, without I/O: the requests, the seats that are taken, the pairs that talk.
//! [`host`] does a place's I/O, [`pipe`] carries the bytes, [`visit`] is the side of the two that meet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use types::JobId;
use types::sites::Links;
use wire::Secret;
use wire::control::MeetingMessage;

use crate::table::TrunkId;
use crate::trunks::error::MeetingError;

pub(crate) mod host;
mod pipe;
pub(crate) mod visit;

/// Time within which a further request of a pair is refused. A gateway that dials pauses longer, and each request costs
/// both gateways a message.
const AGAIN: Duration = Duration::from_millis(40);

/// A gateway at the other end of a trunk, as a guest that may meet others here.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub trunk: TrunkId,
    pub site: String,
    pub gateway: String,
    /// The `links` setting of its trunks.
    pub links: Links,
    /// True if no gateway can dial it.
    pub hidden: bool,
    pub up: bool,
}

/// The gateway to meet, and the link to make there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub site: String,
    pub gateway: String,
    pub link: u16,
}

/// A link of the trunk between two guests, the smaller trunk id first.
type GuestPair = (TrunkId, TrunkId, u16);

/// The meetings at one place. `S`: a guest's connection. `most` bounds the number of pairs, and so the memory.
#[derive(Debug)]
pub(crate) struct Meetings<S> {
    /// Meetings that wait for one guest or both.
    open: BTreeMap<GuestPair, Meeting<S>>,
    /// Pairs that have met and are connected.
    talks: BTreeMap<GuestPair, JobId>,
    most: usize,
    numbers: u32,
}

#[derive(Debug)]
struct Meeting<S> {
    number: JobId,
    since: Instant,
    seats: [GuestSeat<S>; 2],
}

#[derive(Debug)]
struct GuestSeat<S> {
    site: String,
    gateway: String,
    secret: Secret,
    came: Option<S>,
}

/// The messages that call two guests to a new meeting.
#[derive(Debug)]
pub(crate) struct Calls {
    pub number: JobId,
    pub messages: [(TrunkId, MeetingMessage); 2],
}

/// Two guests that have met.
#[derive(Debug)]
pub(crate) struct Met<S> {
    pub number: JobId,
    /// Their names, for the log.
    pub names: [String; 2],
    pub streams: [S; 2],
    /// The talk that this one replaces.
    pub replaces: Option<JobId>,
}

impl<S> Meetings<S> {
    /// `most`: number of pairs that may meet or talk at once.
    pub(crate) fn new(most: usize) -> Meetings<S> {
        Meetings { open: BTreeMap::new(), talks: BTreeMap::new(), most, numbers: 0 }
    }

    /// Opens a meeting: the gateway at the end of trunk `asker` wants to meet another. `secrets`: two random secrets.
    /// An open meeting of the pair is replaced.
    ///
    /// # Errors
    /// The meeting is refused; the error is meant for the user of the asker.
    pub(crate) fn ask(
        &mut self,
        asker: TrunkId,
        wish: &Wish,
        guests: &[Guest],
        secrets: [Secret; 2],
        now: Instant,
    ) -> Result<Calls, MeetingError> {
        let Wish { site, gateway, link } = wish;
        let one = guests.iter().find(|guest| guest.trunk == asker).ok_or(MeetingError::Stranger)?;
        let two = guests.iter().find(|guest| guest.site == *site && guest.gateway == *gateway);
        let named = || (site.clone(), gateway.clone());
        let two = two.ok_or_else(|| {
            let (site, gateway) = named();
            MeetingError::UnknownGateway { site, gateway }
        })?;
        if one.site == two.site {
            return Err(MeetingError::SameSite);
        }
        for guest in [one, two] {
            if !guest.hidden {
                let (site, gateway) = (guest.site.clone(), guest.gateway.clone());
                return Err(MeetingError::Dialled { site, gateway });
            }
        }
        let links = one.links.with(two.links).most();
        if *link >= links {
            return Err(MeetingError::Links { link: *link, links });
        }
        if !two.up {
            let (site, gateway) = named();
            return Err(MeetingError::NotConnected { site, gateway });
        }
        let pair = (asker.min(two.trunk), asker.max(two.trunk), *link);
        if self.open.get(&pair).is_some_and(|open| now.saturating_duration_since(open.since) < AGAIN) {
            return Err(MeetingError::Hasty);
        }
        let others: BTreeSet<_> = self.open.keys().chain(self.talks.keys()).filter(|other| **other != pair).collect();
        if others.len() >= self.most {
            return Err(MeetingError::Full(others.len()));
        }
        let number = JobId(self.numbers);
        self.numbers = self.numbers.wrapping_add(1);
        let call = |whom: &Guest, secret: &Secret| MeetingMessage::Call {
            site: whom.site.clone(),
            gateway: whom.gateway.clone(),
            link: *link,
            meeting: number,
            secret: secret.clone(),
        };
        let [first, second] = secrets;
        let messages = [(one.trunk, call(two, &first)), (two.trunk, call(one, &second))];
        let seat =
            |of: &Guest, secret| GuestSeat { site: of.site.clone(), gateway: of.gateway.clone(), secret, came: None };
        self.open.insert(pair, Meeting { number, since: now, seats: [seat(one, first), seat(two, second)] });
        Ok(Calls { number, messages })
    }

    /// The secret that this gateway must prove at this meeting.
    ///
    /// # Errors
    /// It has no seat there, or the seat is taken.
    pub(crate) fn secret(&self, number: JobId, site: &str, gateway: &str) -> Result<Secret, MeetingError> {
        let meeting = self.open.values().find(|meeting| meeting.number == number);
        let seat = meeting.and_then(|meeting| meeting.seats.iter().find(|seat| seat.is_of(site, gateway)));
        match seat {
            Some(GuestSeat { came: None, secret, .. }) => Ok(secret.clone()),
            Some(_) => Err(MeetingError::Taken),
            None => {
                let (site, gateway) = (site.to_owned(), gateway.to_owned());
                Err(MeetingError::NotOpen { number: number.0, site, gateway })
            }
        }
    }

    /// Seats a gateway that has proved its secret. `None`: it waits for the other.
    ///
    /// # Errors
    /// The meeting is over or the seat was taken meanwhile; returns the connection.
    #[allow(clippy::result_large_err, reason = "gives the connection back to be refused")]
    pub(crate) fn arrive(
        &mut self,
        number: JobId,
        site: &str,
        gateway: &str,
        stream: S,
    ) -> Result<Option<Met<S>>, (S, MeetingError)> {
        if let Err(reason) = self.secret(number, site, gateway) {
            return Err((stream, reason));
        }
        let Some((pair, mut meeting)) = self.take(number) else { return Err((stream, MeetingError::Over)) };
        if let Some(seat) = meeting.seats.iter_mut().find(|seat| seat.is_of(site, gateway)) {
            seat.came = Some(stream);
        }
        let names = [meeting.seats[0].name(), meeting.seats[1].name()];
        let [first, second] = meeting.seats;
        let streams = match (first, second) {
            (GuestSeat { came: Some(one), .. }, GuestSeat { came: Some(two), .. }) => [one, two],
            (first, second) => {
                self.open.insert(pair, Meeting { seats: [first, second], ..meeting });
                return Ok(None);
            }
        };
        let replaces = self.talks.insert(pair, number);
        Ok(Some(Met { number, names, streams, replaces }))
    }

    /// Ends a meeting that has been open for long enough. Returns the guest that came, if one did, and the reason why
    /// it met nobody.
    pub(crate) fn expire(&mut self, number: JobId) -> Option<(S, String)> {
        let (_, meeting) = self.take(number)?;
        let absent = meeting.seats.iter().find(|seat| seat.came.is_none()).map(GuestSeat::name)?;
        let came = meeting.seats.into_iter().find_map(|seat| seat.came)?;
        Some((came, format!("{absent} was called and did not come")))
    }

    pub(crate) fn over(&mut self, number: JobId) {
        self.talks.retain(|_, talk| *talk != number);
    }

    fn take(&mut self, number: JobId) -> Option<(GuestPair, Meeting<S>)> {
        let pair = self.open.iter().find(|(_, meeting)| meeting.number == number).map(|(pair, _)| *pair)?;
        self.open.remove(&pair).map(|meeting| (pair, meeting))
    }
}

impl<S> GuestSeat<S> {
    fn is_of(&self, site: &str, gateway: &str) -> bool {
        self.site == site && self.gateway == gateway
    }

    fn name(&self) -> String {
        format!("gateway {} of site {}", self.gateway, self.site)
    }
}

#[cfg(test)]
mod tests;
