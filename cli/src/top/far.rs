//! `landbridge top` on a machine that is no site: a site polls its gateways, and the answers are drawn here.

use std::io::IsTerminal;

use anyhow::{Result, anyhow};
use launch::launcher::Sites;
use launch::watch::Round;
use tokio::io::{AsyncBufReadExt, BufReader, duplex};
use tokio::sync::mpsc;
use types::sites::Site;

use super::screen::Screen;
use super::show;
use crate::args::TopArgs;
use crate::{carried, runtime};

/// How many bytes of a site's answers may wait to be drawn.
const PIPE: usize = 1 << 20;

/// Shows the view, and returns the exit code.
pub(super) fn top(args: &TopArgs, sites: &Sites, site: &Site) -> Result<i32> {
    if args.once || args.json || !std::io::stdout().is_terminal() {
        return carried::command(sites, site, &["top"], carried::typed_after("top"));
    }
    let words = ["--json".into(), "--interval".into(), format!("{}ms", args.interval.as_millis()).into()];
    let (sender, rounds) = mpsc::channel(1);
    let (output, seen) = duplex(PIPE);
    let mut errors = Vec::new();
    let runtime = runtime()?;
    let shown = runtime.block_on(async {
        let reading = async {
            let mut lines = BufReader::new(seen).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(round) = serde_json::from_str::<Round>(&line)
                    && sender.send(round).await.is_err()
                {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            shown = show(rounds, Screen::new(&site.name, args.interval)) => Some(shown),
            ended = carried::carry_to(sites, site, &["top"], words.into(), (output, &mut errors), None) => match ended {
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            },
            () = reading => None,
        }
    });
    runtime.shutdown_background();
    shown.unwrap_or_else(|| Err(anyhow!("site {}: {}", site.name, String::from_utf8_lossy(&errors).trim())))
}
