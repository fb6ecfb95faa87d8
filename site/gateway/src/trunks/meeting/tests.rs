//! The table alone; connections are strings.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const A: TrunkId = TrunkId(0);
const B: TrunkId = TrunkId(1);
/// Another gateway of site b.
const B2: TrunkId = TrunkId(2);
/// A gateway that can be dialled.
const C: TrunkId = TrunkId(3);

fn guests() -> Vec<Guest> {
    let guest = |trunk, site: &str, gateway: &str, hidden| Guest {
        trunk,
        site: site.into(),
        gateway: gateway.into(),
        links: Links::Fixed(2),
        hidden,
        up: true,
    };
    vec![
        guest(A, "a", "gw1", true),
        guest(B, "b", "gw1", true),
        guest(B2, "b", "gw2", true),
        guest(C, "c", "gw1", false),
    ]
}

fn wish(site: &str, gateway: &str, link: u16) -> Wish {
    Wish { site: site.into(), gateway: gateway.into(), link }
}

fn secrets(seed: u8) -> [Secret; 2] {
    [Secret::new([seed; 32]), Secret::new([seed + 1; 32])]
}

struct PlaceInTime {
    meetings: Meetings<&'static str>,
    now: Instant,
}

impl PlaceInTime {
    fn new(most: usize) -> PlaceInTime {
        PlaceInTime { meetings: Meetings::new(most), now: Instant::now() }
    }

    /// Asks long enough after the last request.
    fn ask(&mut self, asker: TrunkId, wish: &Wish) -> Result<Calls, MeetingError> {
        self.now += AGAIN;
        self.meetings.ask(asker, wish, &guests(), secrets(1), self.now)
    }

    fn refuses(&mut self, asker: TrunkId, wish: &Wish, words: &str) {
        let reason = self.ask(asker, wish).unwrap_err();
        assert!(reason.to_string().contains(words), "{reason}");
    }

    fn arrives(
        &mut self,
        number: JobId,
        site: &str,
        stream: &'static str,
    ) -> Result<Option<Met<&'static str>>, MeetingError> {
        self.meetings.arrive(number, site, "gw1", stream).map_err(|(back, reason)| {
            assert_eq!(back, stream);
            reason
        })
    }

    fn sizes(&self) -> (usize, usize) {
        (self.meetings.open.len(), self.meetings.talks.len())
    }
}

#[test]
fn both_are_called_with_secrets_of_their_own_and_meet_once() {
    let mut place = PlaceInTime::new(8);
    let calls = place.ask(A, &wish("b", "gw1", 1)).unwrap();
    let number = calls.number;
    let called = |site: &str, secret: usize| {
        let (site, gateway) = (site.to_owned(), "gw1".to_owned());
        MeetingMessage::Call { site, gateway, link: 1, meeting: number, secret: secrets(1)[secret].clone() }
    };
    assert_eq!(calls.messages, [(A, called("b", 0)), (B, called("a", 1))]);
    assert_eq!(place.meetings.secret(number, "a", "gw1"), Ok(secrets(1)[0].clone()));
    assert_eq!(place.meetings.secret(number, "b", "gw1"), Ok(secrets(1)[1].clone()));
    for (number, site, gateway) in [(number, "b", "gw2"), (number, "c", "gw1"), (JobId(number.0 + 1), "a", "gw1")] {
        assert!(place.meetings.secret(number, site, gateway).unwrap_err().to_string().contains("no meeting"));
    }
    assert!(place.arrives(number, "b", "from b").unwrap().is_none());
    assert!(place.meetings.secret(number, "b", "gw1").unwrap_err().to_string().contains("taken"));
    assert!(place.arrives(number, "b", "from b again").unwrap_err().to_string().contains("taken"));
    let met = place.arrives(number, "a", "from a").unwrap().unwrap();
    assert_eq!((met.number, met.streams, met.replaces), (number, ["from a", "from b"], None));
    assert_eq!(met.names, ["gateway gw1 of site a", "gateway gw1 of site b"]);
    assert!(place.arrives(number, "a", "late").unwrap_err().to_string().contains("no meeting"));
    assert_eq!(place.sizes(), (0, 1));
    place.meetings.over(number);
    assert_eq!(place.sizes(), (0, 0));
}

