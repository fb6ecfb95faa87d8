//! A running gateway applies a site added to its sites file, and reports when a change needs a restart.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::key;
use client::{Client, Gateway, Role};
use gateway::{GatewayConfig, serve_until};
use support::*;
use tokio::sync::oneshot;
use types::SitesFile;
use types::sites::Keys;
use wire::Control;
use wire::control::{JobMessage, ObservationMessage, TrunkStanding};

const ROSTER: &str = "a:n1*1;b:n1*1";

fn entry(folder: &Path, name: &str, address: &str) -> String {
    let path = folder.join(format!("{name}.key"));
    let key = if path.exists() { key::load(&path) } else { key::generate(&path) }.unwrap();
    format!(
        "[[site]]\nname = \"{name}\"\nkey = \"{name}.key\"\nfingerprint = \"{}\"\n[[site.gateway]]\nname = \"gw1\"\n\
         advertise = \"{address}\"\nlisten = \"{address}\"\n[[site.node]]\nname = \"n1\"\n",
        key.fingerprint()
    )
}

/// The same site with another key, and perhaps with one that will replace it.
fn with_key(entry: &str, folder: &Path, file: &str, next: Option<&str>) -> String {
    let print = |file: &str| {
        let path = folder.join(file);
        if path.exists() { key::load(&path) } else { key::generate(&path) }.unwrap().fingerprint().to_string()
    };
    let lines = entry.lines().map(|line| match line.split(' ').next() {
        Some("key") => format!("key = \"{file}\"\n"),
        Some("fingerprint") => {
            let next = next.map(|next| format!("next = \"{}\"\n", print(next))).unwrap_or_default();
            format!("fingerprint = \"{}\"\n{next}", print(file))
        }
        _ => format!("{line}\n"),
    });
    lines.collect()
}

