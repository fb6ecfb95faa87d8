//! `landbridge run`.

pub(crate) mod args;
pub(crate) mod files;
pub(crate) mod input;
pub(crate) mod parts;
pub(crate) mod terminal;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use job::environment::{setting, travelling};
use job::home::{TYPED_DIRECTORY, homes};
use job::message::{Family, InputTo, MpiChoice, Part};
use job::mpi::layer;
use job::program;
use launcher::hosts::{self, Host};
use launcher::parts::{Joined, PartWish, join};
use launcher::placement::{SitePlacement, place};
use launcher::spread::{SpreadError, Wish, counts};
use launcher::tailor::{self, Typed};
use launcher::{Request, Summary};
use serde::Serialize;
use starters::held;
use types::SitesFile;
use types::roster::FORWARDER;
use wire::control::HeldAllocation;

use crate::alone::{self, Alone};
use crate::run::args::{MapBy, Mpi, RunArgs};
use crate::run::files::Files;
use crate::run::input::Input;
use crate::run::parts::TypedPart;
use crate::run::terminal::Terminal;
use crate::sites::file;
use crate::sites::push;
use crate::sites::start;
use crate::stage::beside;
use crate::stage::beside::Overlap;
use crate::{carried, jobs, json, runtime, wrong};

/// Runs the job and returns the exit code. `words`: the whole command line.
pub(crate) fn run(args: RunArgs, words: Vec<OsString>) -> Result<i32> {
    let parts = parts::parts(&args).unwrap_or_else(|error| error.exit());
    if args.detach && is_typed_here(&args)? {
        // Options end where the program begins.
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        let kept = words.iter().enumerate().skip(1).filter(|(at, word)| *at >= end || *word != "--detach");
        return jobs::detach(&kept.map(|(_, word)| word.clone()).collect::<Vec<_>>(), args.from.as_deref());
    }
    let origin = origin(&args, &parts)?;
    let whole = match &origin {
        Origin::File(file) => file::read(file)?,
        Origin::ThisMachine(alone) => alone.sites.clone(),
    };
    let mut sites = whole.clone();
    let wishes: Vec<PartWish> = parts.iter().map(TypedPart::wish).collect();
    let Joined { ranks, per_site, firsts } = join(&mut sites.file, &wishes).map_err(wrong)?;
    // Ranks on one machine have no other node, so it needs no `slots`.
    let fill = args.map_by == MapBy::Slot && matches!(origin, Origin::File(_));
    let mut wish = Wish { ranks, ranks_per_node: args.ranks_per_node, fill, per_site };
    let hosts = hosts(&args)?;
    let (output, verbose) = (args.output_filename.clone(), args.verbose);
    let local_files = local_files(&args);
    let (beside, detach) = (args.beside.clone(), args.detach);
    let summary_to = args.json.clone();
    let (from, wait, timeout, prefix, dry) = (args.from.clone(), args.wait, args.timeout, args.prefix, args.dry_run);
    let raw = args.raw;
    let push_to: BTreeSet<String> =
        parts.iter().flat_map(|part| &part.per_site).map(|share| share.site.clone()).collect();
    let push_to: Vec<String> = push_to.into_iter().collect();
    let pushed = if dry { Vec::new() } else { args.push.clone() };
    let movers = parts.iter().all(|part| part.command.iter().map(OsString::as_os_str).eq(program::MOVER));
    let typed = typed(&args, parts, &firsts)?;
    let elsewhere = match &origin {
        Origin::File(_) => carried::destination(&whole, from.as_deref()),
        Origin::ThisMachine(_) => None,
    };
    let runtime = runtime()?;
    let (mut home, mut held) = (alone::SITE.to_owned(), None);
    if let Origin::File(_) = &origin
        && elsewhere.is_none()
    {
        home = file::own_site(&whole, from.as_deref())?;
        held = runtime.block_on(held::find(sites.site(&home)?))?;
    }
    if let Some(held) = &held {
        held::fill(&mut sites.file, &home, held);
        if hosts.is_empty() {
            wish.or_all_of(&home, held);
        }
    }
    hosts::choose(&mut sites.file, &mut wish, &hosts, movers).map_err(wrong)?;
    // Nodes outside the batch job belong to a node service.
    let of_job = |held: &HeldAllocation, name: &str| name == FORWARDER || held.nodes.iter().any(|own| own.name == name);
    let held =
        held.filter(|held| sites.site(&home).is_ok_and(|site| site.nodes.iter().all(|node| of_job(held, &node.name))));
    // Report wrong numbers and unknown sites before using the network.
    let checked = counts(&sites.file, &wish);
    if !matches!(checked, Err(SpreadError::NoNumber)) {
        checked.map_err(not_to_be_spread)?;
    }
    push::before_run(&sites, &push_to, &pushed)?;
    if let Some(site) = elsewhere.filter(|_| !dry) {
        if let Some(option) = local_files {
            return Err(wrong(format!(
                "{option}: the job is started at site {}, which has other files than this machine: type it there",
                site.name
            )));
        }
        // A detached job outlives the terminal, so it does not read from it.
        let input = typed.input != InputTo::None && !(detach && std::io::stdin().is_terminal());
        return carried::run(&whole, site, with_hosts(parts::with_values(words)?, &hosts), input);
    }
    if dry {
        return show(&sites.file, &wish, &typed, summary_to);
    }
    let ranks: u32 = counts(&sites.file, &wish).map_err(not_to_be_spread)?.iter().sum();
    if let InputTo::Rank(rank) = typed.input
        && rank >= ranks
    {
        return Err(wrong(format!(
            "--stdin {rank}: the job has {ranks} rank(s), numbered from 0; give one of them, or all, or none"
        )));
    }
    let source: Option<Box<dyn std::io::Read + Send>> = match typed.input {
        InputTo::None => None,
        InputTo::All | InputTo::Rank(_) => Some(Box::new(Input)),
    };
    let terminal = Terminal::new((prefix, raw), verbose, output.map(Files::new).transpose()?);
    let (file, gateway) = match origin {
        Origin::File(file) => {
            start::ensure(&file, &whole, &home)?;
            (Some(file), None)
        }
        Origin::ThisMachine(alone) => {
            crate::output::note(alone::NOTE);
            (None, Some(alone.start()?))
        }
    };
    let own = home.clone();
    let places = match beside.is_wanted() {
        true => place(&sites.file, &wish, &typed).map_err(|failure| anyhow!(failure.to_string()))?,
        false => Vec::new(),
    };
    let beside = beside::start(&beside, file.as_deref().map(|file| (file, own.as_str())), &places)?;
    let request = Request { sites, home, wish, held, wait, timeout, typed };
    let mut summary = runtime.block_on(launcher::run(request, source, terminal));
    gateway.map_or(Ok(()), alone::Running::end)?;
    if let Some(failure) = &summary.failure {
        // A single line, because the last line names the failure.
        let advice = file.and_then(|file| start::advice(&file, &whole, &own, failure));
        let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
        crate::output::note(&format!("{failure}{advice}"));
    }
    let mut staged = None;
    if let Some(beside) = beside {
        staged = beside.finish_after(&summary)?;
        match &staged {
            Some(overlap) => crate::output::note(&overlap.line()),
            None if summary.exit_code == 0 => summary.exit_code = 1,
            None => {}
        }
    }
    let exit_code = summary.exit_code;
    if let Some(target) = &summary_to {
        write_line(json::object(WithStaging { summary, staged })?, target.as_deref())?;
    }
    Ok(exit_code)
}