#[test]
fn a_request_that_nobody_may_make_is_refused_with_the_reason() {
    let mut place = PlaceInTime::new(8);
    place.refuses(A, &wish("b", "gw9", 0), "its sites file has no gateway gw9 of site b");
    place.refuses(A, &wish("x", "gw1", 0), "no gateway gw1 of site x");
    place.refuses(A, &wish("c", "gw1", 0), "its sites file has the address at which gateway gw1 of site c is dialled");
    place.refuses(C, &wish("a", "gw1", 0), "its sites file has the address at which gateway gw1 of site c is dialled");
    place.refuses(A, &wish("b", "gw1", 2), "link 2: its sites file has 2");
    // The asker is identified by its trunk, so a request on another's behalf is impossible.
    place.refuses(B, &wish("b", "gw2", 0), "two gateways of one site");
    place.refuses(A, &wish("a", "gw1", 0), "two gateways of one site");
    place.refuses(TrunkId(77), &wish("a", "gw1", 0), "does not know you");
    let mut away = guests();
    away[B.0].up = false;
    let reason = place.meetings.ask(A, &wish("b", "gw1", 0), &away, secrets(1), place.now).unwrap_err();
    assert!(reason.to_string().contains("gateway gw1 of site b is not connected to it"), "{reason}");
    assert_eq!(place.sizes(), (0, 0));
}

#[test]
fn a_request_replaces_the_open_meeting_of_its_pair_but_not_at_once() {
    let mut place = PlaceInTime::new(8);
    let first = place.ask(A, &wish("b", "gw1", 0)).unwrap().number;
    place.arrives(first, "b", "from b").unwrap();
    let hasty = place.meetings.ask(B, &wish("a", "gw1", 0), &guests(), secrets(3), place.now).unwrap_err();
    assert!(hasty.to_string().contains("a moment ago"), "{hasty}");
    // The other gateway asks for the same link.
    let second = place.ask(B, &wish("a", "gw1", 0)).unwrap().number;
    assert!(place.arrives(first, "a", "late").unwrap_err().to_string().contains("no meeting"));
    assert_eq!(place.sizes(), (1, 0));
    place.arrives(second, "a", "from a").unwrap();
    assert!(place.arrives(second, "b", "from b").unwrap().is_some());
    // A pair that talks may come again: the newer talk replaces the older.
    let third = place.ask(A, &wish("b", "gw1", 0)).unwrap().number;
    place.arrives(third, "a", "from a").unwrap();
    assert_eq!(place.arrives(third, "b", "from b").unwrap().unwrap().replaces, Some(second));
    place.meetings.over(second);
    assert_eq!(place.sizes(), (0, 1), "the end of the older talk is not that of the newer");
}

#[test]
fn a_guest_that_came_alone_learns_which_one_did_not() {
    let mut place = PlaceInTime::new(8);
    let number = place.ask(A, &wish("b", "gw1", 0)).unwrap().number;
    place.arrives(number, "a", "from a").unwrap();
    let (stream, reason) = place.meetings.expire(number).unwrap();
    assert_eq!(stream, "from a");
    assert!(reason.to_string().contains("gateway gw1 of site b was called and did not come"), "{reason}");
    assert_eq!(place.meetings.expire(number), None);
    let nobody = place.ask(A, &wish("b", "gw1", 0)).unwrap().number;
    assert_eq!(place.meetings.expire(nobody), None);
    assert_eq!(place.sizes(), (0, 0));
}

