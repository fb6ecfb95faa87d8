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
use types::sites::Approach;
use types::{Address, JobId};
use wire::Secret;
use wire::control::MeetingMessage;
use wire::handshake::{Hello, Purpose};

use super::Wish;
use crate::log::{log, short};
use crate::table::TrunkId;
use crate::trunks::error::{ArrivalError, LinkError, MeetingError, TrunkError};
use crate::trunks::handshake::{self, Accepted, DIAL_TIMEOUT, Dialled, HANDSHAKE_TIMEOUT, TlsPeer};
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// A link of a trunk.
pub(crate) type LinkId = (TrunkId, u16);

/// The state of a gateway's own meetings, at most one for each link.
pub(crate) struct Visits {
    list: Rc<TrunkList>,
    /// Links for which this gateway has asked a place and waits for the reply.
    asked: RefCell<HashMap<LinkId, AskedPlace>>,
    /// Links for which this gateway was called and is connecting.
    coming: RefCell<HashMap<LinkId, AbortHandle>>,
}

#[derive(Debug)]
struct AskedPlace {
    place: TrunkId,
    answer: oneshot::Sender<Result<OwnSeat, MeetingError>>,
}

/// A seat at a meeting, and the secret to prove there.
#[derive(Debug)]
struct OwnSeat {
    meeting: JobId,
    secret: Secret,
}

/// A call to a meeting that this gateway follows.
pub(crate) struct Called {
    trunk: Rc<Trunk>,
    link: u16,
    place: Rc<Trunk>,
    seat: OwnSeat,
}

impl Called {
    pub(crate) fn link_id(&self) -> LinkId {
        (self.trunk.id, self.link)
    }
}

impl Visits {
    /// `list`: the trunks, to the places and to the gateways to meet.
    pub(crate) fn new(list: Rc<TrunkList>) -> Visits {
        Visits { list, asked: RefCell::default(), coming: RefCell::default() }
    }

    /// Sets the problem to report for a trunk until its first attempt has ended.
    pub(crate) fn expect(&self, trunk: &Trunk) {
        let (site, name) = (&trunk.site, &trunk.gateway);
        let problem = match trunk.dials() {
            Some(Approach::Direct(address)) => {
                let port = address.rsplit(':').next().unwrap_or_default();
                format!("site {site}: gateway {name} at {address}: not reached yet; a firewall may block port {port}")
            }
            Some(Approach::Ssh(login, _)) => {
                format!("site {site}: gateway {name} through ssh to {login}: not reached yet")
            }
            None if trunk.hidden => self.unmet(trunk),
            None => format!("site {site}: its gateway {name} has not dialled us yet: is it running?"),
        };
        self.list.path.table.change(|table| table.trunk_problem(trunk.id, problem.clone()));
        trunk.expect(problem);
    }

    /// The places where this gateway may meet the one at the other end of a trunk, in the order of the sites file.
    fn places(&self, trunk: &Trunk) -> Vec<Rc<Trunk>> {
        let lets = |place: &Rc<Trunk>| place.lets_meet && place.site != trunk.site;
        self.list.in_use().into_iter().filter(lets).collect()
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
        for trunk in self.list.in_use().iter().filter(|trunk| trunk.hidden && !trunk.asks() && !trunk.is_up()) {
            if trunk.site != place.site {
                let (site, gateway) = (trunk.site.clone(), trunk.gateway.clone());
                place.send_control(&self.list.path, MeetingMessage::CanCome { site, gateway });
            }
        }
    }

    /// Makes all trunks that ask for meetings ask now, and updates the reported problem of those that wait to be
    /// called.
    pub(crate) fn expect_meetings(&self) {
        let trunks: Vec<_> = self.list.in_use().into_iter().filter(|trunk| trunk.hidden && !trunk.is_up()).collect();
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
        self.list.in_use().into_iter().find(is_it)
    }

    /// Handles a place's notice that a gateway can come to a meeting there.
    pub(crate) fn can_come(&self, site: &str, gateway: &str) {
        self.hidden(site, gateway).filter(|trunk| trunk.asks()).iter().for_each(|trunk| trunk.kick());
    }

    /// Handles a place's call: the reply to a request, or a call that this gateway follows. The latter is returned.
    pub(crate) fn called(&self, place: TrunkId, wish: &Wish, meeting: JobId, secret: Secret) -> Option<Called> {
        let (trunk, seat) = (self.wished(place, wish)?, OwnSeat { meeting, secret });
        if trunk.asks() {
            self.answered((trunk.id, wish.link), place, Ok(seat));
            return None;
        }
        let place = self.places(&trunk).into_iter().find(|known| known.id == place)?;
        Some(Called { trunk, link: wish.link, place, seat })
    }

    /// Handles a place's refusal.
    pub(crate) fn refused(&self, place: TrunkId, wish: &Wish, reason: String) {
        if let Some(trunk) = self.wished(place, wish).filter(|trunk| trunk.asks()) {
            self.answered((trunk.id, wish.link), place, Err(MeetingError::Denied(reason)));
        }
    }

    /// The trunk to the gateway to meet.
    fn wished(&self, place: TrunkId, wish: &Wish) -> Option<Rc<Trunk>> {
        let Wish { site, gateway, link } = wish;
        let trunk = self.hidden(site, gateway).filter(|trunk| *link < trunk.most_links());
        if trunk.is_none() {
            let place = self.list.get(place);
            let (site, gateway) = (short(site), short(gateway));
            log!(
                warn,
                &place.site,
                site,
                gateway,
                link,
                "called to a meeting with a gateway that this gateway does not meet"
            );
        }
        trunk
    }

