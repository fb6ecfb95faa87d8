//! Fences: meetings of a group of ranks at which everybody's data reaches everybody.
//!
//! PMI-1's barrier (with what was put since the last one) and PMIx's fence are both this. A node's agent brings what its ranks
//! have to the agent of its site's first node, that one brings what its site has to the launcher, and the whole comes back
//! the same way. A fence among the ranks of one site stays there, one among the ranks of one node does not leave the agent.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::group::Group;

/// Most data of one fence, in bytes. Open MPI puts about 150 bytes a rank, MPICH 300.
pub const MAX_DATA: usize = 16 << 20;
/// Most fences under way at one time. MPI libraries have one or two.
const MAX_OPEN: usize = 1024;

/// Which fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// Who takes part.
    pub group: Group,
    /// What tells it from others of the same ranks; empty for the plain ones, which come one after the other. A named fence goes
    /// to the launcher in any case, and gets a number there.
    pub name: String,
}

impl Fence {
    /// The plain fence of a group.
    pub fn plain(group: Group) -> Fence {
        Fence { group, name: String::new() }
    }
}

/// A fence that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A group that this job does not have.
    #[error("a fence of ranks that this job does not have")]
    Group,
    /// Somebody else's fence.
    #[error("a fence from somebody who does not take part")]
    Stranger,
    /// Somebody came twice.
    #[error("a second fence inside one fence")]
    Twice,
    /// Too many at a time.
    #[error("more than {MAX_OPEN} fences at one time")]
    TooMany,
    /// Too much data.
    #[error("its ranks exchange {length} bytes at start-up; at most {MAX_DATA} are allowed")]
    TooLong {
        /// How much.
        length: usize,
    },
}

/// The fences under way at one place. `K` names who comes there.
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
    /// One of `members` has come with its data; gives everybody's data when it was the last.
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
