//! A trusted site that misbehaves: the harm to a gateway is limited, and other sites' jobs continue.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use support::played::{GATEWAY, Key, Link};
use support::*;
use tokio::sync::Mutex;
use types::{JobId, NodeId, SiteId, Slot};
use wire::control::{
    AllocationMessage, Coupling, CouplingMessage, JobMessage, JoiningMessage, MeasurementMessage, NodeAsk,
    ObservationMessage, Part, Traffic,
};
use wire::frame::HEADER_LEN;
use wire::{Control, FrameHeader, FrameKind, Secret};

const ROSTER: &str = "a:n1*1;b:n1*1";
const MEMORY: u64 = 64 << 20;
/// Most growth of this process that a hostile site may cause; both gateways and the hostile site run in it.
const GROWTH: u64 = 48 << 20;

/// The same limit for requests for measurements.
const MOST_FOR_MEASURING: u64 = 24 << 20;

/// Tests that look at the memory of the process, or at its log, take turns.
static TURN: Mutex<()> = Mutex::const_new(());
static LOGGED: AtomicU64 = AtomicU64::new(0);

/// Counts log lines, and keeps none of them.
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Sites m, a and b; the test plays m, and dials the others.
fn sites() -> (Vec<Running>, Key) {
    // The first subscriber stays, so the support's own is not used.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(|| Log)
        .try_init();
    let key = Key::new();
    let played = Some(("m", key.fingerprint()));
    let plan = Plan { names: vec!["m", "a", "b"], absent: vec!["m"], hidden: vec!["m"], played, ..Plan::default() };
    (start(&plan), key)
}

/// An innocent job of a and b, and two ranks of it that exchange frames.
struct Innocent {
    job: Job,
    ranks: [(client::Client, types::Identity); 2],
    sequence: u32,
}

impl Innocent {
    async fn start(sites: &[Running], id: u32) -> Innocent {
        let job = open(&sites[1], "a", id, ROSTER).await;
        let (a, b) = (rank(0, 0), rank(1, 1));
        let ranks = [(sites[1].member(&job, a).await, a), (sites[2].member(&job, b).await, b)];
        Innocent { job, ranks, sequence: 0 }
    }

    /// Checks that frames go both ways, none is lost, and the launcher has received no message.
    async fn goes_on(&mut self) {
        let [one, two] = &mut self.ranks;
        for _ in 0..20 {
            one.0.send(data(&self.job, one.1, two.1, self.sequence), &[7; 1000]).await.unwrap();
            let frame = receive(&mut two.0).await;
            assert_eq!(frame.header.kind, FrameKind::Data, "{}", String::from_utf8_lossy(&frame.payload));
            assert!(frame.header.sequence == self.sequence && frame.payload == [7; 1000]);
            two.0.send(data(&self.job, two.1, one.1, self.sequence), &[8; 500]).await.unwrap();
            let frame = receive(&mut one.0).await;
            assert_eq!(frame.header.kind, FrameKind::Data, "{}", String::from_utf8_lossy(&frame.payload));
            assert!(frame.header.sequence == self.sequence && frame.payload == [8; 500]);
            self.sequence += 1;
        }
        let news = tokio::time::timeout(Duration::from_millis(50), self.job.launcher.receive()).await;
        assert!(news.is_err(), "{news:?}");
    }

    /// Like [`Innocent::goes_on`], while a thread plays the hostile site. Returns the greatest growth of the process.
    async fn goes_on_during<T>(&mut self, play: std::thread::JoinHandle<T>) -> (T, u64) {
        let (before, mut most) = (resident(), 0);
        loop {
            let done = play.is_finished();
            self.goes_on().await;
            most = most.max(resident());
            if done {
                return (play.join().unwrap(), most.saturating_sub(before));
            }
        }
    }
}

fn job_open(job: u32, roster: &str, part: Part) -> Control {
    let (job, secret) = (JobId(job), Secret::new([3; 32]));
    Control::Job(JobMessage::Open { job, secret, roster: roster.parse().unwrap(), home: "m".into(), part })
}

