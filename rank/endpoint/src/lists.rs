//! Many first-in-first-out lists over one set of numbered nodes, without an allocation per list.

use std::hash::Hash;

use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

/// Lists named by `Key`. A node is in at most one list of each `Lists`.
pub(crate) struct Lists<Key> {
    ends: FxHashMap<Key, (u32, u32)>,
    links: Vec<(u32, u32)>,
}

impl<Key: Hash + Eq + Copy> Lists<Key> {
    pub(crate) fn new() -> Lists<Key> {
        Lists { ends: FxHashMap::default(), links: Vec::new() }
    }

    /// Appends a node.
    pub(crate) fn push(&mut self, key: Key, node: u32) {
        let at = node as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, (NONE, NONE));
        }
        let (_, last) = self.ends.entry(key).or_insert((node, NONE));
        let before = std::mem::replace(last, node);
        if before != NONE {
            self.links[before as usize].1 = node;
        }
        self.links[at] = (before, NONE);
    }

    /// Removes a node from its list.
    pub(crate) fn remove(&mut self, key: Key, node: u32) {
        let (before, after) = self.links[node as usize];
        let Some((first, last)) = self.ends.get_mut(&key) else { return };
        if *first == node {
            *first = after;
        }
        if *last == node {
            *last = before;
        }
        if *first == NONE {
            self.ends.remove(&key);
        }
        if before != NONE {
            self.links[before as usize].1 = after;
        }
        if after != NONE {
            self.links[after as usize].0 = before;
        }
    }

    /// Empties all lists.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
    }

    /// The oldest node.
    pub(crate) fn first(&self, key: Key) -> Option<u32> {
        self.ends.get(&key).map(|(first, _)| *first)
    }

    /// The nodes, from the oldest on.
    pub(crate) fn iter(&self, key: Key) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(key), |node| {
            let next = self.links[*node as usize].1;
            (next != NONE).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_their_order_whatever_is_removed() {
        let mut lists = Lists::new();
        for node in [4, 2, 7, 0] {
            lists.push('a', node);
        }
        lists.push('b', 1);
        let order = |lists: &Lists<char>, key| lists.iter(key).collect::<Vec<_>>();
        assert_eq!(order(&lists, 'a'), [4, 2, 7, 0]);
        lists.remove('a', 2);
        assert_eq!(order(&lists, 'a'), [4, 7, 0]);
        lists.remove('a', 4);
        lists.remove('a', 0);
        assert_eq!(order(&lists, 'a'), [7]);
        lists.push('a', 2);
        assert_eq!(order(&lists, 'a'), [7, 2]);
        lists.remove('a', 7);
        lists.remove('a', 2);
        assert_eq!(lists.first('a'), None);
        assert_eq!(order(&lists, 'b'), [1]);
    }
}
