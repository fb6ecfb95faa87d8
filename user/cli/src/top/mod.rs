//! `landbridge top`: the activity of the gateways of the user's own site, live or as text.

pub(crate) mod args;
mod far;
mod figures;
mod history;
mod screen;
mod tables;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use watching::watch::{Round, Watch};

use self::screen::Screen;
use self::tables::{Choice, Mood, tables};
use crate::sites::file;
use crate::top::args::TopArgs;
use crate::{carried, runtime};

/// Time until the thread that reads keys notices that it is no longer needed.
const KEYS: Duration = Duration::from_millis(200);

/// Shows the view, and returns the exit code.
pub(crate) fn top(args: &TopArgs) -> Result<i32> {
    let path = file::locate(&args.sites)?;
    let sites = file::read(&path)?;
    if let Some(site) = carried::destination(&sites, args.from.as_deref()) {
        return far::top(args, &sites, site);
    }
    let home = file::own_site(&sites, args.from.as_deref())?;
    let watch = Watch::new(&sites, &home, args.interval)?;
    let live = !args.once && !args.json && std::io::stdout().is_terminal();
    let repair = setup::remedy::remedy(sites.site(&home)?, &path);
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

/// The live view, until the user quits.
async fn show(mut rounds: mpsc::Receiver<Round>, mut screen: Screen) -> Result<i32> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut whole = WholeTerminal::take()?;
    let mut events = events()?;
    loop {
        whole.0.draw(|frame| screen.draw(frame)).context("the terminal")?;
        tokio::select! {
            biased;
            _ = interrupt.recv() => return Ok(128 + 2),
            _ = terminate.recv() => return Ok(128 + 15),
            _ = hangup.recv() => return Ok(128 + 1),
            event = events.recv() => {
                if screen.event(&event.context("cannot read keys any more")?.context("the terminal")?) {
                    return Ok(0);
                }
            }
            round = rounds.recv() => screen.take(round.context("stopped receiving from the gateways")?),
        }
    }
}

/// The terminal while the live view uses it; restored on drop. After a panic, the hook set by [`ratatui::try_init`]
/// restores it before the report.
struct WholeTerminal(DefaultTerminal);

impl WholeTerminal {
    fn take() -> Result<WholeTerminal> {
        ratatui::try_init().map(WholeTerminal).map_err(|error| {
            // Restore the parts that were set up before the error.
            ratatui::restore();
            anyhow!("cannot draw on the terminal: {error}; `landbridge top --once` prints one table")
        })
    }
}

impl Drop for WholeTerminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Keys and changes of the terminal's size, read in a thread because reading blocks.
fn events() -> Result<mpsc::Receiver<std::io::Result<Event>>> {
    let (sender, receiver) = mpsc::channel(64);
    let read = move || {
        while !sender.is_closed() {
            let event = match event::poll(KEYS) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read).context("starting a thread that reads keys")?;
    Ok(receiver)
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
