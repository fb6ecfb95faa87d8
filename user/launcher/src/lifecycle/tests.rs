use super::super::outcome::Summary;
use super::*;
use job::fence::Fence;
use job::group::Group;
use job::message::Up;
use types::Slowness;
use types::{JobId, NodeId};
use wire::control::JobMessage;

const JOB: JobId = JobId(1);

/// A job of two sites, each with one node and two ranks, and the messages of its gateways and agents.
struct Play {
    job: Job,
    now: Instant,
}

fn agent(site: u16) -> Identity {
    Identity { site: SiteId(site), slot: Slot::agent(NodeId(0)).unwrap() }
}

impl Play {
    fn new() -> Play {
        Play::with_timeout(None)
    }

    fn with_timeout(timeout: Option<Duration>) -> Play {
        let mut job = Job::new("a:n1*2;b:n1*2".parse().unwrap(), "a", vec![Program::default(); 2], timeout);
        let now = Instant::now();
        job.opened(now);
        Play { job, now }
    }

    fn control(&mut self, message: JobMessage) {
        self.control_by(0, message);
    }

    fn control_by(&mut self, gateway: usize, message: JobMessage) {
        self.job.incoming(Incoming::Job(gateway, message), self.now);
    }

    fn site_lost(&mut self, gateway: usize, seen_from: &str) {
        let (site, seen_from, reason) = ("b".into(), seen_from.into(), "cut".into());
        self.control_by(gateway, JobMessage::SiteLost { job: JOB, site, seen_from, reason });
    }

    fn up(&mut self, site: u16, message: Up) {
        self.job.incoming(Incoming::Up(agent(site), message), self.now);
    }

    fn later(&mut self) {
        self.now = self.job.deadline().expect("a deadline");
        self.job.deadline_over(self.now, Slowness::NONE);
    }

    fn running() -> Play {
        Play::new().run()
    }

    fn run(self) -> Play {
        let mut play = self;
        for (at, site) in ["a", "b"].into_iter().enumerate() {
            play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1000 * (at as u32 + 1) });
            play.up(at as u16, Up::Here);
            play.up(
                at as u16,
                Up::Ready { mpi: Some(Family::Mpich), collectives: Coverage::Large, ipv6: false, notes: vec![] },
            );
        }
        assert_eq!(play.job.phase, Phase::Running);
        play
    }

    fn exits(&mut self, rank: u32, end: End) {
        let state = MpiState::Finalised;
        self.up(u16::from(rank >= 2), Up::Exited { rank, end, state });
    }

    fn sent(&mut self) -> Vec<(Identity, Down)> {
        let sent = |action| if let Action::Send(to, message) = action { Some((to, message)) } else { None };
        self.job.actions().into_iter().filter_map(sent).collect()
    }

    fn close(&mut self) -> Summary {
        for at in 0..2 {
            self.up(at, Up::Ended);
        }
        self.job.heard(true);
        self.job.actions();
        self.job.heard(true);
        for site in ["a", "b"] {
            let traffic = Traffic { sent: 10, received: 10, local: 0 };
            self.control(JobMessage::Closed { job: JOB, site: site.into(), traffic, led: true });
        }
        assert!(self.job.is_over(), "{:?}", self.job.phase);
        self.job.summary(1.0)
    }
}

#[test]
fn ranks_run_until_their_time_limit() {
    let mut play = Play::with_timeout(Some(Duration::from_secs(90))).run();
    let started = play.now;
    play.later();
    assert_eq!(play.now - started, Duration::from_secs(90));
    assert_eq!(play.job.phase, Phase::Killing);
    let summary = play.job.summary(90.0);
    let reason = summary.failure.unwrap().to_string();
    assert_eq!((summary.exit_code, &reason[..]), (124, "the ranks have run for 90 s, as long as --timeout allows"));

    let mut play = Play::with_timeout(Some(Duration::from_secs(90))).run();
    (0..4).for_each(|rank| play.exits(rank, End::Code(0)));
    (0..2).for_each(|site| play.up(site, Up::Ended));
    assert_eq!((play.job.phase, play.job.deadline()), (Phase::Draining, None), "output may take longer");
}