    fn answered(&self, id: LinkId, place: TrunkId, answer: Result<OwnSeat, MeetingError>) {
        let mut asked = self.asked.borrow_mut();
        // A late answer is dropped.
        if asked.get(&id).is_some_and(|asked| asked.place == place)
            && let Some(asked) = asked.remove(&id)
        {
            let _ = asked.answer.send(answer);
        }
    }

    /// Notes the task that follows a call for a link. An earlier one ends.
    pub(crate) fn comes(&self, id: LinkId, task: AbortHandle) {
        if let Some(earlier) = self.coming.borrow_mut().insert(id, task) {
            earlier.abort();
        }
    }

    /// Meets the other end of a trunk at the first place that lets them, and makes a link there.
    pub(crate) async fn meet(&self, trunk: &Trunk, index: usize) -> Result<Dialled, LinkError> {
        let places = self.places(trunk);
        if places.is_empty() {
            return Err(LinkError::Unmet(self.unmet(trunk)));
        }
        let mut problem = neither(trunk);
        for place in places {
            match self.meet_at(trunk, index, &place).await {
                Ok(dialled) => return Ok(dialled),
                Err(reason) => {
                    let _ = write!(problem, "; no meeting at {}: {reason}", name(&place));
                }
            }
        }
        Err(LinkError::Unmet(problem))
    }

    async fn meet_at(&self, trunk: &Trunk, index: usize, place: &Trunk) -> Result<Dialled, LinkError> {
        if !place.is_up() {
            return Err(TrunkError::Down(place.problem()).into());
        }
        let link = index as u16;
        let seat = self.ask(trunk, link, place).await?;
        let (tcp, peer) = self.take(seat, link, place).await?;
        let (stream, run) = handshake::shake(&self.list, trunk, index, tcp, HANDSHAKE_TIMEOUT).await?;
        trunk.met_at(name(place));
        Ok(Dialled { stream, run, peer, tunnel: None })
    }

    async fn ask(&self, trunk: &Trunk, link: u16, place: &Trunk) -> Result<OwnSeat, MeetingError> {
        let (answer, waiting) = oneshot::channel();
        let id = (trunk.id, link);
        self.asked.borrow_mut().insert(id, AskedPlace { place: place.id, answer });
        let wish = MeetingMessage::Ask { site: trunk.site.clone(), gateway: trunk.gateway.clone(), link };
        place.send_control(&self.list.path, wish);
        let answer = self.list.path.load.patiently(DIAL_TIMEOUT, waiting).await;
        self.asked.borrow_mut().remove(&id);
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(MeetingError::AskedAgain),
            Err(waited) => Err(MeetingError::NoAnswer(waited.as_secs())),
        }
    }

    /// Goes to the place that called and accepts the link there. A failure is logged.
    pub(crate) async fn come(&self, call: Called) -> Option<(Accepted, SocketAddr)> {
        let Called { trunk, link, place, seat } = call;
        let accepted = async {
            let (tcp, peer) = self.take(seat, link, &place).await?;
            let accept = handshake::accept(&self.list, (Vec::new(), tcp), peer);
            let accepted = self.list.path.load.patiently(HANDSHAKE_TIMEOUT, accept).await;
            match accepted.map_err(|_| MeetingError::NotBegun)?? {
                TlsPeer::Link(accepted) => Ok((*accepted, peer)),
                _ => Err(VisitError::from(MeetingError::NoGateway)),
            }
        };
        let accepted = accepted.await;
        // From here on a later call no longer aborts this task: the link is replaced once the later one is up.
        self.coming.borrow_mut().remove(&(trunk.id, link));
        match accepted {
            Ok(accepted) => {
                accepted.0.trunk.met_at(name(&place));
                return Some(accepted);
            }
            Err(error) if !trunk.is_up() => {
                trunk.failed(&self.list.path, format!("{}; no meeting at {}: {error}", neither(&trunk), name(&place)));
            }
            Err(error) => {
                let problem = error.to_string();
                log!(warn, &place.site, site = trunk.site, gateway = trunk.gateway, link, problem, "no meeting");
            }
        }
        None
    }

    /// Takes a seat at a meeting; returns once the other guest is there.
    async fn take(&self, seat: OwnSeat, link: u16, place: &Trunk) -> Result<(TcpStream, SocketAddr), LinkError> {
        let address = place.address.as_deref().unwrap_or_default();
        let mut tcp = handshake::connect(&self.list, address).await?;
        let peer = tcp.peer_addr()?;
        handshake::prepare(&tcp)?;
        let nowhere = Address::standalone(NOWHERE);
        let hello = Hello {
            purpose: Purpose::Meet,
            job: seat.meeting,
            from: nowhere,
            to: nowhere,
            site: self.list.sites.site.clone(),
            gateway: self.list.sites.gateway.clone(),
            link,
            nonce: [0; 32],
        };
        // Longer than the place's wait for the other guest, so that the place's report arrives.
        let limit = HANDSHAKE_TIMEOUT + DIAL_TIMEOUT;
        match self.list.path.load.patiently(limit, initiate(&mut tcp, hello, &seat.secret, &[])).await {
            Ok(welcome) => welcome?,
            Err(waited) => return Err(MeetingError::NothingHappens(waited.as_secs()).into()),
        };
        Ok((tcp, peer))
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

fn name(place: &Trunk) -> String {
    format!("gateway {} of site {}", place.gateway, place.site)
}

fn neither(trunk: &Trunk) -> String {
    format!("site {}: neither its gateway {} nor this one can be dialled", trunk.site, trunk.gateway)
}
