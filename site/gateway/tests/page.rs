//! The page: its responses, the clients it serves, and that nothing done to it keeps the gateway from relaying.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::TcpListener;

use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::View;

const ROSTER: &str = "a:n1*2;b:n1*2";

/// Two sites, the first with a page, once its gateway serves; and the page's address.
async fn with_page() -> (Vec<Running>, String) {
    let page = free_address("127.0.0.1");
    let sites = start(&Plan { page: Some(page.clone()), ..Plan::default() });
    drop(sites[0].client().await);
    (sites, page)
}

/// Sends these bytes and returns the response, until the connection is closed; empty if it was just closed.
async fn exchange(page: &str, request: &[u8]) -> String {
    within("an answer", async {
        let mut stream = TcpStream::connect(page).await.unwrap();
        // A refused client may find the connection closed already.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    })
    .await
}

async fn get(page: &str, path: &str) -> String {
    exchange(page, format!("GET {path} HTTP/1.1\r\nHost: {page}\r\n\r\n").as_bytes()).await
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}")).1
}

/// Returns true if the response has a header with this beginning.
fn has(answer: &str, header: &str) -> bool {
    answer.split("\r\n").take_while(|line| !line.is_empty()).any(|line| line.starts_with(header))
}

/// Checks that a frame goes from site to site.
async fn relays(sites: &[Running], id: u32) {
    let mut job = open(&sites[0], "a", id, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut at_a = sites[0].member(&job, a).await;
    let mut at_b = sites[1].member(&job, b).await;
    at_a.send(data(&job, a, b, 0), b"here").await.unwrap();
    assert_eq!(receive(&mut at_b).await.payload, b"here");
    job.close().await;
}

#[tokio::test]
async fn the_page_its_files_the_view_and_the_metrics_are_served() {
    let (sites, page) = with_page().await;
    let job = open(&sites[0], "a", 7, ROSTER).await;
    for (path, kind, words) in [
        ("/", "text/html", "<title>Landbridge gateway</title>"),
        ("/?x=1", "text/html", "<title>Landbridge gateway</title>"),
        ("/page.css", "text/css", "color-scheme"),
        ("/page.js", "text/javascript", "fetch(\"/view.json\""),
        ("/map.js", "text/javascript", "export function draw"),
        ("/graph.js", "text/javascript", "export function draw"),
        ("/words.js", "text/javascript", "export function element"),
        ("/icon.svg", "image/svg+xml", "<svg"),
        ("/view.json", "application/json", "\"site\":\"a\""),
        ("/metrics", "text/plain; version=0.0.4", "landbridge_jobs{site=\"a\",gateway=\"gw1\"} 1\n"),
    ] {
        let answer = get(&page, path).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
        assert!(has(&answer, &format!("content-type: {kind}")), "{path}: {answer}");
        assert!(has(&answer, "cache-control: no-store") && has(&answer, "x-content-type-options: nosniff"), "{answer}");
        assert!(has(&answer, "content-security-policy: default-src 'none'; script-src 'self';"), "{answer}");
        assert!(body(&answer).contains(words), "{path}: {answer}");
    }
    let view: View = serde_json::from_str(body(&get(&page, "/view.json").await)).unwrap();
    assert_eq!((view.gateway.as_str(), view.trunks[0].site.as_str(), view.jobs[0].job), ("gw1", "b", job.id));
}

#[tokio::test]
async fn a_browser_needs_nothing_that_is_not_served_here() {
    let (_sites, page) = with_page().await;
    for path in ["/", "/page.js", "/map.js", "/graph.js", "/words.js", "/page.css"] {
        let text = body(&get(&page, path).await).to_owned();
        // Nothing fetches the name of SVG's namespace.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://") && !text.contains("innerHTML"), "{path}");
        for quoted in text.split('"').filter(|word| word.starts_with('/') && !word.contains(['\n', ' ', ')'])) {
            let answer = get(&page, quoted).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{path} names {quoted}: {answer}");
        }
    }
}

#[tokio::test]
async fn what_is_not_a_look_at_it_is_refused() {
    let (sites, page) = with_page().await;
    let ask = async |line: &str, host: &str| exchange(&page, format!("{line}\r\n{host}\r\n").as_bytes()).await;
    let host = format!("Host: {page}\r\n");
    assert!(ask("GET /secrets HTTP/1.1", &host).await.starts_with("HTTP/1.1 404 "));
    assert!(ask("GET /../page.rs HTTP/1.1", &host).await.starts_with("HTTP/1.1 404 "));
    let answer = ask("POST /view.json HTTP/1.1", &host).await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && has(&answer, "allow: GET, HEAD"), "{answer}");
    let answer = ask("HEAD /view.json HTTP/1.1", &host).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && body(&answer).is_empty(), "{answer}");
    assert!(ask("GET / HTTP/1.1", "Host: localhost:9999\r\n").await.starts_with("HTTP/1.1 200 "));
    for host in ["Host: evil.example\r\n", "Host: 10.0.0.1\r\n", "Host: localhost\r\nHost: evil.example\r\n", ""] {
        for path in ["/", "/view.json", "/metrics"] {
            let answer = ask(&format!("GET {path} HTTP/1.1"), host).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("gw1"), "{host}: {answer}");
        }
    }
    let long = format!("X: {}\r\n", "x".repeat(64 << 10));
    let many = "X: x\r\n".repeat(1000);
    for headers in [long, many] {
        let answer = ask("GET / HTTP/1.1", &format!("{host}{headers}")).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    assert!(!exchange(&page, &[0x16; 500]).await.contains("200 OK"));
    assert!(get(&page, "/").await.starts_with("HTTP/1.1 200 "));
    relays(&sites, 1).await;
}

#[tokio::test]
async fn whoever_keeps_connections_gets_few_and_not_for_long() {
    let (sites, page) = with_page().await;
    let mut slow = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(&page).await.unwrap();
        stream.write_all(b"GET /view.json HTT").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(get(&page, "/").await, "", "one more than are served");
    relays(&sites, 1).await;
    // None of them ever sends more; all are closed.
    for mut stream in slow {
        let closed = within("a slow connection to be closed", stream.read_to_end(&mut Vec::new())).await;
        assert!(matches!(closed, Ok(0) | Err(_)));
    }
    assert!(get(&page, "/").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_gateway_whose_page_cannot_be_had_relays_without() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = taken.local_addr().unwrap().to_string();
    let sites = start(&Plan { page: Some(page), ..Plan::default() });
    relays(&sites, 1).await;
}
