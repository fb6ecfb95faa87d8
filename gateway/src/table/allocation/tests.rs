use std::time::Duration;

use super::*;
use crate::table::TrunkInfo;
use crate::table::tests::from_trunk;
use types::Roster;
use wire::Secret;
use wire::control::{AllocatedNode, AllocationMessage, JobMessage};

const JOB: JobId = JobId(7);
const A: TrunkId = TrunkId(0);
const LAUNCHER: u32 = 1000;

/// The gateway of site b, whose nodes are those of batch jobs; site a is at the end of its trunk.
fn relay() -> Relay<u32> {
    let trunk = TrunkInfo { up: true, ..TrunkInfo::new("a".into()) };
    Relay::new(("b".into(), 0), vec![], vec![trunk], 64 << 20, Duration::from_secs(1))
}

fn ask() -> NodeAsk {
    NodeAsk { ranks: 2, per_node: None, wait_s: 60, held: None }
}

fn asked_by_a(relay: &mut Relay<u32>) {
    let message = AllocationMessage::Ask { job: JOB, site: "b".into(), home: "a".into(), ask: ask() };
    from_trunk(relay, A, message).unwrap();
    assert_eq!(relay.take_effects(), [Effect::Allocate(AllocationOrder { job: JOB, ask: ask() })]);
}

fn granted() -> AllocationNews {
    AllocationNews::Granted { id: "12".into(), nodes: vec![AllocatedNode { name: "n7".into(), slots: 2 }] }
}

