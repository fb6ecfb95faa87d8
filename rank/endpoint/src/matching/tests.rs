use super::*;
use proptest::prelude::*;

fn tagged(from: Option<u32>, tag: u64, ignore: u64) -> Match {
    Match { from: from.map(PeerId), tagged: true, tag, ignore }
}

fn envelope(from: u32, tag: u64) -> Envelope {
    Envelope { from: PeerId(from), tagged: true, tag }
}

#[test]
fn the_oldest_matching_receive_wins_across_kinds() {
    let mut posted = Posted::new();
    posted.push(tagged(None, 5, 0), "any");
    posted.push(tagged(Some(1), 0, u64::MAX), "wild");
    posted.push(tagged(Some(1), 5, 0), "exact");
    let mut next = |envelope| {
        let key = posted.find(&envelope).unwrap();
        posted.remove(key).1
    };
    assert_eq!(next(envelope(1, 5)), "any");
    assert_eq!(next(envelope(1, 5)), "wild");
    assert_eq!(next(envelope(1, 5)), "exact");
    assert!(posted.find(&envelope(1, 5)).is_none());
}

#[test]
fn tagged_and_untagged_do_not_mix() {
    let mut posted = Posted::new();
    posted.push(Match { from: None, tagged: false, tag: 0, ignore: 0 }, ());
    assert!(posted.find(&envelope(0, 0)).is_none());
    assert!(posted.find(&Envelope { from: PeerId(0), tagged: false, tag: 0 }).is_some());
}

/// The reference: examines everything, oldest first.
#[derive(Default)]
struct Plain {
    posted: Vec<(Match, u32)>,
    unexpected: Vec<(Envelope, u32)>,
}

impl Plain {
    fn arrive(&mut self, envelope: Envelope) -> Option<u32> {
        let at = self.posted.iter().position(|(matching, _)| matching.takes(&envelope))?;
        Some(self.posted.remove(at).1)
    }
    fn post(&mut self, matching: &Match) -> Option<u32> {
        let at = self.unexpected.iter().position(|(envelope, _)| matching.takes(envelope))?;
        Some(self.unexpected.remove(at).1)
    }
}

proptest! {
    #[test]
    fn the_queues_agree_with_the_definition(
        steps in prop::collection::vec(
            (
                any::<bool>(),
                any::<bool>(),
                prop::option::of(0u32..3),
                0u64..4,
                prop::sample::select(vec![0u64, 1, 3, u64::MAX]),
            ),
            1..300,
        ),
    ) {
        let (mut posted, mut unexpected, mut plain) = (Posted::new(), Unexpected::new(), Plain::default());
        for (number, (arrival, tagged, from, tag, ignore)) in steps.into_iter().enumerate() {
            let number = number as u32;
            if arrival {
                let envelope = Envelope { from: PeerId(from.unwrap_or(0)), tagged, tag: if tagged { tag } else { 0 } };
                let found = posted.find(&envelope).map(|key| posted.remove(key).1);
                prop_assert_eq!(found, plain.arrive(envelope));
                if found.is_none() {
                    unexpected.push(envelope, number);
                    plain.unexpected.push((envelope, number));
                }
            } else {
                let matching = Match { from: from.map(PeerId), tagged, tag, ignore };
                let found = unexpected.find(&matching).map(|key| { unexpected.hide(key); unexpected.remove(key).1 });
                prop_assert_eq!(found, plain.post(&matching));
                if found.is_none() {
                    posted.push(matching, number);
                    plain.posted.push((matching, number));
                }
            }
        }
    }
}