#[test]
fn ranks_start_with_the_least_window_and_end_well() {
    let mut play = Play::running();
    let sent = play.sent();
    assert!(
        matches!(sent.last(), Some((_, Down::Go { window: 1000, collectives: Coverage::Large, ipv6: false }))),
        "{sent:?}"
    );
    (0..4).for_each(|rank| play.exits(rank, End::Code(0)));
    let summary = play.close();
    assert_eq!((summary.ok, summary.exit_code, summary.bytes_relayed), (true, 0, 20));
    assert_eq!(summary.sites[1].ranks, [2, 3]);
    assert_eq!(summary.mpi.as_deref(), Some("mpich"));
}

#[test]
fn a_signal_that_comes_after_its_effect_is_still_the_cause() {
    let mut play = Play::running();
    play.exits(0, End::Code(9));
    assert_eq!(play.sent().iter().filter(|(_, m)| matches!(m, Down::Kill { .. })).count(), 0);
    play.exits(3, End::Signal(11));
    assert_eq!(play.sent().iter().filter(|(_, m)| matches!(m, Down::Kill { signal: 15 })).count(), 2);
    play.exits(1, End::Signal(15));
    let summary = play.close();
    assert_eq!(summary.exit_code, 139);
    assert_eq!(summary.failure.unwrap().to_string(), "site b, node n1: rank 3 killed by signal 11 (SIGSEGV)");
}

#[test]
fn a_peers_error_is_not_the_cause() {
    for (end, state, code) in [(End::Code(9), MpiState::Running, 9), (End::Code(0), MpiState::Running, 1)] {
        let mut play = Play::running();
        play.up(0, Up::UsesMpi);
        play.up(0, Up::Aborted { rank: 0, code: 0x2333_008f, message: String::new() });
        play.exits(1, End::Code(143));
        play.up(1, Up::Exited { rank: 3, end, state });
        play.later();
        let summary = play.close();
        assert_eq!((summary.exit_code, summary.failure.unwrap().rank), (code, Some(3)));
    }
}

#[test]
fn an_exit_code_alone_ends_the_job_after_a_moment() {
    let mut play = Play::running();
    play.exits(2, End::Code(7));
    play.later();
    assert!(play.sent().iter().any(|(_, message)| matches!(message, Down::Kill { .. })));
    let summary = play.close();
    assert_eq!((summary.exit_code, summary.failure.unwrap().rank), (7, Some(2)));
}

#[test]
fn agents_that_never_end_are_not_waited_for_forever() {
    let mut play = Play::running();
    play.exits(2, End::Signal(9));
    play.later();
    assert_eq!(play.job.phase, Phase::Closing);
    play.later();
    assert!(play.job.is_over());
}

#[test]
fn a_site_that_does_not_open_is_named() {
    let mut play = Play::new();
    play.control(JobMessage::Opened { job: JOB, site: "a".into(), window: 1 });
    play.later();
    assert!(play.job.summary(0.0).failure.unwrap().to_string().starts_with("site b: did not open the job"));
    let mut play = Play::new();
    play.control(JobMessage::Refused { job: JOB, site: "b".into(), reason: "port shut".into() });
    assert_eq!(play.job.summary(0.0).failure.unwrap().to_string(), "site b: port shut");
}

#[test]
fn a_lost_agent_names_its_node() {
    let mut play = Play::running();
    play.exits(0, End::Code(1));
    play.control(JobMessage::AgentLost { job: JOB, site: "b".into(), node: "n1".into(), reason: "signal 9".into() });
    assert_eq!(
        play.job.summary(0.0).failure.unwrap().to_string(),
        "site b, node n1: agent lost with ranks 2 to 3: signal 9"
    );
}

