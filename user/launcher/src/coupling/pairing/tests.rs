//! Sides and real boards in virtual time, under seeded faults.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gateway::Board;
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use types::JobId;
use types::coupling::Process;
use wire::Secret;
use wire::control::coupling::RENEW_S;

use super::*;

#[derive(Debug)]
enum SideEvent {
    Join,
    ToBoard {
        way: usize,
        board: usize,
        message: CouplingMessage,
    },
    ToSide {
        way: usize,
        board: usize,
        message: CouplingMessage,
    },
    Renew,
    Opened {
        opening: u64,
        to: u64,
    },
    /// A time limit of the pairing may be over.
    Look,
    /// The helper is killed.
    Kill,
    /// A gateway of the coupling's site restarts.
    Restart {
        board: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SideOutcome {
    Waits,
    Coupled { job: String, first: bool },
    Failed(String),
    Killed,
}

struct Side {
    pairing: Pairing,
    joined: bool,
    /// The number of the job that is being opened.
    opening: Option<u64>,
    outcome: SideOutcome,
    posts: usize,
}

/// Messages that a way loses from this time to that, in milliseconds.
#[derive(Clone, Debug)]
struct Loss {
    side: usize,
    way: usize,
    board: usize,
    from: u64,
    to: u64,
}

#[derive(Clone, Debug)]
struct Encounter {
    /// When each side joins, in milliseconds.
    joins: Vec<u64>,
    boards: usize,
    ways: usize,
    losses: Vec<Loss>,
    restarts: Vec<(usize, u64)>,
    kill: Option<(usize, u64)>,
    seed: u64,
}

struct World {
    plan: Encounter,
    chance: TestRng,
    start: Instant,
    now_ms: u64,
    /// A way to a side leads through one of the gateways of its own site: the side's index, and the gateway's.
    boards: Vec<Board<(usize, usize)>>,
    sides: Vec<Side>,
    delays: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, usize, usize)>>,
    events: Vec<Option<SideEvent>>,
    openings: u64,
}

fn coupling() -> Coupling {
    Coupling { name: "ocean".into(), site: "lyon".into() }
}

impl World {
    fn new(plan: Encounter) -> World {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&plan.seed.to_le_bytes());
        let mut chance = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        let delays = (0..plan.joins.len() * plan.ways * plan.boards).map(|_| chance.random_range(0..150)).collect();
        let side = |_| {
            let home = format!("s{}", chance.random_range(0..2));
            let process = Process { site: home.clone(), node: "n1".into(), address: ([10, 0, 0, 1], 4000).into() };
            let pairing = Pairing::new(coupling(), chance.random(), About::new(&home, &[process]));
            Side { pairing, joined: false, opening: None, outcome: SideOutcome::Waits, posts: 0 }
        };
        let sides = (0..plan.joins.len()).map(side).collect();
        let boards = (0..plan.boards).map(|board| Board::new(&format!("gw{board}"))).collect();
        let (queue, events) = (BinaryHeap::new(), Vec::new());
        let start = Instant::now();
        let mut world = World { plan, chance, start, now_ms: 0, boards, sides, delays, queue, events, openings: 0 };
        for side in 0..world.sides.len() {
            world.at(world.plan.joins[side], side, SideEvent::Join);
        }
        for (board, at) in world.plan.restarts.clone() {
            world.at(at, 0, SideEvent::Restart { board });
        }
        if let Some((side, at)) = world.plan.kill {
            world.at(at, side, SideEvent::Kill);
        }
        world
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.now_ms)
    }

    fn at(&mut self, ms: u64, side: usize, event: SideEvent) {
        self.queue.push(Reverse((ms, self.events.len(), side)));
        self.events.push(Some(event));
    }

    /// The arrival of a message that goes out now; `None` if it is lost. Messages on a way keep their order.
    fn arrival(&self, (side, way): (usize, usize), board: usize) -> Option<u64> {
        let on = |loss: &&Loss| (loss.side, loss.way, loss.board) == (side, way, board);
        let lost = |loss: &Loss| (loss.from..loss.to).contains(&self.now_ms);
        let delay = self.delays[(side * self.plan.ways + way) * self.plan.boards + board];
        (!self.plan.losses.iter().filter(on).any(lost)).then_some(self.now_ms + delay)
    }

    fn send(&mut self, side: usize, message: &CouplingMessage) {
        for way in 0..self.plan.ways {
            for board in 0..self.plan.boards {
                if let Some(at) = self.arrival((side, way), board) {
                    self.at(at, side, SideEvent::ToBoard { way, board, message: message.clone() });
                }
            }
        }
    }

    fn answer(&mut self, board: usize, answers: gateway::Answers<(usize, usize)>) {
        for ((side, way), message) in answers {
            if let Some(at) = self.arrival((side, way), board) {
                self.at(at, side, SideEvent::ToSide { way, board, message });
            }
        }
    }

    fn act(&mut self, at: usize, actions: Actions) {
        let actions = match actions {
            Ok(actions) => actions,
            Err(error) => return self.fail(at, error.to_string()),
        };
        for action in actions {
            match action {
                Action::Post => {
                    self.sides[at].posts += 1;
                    self.send(at, &self.sides[at].pairing.post());
                }
                Action::Open { to, .. } => {
                    self.openings += 1;
                    self.sides[at].opening = Some(self.openings);
                    let opened = self.now_ms + self.chance.random_range(1..400);
                    self.at(opened, at, SideEvent::Opened { opening: self.openings, to });
                }
                Action::Abandon => self.sides[at].opening = None,
                Action::Say(HelperReport::Coupled(coupled)) => {
                    assert_eq!(self.sides[at].outcome, SideOutcome::Waits, "coupled twice");
                    self.sides[at].outcome = SideOutcome::Coupled { job: coupled.job, first: coupled.first };
                }
                Action::Say(_) => {}
            }
        }
        let pairing = &self.sides[at].pairing;
        let limits = [
            pairing.absent().map(|(since, patience)| since + patience),
            pairing.refused().map(|(since, patience)| since + patience),
        ];
        for limit in limits.into_iter().flatten() {
            let ms = (limit - self.start).as_millis() as u64;
            self.at(ms.max(self.now_ms + 1), at, SideEvent::Look);
        }
    }

    fn fail(&mut self, at: usize, reason: String) {
        let side = &mut self.sides[at];
        side.pairing.end(reason.clone());
        side.outcome = SideOutcome::Failed(reason);
        let (last, leave) = (side.pairing.post(), side.pairing.leave());
        self.send(at, &last);
        self.send(at, &leave);
    }

    fn runs(&self, at: usize) -> bool {
        let side = &self.sides[at];
        side.joined && matches!(side.outcome, SideOutcome::Waits | SideOutcome::Coupled { .. })
    }

    fn happens(&mut self, at: usize, event: SideEvent) {
        let now = self.now();
        match event {
            SideEvent::ToBoard { way, board, message } => {
                let home = self.sides[at].pairing.about.home.clone();
                let answers = self.boards[board].take(((at, way), &home, 1 << 20), message, now);
                self.answer(board, answers);
            }
            SideEvent::Restart { board } => self.boards[board] = Board::new(&format!("gw{board}")),
            SideEvent::Join => {
                self.sides[at].joined = true;
                self.act(at, Ok(vec![Action::Post]));
                self.at(self.now_ms + RENEW_S * 1000, at, SideEvent::Renew);
            }
            _ if !self.runs(at) => {}
            SideEvent::ToSide { way, board, message } => {
                if self.arrival((at, way), board).is_some() {
                    let actions = self.sides[at].pairing.heard(message, now);
                    self.act(at, actions);
                }
            }
            SideEvent::Renew => {
                let renewal = self.sides[at].pairing.renewal();
                self.send(at, &renewal);
                self.at(self.now_ms + RENEW_S * 1000, at, SideEvent::Renew);
            }
            SideEvent::Opened { opening, to } => {
                if self.sides[at].opening == Some(opening) {
                    let offer = Offer { to, job: JobId(opening as u32), secret: Secret::new([1; 32]), window: 1 };
                    let actions = self.sides[at].pairing.opened(offer);
                    self.act(at, Ok(actions));
                }
            }
            SideEvent::Look => {
                let pairing = &self.sides[at].pairing;
                if pairing.absent().is_some_and(|(since, patience)| since + patience <= now) {
                    let error = pairing.gone().to_string();
                    self.fail(at, error);
                } else if pairing.refused().is_some_and(|(since, patience)| since + patience <= now) {
                    let error = pairing.refusal().to_string();
                    self.fail(at, error);
                }
            }
            SideEvent::Kill => {
                self.sides[at].outcome = SideOutcome::Killed;
                for board in 0..self.plan.boards {
                    for way in 0..self.plan.ways {
                        let answers = self.boards[board].gone((at, way));
                        self.answer(board, answers);
                    }
                }
            }
        }
    }

    /// Plays until this time, and returns the outcome of each side.
    fn play(&mut self, until_ms: u64) -> Vec<SideOutcome> {
        while let Some(Reverse((ms, event, side))) = self.queue.pop() {
            if ms > until_ms {
                break;
            }
            self.now_ms = ms;
            if let Some(event) = self.events[event].take() {
                self.happens(side, event);
            }
        }
        for side in &self.sides {
            assert!(side.posts < 60, "{} posts: {:?}", side.posts, self.plan);
        }
        self.sides.iter().map(|side| side.outcome.clone()).collect()
    }
}

