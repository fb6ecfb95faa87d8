//! A site joins by a ticket: once, in time, with the right secret, at the right gateway.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::key::SiteKey;
use client::{Client, ClientError, Gateway, Invitation, Role, join};
use gateway::{GatewayConfig, serve_until};
use gateway_tasks::{Doorkeeper, NotTaken};
use support::*;
use tokio::sync::oneshot;
use types::sites::{Fingerprint, Keys};
use types::{JobId, SitesFile};
use wire::control::JoiningMessage;
use wire::{Control, Secret};

/// Records the sites it was asked about, and admits all except those called `no`.
#[derive(Debug, Default)]
struct Book(Mutex<Vec<(String, Fingerprint, String)>>);

impl Doorkeeper for Book {
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, NotTaken> {
        self.0.lock().unwrap().push((site.into(), fingerprint, entry.into()));
        if site == "no" { Err(NotTaken("the name no is taken".into())) } else { Ok("the sites file".into()) }
    }
}

struct Host {
    address: String,
    fingerprint: Fingerprint,
    client: Client,
    book: Arc<Book>,
    _stop: oneshot::Sender<()>,
    _folder: tempfile::TempDir,
}

async fn host() -> Host {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sites.toml");
    let key = client::key::generate(&folder.path().join("a.key")).unwrap();
    let (address, fingerprint, secret) = (free_address("127.0.0.5"), key.fingerprint(), key.client_secret());
    let text = format!(
        "[[site]]\nname = \"a\"\nkey = \"a.key\"\nfingerprint = \"{fingerprint}\"\n[[site.gateway]]\nname = \"gw1\"\n\
         advertise = \"{address}\"\nlisten = \"{address}\"\n[[site.node]]\nname = \"n1\"\n"
    );
    std::fs::write(&path, &text).unwrap();
    let book = Arc::new(Book::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let doorkeeper = book.clone();
    std::thread::spawn(move || {
        let sites = SitesFile::parse(&text, "sites.toml").unwrap();
        let mut config = GatewayConfig::new(sites, &path, "a", None).unwrap();
        config.doorkeeper = Some(doorkeeper);
        serve_until(config, Arc::new(Starter(Arc::default())), async { drop(stopped.await) }).unwrap();
    });
    let keys = Some(Keys { current: fingerprint, next: None });
    let gateway = Gateway { site: "a".into(), name: "gw1".into(), address: address.clone(), keys };
    let client = within("client", async {
        loop {
            match Client::connect(&gateway, &Role::Client { secret: secret.clone() }).await {
                Ok(client) => return client,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    Host { address, fingerprint, client, book, _stop: stop, _folder: folder }
}

impl Host {
    async fn invite(&mut self, seconds: u32) -> Invitation {
        self.client.send_control(launcher(0), JoiningMessage::Invite { seconds }).await.unwrap();
        let Control::Joining(JoiningMessage::Invited { ticket, secret }) =
            Control::decode(&receive(&mut self.client).await.payload).unwrap()
        else {
            panic!("no ticket")
        };
        Invitation { address: self.address.clone(), fingerprint: self.fingerprint, ticket, secret }
    }
}

async fn try_it(invitation: &Invitation, key: &SiteKey, site: &str) -> Result<String, ClientError> {
    within("joining", join(invitation, key, site, "my entry")).await
}

#[tokio::test]
async fn a_ticket_is_good_once_and_binds_both_keys() {
    let mut host = host().await;
    let key = SiteKey::random().unwrap();
    let ticket = host.invite(60).await;
    let refused = |result: Result<String, ClientError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(
        try_it(&Invitation { ticket: JobId(ticket.ticket.0 ^ 1), ..ticket.clone() }, &key, "b").await,
        "unknown, used",
    );
    refused(
        try_it(&Invitation { secret: Secret::new([1; 32]), ..ticket.clone() }, &key, "b").await,
        "it does not know our secret",
    );
    let stranger = Invitation { fingerprint: key.fingerprint(), ..ticket.clone() };
    refused(try_it(&stranger, &key, "b").await, "not the gateway that issued the ticket");
    assert!(host.book.0.lock().unwrap().is_empty(), "nobody without a ticket is heard");
    // A refusal of the entry leaves the ticket for another try.
    refused(try_it(&ticket, &key, "no").await, "the name no is taken");
    assert_eq!(try_it(&ticket, &key, "b").await.unwrap(), "the sites file");
    let heard = host.book.0.lock().unwrap().last().cloned().unwrap();
    assert_eq!(heard, ("b".into(), key.fingerprint(), "my entry".into()));
    refused(try_it(&ticket, &key, "b").await, "unknown, used or expired");

    let late = host.invite(0).await;
    refused(try_it(&late, &key, "b").await, "expired");
    let error = join(&host.invite(60).await, &key, "b", &"x".repeat(100_000)).await.unwrap_err().to_string();
    assert!(!error.is_empty());
    assert_eq!(host.book.0.lock().unwrap().len(), 2, "an entry beyond the limit is not read");
    // The oldest of too many is dropped.
    let first = host.invite(60).await;
    for _ in 0..16 {
        host.invite(60).await;
    }
    refused(try_it(&first, &key, "b").await, "unknown, used");
}
