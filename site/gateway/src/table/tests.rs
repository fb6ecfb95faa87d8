//! The table alone: members are numbers, effects are inspected.

mod several;

use gateway_tasks::StartError;
use member::last_route::RETURN;

use super::*;
use crate::table::error::{JobError, Violation};
use types::Identity;
use types::{Instance, Rank, Roster};
use wire::control::{AllocationMessage, JobMessage, Part, Traffic};

const JOB: JobId = JobId(7);
const A: TrunkId = TrunkId(0);
const C: TrunkId = TrunkId(1);
const LAUNCHER: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(7);

/// The gateway of site b; sites a and c are at the ends of its trunks.
fn table() -> Table<u32> {
    let trunk = |site: &str| TrunkInfo { up: true, problem: "not yet".into(), ..TrunkInfo::new(site.into()) };
    Table::new(("b".into(), 0), vec!["n1".into(), "n2".into()], vec![trunk("a"), trunk("c")], 64 << 20, PATIENCE)
}

fn roster() -> Roster {
    "a:n1*2;b:n1*2,n2*1;c:n1*1".parse().unwrap()
}

fn secret() -> Secret {
    Secret::new([1; 32])
}

fn rank(site: u16, rank: u32) -> Identity {
    Identity { site: SiteId(site), slot: Slot::rank(Rank(rank), Instance(0)).unwrap() }
}

/// Delivers a message over a trunk.
pub(crate) fn from_trunk(table: &mut Table<u32>, trunk: TrunkId, message: impl Into<Control>) -> Result<(), Violation> {
    match message.into() {
        Control::Job(message) => table.job_from_trunk(trunk, message),
        Control::Allocation(message) => table.allocation_from_trunk(trunk, message),
        other => panic!("not for the table: {other:?}"),
    }
}

fn open_from_a() -> JobMessage {
    JobMessage::Open { job: JOB, secret: secret(), roster: roster(), home: "a".into(), part: Part::Lead }
}

/// A job that started at a and is open here.
fn open_remote(table: &mut Table<u32>) {
    from_trunk(table, A, open_from_a()).unwrap();
    table.agents_started(JOB, Ok(()));
    assert!(
        table.take_effects().iter().any(|e| matches!(e, Effect::ToTrunk(A, Control::Job(JobMessage::Opened { .. }))))
    );
    from_trunk(table, C, JobMessage::Here { job: JOB, whole: false }).unwrap();
    assert_eq!(table.take_effects(), [Effect::ToTrunk(C, Control::Job(JobMessage::Here { job: JOB, whole: false }))]);
}

/// A job that started here and is open here.
fn open_home(table: &mut Table<u32>) {
    let identity = table.open(JOB, secret(), roster(), "b", Part::Lead, LAUNCHER).unwrap();
    assert_eq!(identity, Identity { site: SiteId(1), slot: Slot::LAUNCHER });
    table.agents_started(JOB, Ok(()));
    table.take_effects();
}

fn frame(from: Identity, to: Identity) -> FrameHeader {
    FrameHeader { length: 68, ..FrameHeader::plain(wire::FrameKind::Data, JOB, from, to) }
}

#[test]
fn a_job_is_asked_of_all_sites_and_agents_start_when_trunks_are_up() {
    let mut table = table();
    table.trunks[C.0].up = false;
    table.open(JOB, secret(), roster(), "b", Part::Lead, LAUNCHER).unwrap();
    let effects = table.take_effects();
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::ToTrunk(A, Control::Job(JobMessage::Open { home, .. })) if home == "b"))
    );
    assert!(!effects.iter().any(|e| matches!(e, Effect::ToTrunk(C, _) | Effect::StartAgents(..))));
    table.trunk_up(C);
    let effects = table.take_effects();
    assert!(effects.iter().any(|e| matches!(e, Effect::ToTrunk(C, Control::Job(JobMessage::Open { .. })))));
    let nodes = vec![(NodeId(0), "n1".to_owned()), (NodeId(1), "n2".to_owned())];
    assert!(effects.contains(&Effect::StartAgents(JOB, nodes)));
}

