//! Nodes of a batch system, between two real gateways: granted, not granted in time, dropped, and lost with their
//! asker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use client::Client;
use support::*;
use types::JobId;
use wire::control::{AllocationMessage, JobMessage, NodeAsk};
use wire::{Control, Secret};

const JOB: JobId = JobId(7);

/// A user at site a asks for nodes of site b.
async fn asks(sites: &[Running], ranks: u32, wait_s: u32) -> Client {
    let mut client = sites[0].client().await;
    let ask = NodeAsk { ranks, per_node: None, wait_s, held: None, elsewhere: 0, beyond_home: 0 };
    let message = AllocationMessage::Ask { job: JOB, site: "b".into(), home: "a".into(), ask };
    client.send_control(launcher(0), message).await.unwrap();
    client
}

async fn given_back(site: &Running) {
    within("what was asked for to be given back", async {
        while site.agents.held() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_gets_its_nodes_and_gives_them_back() {
    let sites = start(&Plan::default());
    let mut client = asks(&sites, 2, 60).await;
    let Control::Allocation(AllocationMessage::Granted { site, nodes, .. }) = control(&mut client).await else {
        panic!()
    };
    assert_eq!((site.as_str(), nodes[0].name.as_str(), sites[1].agents.held()), ("b", "n7", 1));
    let roster = "a:n1*1;b:n7*2".parse().unwrap();
    let open = JobMessage::Open {
        job: JOB,
        secret: Secret::new([7; 32]),
        roster,
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    client.send_control(launcher(0), open).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(control(&mut client).await, Control::Job(JobMessage::Opened { .. })));
    }
    assert_eq!(sites[1].agents.orders()[0].allocation.as_deref(), Some("12"));
    client.send_control(launcher(0), JobMessage::close(JOB)).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(control(&mut client).await, Control::Job(JobMessage::Closed { .. })));
    }
    assert_eq!(sites[1].agents.held(), 0, "given back before the job is closed");
}

#[tokio::test]
async fn waiting_has_an_end() {
    let sites = start(&Plan::default());
    let mut client = asks(&sites, ROOM + 1, 1).await;
    assert!(matches!(
        control(&mut client).await,
        Control::Allocation(AllocationMessage::Waiting { state, .. }) if state == "no room"
    ));
    let Control::Job(JobMessage::Refused { site, reason, .. }) = control(&mut client).await else { panic!() };
    assert!(site == "b" && reason.contains("no nodes after 1 s: no room"), "{site}: {reason}");
    given_back(&sites[1]).await;
}

#[tokio::test]
async fn who_asked_can_let_go_and_is_told() {
    let sites = start(&Plan::default());
    for ranks in [1, ROOM + 1] {
        let mut client = asks(&sites, ranks, 60).await;
        control(&mut client).await;
        client.send_control(launcher(0), JobMessage::close(JOB)).await.unwrap();
        assert!(matches!(control(&mut client).await, Control::Job(JobMessage::Closed { site, .. }) if site == "b"));
        given_back(&sites[1]).await;
        drop(client);
        // The next user takes the same number after the gateway has noticed the end.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_launcher_that_lets_go_of_what_was_refused_breaks_no_rule() {
    let sites = start(&Plan::default());
    let mut client = asks(&sites, ROOM + 1, 0).await;
    while !matches!(control(&mut client).await, Control::Job(JobMessage::Refused { .. })) {}
    // The entry stays as long as its asker may ask again. A job without a request has no entry.
    for job in [JOB, JobId(99)] {
        client.send_control(launcher(0), JobMessage::close(job)).await.unwrap();
    }
    let error = within("goodbye", client.receive()).await.unwrap_err().to_string();
    assert!(error.contains("is not open at site a"), "{error}");
    assert_eq!(sites[0].counters.snapshot().violations, 0);
}

#[tokio::test]
async fn nothing_is_held_for_who_is_gone() {
    let mut sites = start(&Plan::default());
    let mut client = asks(&sites, 1, 60).await;
    control(&mut client).await;
    drop(client);
    given_back(&sites[1]).await;
    let mut client = asks(&sites, ROOM + 1, 60).await;
    control(&mut client).await;
    // The launcher's gateway goes, and with it the trunk.
    sites[0].stop();
    given_back(&sites[1]).await;
}

#[tokio::test]
async fn a_gateway_that_stops_gives_back() {
    let mut sites = start(&Plan::default());
    let mut client = asks(&sites, 1, 60).await;
    control(&mut client).await;
    sites[1].stop();
    assert_eq!(sites[1].agents.held(), 0);
    let Control::Job(JobMessage::Refused { site, reason, .. }) = control(&mut client).await else { panic!() };
    assert!(site == "b" && reason.contains("trunk"), "{site}: {reason}");
}

#[tokio::test]
async fn an_unreachable_site_is_named() {
    let sites = start(&Plan { absent: vec!["b"], ..Plan::default() });
    let mut client = asks(&sites, 1, 60).await;
    let Control::Job(JobMessage::Refused { site, reason, .. }) = control(&mut client).await else { panic!() };
    assert!(site == "b" && reason.contains("gw1"), "{site}: {reason}");
}
