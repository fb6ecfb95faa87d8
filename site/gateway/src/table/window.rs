//! Initial windows: the bytes that each member of a job may have in flight to all peers before it learns that there is
//! room for more. They are chosen so that those of all members fit into the gateway's memory.
//!
//! Members use more while no gateway refuses frames (`member::Budget`); a gateway that is short of memory refuses
//! frames for members that read slowly (`shortage.rs`). So a window promises no memory permanently, and does not grow
//! with the number of pairs of members.

use crate::table::error::GrantError;

/// The smallest useful window in bytes: two full frames.
pub(crate) const LEAST: u64 = types::sites::LEAST_SHARE;
/// The largest initial window in bytes: half a second at 1 Gbit/s.
pub(crate) const MOST: u64 = 64 << 20;

/// Distributes half of a gateway's memory among jobs. The other half is for bytes that no window covers (trunk queues,
/// control).
///
/// While that half is not promised, a job gets half of its unpromised part. Later jobs get [`LEAST`] per member, as
/// long as that much fits into it for each job: they grow as earlier jobs end, or use less than they were granted.
#[derive(Debug)]
pub(crate) struct Grants {
    memory: u64,
    granted: u64,
    /// Bytes that all jobs need at least: [`LEAST`] per member.
    needed: u64,
}

/// A job's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Members at other sites, whose frames this gateway holds until a member here takes them.
    pub senders: u64,
    /// Initial window of each, in bytes.
    pub window: u32,
}

impl Grant {
    /// Bytes promised.
    pub(crate) fn bytes(&self) -> u64 {
        self.senders * u64::from(self.window)
    }

    /// Bytes that the job needs at least.
    fn needed(&self) -> u64 {
        self.senders * LEAST
    }
}

impl Grants {
    pub(crate) fn new(memory: u64) -> Grants {
        Grants { memory, granted: 0, needed: 0 }
    }

    /// Grants a job half of the free memory, so that the next job finds some too, between [`LEAST`] and [`MOST`] per
    /// member. `kept`: bytes reserved for others ([`Grants::kept`]).
    ///
    /// # Errors
    /// Less than [`LEAST`] per member is free; the text gives the numbers and the setting to raise.
    pub(crate) fn grant(&mut self, remote: u64, kept: u64) -> Result<Grant, GrantError> {
        self.check(remote, kept)?;
        let senders = remote.max(1);
        let left = (self.memory / 2).saturating_sub(self.granted + kept);
        let window = (left / 2 / senders).clamp(LEAST, MOST);
        Ok(self.promise(Grant { senders, window: window as u32 }))
    }

    /// Checks that [`Grants::grant`] would succeed now.
    ///
    /// # Errors
    /// Less than [`LEAST`] per member is free; the text gives the numbers and the setting to raise.
    pub(crate) fn check(&self, remote: u64, kept: u64) -> Result<(), GrantError> {
        let left = (self.memory / 2).saturating_sub(self.needed + kept);
        let needed = remote.max(1).saturating_mul(LEAST);
        if needed <= left {
            return Ok(());
        }
        let (all, wanted) = (self.memory / 2, needed.saturating_add(self.needed + kept).saturating_mul(2));
        Err(GrantError::Memory { remote, needed, each: LEAST, left, all, wanted })
    }

    /// Grants a job this window, which another gateway determined.
    ///
    /// # Errors
    /// That much is not free; the text gives the numbers and the setting to raise.
    pub(crate) fn grant_window(&mut self, remote: u64, window: u32, kept: u64) -> Result<Grant, GrantError> {
        if !(LEAST..=MOST).contains(&window.into()) {
            return Err(GrantError::Size { window: window.into(), least: LEAST, most: MOST });
        }
        let senders = remote.max(1);
        let left = (self.memory / 2).saturating_sub(self.granted + kept);
        let needed = senders.saturating_mul(window.into());
        let is_least = u64::from(window) == LEAST && self.check(remote, kept).is_ok();
        if needed > left && !is_least {
            return Err(GrantError::Window { remote, needed, window: window.into(), left, all: self.memory / 2 });
        }
        Ok(self.promise(Grant { senders, window }))
    }