#[tokio::test]
async fn pings_whose_answers_are_never_read_end_the_link_and_nothing_else() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let flood = std::thread::spawn(move || {
        for round in 0..1500u32 {
            let pings = (0..1000).flat_map(|at| {
                let job = JobId(1 + round * 1000 + at);
                FrameHeader::plain(FrameKind::Ping, job, GATEWAY, GATEWAY).encode()
            });
            if !link.write(&pings.collect::<Vec<u8>>()) {
                return true;
            }
        }
        false
    });
    let (cut, grown) = innocent.goes_on_during(flood).await;
    assert!(cut, "its link was not cut");
    assert!(grown < GROWTH, "grew by {grown}");
    let counters = sites[1].counters.snapshot();
    assert!(counters.high_water < MEMORY / 2 && counters.violations == 1, "{counters:?}");
    // It may come back and behave.
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    assert!(link.write(&FrameHeader::plain(FrameKind::Ping, JobId(0), GATEWAY, GATEWAY).encode()));
    assert!(std::iter::from_fn(|| link.hear()).any(|(header, _)| header.kind == FrameKind::Pong));
    innocent.goes_on().await;
}

#[tokio::test]
async fn answers_that_are_never_acknowledged_are_bounded() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let flood = std::thread::spawn(move || {
        for round in 0..400u32 {
            let closes = (0..1000).flat_map(|at| link.frame(JobMessage::close(JobId(100 + round * 1000 + at))));
            let closes: Vec<u8> = closes.collect();
            if !link.write(&closes) {
                return true;
            }
        }
        false
    });
    let (cut, grown) = innocent.goes_on_during(flood).await;
    assert!(cut, "its link was not cut");
    assert!(grown < GROWTH, "grew by {grown}");
    // Repeating the same request does not help it either.
    for _ in 0..3 {
        let mut link = Link::dial(&sites[1], &key, "m", 1);
        let _ = link.tell(JobMessage::close(JobId(77)));
    }
    innocent.goes_on().await;
}

