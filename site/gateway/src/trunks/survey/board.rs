//! One gateway's figures of all trunks between the sites in the sites file: its own, and those that other gateways
//! report. No I/O, no clock: the time is passed in, as milliseconds on the gateway's clock.
//!
//! A gateway reports only on its own trunks. It sends each other gateway the figures for the direction in which it
//! sends itself. Gateways of one site have no trunk between them, so it also forwards to each of them the figures that
//! the siblings of that gateway sent for their trunks to this gateway. All other rows are violations, and figures
//! outside [`RATES`] and [`ROUND_TRIPS`] are ignored.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use types::SiteId;
use types::links::{LinkFigures, LinkTable};
use wire::control::LinksMessage;
use wire::control::links::{GatewayName, LinkRow, MAX_ROWS, RateRow};

use crate::table::error::Violation;
use crate::trunks::survey::estimate::STALE;

/// Ranges of figures that are believed, in bytes per second and in microseconds.
const RATES: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
const ROUND_TRIPS: RangeInclusive<u64> = 1..=60_000_000;
/// Limit at which ages are cut off.
const OLDEST_MS: u64 = 365 * 24 * 3600 * 1000;
/// Time after which an unchanged figure is sent again if it has been measured again.
const AGAIN_MS: i64 = 10_000;

/// A gateway: its site's position in the sites file, and its own within the site.
type GatewayIndex = (u16, u16);

/// Figures of a trunk in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub round_trip: Option<Duration>,
    pub rate: Option<RowRate>,
}

/// A rate, with the time and the way of its measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRate {
    pub bytes_s: u64,
    /// Time on this gateway's clock; negative if that was before its start.
    pub at_ms: i64,
    pub active: bool,
}

/// Figures of the path between two sites, over all gateways that it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PathFigures {
    pub round_trip: Option<Duration>,
    /// The sum over gateways; its time is that of the oldest part.
    pub rate: Option<RowRate>,
}

impl PathFigures {
    pub(crate) fn age_ms(&self, now_ms: i64) -> Option<u64> {
        self.rate.map(|rate| u64::try_from(now_ms - rate.at_ms).unwrap_or(0))
    }

    /// Returns true if the rate is unknown or too old to rely on.
    pub(crate) fn is_stale(&self, now_ms: i64) -> bool {
        self.age_ms(now_ms).is_none_or(|age| u128::from(age) >= STALE.as_millis())
    }

    fn figures(&self) -> LinkFigures {
        LinkFigures {
            round_trip: self.round_trip.map(|trip| trip.as_secs_f64()),
            rate: self.rate.map(|rate| rate.bytes_s as f64),
        }
    }
}

/// The exchange with another gateway.
#[derive(Debug, Default)]
struct Peer {
    /// Version of the last message from it.
    version: u64,
    /// The rows that were sent to it.
    told: HashMap<(GatewayIndex, GatewayIndex), Row>,
}

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Board {
    own: GatewayName,
    /// Sites in the order of the sites file, with the names of their gateways.
    sites: Vec<(String, Vec<String>)>,
    rows: BTreeMap<(GatewayIndex, GatewayIndex), Row>,
    peers: HashMap<GatewayName, Peer>,
    version: u64,
}

impl Board {
    pub(crate) fn new(own: GatewayName, sites: Vec<(String, Vec<String>)>) -> Board {
        Board { own, sites, rows: BTreeMap::new(), peers: HashMap::new(), version: 0 }
    }

    /// Adopts a changed sites file. Rows of sites that remain are kept.
    pub(crate) fn adopt(&mut self, sites: Vec<(String, Vec<String>)>) {
        if sites == self.sites {
            return;
        }
        let before = std::mem::replace(&mut self.sites, sites);
        let name = |place: GatewayIndex| {
            let (site, gateways) = before.get(usize::from(place.0))?;
            let gateway = gateways.get(usize::from(place.1))?.clone();
            Some(GatewayName { site: site.clone(), gateway })
        };
        let rows = std::mem::take(&mut self.rows);
        for ((from, to), row) in rows {
            if let (Some(from), Some(to)) = (name(from), name(to))
                && let (Some(from), Some(to)) = (self.place(&from), self.place(&to))
            {
                self.rows.insert((from, to), row);
            }
        }
        // Positions may have changed: everything is sent again.
        self.peers.values_mut().for_each(|peer| peer.told.clear());
    }

