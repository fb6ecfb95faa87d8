//! The side of the gateways that meet: asking for a meeting, going there, and the trunk's link through it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;

use client::handshake::initiate;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use types::id::NOWHERE;
use types::{Address, JobId};
use wire::Secret;
use wire::control::MeetingMessage;
use wire::handshake::{Hello, Purpose};

use super::Wish;
use crate::door::stream::{Accepted, Arrival};
use crate::gateway::{Gateway, HANDSHAKE_TIMEOUT};
use crate::log::{log, short};
use crate::table::TrunkId;
use crate::trunks::error::{ArrivalError, LinkError, MeetingError, TrunkError};
use crate::trunks::link;
use crate::trunks::trunk::{self, DIAL_TIMEOUT, Dialled, Trunk};

/// A link of a trunk.
type LinkId = (TrunkId, u16);

/// The state of a gateway's own meetings, at most one for each link.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    /// Links for which this gateway has asked a place and waits for the reply.
    asked: RefCell<HashMap<LinkId, Asked>>,
    /// Links for which this gateway was called and is connecting.
    coming: RefCell<HashMap<LinkId, AbortHandle>>,
}

#[derive(Debug)]
struct Asked {
    place: TrunkId,
    answer: oneshot::Sender<Result<Seat, MeetingError>>,
}

/// A seat at a meeting, and the secret to prove there.
#[derive(Debug)]
struct Seat {
    meeting: JobId,
    secret: Secret,
}

impl Gateway {
    /// Handles a meeting message from a trunk.
    pub(crate) fn meeting_from_trunk(&self, from: TrunkId, message: MeetingMessage) {
        match message {
            MeetingMessage::Ask { site, gateway, link } => self.host_wish(from, Wish { site, gateway, link }),
            MeetingMessage::Call { site, gateway, link, meeting, secret } => {
                self.called(from, &Wish { site, gateway, link }, Ok(Seat { meeting, secret }));
            }
            MeetingMessage::Refused { site, gateway, link, reason } => {
                self.called(from, &Wish { site, gateway, link }, Err(MeetingError::Denied(reason)));
            }
            MeetingMessage::CanCome { site, gateway } => {
                self.host_news(from, &site, &gateway);
                self.hidden(&site, &gateway).filter(|trunk| trunk.asks()).iter().for_each(|trunk| trunk.kick());
            }
        }
    }

    /// The places where this gateway may meet the one at the other end of a trunk, in the order of the sites file.
    fn places(&self, trunk: &Trunk) -> Vec<Rc<Trunk>> {
        let lets = |place: &Rc<Trunk>| place.lets_meet && place.site != trunk.site;
        self.trunks.in_use().into_iter().filter(lets).collect()
    }

    /// Returns true if there is a place where the two ends of a trunk may meet now.
    pub(crate) fn may_meet(&self, trunk: &Trunk) -> bool {
        self.places(trunk).iter().any(|place| place.is_up())
    }

    /// The problem to report for a trunk whose ends cannot be dialled, before an attempt has ended.
    pub(crate) fn unmet(&self, trunk: &Trunk) -> String {
        let places = self.places(trunk);
        let names = places.iter().map(|place| match place.is_up() {
            true => name(place),
            false => format!("{} (not reached from here)", name(place)),
        });
        let names = names.collect::<Vec<_>>().join(" or ");
        let neither = neither(trunk);
        match (places.is_empty(), trunk.asks()) {
            (true, _) => format!(
                "{neither}, and no gateway that both reach lets them meet: give one an `advertise`, or join a site that has one"
            ),
            (_, true) => format!("{neither}; not met yet at {names}"),
            (_, false) => format!("{neither}; it has not come to {names} to meet this one: is it running?"),
        }
    }

