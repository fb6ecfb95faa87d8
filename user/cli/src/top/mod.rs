//! `landbridge top`: the activity of the gateways of the user's own site, live or as text.

pub(crate) mod args;
mod far;
mod figures;
mod history;
mod live;
mod screen;
mod tables;

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use commands::carried::destination;
use commands::runtime::runtime;
use commands::{gateways, sites_file};
use job::message::Stream;
use tokio::sync::mpsc;
use watching::watch::{Round, Watch};

use self::live::show;
use self::screen::Screen;
use self::tables::{Choice, Mood, tables};
use crate::output::is_screen;
use crate::top::args::TopArgs;

/// Shows the view, and returns the exit code.
pub(crate) fn top(args: &TopArgs) -> Result<i32> {
    let (path, sites) = args.sites.read()?;
    if let Some(site) = destination(&sites, args.from.as_deref()) {
        return far::top(args, &sites, site);
    }
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let watch = Watch::new(&sites, &home, args.interval)?;
    let live = !args.once && !args.json && is_screen(Stream::Out);
    let repair = gateways::repair(&path, &sites, &home, args.from.as_deref())?;
    runtime()?.block_on(async {
        let rounds = watch.follow(args.interval);
        if live {
            return show(rounds, Screen::new(&home, args.interval)).await;
        }
        match print(rounds, args).await {
            Ok(last) if last.answered() => Ok(0),
            Ok(last) => Err(anyhow!("no gateway of site {home} answers: {}; {}", last.problems(), repair)),
            // The reader has closed the pipe, so nothing can be printed.
            Err(error) if crate::output::is_closed(&error) => Ok(0),
            Err(error) => Err(error),
        }
    })
}

/// Prints each round from the second on, when there are rates; returns the last round, which is the first one printed
/// unless JSON continues.
async fn print(mut rounds: mpsc::Receiver<Round>, args: &TopArgs) -> Result<Round> {
    let ended = "stopped receiving from the gateways";
    rounds.recv().await.context(ended)?;
    loop {
        let round = rounds.recv().await.context(ended)?;
        let mut out = crate::output::stdout();
        if args.json {
            writeln!(out, "{}", crate::json::object(&round)?)?;
        } else if round.answered() {
            out.write_all(text(&round).as_bytes())?;
        }
        out.flush()?;
        if args.once || !args.json {
            return Ok(round);
        }
    }
}

/// A round as text.
fn text(round: &Round) -> String {
    let mut text = format!("site {}\n", round.site);
    for table in tables(round, Choice { links: true, by_rate: false }, None) {
        text += &format!("\n{}\n", table.title);
        for (mood, line) in table.lines(None) {
            let mark = if mood == Mood::Bad { "! " } else { "  " };
            text += &format!("{mark}{line}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_paper_what_does_not_work_is_marked() {
        let text = text(&tables::tests::round());
        assert!(text.starts_with("site a\n\ngateways\n  gateway"), "{text}");
        assert!(text.contains("\n! gw3      no answer") && text.contains("\n! gw1   c/gw1  down: "), "{text}");
        assert!(text.contains("\nlinks\n"), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }
}