#[tokio::test]
async fn jobs_cost_their_site_what_they_cost_the_gateway() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    // Descriptions of 60 KB with windows of zero, and with the smallest window.
    let nodes = |name: &str| (0..600).map(|at| format!("{name}{at:050}*1")).collect::<Vec<_>>().join(",");
    let roster = format!("m:{};a:n1*1", nodes("x"));
    let flood = std::thread::spawn(move || {
        let mut answers = (0, 0);
        for job in 0..2000u32 {
            for (half, window) in [(0, 0), (1, 1)] {
                let id = 10_000 + 2 * job + half;
                assert!(link.tell(job_open(id, &roster, Part::Lead.relay(window * (32 << 10)))));
            }
            for _ in 0..2 {
                match link.hear_control().unwrap() {
                    Control::Job(JobMessage::Refused { reason, .. }) => {
                        assert!(reason.len() < 2000, "{} bytes", reason.len());
                        answers.0 += 1;
                    }
                    Control::Job(JobMessage::Here { .. }) => answers.1 += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        (answers, link)
    });
    let (((refused, here), _link), grown) = innocent.goes_on_during(flood).await;
    assert!(here < 1000 && refused > 2000, "{here} opened, {refused} refused");
    assert!(grown < GROWTH, "grew by {grown}");
    // There is room for other jobs.
    let mut another = Innocent::start(&sites, 2).await;
    another.goes_on().await;
}

#[tokio::test]
async fn refusals_fill_no_disk() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let before = LOGGED.load(Relaxed);
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let roster = format!("m:{}*1;b:n1*1", "x".repeat(60));
    let flood = std::thread::spawn(move || {
        for job in 0..1000 {
            assert!(link.tell(job_open(1000 + job, &roster, Part::Lead)));
            let Some(Control::Job(JobMessage::Refused { .. })) = link.hear_control() else { panic!() };
            let ask = NodeAsk { ranks: 0, per_node: None, wait_s: 0, held: None, elsewhere: 0, beyond_home: 0 };
            let allocate = AllocationMessage::Ask { job: JobId(0), site: "a".into(), home: "m".into(), ask };
            assert!(link.tell(allocate));
            let Some(Control::Job(JobMessage::Refused { .. })) = link.hear_control() else { panic!() };
        }
        // The site connects and disconnects.
        for run in 0..30 {
            let _ = Link::dial(&sites[1], &key, "m", run);
        }
        sites
    });
    let (_sites, _) = innocent.goes_on_during(flood).await;
    let logged = LOGGED.load(Relaxed) - before;
    assert!(logged < 60_000, "{logged} bytes");
}

#[tokio::test]
async fn who_is_not_of_a_job_says_nothing_about_it() {
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let job = JobId(1);
    let text = String::new;
    let (m, b, gone) = (|| "m".to_owned(), || "b".to_owned(), || "gone".to_owned());
    for message in [
        Control::Job(JobMessage::SiteLost { job, site: b(), seen_from: m(), reason: gone() }),
        Control::Job(JobMessage::SiteLost { job, site: m(), seen_from: m(), reason: gone() }),
        Control::Job(JobMessage::AgentLost { job, site: m(), node: text(), reason: gone() }),
        Control::Job(JobMessage::Refused { job, site: m(), reason: gone() }),
        Control::Job(JobMessage::Closed { job, site: m(), traffic: Traffic::default(), led: true }),
        Control::Job(JobMessage::Opened { job, site: m(), window: 1 }),
        Control::Job(JobMessage::Here { job, whole: true }),
        Control::Allocation(AllocationMessage::Granted { job, site: m(), nodes: Vec::new() }),
        Control::Allocation(AllocationMessage::Waiting { job, site: m(), state: gone() }),
        Control::Job(JobMessage::close(job)),
        Control::Job(JobMessage::left(job)),
        Control::Job(JobMessage::MemberLost { job, member: rank(0, 0), reason: gone() }),
        Control::Job(JobMessage::SiteLost { job, site: b(), seen_from: b(), reason: gone() }),
    ] {
        if !link.tell(message) {
            // That was a violation, and the link was cut.
            link = Link::dial(&sites[1], &key, "m", 1);
        }
        innocent.goes_on().await;
    }
    // Nor does opening it again help.
    let mut link = Link::dial(&sites[1], &key, "m", 2);
    assert!(link.tell(job_open(1, "m:x*1;a:n1*1", Part::Lead)));
    let refused = std::iter::from_fn(|| link.hear_control()).find(|message| message.job() == Some(job));
    assert!(matches!(refused, Some(Control::Job(JobMessage::Refused { .. }))), "{refused:?}");
    innocent.goes_on().await;
}

#[tokio::test]
async fn what_is_for_users_cuts_a_link() {
    let (sites, key) = sites();
    let questions = [
        Control::Measurement(MeasurementMessage::Probe { site: "a".into() }),
        Control::Observation(ObservationMessage::Observe),
        Control::Joining(JoiningMessage::Invite { seconds: 60 }),
    ];
    for (cut, question) in (1..).zip(questions) {
        let mut link = Link::dial(&sites[1], &key, "m", cut);
        assert!(link.tell(question));
        assert_eq!(std::iter::from_fn(|| link.hear_control()).count(), 0, "it is not answered");
        assert_eq!(sites[1].counters.snapshot().violations, u64::from(cut));
    }
}

#[tokio::test]
async fn couplings_of_other_sites_are_not_kept_and_answers_for_others_cut_a_link() {
    let (sites, key) = sites();
    let named = |site: &str| Coupling { name: "ocean".into(), site: site.into() };
    let post = |site: &str, about: String| CouplingMessage::Post {
        coupling: named(site),
        side: 1,
        revision: 0,
        partner: None,
        ended: false,
        about,
    };
    let mut cuts = sites[1].counters.snapshot().violations;
    let other = CouplingMessage::Other { coupling: named("a"), side: 1, board: String::new(), other: None };
    for (number, message) in (2..).zip([post("b", String::new()), other]) {
        let mut link = Link::dial(&sites[1], &key, "m", number);
        assert!(link.tell(Control::from(message)));
        assert_eq!(std::iter::from_fn(|| link.hear_control()).count(), 0, "it is not answered");
        cuts += 1;
        assert_eq!(sites[1].counters.snapshot().violations, cuts);
    }
    let mut link = Link::dial(&sites[1], &key, "m", 4);
    assert!(link.tell(Control::from(post("a", "about".into()))));
    let answer = std::iter::from_fn(|| link.hear_control()).find(|message| matches!(message, Control::Coupling(_)));
    assert!(matches!(answer, Some(Control::Coupling(CouplingMessage::Other { other: None, .. }))), "{answer:?}");
}

#[tokio::test]
async fn a_side_is_of_the_site_that_posted_it_whatever_it_says() {
    let (sites, key) = sites();
    let coupling = Coupling { name: "ocean".into(), site: "a".into() };
    let post = |side, about: &str| CouplingMessage::Post {
        coupling: coupling.clone(),
        side,
        revision: 0,
        partner: None,
        ended: false,
        about: about.into(),
    };
    let mut user = sites[1].client().await;
    user.send_control(launcher(0), post(1, "of a")).await.unwrap();
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    assert!(link.tell(post(2, r#"{"home":"b"}"#)));
    loop {
        if let Control::Coupling(CouplingMessage::Other { other: Some(posted), .. }) = control(&mut user).await {
            assert_eq!((posted.side, posted.home.as_str()), (2, "m"));
            return;
        }
    }
}

#[tokio::test]
async fn requests_for_measurements_without_end_cost_little_memory() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    // Each write has as many requests as rustls takes at once, 64 KiB. The second name is not valid.
    for (run, length, count) in [(1, 60, 100), (2, 60_000, 1)] {
        let mut link = Link::dial(&sites[1], &key, "m", run);
        let flood = std::thread::spawn(move || {
            let name = "x".repeat(length);
            for _ in 0..5000 {
                let ask = || MeasurementMessage::Measure { from: "a".into(), to: name.clone(), transfer: true };
                let asked: Vec<u8> = (0..count).flat_map(|_| link.frame(ask())).collect();
                if !link.write_only(&asked) {
                    return true;
                }
            }
            false
        });
        let (cut, grown) = innocent.goes_on_during(flood).await;
        let (held, violations) = (sites[1].counters.snapshot().high_water, sites[1].counters.snapshot().violations);
        assert!(cut, "a site that reads no answer keeps its link");
        assert_eq!(violations, u64::from(run), "counted once");
        assert!(grown < MOST_FOR_MEASURING && held < MEMORY / 2, "grew by {grown}, held {held}");
    }
    innocent.goes_on().await;
}

/// The requests include a transfer, so that more than one at a time would show.
#[tokio::test]
async fn requests_for_measurements_by_one_that_reads_the_answers_cost_little_memory() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let flood = std::thread::spawn(move || {
        let mut arrived = Vec::new();
        (0..300).all(|_| {
            let ask = || MeasurementMessage::Measure { from: "a".into(), to: "b".into(), transfer: true };
            let asked: Vec<u8> = (0..600).flat_map(|_| link.frame(ask())).collect();
            link.exchange(&asked, &mut arrived)
        })
    });
    let (_, grown) = innocent.goes_on_during(flood).await;
    let held = sites[1].counters.snapshot().high_water;
    assert!(grown < MOST_FOR_MEASURING && held < MEMORY / 2, "grew by {grown}, held {held}");
    innocent.goes_on().await;
}

#[tokio::test]
async fn nodes_that_were_asked_for_are_no_other_sites() {
    let (sites, key) = sites();
    let mut user = sites[1].client().await;
    let ask = NodeAsk { ranks: 2, per_node: None, wait_s: 60, held: None, elsewhere: 0, beyond_home: 0 };
    let job = JobId(7);
    let allocate = AllocationMessage::Ask { job, site: "a".into(), home: "a".into(), ask };
    user.send_control(launcher(0), allocate).await.unwrap();
    assert!(matches!(control(&mut user).await, Control::Allocation(AllocationMessage::Granted { .. })));
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    // n7 belongs to the user; x does not exist, so the job is refused.
    for roster in ["m:x*1;a:n7*1", "m:x*1;a:x*1", "m:x*1;b:n1*1"] {
        assert!(link.tell(job_open(7, roster, Part::Lead)));
        let answer = std::iter::from_fn(|| link.hear_control()).find(|message| message.job() == Some(job));
        assert!(matches!(answer, Some(Control::Job(JobMessage::Refused { .. }))), "{answer:?}");
        assert_eq!(sites[1].agents.held(), 1, "given back");
    }
    assert!(link.tell(JobMessage::close(job)));
    let open = JobMessage::Open {
        job,
        secret: Secret::new([7; 32]),
        roster: "a:n7*2;b:n1*1".parse().unwrap(),
        home: "a".into(),
        part: Part::Lead,
    };
    user.send_control(launcher(0), open).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(control(&mut user).await, Control::Job(JobMessage::Opened { .. })));
    }
}