#[test]
fn different_mpis_do_not_start() {
    let mut play = Play::new();
    for (at, site) in ["a", "b"].into_iter().enumerate() {
        play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1 });
        play.up(at as u16, Up::Here);
    }
    play.up(0, Up::Ready { mpi: Some(Family::Mpich), collectives: Coverage::Large, ipv6: false, notes: vec![] });
    play.up(1, Up::Ready { mpi: Some(Family::Intel), collectives: Coverage::Large, ipv6: false, notes: vec![] });
    let text = play.job.summary(0.0).failure.unwrap().to_string();
    assert!(text.contains("uses intel, but mpich on a/n1"), "{text}");
    assert!(!play.sent().iter().any(|(_, message)| matches!(message, Down::Go { .. })));
}

#[test]
fn a_rank_that_leaves_without_finalize_fails_the_job() {
    for state in [MpiState::Running, MpiState::Untouched] {
        let mut play = Play::running();
        play.up(0, Up::Exited { rank: 1, end: End::Code(0), state });
        play.up(1, Up::UsesMpi);
        play.later();
        let failure = play.job.summary(0.0).failure.unwrap();
        assert_eq!(failure.rank, Some(1), "{failure}");
    }
}

#[test]
fn fences_go_once_to_each_site() {
    let mut play = Play::running();
    play.sent();
    let all = Fence::plain(Group::all(4));
    let named = Fence { group: Group::of([1, 2]), name: "make x".into() };
    play.up(0, Up::FenceIn { fence: all.clone(), data: b"one ".to_vec() });
    play.up(0, Up::FenceIn { fence: named.clone(), data: b"other ".to_vec() });
    assert_eq!(play.sent(), []);
    play.up(1, Up::FenceIn { fence: all.clone(), data: b"two".to_vec() });
    let out = Down::FenceOut { fence: all, data: b"one two".to_vec(), number: u32::MAX };
    assert_eq!(play.sent(), [(agent(0), out.clone()), (agent(1), out)]);
    play.up(1, Up::FenceIn { fence: named.clone(), data: vec![] });
    let out = Down::FenceOut { fence: named, data: b"other ".to_vec(), number: u32::MAX - 1 };
    assert_eq!(play.sent(), [(agent(0), out.clone()), (agent(1), out)]);
    play.up(1, Up::FenceIn { fence: Fence::plain(Group::all(5)), data: vec![] });
    let failure = play.job.summary(0.0).failure.unwrap().to_string();
    assert_eq!(failure, "site b, node n1: the fence names ranks that are not in this job");
}

#[test]
fn requests_for_published_data_and_replies_are_routed() {
    let mut play = Play::running();
    play.sent();
    play.up(0, Up::ModexAsk { ticket: 7, rank: 3 });
    assert_eq!(play.sent(), [(agent(1), Down::ModexAsk { asker: agent(0), ticket: 7, rank: 3 })]);
    play.up(1, Up::ModexTell { asker: agent(0), ticket: 7, data: Some(vec![1]) });
    assert_eq!(play.sent(), [(agent(0), Down::ModexTell { ticket: 7, data: Some(vec![1]) })]);
    play.up(0, Up::ModexAsk { ticket: 8, rank: 9 });
    assert_eq!(play.sent(), [(agent(0), Down::ModexTell { ticket: 8, data: None })]);
    play.up(1, Up::ModexTell { asker: agent(5), ticket: 7, data: None });
    assert_eq!(play.sent(), []);
}

#[test]
fn a_second_signal_kills_at_once() {
    let mut play = Play::running();
    play.sent();
    play.job.interrupted(2, play.now);
    assert_eq!(play.sent(), [(agent(0), Down::Kill { signal: 2 }), (agent(1), Down::Kill { signal: 2 })]);
    play.job.interrupted(2, play.now);
    assert_eq!(play.sent(), [(agent(0), Down::Kill { signal: 9 }), (agent(1), Down::Kill { signal: 9 })]);
    play.later();
    assert_eq!(play.job.summary(0.0).exit_code, 130);
}

