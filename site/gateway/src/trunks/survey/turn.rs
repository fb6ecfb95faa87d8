//! The turns to measure. Every gateway computes the same turns from the sites file and the time of day, without a
//! message: in each slot the sites are matched in pairs ([`types::links::rounds`]), and in each half of a slot one site
//! of a pair sends to the other. So while clocks differ by less than [`SPARE_MS`], no gateway is in two transfers at
//! once. If they differ by more, figures are too low until the next measurement.

use types::links::rounds;

/// Length of a slot. A transfer lasts 2 s at most, so it must begin within [`SPARE_MS`] of its half.
const SLOT_MS: u64 = 5000;
const HALF_MS: u64 = SLOT_MS / 2;
const SPARE_MS: u64 = 400;

/// A turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendingTurn {
    /// The receiving site, by its position in the sites file.
    pub to: usize,
    /// Distinguishes this turn from others.
    pub number: u64,
    /// Number of times that all pairs had their turn before.
    pub cycle: u64,
}

/// The turn that begins now for site `own` of `sites`, if any; `clock_ms`: milliseconds since 1970.
pub(crate) fn turn(sites: usize, own: usize, clock_ms: u64) -> Option<SendingTurn> {
    let rounds = rounds(sites);
    let slot = clock_ms / SLOT_MS;
    let (half, late) = (clock_ms % SLOT_MS / HALF_MS, clock_ms % HALF_MS);
    let round = rounds.get(usize::try_from(slot.checked_rem(rounds.len() as u64)?).ok()?)?;
    let (one, other) = round.iter().find(|(one, other)| own == *one || own == *other)?;
    let (sender, to) = if half == 0 { (*one, *other) } else { (*other, *one) };
    let cycle = slot / rounds.len() as u64;
    (sender == own && late <= SPARE_MS).then_some(SendingTurn { to, number: slot * 2 + half, cycle })
}

/// The gateway of the receiving site to which gateway `own` of `senders` sends in this cycle: the one of the same
/// number. If the receiving site has fewer gateways, the senders take turns, so that no gateway there receives from two
/// at once.
pub(crate) fn partner(own: usize, senders: usize, receivers: usize, cycle: u64) -> Option<usize> {
    let blocks = senders.div_ceil(receivers.max(1)).max(1) as u64;
    (receivers > 0 && (own / receivers) as u64 == cycle % blocks).then(|| own % receivers)
}

/// Seconds until each pair of this many sites had its turn, including the turns among gateways.
pub(crate) fn all_within_s(sites: usize, most_gateways: usize) -> u64 {
    let slots = (rounds(sites).len() * most_gateways.max(1)) as u64;
    (slots + 1) * SLOT_MS / 1000
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_pairs_have_their_turn_and_nobody_is_in_two_transfers_at_once() {
        for sites in 0..12 {
            let mut met = BTreeSet::new();
            for clock_ms in (0..SLOT_MS * rounds(sites).len() as u64).step_by(100) {
                let turns = (0..sites).filter_map(|own| Some((own, turn(sites, own, clock_ms)?.to)));
                let turns: Vec<_> = turns.collect();
                let busy: BTreeSet<usize> = turns.iter().flat_map(|(from, to)| [*from, *to]).collect();
                assert_eq!(busy.len(), 2 * turns.len(), "{sites} sites at {clock_ms} ms: {turns:?}");
                met.extend(turns);
            }
            assert_eq!(met.len(), sites * sites.saturating_sub(1), "{sites} sites");
            assert!(all_within_s(sites, 1) * 1000 >= SLOT_MS * rounds(sites).len() as u64);
        }
    }

    #[test]
    fn a_transfer_ends_before_the_next_turn() {
        let begins: Vec<u64> = (0..20_000).filter(|clock_ms| turn(2, 0, *clock_ms).is_some()).collect();
        assert!(begins.iter().all(|begin| begin % SLOT_MS <= SPARE_MS), "the earlier site sends first");
        assert_eq!(turn(2, 1, HALF_MS), Some(SendingTurn { to: 0, number: 1, cycle: 0 }));
        assert_eq!(turn(2, 1, HALF_MS + SPARE_MS + 1), None);
        assert_eq!(turn(3, 2, 6 * SLOT_MS + HALF_MS).map(|turn| (turn.to, turn.cycle)), Some((1, 2)));
        assert_eq!(turn(1, 0, 0), None);
    }

    #[test]
    fn several_gateways_pair_off() {
        assert_eq!([0, 1].map(|own| partner(own, 2, 2, 5)), [Some(0), Some(1)]);
        assert_eq!([0, 1, 2].map(|own| partner(own, 3, 2, 0)), [Some(0), Some(1), None]);
        assert_eq!([0, 1, 2].map(|own| partner(own, 3, 2, 1)), [None, None, Some(0)]);
        assert_eq!(partner(0, 1, 3, 9), Some(0));
        assert_eq!(partner(0, 1, 0, 9), None);
    }
}