    /// Handles a trunk that came up. If others may meet at its end, this gateway's trunks that ask for meetings ask
    /// now. For its trunks that do not, it has the place notify the gateways that do.
    pub(crate) fn place_reached(&self, place: &Trunk) {
        if !place.lets_meet {
            return;
        }
        self.expect_meetings();
        for trunk in self.trunks.in_use().iter().filter(|trunk| trunk.hidden && !trunk.asks() && !trunk.is_up()) {
            if trunk.site != place.site {
                let (site, gateway) = (trunk.site.clone(), trunk.gateway.clone());
                place.send_control(self, MeetingMessage::CanCome { site, gateway });
            }
        }
    }

    /// Makes all trunks that ask for meetings ask now, and updates the reported problem of those that wait to be
    /// called.
    pub(crate) fn expect_meetings(&self) {
        let trunks: Vec<_> = self.trunks.in_use().into_iter().filter(|trunk| trunk.hidden && !trunk.is_up()).collect();
        for trunk in trunks {
            match trunk.asks() {
                true => trunk.kick(),
                false => self.expect(&trunk),
            }
        }
    }

    /// The trunk to a gateway that must be met.
    fn hidden(&self, site: &str, gateway: &str) -> Option<Rc<Trunk>> {
        let is_it = |trunk: &Rc<Trunk>| trunk.hidden && trunk.site == site && trunk.gateway == gateway;
        self.trunks.in_use().into_iter().find(is_it)
    }

    /// Handles a place's reply or call.
    fn called(&self, place: TrunkId, wish: &Wish, answer: Result<Seat, MeetingError>) {
        let Wish { site, gateway, link } = wish;
        let Some(trunk) = self.hidden(site, gateway).filter(|trunk| *link < trunk.most_links()) else {
            let place = self.trunks.get(place);
            let (site, gateway) = (short(site), short(gateway));
            log!(
                warn,
                &place.site,
                site,
                gateway,
                link,
                "called to a meeting with a gateway that this gateway does not meet"
            );
            return;
        };
        let id = (trunk.id, *link);
        if trunk.asks() {
            let mut asked = self.trunks.visits.asked.borrow_mut();
            // A late answer is dropped.
            if asked.get(&id).is_some_and(|asked| asked.place == place)
                && let Some(asked) = asked.remove(&id)
            {
                let _ = asked.answer.send(answer);
            }
            return;
        }
        let here = self.places(&trunk).into_iter().find(|known| known.id == place);
        let (Some(place), Ok(seat), Some(gateway)) = (here, answer, self.shared()) else { return };
        let coming = tokio::task::spawn_local(async move { come(&gateway, &trunk, id.1, &place, seat).await });
        if let Some(earlier) = self.trunks.visits.coming.borrow_mut().insert(id, coming.abort_handle()) {
            earlier.abort();
        }
    }
}

/// Meets the other end of a trunk at the first place that lets them, and makes a link there.
pub(crate) async fn meet(gateway: &Gateway, trunk: &Trunk, index: usize) -> Result<Dialled, LinkError> {
    let places = gateway.places(trunk);
    if places.is_empty() {
        return Err(LinkError::Unmet(gateway.unmet(trunk)));
    }
    let mut problem = neither(trunk);
    for place in places {
        match meet_at(gateway, trunk, index, &place).await {
            Ok(dialled) => return Ok(dialled),
            Err(reason) => {
                let _ = write!(problem, "; no meeting at {}: {reason}", name(&place));
            }
        }
    }
    Err(LinkError::Unmet(problem))
}

async fn meet_at(gateway: &Gateway, trunk: &Trunk, index: usize, place: &Trunk) -> Result<Dialled, LinkError> {
    if !place.is_up() {
        return Err(TrunkError::Down(place.problem()).into());
    }
    let link = index as u16;
    let seat = ask(gateway, trunk, link, place).await?;
    let (tcp, peer) = take(gateway, seat, link, place).await?;
    let (stream, run) = trunk::shake(gateway, trunk, index, tcp, HANDSHAKE_TIMEOUT).await?;
    trunk.met_at(name(place));
    Ok(Dialled { stream, run, peer, tunnel: None })
}

