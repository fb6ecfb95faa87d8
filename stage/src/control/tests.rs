use super::*;

/// A node on which an application computes: a mover's speed and its cost to the application, by level and rate.
struct Node {
    /// Bytes per second that each level gets at most.
    gets: [f64; 3],
    /// Share of the application's time that is lost for each byte per second, by level.
    costs: [f64; 3],
    base: f64,
}

/// Both cores busy: a thread of idle class starves, and a higher class takes its time from the application.
const BUSY: Node = Node { gets: [5e6, 60e6, 1e9], costs: [1e-11, 3e-10, 5e-10], base: 0.01 };
/// A core is idle.
const HALF: Node = Node { gets: [800e6, 900e6, 1e9], costs: [1e-11, 1e-11, 1e-11], base: 0.0 };

struct Course {
    took: f64,
    harm: f64,
    levels: [f64; 3],
}

fn run(node: &Node, aim: Aim, total: u64) -> Course {
    let mut controller = Controller::new(aim);
    let (mut arrived, mut now) = (0.0f64, 0.0f64);
    let (mut harm, mut held_up, mut levels) = (0.0, 0.0, [0.0; 3]);
    let mut pressure = node.base;
    while arrived < total as f64 && now < 1000.0 {
        let sample = Sample {
            now: Duration::from_secs_f64(now),
            arrived: arrived as u64,
            total,
            pressure: Some(pressure),
            held_up,
            busy: true,
        };
        let decision = controller.sample(sample);
        let level = decision.level as usize;
        let wanted = decision.rate.map_or(f64::INFINITY, |rate| rate as f64);
        let rate = wanted.min(node.gets[level]);
        held_up = if rate < wanted { 0.9 } else { 0.05 };
        pressure = node.base + rate * node.costs[level];
        harm += (pressure - node.base) * 0.1;
        levels[level] += 0.1;
        arrived += rate * 0.1;
        now += 0.1;
    }
    Course { took: now, harm: harm / now, levels }
}

const RATE: u64 = 120 << 20;

#[test]
fn a_rate_is_kept_on_a_busy_node() {
    let outcome = run(&BUSY, Aim { rate: Some(RATE), deadline: None, harm: 0.08 }, 4 * RATE);
    assert!(outcome.took < 4.0 * 1.3, "{}", outcome.took);
}

#[test]
fn without_a_rate_the_accepted_harm_decides() {
    let outcome = run(&BUSY, Aim { rate: None, deadline: None, harm: 0.05 }, 20 * RATE);
    assert!((0.02..0.065).contains(&outcome.harm) && outcome.took < 60.0, "{} {}", outcome.harm, outcome.took);
}

#[test]
fn an_idle_core_needs_no_rights() {
    let outcome = run(&HALF, Aim { rate: Some(RATE), deadline: None, harm: 0.08 }, 10 * RATE);
    let [_, low, normal] = outcome.levels;
    assert!(outcome.took < 10.5 && low < 2.5 && normal == 0.0, "{:?}", outcome.levels);
}

#[test]
fn a_deadline_is_kept_and_a_later_one_harms_less() {
    let mut before = f64::INFINITY;
    for times in [1.3, 2.0, 4.0] {
        let deadline = Duration::from_secs_f64(10.0 * times);
        let aim = Aim { rate: Some(RATE), deadline: Some(deadline), harm: 0.08 };
        let outcome = run(&BUSY, aim, 10 * RATE);
        assert!(outcome.took <= deadline.as_secs_f64() + 0.2, "{} of {deadline:?}", outcome.took);
        assert!(outcome.harm < before, "{times}: {} after {before}", outcome.harm);
        before = outcome.harm;
    }
}

#[test]
fn no_harm_keeps_to_what_is_left_over() {
    let aim = Aim { rate: Some(RATE), deadline: None, harm: 0.0 };
    let outcome = run(&BUSY, aim, RATE);
    assert!(outcome.levels[1] + outcome.levels[2] == 0.0 && outcome.harm < 0.001, "{}", outcome.harm);
}

#[test]
fn harm_stays_near_what_is_accepted() {
    for harm in [0.02, 0.03] {
        let aim = Aim { rate: Some(RATE), deadline: None, harm };
        let outcome = run(&BUSY, aim, 20 * RATE);
        assert!(outcome.harm < harm * 1.3, "{harm}: {}", outcome.harm);
        assert!(outcome.took < 1000.0);
    }
}

#[test]
fn who_starves_before_it_knows_how_much_there_is_gets_more_rights() {
    for rate in [None, Some(RATE)] {
        let mut controller = Controller::new(Aim { rate, deadline: Some(Duration::from_secs(5)), harm: 0.03 });
        let levels = (0..20).map(|tenth| {
            let now = Duration::from_millis(100 * tenth);
            let (pressure, busy) = (Some(0.5), tenth > 1);
            controller.sample(Sample { now, arrived: 0, total: 0, pressure, held_up: 1.0, busy }).level
        });
        assert_eq!(levels.max(), Some(Level::Normal));
    }
}

#[test]
fn without_an_application_nothing_is_held_back() {
    let mut controller = Controller::new(Aim { rate: None, deadline: None, harm: 0.03 });
    let sample = Sample {
        now: Duration::from_millis(100),
        arrived: 0,
        total: 1 << 40,
        pressure: None,
        held_up: 0.0,
        busy: true,
    };
    assert_eq!(controller.sample(sample).rate, None);
}
