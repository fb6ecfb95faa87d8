//! Figures of the network between all sites, as a site's gateways know them, and requests to measure missing figures.

use std::time::Duration;

use client::{Client, Role};
use serde::Serialize;
use wire::view::PairView;

use crate::watch::Round;
use launcher::session::dialled;
use launcher::{SessionError, Sites};

/// Extra time of a request to measure, beyond the turns of all pairs.
const LEEWAY: Duration = Duration::from_secs(10);
/// The longest request.
const LONGEST: Duration = Duration::from_secs(600);

/// The figures of all pairs of sites.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Links {
    /// The site whose gateways were asked.
    pub site: String,
    /// All sites, in the order of the sites file.
    pub sites: Vec<String>,
    /// Each ordered pair of sites.
    pub pairs: Vec<PairFigures>,
}

/// The figures of the path from one site to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairFigures {
    /// The site that sends.
    pub from: String,
    /// The site that receives.
    pub to: String,
    /// Round trip without queueing, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The rate of the path, in millions of bits per second.
    pub mbit_s: Option<f64>,
    /// Seconds since the rate was measured.
    pub age_s: Option<f64>,
    /// The kind of the measurement; `None` if the rate is unknown.
    pub measured: Option<How>,
    /// True if the rate is unknown or too old to rely on.
    pub stale: bool,
}

/// The kind of a rate's measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Observed on the traffic of jobs.
    Passive,
    /// Measured by a transfer for this purpose.
    Active,
}

impl Links {
    /// The figures from one look at a site's gateways; `None` if none answered. Gateways exchange their figures, so
    /// they differ by seconds at most; the newest figures count.
    pub fn of(round: &Round) -> Option<Links> {
        let views: Vec<_> = round.gateways.iter().filter_map(|look| look.view.as_ref()).collect();
        let sites: Vec<String> = views.first()?.sites.iter().map(|site| site.name.clone()).collect();
        let best = |from: &str, to: &str| {
            let known = views.iter().flat_map(|view| &view.pairs).filter(|pair| pair.from == from && pair.to == to);
            known.min_by_key(|pair| pair.age_ms.unwrap_or(u64::MAX))
        };
        let ordered = sites.iter().flat_map(|from| sites.iter().map(move |to| (from, to)));
        let pairs =
            ordered.filter(|(from, to)| from != to).map(|(from, to)| PairFigures::new(from, to, best(from, to)));
        let pairs = pairs.collect();
        Some(Links { site: round.site.clone(), sites, pairs })
    }

    /// True if no rate is unknown or stale.
    pub fn is_complete(&self) -> bool {
        self.pairs.iter().all(|pair| !pair.stale)
    }
}

impl PairFigures {
    fn new(from: &str, to: &str, pair: Option<&PairView>) -> PairFigures {
        let rate = pair.and_then(|pair| pair.rate);
        let how = |pair: &PairView| if pair.active { How::Active } else { How::Passive };
        PairFigures {
            from: from.to_owned(),
            to: to.to_owned(),
            rtt_ms: pair.and_then(|pair| pair.rtt_us).map(|trip| trip as f64 / 1e3),
            mbit_s: rate.map(|rate| rate as f64 * 8.0 / 1e6),
            age_s: pair.and_then(|pair| pair.age_ms).map(|age| age as f64 / 1e3),
            measured: pair.filter(|_| rate.is_some()).map(how),
            stale: pair.is_none_or(|pair| pair.stale),
        }
    }
}

/// Asks all gateways of the site to measure stale pairs, and to have them measured at other sites. Returns the time
/// that this may take. Afterwards [`Links::is_complete`] is true, unless a trunk is down or ranks use the gateways all
/// the time.
///
/// # Errors
/// No gateway can be asked.
pub async fn measure_stale(sites: &Sites, home: &str) -> Result<Duration, SessionError> {
    let site = sites.site(home)?;
    let role = Role::Client { secret: sites.client_secret(site)? };
    let (mut longest, mut problem) = (None, None);
    for gateway in &site.gateways {
        let asked = async {
            let mut client = Client::connect(&dialled(site, gateway), &role).await?;
            client.measure_links(LONGEST).await
        };
        match asked.await {
            Ok(takes) => longest = longest.max(Some(takes)),
            Err(source) => {
                let (site, gateway) = (site.name.clone(), gateway.name.clone());
                problem = Some(SessionError::Gateway { site, gateway, source });
            }
        }
    }
    match (longest, problem) {
        (Some(takes), _) => Ok((takes + LEEWAY).min(LONGEST)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use wire::View;
    use wire::view::SiteView;

    use super::*;
    use crate::watch::Look;

    #[test]
    fn every_pair_is_there_and_the_newest_figures_count() {
        let pair = |rate, age_ms| PairView {
            from: "a".into(),
            to: "b".into(),
            rtt_us: Some(20_500),
            rate: Some(rate),
            age_ms: Some(age_ms),
            active: age_ms > 1000,
            stale: false,
        };
        let look = |pairs: Vec<PairView>| {
            let sites = ["a", "b"].map(|name| SiteView { name: name.into(), gateways: vec!["gw1".into()] }).to_vec();
            let view = Some(Box::new(View { sites, pairs, ..View::default() }));
            Look { gateway: "gw1".into(), address: "h:1".into(), problem: None, view, rates: None }
        };
        let gateways = vec![look(vec![pair(1_000_000, 5000)]), look(vec![pair(12_500_000, 10)]), look(vec![])];
        let links = Links::of(&Round { site: "a".into(), gateways }).unwrap();
        let [there, back] = &links.pairs[..] else { panic!("{links:?}") };
        assert_eq!((there.rtt_ms, there.mbit_s, there.age_s), (Some(20.5), Some(100.0), Some(0.01)));
        assert_eq!((there.measured, there.stale), (Some(How::Passive), false));
        assert_eq!((back.from.as_str(), back.mbit_s, back.measured, back.stale), ("b", None, None, true));
        assert!(!links.is_complete());
        assert_eq!(Links::of(&Round { site: "a".into(), gateways: vec![] }), None);
    }
}