async fn ask(gateway: &Gateway, trunk: &Trunk, link: u16, place: &Trunk) -> Result<Seat, MeetingError> {
    let (answer, waiting) = oneshot::channel();
    let id = (trunk.id, link);
    gateway.trunks.visits.asked.borrow_mut().insert(id, Asked { place: place.id, answer });
    let wish = MeetingMessage::Ask { site: trunk.site.clone(), gateway: trunk.gateway.clone(), link };
    place.send_control(gateway, wish);
    let answer = gateway.patiently(DIAL_TIMEOUT, waiting).await;
    gateway.trunks.visits.asked.borrow_mut().remove(&id);
    match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(MeetingError::AskedAgain),
        Err(waited) => Err(MeetingError::NoAnswer(waited.as_secs())),
    }
}

/// Reasons why a called gateway did not meet the gateway that asked.
#[derive(Debug, Error)]
enum VisitError {
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
}

/// Goes to the place that called and serves the link.
async fn come(gateway: &Rc<Gateway>, trunk: &Rc<Trunk>, link: u16, place: &Rc<Trunk>, seat: Seat) {
    let accepted = async {
        let (tcp, peer) = take(gateway, seat, link, place).await?;
        let accepted = gateway.patiently(HANDSHAKE_TIMEOUT, trunk::accept(gateway, (Vec::new(), tcp), peer)).await;
        match accepted.map_err(|_| MeetingError::NotBegun)?? {
            Arrival::Link(accepted) => Ok((*accepted, peer)),
            _ => Err(VisitError::from(MeetingError::NoGateway)),
        }
    };
    let accepted = accepted.await;
    // From here on a later call no longer aborts this task: the link is replaced once the later one is up.
    gateway.trunks.visits.coming.borrow_mut().remove(&(trunk.id, link));
    match accepted {
        Ok((Accepted { trunk, index, stream, run }, peer)) => {
            trunk.met_at(name(place));
            link::serve(gateway, &trunk, index, (stream, run), peer).await;
        }
        Err(error) if !trunk.is_up() => {
            trunk.failed(gateway, format!("{}; no meeting at {}: {error}", neither(trunk), name(place)));
        }
        Err(error) => {
            let problem = error.to_string();
            log!(warn, &place.site, site = trunk.site, gateway = trunk.gateway, link, problem, "no meeting");
        }
    }
}

/// Takes a seat at a meeting; returns once the other guest is there.
async fn take(gateway: &Gateway, seat: Seat, link: u16, place: &Trunk) -> Result<(TcpStream, SocketAddr), LinkError> {
    let address = place.address.as_deref().unwrap_or_default();
    let mut tcp = trunk::connect(gateway, address).await?;
    let peer = tcp.peer_addr()?;
    trunk::prepare(&tcp)?;
    let nowhere = Address::standalone(NOWHERE);
    let hello = Hello {
        purpose: Purpose::Meet,
        job: seat.meeting,
        from: nowhere,
        to: nowhere,
        site: gateway.site.clone(),
        gateway: gateway.name.clone(),
        link,
        nonce: [0; 32],
    };
    // Longer than the place's wait for the other guest, so that the place's report arrives.
    let limit = HANDSHAKE_TIMEOUT + DIAL_TIMEOUT;
    match gateway.patiently(limit, initiate(&mut tcp, hello, &seat.secret, &[])).await {
        Ok(welcome) => welcome?,
        Err(waited) => return Err(MeetingError::NothingHappens(waited.as_secs()).into()),
    };
    Ok((tcp, peer))
}

fn name(place: &Trunk) -> String {
    format!("gateway {} of site {}", place.gateway, place.site)
}

fn neither(trunk: &Trunk) -> String {
    format!("site {}: neither its gateway {} nor this one can be dialled", trunk.site, trunk.gateway)
}
