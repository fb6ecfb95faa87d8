//! Observes the gateways of one site repeatedly: connects, reconnects, and computes rates since the last look.

use std::time::Duration;

use client::{Client, ClientError, Role};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use wire::View;

use crate::rates::{Rates, rates};
use launcher::session::dialled;
use launcher::{SessionError, Sites};

/// The shortest and the longest time limit of one look. Between them, the limit is the interval.
const LIMITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));

/// One look at all gateways of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub site: String,
    /// The site's gateways, in the order of the sites file.
    pub gateways: Vec<Look>,
}

/// The result of one status request to a gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub gateway: String,
    /// The address at which the gateway was asked.
    pub address: String,
    /// The reason why it did not answer, with advice; `None` if it answered.
    pub problem: Option<String>,
    /// The state that the gateway reported.
    pub view: Option<Box<View>>,
    /// The gateway's activity since the last look; `None` at the first look, and at the first look after a lost
    /// connection.
    pub rates: Option<Rates>,
}

/// The gateways of a site, some of them connected.
#[derive(Debug)]
pub struct Watch {
    site: String,
    role: Role,
    limit: Duration,
    gateways: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    gateway: client::Gateway,
    client: Option<Client>,
    last: Option<Box<View>>,
}

impl Watch {
    /// Prepares to look at this site's gateways each `interval`. Does not connect yet. The site's key must be on this
    /// machine.
    ///
    /// # Errors
    /// The site is unknown, or its key cannot be used.
    pub fn new(sites: &Sites, site: &str, interval: Duration) -> Result<Watch, SessionError> {
        let site = sites.site(site)?;
        let role = Role::Client { secret: sites.client_secret(site)? };
        let gateways =
            site.gateways.iter().map(|gateway| Watched { gateway: dialled(site, gateway), client: None, last: None });
        let limit = interval.clamp(LIMITS.0, LIMITS.1);
        Ok(Watch { site: site.name.clone(), role, limit, gateways: gateways.collect() })
    }

    /// Looks at all gateways at once. Takes a few seconds at most, even if gateways do not answer.
    pub async fn look(&mut self) -> Round {
        let mut looking = JoinSet::new();
        for (at, mut watched) in std::mem::take(&mut self.gateways).into_iter().enumerate() {
            let (role, limit) = (self.role.clone(), self.limit);
            looking.spawn(async move {
                let look = watched.look(&role, limit).await;
                (at, watched, look)
            });
        }
        let mut found = looking.join_all().await;
        found.sort_by_key(|(at, ..)| *at);
        let mut looks = Vec::new();
        for (_, watched, look) in found {
            self.gateways.push(watched);
            looks.push(look);
        }
        Round { site: self.site.clone(), gateways: looks }
    }

    /// Looks each `every` in a task of its own, as long as the receiver exists. Must be called in a runtime.
    pub fn follow(mut self, every: Duration) -> mpsc::Receiver<Round> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if sender.send(self.look().await).await.is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

impl Watched {
    async fn look(&mut self, role: &Role, limit: Duration) -> Look {
        let seen = match timeout(limit, self.observe(role)).await {
            Ok(seen) => seen.map_err(|error| error.to_string()),
            Err(_) => Err(format!("gateway at {}: no answer within {} s", self.gateway.address, limit.as_secs())),
        };
        let (gateway, address) = (self.gateway.name.clone(), self.gateway.address.clone());
        match seen {
            Ok(view) => {
                let rates = self.last.as_ref().and_then(|last| rates(last, &view));
                self.last = Some(view.clone());
                Look { gateway, address, problem: None, view: Some(view), rates }
            }
            Err(problem) => {
                // A late reply may still arrive, and the gateway may be restarted before the next look.
                (self.client, self.last) = (None, None);
                Look { gateway, address, problem: Some(problem), view: None, rates: None }
            }
        }
    }

    async fn observe(&mut self, role: &Role) -> Result<Box<View>, ClientError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(Client::connect(&self.gateway, role).await?),
        };
        client.observe().await.map(Box::new)
    }
}

impl Round {
    /// True if at least one gateway answered.
    pub fn answered(&self) -> bool {
        self.gateways.iter().any(|look| look.view.is_some())
    }

    /// The reasons why none answered, gateway by gateway.
    pub fn problems(&self) -> String {
        let named = |look: &Look| Some(format!("{}: {}", look.gateway, look.problem.as_ref()?));
        self.gateways.iter().filter_map(named).collect::<Vec<_>>().join("; ")
    }
}