    fn promise(&mut self, grant: Grant) -> Grant {
        self.granted += grant.bytes();
        self.needed += grant.needed();
        grant
    }

    /// Bytes reserved for other sites' jobs when a site that already holds `held` asks again: an eighth of the memory
    /// for grants, once the site has more than half of it.
    pub(crate) fn kept(&self, held: u64) -> u64 {
        if held > self.memory / 4 { self.memory / 16 } else { 0 }
    }

    /// Bytes that the descriptions of one other site's jobs may take.
    pub(crate) fn described(&self) -> u64 {
        self.memory / 32
    }

    /// Bytes promised now.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    pub(crate) fn release(&mut self, grant: Grant) {
        self.granted -= grant.bytes();
        self.needed -= grant.needed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_jobs_fit_and_a_huge_one_is_told_what_to_raise() {
        let mut grants = Grants::new(256 << 20);
        let first = grants.grant(4, 0).unwrap();
        let second = grants.grant(4, 0).unwrap();
        assert!(first.window >= 3 << 20 && second.window >= 1 << 20, "{first:?} {second:?}");
        let error = grants.grant(10_000, 0).unwrap_err().to_string();
        assert!(error.contains("raise `memory`") && error.contains("10000 members"), "{error}");
        grants.release(first);
        grants.release(second);
        assert_eq!(grants.granted, 0);
        assert_eq!(u64::from(grants.grant(1, 0).unwrap().window), MOST);
    }

    #[test]
    fn a_site_that_has_most_leaves_something_for_others() {
        let mut grants = Grants::new(64 << 20);
        let mut held = 0;
        while let Ok(grant) = grants.grant(4, grants.kept(held)) {
            held += grant.bytes();
        }
        assert!(held >= 27 << 20, "{held}");
        assert!(grants.grant_window(4, 1 << 20, grants.kept(held)).is_err());
        assert!(grants.grant_window(4, LEAST as u32, grants.kept(held)).is_err());
        assert_eq!(u64::from(grants.grant(4, grants.kept(0)).unwrap().window), LEAST);
        for window in [0, 1, LEAST as u32 - 1, MOST as u32 + 1, u32::MAX] {
            assert!(grants.grant_window(1, window, 0).unwrap_err().to_string().contains("a window of"), "{window}");
        }
    }

    #[test]
    fn many_small_jobs_fit_although_the_first_ones_were_granted_most() {
        let mut grants = Grants::new(256 << 20);
        // Another gateway has determined the windows of some of them.
        let first = [grants.grant(3, 0).unwrap(), grants.grant_window(3, 20 << 20, 0).unwrap()];
        let more: Vec<Grant> = (0..50).map(|_| grants.grant(3, 0).unwrap()).collect();
        assert_eq!(u64::from(more[49].window), LEAST);
        assert!(grants.grant_window(3, LEAST as u32, 0).is_ok(), "a gateway that relays for such a job");
        assert!(grants.grant_window(3, 2 * LEAST as u32, 0).is_err());
        first.into_iter().for_each(|grant| grants.release(grant));
        assert!(u64::from(grants.grant(3, 0).unwrap().window) > 100 * LEAST);
    }

    #[test]
    fn a_thousand_ranks_at_each_of_two_sites_fit_into_the_least_memory_that_is_usual() {
        let mut grants = Grants::new(256 << 20);
        assert!(grants.grant(1_001, 0).unwrap().window >= 64 << 10);
    }

    proptest! {
        #[test]
        fn half_of_the_memory_covers_the_needs_and_all_of_it_the_windows(
            jobs in prop::collection::vec(0u64..2000, 1..50),
            memory in (16u64 << 20)..(1 << 32),
        ) {
            let mut grants = Grants::new(memory);
            for remote in jobs {
                if let Ok(grant) = grants.grant(remote, 0) {
                    prop_assert!((LEAST..=MOST).contains(&u64::from(grant.window)));
                }
                prop_assert!(grants.needed <= memory / 2 && grants.granted <= memory);
            }
        }
    }
}