#[test]
fn a_coupling_has_no_agents_and_may_name_any_node() {
    let mut table = table();
    let roster = || "b:elsewhere*3;a:n1*2".parse().unwrap();
    table.open(JOB, secret(), roster(), "b", Part::LeadWithoutAgents, LAUNCHER).unwrap();
    let effects = table.take_effects();
    let asked = |part: &Part| *part == Part::LeadWithoutAgents;
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::ToTrunk(A, Control::Job(JobMessage::Open { part, .. })) if asked(part)))
    );
    assert!(effects.contains(&Effect::StartAgents(JOB, Vec::new())));
    table.agents_started(JOB, Ok(()));
    assert!(table.may_join(JOB, rank(0, 2)).is_ok());
    assert_eq!(
        table.open(JobId(8), secret(), roster(), "b", Part::Lead, 1).unwrap_err().why.to_string(),
        "site b has no node elsewhere; it has: n1, n2"
    );
    // The job ends without waiting for agents.
    table.job_from_launcher(JOB, &JobMessage::close(JOB)).unwrap();
    let closed = |e: &Effect<u32>| matches!(e, Effect::ToMember(LAUNCHER, Control::Job(JobMessage::Closed { .. })));
    assert!(table.take_effects().iter().any(closed));
}

#[test]
fn a_trunk_that_stays_down_refuses_its_site() {
    let mut table = table();
    table.trunks[C.0].up = false;
    table.open(JOB, secret(), roster(), "b", Part::Lead, LAUNCHER).unwrap();
    let timer = table.take_effects().into_iter().find_map(|e| match e {
        Effect::Timer(JOB, epoch, Timer::Opening, _) => Some(epoch),
        _ => None,
    });
    table.timer(JOB, timer.unwrap(), Timer::Opening);
    let refused = Control::Job(JobMessage::Refused { job: JOB, site: "c".into(), reason: "not yet".into() });
    assert_eq!(table.take_effects(), [Effect::ToMember(LAUNCHER, refused)]);
    // A timer of an earlier job with that number has no effect.
    table.timer(JOB, timer.unwrap() + 1, Timer::Farewell);
    assert!(table.jobs.contains_key(&JOB));
}

#[test]
fn frames_go_where_their_job_says() {
    let mut table = table();
    open_remote(&mut table);
    table.join(JOB, rank(1, 2), 2).unwrap();
    assert!(matches!(table.route(Origin::Trunk(A), &frame(rank(0, 0), rank(1, 2))), Route::Member(2)));
    assert!(matches!(table.route(Origin::Member, &frame(rank(1, 2), rank(0, 0))), Route::Trunk(A)));
    assert!(matches!(table.route(Origin::Member, &frame(rank(1, 2), rank(2, 5))), Route::Trunk(C)));
    let traffic = table.jobs[&JOB].traffic;
    assert_eq!((traffic.received, traffic.sent, traffic.local), (100, 200, 0));
    let absent = frame(rank(0, 0), rank(1, 3));
    assert!(matches!(table.route(Origin::Trunk(A), &absent), Route::Nowhere { notice: Some(_) }));
    table.join(JOB, rank(1, 3), 3).unwrap();
    table.leave(JOB, rank(1, 3).slot, &3, Leave::Goodbye);
    assert!(matches!(table.route(Origin::Trunk(A), &absent), Route::Nowhere { notice: Some(_) }));
}

#[test]
fn a_trunk_speaks_only_for_its_site_and_to_ours() {
    let mut table = table();
    open_remote(&mut table);
    table.join(JOB, rank(1, 2), 2).unwrap();
    for (trunk, header) in [
        (C, frame(rank(0, 0), rank(1, 2))),
        (A, frame(rank(1, 3), rank(1, 2))),
        (A, frame(rank(9, 3), rank(1, 2))),
        (A, frame(rank(0, 0), rank(2, 5))),
    ] {
        assert!(matches!(table.route(Origin::Trunk(trunk), &header), Route::Violation(_)), "{header:?}");
    }
    assert!(matches!(table.route(Origin::Member, &frame(rank(1, 2), rank(9, 0))), Route::Violation(_)));
    let other = FrameHeader { job: JobId(8), ..frame(rank(0, 0), rank(1, 2)) };
    assert!(matches!(table.route(Origin::Trunk(A), &other), Route::Nowhere { notice: None }));
    // Nor may a site close jobs that are not its own.
    table.take_effects();
    assert!(from_trunk(&mut table, C, JobMessage::close(JOB)).is_ok());
    assert!(!table.jobs[&JOB].closing && table.take_effects().is_empty());
    assert!(from_trunk(&mut table, C, open_from_a()).is_err());
    let lost = JobMessage::MemberLost { job: JOB, member: rank(0, 0), reason: String::new() };
    assert!(from_trunk(&mut table, C, lost).is_err());
    let lost = JobMessage::AgentLost { job: JOB, site: "a".into(), node: "n1".into(), reason: String::new() };
    assert!(from_trunk(&mut table, C, lost).is_err());
    let lost = JobMessage::LeadLost { job: JOB, site: "a".into(), reason: String::new() };
    assert!(from_trunk(&mut table, A, lost).is_err());
}