    fn place(&self, name: &GatewayName) -> Option<GatewayIndex> {
        let site = self.sites.iter().position(|(site, _)| *site == name.site)?;
        let gateway = self.sites[site].1.iter().position(|gateway| *gateway == name.gateway)?;
        Some((u16::try_from(site).ok()?, u16::try_from(gateway).ok()?))
    }

    fn name(&self, place: GatewayIndex) -> GatewayName {
        let (site, gateways) = &self.sites[usize::from(place.0)];
        GatewayName { site: site.clone(), gateway: gateways[usize::from(place.1)].clone() }
    }

    /// Notes this gateway's own figures for the direction to another.
    pub(crate) fn measured(&mut self, to: &GatewayName, row: Row) {
        if let (Some(from), Some(to)) = (self.place(&self.own), self.place(to)) {
            self.rows.insert((from, to), row);
        }
    }

    /// Notes that another gateway was restarted: it knows nothing, and counts from the beginning.
    pub(crate) fn restarted(&mut self, peer: &GatewayName) {
        self.peers.remove(peer);
    }

    /// The message that this gateway should send another now, if there is any news.
    pub(crate) fn news(&mut self, peer: &GatewayName, now_ms: i64) -> Option<LinksMessage> {
        let (own, there) = (self.place(&self.own)?, self.place(peer)?);
        let known = self.peers.entry(peer.clone()).or_default();
        let is_for_it =
            |(from, to): (GatewayIndex, GatewayIndex)| from == own || (to == own && from.0 == there.0 && from != there);
        let is_new =
            |pair: &(GatewayIndex, GatewayIndex), row: &Row| known.told.get(pair).is_none_or(|told| row.is_news(told));
        let news: Vec<((GatewayIndex, GatewayIndex), Row)> = (self.rows.iter())
            .filter(|(pair, row)| is_for_it(**pair) && is_new(pair, row))
            .map(|(pair, row)| (*pair, *row))
            .take(MAX_ROWS)
            .collect();
        if news.is_empty() {
            return None;
        }
        known.told.extend(news.iter().copied());
        self.version += 1;
        let rows = news.into_iter().map(|((from, to), row)| row.named(self.name(from), self.name(to), now_ms));
        Some(LinksMessage::Figures { version: self.version, rows: rows.collect() })
    }

    /// Takes a message from another gateway.
    ///
    /// # Errors
    /// It reports on trunks that are not its own, or sends too many rows.
    pub(crate) fn take(
        &mut self,
        peer: &GatewayName,
        version: u64,
        rows: Vec<LinkRow>,
        now_ms: i64,
    ) -> Result<(), Violation> {
        let site = &peer.site;
        if rows.len() > MAX_ROWS {
            return Err(Violation(format!("site {site} sent {} figures; at most {MAX_ROWS} are allowed", rows.len())));
        }
        let siblings = |from: &GatewayName| from.site == self.own.site && from.gateway != self.own.gateway;
        if let Some(row) = rows.iter().find(|row| row.from != *peer && !(row.to == *peer && siblings(&row.from))) {
            let (from, to) = (&row.from, &row.to);
            return Err(Violation(format!(
                "gateway {} of site {site} may not speak for the trunk from {}/{} to {}/{}",
                peer.gateway, from.site, from.gateway, to.site, to.gateway
            )));
        }
        let known = self.peers.entry(peer.clone()).or_default();
        if version <= known.version {
            return Ok(());
        }
        known.version = version;
        for row in rows {
            // Sites files may differ for a while.
            let (Some(from), Some(to)) = (self.place(&row.from), self.place(&row.to)) else { continue };
            if from.0 != to.0
                && let Some(row) = Row::checked(&row, now_ms)
            {
                self.rows.insert((from, to), row);
            }
        }
        Ok(())
    }

