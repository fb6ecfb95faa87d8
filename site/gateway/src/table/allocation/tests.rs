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

/// The gateway of site b, whose nodes come from a batch system; site a is at the end of its trunk.
fn table() -> Table<u32> {
    let trunk = TrunkInfo { up: true, ..TrunkInfo::new("a".into()) };
    Table::new(("b".into(), 0), vec![], vec![trunk], 64 << 20, Duration::from_secs(1))
}

fn ask() -> NodeAsk {
    NodeAsk { ranks: 2, per_node: None, wait_s: 60, held: None, elsewhere: 0, beyond_home: 0 }
}

fn asked_by_a(table: &mut Table<u32>) {
    let message = AllocationMessage::Ask { job: JOB, site: "b".into(), home: "a".into(), ask: ask() };
    from_trunk(table, A, message).unwrap();
    assert_eq!(table.take_effects(), [Effect::Allocate(AllocationOrder { job: JOB, ask: ask() })]);
}

fn granted() -> AllocationNews {
    AllocationNews::Granted { id: "12".into(), nodes: vec![AllocatedNode::new("n7", 2)] }
}

fn open(table: &mut Table<u32>) -> Vec<Effect<u32>> {
    let roster: Roster = "a:n1*1;b:n7*2".parse().unwrap();
    let open = JobMessage::Open {
        job: JOB,
        secret: Secret::new([1; 32]),
        roster,
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    from_trunk(table, A, open).unwrap();
    table.take_effects()
}

fn refused(effects: &[Effect<u32>], words: &str) -> bool {
    let says = |message: &Control| match message {
        Control::Job(JobMessage::Refused { reason, .. }) => reason.contains(words),
        _ => false,
    };
    effects.iter().any(|effect| matches!(effect, Effect::ToTrunk(_, m) | Effect::ToMember(_, m) if says(m)))
}

#[test]
fn a_job_runs_on_the_nodes_it_was_given_and_gives_them_back_before_it_is_closed() {
    let mut table = table();
    asked_by_a(&mut table);
    table.allocation_news(JOB, granted());
    assert!(matches!(
        &table.take_effects()[..],
        [Effect::ToTrunk(A, Control::Allocation(AllocationMessage::Granted { nodes, .. }))] if nodes.len() == 1
    ));
    assert!(open(&mut table).iter().any(|e| matches!(e, Effect::StartAgents(JOB, nodes) if nodes[0].1 == "n7")));
    assert_eq!(table.allocation_id(JOB).as_deref(), Some("12"));
    table.agents_started(JOB, Ok(()));
    from_trunk(&mut table, A, JobMessage::close(JOB)).unwrap();
    table.take_effects();
    table.agent_exited(JOB, types::NodeId(0), "exit status 0".into());
    assert_eq!(table.take_effects(), [Effect::Release(JOB)]);
    table.allocation_news(JOB, AllocationNews::Ended("given back".into()));
    assert!(matches!(table.take_effects()[..], [Effect::ToTrunk(A, Control::Job(JobMessage::Closed { .. }))]));
    assert!(table.jobs.is_empty() && table.allocations.is_empty());
}

#[test]
fn nodes_that_were_not_given_are_refused() {
    let mut table = table();
    assert!(refused(&open(&mut table), "has no node n7; it has: those of a job's allocation"));
    asked_by_a(&mut table);
    assert!(refused(&open(&mut table), "has no node n7"));
    // The request is dropped.
    table.allocation_news(JOB, granted());
    assert!(table.allocations.get(&JOB).unwrap().own.as_ref().unwrap().released);
}

#[test]
fn an_allocation_that_ends_by_itself_ends_its_job() {
    let mut table = table();
    asked_by_a(&mut table);
    table.allocation_news(JOB, AllocationNews::Waiting("in the queue".into()));
    assert!(matches!(
        &table.take_effects()[..],
        [Effect::ToTrunk(A, Control::Allocation(AllocationMessage::Waiting { state, .. }))]
            if state == "in the queue"
    ));
    table.allocation_news(JOB, AllocationNews::Ended("no such partition".into()));
    assert!(refused(&table.take_effects(), "no such partition"));
    assert!(table.allocations.is_empty());

    asked_by_a(&mut table);
    table.allocation_news(JOB, granted());
    open(&mut table);
    table.agents_started(JOB, Ok(()));
    table.take_effects();
    assert!(table.perhaps_cancelled(JOB).contains("batch job 12"));
    table.allocation_news(JOB, AllocationNews::Ended("cancelled".into()));
    assert!(refused(&table.take_effects(), "cancelled"));
    table.agent_exited(JOB, types::NodeId(0), "killed".into());
    assert!(table.jobs.is_empty() && table.allocations.is_empty());
}

#[test]
fn whoever_loses_its_asker_gives_back() {
    for lost in [true, false] {
        let mut table = table();
        asked_by_a(&mut table);
        match lost {
            true => table.trunk_lost(A, "cable"),
            false => from_trunk(&mut table, A, JobMessage::close(JOB)).unwrap(),
        }
        assert_eq!(table.take_effects(), [Effect::Release(JOB)]);
        table.allocation_news(JOB, AllocationNews::Ended("given back".into()));
        assert_eq!(table.take_effects().len(), usize::from(!lost));
        assert!(table.allocations.is_empty());
    }
    // At the launcher's own site.
    let mut table = table();
    table.allocate(LAUNCHER, JOB, "b".into(), "b".into(), ask()).unwrap();
    table.allocate(LAUNCHER, JOB, "a".into(), "b".into(), ask()).unwrap();
    table.take_effects();
    table.launcher_gone(&LAUNCHER);
    assert_eq!(table.take_effects(), [Effect::ToTrunk(A, Control::Job(JobMessage::close(JOB))), Effect::Release(JOB)]);
    table.allocation_news(JOB, AllocationNews::Ended("given back".into()));
    assert!(table.take_effects().is_empty() && table.allocations.is_empty());
}

#[test]
fn strangers_get_nothing() {
    let mut table = table();
    let order = |job, site: &str, home: &str| {
        Control::Allocation(AllocationMessage::Ask { job, site: site.into(), home: home.into(), ask: ask() })
    };
    assert!(from_trunk(&mut table, A, order(JOB, "c", "a")).is_err());
    assert!(from_trunk(&mut table, A, order(JOB, "b", "c")).is_err());
    from_trunk(&mut table, A, order(JobId(0), "b", "a")).unwrap();
    assert!(refused(&table.take_effects(), "can no longer ask"));
    asked_by_a(&mut table);
    from_trunk(&mut table, A, order(JOB, "b", "a")).unwrap();
    assert!(refused(&table.take_effects(), "already"));
    assert_eq!(table.allocate(LAUNCHER, JOB, "b".into(), "b".into(), ask()).unwrap_err().site, "b");
    assert!(!table.abandoned_by(JOB, &LAUNCHER));
    for number in 0..MOST {
        from_trunk(&mut table, A, order(JobId(100 + number as u32), "b", "a")).unwrap();
    }
    assert!(refused(&table.take_effects(), "64 jobs of site a"));
    assert_eq!(table.allocations.len(), MOST_OF_SITE);
    for number in 0..MOST {
        let _ = table.allocate(LAUNCHER, JobId(1000 + number as u32), "b".into(), "b".into(), ask());
    }
    let refused = table.allocate(LAUNCHER, JobId(2000), "b".into(), "b".into(), ask()).unwrap_err();
    assert!(refused.why.to_string().contains("try again"), "{}", refused.why);
    assert_eq!(table.allocations.len(), MOST);
}

#[test]
fn a_gateway_that_stops_leaves_its_nodes_to_the_job_if_others_carry_it_on() {
    for (siblings, left) in [(true, true), (false, false)] {
        let mut table = table();
        asked_by_a(&mut table);
        table.allocation_news(JOB, granted());
        open(&mut table);
        table.agents_started(JOB, Ok(()));
        table.take_effects();
        assert_eq!(table.close_all("stopping", siblings).contains(&JOB), left);
        table.agent_exited(JOB, types::NodeId(0), String::new());
        assert_eq!(table.take_effects().contains(&Effect::Release(JOB)), !left, "{siblings}");
    }
}

#[test]
fn what_memory_cannot_hold_is_refused_before_the_batch_system_is_asked() {
    let fits = |elsewhere| NodeAsk { elsewhere, beyond_home: elsewhere, ..ask() };
    let refusal = "1025 members at other sites need 32.0 MiB of gateway memory for their frames (32 KiB each), but \
                   only 32.0 MiB of 32.0 MiB is free: raise `memory` of the gateway to at least 64.1 MiB";
    // A request from the launcher's gateway.
    let mut table = table();
    let order = |ask| AllocationMessage::Ask { job: JOB, site: "b".into(), home: "a".into(), ask };
    from_trunk(&mut table, A, order(fits(1025))).unwrap();
    let effects = table.take_effects();
    assert!(refused(&effects, refusal) && effects.len() == 1, "{effects:?}");
    assert!(table.allocations.is_empty());
    from_trunk(&mut table, A, order(fits(1024))).unwrap();
    assert!(matches!(table.take_effects()[..], [Effect::Allocate(_)]));

    // At the launcher's own site, which has no ranks itself: neither it nor site a asks for nodes.
    let mut table = self::table();
    for site in ["a", "b"] {
        let refused = table.allocate(LAUNCHER, JOB, site.into(), "b".into(), fits(1025)).unwrap_err();
        assert!(refused.site == "b" && refused.why.to_string().contains(refusal), "{refused:?}");
    }
    assert!(table.take_effects().is_empty() && table.allocations.is_empty());
    // Memory that other jobs have is not available to this one.
    let others = table.grants.grant(900, 0).unwrap();
    assert!(
        table
            .allocate(LAUNCHER, JOB, "b".into(), "b".into(), fits(600))
            .unwrap_err()
            .why
            .to_string()
            .contains("wait until other jobs end")
    );
    table.grants.release(others);
    table.allocate(LAUNCHER, JOB, "b".into(), "b".into(), fits(600)).unwrap();
    assert!(matches!(table.take_effects()[..], [Effect::Allocate(_)]));
}
