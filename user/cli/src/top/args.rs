//! The flags of `landbridge top`.

use std::time::Duration;

use clap::Args;

use crate::argument::ArgumentError;
use crate::sites::file::SitesFileArgs;

/// Watch the gateways of your site
#[derive(Debug, Args)]
#[command(
    long_about = "Watch the gateways of your own site: their trunks to other sites with rates and round trips, \
        retransmitted segments, memory, jobs. Asks every gateway of the site once per interval; one that does not answer is \
        shown with its error and asked again.\n\n\
        Keys: q ends, l shows links, s sorts by rate, arrows scroll, ? explains. If standard output is not a terminal, \
        prints one table after one interval. Exit code 1 if no gateway answers.",
    after_help = "Examples:\n  landbridge top\n  landbridge top --once\n  \
        landbridge top --json --interval 10s >> gateways.jsonl   an object every ten seconds, until interrupted"
)]
pub(crate) struct TopArgs {
    /// Interval between requests to the gateways, from 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Print one table (or one object) after one interval, then exit
    #[arg(long)]
    pub once: bool,
    /// Print the gateways' state and rates as JSON, one object per interval
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site of the gateways; its key must be on this machine [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
}

fn interval(text: &str) -> Result<Duration, ArgumentError> {
    let interval = types::quantity::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err(ArgumentError::Interval(text.to_owned())) }
}