#[test]
fn a_site_is_lost_when_no_own_gateway_reaches_it() {
    let mut play = Play::running();
    play.job.incoming(Incoming::GatewayOpen(1), play.now);
    play.site_lost(0, "a");
    assert_eq!(play.job.phase, Phase::Running);
    // A restarted gateway reaches it again.
    play.job.incoming(Incoming::GatewayLost(0, "gone".into()), play.now);
    play.job.incoming(Incoming::GatewayOpen(0), play.now);
    play.site_lost(1, "a");
    assert_eq!(play.job.phase, Phase::Running);
    play.job.incoming(Incoming::GatewayLost(0, "gone again".into()), play.now);
    assert_eq!(play.job.phase, Phase::Killing);
    let summary = play.job.summary(1.0);
    assert_eq!(summary.failure.unwrap().site.as_deref(), Some("b"));
}

#[test]
fn agents_are_asked_once_when_a_failure_is_known() {
    let mut play = Play::running();
    play.job.actions();
    for rank in [0, 1] {
        play.exits(rank, End::Code(3));
    }
    assert!(play.job.is_settling());
    let asked = play.job.actions().into_iter().filter(|action| matches!(action, Action::QuestionAgents));
    assert_eq!(asked.count(), 1);
}

#[test]
fn a_job_begins_anew_if_a_leading_gateway_is_lost_before_ranks_start() {
    let opened = || {
        let mut play = Play::new();
        for site in ["a", "b"] {
            play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1000 });
        }
        assert_eq!(play.job.phase, Phase::Preparing);
        play
    };
    let mut own = opened();
    own.job.incoming(Incoming::GatewayLost(0, "gone".into()), own.now);
    assert!(own.job.unstarted().is_some());
    let mut other = opened();
    other.control(JobMessage::LeadLost { job: JOB, site: "b".into(), reason: "killed".into() });
    assert!(other.job.unstarted().is_none(), "its agents may have been started");
    other.later();
    assert!(other.job.unstarted().is_some_and(|failure| failure.site.as_deref() == Some("b")));
    let mut running = Play::running();
    running.job.incoming(Incoming::GatewayLost(0, "gone".into()), running.now);
    assert!(running.job.unstarted().is_none());
}

#[test]
fn a_site_that_an_own_gateway_reaches_again_is_not_lost() {
    let mut play = Play::running();
    play.job.incoming(Incoming::GatewayOpen(1), play.now);
    play.site_lost(0, "a");
    play.control_by(0, JobMessage::SiteFound { job: JOB, site: "b".into() });
    play.site_lost(1, "a");
    assert_eq!(play.job.phase, Phase::Running);
    play.site_lost(0, "a");
    assert_eq!(play.job.phase, Phase::Killing);
}

#[test]
fn what_follows_an_own_gateways_silence_is_its_effect() {
    let named = |alone: bool, later: u64| {
        let mut play = Play::running();
        play.job.incoming(Incoming::GatewayOpen(1), play.now);
        play.site_lost(1, "a");
        let reason = "gateway gw1: no sign of life for 7 s".into();
        play.job.incoming(Incoming::GatewayBack { reason, alone }, play.now);
        play.now += Duration::from_secs(later);
        play.site_lost(0, "a");
        let summary = play.job.summary(1.0);
        (summary.failure.unwrap().to_string(), summary.exit_code)
    };
    let (reason, code) = named(true, 1);
    assert!(reason.starts_with("site a: gateway gw1: no sign of life for 7 s; meanwhile site b: "), "{reason}");
    assert_eq!(code, 75);
    for (alone, later) in [(false, 1), (true, 31)] {
        assert!(named(alone, later).0.starts_with("site b: "), "{alone} {later}");
    }
}