#[test]
fn what_is_late_is_no_violation() {
    let mut table = table();
    open_remote(&mut table);
    // The home site was suspended, was given up here, and ends its job afterwards.
    table.trunk_lost(A, "no sign of life");
    table.take_effects();
    assert!(table.jobs[&JOB].closing);
    let nothing_left =
        Control::Job(JobMessage::Closed { job: JOB, site: "b".into(), traffic: Traffic::default(), led: false });
    from_trunk(&mut table, A, JobMessage::close(JOB)).unwrap();
    assert_eq!(table.take_effects(), [Effect::ToTrunk(A, nothing_left.clone())]);
    for node in [NodeId(0), NodeId(1)] {
        table.agent_exited(JOB, node, "killed".into());
    }
    assert!(table.jobs.is_empty());
    table.take_effects();
    from_trunk(&mut table, A, JobMessage::close(JOB)).unwrap();
    assert_eq!(table.take_effects(), [Effect::ToTrunk(A, nothing_left)]);
    // News of a job that has ended.
    let (reason, site) = (String::new, || "a".to_owned());
    for message in [
        Control::Job(JobMessage::Opened { job: JOB, site: site(), window: 1 }),
        Control::Job(JobMessage::Refused { job: JOB, site: site(), reason: reason() }),
        Control::Job(JobMessage::AgentLost { job: JOB, site: site(), node: "n1".into(), reason: reason() }),
        Control::Job(JobMessage::MemberLost { job: JOB, member: rank(0, 0), reason: reason() }),
        Control::Job(JobMessage::SiteLost { job: JOB, site: "c".into(), seen_from: site(), reason: reason() }),
        Control::Job(JobMessage::Closed { job: JOB, site: site(), traffic: Traffic::default(), led: true }),
        Control::Allocation(AllocationMessage::Waiting { job: JOB, site: site(), state: reason() }),
        Control::Allocation(AllocationMessage::Granted { job: JOB, site: site(), nodes: Vec::new() }),
    ] {
        from_trunk(&mut table, A, message).unwrap();
        assert_eq!(table.take_effects(), []);
    }
    // A gateway that did not hear of the end still has the job, and hears of the end now.
    from_trunk(&mut table, A, JobMessage::Here { job: JOB, whole: true }).unwrap();
    assert_eq!(table.take_effects(), [Effect::ToTrunk(A, Control::Job(JobMessage::left(JOB)))]);
    // A frame of that job.
    assert!(matches!(table.route(Origin::Trunk(A), &frame(rank(0, 0), rank(1, 2))), Route::Nowhere { .. }));
}

#[test]
fn admission_needs_a_place_in_the_roster() {
    let mut table = table();
    open_remote(&mut table);
    assert!(table.join(JOB, rank(1, 4), 4).is_ok());
    assert!(table.join(JOB, rank(1, 4), 5).unwrap_err().to_string().contains("already connected"));
    assert!(table.join(JOB, rank(1, 5), 5).unwrap_err().to_string().contains("ranks 2..5"));
    assert!(table.join(JOB, rank(0, 0), 5).unwrap_err().to_string().contains("does not belong to site b"));
    let slot = |slot| Identity { site: SiteId(1), slot };
    assert!(table.join(JOB, slot(Slot::agent(NodeId(1)).unwrap()), 6).is_ok());
    assert!(table.join(JOB, slot(Slot::agent(NodeId(2)).unwrap()), 7).is_err());
    assert!(table.join(JOB, slot(Slot::LAUNCHER), 7).is_err());
    assert!(table.join(JOB, slot(Slot::GATEWAY), 7).is_err());
    assert!(table.join(JobId(8), rank(1, 4), 7).unwrap_err().to_string().contains("not open"));
}

