//! `landbridge stage status`, `pause`, `resume`, `cancel` and `rate`: commands for running transfers.

use std::io::Write;

use anyhow::{Context, Result};
use commands::site_id::{SiteId, far};
use commands::transfers::socket::{self, FoundTransfer, Steering, TransferState, found};
use serde::Deserialize;
use stage::mover::Control;
use types::untrusted::one_line;

use super::args::{FarArgs, OneArgs, RateArgs, StatusArgs};
use crate::quantity::decimal;
use crate::{carried, json};

/// The transfers listed by a site.
#[derive(Deserialize)]
struct SiteTransfers {
    transfers: Vec<serde_json::Value>,
}

/// Shows the transfers of this machine, and those of the site that `stage` is carried to.
pub(crate) fn status(args: &StatusArgs) -> Result<i32> {
    let named = args.id.as_ref().and_then(|id| id.site.as_deref()).or(args.far.from.as_deref());
    let far = if args.id.is_some() && named.is_none() { None } else { far(args.far.sites.named(), named)? };
    let number = args.id.as_ref().map(|id| id.number);
    let own = if named.is_some() && far.is_some() { Vec::new() } else { found(number, args.far.from.as_deref())? };
    let number = number.iter().map(|number| number.to_string().into());
    let mut out = crate::output::stdout();
    if args.json {
        let mut transfers = own.iter().map(described).collect::<Result<Vec<_>, _>>()?;
        if let Some((sites, site)) = &far {
            let words = number.chain(["--json".into()]).collect();
            let (code, printed) = carried::answer(sites, site, &["stage", "status"], words)?;
            if code != 0 {
                return Ok(code);
            }
            let there: SiteTransfers =
                serde_json::from_slice(&printed).with_context(|| format!("output of site {}", site.name))?;
            transfers.extend(there.transfers);
        }
        writeln!(out, "{}", json::object(serde_json::json!({ "transfers": transfers }))?)?;
        return Ok(0);
    }
    if own.is_empty() && far.is_none() {
        crate::output::note("no transfer is running here");
    }
    for FoundTransfer { id, state, .. } in own {
        let id = SiteId::shown(id, args.far.from.as_deref());
        let TransferState { title, arrived, total, seconds, paused, rate, .. } = match state {
            Ok(state) => state,
            Err(silence) => {
                writeln!(out, "{id}  {silence}")?;
                continue;
            }
        };
        let share = (arrived * 100).checked_div(total).map_or(String::new(), |percent| format!(" ({percent} %)"));
        let limit = rate.map_or(String::new(), |rate| format!(", at most {}/s", decimal(rate)));
        let paused = if paused { ", paused" } else { "" };
        let title = one_line(&title);
        writeln!(
            out,
            "{id}  {title}: {} of {}{share} after {seconds:.0} s{limit}{paused}",
            decimal(arrived),
            decimal(total)
        )?;
    }
    match far {
        Some((sites, site)) => carried::command(&sites, &site, &["stage", "status"], number.collect()),
        None => Ok(0),
    }
}

/// A transfer for `--json`. Only its process knows its state.
fn described(transfer: &FoundTransfer) -> serde_json::Result<serde_json::Value> {
    let (mut object, problem) = match &transfer.state {
        Ok(state) => (serde_json::to_value(state)?, None),
        Err(silence) => {
            let mut unknown = serde_json::to_value(TransferState::default())?;
            let fields = unknown.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut);
            fields.for_each(|value| *value = serde_json::Value::Null);
            unknown["id"] = transfer.id.into();
            if let Some(site) = &transfer.site {
                unknown["site"] = site.as_str().into();
            }
            (unknown, Some(silence))
        }
    };
    object["problem"] = serde_json::to_value(problem)?;
    Ok(object)
}

/// Sends a control to a transfer, or to the only one if no id is given. `word` and `value`: the command as typed.
fn steer(id: Option<&SiteId>, args: &FarArgs, control: Control, word: &str, value: Option<String>) -> Result<i32> {
    let steering = Steering { id, from: args.from.as_deref(), sites: args.sites.named(), control };
    let Some((sites, site)) = socket::steer(steering)? else { return Ok(0) };
    let words = id.map(|id| id.number.to_string()).into_iter().chain(value).map(Into::into);
    carried::command(&sites, &site, &["stage", word], words.collect())
}

pub(crate) fn pause(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Pause, "pause", None)
}

pub(crate) fn resume(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Resume, "resume", None)
}

pub(crate) fn cancel(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Cancel, "cancel", None)
}

pub(crate) fn rate(args: &RateArgs) -> Result<i32> {
    let typed = args.rate.map_or("none".to_owned(), |rate| format!("{rate}B/s"));
    steer(Some(&args.id), &args.far, Control::Rate(args.rate), "rate", Some(typed))
}