#[test]
fn no_more_pairs_than_memory_allows() {
    let mut place = PlaceInTime::new(2);
    let first = place.ask(A, &wish("b", "gw1", 0)).unwrap().number;
    place.arrives(first, "a", "a").unwrap();
    place.arrives(first, "b", "b").unwrap();
    place.ask(A, &wish("b", "gw1", 1)).unwrap();
    place.refuses(A, &wish("b", "gw2", 0), "already relays 2 links");
    // A pair that has a meeting may ask again.
    place.ask(A, &wish("b", "gw1", 0)).unwrap();
    place.meetings.over(first);
    place.refuses(A, &wish("b", "gw2", 0), "2 links");
}

#[derive(Clone, Debug)]
enum MeetingEvent {
    Ask { asker: usize, whom: usize, link: u16, after_ms: u64 },
    Arrive { meeting: usize, who: usize },
    Expire { meeting: usize },
    Over { meeting: usize },
}

fn events() -> impl Strategy<Value = Vec<MeetingEvent>> {
    let event = prop_oneof![
        (0..4usize, 0..4usize, 0..3u16, 0..60u64).prop_map(|(asker, whom, link, after_ms)| MeetingEvent::Ask {
            asker,
            whom,
            link,
            after_ms
        }),
        (0..6usize, 0..4usize).prop_map(|(meeting, who)| MeetingEvent::Arrive { meeting, who }),
        (0..6usize).prop_map(|meeting| MeetingEvent::Expire { meeting }),
        (0..6usize).prop_map(|meeting| MeetingEvent::Over { meeting }),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #[test]
    fn in_any_order_of_events_only_called_gateways_meet_and_memory_stays_bounded(events in events()) {
        const MOST: usize = 2;
        let (guests, mut now) = (guests(), Instant::now());
        let mut meetings = Meetings::<(JobId, usize)>::new(MOST);
        let (mut called, mut seated) = (Vec::new(), HashSet::new());
        for event in events {
            // Events happen to the latest meetings.
            let recent = |called: &Vec<(JobId, [usize; 2])>, back: usize| {
                called.len().checked_sub(back + 1).map(|at| called[at].0)
            };
            match event {
                MeetingEvent::Ask { asker, whom, link, after_ms } => {
                    now += Duration::from_millis(after_ms);
                    let whom = &guests[whom];
                    let wish = wish(&whom.site, &whom.gateway, link);
                    if let Ok(calls) = meetings.ask(TrunkId(asker), &wish, &guests, secrets(1), now) {
                        let asker = &guests[asker];
                        prop_assert!(asker.hidden && whom.hidden && asker.site != whom.site && link < 2);
                        called.push((calls.number, [asker.trunk.0, whom.trunk.0]));
                    }
                }
                MeetingEvent::Arrive { meeting, who } => {
                    let Some(number) = recent(&called, meeting) else { continue };
                    let (site, gateway) = (&guests[who].site, &guests[who].gateway);
                    match meetings.arrive(number, site, gateway, (number, who)) {
                        Ok(met) => {
                            let of = called.iter().find(|(known, _)| *known == number).unwrap().1;
                            prop_assert!(of.contains(&who));
                            prop_assert!(seated.insert((number, who)), "a seat was taken twice");
                            if let Some(met) = met {
                                prop_assert_eq!(met.streams, [(number, of[0]), (number, of[1])]);
                            }
                        }
                        Err((back, _)) => prop_assert_eq!(back, (number, who)),
                    }
                }
                MeetingEvent::Expire { meeting } => {
                    let Some(number) = recent(&called, meeting) else { continue };
                    if let Some(((of, _), _)) = meetings.expire(number) {
                        prop_assert_eq!(of, number);
                    }
                }
                MeetingEvent::Over { meeting } => {
                    if let Some(number) = recent(&called, meeting) {
                        meetings.over(number);
                    }
                }
            }
            let pairs: HashSet<_> = meetings.open.keys().chain(meetings.talks.keys()).collect();
            prop_assert!(pairs.len() <= MOST, "{meetings:?}");
        }
        for (number, _) in called {
            meetings.expire(number);
            meetings.over(number);
        }
        prop_assert!(meetings.open.is_empty() && meetings.talks.is_empty());
    }
}
