//! `landbridge sites invite` and `landbridge sites join`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use anyhow::{Context, Result, bail};
use commands::runtime::runtime;
use setup::add::Wish;
use setup::book::Book;
use setup::here::folders::Folders;
use setup::ticket::Ticket;
use types::shell;

use crate::bar::Bar;
use crate::bar::asking;
use crate::output::{note, stderr};
use crate::sites::add::print;
use crate::sites::args::{InviteArgs, JoinArgs};

/// Maximum length of a ticket, in bytes.
const MOST_TICKET: u64 = 4096;

/// Prints a ticket, and returns the exit code.
pub(crate) fn invite(args: &InviteArgs) -> Result<i32> {
    let book = Book::open(&args.sites.locate()?)?;
    let (at, seconds, mut lines) = (args.at.as_deref(), args.minutes * 60, Bar::new());
    let (site, ticket) = runtime()?.block_on(setup::join::invite(&book, at, seconds, asking(), &mut lines))?;
    let (mut out, ticket) = (crate::output::stdout(), ticket.to_string());
    if args.json {
        writeln!(
            out,
            "{}",
            crate::json::object(serde_json::json!({ "site": site, "ticket": ticket, "minutes": args.minutes }))?
        )?;
        return Ok(0);
    }
    let carry = match &args.ticket {
        None => {
            writeln!(out, "{ticket}")?;
            "landbridge sites join NAME, which asks for it".to_owned()
        }
        Some(path) => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            let written = file.and_then(|mut file| writeln!(file, "{ticket}"));
            written.with_context(|| format!("{}: the ticket cannot be written there", path.display()))?;
            format!("landbridge sites join NAME --ticket {}", shell::path(path))
        }
    };
    note(&format!("good once and for {} minutes; at the new site: {carry}", args.minutes));
    note(&format!("when it has joined, `landbridge sites add {site} --accept NAME` here tells all other sites"));
    Ok(0)
}

/// Reads the ticket, from a file that only its owner can read. On the command line all users see it, so this warns
/// then.
fn read_ticket(args: &JoinArgs) -> Result<Ticket> {
    let text = match (&args.file, args.ticket.as_deref()) {
        (Some(path), _) => {
            let place = || format!("{}: the ticket", path.display());
            let file = File::open(path).with_context(place)?;
            let found = file.metadata().with_context(place)?;
            if found.is_dir() {
                bail!("{}: this is a folder: name the file that has the ticket", path.display());
            }
            if found.mode() & 0o077 != 0 {
                bail!(
                    "{}: others can read this ticket, and use it first: type `chmod 600 {}`, or, if one of them may have read \
                     it, `landbridge sites invite` for another",
                    path.display(),
                    shell::path(path)
                );
            }
            one_line(file).with_context(place)?
        }
        (None, None | Some("-")) => {
            if asking() {
                write!(stderr(), "landbridge: the ticket of `landbridge sites invite`: ")?;
            }
            one_line(std::io::stdin()).context("the ticket on standard input")?
        }
        (None, Some(text)) => {
            note(
                "every user of this machine can read a ticket on a command line, and use it first: leave it out and paste \
                 it when asked, or give its file with --ticket FILE",
            );
            text.to_owned()
        }
    };
    Ok(text.parse()?)
}

fn one_line(source: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    BufReader::new(source.take(MOST_TICKET)).read_line(&mut text)?;
    Ok(text)
}

/// Joins, and returns the exit code.
pub(crate) fn join(args: JoinArgs) -> Result<i32> {
    let ticket = read_ticket(&args)?;
    let wish = Wish {
        name: args.name,
        folder: args.folder,
        port: args.port,
        advertise: args.advertise,
        inside: args.inside,
        nodes: args.nodes,
        accept: args.newcomers.accept,
        ..Wish::default()
    };
    let outcome = runtime()?.block_on(setup::join::join(wish, &ticket, &mut Bar::new()))?;
    if args.json {
        writeln!(crate::output::stdout(), "{}", crate::json::object(&outcome)?)?;
    } else {
        let file = Folders::of_user()?.sites_file();
        print(&file.display().to_string(), &outcome)?;
    }
    Ok(i32::from(!outcome.ok))
}
