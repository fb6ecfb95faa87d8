//! A gateway that runs takes up a site that was added to its sites file, and says when only a restart would help.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::client::{Client, Role};
use gateway::{GatewayConfig, key, serve_until};
use support::*;
use tokio::sync::oneshot;
use types::SitesFile;
use wire::Control;
use wire::control::TrunkStanding;

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

/// Starts the gateway of a site as `landbridge gateway` does; it ends when what is given back is dropped.
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
    client.send_control(launcher(0), &Control::Status { reload }).await.unwrap();
    match control(client).await {
        Control::Standing { jobs, trunks, stale } => (jobs, trunks, stale),
        other => panic!("{other:?}"),
    }
}

async fn client(folder: &Path, address: &str) -> Client {
    let secret = key::load(&folder.join("a.key")).unwrap().client_secret();
    within("client", async {
        loop {
            match Client::connect(address, &Role::Client { secret: secret.clone() }).await {
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

    // What came later carries jobs like any other.
    let mut job = client(folder, &at_a).await;
    let open = Control::JobOpen {
        job: types::JobId(5),
        secret: wire::Secret::new([5; 32]),
        roster: ROSTER.parse().unwrap(),
        home: "a".into(),
        part: wire::control::Part::Lead,
    };
    job.send_control(launcher(0), &open).await.unwrap();
    for _ in 0..2 {
        let news = control(&mut job).await;
        assert!(matches!(news, Control::JobOpened { .. }), "{news:?}");
    }
    assert_eq!(standing(&mut user, true).await.0, 1);

    for (text, problem) in [
        (b.clone(), "site a is gone"),
        (format!("{a}\n{}", b.replace("n1", "n2").replace(&at_b, "127.0.0.3:9")), "site b is another"),
        ("nonsense".to_owned(), "sites.toml"),
    ] {
        std::fs::write(&path, text).unwrap();
        let (_, trunks, stale) = standing(&mut user, true).await;
        assert_eq!(trunks.len(), 1, "what works goes on");
        assert!(stale.as_ref().is_some_and(|text| text.contains(problem)), "{stale:?}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(standing(&mut user, true).await.2.is_some_and(|text| text.contains("sites.toml")));
}
