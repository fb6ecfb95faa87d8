//! A trunk: everything between this gateway and one other, on this side. Its links, its state, its control messages.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use types::JobId;
use types::sites::{Approach, Fingerprint, Keys, Links, Login};
use wire::{FrameHeader, FrameKind};

use crate::log::{log, short};
use crate::path::Path;
use crate::path::limits::GATEWAY;
use crate::path::link::Link;
use crate::path::trunk_links::TrunkLinks;
use crate::table::TrunkId;
use crate::trunks::control::ControlChannel;
use crate::trunks::error::TrunkError;

mod messages;

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Trunk {
    pub id: TrunkId,
    end: TrunkEnd,
    /// True if this side dials, or asks for meetings.
    pub(super) dials: bool,
    /// True if neither end can be dialled, so that they must meet somewhere else.
    pub hidden: bool,
    /// The place of the last meeting.
    met: RefCell<Option<String>>,
    /// Keys of the other end's site; a link needs one of them.
    keys: Cell<Keys>,
    /// The reason why the other gateway was removed from the sites file, if it was.
    retired: RefCell<Option<String>>,
    /// Number of times it was removed from the sites file. Tasks that keep dialling stop when this changes.
    pub(super) times_retired: Cell<u32>,
    /// True while a task checks if the other gateway runs.
    pub(super) watched: Cell<bool>,
    pub links: Rc<TrunkLinks>,
    pub(super) how_many: Links,
    /// Number of links there should be; grows when the round trip turns out to be long.
    pub(super) wanted: Cell<u16>,
    /// True while at least one link is up.
    pub(super) up: Cell<bool>,
    pub(super) control: RefCell<ControlChannel>,
    /// Bytes of memory counted for `control`.
    held: Cell<u64>,
    /// Totals of the links that have closed.
    pub gone: Cell<Gone>,
    /// Notified when the trunk comes up.
    pub(super) changed: Notify,
    /// Notified to dial now.
    pub(super) kick: Notify,
    pub(super) problem: RefCell<String>,
}

/// Closed links of a trunk, and the bytes of frames that they carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    pub links: u64,
    pub sent: u64,
    pub received: u64,
}

/// The other end of a trunk.
#[derive(Debug)]
pub(crate) struct TrunkEnd {
    pub site: String,
    pub gateway: String,
    /// Its address, if it can be dialled.
    pub address: Option<String>,
    /// The login by ssh that is used instead, and the address dialled from there.
    pub login: Option<(Login, String)>,
    /// True if links go through ssh, whichever side dials.
    pub through_ssh: bool,
    /// True if other gateways may meet there.
    pub lets_meet: bool,
}

impl Deref for Trunk {
    type Target = TrunkEnd;

    fn deref(&self) -> &TrunkEnd {
        &self.end
    }
}

