//! The state of gateways as tables of text, both for plain output and for the live view.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use types::untrusted::one_line;
use watching::links::{How, Links, PairFigures};
use watching::rates::{JobRates, LinkRates, TrunkRates};
use watching::watch::{Look, Round};
use wire::View;
use wire::view::{JobView, LinkView, TrunkView};

use super::figures::{NOTHING, bar, megabits, milliseconds, per_second, span};
use crate::quantity::binary;

/// Width of the memory bar, in characters.
const BAR: usize = 10;

/// A table with its heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FigureTable {
    /// The heading.
    pub title: &'static str,
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Row>,
}

/// Alignment of a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    cells: Vec<String>,
    /// Shown instead of the missing cells.
    rest: String,
    mood: Mood,
}

/// The meaning of a line to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// The names of the columns.
    Head,
    /// Nothing to worry about.
    Fine,
    /// Something does not work.
    Bad,
}

/// Options of the display.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    /// Show links too.
    pub links: bool,
    /// Sort by rate, highest first.
    pub by_rate: bool,
}

/// Identifies a trunk: the own gateway, the other site, and its gateway.
pub(super) type TrunkName = (String, String, String);

impl FigureTable {
    fn new(title: &'static str, columns: &[(&'static str, Align)]) -> FigureTable {
        FigureTable { title, columns: columns.to_vec(), rows: Vec::new() }
    }

    fn push(&mut self, cells: Vec<String>) {
        self.rows.push(Row { cells, rest: String::new(), mood: Mood::Fine });
    }

    fn push_bad(&mut self, cells: Vec<String>, rest: String) {
        self.rows.push(Row { cells, rest, mood: Mood::Bad });
    }

    /// The table's lines, without the title. `width`: maximum line length in characters; columns that do not fit follow
    /// below, preceded by the row's name.
    pub(super) fn lines(&self, width: Option<usize>) -> Vec<(Mood, String)> {
        let widest = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        let blocks = blocks(&widths, self.names(), width.unwrap_or(usize::MAX));
        blocks.iter().enumerate().flat_map(|(number, block)| self.block(block, &widths, number == 0)).collect()
    }

    /// Number of leading columns that name a row.
    fn names(&self) -> usize {
        let is_name = |(title, _): &&(&str, Align)| ["from", "to", "gateway", "site", "job", "link"].contains(title);
        self.columns.iter().take_while(is_name).count().max(1)
    }

    /// The lines of some columns. The text for missing cells is in the first block.
    fn block(&self, columns: &[usize], widths: &[usize], first: bool) -> Vec<(Mood, String)> {
        let line = |cells: &[&str]| {
            let mut text = String::new();
            for &at in columns.iter().filter(|&&at| at < cells.len()) {
                let (cell, width) = (cells[at], widths[at]);
                text += &match self.columns[at].1 {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            text
        };
        let head = line(&self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let has = |row: &&Row| first || columns.last().is_some_and(|last| *last < row.cells.len());
        let rows = self.rows.iter().filter(has).map(|row| {
            let rest = if first { &row.rest[..] } else { "" };
            let text = line(&row.cells.iter().map(String::as_str).collect::<Vec<_>>()) + rest;
            (row.mood, one_line(text.trim_end()).into_owned())
        });
        [(Mood::Head, head.trim_end().to_owned())].into_iter().chain(rows).collect()
    }
}

/// Groups columns into blocks no wider than `most`, if possible. Each block begins with the first `names` columns.
fn blocks(widths: &[usize], names: usize, most: usize) -> Vec<Vec<usize>> {
    let mut blocks: Vec<Vec<usize>> = vec![Vec::new()];
    let mut used = 0;
    for (at, width) in widths.iter().enumerate() {
        // A block of names only would show nothing.
        if used + width > most && blocks.last().is_some_and(|block| block.len() > names) {
            blocks.push((0..names).collect());
            used = widths[..names].iter().map(|width| width + 2).sum();
        }
        used += width + 2;
        if let Some(block) = blocks.last_mut() {
            block.push(at);
        }
    }
    blocks
}

/// All tables, most important first. `past` returns a trunk's recent history, if that column is shown.
pub(super) fn tables(round: &Round, choice: Choice, past: Option<&dyn Fn(&TrunkName) -> String>) -> Vec<FigureTable> {
    let mut found = vec![gateways(round), sites(round), trunks(round, choice, past)];
    if choice.links {
        found.push(links(round, choice));
    }
    found.extend(pairs(round));
    found.push(jobs(round, choice));
    found.retain(|table| !table.rows.is_empty());
    found
}

/// The gateways that answered.
fn views(round: &Round) -> impl Iterator<Item = (&Look, &View)> {
    round.gateways.iter().filter_map(|look| Some((look, look.view.as_deref()?)))
}

/// All trunks of all own gateways, with their rates if known.
pub(super) fn trunk_rates(round: &Round) -> Vec<(TrunkName, &TrunkView, Option<&TrunkRates>)> {
    let mut found = Vec::new();
    for (look, view) in views(round) {
        for (at, trunk) in view.trunks.iter().enumerate() {
            let name = (look.gateway.clone(), trunk.site.clone(), trunk.gateway.clone());
            found.push((name, trunk, look.rates.as_ref().and_then(|rates| rates.trunks.get(at))));
        }
    }
    found
}

/// The sum of both directions.
pub(super) fn both(out: Option<f64>, back: Option<f64>) -> Option<f64> {
    Some(out? + back?)
}

/// Bits per second, for sorting: unknown values come last.
fn weight(rate: Option<f64>) -> Reverse<u64> {
    Reverse(rate.map_or(0, |rate| (rate * 1e6) as u64 + 1))
}

fn gateways(round: &Round) -> FigureTable {
    use Align::{Left, Right};
    let columns = [
        ("gateway", Left),
        ("up for", Right),
        ("memory", Left),
        ("held", Right),
        ("of", Right),
        ("Mbit/s", Right),
        ("frames/s", Right),
        ("jobs", Right),
        ("refused", Right),
        ("dropped", Right),
    ];
    let mut table = FigureTable::new("gateways", &columns);
    for look in &round.gateways {
        let Some(view) = &look.view else {
            let problem = look.problem.clone().unwrap_or_default();
            table.push_bad(vec![look.gateway.clone()], format!("no answer: {problem}"));
            continue;
        };
        let rates = look.rates.as_ref();
        table.push(vec![
            look.gateway.clone(),
            span(view.uptime_ms),
            bar(view.memory.held, view.memory.limit, BAR),
            binary(view.memory.held),
            binary(view.memory.limit),
            megabits(rates.and_then(|rates| rates.relayed_mbit_s)),
            per_second(rates.and_then(|rates| rates.frames_per_s)),
            view.jobs.len().to_string(),
            view.totals.refused.to_string(),
            view.totals.violations.to_string(),
        ]);
    }
    table
}

/// The sites known to the first gateway, and the trunks to them from all gateways.
fn sites(round: &Round) -> FigureTable {
    use Align::{Left, Right};
    let columns = [("site", Left), ("gateways", Left), ("trunks", Left), ("out Mbit/s", Right), ("in Mbit/s", Right)];
    let mut table = FigureTable::new("sites", &columns);
    let Some((_, first)) = views(round).next() else { return table };
    let trunks = trunk_rates(round);
    for site in &first.sites {
        let (name, gateways) = (site.name.clone(), site.gateways.join(", "));
        if site.name == round.site {
            table.push(vec![name, gateways, "here".to_owned()]);
            continue;
        }
        let ours: Vec<_> = trunks.iter().filter(|(_, trunk, _)| trunk.site == site.name).collect();
        let up = ours.iter().filter(|(_, trunk, _)| trunk.up).count();
        let told = format!("{up} of {} up", ours.len());
        let sum =
            |of: fn(&TrunkRates) -> Option<f64>| megabits(ours.iter().map(|(.., rates)| rates.and_then(of)).sum());
        if up == 0 {
            table.push_bad(vec![name, gateways, told], String::new());
        } else {
            let (out, back) = (sum(|rates| rates.sent_mbit_s), sum(|rates| rates.received_mbit_s));
            table.push(vec![name, gateways, told, out, back]);
        }
    }
    table
}

fn trunks(round: &Round, choice: Choice, past: Option<&dyn Fn(&TrunkName) -> String>) -> FigureTable {
    use Align::{Left, Right};
    let mut columns = vec![("from", Left), ("to", Left), ("links", Left), ("out Mbit/s", Right), ("in Mbit/s", Right)];
    columns.extend(past.map(|_| ("last minute", Left)));
    columns.extend([("RTT ms", Right), ("resent/s", Right), ("resent", Right), ("queued", Right), ("lost", Right)]);
    let mut table = FigureTable::new("trunks", &columns);
    let mut found = trunk_rates(round);
    if choice.by_rate {
        found.sort_by_key(|(.., rates)| weight(rates.and_then(|rates| both(rates.sent_mbit_s, rates.received_mbit_s))));
    }
    for (name, trunk, rates) in found {
        let (from, to) = (name.0.clone(), format!("{}/{}", trunk.site, trunk.gateway));
        if !trunk.up {
            table.push_bad(vec![from, to], format!("down: {}", trunk.problem));
            continue;
        }
        let mut cells = vec![
            from,
            to,
            format!("{} of {}", trunk.links.len(), trunk.links_wanted),
            megabits(rates.and_then(|rates| rates.sent_mbit_s)),
            megabits(rates.and_then(|rates| rates.received_mbit_s)),
        ];
        cells.extend(past.map(|past| past(&name)));
        cells.extend([
            // 0: the kernel did not answer.
            milliseconds(trunk.links.iter().map(|link| link.rtt_us).filter(|rtt| *rtt > 0).min()),
            per_second(rates.and_then(|rates| rates.retransmissions_per_s)),
            trunk.links.iter().map(|link| link.retransmissions).fold(0, u64::saturating_add).to_string(),
            binary(trunk.links.iter().map(|link| link.queued).fold(0, u64::saturating_add)),
            trunk.losses.to_string(),
        ]);
        table.push(cells);
    }
    table
}

fn links(round: &Round, choice: Choice) -> FigureTable {
    use Align::{Left, Right};
    let columns = [
        ("from", Left),
        ("to", Left),
        ("link", Right),
        ("address", Left),
        ("up for", Right),
        ("out Mbit/s", Right),
        ("in Mbit/s", Right),
        ("RTT ms", Right),
        ("resent/s", Right),
        ("resent", Right),
        ("queued", Right),
    ];
    let mut table = FigureTable::new("links", &columns);
    let mut found: Vec<(TrunkName, &LinkView, Option<&LinkRates>)> = Vec::new();
    for (name, trunk, rates) in trunk_rates(round) {
        let of = |at: usize| rates.and_then(|rates| rates.links.get(at));
        found.extend(trunk.links.iter().enumerate().map(|(at, link)| (name.clone(), link, of(at))));
    }
    if choice.by_rate {
        found.sort_by_key(|(.., rates)| weight(rates.and_then(|rates| both(rates.sent_mbit_s, rates.received_mbit_s))));
    }
    for ((from, site, gateway), link, rates) in found {
        table.push(vec![
            from,
            format!("{site}/{gateway}"),
            link.index.to_string(),
            link.address.clone(),
            span(link.up_ms),
            megabits(rates.and_then(|rates| rates.sent_mbit_s)),
            megabits(rates.and_then(|rates| rates.received_mbit_s)),
            milliseconds(Some(link.rtt_us).filter(|rtt| *rtt > 0)),
            per_second(rates.and_then(|rates| rates.retransmissions_per_s)),
            link.retransmissions.to_string(),
            binary(link.queued),
        ]);
    }
    table
}

/// The known figures of the network between sites, if there are any.
fn pairs(round: &Round) -> Option<FigureTable> {
    use Align::{Left, Right};
    let columns =
        [("from", Left), ("to", Left), ("RTT ms", Right), ("Mbit/s", Right), ("measured", Left), ("ago", Right)];
    let mut table = FigureTable::new("between sites", &columns);
    let known = |pair: &&PairFigures| pair.rtt_ms.is_some() || pair.mbit_s.is_some();
    for pair in Links::of(round)?.pairs.iter().filter(known) {
        let how = match pair.measured {
            None => NOTHING,
            Some(How::Active) => "active",
            Some(How::Passive) => "passive",
        };
        let stale = if pair.measured.is_some() && pair.stale { ", stale" } else { "" };
        table.push(vec![
            pair.from.clone(),
            pair.to.clone(),
            pair.rtt_ms.map_or_else(|| NOTHING.to_owned(), |trip| format!("{trip:.2}")),
            megabits(pair.mbit_s),
            format!("{how}{stale}"),
            pair.age_s.map_or_else(|| NOTHING.to_owned(), |age| span((age * 1e3) as u64)),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// A job summed over all own gateways, because its frames are spread over them.
struct JobRow<'a> {
    view: &'a JobView,
    members: u32,
    queued: u64,
    leads: Vec<&'a str>,
    /// Out, in, local.
    rates: [Option<f64>; 3],
}

fn jobs(round: &Round, choice: Choice) -> FigureTable {
    use Align::{Left, Right};
    let columns = [
        ("job", Left),
        ("from", Left),
        ("ranks", Left),
        ("members", Right),
        ("window", Right),
        ("out Mbit/s", Right),
        ("in Mbit/s", Right),
        ("local Mbit/s", Right),
        ("queued", Right),
        ("led by", Left),
    ];
    let mut table = FigureTable::new("jobs", &columns);
    let mut rows = job_rows(round);
    if choice.by_rate {
        rows.sort_by_key(|row| weight(row.rates.iter().copied().sum()));
    }
    for row in rows {
        let ranks: Vec<String> = row.view.ranks.iter().map(|site| format!("{} {}", site.site, site.ranks)).collect();
        let [out, back, local] = row.rates.map(megabits);
        let leads = if row.leads.is_empty() { NOTHING.to_owned() } else { row.leads.join(", ") };
        table.push(vec![
            row.view.job.to_string(),
            row.view.home.clone(),
            ranks.join(", "),
            row.members.to_string(),
            binary(row.view.window),
            out,
            back,
            local,
            binary(row.queued),
            if row.view.closing { format!("{leads}, closing") } else { leads },
        ]);
    }
    table
}

fn job_rows(round: &Round) -> Vec<JobRow<'_>> {
    let mut rows: Vec<JobRow<'_>> = Vec::new();
    let mut places = BTreeMap::new();
    for (look, view) in views(round) {
        for (at, job) in view.jobs.iter().enumerate() {
            let rates = look.rates.as_ref().and_then(|rates| rates.jobs.get(at));
            let of = |part: fn(&JobRates) -> Option<f64>| rates.and_then(part);
            let rates = [of(|job| job.sent_mbit_s), of(|job| job.received_mbit_s), of(|job| job.local_mbit_s)];
            let place = *places.entry(job.job).or_insert(rows.len());
            if place == rows.len() {
                rows.push(JobRow { view: job, members: 0, queued: 0, leads: Vec::new(), rates: [Some(0.0); 3] });
            }
            let row = &mut rows[place];
            // Every member is connected to every gateway, except while it is still connecting.
            row.members = row.members.max(job.members);
            row.queued = row.queued.saturating_add(job.queued);
            row.leads.extend(job.leads.then_some(look.gateway.as_str()));
            for (sum, part) in row.rates.iter_mut().zip(rates) {
                *sum = both(*sum, part);
            }
        }
    }
    rows
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use types::JobId;
    use watching::rates::rates;
    use wire::control::Traffic;
    use wire::view::{MemoryView, PairView, RanksView, SiteView};

    use super::*;

    fn view(gateway: &str, uptime_ms: u64, sent: u64) -> View {
        let link = |index, rtt_us| LinkView {
            index,
            address: format!("192.0.2.7:{}", 7700 + index),
            up_ms: uptime_ms - 1000,
            sent: sent / 2,
            received: 0,
            queued: 2048,
            rtt_us,
            retransmissions: sent / 1_000_000,
        };
        let trunk = |site: &str, up: bool| TrunkView {
            site: site.into(),
            gateway: "gw1".into(),
            up,
            problem: if up { String::new() } else { "connection refused\u{1b}[2J".into() },
            links_wanted: 2,
            losses: 3,
            sent: if up { sent } else { 0 },
            links: if up { vec![link(0, 5200), link(1, 5100)] } else { vec![] },
            ..TrunkView::default()
        };
        let job = JobView {
            job: JobId(0xab),
            home: "a".into(),
            leads: gateway == "gw1",
            ranks: [("a", 2), ("b", 6)].map(|(site, ranks)| RanksView { site: site.into(), ranks }).to_vec(),
            members: 9,
            window: 8 << 20,
            queued: 512,
            traffic: Traffic { sent, received: sent, local: 0 },
            ..JobView::default()
        };
        let pair = PairView {
            from: "a".into(),
            to: "b".into(),
            rtt_us: Some(5100),
            rate: Some(11_750_000),
            age_ms: Some(4000),
            ..PairView::default()
        };
        let sites = ["a", "b", "c"].map(|name| SiteView { name: name.into(), gateways: vec!["gw1".into()] });
        View {
            site: "a".into(),
            gateway: gateway.into(),
            uptime_ms,
            memory: MemoryView { limit: 64 << 20, held: 32 << 20, ..MemoryView::default() },
            sites: sites.to_vec(),
            trunks: vec![trunk("b", true), trunk("c", false)],
            jobs: vec![job],
            pairs: vec![pair],
            ..View::default()
        }
    }

    /// Two gateways that carry 80 and 8 Mbit/s, and one that is down.
    pub(crate) fn round() -> Round {
        let look = |gateway: &str, sent: u64| {
            let (before, after) = (view(gateway, 60_000, 1_000_000), view(gateway, 61_000, 1_000_000 + sent));
            let rates = rates(&before, &after);
            Look { gateway: gateway.into(), address: "h:1".into(), problem: None, view: Some(Box::new(after)), rates }
        };
        let gone = Look {
            gateway: "gw3".into(),
            address: "h:3".into(),
            problem: Some("gateway at h:3: refused".into()),
            view: None,
            rates: None,
        };
        Round { site: "a".into(), gateways: vec![look("gw1", 1_000_000), look("gw2", 10_000_000), gone] }
    }

    fn text(choice: Choice) -> Vec<(&'static str, Vec<String>)> {
        let lines = |table: FigureTable| table.lines(None).into_iter().map(|(_, line)| line).collect();
        tables(&round(), choice, None).into_iter().map(|table| (table.title, lines(table))).collect()
    }

    #[test]
    fn everything_has_its_row() {
        let found = text(Choice::default());
        let [gateways, sites, trunks, pairs, jobs] = &found[..] else { panic!("{found:?}") };
        let titles = [gateways.0, sites.0, trunks.0, pairs.0, jobs.0];
        assert_eq!(titles, ["gateways", "sites", "trunks", "between sites", "jobs"]);
        let cells: Vec<_> = pairs.1[1].split_whitespace().collect();
        assert_eq!((cells.as_slice(), pairs.1.len()), (&["a", "b", "5.10", "94.0", "passive", "4", "s"][..], 2));
        assert_eq!(gateways.1[1].split_whitespace().take(4).collect::<Vec<_>>(), ["gw1", "1", "min", "1"]);
        assert!(gateways.1[1].contains("█████░░░░░  32.0 MiB  64.0 MiB"), "{gateways:?}");
        assert_eq!(gateways.1[3], "gw3      no answer: gateway at h:3: refused");
        assert_eq!(sites.1[1], "a     gw1       here");
        assert!(sites.1[2].starts_with("b     gw1       2 of 2 up"), "{sites:?}");
        assert!(sites.1[2].contains("88.0"), "both ways together: {sites:?}");
        assert_eq!(sites.1[3], "c     gw1       0 of 2 up");
        let cells: Vec<_> = trunks.1[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["gw1", "b/gw1", "2 of 2", "8.00", "0", "5.10", "2.0", "4", "4.0 KiB", "3"]);
        assert_eq!(trunks.1[2], "gw1   c/gw1  down: connection refused\\u{1b}[2J", "nothing controls the terminal");
        let cells: Vec<_> = jobs.1[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["000000ab", "a", "a 2, b 6", "9", "8.0 MiB", "88.0", "88.0", "0", "1.0 KiB", "gw1"]);
        assert_eq!(jobs.1.len(), 2, "one row, although two gateways carry it");
    }

    #[test]
    fn links_are_shown_when_asked_for_and_the_busiest_comes_first() {
        let found = text(Choice { links: true, by_rate: true });
        let (title, links) = &found[3];
        assert_eq!((*title, links.len()), ("links", 5));
        assert!(links[1].starts_with("gw2   b/gw1     0  192.0.2.7:7700  1 min 0 s"), "{links:?}");
        let trunks = &found[2].1;
        let order: Vec<_> =
            trunks.iter().skip(1).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
        assert_eq!(order, [["gw2", "b/gw1"], ["gw1", "b/gw1"], ["gw1", "c/gw1"], ["gw2", "c/gw1"]]);
    }

    #[test]
    fn without_an_earlier_look_nothing_is_guessed() {
        let mut round = round();
        round.gateways.iter_mut().for_each(|look| look.rates = None);
        let found = tables(&round, Choice::default(), Some(&|_| "past".into()));
        let trunks = found[2].lines(None);
        assert!(trunks[1].1.contains("–") && trunks[1].1.contains("past"), "{trunks:?}");
        round.gateways.iter_mut().for_each(|look| look.view = None);
        assert_eq!(tables(&round, Choice::default(), None).len(), 1, "only that none answers");
    }
}
