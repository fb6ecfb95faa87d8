use super::*;

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Activity of a thread that has run all the time.
const fn busy(at: u64) -> Ran {
    Ran { time: micros(at), waits: 0 }
}

/// One look, at `at` µs. Returns the length of the nap, if any.
fn nap(idle: &mut Idle, start: Instant, at: u64, others: Option<u64>) -> Option<u128> {
    napping(idle.pause(|| start + micros(at), || busy(at), || Awaited::Arrival, others))
}

fn napping(pause: Pause) -> Option<u128> {
    if let Pause::Nap(time) = pause { Some(time.as_micros()) } else { None }
}

/// Looks every microsecond from `from` to `to`, without pausing. Returns the last answer of a look that read the
/// clock.
fn last_pause(idle: &mut Idle, start: Instant, from: u64, to: u64, pending: bool) -> Pause {
    idle.looks = 0;
    let mut last = Pause::None;
    for at in from..=to {
        let mut asked = false;
        let answer = idle.pause(
            || {
                asked = true;
                start + micros(at)
            },
            || busy(at),
            || if pending { Awaited::Departure } else { Awaited::Arrival },
            None,
        );
        if asked {
            last = answer;
        }
    }
    last
}

/// As `last_pause`, but returns the length of the nap.
fn look(idle: &mut Idle, start: Instant, from: u64, to: u64, pending: bool) -> Option<u128> {
    napping(last_pause(idle, start, from, to, pending))
}

fn new(spin: Spin) -> Idle {
    Idle::new(WaitSettings { spin, crowd: 1, own_memory: OwnMemory::None })
}

fn pinned(spin: u64) -> Idle {
    new(Spin::For(micros(spin)))
}

#[test]
fn naps_after_spinning_and_longer_the_longer_it_waits() {
    let mut idle = pinned(50);
    let start = Instant::now();
    assert_eq!(look(&mut idle, start, 0, 50, false), None);
    assert_eq!(look(&mut idle, start, 60, 67, false), Some(15));
    assert_eq!(look(&mut idle, start, 70, 207, false), Some(49));
    assert_eq!(look(&mut idle, start, 210, 9001, false), Some(1250));
    idle.busy(|| start + micros(9000));
    assert_eq!(look(&mut idle, start, 9010, 9060, false), None, "a pinned spin stays");
    assert_eq!(look(&mut idle, start, 9070, 9077, false), Some(15));
}

#[test]
fn who_looks_in_now_and_then_is_not_kept() {
    let mut idle = pinned(50);
    let start = Instant::now();
    for at in (0..100_000).step_by(9) {
        assert_eq!(nap(&mut idle, start, at, None), None, "at {at} µs");
    }
    // A nap itself is no absence, and neither is a single slow look.
    assert_eq!(look(&mut idle, start, 200_000, 200_070, false), Some(14));
    idle.woke(start + micros(200_200), || busy(200_200));
    assert_eq!(look(&mut idle, start, 200_210, 200_217, false), Some(52));
    assert!(look(&mut idle, start, 200_250, 200_257, false).is_some());
}

/// Looks every 100 µs for 100 ms. Between two looks the thread runs for `ran` µs and gives up its core `waits`
/// times. Returns the number of naps.
fn late_looks(ran: u64, waits: i64) -> usize {
    let (mut idle, start) = (pinned(50), Instant::now());
    let looks = 0..1000;
    let nap = |look: u64| {
        let done = Ran { time: micros(look * ran), waits: look as i64 * waits };
        idle.pause(|| start + micros(look * 100), || done, || Awaited::Arrival, None)
    };
    looks.map(nap).filter(|pause| napping(*pause).is_some()).count()
}

#[test]
fn who_is_late_because_others_had_its_core_waits_all_the_same() {
    assert_eq!(late_looks(20, 0), 0, "it computes");
    assert_eq!(late_looks(2, 1), 0, "it reads a file");
    assert!(late_looks(2, 0) > 100, "it yields");
}

#[test]
fn a_thread_knows_what_it_has_done() {
    let before = Ran::now();
    std::thread::sleep(Duration::from_millis(1));
    let slept = Ran::now();
    assert!(slept.waits > before.waits);
    let begun = Instant::now();
    while Ran::now().time < slept.time + Duration::from_millis(1) {
        assert!(begun.elapsed() < Duration::from_secs(20), "no time runs");
    }
}

#[test]
fn of_several_endpoints_one_naps_when_all_are_idle_and_not_for_long() {
    let mut idle = pinned(50);
    let start = Instant::now();
    let mut busy = (0..1000).map(|at| nap(&mut idle, start, at, Some(at / 40)));
    assert!(busy.all(|nap| nap.is_none()), "another one moved every 40 µs");
    let naps: Vec<u128> = (1000..3000).filter_map(|at| nap(&mut idle, start, at, Some(25))).collect();
    assert_eq!((naps.first(), naps.last()), (Some(&14), Some(&250)));
}

#[test]
fn spins_longer_with_bytes_under_way() {
    let mut idle = pinned(50);
    let start = Instant::now();
    assert_eq!(look(&mut idle, start, 0, 1000, true), None);
    assert_eq!(look(&mut idle, start, 1010, 1017, true), Some(252));
}

/// Waits `count` times for `each` µs, with a look every microsecond. Returns the final spin time.
fn after_waits(spin: Spin, each: u64, count: u64) -> Duration {
    let mut idle = new(spin);
    let start = Instant::now();
    for wait in 0..count {
        let begin = wait * 1_000_000;
        look(&mut idle, start, begin, begin + each, false);
        idle.busy(|| start + micros(begin + each));
    }
    idle.current
}

