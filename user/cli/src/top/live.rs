//! The live view on the terminal.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use watching::watch::Round;

use super::screen::Screen;

/// Time until the thread that reads keys notices that it is no longer needed.
const KEYS: Duration = Duration::from_millis(200);

/// The live view, until the user quits.
pub(super) async fn show(mut rounds: mpsc::Receiver<Round>, mut screen: Screen) -> Result<i32> {
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