/// Classifies the error: an option is wrong, or a site is too small for the job.
fn not_to_be_spread(error: SpreadError) -> anyhow::Error {
    match error {
        SpreadError::Full { .. } | SpreadError::AllFull { .. } | SpreadError::NoSlots { .. } => error.into(),
        _ => wrong(error),
    }
}

/// The JSON summary, with the result of staging.
#[derive(Serialize)]
struct WithStaging {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    staged: Option<Overlap>,
}

/// Origin of a job's sites.
enum Origin {
    File(PathBuf),
    /// Without a sites file.
    ThisMachine(Box<Alone>),
}

fn origin(args: &RunArgs, parts: &[TypedPart]) -> Result<Origin> {
    if let Some(file) = file::find(&args.sites)? {
        return Ok(Origin::File(file));
    }
    alone::check(args, parts)?;
    Ok(Origin::ThisMachine(Box::new(Alone::new()?)))
}

/// The nodes given by the user.
fn hosts(args: &RunArgs) -> Result<Vec<Host>> {
    let Some(file) = &args.hostfile else { return Ok(args.hosts.clone()) };
    let text = std::fs::read(file).with_context(|| format!("--hostfile {}", file.display()))?;
    let hosts = hosts::parse_file(&text).with_context(|| format!("--hostfile {}", file.display()))?;
    if hosts.is_empty() {
        bail!("--hostfile {}: it names no node: write SITE/NODE on a line for each", file.display());
    }
    Ok(hosts)
}

/// Returns true if the job is started on this machine, not carried to a site.
fn is_typed_here(args: &RunArgs) -> Result<bool> {
    let Some(file) = file::find(&args.sites)? else { return Ok(true) };
    Ok(carried::destination(&file::read(&file)?, args.from.as_deref()).is_none())
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

/// The first option that names a file of this machine.
fn local_files(args: &RunArgs) -> Option<&'static str> {
    let here =
        args.beside.names_this_machine().then_some("--stage-in from a path or --stage-out to a path without a site");
    here.or(args.output_filename.as_ref().map(|_| "--output-filename"))
}