#[test]
fn spinning_adapts_to_how_long_waits_are() {
    let adaptive = Spin::default();
    assert_eq!(after_waits(adaptive, 30, 20), FIRST, "a spin that suffices is kept");
    assert_eq!(after_waits(adaptive, 150, 20), micros(200), "an answer that comes soon is spun for");
    assert_eq!(after_waits(adaptive, 1700, 20), micros(2000), "so is a neighbour that computes for a little longer");
    assert!(after_waits(adaptive, 5000, 20) < micros(1), "a late one is not");
    assert!(after_waits(Spin::CROWDED, 150, 20) < micros(1));
    assert_eq!(after_waits(Spin::For(micros(70)), 5000, 20), micros(70));
}

#[test]
fn who_spins_for_long_offers_its_core() {
    let mut idle = new(Spin::default());
    idle.current = micros(1000);
    let start = Instant::now();
    assert_eq!(last_pause(&mut idle, start, 0, 100, false), Pause::None);
    assert_eq!(last_pause(&mut idle, start, 110, 1000, false), Pause::Yield);
    assert_eq!(look(&mut idle, start, 1010, 1017, false), Some(252));
    assert_eq!(last_pause(&mut pinned(1000), start, 0, 1000, false), Pause::None, "a pinned spin keeps its core");
}

#[test]
fn it_recovers_from_not_spinning_at_all() {
    let mut idle = new(Spin::default());
    idle.current = Duration::ZERO;
    let start = Instant::now();
    for wait in 0..8 {
        let begin = wait * 1_000_000;
        look(&mut idle, start, begin, begin + 40, false);
        idle.busy(|| start + micros(begin + 40));
    }
    assert_eq!(idle.current, micros(40));
}

#[test]
fn the_environment_says_how_long() {
    let waiting = |spin: &'static str, crowd: &'static str| {
        let value = move |name: &str| match name {
            "LANDBRIDGE_SPIN" => Some(spin.to_owned()),
            "LANDBRIDGE_CROWDED" => Some(crowd.to_owned()),
            _ => None,
        };
        WaitSettings::from_env(value)
    };
    assert_eq!(
        WaitSettings::from_env(|_| None),
        Ok(WaitSettings { spin: Spin::default(), crowd: 1, own_memory: OwnMemory::None })
    );
    assert_eq!(waiting("", ""), Ok(WaitSettings { spin: Spin::default(), crowd: 1, own_memory: OwnMemory::None }));
    assert_eq!(
        waiting("0", "3"),
        Ok(WaitSettings { spin: Spin::For(Duration::ZERO), crowd: 3, own_memory: OwnMemory::None })
    );
    assert_eq!(waiting("", "3"), Ok(WaitSettings { spin: Spin::CROWDED, crowd: 3, own_memory: OwnMemory::None }));
    assert_eq!(waiting("always", ""), Ok(WaitSettings { spin: Spin::Always, crowd: 1, own_memory: OwnMemory::None }));
    assert_eq!(look(&mut new(Spin::Always), Instant::now(), 0, 1000, false), None);
    let error = waiting("often", "").unwrap_err().to_string();
    assert!(error.contains("LANDBRIDGE_SPIN=often"), "{error}");
    let error =
        WaitSettings::from_env(|name| (name == "LANDBRIDGE_MPI_SHM").then(|| "some".into())).unwrap_err().to_string();
    assert!(error.contains("LANDBRIDGE_MPI_SHM=some"), "{error}");
    for crowd in ["0", "many"] {
        let error = waiting("", crowd).unwrap_err().to_string();
        assert!(error.contains(&format!("LANDBRIDGE_CROWDED={crowd}: ")), "{error}");
    }
}

/// The pause after 100 ms of waiting beside an MPI library with shared memory of its own.
fn beside(own_memory: OwnMemory, spin: Spin, crowd: u32, awaited: Awaited) -> Pause {
    let mut idle = Idle::new(WaitSettings { spin, crowd, own_memory });
    let start = Instant::now();
    let mut look = |at: u64| {
        idle.looks = LOOKS;
        idle.pause(|| start + micros(at), || busy(at), || awaited, None)
    };
    for at in (0..100_000).step_by(5) {
        look(at);
    }
    look(100_000)
}

#[test]
fn beside_memory_that_we_do_not_see_naps_only_who_awaits_something() {
    use OwnMemory::{Messages, Windows};
    let nap = Pause::Nap(LONGEST);
    for awaited in [Awaited::Nothing, Awaited::Arrival, Awaited::Departure] {
        let nap_if_awaited = if awaited == Awaited::Nothing { Pause::Yield } else { nap };
        assert_eq!(beside(Messages, Spin::default(), 1, awaited), Pause::Yield);
        assert_eq!(beside(Messages, Spin::CROWDED, 2, awaited), nap_if_awaited);
        assert_eq!(beside(Windows, Spin::default(), 1, awaited), nap_if_awaited);
        assert_eq!(beside(Windows, Spin::CROWDED, 2, awaited), nap_if_awaited);
        assert_eq!(beside(Messages, Spin::For(Duration::ZERO), 1, awaited), nap, "power counts");
    }
}

#[test]
fn many_on_a_core_nap_longer() {
    for (crowd, longest) in [(1, 1250), (4, 1250), (8, 10_000), (64, 20_000)] {
        let mut idle = Idle::new(WaitSettings { spin: Spin::CROWDED, crowd, own_memory: OwnMemory::None });
        assert_eq!(look(&mut idle, Instant::now(), 0, 100_000, false), Some(longest));
    }
}