#[test]
fn losses_are_told_to_the_launcher_wherever_it_is() {
    let mut table = table();
    open_remote(&mut table);
    table.join(JOB, rank(1, 2), 2).unwrap();
    table.leave(JOB, rank(1, 2).slot, &99, Leave::Lost("another connection".into()));
    table.leave(JOB, rank(1, 2).slot, &2, Leave::Lost("broken".into()));
    table.agent_exited(JOB, NodeId(1), "exit status 1".into());
    table.trunk_lost(C, "cut");
    let member = Control::Job(JobMessage::MemberLost { job: JOB, member: rank(1, 2), reason: "broken".into() });
    let agent = Control::Job(JobMessage::AgentLost {
        job: JOB,
        site: "b".into(),
        node: "n2".into(),
        reason: "exit status 1".into(),
    });
    let site =
        Control::Job(JobMessage::SiteLost { job: JOB, site: "c".into(), seen_from: "b".into(), reason: "cut".into() });
    let expected = [member, agent, site].map(|message| Effect::ToTrunk(A, message));
    assert_eq!(table.take_effects(), expected);
    assert!(matches!(table.route(Origin::Member, &frame(rank(1, 2), rank(2, 5))), Route::Nowhere { notice: None }));
}

#[test]
fn a_trunk_that_goes_is_waited_for() {
    let mut table = table();
    open_remote(&mut table);
    table.join(JOB, rank(1, 2), 2).unwrap();
    table.trunk_away(C, "a blackout");
    let away = Effect::Passage(2, SiteId(2), Passage::Away("a blackout".into()));
    let effects = table.take_effects();
    assert_eq!(effects, [away, Effect::Patience(C, 1, PATIENCE)]);
    // Frames go nowhere, and no member is reported as lost.
    let frame = frame(rank(1, 2), rank(2, 5));
    assert!(matches!(table.route(Origin::Member, &frame), Route::Nowhere { notice: None }));
    // A member that joins meanwhile is notified.
    table.join(JOB, rank(1, 3), 3).unwrap();
    assert_eq!(table.take_effects(), [Effect::Passage(3, SiteId(2), Passage::Away("a blackout".into()))]);
    table.trunk_up(C);
    let open = |member| Effect::Passage(member, SiteId(2), Passage::Open);
    let effects = table.take_effects();
    assert!(effects.contains(&open(2)) && effects.contains(&open(3)), "{effects:?}");
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(C)));
    // A timer of an earlier break has no effect.
    table.trunk_away(C, "another");
    table.take_effects();
    table.patience_over(C, 1);
    assert!(table.take_effects().is_empty());
    table.patience_over(C, 3);
    let effects = table.take_effects();
    let reason = "another (and it did not come back within 7 s)".to_owned();
    assert_eq!(
        effects,
        [Effect::ToTrunk(
            A,
            Control::Job(JobMessage::SiteLost { job: JOB, site: "c".into(), seen_from: "b".into(), reason })
        )]
    );
}

#[test]
fn a_lost_home_ends_the_job_here() {
    let mut table = table();
    open_remote(&mut table);
    table.join(JOB, rank(1, 2), 2).unwrap();
    table.trunk_lost(A, "cut");
    let effects = table.take_effects();
    assert!(effects.iter().any(|e| matches!(e, Effect::Dismiss(2, reason) if reason.contains("site a"))));
    let epoch = effects.iter().find_map(|e| match e {
        Effect::Timer(_, epoch, Timer::Grace, _) => Some(*epoch),
        _ => None,
    });
    table.agent_exited(JOB, NodeId(0), "0".into());
    table.timer(JOB, epoch.unwrap(), Timer::Grace);
    assert!(table.take_effects().contains(&Effect::KillAgents(JOB)));
    table.agent_exited(JOB, NodeId(1), "killed".into());
    assert!(table.jobs.is_empty());
}

