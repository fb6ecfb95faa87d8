//! Gathering the barriers of several nodes (or sites) into one.

use crate::message::Entry;

/// A barrier under way. `K` names who takes part.
#[derive(Debug)]
pub struct Gather<K> {
    members: Vec<(K, bool)>,
    entries: Vec<Entry>,
}

impl<K: PartialEq> Gather<K> {
    /// A gathering of these.
    pub fn new(members: impl IntoIterator<Item = K>) -> Gather<K> {
        Gather { members: members.into_iter().map(|member| (member, false)).collect(), entries: Vec::new() }
    }

    /// One has arrived with its entries; gives all entries when it was the last, and starts anew.
    ///
    /// # Errors
    /// Who arrived does not take part, or was there already.
    pub fn arrived(&mut self, member: &K, entries: Vec<Entry>) -> Result<Option<Vec<Entry>>, &'static str> {
        let Some((_, here)) = self.members.iter_mut().find(|(known, _)| known == member) else {
            return Err("a barrier from somebody who does not take part");
        };
        if std::mem::replace(here, true) {
            return Err("a second barrier inside one barrier");
        }
        self.entries.extend(entries);
        if self.members.iter().any(|(_, here)| !here) {
            return Ok(None);
        }
        self.members.iter_mut().for_each(|(_, here)| *here = false);
        Ok(Some(std::mem::take(&mut self.entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_gets_everything() {
        let entry = |key: &str| vec![(key.to_owned(), "v".to_owned())];
        let mut gather = Gather::new([1, 2]);
        assert_eq!(gather.arrived(&1, entry("a")), Ok(None));
        assert!(gather.arrived(&1, vec![]).is_err());
        assert!(gather.arrived(&3, vec![]).is_err());
        let both = [entry("a"), entry("b")].concat();
        assert_eq!(gather.arrived(&2, entry("b")), Ok(Some(both)));
        assert_eq!(gather.arrived(&2, vec![]), Ok(None));
    }
}