    /// The figures of the path from one site to another. Each gateway of the sending site counts once: by its trunk to
    /// the gateway of the same number, which members' frames take, or, if the rate of that trunk is unknown, by the
    /// fastest of its trunks there. The rates are added; the shortest round trip counts.
    pub(crate) fn pair(&self, from: &str, to: &str) -> PathFigures {
        let position = |name: &str| self.sites.iter().position(|(site, _)| site == name);
        let (Some(from), Some(to)) = (position(from), position(to)) else { return PathFigures::default() };
        if from == to {
            return PathFigures::default();
        }
        let (senders, receivers) = (self.sites[from].1.len() as u16, self.sites[to].1.len() as u16);
        let row = |sender, receiver| self.rows.get(&((from as u16, sender), (to as u16, receiver)));
        let mut pair = PathFigures::default();
        for sender in 0..senders {
            let all = || (0..receivers).filter_map(|receiver| row(sender, receiver));
            let trip = all().filter_map(|row| row.round_trip).min();
            pair.round_trip = pair.round_trip.into_iter().chain(trip).min();
            let usual = row(sender, sender).and_then(|row| row.rate);
            let rate = usual.or_else(|| all().filter_map(|row| row.rate).max_by_key(|rate| rate.bytes_s));
            pair.rate = match (pair.rate, rate) {
                (Some(sum), Some(rate)) => Some(RowRate {
                    bytes_s: sum.bytes_s.saturating_add(rate.bytes_s),
                    at_ms: sum.at_ms.min(rate.at_ms),
                    active: sum.active && rate.active,
                }),
                (one, other) => one.or(other),
            };
        }
        pair
    }

    /// The ordered pairs of sites that have figures.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str, PathFigures)> {
        let names = || self.sites.iter().map(|(site, _)| site.as_str());
        let all = names().flat_map(move |from| names().map(move |to| (from, to, self.pair(from, to))));
        all.filter(|(.., pair)| *pair != PathFigures::default())
    }

    /// The table for a job of these sites.
    pub(crate) fn table<'a>(&self, sites: impl ExactSizeIterator<Item = &'a str> + Clone) -> LinkTable {
        let mut table = LinkTable::unknown(sites.len());
        for (from, sender) in sites.clone().enumerate().take(table.sites()) {
            for (to, receiver) in sites.clone().enumerate().take(table.sites()) {
                table.set(SiteId(from as u16), SiteId(to as u16), self.pair(sender, receiver).figures());
            }
        }
        table
    }
}

impl Row {
    /// Returns true if this row should be sent to a gateway that has an earlier one.
    fn is_news(&self, told: &Row) -> bool {
        let figures = |row: &Row| PathFigures { round_trip: row.round_trip, rate: row.rate }.figures();
        let again = self.rate.zip(told.rate).is_some_and(|(now, told)| now.at_ms - told.at_ms >= AGAIN_MS);
        figures(self).differs(figures(told)) || again
    }

    fn named(&self, from: GatewayName, to: GatewayName, now_ms: i64) -> LinkRow {
        let rate = self.rate.map(|rate| RateRow {
            bytes_s: rate.bytes_s,
            age_ms: u64::try_from(now_ms - rate.at_ms).unwrap_or(0),
            active: rate.active,
        });
        let rtt_us = self.round_trip.map(|trip| u64::try_from(trip.as_micros()).unwrap_or(u64::MAX));
        LinkRow { from, to, rtt_us, rate }
    }

    /// A row as a peer sent it; `None` if a figure cannot be right.
    fn checked(row: &LinkRow, now_ms: i64) -> Option<Row> {
        let believed = row.rtt_us.is_none_or(|trip| ROUND_TRIPS.contains(&trip))
            && row.rate.is_none_or(|rate| RATES.contains(&rate.bytes_s));
        believed.then(|| Row {
            round_trip: row.rtt_us.map(Duration::from_micros),
            rate: row.rate.map(|rate| RowRate {
                bytes_s: rate.bytes_s,
                at_ms: now_ms - rate.age_ms.min(OLDEST_MS) as i64,
                active: rate.active,
            }),
        })
    }
}

#[cfg(test)]
mod tests;