/// The command as typed, valid at any site. `firsts`: the first rank of each program.
fn typed(args: &RunArgs, parts: Vec<TypedPart>, firsts: &[u32]) -> Result<Typed> {
    let bind = args.bind_to.map(|to| (b"LANDBRIDGE_BIND".to_vec(), to.value().into()));
    let collectives = args.collectives.map(|whose| (layer::VARIABLE.into(), whose.value().into()));
    let from = working_directory()?;
    let below = |folder: PathBuf| if folder.starts_with("~") { folder } else { from.join(folder) };
    let part = |(part, &first): (TypedPart, &u32)| {
        let variables = part.variables.iter().map(|text| setting(text, |name| std::env::var_os(name)));
        let mut settings = variables.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        settings.extend(bind.clone());
        settings.extend(collectives.clone());
        let own_programs =
            part.per_site.into_iter().filter_map(|share| Some((share.site, share.program?.into_bytes())));
        Ok(tailor::TypedPart {
            part: Part { first, settings, ..command(part.command)? },
            own_programs: own_programs.collect(),
            wdir: part.wdir.map(|folder| below(folder).into_os_string().into_vec()),
        })
    };
    let parts = parts.into_iter().zip(firsts).map(part).collect::<Result<_>>()?;
    Ok(Typed { input: args.stdin, raw: args.raw, ..of_parts(parts, args.mpi) })
}

/// One program, the same at all sites.
pub(crate) fn program(words: Vec<OsString>) -> Result<Typed> {
    let part = tailor::TypedPart { part: command(words)?, ..tailor::TypedPart::default() };
    Ok(of_parts(vec![part], Mpi::Auto))
}

fn command(words: Vec<OsString>) -> Result<Part> {
    let command = words.into_iter().map(OsStringExt::into_vec).collect();
    Ok(Part { command, directory: working_directory()?.into_os_string().into_vec(), ..Part::default() })
}

/// A command with these programs and this process's environment.
fn of_parts(parts: Vec<tailor::TypedPart>, mpi: Mpi) -> Typed {
    let mpi = match mpi {
        Mpi::Auto => MpiChoice::Auto,
        Mpi::Mpich => MpiChoice::Named(Family::Mpich),
        Mpi::Intel => MpiChoice::Named(Family::Intel),
        Mpi::Openmpi => MpiChoice::Named(Family::OpenMpi),
        Mpi::None => MpiChoice::Libfabric,
    };
    Typed { parts, mpi, environment: travelling(std::env::vars_os()), input: InputTo::None, raw: false, homes: homes() }
}

/// The working directory of the user. Prefers the shell's name for it, since links may differ at other sites.
pub(crate) fn working_directory() -> Result<PathBuf> {
    if let Some(typed) = std::env::var_os(TYPED_DIRECTORY) {
        return Ok(typed.into());
    }
    let physical = std::env::current_dir().context("the working directory")?;
    let named = std::env::var_os("PWD").map(PathBuf::from).filter(|named| named.is_absolute());
    let same = |named: &PathBuf| std::fs::canonicalize(named).is_ok_and(|found| found == physical);
    Ok(named.filter(same).unwrap_or(physical))
}

/// Prints the placement of the job.
fn show(file: &SitesFile, wish: &Wish, typed: &Typed, json: Option<Option<PathBuf>>) -> Result<i32> {
    let places = place(file, wish, typed).map_err(|failure| anyhow!(failure.to_string()))?;
    match json {
        Some(target) => {
            let ranks: usize = places.iter().map(|place| place.ranks.len()).sum();
            write_line(json::object(serde_json::json!({ "ranks": ranks, "sites": places }))?, target.as_deref())?;
        }
        None => crate::output::stdout().write_all(table(&places).as_bytes())?,
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
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (sites, nodes, ranks) = (width(0), width(1), width(2));
    let line = |row: &[String; 4]| {
        let line = format!("{:sites$}  {:nodes$}  {:ranks$}  {}", row[0], row[1], row[2], row[3]);
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
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
        let hosts = hosts::parse_file(b"lyon/n1 slots=4\nkyoto/n2\n").unwrap();
        for typed in ["lb run --hostfile f -n 4 -- p --hostfile g", "lb run --hostfile=f -n 4 -- p --hostfile g"] {
            let words = with_hosts(typed.split(' ').map(OsString::from).collect(), &hosts);
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), "lb run --host=lyon/n1:4,kyoto/n2 -n 4 -- p --hostfile g");
        }
        let plain: Vec<OsString> = ["lb", "run", "--", "--hostfile"].map(OsString::from).to_vec();
        assert_eq!(with_hosts(plain.clone(), &hosts), plain);
    }
}
