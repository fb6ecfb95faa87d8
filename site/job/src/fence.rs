//! Fences: synchronisations of a group of ranks that give every rank the data of all ranks.
//!
//! PMI-1's barrier, with the entries put since the last one, and PMIx's fence are both fences. A node's agent sends its
//! ranks' data to the agent of its site's first node, which sends the site's data to the launcher. The data of all
//! returns the same way. A fence among the ranks of one site stays in the site; one among the ranks of one node stays
//! in the agent.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::group::Group;

/// Most data of one fence, in bytes. Open MPI needs about 150 bytes per rank, MPICH 300.
pub const MAX_DATA: usize = 16 << 20;
/// Most fences in progress at one time. MPI libraries have one or two.
const MAX_OPEN: usize = 1024;

/// Identifies a fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The ranks that take part.
    pub group: Group,
    /// Distinguishes it from other fences of the same ranks. Empty for plain fences, which follow each other. A named
    /// fence always goes to the launcher, which numbers it.
    pub name: String,
}

impl Fence {
    /// The plain fence of a group.
    pub fn plain(group: Group) -> Fence {
        Fence { group, name: String::new() }
    }
}

/// Reasons for refusing a fence.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The group has ranks that this job does not have.
    #[error("the fence names ranks that are not in this job")]
    Group,
    /// The member does not take part.
    #[error("a fence from a member that does not take part")]
    Stranger,
    /// A member entered twice.
    #[error("a second fence inside one fence")]
    Twice,
    /// Too many fences in progress.
    #[error("more than {MAX_OPEN} fences at one time")]
    TooMany,
    /// Too much data.
    #[error("its ranks exchange {length} bytes at start-up; at most {MAX_DATA} are allowed")]
    TooLong {
        /// The number of bytes.
        length: usize,
    },
}

/// The fences in progress at an agent or the launcher. `K` identifies a member of a fence there.
#[derive(Debug)]
pub struct Fences<K> {
    open: HashMap<Fence, Open<K>>,
}

#[derive(Debug)]
struct Open<K> {
    awaited: Vec<K>,
    all: Vec<K>,
    data: Vec<u8>,
}

impl<K> Default for Fences<K> {
    fn default() -> Fences<K> {
        Fences { open: HashMap::new() }
    }
}

impl<K: PartialEq + Clone> Fences<K> {
    /// A member has entered the fence with its data. `members`: all members. Returns the data of all if this member was
    /// the last.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn arrived(
        &mut self,
        fence: &Fence,
        member: &K,
        data: &[u8],
        members: Vec<K>,
    ) -> Result<Option<Vec<u8>>, FenceError> {
        if !self.open.contains_key(fence) && self.open.len() >= MAX_OPEN {
            return Err(FenceError::TooMany);
        }
        let begin = || Open { awaited: members.clone(), all: members, data: Vec::new() };
        let open = self.open.entry(fence.clone()).or_insert_with(begin);
        let Some(at) = open.awaited.iter().position(|awaited| awaited == member) else {
            let twice = open.all.contains(member);
            return Err(if twice { FenceError::Twice } else { FenceError::Stranger });
        };
        open.awaited.swap_remove(at);
        let length = open.data.len() + data.len();
        if length > MAX_DATA {
            return Err(FenceError::TooLong { length });
        }
        open.data.extend_from_slice(data);
        if !open.awaited.is_empty() {
            return Ok(None);
        }
        Ok(self.open.remove(fence).map(|open| open.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_gets_everything() {
        let group = Fence::plain(Group::all(2));
        let mut fences = Fences::default();
        assert_eq!(fences.arrived(&group, &1, b"a", vec![1, 2]), Ok(None));
        assert_eq!(fences.arrived(&group, &1, b"", vec![1, 2]), Err(FenceError::Twice));
        assert_eq!(fences.arrived(&group, &3, b"", vec![1, 2]), Err(FenceError::Stranger));
        assert_eq!(fences.arrived(&group, &2, b"b", vec![1, 2]), Ok(Some(b"ab".to_vec())));
        assert_eq!(fences.arrived(&group, &2, b"", vec![1, 2]), Ok(None));
    }

    #[test]
    fn fences_of_different_groups_do_not_mix() {
        let (all, some) = (Fence::plain(Group::all(4)), Fence::plain(Group::of([0, 2])));
        let named = Fence { name: "make a".into(), ..all.clone() };
        let mut fences = Fences::default();
        assert_eq!(fences.arrived(&all, &1, b"all-1 ", vec![1, 2]), Ok(None));
        assert_eq!(fences.arrived(&named, &1, b"named-1 ", vec![1, 2]), Ok(None));
        assert_eq!(fences.arrived(&some, &2, b"some-2 ", vec![1, 2]), Ok(None));
        assert_eq!(fences.arrived(&some, &1, b"some-1 ", vec![1, 2]), Ok(Some(b"some-2 some-1 ".to_vec())));
        assert_eq!(fences.arrived(&named, &2, b"", vec![1, 2]), Ok(Some(b"named-1 ".to_vec())));
        assert_eq!(fences.arrived(&all, &2, b"all-2 ", vec![1, 2]), Ok(Some(b"all-1 all-2 ".to_vec())));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut fences = Fences::default();
        let of = |rank| Fence::plain(Group::of([rank]));
        for rank in 0..MAX_OPEN as u32 {
            assert_eq!(fences.arrived(&of(rank), &1, b"", vec![1, 2]), Ok(None));
        }
        assert_eq!(fences.arrived(&Fence::plain(Group::all(5)), &1, b"", vec![1, 2]), Err(FenceError::TooMany));
        let long = vec![0; MAX_DATA];
        assert_eq!(fences.arrived(&of(0), &2, &long, vec![]), Ok(Some(long.clone())));
        assert_eq!(fences.arrived(&of(0), &1, &long, vec![1, 2]), Ok(None));
        let length = MAX_DATA + 1;
        assert_eq!(fences.arrived(&of(0), &2, b"x", vec![1, 2]), Err(FenceError::TooLong { length }));
    }
}
