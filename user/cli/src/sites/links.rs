//! `landbridge sites links`.

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, anyhow};
use commands::carried::destination;
use commands::runtime::runtime;
use commands::{gateways, sites_file};
use tokio::time::{Instant, sleep};
use watching::links::{How, Links, PairFigures, measure_stale};
use watching::watch::Watch;

use crate::carried;
use crate::sites::args::LinksArgs;
use crate::table::matrix;

/// Interval between requests to the gateways.
const EVERY: Duration = Duration::from_secs(1);

/// Prints the known figures, and returns the exit code.
pub(crate) fn links(args: &LinksArgs) -> Result<i32> {
    let (path, sites) = args.sites.read()?;
    if let Some(site) = destination(&sites, args.from.as_deref()) {
        return carried::command(&sites, site, &["sites", "links"], carried::typed_after("links"));
    }
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let repair = gateways::repair(&path, &sites, &home, args.from.as_deref())?;
    let mut watch = Watch::new(&sites, &home, EVERY)?;
    let shown = runtime()?.block_on(async {
        let mut until = None;
        if args.measure {
            until = Some(Instant::now() + measure_stale(&sites, &home).await?);
        }
        loop {
            let round = watch.look().await;
            let Some(links) = Links::of(&round) else {
                return Err(anyhow!("no gateway of site {home} answers: {}; {repair}", round.problems()));
            };
            if until.is_some_and(|until| Instant::now() < until) && !links.is_complete() {
                waits(&links);
                sleep(EVERY).await;
                continue;
            }
            print(&links, args, until.take().is_some())?;
            if !args.watch {
                return Ok(0);
            }
            sleep(EVERY).await;
        }
    });
    match shown {
        // The reader has closed the pipe.
        Err(error) if crate::output::is_closed(&error) => Ok(0),
        shown => shown,
    }
}

/// Redraws one line on a terminal.
fn waits(links: &Links) {
    let left = links.pairs.iter().filter(|pair| pair.stale).count();
    crate::output::redraw(&format!("measuring: {left} of {} pairs left …", links.pairs.len()));
}

fn print(links: &Links, args: &LinksArgs, measured: bool) -> Result<()> {
    if measured {
        crate::output::clear();
    }
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(links)?)?;
    } else {
        if args.watch {
            crate::output::clear_screen();
        }
        out.write_all(text(links, measured).as_bytes())?;
    }
    out.flush()?;
    Ok(())
}

/// A row per sender and a column per receiver, followed by advice about unknown figures.
fn text(links: &Links, measured: bool) -> String {
    if links.sites.len() < 2 {
        return "the sites file has one site, so there are no links between sites\n".to_owned();
    }
    let cell = |from: &str, to: &str| {
        links.pairs.iter().find(|pair| pair.from == from && pair.to == to).map_or("–".to_owned(), figures)
    };
    let sites: Vec<&str> = links.sites.iter().map(String::as_str).collect();
    let mut text = matrix(&sites, cell);
    let named = |of: &dyn Fn(&PairFigures) -> bool| {
        let pairs = links.pairs.iter().filter(|pair| of(pair)).map(|pair| format!("{} to {}", pair.from, pair.to));
        pairs.collect::<Vec<_>>().join(", ")
    };
    let unreached = named(&|pair| pair.rtt_ms.is_none());
    if !unreached.is_empty() {
        text += &format!("nothing is known of {unreached}: `landbridge sites check` shows whether a trunk is up\n");
    }
    let stale = named(&|pair| pair.rtt_ms.is_some() && pair.stale);
    if !stale.is_empty() {
        let remedy = match measured {
            true => {
                "not measured, because ranks use the gateways or another measurement runs; their traffic shows it too"
            }
            false => "`landbridge sites links --measure` measures now",
        };
        text += &format!("unknown or stale rate of {stale}: {remedy}\n");
    }
    text
}

/// The cell of one pair.
fn figures(pair: &PairFigures) -> String {
    let trip = match pair.rtt_ms {
        None => "unknown".to_owned(),
        Some(trip) => format!("{trip:.1} ms"),
    };
    let (Some(rate), Some(age)) = (pair.mbit_s, pair.age_s) else {
        return if pair.rtt_ms.is_some() { format!("{trip}, rate unknown") } else { trip };
    };
    let rate = if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
    let how = match pair.measured {
        Some(How::Active) => "active",
        _ => "passive",
    };
    let stale = if pair.stale { ", stale" } else { "" };
    format!("{trip} {rate} Mbit/s ({how}, {}{stale})", span(age))
}

/// An age.
fn span(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 100.0 * 60.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From, to, round trip, and rate with its age and origin.
    type Figures<'a> = (&'a str, &'a str, Option<f64>, Option<(f64, f64, How)>);

    fn links(figures: &[Figures<'_>]) -> Links {
        let pair = |(from, to, rtt_ms, rate): &Figures<'_>| PairFigures {
            from: (*from).into(),
            to: (*to).into(),
            rtt_ms: *rtt_ms,
            mbit_s: rate.map(|rate| rate.0),
            age_s: rate.map(|rate| rate.1),
            measured: rate.map(|rate| rate.2),
            stale: rate.is_none_or(|rate| rate.1 > 300.0),
        };
        let sites = ["a", "kyoto"].map(str::to_owned).to_vec();
        Links { site: "a".into(), sites, pairs: figures.iter().map(pair).collect() }
    }

    #[test]
    fn every_pair_has_its_cell_and_what_to_do_is_below() {
        let known = links(&[
            ("a", "kyoto", Some(20.04), Some((94.4, 3.2, How::Passive))),
            ("kyoto", "a", Some(20.1), Some((9.44, 1000.0, How::Active))),
        ]);
        let expected = "\
from / to  a                                           kyoto
a          –                                           20.0 ms 94 Mbit/s (passive, 3 s)
kyoto      20.1 ms 9.4 Mbit/s (active, 17 min, stale)  –
unknown or stale rate of kyoto to a: `landbridge sites links --measure` measures now
";
        assert_eq!(text(&known, false), expected);
        assert!(text(&known, true).contains("not measured, because ranks use the gateways"));
        let unknown = text(&links(&[("a", "kyoto", None, None), ("kyoto", "a", Some(20.0), None)]), false);
        assert!(
            unknown.contains("20.0 ms, rate unknown") && unknown.contains("nothing is known of a to kyoto"),
            "{unknown}"
        );
        let alone = Links { sites: vec!["a".into()], ..links(&[]) };
        assert!(text(&alone, false).contains("one site"));
    }
}
