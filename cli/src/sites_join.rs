//! `landbridge sites invite` and `landbridge sites join`.

use std::io::Write;

use anyhow::{Context, Result};
use setup::add::Wish;
use setup::book::Book;
use setup::here::folders::Folders;
use setup::ticket::Ticket;

use crate::bar::Bar;
use crate::sites_add::{asking, print};
use crate::sites_args::{InviteArgs, JoinArgs};
use crate::{runtime, sites_file};

/// Prints a ticket, and returns the exit code.
pub(crate) fn invite(args: &InviteArgs) -> Result<i32> {
    let book = Book::open(&sites_file::locate(&args.sites)?)?;
    let (at, seconds, mut lines) = (args.at.as_deref(), args.minutes * 60, Bar::new());
    let (site, ticket) = runtime()?.block_on(setup::join::invite(&book, at, seconds, asking(), &mut lines))?;
    let (mut out, ticket) = (std::io::stdout(), ticket.to_string());
    if args.json {
        writeln!(
            out,
            "{}",
            crate::json::object(serde_json::json!({ "site": site, "ticket": ticket, "minutes": args.minutes }))?
        )?;
        return Ok(0);
    }
    writeln!(out, "{ticket}")?;
    let mut err = std::io::stderr();
    writeln!(
        err,
        "landbridge: good once and for {} minutes; at the new site: landbridge sites join NAME TICKET",
        args.minutes
    )?;
    writeln!(err, "landbridge: when it has joined, `landbridge sites add {site}` here tells all other sites")?;
    Ok(0)
}

/// Joins, and returns the exit code.
pub(crate) fn join(args: JoinArgs) -> Result<i32> {
    let text = match args.ticket.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("the ticket on standard input")?,
        text => text.to_owned(),
    };
    let ticket: Ticket = text.parse()?;
    let wish = Wish {
        name: args.name,
        folder: args.folder,
        port: args.port,
        advertise: args.advertise,
        inside: args.inside,
        nodes: args.nodes,
        ..Wish::default()
    };
    let outcome = runtime()?.block_on(setup::join::join(wish, &ticket, &mut Bar::new()))?;
    if args.json {
        writeln!(std::io::stdout(), "{}", crate::json::object(&outcome)?)?;
    } else {
        let file = Folders::of_user()?.sites_file();
        print(&file.display().to_string(), &outcome)?;
    }
    Ok(i32::from(!outcome.ok))
}
