//! Measures round trips and rates between sites: every ordered pair, one after the other.

use std::time::Duration;

use client::{Client, ClientError};
use serde::Serialize;
use tokio::time::sleep;
use wire::control::Measurement;

use launcher::{SessionError, Sites};

/// Most requests to a gateway that is busy with another measurement, and the pause between them. A measurement takes a
/// few seconds.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(600);

/// The figures for the path from one site to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The site that sends.
    pub from: String,
    /// The site that receives.
    pub to: String,
    /// Round trip over a trunk, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The rate of a short transfer over a trunk, in millions of bits of frames per second. Also `None` if no transfer
    /// was requested.
    pub mbit_s: Option<f64>,
    /// The reason why there are no figures, for the user.
    pub problem: Option<String>,
}

/// Measures from every site to every other site, through a gateway of the user's own site `home`. `transfer`: measures
/// rates too. Before each pair, calls `progress` with both sites, the number of finished pairs and the number of all
/// pairs. A pair takes a few seconds at most.
///
/// # Errors
/// No gateway of `home` can be used, so nothing was measured.
pub async fn measure(
    sites: &Sites,
    home: &str,
    transfer: bool,
    mut progress: impl FnMut(&str, &str, usize, usize),
) -> Result<Vec<Pair>, SessionError> {
    let own = sites.site(home)?;
    let names: Vec<&str> = sites.file.sites.iter().map(|site| site.name.as_str()).collect();
    let ordered =
        names.iter().flat_map(|from| names.iter().map(move |to| (*from, *to))).filter(|(from, to)| from != to);
    let ordered: Vec<(&str, &str)> = ordered.collect();
    let mut client = None;
    let mut pairs = Vec::new();
    for (at, (from, to)) in ordered.iter().enumerate() {
        progress(from, to, at, ordered.len());
        let asked = match &mut client {
            Some(asked) => asked,
            none => match sites.connect(own).await {
                Ok((connected, _)) => none.insert(connected),
                Err(error) if pairs.is_empty() => return Err(error),
                Err(error) => {
                    pairs.push(Pair::failed(from, to, error.to_string()));
                    continue;
                }
            },
        };
        let pair = match ask(asked, from, to, transfer).await {
            Ok(found) => Pair::new(from, to, found),
            Err(error) => {
                client = None;
                Pair::failed(from, to, error.to_string())
            }
        };
        pairs.push(pair);
    }
    Ok(pairs)
}

async fn ask(client: &mut Client, from: &str, to: &str, transfer: bool) -> Result<Measurement, ClientError> {
    for _ in 1..TRIES {
        match client.measure(from, to, transfer).await? {
            Measurement::Busy => sleep(PAUSE).await,
            found => return Ok(found),
        }
    }
    client.measure(from, to, transfer).await
}

impl Pair {
    fn new(from: &str, to: &str, found: Measurement) -> Pair {
        match found {
            Measurement::Done { rtt_ns, bytes, transfer_ns } => {
                let rate = bytes as f64 * 8e3 / transfer_ns as f64;
                let mbit_s = (bytes > 0 && transfer_ns > 0).then_some(rate);
                let (from, to) = (from.to_owned(), to.to_owned());
                Pair { from, to, rtt_ms: Some(rtt_ns as f64 / 1e6), mbit_s, problem: None }
            }
            Measurement::Busy => {
                Pair::failed(from, to, "its gateways are busy with another measurement: try again".to_owned())
            }
            Measurement::Failed { problem } => Pair::failed(from, to, problem),
        }
    }

    fn failed(from: &str, to: &str, problem: String) -> Pair {
        Pair { from: from.to_owned(), to: to.to_owned(), rtt_ms: None, mbit_s: None, problem: Some(problem) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        let found = Measurement::Done { rtt_ns: 5_100_000, bytes: 1_000_000, transfer_ns: 8_000_000 };
        let pair = Pair::new("a", "b", found);
        assert_eq!((pair.rtt_ms, pair.mbit_s, pair.problem), (Some(5.1), Some(1000.0), None));
        let quick = Pair::new("a", "b", Measurement::Done { rtt_ns: 1, bytes: 0, transfer_ns: 0 });
        assert_eq!((quick.mbit_s, quick.problem), (None, None));
        let strange = Pair::new("a", "b", Measurement::Done { rtt_ns: 1, bytes: u64::MAX, transfer_ns: 0 });
        assert_eq!(strange.mbit_s, None);
        assert!(Pair::new("a", "b", Measurement::Busy).problem.is_some_and(|text| text.contains("try again")));
    }
}