#[test]
fn closing_waits_for_agents_and_sites_and_gives_memory_back() {
    let mut table = table();
    let fresh = table.grants.grant(4, 0).unwrap();
    table.grants.release(fresh);
    open_home(&mut table);
    table.job_from_launcher(JOB, &JobMessage::close(JOB)).unwrap();
    let effects = table.take_effects();
    for trunk in [A, C] {
        assert!(effects.contains(&Effect::ToTrunk(trunk, Control::Job(JobMessage::close(JOB)))));
    }
    assert!(table.join(JOB, rank(1, 2), 2).unwrap_err().to_string().contains("being closed"));
    table.agent_exited(JOB, NodeId(0), "0".into());
    table.agent_exited(JOB, NodeId(1), "0".into());
    assert!(matches!(
        &table.take_effects()[..],
        [Effect::ToMember(LAUNCHER, Control::Job(JobMessage::Closed { site, .. }))] if site == "b"
    ));
    for (trunk, site) in [(A, "a"), (C, "c")] {
        let closed = JobMessage::Closed { job: JOB, site: site.into(), traffic: Default::default(), led: true };
        from_trunk(&mut table, trunk, closed).unwrap();
    }
    let effects = table.take_effects();
    assert_eq!(effects.last(), Some(&Effect::Dismiss(LAUNCHER, String::new())));
    assert!(table.jobs.is_empty());
    assert_eq!(table.grants.grant(4, 0).unwrap(), fresh);
}

#[test]
fn an_agent_that_cannot_start_refuses_the_site_and_ends_the_others() {
    let mut table = table();
    from_trunk(&mut table, A, open_from_a()).unwrap();
    table.take_effects();
    table.agents_started(JOB, Err((NodeId(1), StartError("no shell".into()))));
    let effects = table.take_effects();
    let reason = "cannot start the agent of node n2: no shell".to_owned();
    assert_eq!(
        effects[0],
        Effect::ToTrunk(A, Control::Job(JobMessage::Refused { job: JOB, site: "b".into(), reason }))
    );
    table.agent_exited(JOB, NodeId(0), "killed".into());
    assert!(table.jobs.is_empty());
    assert!(table.take_effects().is_empty());
}

#[test]
fn impossible_jobs_are_refused_by_name() {
    let mut table = table();
    let mut refuse = |roster: &str, home: &str| {
        table.open(JOB, secret(), roster.parse().unwrap(), home, Part::Lead, LAUNCHER).unwrap_err()
    };
    assert_eq!(refuse("b:n1*1;x:n1*1", "b").site, "x");
    assert!(refuse("b:n3*1", "b").why.to_string().contains("no node n3"));
    assert!(refuse("b:n1*1;b:n1*1", "b").why.to_string().contains("twice"));
    assert!(refuse("a:n1*1", "b").why.to_string().contains("not in the roster"));
    assert!(refuse("b:n1*1", "a").why.to_string().contains("a gateway of site b"));
    open_home(&mut table);
    assert!(
        table.open(JOB, secret(), roster(), "b", Part::Lead, 1).unwrap_err().why.to_string().contains("already open")
    );
    assert!(
        table
            .open(JobId(0), secret(), roster(), "b", Part::Lead, 1)
            .unwrap_err()
            .why
            .to_string()
            .contains("must not be zero")
    );
}

/// The timer that waits for a member to come back.
fn returning(table: &mut Table<u32>, slot: Slot, waits: Duration) -> u64 {
    let timer = table.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Timer(JOB, epoch, Timer::Return(of), after) if (of, after) == (slot, waits) => Some(epoch),
        _ => None,
    });
    timer.expect("it is waited for")
}

#[test]
fn a_launcher_whose_connection_broke_may_dial_again() {
    let mut table = table();
    open_home(&mut table);
    let again = |table: &mut Table<u32>, secret, launcher| {
        table.open(JOB, secret, roster(), "b", Part::Lead.relay(1 << 20), launcher)
    };
    table.leave(JOB, Slot::LAUNCHER, &LAUNCHER, Leave::Lost("reset".into()));
    let epoch = returning(&mut table, Slot::LAUNCHER, RETURN);
    assert!(again(&mut table, Secret::new([2; 32]), 1001).unwrap_err().why.to_string().contains("already open"));
    assert_eq!(again(&mut table, secret(), 1001).unwrap().slot, Slot::LAUNCHER);
    table.timer(JOB, epoch, Timer::Return(Slot::LAUNCHER));
    assert!(!table.jobs[&JOB].closing, "it has reconnected");
    // Its machine was suspended: the break of the old connection was not noticed.
    again(&mut table, secret(), 1002).unwrap();
    assert!(table.take_effects().iter().any(|effect| matches!(effect, Effect::Dismiss(1001, _))));
    table.leave(JOB, Slot::LAUNCHER, &1001, Leave::Lost("old".into()));
    table.leave(JOB, Slot::LAUNCHER, &1002, Leave::Lost("reset".into()));
    let epoch = returning(&mut table, Slot::LAUNCHER, RETURN);
    table.timer(JOB, epoch, Timer::Return(Slot::LAUNCHER));
    assert!(table.jobs[&JOB].closing, "it did not reconnect");
    // A gateway that was restarted meanwhile knows nothing of the job; other gateways could still carry it.
    let mut restarted = self::table();
    assert_eq!(again(&mut restarted, secret(), 1003).unwrap_err().why, JobError::Forgotten);
    restarted.siblings = true;
    again(&mut restarted, secret(), 1003).unwrap();
}

