//! `landbridge top` on a machine that belongs to no site: a site polls its gateways, and the answers are drawn here.

use anyhow::{Result, anyhow};
use commands::carried::{Carried, carry_to};
use commands::runtime::runtime;
use job::capture::tail;
use job::message::Stream;
use launcher::Sites;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, duplex};
use tokio::sync::mpsc;
use types::sites::Site;
use watching::watch::Round;

use super::args::TopArgs;
use super::live::show;
use super::screen::Screen;
use crate::bar::{Bar, asking};
use crate::carried;
use crate::output::is_screen;

/// Maximum size of a site's answers that wait to be drawn, in bytes.
const PIPE: usize = 1 << 20;

/// Shows the view, and returns the exit code.
pub(super) fn top(args: &TopArgs, sites: &Sites, site: &Site) -> Result<i32> {
    if args.once || args.json || !is_screen(Stream::Out) {
        return carried::command(sites, site, &["top"], carried::typed_after("top"));
    }
    let words = ["--json".into(), "--interval".into(), format!("{}ms", args.interval.as_millis()).into()];
    let (sender, rounds) = mpsc::channel(1);
    let (output, seen) = duplex(PIPE);
    let runtime = runtime()?;
    let (shown, said) = runtime.block_on(async {
        let (errors, said) = duplex(4096);
        let said = tokio::spawn(tail(Some(said)));
        let command = Carried { sites, site, command: &["top"], words: words.into(), input: None, asking: asking() };
        let reading = async {
            let (mut seen, mut line) = (BufReader::new(seen), Vec::new());
            // A longer line is not a valid round, and ends the view.
            while let Ok(1..) = (&mut seen).take(PIPE as u64).read_until(b'\n', &mut line).await {
                let line = std::mem::take(&mut line);
                if line.len() == PIPE && !line.ends_with(b"\n") {
                    return;
                }
                if let Ok(round) = serde_json::from_slice::<Round>(&line)
                    && sender.send(round).await.is_err()
                {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        let mut bar = Bar::new();
        let shown = tokio::select! {
            shown = show(rounds, Screen::new(&site.name, args.interval)) => Some(shown),
            ended = carry_to(command, (output, errors), &mut bar) => match ended {
                Ok(_) => None,
                Err(error) => Some(Err(error.into())),
            },
            () = reading => None,
        };
        (shown, said.await.unwrap_or_default())
    });
    runtime.shutdown_background();
    shown.unwrap_or_else(|| Err(anyhow!("site {}: {}", site.name, said.last_lines())))
}
