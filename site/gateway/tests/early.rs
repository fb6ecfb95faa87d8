//! Members that connect before the gateway has heard of their job.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use client::{Client, Role};
use support::*;
use types::JobId;
use wire::Secret;

const ROSTER: &str = "a:n1*2;b:n1*2";

fn role(id: u32, identity: types::Identity) -> Role {
    Role::Member { job: JobId(id), secret: Secret::new([id as u8; 32]), identity }
}

/// Waits until this many have been refused in total. A refusal is counted once its connection is closed.
async fn refused(sites: &[Running], expected: u64) {
    let count = || sites.iter().map(|site| site.counters.snapshot().refused).sum::<u64>();
    within("refusals", async {
        while count() < expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(count(), expected);
}

#[tokio::test]
async fn a_member_that_comes_too_early_waits_and_is_no_intruder() {
    let sites = start(&Plan::default());
    // Both gateways run, and their trunk is up.
    let mut first = open(&sites[0], "a", 1, ROSTER).await;
    let dial = |at: usize, identity| {
        let (gateway, role) = (sites[at].plain(), role(2, identity));
        tokio::spawn(async move { Client::connect(&gateway, &role).await })
    };
    let early = [dial(0, rank(0, 0)), dial(1, rank(1, 2)), dial(1, rank(1, 3))];
    // A member with a wrong secret is refused with that reason.
    let gateway = sites[1].plain();
    let wrong = Role::Member { job: JobId(2), secret: Secret::new([9; 32]), identity: rank(1, 2) };
    let wrong = tokio::spawn(async move { Client::connect(&gateway, &wrong).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(early.iter().all(|early| !early.is_finished()), "none has been refused");
    let job = open(&sites[0], "a", 2, ROSTER).await;
    let mut members = Vec::new();
    for early in early {
        members.push(within("an early member", early).await.unwrap().unwrap());
    }
    let wrong = within("one with a wrong secret", wrong).await.unwrap().unwrap_err().to_string();
    assert!(wrong.contains("does not know our secret"), "{wrong}");
    let header = data(&job, rank(0, 0), rank(1, 2), 0);
    members[0].send(header, b"together").await.unwrap();
    assert_eq!(receive(&mut members[1]).await.payload, b"together");
    refused(&sites, 1).await;
    // Members that come too late, or for a job that nobody opens, are refused with a reason.
    first.close().await;
    within("the end of the first job", async {
        while sites[0].agents.running() + sites[1].agents.running() > 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for id in [1, 77] {
        let error = Client::connect(&sites[1].plain(), &role(id, rank(1, 2))).await.unwrap_err().to_string();
        assert!(error.contains("is not open at site b") || error.contains("is being closed"), "{error}");
    }
    refused(&sites, 3).await;
}
