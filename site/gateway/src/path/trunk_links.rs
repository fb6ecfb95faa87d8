//! The links of one trunk that are up, and the choice of the one for a frame.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use types::Identity;

use crate::path::link::Link;

/// A frame takes the link with the shortest queue once the usual link of its pair has this many bytes queued.
const SPILL: usize = 64 << 10;

/// See the module docs.
#[derive(Debug)]
pub(crate) struct TrunkLinks {
    /// Names of the other gateway's site and of that gateway, for logs.
    pub site: String,
    pub gateway: String,
    links: RefCell<Vec<Option<Rc<Link>>>>,
}

impl TrunkLinks {
    /// `most`: number of links that there may be.
    pub(crate) fn new(site: String, gateway: String, most: u16) -> TrunkLinks {
        TrunkLinks { site, gateway, links: RefCell::new(vec![None; most.into()]) }
    }

    /// The links that are up.
    pub(crate) fn up(&self) -> Vec<Rc<Link>> {
        self.links.borrow().iter().flatten().cloned().collect()
    }

    /// Number of links that are up.
    pub(crate) fn count(&self) -> usize {
        self.links.borrow().iter().flatten().count()
    }

    pub(crate) fn first(&self) -> Option<Rc<Link>> {
        self.links.borrow().iter().flatten().next().cloned()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Rc<Link>> {
        self.links.borrow()[index].clone()
    }

    pub(crate) fn insert(&self, link: Rc<Link>) {
        let index = link.index;
        self.links.borrow_mut()[index] = Some(link);
    }

    /// Removes a link unless another one has replaced it. Returns true if it was there.
    pub(crate) fn remove(&self, link: &Rc<Link>) -> bool {
        self.links.borrow_mut()[link.index].take_if(|known| Rc::ptr_eq(known, link)).is_some()
    }

    /// The link for a frame of this pair of members: the same one as long as it keeps up, so that frames rarely
    /// overtake each other. `None` while the trunk is down.
    pub(crate) fn choose(&self, from: Identity, to: Identity) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        if let [only] = &links[..] {
            return only.clone();
        }
        let up = || links.iter().flatten();
        let mut hasher = DefaultHasher::new();
        (from, to).hash(&mut hasher);
        let usual = up().nth((hasher.finish() % (up().count() as u64).max(1)) as usize)?;
        if usual.queued() < SPILL {
            return Some(usual.clone());
        }
        up().min_by_key(|link| link.queued()).cloned()
    }
}