fn open(relay: &mut Relay<u32>) -> Vec<Effect<u32>> {
    let roster: Roster = "a:n1*1;b:n7*2".parse().unwrap();
    let open = JobMessage::Open {
        job: JOB,
        secret: Secret::new([1; 32]),
        roster,
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    from_trunk(relay, A, open).unwrap();
    relay.take_effects()
}

fn refused(effects: &[Effect<u32>], words: &str) -> bool {
    let says = |message: &Control| matches!(message, Control::Job(JobMessage::Refused { reason, .. }) if reason.contains(words));
    effects.iter().any(|effect| matches!(effect, Effect::ToTrunk(_, m) | Effect::ToMember(_, m) if says(m)))
}

#[test]
fn a_job_runs_on_the_nodes_it_was_given_and_gives_them_back_before_it_is_closed() {
    let mut relay = relay();
    asked_by_a(&mut relay);
    relay.allocation_news(JOB, granted());
    assert!(
        matches!(&relay.take_effects()[..], [Effect::ToTrunk(A, Control::Allocation(AllocationMessage::Granted { nodes, .. }))] if nodes.len() == 1)
    );
    assert!(open(&mut relay).iter().any(|e| matches!(e, Effect::StartAgents(JOB, nodes) if nodes[0].1 == "n7")));
    assert_eq!(relay.allocation_id(JOB).as_deref(), Some("12"));
    relay.agents_started(JOB, Ok(()));
    from_trunk(&mut relay, A, JobMessage::Close { job: JOB }).unwrap();
    relay.take_effects();
    relay.agent_exited(JOB, types::NodeId(0), "exit status 0".into());
    assert_eq!(relay.take_effects(), [Effect::Release(JOB)]);
    relay.allocation_news(JOB, AllocationNews::Ended("given back".into()));
    assert!(matches!(relay.take_effects()[..], [Effect::ToTrunk(A, Control::Job(JobMessage::Closed { .. }))]));
    assert!(relay.jobs.is_empty() && relay.allocations.is_empty());
}

#[test]
fn nodes_that_were_not_given_are_refused() {
    let mut relay = relay();
    assert!(refused(&open(&mut relay), "has no node n7; it has: those of a job's allocation"));
    asked_by_a(&mut relay);
    assert!(refused(&open(&mut relay), "has no node n7"));
    // And what was asked for is let go of.
    relay.allocation_news(JOB, granted());
    assert!(relay.allocations.get(&JOB).unwrap().own.as_ref().unwrap().released);
}

#[test]
fn an_allocation_that_ends_by_itself_ends_its_job() {
    let mut relay = relay();
    asked_by_a(&mut relay);
    relay.allocation_news(JOB, AllocationNews::Waiting("in the queue".into()));
    assert!(
        matches!(&relay.take_effects()[..], [Effect::ToTrunk(A, Control::Allocation(AllocationMessage::Waiting { state, .. }))] if state == "in the queue")
    );
    relay.allocation_news(JOB, AllocationNews::Ended("no such partition".into()));
    assert!(refused(&relay.take_effects(), "no such partition"));
    assert!(relay.allocations.is_empty());

    asked_by_a(&mut relay);
    relay.allocation_news(JOB, granted());
    open(&mut relay);
    relay.agents_started(JOB, Ok(()));
    relay.take_effects();
    assert!(relay.perhaps_cancelled(JOB).contains("batch job 12"));
    relay.allocation_news(JOB, AllocationNews::Ended("cancelled".into()));
    assert!(refused(&relay.take_effects(), "cancelled"));
    relay.agent_exited(JOB, types::NodeId(0), "killed".into());
    assert!(relay.jobs.is_empty() && relay.allocations.is_empty());
}

#[test]
fn whoever_loses_its_asker_gives_back() {
    for lost in [true, false] {
        let mut relay = relay();
        asked_by_a(&mut relay);
        match lost {
            true => relay.trunk_lost(A, "cable"),
            false => from_trunk(&mut relay, A, JobMessage::Close { job: JOB }).unwrap(),
        }
        assert_eq!(relay.take_effects(), [Effect::Release(JOB)]);
        relay.allocation_news(JOB, AllocationNews::Ended("given back".into()));
        assert_eq!(relay.take_effects().len(), usize::from(!lost));
        assert!(relay.allocations.is_empty());
    }
    // At the launcher's own site.
    let mut relay = relay();
    relay.allocate(LAUNCHER, JOB, "b".into(), "b".into(), ask()).unwrap();
    relay.allocate(LAUNCHER, JOB, "a".into(), "b".into(), ask()).unwrap();
    relay.take_effects();
    relay.launcher_gone(&LAUNCHER);
    assert_eq!(
        relay.take_effects(),
        [Effect::ToTrunk(A, Control::Job(JobMessage::Close { job: JOB })), Effect::Release(JOB)]
    );
    relay.allocation_news(JOB, AllocationNews::Ended("given back".into()));
    assert!(relay.take_effects().is_empty() && relay.allocations.is_empty());
}

#[test]
fn strangers_get_nothing() {
    let mut relay = relay();
    let order = |job, site: &str, home: &str| {
        Control::Allocation(AllocationMessage::Ask { job, site: site.into(), home: home.into(), ask: ask() })
    };
    assert!(from_trunk(&mut relay, A, order(JOB, "c", "a")).is_err());
    assert!(from_trunk(&mut relay, A, order(JOB, "b", "c")).is_err());
    from_trunk(&mut relay, A, order(JobId(0), "b", "a")).unwrap();
    assert!(refused(&relay.take_effects(), "cannot ask"));
    asked_by_a(&mut relay);
    from_trunk(&mut relay, A, order(JOB, "b", "a")).unwrap();
    assert!(refused(&relay.take_effects(), "already"));
    assert_eq!(relay.allocate(LAUNCHER, JOB, "b".into(), "b".into(), ask()).unwrap_err().0, "b");
    assert!(!relay.abandoned_by(JOB, &LAUNCHER));
    for number in 0..MOST {
        from_trunk(&mut relay, A, order(JobId(100 + number as u32), "b", "a")).unwrap();
    }
    assert!(refused(&relay.take_effects(), "64 jobs of site a"));
    assert_eq!(relay.allocations.len(), MOST_OF_SITE);
    for number in 0..MOST {
        let _ = relay.allocate(LAUNCHER, JobId(1000 + number as u32), "b".into(), "b".into(), ask());
    }
    let refused = relay.allocate(LAUNCHER, JobId(2000), "b".into(), "b".into(), ask()).unwrap_err();
    assert!(refused.1.contains("try again"), "{}", refused.1);
    assert_eq!(relay.allocations.len(), MOST);
}

#[test]
fn a_gateway_that_stops_leaves_its_nodes_to_the_job_if_others_carry_it_on() {
    for (siblings, left) in [(true, true), (false, false)] {
        let mut relay = relay();
        asked_by_a(&mut relay);
        relay.allocation_news(JOB, granted());
        open(&mut relay);
        relay.agents_started(JOB, Ok(()));
        relay.take_effects();
        assert_eq!(relay.close_all("stopping", siblings).contains(&JOB), left);
        relay.agent_exited(JOB, types::NodeId(0), String::new());
        assert_eq!(relay.take_effects().contains(&Effect::Release(JOB)), !left, "{siblings}");
    }
}
