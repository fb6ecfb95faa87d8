//! Two gateways that cannot be dialled meet at a third site's gateway.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use client::ClientError;
use support::*;

/// Sites a and b can only dial out.
fn plan(names: &[&'static str]) -> Plan {
    Plan { names: names.to_vec(), hidden: vec!["a", "b"], ..Plan::default() }
}

/// A frame each way between a rank of site a and one of site b.
async fn exchange(sites: &[Running], job: &Job, first: u32) {
    let (a, b) = (rank(0, 0), rank(1, 2));
    let (mut at_a, mut at_b) = (sites[0].member(job, a).await, sites[1].member(job, b).await);
    for number in first..first + 20 {
        let payload: Vec<u8> = (0..(number - first) as usize * 700).map(|at| (at as u32 * 7 + number) as u8).collect();
        at_a.send(data(job, a, b, number), &payload).await.unwrap();
        assert_eq!(receive(&mut at_b).await.payload, payload);
        at_b.send(data(job, b, a, number), &payload).await.unwrap();
        assert_eq!(receive(&mut at_a).await.payload, payload);
    }
}

async fn probe(from: &Running, site: &str) -> Result<Duration, ClientError> {
    from.client().await.probe(site).await
}

/// Probes until that succeeds, at most three times; fails with the last problem.
async fn probed(from: &Running, site: &str) {
    let mut last = String::new();
    for _ in 0..3 {
        match probe(from, site).await {
            Ok(_) => return,
            Err(problem) => last = problem.to_string(),
        }
    }
    panic!("{last}");
}

#[tokio::test]
async fn two_that_only_dial_out_meet_at_a_third_whatever_their_order() {
    for (names, links) in [(["a", "b", "z"], 1), (["z", "a", "b"], 3)] {
        let sites = start(&Plan { links, ..plan(&names) });
        let [a, b, z] = ["a", "b", "z"].map(|name| names.iter().position(|known| *known == name).unwrap());
        probed(&sites[a], "b").await;
        probed(&sites[b], "a").await;
        probed(&sites[a], "z").await;
        let job = open(&sites[a], "a", 7, "a:n1*2;b:n1*2").await;
        let pair = if a == 0 { &sites[..2] } else { &sites[1..] };
        exchange(pair, &job, 0).await;
        let counted = sites[z].counters.snapshot();
        assert_eq!((counted.frames, counted.violations), (0, 0), "{counted:?}");
        // The third site may take part itself.
        let all = open(&sites[b], "b", 8, "a:n1*2;b:n1*2;z:n1*1").await;
        exchange(pair, &all, 0).await;
    }
}

#[tokio::test]
async fn when_a_place_ends_they_meet_at_the_next() {
    let mut sites = start(&plan(&["a", "b", "y", "z"]));
    let job = open(&sites[0], "a", 7, "a:n1*2;b:n1*2").await;
    exchange(&sites, &job, 0).await;
    sites[2].stop();
    probed(&sites[0], "b").await;
    probed(&sites[1], "a").await;
    // The job continues, except for the frames that were in flight.
    exchange(&sites, &job, 20).await;
}

#[tokio::test]
async fn without_a_place_the_problem_says_so() {
    let sites = start(&plan(&["a", "b"]));
    for (from, to) in [(0, "b"), (1, "a")] {
        let problem = probe(&sites[from], to).await.unwrap_err().to_string();
        let words =
            format!("site {to}: neither its gateway gw1 nor this one can be dialled, and no gateway that both reach");
        assert!(problem.contains(&words), "{problem}");
    }
}

#[tokio::test]
async fn a_place_may_refuse() {
    let sites = start(&Plan { unfriendly: vec!["z"], ..plan(&["a", "b", "z"]) });
    probed(&sites[0], "z").await;
    let problem = probe(&sites[0], "b").await.unwrap_err().to_string();
    assert!(problem.contains("no gateway that both reach lets them meet"), "{problem}");
}

#[tokio::test]
async fn a_place_that_does_not_run_is_named_at_both_ends() {
    let sites = start(&Plan { absent: vec!["z"], ..plan(&["a", "b", "z"]) });
    for (from, words) in
        [(0, "no meeting at gateway gw1 of site z: site z: gateway gw1 at"), (1, "gateway gw1 of site z (not reached")]
    {
        let problem = probe(&sites[from], ["b", "a"][from]).await.unwrap_err().to_string();
        assert!(problem.contains(words), "{problem}");
    }
}

#[tokio::test]
async fn when_the_only_place_ends_both_ends_name_it() {
    // The place and the connection through it end in any order.
    for _ in 0..5 {
        let mut sites = start(&plan(&["a", "b", "z"]));
        probed(&sites[0], "b").await;
        probed(&sites[1], "a").await;
        sites[2].stop();
        let (at_a, at_b) = tokio::join!(probe(&sites[0], "b"), probe(&sites[1], "a"));
        for (to, problem) in [("b", at_a), ("a", at_b)] {
            let problem = problem.unwrap_err().to_string();
            let words = format!("site {to}: neither its gateway gw1 nor this one can be dialled");
            assert!(problem.contains(&words) && problem.contains("gateway gw1 of site z"), "{problem}");
        }
    }
}

#[tokio::test]
async fn who_does_not_come_is_named() {
    let sites = start(&Plan { absent: vec!["b"], ..plan(&["a", "b", "z"]) });
    let problem = probe(&sites[0], "b").await.unwrap_err().to_string();
    assert!(problem.contains("at gateway gw1 of site z: gateway gw1 of site b is not connected to it"), "{problem}");
    let sites = start(&Plan { absent: vec!["a"], ..plan(&["a", "b", "z"]) });
    probed(&sites[1], "z").await;
    let problem = probe(&sites[1], "a").await.unwrap_err().to_string();
    assert!(problem.contains("it has not come to gateway gw1 of site z to meet this one: is it running?"), "{problem}");
}

#[tokio::test]
async fn the_keys_of_the_two_are_checked_through_the_place() {
    for (wrong, prober, at) in [(("b", "a"), 0, "b"), (("a", "b"), 1, "a")] {
        let sites = start(&Plan { wrong: Some(wrong), ..plan(&["a", "b", "z"]) });
        probed(&sites[prober], "z").await;
        let problem = probe(&sites[prober], at).await.unwrap_err().to_string();
        assert!(problem.contains("presented fingerprint sha256:"), "{problem}");
        assert!(problem.contains("the sites file has sha256:") && problem.contains("site z"), "{problem}");
    }
}