#[test]
fn an_agent_whose_connection_broke_is_reported_when_it_does_not_come_back() {
    let lost = |effects: &[Effect<u32>]| {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::ToMember(LAUNCHER, Control::Job(JobMessage::MemberLost { .. }))))
    };
    let agent = Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
    for back in [false, true] {
        let mut table = table();
        open_home(&mut table);
        table.join(JOB, agent, 5).unwrap();
        table.take_effects();
        table.leave(JOB, agent.slot, &5, Leave::Lost("reset".into()));
        let epoch = returning(&mut table, agent.slot, RETURN);
        if back {
            table.join(JOB, agent, 6).unwrap();
        }
        table.take_effects();
        table.timer(JOB, epoch, Timer::Return(agent.slot));
        assert_eq!(lost(&table.take_effects()), !back);
        table.join(JOB, Identity { slot: Slot::agent(NodeId(1)).unwrap(), ..agent }, 7).unwrap();
        table.leave(JOB, Slot::agent(NodeId(1)).unwrap(), &7, Leave::Silent("no sign of life".into()));
        assert!(lost(&table.take_effects()), "a silent member is not waited for");
    }
}

#[test]
fn the_end_of_an_agents_process_is_reported_rather_than_that_of_its_connection() {
    let mut table = table();
    open_home(&mut table);
    let agent = Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
    table.join(JOB, agent, 5).unwrap();
    table.take_effects();
    table.leave(JOB, agent.slot, &5, Leave::Lost("connection closed without goodbye".into()));
    let epoch = returning(&mut table, agent.slot, RETURN);
    table.agent_exited(JOB, NodeId(0), "exit status 1: memory full".into());
    let told = table.take_effects();
    let lost = |effect: &Effect<u32>| match effect {
        Effect::ToMember(LAUNCHER, Control::Job(JobMessage::AgentLost { reason, .. })) => Some(reason.clone()),
        _ => None,
    };
    assert_eq!(told.iter().map(lost).collect::<Vec<_>>(), [Some("exit status 1: memory full".to_owned())]);
    table.timer(JOB, epoch, Timer::Return(agent.slot));
    assert_eq!(table.take_effects(), []);
}

#[test]
fn a_job_that_is_heard_of_before_the_launcher_opens_it_here_is_left_alone() {
    let mut table = table();
    from_trunk(&mut table, A, JobMessage::Here { job: JOB, whole: false }).unwrap();
    assert_eq!(table.take_effects(), [], "it may still arrive");
    open_remote(&mut table);
    from_trunk(&mut table, A, JobMessage::close(JOB)).unwrap();
    table.agent_exited(JOB, NodeId(0), "0".into());
    table.agent_exited(JOB, NodeId(1), "0".into());
    table.take_effects();
    assert!(table.jobs.is_empty());
    from_trunk(&mut table, C, JobMessage::Here { job: JOB, whole: false }).unwrap();
    assert_eq!(
        table.take_effects(),
        [Effect::ToTrunk(C, Control::Job(JobMessage::left(JOB)))],
        "its end was not heard"
    );
}

#[test]
fn a_site_is_whole_with_all_its_ranks_however_many_endpoints_they_have() {
    let mut table = table();
    open_remote(&mut table);
    let second = Identity { site: SiteId(1), slot: Slot::rank(Rank(2), Instance(1)).unwrap() };
    for (member, identity) in [rank(1, 2), second, rank(1, 3)].into_iter().enumerate() {
        table.join(JOB, identity, member as u32).unwrap();
    }
    assert!(!table.jobs[&JOB].is_whole(), "rank 4 is missing");
    table.join(JOB, rank(1, 4), 9).unwrap();
    assert!(table.jobs[&JOB].is_whole());
}