#[tokio::test]
async fn one_site_does_not_take_all_the_nodes_that_may_be_asked_for() {
    let (sites, key) = sites();
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    let mut refused = 0;
    for job in 0..300 {
        let ask = NodeAsk { ranks: ROOM + 1, per_node: None, wait_s: 60, held: None, elsewhere: 0, beyond_home: 0 };
        assert!(link.tell(AllocationMessage::Ask { job: JobId(100 + job), site: "a".into(), home: "m".into(), ask }));
        match link.hear_control().unwrap() {
            Control::Job(JobMessage::Refused { .. }) => refused += 1,
            Control::Allocation(AllocationMessage::Waiting { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0);
    let mut user = sites[1].client().await;
    let ask = NodeAsk { ranks: 2, per_node: None, wait_s: 60, held: None, elsewhere: 0, beyond_home: 0 };
    let allocate = AllocationMessage::Ask { job: JobId(7), site: "a".into(), home: "a".into(), ask };
    user.send_control(launcher(0), allocate).await.unwrap();
    assert!(matches!(control(&mut user).await, Control::Allocation(AllocationMessage::Granted { .. })));
}

#[tokio::test]
async fn frames_of_a_site_that_ignores_windows_drop_no_others_members() {
    let _turn = TURN.lock().await;
    let (sites, key) = sites();
    let mut innocent = Innocent::start(&sites, 1).await;
    let mut link = Link::dial(&sites[1], &key, "m", 1);
    // Its own agent at a never reads.
    assert!(link.tell(job_open(9, "m:x*4;a:n1*4", Part::Lead)));
    while !matches!(link.hear_control(), Some(Control::Job(JobMessage::Opened { .. }))) {}
    let job = Job {
        id: JobId(9),
        secret: Secret::new([3; 32]),
        launcher: Launcher::new(sites[1].client().await),
        identity: launcher(0),
    };
    let mut lazy = Vec::new();
    for at in 4..8 {
        lazy.push(sites[1].member(&job, rank(1, at)).await);
    }
    let flood = std::thread::spawn(move || {
        let payload = vec![1; 16 << 10];
        for number in 0..16_000u32 {
            let to = rank(1, 4 + number % 4);
            let frame =
                FrameHeader { sequence: number, ..FrameHeader::plain(FrameKind::Data, JobId(9), rank(0, 0), to) };
            if !link.write(&frame.with_payload(&payload).unwrap()) {
                break;
            }
        }
        // Addressed to nobody: each frame is answered.
        let agent = types::Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
        let frame = FrameHeader::plain(FrameKind::Data, JobId(9), rank(0, 0), agent).encode();
        let frames: Vec<u8> = std::iter::repeat_n(frame, 1000).flatten().collect();
        assert_eq!(frames.len(), 1000 * HEADER_LEN);
        for _ in 0..1000 {
            if !link.write(&frames) {
                break;
            }
        }
    });
    let ((), grown) = innocent.goes_on_during(flood).await;
    assert!(grown < MEMORY + GROWTH, "grew by {grown}");
    let counters = sites[1].counters.snapshot();
    assert!(counters.high_water < MEMORY, "{counters:?}");
    drop(lazy);
}