async fn open_job(folder: &Path, address: &str, id: u32, roster: &str) -> (Client, Job) {
    let mut launching = client(folder, address).await;
    let open = JobMessage::Open {
        job: types::JobId(id),
        secret: wire::Secret::new([id as u8; 32]),
        roster: roster.parse().unwrap(),
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    launching.send_control(launcher(0), open).await.unwrap();
    for _ in 0..roster.split(';').count() {
        let news = control(&mut launching).await;
        assert!(matches!(news, Control::Job(JobMessage::Opened { .. })), "{news:?}");
    }
    let job = Job {
        id: types::JobId(id),
        secret: wire::Secret::new([id as u8; 32]),
        launcher: Launcher::new(client(folder, address).await),
        identity: launcher(0),
    };
    (launching, job)
}

async fn member(job: &Job, address: &str, identity: types::Identity) -> Client {
    let role = Role::Member { job: job.id, secret: job.secret.clone(), identity };
    // Of the site where it listens, as a rank dials it.
    let site = if identity.site.0 == 0 { "a" } else { "b" };
    within("member", Client::connect(&dialled(site, address, None), &role)).await.unwrap()
}

/// A frame arrives, perhaps only after the links are up again.
async fn carries(job: &Job, from: &mut Client, to: &mut Client) {
    let header = data(job, rank(0, 0), rank(1, 1), 0);
    within("a frame that gets there", async {
        loop {
            from.send(header, b"hello").await.unwrap();
            let frame = tokio::time::timeout(Duration::from_millis(200), hear(to)).await;
            match frame {
                Ok(frame) if frame.as_ref().unwrap().as_ref().unwrap().header.kind == wire::FrameKind::Data => return,
                _ => {}
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_site_changes_its_key_while_jobs_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (at_a, at_b) = (free_address("127.0.0.2"), free_address("127.0.0.3"));
    let (a, b) = (entry(folder, "a", &at_a), entry(folder, "b", &at_b));
    // Each site has its own file, as on different machines.
    let (file_a, file_b) = (folder.join("sites-a.toml"), folder.join("sites-b.toml"));
    let write = |a_sees: &str, b_sees: &str| {
        std::fs::write(&file_a, format!("{a}\n{a_sees}")).unwrap();
        std::fs::write(&file_b, format!("{a}\n{b_sees}")).unwrap();
    };
    write(&b, &b);
    let _a = start(&file_a, "a", Arc::default());
    let _b = start(&file_b, "b", Arc::default());
    let (_launcher, job) = open_job(folder, &at_a, 7, ROSTER).await;
    let (mut from, mut to) = (member(&job, &at_a, rank(0, 0)).await, member(&job, &at_b, rank(1, 1)).await);
    carries(&job, &mut from, &mut to).await;
    let mut at = client(folder, &at_a).await;
    let key_of_b = async |with: &str| {
        let key = key::load(&folder.join(with)).unwrap();
        let role = Role::Client { secret: key.client_secret() };
        within("b's user", Client::connect(&dialled("b", &at_b, Some(&key)), &role)).await
    };
    let mut old_user = key_of_b("b.key").await.unwrap();

    // First the others learn of the new key. Then the site takes it. Then the others forget the old one.
    let (coming, taken) = (with_key(&b, folder, "b.key", Some("b2.key")), with_key(&b, folder, "b2.key", None));
    write(&coming, &b);
    assert_eq!(standing(&mut at, true).await.2, None);
    write(&coming, &taken);
    assert_eq!(standing(&mut old_user, true).await.2, None);
    assert!(key_of_b("b.key").await.is_err(), "users prove the new key now");
    carries(&job, &mut from, &mut to).await;
    write(&taken, &taken);
    assert_eq!(standing(&mut at, true).await.2, None);
    carries(&job, &mut from, &mut to).await;
    assert!(at.probe("b").await.is_ok());
    assert!(key_of_b("b2.key").await.is_ok());

    // A key that was not announced does not get in, and one that does not exist changes nothing.
    write(&taken, &with_key(&b, folder, "b3.key", None));
    let mut new_user = key_of_b("b2.key").await.unwrap();
    assert_eq!(standing(&mut new_user, true).await.2, None);
    write(&with_key(&b, folder, "b4.key", None), &taken.replace("b2.key", "b9.key"));
    assert_eq!(standing(&mut at, true).await.2, None);
    let problem = at.probe("b").await.unwrap_err().to_string();
    assert!(problem.contains("presented fingerprint"), "{problem}");
    let mut newest = key_of_b("b3.key").await.unwrap();
    let stale = standing(&mut newest, true).await.2;
    assert!(stale.as_ref().is_some_and(|text| text.contains("b9.key")), "{stale:?}");
}

#[tokio::test]
async fn a_site_that_is_revoked_is_cut_off_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.join("sites.toml");
    let addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(free_address);
    let entries: Vec<_> = ["a", "b", "c"].iter().zip(&addresses).map(|(name, at)| entry(folder, name, at)).collect();
    std::fs::write(&path, entries.join("\n")).unwrap();
    let _gateways = ["a", "b", "c"].map(|name| start(&path, name, Arc::default()));
    let (_kept, job) = open_job(folder, &addresses[0], 7, ROSTER).await;
    let (mut from, mut to) =
        (member(&job, &addresses[0], rank(0, 0)).await, member(&job, &addresses[1], rank(1, 1)).await);
    let (mut ended, _) = open_job(folder, &addresses[0], 8, "a:n1*1;c:n1*1").await;

    std::fs::write(&path, entries[..2].join("\n")).unwrap();
    let mut at = client(folder, &addresses[0]).await;
    let (_, trunks, stale) = standing(&mut at, true).await;
    assert_eq!((trunks.len(), trunks[0].site.as_str(), stale), (1, "b", None));
    let Control::Job(JobMessage::SiteLost { site, reason, .. }) = control(&mut ended).await else { panic!() };
    assert!(site == "c" && reason.contains("is no longer in its sites file"), "{reason}");
    assert!(at.probe("c").await.unwrap_err().to_string().contains("knows no site c"));
    // The removed site dials again and again, or is no longer dialled; either way it stays out.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(at.observe().await.unwrap().trunks.len(), 1);
    carries(&job, &mut from, &mut to).await;

    // A site that comes back counts as new.
    std::fs::write(&path, entries.join("\n")).unwrap();
    assert_eq!(standing(&mut at, true).await.1.len(), 2);
    let there = at.probe("c").await;
    assert!(there.is_ok(), "{there:?}");
    open_job(folder, &addresses[0], 9, "a:n1*1;c:n1*1").await;
}

/// Starts the gateway of a site as `landbridge gateway` does; it ends when the returned value is dropped.
fn start(path: &Path, site: &'static str, agents: Arc<FakeAgents>) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let sites = SitesFile::parse(&std::fs::read_to_string(&path).unwrap(), "sites.toml").unwrap();
        let config = GatewayConfig::new(sites, &path, site, None).unwrap();
        serve_until(config, Arc::new(Starter(agents)), async { drop(stopped.await) }).unwrap();
    });
    stop
}

async fn standing(client: &mut Client, reload: bool) -> (u32, Vec<TrunkStanding>, Option<String>) {
    client.send_control(launcher(0), ObservationMessage::Status { reload }).await.unwrap();
    match control(client).await {
        Control::Observation(ObservationMessage::Standing { jobs, trunks, stale }) => (jobs, trunks, stale),
        other => panic!("{other:?}"),
    }
}

/// A gateway as dialled with this key, or as dialled by ranks.
fn dialled(site: &str, address: &str, key: Option<&key::SiteKey>) -> Gateway {
    let keys = key.map(|key| Keys { current: key.fingerprint(), next: None });
    Gateway { site: site.to_owned(), name: "gw1".into(), address: address.to_owned(), keys }
}

async fn client(folder: &Path, address: &str) -> Client {
    let key = key::load(&folder.join("a.key")).unwrap();
    let (gateway, role) = (dialled("a", address, Some(&key)), Role::Client { secret: key.client_secret() });
    within("client", async {
        loop {
            match Client::connect(&gateway, &role).await {
                Ok(client) => return client,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_site_that_was_added_is_taken_up_and_other_changes_ask_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (path, folder) = (folder.path().join("sites.toml"), folder.path());
    let (at_a, at_b) = (free_address("127.0.0.2"), free_address("127.0.0.3"));
    let (a, b) = (entry(folder, "a", &at_a), entry(folder, "b", &at_b));
    std::fs::write(&path, &a).unwrap();
    let _a = start(&path, "a", Arc::default());
    let mut user = client(folder, &at_a).await;
    assert_eq!(standing(&mut user, true).await, (0, vec![], None));

    std::fs::write(&path, format!("{a}\n{b}")).unwrap();
    assert_eq!(standing(&mut user, false).await.1, vec![], "not before it is told");
    let (_, trunks, stale) = standing(&mut user, true).await;
    assert_eq!((trunks.len(), trunks[0].site.as_str(), trunks[0].up, stale), (1, "b", false, None));
    let _b = start(&path, "b", Arc::default());
    assert!(user.probe("b").await.unwrap() < Duration::from_secs(5));
    assert!(standing(&mut user, true).await.1[0].up);

    // A site that was added later carries jobs like any other.
    let mut job = client(folder, &at_a).await;
    let open = JobMessage::Open {
        job: types::JobId(5),
        secret: wire::Secret::new([5; 32]),
        roster: ROSTER.parse().unwrap(),
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    job.send_control(launcher(0), open).await.unwrap();
    for _ in 0..2 {
        let news = control(&mut job).await;
        assert!(matches!(news, Control::Job(JobMessage::Opened { .. })), "{news:?}");
    }
    assert_eq!(standing(&mut user, true).await.0, 1);

    for (text, problem) in [
        (b.clone(), "own, was removed"),
        (format!("{a}\n{}", b.replace("n1", "n2").replace(&at_b, "127.0.0.3:9")), "site b has changed"),
        ("nonsense".to_owned(), "sites.toml"),
    ] {
        std::fs::write(&path, text).unwrap();
        let (_, trunks, stale) = standing(&mut user, true).await;
        assert_eq!(trunks.len(), 1, "what works goes on");
        assert!(stale.as_ref().is_some_and(|text| text.contains(problem)), "{stale:?}");
    }
    // A site that was removed may return with another address, as one does whose first `sites add` was undone.
    let at_b2 = free_address("127.0.0.4");
    std::fs::write(&path, &a).unwrap();
    assert_eq!(standing(&mut user, true).await.1, vec![]);
    let moved = entry(folder, "b", &at_b2);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("b.key"), elsewhere.path().join("b.key")).unwrap();
    let of_b = elsewhere.path().join("sites.toml");
    std::fs::write(&of_b, format!("{a}\n{moved}")).unwrap();
    let _moved = start(&of_b, "b", Arc::default());
    std::fs::write(&path, format!("{a}\n{moved}")).unwrap();
    let (_, trunks, stale) = standing(&mut user, true).await;
    assert_eq!((trunks.len(), stale), (1, None));
    assert!(user.probe("b").await.unwrap() < Duration::from_secs(5));

    std::fs::remove_file(&path).unwrap();
    assert!(standing(&mut user, true).await.2.is_some_and(|text| text.contains("sites.toml")));
}