#[test]
fn what_another_site_cannot_reach_is_lost() {
    let mut play = Play::running();
    play.job.incoming(Incoming::GatewayOpen(1), play.now);
    play.site_lost(0, "c");
    assert_eq!(play.job.phase, Phase::Killing);
}

#[test]
fn a_job_continues_without_the_gateways_that_led_it() {
    let mut play = Play::running();
    play.job.incoming(Incoming::GatewayOpen(1), play.now);
    play.control(JobMessage::LeadLost { job: JOB, site: "b".into(), reason: "killed".into() });
    play.job.incoming(Incoming::GatewayLost(0, "killed too".into()), play.now);
    let notes: Vec<_> = play.job.actions().into_iter().filter(|action| matches!(action, Action::Note(_))).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    (0..4).for_each(|rank| play.exits(rank, End::Code(0)));
    (0..2).for_each(|at| play.up(at, Up::Ended));
    play.job.heard(true);
    assert!(play.job.actions().iter().any(|action| matches!(action, Action::Close)), "{:?}", play.job.phase);
    play.job.closing_at(&[1]);
    let traffic = Traffic { sent: 10, received: 10, local: 0 };
    play.control_by(1, JobMessage::Closed { job: JOB, site: "b".into(), traffic, led: false });
    assert!(!play.job.is_over());
    play.job.incoming(Incoming::GatewayLost(1, "it has closed the job".into()), play.now);
    assert!(play.job.is_over());
    assert!(play.job.summary(1.0).ok);
}

#[test]
fn agents_that_a_lost_gateway_was_to_start_are_not_awaited_for_long() {
    let lost = || JobMessage::LeadLost { job: JOB, site: "b".into(), reason: "killed".into() };
    let failure = |play: &Play| play.job.summary(0.0).failure.map(|failure| failure.to_string());
    let mut play = Play::new();
    play.control(lost());
    let text = "site b: its leading gateway was lost before it had opened the job: killed";
    assert_eq!(failure(&play).unwrap(), text);
    for is_started in [false, true] {
        let mut play = Play::new();
        for site in ["a", "b"] {
            play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1 });
        }
        let begun = play.now;
        play.up(0, Up::Here);
        play.control(lost());
        assert_eq!(play.job.deadline(), Some(begun + LEADERLESS));
        if is_started {
            play.up(1, Up::Here);
            assert_eq!(play.job.deadline(), Some(begun + PREPARE));
            continue;
        }
        play.now = begun + LEADERLESS;
        play.job.deadline_over(play.now, Slowness::new(Duration::from_secs(1), Duration::from_secs(1)));
        assert_eq!((play.job.deadline(), play.job.phase), (Some(begun + LEADERLESS * 9 / 8), Phase::Preparing));
        play.later();
        let text = "site b, node n1: its agent did not connect within 5 s after the leading gateway of its site had been \
                    lost: killed";
        assert_eq!(failure(&play).unwrap(), text);
        assert!(play.job.deadline().unwrap() > play.now);
        play.later();
        play.later();
        assert!(play.job.is_over());
    }
}

#[test]
fn a_loss_while_running_has_its_own_exit_code() {
    let lost = || JobMessage::AgentLost { job: JOB, site: "b".into(), node: "n1".into(), reason: "gone".into() };
    let mut play = Play::new();
    play.control(lost());
    assert_eq!(play.job.summary(0.0).exit_code, 1, "it could not be started");
    let mut play = Play::running();
    play.exits(0, End::Code(15));
    play.control(lost());
    assert_eq!(play.job.summary(0.0).exit_code, 75);
}

