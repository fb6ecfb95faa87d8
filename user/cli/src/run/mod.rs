//! `landbridge run`.

pub(crate) mod args;
mod files;
pub(crate) mod parts;
mod terminal;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use commands::run::{RunPlan, detaches_here};
use commands::transfers::beside::Overlap;
use job::message::InputTo;
use launcher::hosts::Host;
use launcher::placement::SitePlacement;
use launcher::{Failure, Summary};
use serde::Serialize;

use self::args::RunArgs;
use self::files::Files;
use self::terminal::Terminal;
use crate::bar::{Bar, asking};
use crate::input::Input;
use crate::output::{is_closed, note};
use crate::sites::push::sent;
use crate::stage::beside;
use crate::table::columns;
use crate::{carried, error, jobs, json};

/// Runs the job and returns the exit code. `words`: the whole command line.
pub(crate) fn run(args: RunArgs, words: Vec<OsString>) -> Result<i32> {
    let (json, began) = (args.json.clone(), Instant::now());
    let result = start(args, words);
    if let (Err(error), Some(target)) = (&result, &json)
        && !is_closed(error)
    {
        let failure = Failure::new(error::whole(error));
        let summary = Summary::without_job(failure, error::code(error).into(), began.elapsed().as_secs_f64());
        write_line(json::object(WithStaging { summary, staged: None })?, target.as_deref())?;
    }
    result
}

fn start(args: RunArgs, words: Vec<OsString>) -> Result<i32> {
    let programs = parts::parts(&args)?;
    let here = args.detach && detaches_here(args.sites.named(), args.from.as_deref())?;
    let plan = RunPlan::new(args.request(programs))?;
    if here {
        plan.check_ranks()?;
        return detach(&words, &args);
    }
    if args.dry_run {
        return show(&plan.placement()?, args.json);
    }
    for pushed in plan.push(asking(), &mut Bar::new())? {
        note(&format!("{}: {}", pushed.site, sent(&pushed)));
    }
    if let Some((sites, site)) = plan.elsewhere()? {
        // A detached job outlives the terminal, so it does not read from it.
        let input = plan.input() != InputTo::None && !(args.detach && std::io::stdin().is_terminal());
        return carried::run(sites, site, with_hosts(parts::with_values(words)?, plan.hosts()), input);
    }
    plan.check_ranks()?;
    let files = args.output_filename.clone().map(Files::new).transpose()?;
    let terminal = Terminal::new((args.prefix, args.raw), args.verbose, files);
    let input: Option<Box<dyn std::io::Read + Send>> = match plan.input() {
        InputTo::None => None,
        InputTo::All | InputTo::Rank(_) => Some(Box::new(Input)),
    };
    let finished = plan.start(&mut Bar::new(), note)?.run(input, terminal)?;
    if let Some(problem) = &finished.problem {
        note(problem);
    }
    let (summary, staged) = finished.finish_staging(note)?;
    if let Some(staged) = &staged {
        note(&beside::line(staged));
    }
    let exit_code = summary.exit_code;
    if let Some(target) = &args.json {
        write_line(json::object(WithStaging { summary, staged })?, target.as_deref())?;
    }
    Ok(exit_code)
}

/// Starts the job without `--detach`, as a process of its own.
fn detach(words: &[OsString], args: &RunArgs) -> Result<i32> {
    // Options end where the program begins.
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let kept = words.iter().enumerate().skip(1).filter(|(at, word)| *at >= end || *word != "--detach");
    let words: Vec<OsString> = kept.map(|(_, word)| word.clone()).collect();
    jobs::detach(&words, args.from.as_deref(), args.json.is_some())
}

/// The JSON summary, with the result of staging.
#[derive(Serialize)]
struct WithStaging {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    staged: Option<Overlap>,
}

/// Replaces `--hostfile` in the command line by the nodes of that file.
fn with_hosts(mut words: Vec<OsString>, hosts: &[Host]) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let is = |word: &OsString, start: &str| word.as_encoded_bytes().starts_with(start.as_bytes());
    let Some(at) = words[..end].iter().position(|word| word == "--hostfile" || is(word, "--hostfile=")) else {
        return words;
    };
    let hosts: Vec<String> = hosts.iter().map(Host::to_string).collect();
    let last = if words[at] == "--hostfile" { at + 1 } else { at };
    words.splice(at..=last, [format!("--host={}", hosts.join(",")).into()]);
    words
}

/// Prints the placement of the job.
fn show(places: &[SitePlacement], json: Option<Option<PathBuf>>) -> Result<i32> {
    match json {
        Some(target) => {
            let ranks: usize = places.iter().map(|place| place.ranks.len()).sum();
            write_line(json::object(serde_json::json!({ "ranks": ranks, "sites": places }))?, target.as_deref())?;
        }
        None => crate::output::stdout().write_all(table(places).as_bytes())?,
    }
    Ok(0)
}

/// A line for each node and program. The program is printed only if it differs from the previous line's.
fn table(places: &[SitePlacement]) -> String {
    let mut rows = vec![["site", "node", "ranks", "program"].map(str::to_owned)];
    for place in places {
        let mut before = None;
        let nodes = match &place.nodes {
            None => vec![("(batch system)", &place.ranks)],
            Some(nodes) => nodes.iter().map(|node| (node.name.as_str(), &node.ranks)).collect(),
        };
        for (node, ranks) in nodes {
            for (at, part) in place.parts.iter().enumerate() {
                let ranks: Vec<u32> = ranks.iter().filter(|rank| part.ranks.contains(rank)).copied().collect();
                if ranks.is_empty() {
                    continue;
                }
                let program = match before.replace(at) == Some(at) {
                    true => String::new(),
                    false => format!("{} in {}", part.command.join(" "), part.directory),
                };
                rows.push([place.name.clone(), node.to_owned(), range(&ranks), program]);
            }
        }
    }
    columns(&rows)
}

fn range(ranks: &[u32]) -> String {
    match ranks {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    }
}

fn write_line(json: String, file: Option<&Path>) -> Result<()> {
    match file {
        Some(file) => std::fs::write(file, json + "\n").with_context(|| format!("summary {}", file.display())),
        None => crate::output::line_of_its_own(&json).context("the summary"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostfile_of_this_machine_travels_as_its_hosts() {
        let hosts = launcher::hosts::parse_file(b"lyon/n1 slots=4\nkyoto/n2\n").unwrap();
        for typed in ["lb run --hostfile f -n 4 -- p --hostfile g", "lb run --hostfile=f -n 4 -- p --hostfile g"] {
            let words = with_hosts(typed.split(' ').map(OsString::from).collect(), &hosts);
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), "lb run --host=lyon/n1:4,kyoto/n2 -n 4 -- p --hostfile g");
        }
        let plain: Vec<OsString> = ["lb", "run", "--", "--hostfile"].map(OsString::from).to_vec();
        assert_eq!(with_hosts(plain.clone(), &hosts), plain);
    }
}