/// The sides that are coupled, if they are coupled with each other.
fn pair(outcomes: &[SideOutcome]) -> Result<usize, String> {
    let coupled: Vec<_> = outcomes.iter().filter(|outcome| matches!(outcome, SideOutcome::Coupled { .. })).collect();
    match &coupled[..] {
        [] => Ok(0),
        [SideOutcome::Coupled { job: one, first }, SideOutcome::Coupled { job: two, first: other }]
            if one == two && first != other =>
        {
            Ok(2)
        }
        _ => Err(format!("{outcomes:?}")),
    }
}

fn joins(count: usize) -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(0u64..300, count)
}

fn plans(count: usize) -> impl Strategy<Value = Encounter> {
    (joins(count), 1usize..=3, 1usize..=2, any::<u64>()).prop_map(|(joins, boards, ways, seed)| Encounter {
        joins,
        boards,
        ways,
        losses: Vec::new(),
        restarts: Vec::new(),
        kill: None,
        seed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_of_three_that_join_at_once_are_coupled_and_the_third_is_refused(plan in plans(3)) {
        let outcomes = World::new(plan).play(25_000);
        prop_assert_eq!(pair(&outcomes), Ok(2), "{:?}", outcomes);
        let refused = outcomes.iter().filter(|outcome| match outcome {
            SideOutcome::Failed(reason) => reason.contains("ocean@lyon already has two sides"),
            _ => false,
        });
        prop_assert_eq!(refused.count(), 1, "{:?}", outcomes);
    }

    #[test]
    fn two_are_coupled_whatever_is_lost_for_a_while(
        plan in plans(2),
        losses in proptest::collection::vec((0usize..2, 0usize..2, 0usize..3, 0u64..3000, 1u64..2000), 0..4),
    ) {
        let losses = losses.into_iter().map(|(side, way, board, from, length)| {
            Loss { side, way: way % plan.ways, board: board % plan.boards, from, to: from + length }
        });
        let plan = Encounter { losses: losses.collect(), ..plan };
        let outcomes = World::new(plan).play(30_000);
        prop_assert_eq!(pair(&outcomes), Ok(2), "{:?}", outcomes);
    }

    #[test]
    fn two_are_coupled_although_gateways_restart(
        plan in plans(2),
        restarts in proptest::collection::vec((0usize..3, 0u64..3000), 0..4),
    ) {
        let restarts = restarts.into_iter().map(|(board, at)| (board % plan.boards, at)).collect();
        let outcomes = World::new(Encounter { restarts, ..plan }).play(30_000);
        prop_assert_eq!(pair(&outcomes), Ok(2), "{:?}", outcomes);
    }

    #[test]
    fn nobody_is_left_with_a_side_that_was_killed(plan in plans(3), victim in 0usize..3, at in 0u64..2000) {
        let plan = Encounter { kill: Some((victim, at)), ..plan };
        let outcomes = World::new(plan).play(40_000);
        prop_assert!(pair(&outcomes).is_ok(), "{:?}", outcomes);
        let waiting = outcomes.iter().filter(|outcome| **outcome == SideOutcome::Waits).count();
        prop_assert!(waiting <= 1, "two wait for each other: {:?}", outcomes);
    }
}

/// A side of this number, with one process.
fn side(number: u64, home: &str) -> Pairing {
    let process = Process { site: home.into(), node: "n1".into(), address: ([10, 0, 0, 1], 4000).into() };
    Pairing::new(coupling(), number, About::new(home, &[process]))
}

/// A board's report to side `to` of another side.
fn report(board: &str, to: u64, home: &str, other: &Pairing) -> CouplingMessage {
    let CouplingMessage::Post { side, revision, about, .. } = other.post() else { unreachable!() };
    let other = Some(Posted { side, home: home.into(), revision, about });
    CouplingMessage::Other { coupling: coupling(), side: to, board: board.into(), other }
}

#[test]
fn a_site_that_poses_as_another_is_named() {
    let (mut pairing, now) = (side(7, "lyon"), Instant::now());
    let error = pairing.heard(report("gw1", 7, "mallory", &side(8, "kyoto")), now).unwrap_err().to_string();
    assert!(error.contains("site mallory has posted the other side of ocean@lyon"), "{error}");
    assert!(error.contains("says that it is of site kyoto"), "{error}");
    let other = Some(Posted { side: 9, home: "mallory".into(), revision: 1, about: "nonsense".into() });
    let nonsense = CouplingMessage::Other { coupling: coupling(), side: 7, board: "gw1".into(), other };
    let error = pairing.heard(nonsense, now).unwrap_err().to_string();
    assert!(error.starts_with("the other side, mallory: "), "{error}");
}

#[test]
fn a_side_that_left_without_a_pair_explains_a_wait() {
    let (mut high, mut low, now) = (side(8, "kyoto"), side(7, "lyon"), Instant::now());
    assert_eq!(high.heard(report("gw1", 8, "lyon", &low), now).unwrap(), [], "it will offer a job");
    low.end("no memory".into());
    let text = "nobody else has joined ocean@lyon; another side (1 processes at lyon) has left: no memory";
    assert_eq!(
        high.heard(report("gw1", 8, "lyon", &low), now).unwrap(),
        [Action::Say(HelperReport::Waiting(text.into()))]
    );
    let nobody = CouplingMessage::Other { coupling: coupling(), side: 8, board: "gw1".into(), other: None };
    assert_eq!(high.heard(nobody, now).unwrap(), [Action::Say(HelperReport::Waiting(text.into()))]);
}

#[test]
fn the_end_of_a_side_of_before_on_a_board_that_is_back_ends_no_search() {
    let (mut new, mut before, partner, now) = (side(7, "lyon"), side(8, "kyoto"), side(9, "kyoto"), Instant::now());
    let actions = new.heard(report("gw1", 7, "kyoto", &before), now).unwrap();
    assert!(matches!(&actions[..], [Action::Open { to: 8, .. }]), "{actions:?}");
    assert_eq!(new.heard(report("gw2", 7, "kyoto", &partner), now).unwrap(), []);
    before.end("it is done".into());
    let actions = new.heard(report("gw1", 7, "kyoto", &before), now).unwrap();
    assert!(matches!(&actions[..], [Action::Abandon, Action::Post, Action::Open { to: 9, .. }]), "{actions:?}");
}

/// A pair, coupled by one board.
fn coupled(now: Instant) -> (Pairing, Pairing) {
    let (mut one, mut two) = (side(7, "lyon"), side(8, "kyoto"));
    assert!(matches!(&one.heard(report("gw1", 7, "kyoto", &two), now).unwrap()[..], [Action::Open { to: 8, .. }]));
    let offer = Offer { to: 8, job: JobId(3), secret: Secret::new([1; 32]), window: 1 };
    assert_eq!(one.opened(offer), [Action::Post]);
    assert!(one.partner().is_none(), "nobody has accepted it yet");
    assert_eq!(two.heard(report("gw1", 8, "lyon", &one), now).unwrap().len(), 2);
    assert_eq!(one.heard(report("gw1", 7, "kyoto", &two), now).unwrap().len(), 2);
    assert!(one.partner().is_some() && two.partner().is_some());
    (one, two)
}

#[test]
fn only_a_side_without_a_partner_believes_a_refusal() {
    let now = Instant::now();
    let (mut one, two) = coupled(now);
    let mut stranger = side(9, "lyon");
    stranger.change(|about| about.refused.push(RefusedSide { side: 7, partner: "osaka".into() }));
    let actions = one.heard(report("gw2", 7, "lyon", &stranger), now).unwrap();
    assert_eq!(actions, [Action::Post], "it refuses the stranger");
    assert_eq!(one.heard(report("gw2", 7, "lyon", &stranger), now).unwrap(), [], "once");
    let text = "ocean@lyon already has two sides, from lyon and kyoto: take another name";
    let actions = stranger.heard(report("gw2", 9, "lyon", &one), now).unwrap();
    assert_eq!(actions, [Action::Say(HelperReport::Waiting(text.into()))]);
    assert_eq!(stranger.refused(), Some((now, OCCUPIED)));
    assert_eq!(stranger.refusal().to_string(), text);
    drop(two);
}

#[test]
fn a_program_that_is_started_again_waits_until_the_survivor_has_noticed_the_end() {
    let now = Instant::now();
    let (mut survivor, _) = coupled(now);
    let mut again = side(9, "kyoto");
    assert_eq!(survivor.heard(report("gw1", 7, "kyoto", &again), now).unwrap(), [Action::Post], "it is refused");
    assert_eq!(again.heard(report("gw1", 9, "lyon", &survivor), now).unwrap().len(), 1);
    assert!(again.refused().is_some());
    survivor.end("there is no sign of life of it".into());
    again.heard(report("gw1", 9, "lyon", &survivor), now).unwrap();
    assert_eq!(again.refused(), None);
    let fresh = side(10, "lyon");
    let actions = again.heard(report("gw1", 9, "lyon", &fresh), now).unwrap();
    assert!(matches!(&actions[..], [Action::Open { to: 10, .. }]), "{actions:?}");
}

#[test]
fn a_partner_that_accepts_and_leaves_at_once_was_one() {
    let (mut one, mut two, now) = (side(7, "lyon"), side(8, "kyoto"), Instant::now());
    one.heard(report("gw1", 7, "kyoto", &two), now).unwrap();
    one.opened(Offer { to: 8, job: JobId(3), secret: Secret::new([1; 32]), window: 1 });
    two.heard(report("gw1", 8, "lyon", &one), now).unwrap();
    two.end("it is done".into());
    let last = || report("gw1", 7, "kyoto", &two);
    assert!(matches!(&one.heard(last(), now).unwrap()[..], [Action::Say(HelperReport::Coupled(_)), Action::Post]));
    let error = one.heard(last(), now).unwrap_err().to_string();
    assert_eq!(error, "the other side (1 processes at kyoto) has left: it is done");
}

#[test]
fn a_partner_that_takes_back_its_part_ends_the_coupling() {
    let now = Instant::now();
    let (mut one, mut two) = coupled(now);
    one.change(|about| about.offer = None);
    let error = two.heard(report("gw1", 8, "lyon", &one), now).unwrap_err().to_string();
    assert_eq!(error, "the other side (1 processes at lyon) has left: it has given up this side");
}

#[test]
fn a_board_that_forgot_both_sides_is_no_evidence_for_a_while() {
    let start = Instant::now();
    let (mut one, _) = coupled(start);
    let renewed = |board: &str, other| {
        let (coupling, board) = (coupling(), board.to_owned());
        CouplingMessage::Renewed { coupling, side: 7, board, other, revision: 0 }
    };
    let mut hear = |board, other, seconds| {
        one.heard(renewed(board, other), start + Duration::from_secs(seconds)).unwrap();
        one.absent().map(|(since, patience)| ((since - start).as_secs(), patience))
    };
    assert_eq!(hear("gw1", Some(8), 0), None);
    assert_eq!(hear("gw1", None, 1), Some((1, ABSENT)));
    assert_eq!(hear("gw1", None, 2), Some((1, ABSENT)));
    assert_eq!(hear("gw2", Some(8), 3), None, "one board is enough");
    assert_eq!(hear("gw1", None, 3 + SILENCE_S), Some((3 + SILENCE_S, ABSENT)), "the other one is lost");
    let unposted = CouplingMessage::Unposted { coupling: coupling(), side: 7, board: "gw1".into() };
    one.heard(unposted, start + Duration::from_secs(12)).unwrap();
    assert_eq!(one.absent().map(|(_, patience)| patience), Some(UNKNOWN));
}

#[test]
fn a_refusal_counts_if_no_board_takes_the_side() {
    let (mut one, start) = (side(7, "lyon"), Instant::now());
    let refused = |board: Option<&str>| {
        let (coupling, board) = (coupling(), board.map(str::to_owned));
        CouplingMessage::Refused { coupling, side: 7, board, silent_ms: Some(2500), reason: "no room".into() }
    };
    let seen = || CouplingMessage::Other { coupling: coupling(), side: 7, board: "gw2".into(), other: None };
    for board in [None, Some("gw1")] {
        one.heard(refused(board), start).unwrap();
        assert_eq!(one.refused(), Some((start, ELSEWHERE)));
        assert_eq!(one.refusal().to_string(), "no room");
        one.heard(seen(), start).unwrap();
        assert_eq!(one.refused(), None);
        one.heard(refused(board), start).unwrap();
        assert_eq!(one.refused(), None, "another board has it");
        one.boards.clear();
    }
    let after = |seconds| start + Duration::from_secs(seconds);
    assert!(one.heard(refused(Some("gw1")), after(20)).is_ok());
    assert!(one.heard(refused(Some("gw1")), after(22)).is_ok(), "one of the two may have been killed");
    assert!(one.heard(refused(Some("gw1")), after(25)).is_ok(), "they may have lost each other, and leave");
    assert!(one.heard(refused(Some("gw1")), after(26)).is_err(), "both exist");
}