#[test]
fn a_rank_in_trouble_is_reported_rather_than_its_mpis_error() {
    for (end, rank) in [(End::Code(15), 0), (End::Signal(6), 3)] {
        let mut play = Play::running();
        play.up(0, Up::Trouble { rank: 1, reason: "cannot go on: memory is full".into() });
        play.exits(rank, end);
        if play.job.phase == Phase::Settling {
            play.later();
        }
        play.up(1, Up::Trouble { rank: 3, reason: "cannot go on: rank 1 is gone".into() });
        let summary = play.close();
        assert_eq!(summary.exit_code, 75);
        assert_eq!(summary.failure.unwrap().to_string(), "site a, node n1: rank 1 cannot go on: memory is full");
    }
}

#[test]
fn a_busy_machine_gets_more_time_and_progress_restarts_the_clock() {
    let mut play = Play::new();
    let begun = play.now;
    play.control(JobMessage::Opened { job: JOB, site: "a".into(), window: 1 });
    play.control(JobMessage::Opened { job: JOB, site: "b".into(), window: 1 });
    play.now += Duration::from_secs(10);
    play.up(0, Up::Here);
    play.now = begun + PREPARE;
    assert_eq!(play.job.deadline(), Some(begun + Duration::from_secs(10) + PREPARE));
    play.now = play.job.deadline().unwrap();
    play.job.deadline_over(play.now, Slowness::new(Duration::from_secs(1), Duration::from_secs(1)));
    assert_eq!(play.job.deadline(), Some(play.now + PREPARE / 8), "it may be less busy then");
    assert_eq!(play.job.phase, Phase::Preparing);
    // Nothing would be printed until the end otherwise.
    let notes = |play: &mut Play| {
        let actions = play.job.actions().into_iter();
        let notes = actions.filter_map(|action| if let Action::Note(text) = action { Some(text) } else { None });
        notes.collect::<Vec<_>>()
    };
    let text = "site a, node n1: its agent did not answer within 25 s; this machine is busy, so it has 40 s or more";
    assert_eq!(notes(&mut play), [text]);
    play.now = begun + Duration::from_secs(40);
    play.job.deadline_over(play.now, Slowness::new(Duration::from_secs(1), Duration::from_secs(2)));
    assert_eq!(notes(&mut play), [""; 0], "once");
    play.later();
    let failure = play.job.summary(0.0).failure.unwrap().to_string();
    assert_eq!(failure, "site a, node n1: its agent did not answer within 41 s");
}

#[test]
fn collectives_are_ours_as_far_as_every_node_allows() {
    for (of_b, all) in
        [(Coverage::Large, Coverage::Large), (Coverage::Plain, Coverage::Plain), (Coverage::Native, Coverage::Native)]
    {
        let mut play = Play::new();
        for (at, site) in ["a", "b"].into_iter().enumerate() {
            play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1000 });
            play.up(at as u16, Up::Here);
        }
        for (at, collectives) in [(0, Coverage::Large), (1, of_b)] {
            play.up(at, Up::Ready { mpi: Some(Family::Mpich), collectives, ipv6: false, notes: vec![] });
        }
        let go = play.sent().into_iter().filter_map(|(_, message)| match message {
            Down::Go { collectives, .. } => Some(collectives),
            _ => None,
        });
        assert_eq!(go.collect::<Vec<_>>(), [all, all]);
    }
}

#[test]
fn all_nodes_make_room_for_ipv6_if_one_of_them_needs_it() {
    for (of_b, all) in [(false, false), (true, true)] {
        let mut play = Play::new();
        for (at, site) in ["a", "b"].into_iter().enumerate() {
            play.control(JobMessage::Opened { job: JOB, site: site.into(), window: 1000 });
            play.up(at as u16, Up::Here);
        }
        for (at, ipv6) in [(0, false), (1, of_b)] {
            play.up(at, Up::Ready { mpi: None, collectives: Coverage::Large, ipv6, notes: vec![] });
        }
        let go = play.sent().into_iter().filter_map(|(_, message)| match message {
            Down::Go { ipv6, .. } => Some(ipv6),
            _ => None,
        });
        assert_eq!(go.collect::<Vec<_>>(), [all, all]);
    }
}