impl Trunk {
    /// The way this side dials; `None` if the other side dials or the two meet elsewhere.
    pub(crate) fn dials(&self) -> Option<Approach<'_>> {
        match &self.login {
            _ if !self.dials => None,
            Some((login, to)) => Some(Approach::Ssh(login, to)),
            None => self.address.as_deref().map(Approach::Direct),
        }
    }

    /// Returns true if this side asks for meetings.
    pub(crate) fn asks(&self) -> bool {
        self.hidden && self.dials
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.get()
    }

    /// The last problem.
    pub(crate) fn problem(&self) -> String {
        self.problem.borrow().clone()
    }

    /// Notes the place of the last meeting.
    pub(crate) fn met_at(&self, place: String) {
        self.met.replace(Some(place));
    }

    /// Describes the location of a link's other end, for messages.
    pub(crate) fn whereabouts(&self, address: SocketAddr) -> String {
        match &*self.met.borrow() {
            Some(place) => format!("met at {place}, {address}"),
            None => match &self.login {
                Some((login, _)) => format!("through ssh to {login}"),
                None if self.through_ssh => "through ssh from there".to_owned(),
                None => format!("at {address}"),
            },
        }
    }

    pub(crate) fn new(id: TrunkId, end: TrunkEnd, keys: Keys, (dials, hidden): (bool, bool), how_many: Links) -> Trunk {
        let links = Rc::new(TrunkLinks::new(end.site.clone(), end.gateway.clone(), how_many.most()));
        Trunk {
            id,
            end,
            dials,
            hidden,
            met: RefCell::default(),
            keys: Cell::new(keys),
            retired: RefCell::default(),
            times_retired: Cell::new(0),
            watched: Cell::new(false),
            links,
            how_many,
            wanted: Cell::new(how_many.wanted(Duration::ZERO)),
            up: Cell::new(false),
            control: RefCell::new(ControlChannel::new()),
            held: Cell::default(),
            gone: Cell::default(),
            changed: Notify::new(),
            kick: Notify::new(),
            problem: RefCell::default(),
        }
    }

    /// The same trunk with another id.
    pub(crate) fn numbered(self, id: TrunkId) -> Trunk {
        Trunk { id, ..self }
    }

    pub(crate) fn keys(&self) -> Keys {
        self.keys.get()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.borrow().is_some()
    }

    /// Replaces the keys of the site at the other end. Links that were opened with another key are cut; they are
    /// dialled again and admitted if the key is one of the new ones.
    pub(crate) fn trust(&self, keys: Keys) {
        self.keys.set(keys);
        for link in self.up_links() {
            if let Err(error) = self.check(link.key) {
                link.cut(error.to_string());
            }
        }
    }

    /// Marks the other gateway as removed from the sites file and cuts all links.
    pub(crate) fn retire(&self, reason: &str) {
        self.retired.replace(Some(reason.to_owned()));
        self.times_retired.set(self.times_retired.get() + 1);
        self.up_links().iter().for_each(|link| link.cut(reason.to_owned()));
        self.kick.notify_waiters();
    }

    /// Marks the other gateway as listed in the sites file again. Control messages continue where they stopped.
    pub(crate) fn take_back(&self, keys: Keys) {
        self.keys.set(keys);
        self.retired.replace(None);
    }

    /// Returns true if both trunks are dialled in the same way, at the same address.
    pub(crate) fn is_dialled_like(&self, other: &Trunk) -> bool {
        let how = |trunk: &Trunk| {
            let TrunkEnd { address, login, through_ssh, lets_meet, .. } = &trunk.end;
            (trunk.dials, trunk.hidden, trunk.how_many, address.clone(), login.clone(), *through_ssh, *lets_meet)
        };
        how(self) == how(other)
    }

    /// Checks that a peer that presents this key may be the other end.
    ///
    /// # Errors
    /// The key is wrong, or the other gateway was removed from the sites file.
    pub(crate) fn check(&self, presented: Option<Fingerprint>) -> Result<(), TrunkError> {
        if let Some(reason) = &*self.retired.borrow() {
            return Err(TrunkError::Retired(reason.clone()));
        }
        let keys = self.keys.get();
        if keys.accept(presented) {
            return Ok(());
        }
        Err(TrunkError::WrongKey { presented, keys })
    }

    /// The most links there may be.
    pub(crate) fn most_links(&self) -> u16 {
        self.how_many.most()
    }

    /// Number of links there should be.
    pub(crate) fn wanted(&self) -> u16 {
        self.wanted.get()
    }

    /// The links that are up.
    pub(crate) fn up_links(&self) -> Vec<Rc<Link>> {
        self.links.up()
    }

    /// If the trunk is down, dials at once instead of after the pause.
    pub(crate) fn kick(&self) {
        if !self.up.get() {
            self.kick.notify_waiters();
        }
    }

    /// Notes the reason why the trunk, or another link of it, is not up, and logs it if it is new.
    pub(crate) fn failed(&self, path: &Path, problem: String) {
        path.table.change(|table| table.trunk_problem(self.id, problem.clone()));
        // A part of the last message is not new either.
        if !self.problem.borrow().contains(&problem) {
            let (site, gateway, short) = (&self.site, &self.gateway, short(&problem));
            match self.up.get() {
                true => log!(warn, &self.site, site, gateway, problem = short, "link not up"),
                false => log!(warn, &self.site, site, gateway, problem = short, "trunk down"),
            }
            self.problem.replace(problem);
        }
    }

    /// Sets the problem reported before the first attempt has ended.
    pub(crate) fn expect(&self, problem: String) {
        self.problem.replace(problem);
    }

    /// Waits until the trunk is up. If that takes longer than `limit`, the error carries the last problem.
    pub(crate) async fn wait_up(&self, limit: Duration) -> Result<(), TrunkError> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if self.up.get() {
                    return;
                }
                self.kick();
                changed.await;
            }
        };
        timeout(limit, wait).await.map_err(|_| TrunkError::Down(self.problem()))
    }

    /// Sends a ping over one of the links and waits for the reply.
    pub(crate) async fn ping(&self, path: &Path, limit: Duration) -> Result<Duration, TrunkError> {
        let link = self.links.choose(GATEWAY, GATEWAY).ok_or_else(|| TrunkError::Down(self.problem()))?;
        match link.ping(path, limit).await {
            Ok(Some(rtt)) => Ok(rtt),
            Ok(None) => Err(TrunkError::Broke(self.site.clone())),
            Err(_) => Err(TrunkError::NoAnswer { site: self.site.clone(), limit }),
        }
    }

    /// Sends a goodbye on all links.
    pub(crate) fn goodbye(&self, path: &Path, reason: &str) {
        for link in self.up_links() {
            link.send_own(
                path,
                FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY),
                reason.as_bytes(),
            );
        }
    }
}
