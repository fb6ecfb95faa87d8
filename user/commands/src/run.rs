//! `landbridge run`: the placement of a job, and its run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::{bytes_of, open_named};
use job::environment::{setting, travelling};
use job::home::homes;
use job::message::{InputTo, MpiChoice, Part};
use job::{program, settings};
use launcher::hosts::{self, Host};
use launcher::parts::{Joined, PartWish, join};
use launcher::placement::{SitePlacement, place};
use launcher::spread::{SpreadError, Wish, counts};
use launcher::tailor::{self, Typed};
use launcher::{Observer, Request, Sites, Summary};
use setup::Progress;
use setup::here::folders::MOST_TEXT;
use setup::push::Pushed;
use starters::held;
use tokio::runtime::Runtime;
use types::roster::FORWARDER;
use types::settings::{BIND, COLLECTIVES};
use types::sites::Site;
use wire::control::HeldAllocation;

use crate::alone::{self, Alone, Running};
use crate::error::{CommandError, Context, Result};
use crate::machine::working_directory;
use crate::runtime::runtime;
use crate::transfers::beside::{self, Beside, BesideRequest, Overlap};
use crate::{carried, gateways, push, sites_file};

/// A site's share of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteShare {
    pub site: String,
    pub ranks: u32,
    /// The program at this site, if it differs.
    pub program: Option<String>,
}

/// A program of a job, and its own options.
#[derive(Debug)]
pub struct ProgramRequest {
    pub ranks: Option<u32>,
    pub per_site: Vec<SiteShare>,
    pub variables: Vec<OsString>,
    pub wdir: Option<PathBuf>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl ProgramRequest {
    pub fn wish(&self) -> PartWish {
        PartWish {
            program: self.command.first().map_or(String::new(), |word| word.to_string_lossy().into_owned()),
            ranks: self.ranks,
            per_site: self.per_site.iter().map(|share| (share.site.clone(), share.ranks)).collect(),
        }
    }
}

/// A request for a job.
#[derive(Debug)]
pub struct RunRequest {
    pub programs: Vec<ProgramRequest>,
    pub ranks_per_node: Option<u32>,
    /// Fill nodes one after the other, instead of spreading ranks over all.
    pub fill: bool,
    pub hosts: Vec<Host>,
    pub hostfile: Option<PathBuf>,
    /// The value of `LANDBRIDGE_BIND`, if not that of the environment.
    pub bind: Option<&'static str>,
    /// The value of `LANDBRIDGE_COLLECTIVES`, if not that of the environment.
    pub collectives: Option<&'static str>,
    pub input: InputTo,
    /// Output passes byte by byte.
    pub raw: bool,
    pub mpi: MpiChoice,
    /// Files and folders to copy to the job's sites first.
    pub push: Vec<PathBuf>,
    pub beside: BesideRequest,
    /// Output goes to files of this machine.
    pub output_files: bool,
    /// Time limit for getting nodes.
    pub wait: Duration,
    /// Time limit for the job.
    pub timeout: Option<Duration>,
    /// The user's own site, if named.
    pub from: Option<String>,
    /// The sites file, if named.
    pub sites: Option<PathBuf>,
}

impl RunRequest {
    /// The nodes given by the user.
    fn named_hosts(&self) -> Result<Vec<Host>> {
        let Some(file) = &self.hostfile else { return Ok(self.hosts.clone()) };
        let text = open_named(file).and_then(|file| bytes_of(file, MOST_TEXT));
        let text = text.with_context(|| format!("--hostfile {}", file.display()))?;
        let hosts = hosts::parse_file(&text)
            .map_err(|problem| CommandError::Option(format!("--hostfile {}: {problem}", file.display())))?;
        if hosts.is_empty() {
            let text = format!("--hostfile {}: it names no node: write SITE/NODE on a line for each", file.display());
            return Err(CommandError::Option(text));
        }
        Ok(hosts)
    }

    /// Refuses options that need a sites file.
    fn refuse_options_about_sites(&self) -> Result<()> {
        let options = [
            ("--site", self.programs.iter().any(|program| !program.per_site.is_empty())),
            ("--host", !self.hosts.is_empty()),
            ("--hostfile", self.hostfile.is_some()),
            ("--push", !self.push.is_empty()),
            ("--from", self.from.is_some()),
        ];
        match options.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(CommandError::Option(format!(
                "{option} is about sites, and there is no sites file: `landbridge sites add NAME [USER@]HOST` begins one. \
                 Without {option} all ranks run on this machine"
            ))),
            None => Ok(()),
        }
    }

    /// The first option that names a file of this machine.
    fn local_files(&self) -> Option<&'static str> {
        let beside = self.beside.names_this_machine();
        let beside = beside.then_some("--stage-in from a path or --stage-out to a path without a site");
        beside.or(self.output_files.then_some("--output-filename"))
    }

    /// The sites named by `--site`.
    fn named_sites(&self) -> Vec<String> {
        let shares = self.programs.iter().flat_map(|program| &program.per_site);
        shares.map(|share| share.site.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn runs_movers(&self) -> bool {
        self.programs.iter().all(|one| one.command.iter().map(OsString::as_os_str).eq(program::MOVER))
    }
}

/// Origin of a job's sites.
enum Origin {
    File(PathBuf),
    /// Without a sites file.
    ThisMachine(Box<Alone>),
}

impl Origin {
    /// Returns the sites, too.
    fn find(request: &RunRequest) -> Result<(Origin, Sites)> {
        if let Some(file) = sites_file::find(request.sites.as_deref())? {
            let sites = sites_file::read(&file)?;
            return Ok((Origin::File(file), sites));
        }
        request.refuse_options_about_sites()?;
        let alone = Alone::new()?;
        let sites = alone.sites.clone();
        Ok((Origin::ThisMachine(Box::new(alone)), sites))
    }
}

/// Returns true if a detached job is started on this machine, not carried to a site.
///
/// # Errors
/// The sites file cannot be read, or the job would outlive the batch job around this process.
pub fn detaches_here(sites: Option<&Path>, from: Option<&str>) -> Result<bool> {
    let Some(file) = sites_file::find(sites)? else { return Ok(true) };
    let sites = sites_file::read(&file)?;
    if carried::destination(&sites, from).is_some() {
        return Ok(false);
    }
    let home = sites_file::own_site(&sites, from)?;
    match held::found_over_ssh(sites.site(&home)?) {
        None => Ok(true),
        Some(id) => Err(CommandError::Option(format!(
            "--detach: the ranks would go on after the end of batch job {id}, on nodes that are others' then: leave it out, \
             or use `&` and `wait` in the job's script"
        ))),
    }
}

/// A job whose options make sense. Nothing has been started.
pub struct RunPlan {
    request: RunRequest,
    origin: Origin,
    /// The sites as in their file.
    whole: Sites,
    /// The sites with the nodes of this job.
    sites: Sites,
    wish: Wish,
    typed: Typed,
    hosts: Vec<Host>,
    home: String,
    held: Option<HeldAllocation>,
    elsewhere: Option<Site>,
    runtime: Runtime,
}

impl RunPlan {
    /// # Errors
    /// An option is wrong, or a site is too small for the job.
    pub fn new(request: RunRequest) -> Result<RunPlan> {
        let (origin, whole) = Origin::find(&request)?;
        let is_file = matches!(origin, Origin::File(_));
        let mut sites = whole.clone();
        let wishes: Vec<PartWish> = request.programs.iter().map(ProgramRequest::wish).collect();
        let Joined { ranks, per_site, firsts } = join(&mut sites.file, &wishes).map_err(CommandError::option)?;
        // Ranks on one machine have no other node, so it needs no `slots`.
        let fill = request.fill && is_file;
        let mut wish = Wish { ranks, ranks_per_node: request.ranks_per_node, fill, per_site };
        let hosts = request.named_hosts()?;
        request.beside.check()?;
        let typed = typed(&request, &firsts)?;
        let elsewhere = carried::destination(&whole, request.from.as_deref()).filter(|_| is_file).cloned();
        let runtime = runtime()?;
        let (mut home, mut held) = (alone::SITE.to_owned(), None);
        if is_file && elsewhere.is_none() {
            home = sites_file::own_site(&whole, request.from.as_deref())?;
            held = runtime.block_on(held::find(sites.site(&home)?))?;
        }
        if let Some(held) = &held {
            held::fill(&mut sites.file, &home, held);
            if hosts.is_empty() {
                wish.or_all_of(&home, held);
            }
        }
        hosts::choose(&mut sites.file, &mut wish, &hosts, request.runs_movers()).map_err(|problem| {
            let file =
                request.hostfile.as_ref().map_or(String::new(), |file| format!("--hostfile {}: ", file.display()));
            CommandError::Option(format!("{file}{problem}"))
        })?;
        let held = held.filter(|held| sites.site(&home).is_ok_and(|site| holds_all(held, site)));
        // Report wrong numbers and unknown sites before using the network.
        let checked = counts(&sites.file, &wish);
        if !matches!(checked, Err(SpreadError::NoNumber)) {
            let counts = checked.map_err(CommandError::option)?;
            let sites = sites.file.sites.iter().zip(counts).filter(|(_, ranks)| *ranks > 0).map(|(site, _)| site);
            check_settings(&typed, sites, elsewhere.is_some())?;
        }
        Ok(RunPlan { request, origin, whole, sites, wish, typed, hosts, home, held, elsewhere, runtime })
    }

    /// Copies the files of `--push` to the job's sites; returns the sites that got files.
    ///
    /// # Errors
    /// A copy failed.
    pub fn push(&self, asking: bool, progress: &mut dyn Progress) -> Result<Vec<Pushed>> {
        push::before_run(&self.sites, &self.request.named_sites(), &self.request.push, asking, progress)
    }

    /// The sites, and the one that the command is to be carried to.
    ///
    /// # Errors
    /// An option names a file of this machine.
    pub fn elsewhere(&self) -> Result<Option<(&Sites, &Site)>> {
        let Some(site) = &self.elsewhere else { return Ok(None) };
        if let Some(option) = self.request.local_files() {
            return Err(CommandError::Option(format!(
                "{option}: the job is started at site {}, which has other files than this machine: type it there",
                site.name
            )));
        }
        Ok(Some((&self.whole, site)))
    }

    /// The nodes given by the user.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The destination of standard input.
    pub fn input(&self) -> InputTo {
        self.request.input
    }

    /// The placement of ranks.
    ///
    /// # Errors
    /// The number of ranks is missing, the job does not fit, or a site's nodes exist only in a batch job of the user's.
    pub fn placement(&self) -> Result<Vec<SitePlacement>> {
        let places = place(&self.sites.file, &self.wish, &self.typed).map_err(CommandError::option)?;
        let in_no_job = |place: &SitePlacement| {
            let (_, site) = self.sites.file.site(&place.name).filter(|_| place.nodes.is_none())?;
            let submits = site.starter.submits_with().filter(|_| !site.starter.makes_jobs())?;
            Some((place.name.clone(), submits))
        };
        match places.iter().find_map(in_no_job) {
            Some((name, submits)) => Err(CommandError::Request(format!(
                "site {name}: its nodes are those of a batch job, and Landbridge makes none there: submit a script that \
                 types `landbridge run` there ({submits})"
            ))),
            None => Ok(places),
        }
    }

    /// Checks the numbers that only a job needs.
    ///
    /// # Errors
    /// The number of ranks is missing, or `--stdin` names no rank.
    pub fn check_ranks(&self) -> Result<()> {
        let ranks: u32 = counts(&self.sites.file, &self.wish).map_err(CommandError::option)?.iter().sum();
        match self.request.input {
            InputTo::Rank(rank) if rank >= ranks => Err(CommandError::Option(format!(
                "--stdin {rank}: the job has {ranks} rank(s), numbered from 0; give one of them, or all, or none"
            ))),
            _ => Ok(()),
        }
    }

    /// Starts the gateway of this machine or of the own site, if it does not run, and the transfers beside the job.
    ///
    /// # Errors
    /// Any of them cannot be started.
    pub fn start(self, progress: &mut dyn Progress, mut note: impl FnMut(&str)) -> Result<StartedRun> {
        let (file, gateway) = match self.origin {
            Origin::File(ref file) => {
                gateways::ensure(file, &self.whole, &self.home, progress)?;
                (Some(file.clone()), None)
            }
            Origin::ThisMachine(alone) => {
                note(alone::NOTE);
                (None, Some(alone.start()?))
            }
        };
        let RunPlan { request, whole, sites, wish, typed, home, held, runtime, .. } = self;
        let places = match request.beside.is_wanted() {
            true => place(&sites.file, &wish, &typed).map_err(CommandError::option)?,
            false => Vec::new(),
        };
        let beside = beside::start(&request.beside, file.as_deref().map(|file| (file, home.as_str())), &places)?;
        let job =
            Request { sites, home: home.clone(), wish, held, wait: request.wait, timeout: request.timeout, typed };
        Ok(StartedRun { job, file, whole, home, from: request.from, gateway, beside, runtime })
    }
}

/// Refuses variables whose values no rank of these sites could use. `carried`: the job is started on another machine,
/// where this environment does not count.
fn check_settings<'a>(typed: &Typed, sites: impl Iterator<Item = &'a Site>, carried: bool) -> Result<()> {
    let environment = if carried { &[][..] } else { &typed.environment[..] };
    for part in sites.flat_map(|site| typed.at(site).parts) {
        let variables = environment.iter().chain(&part.settings).map(|(name, value)| (&name[..], &value[..]));
        if let Some(wrong) = settings::wrong(variables).first() {
            return Err(CommandError::option(wrong));
        }
    }
    Ok(())
}

/// Returns true if a batch job holds all chosen nodes of its site. Nodes outside the job belong to a node service.
fn holds_all(held: &HeldAllocation, site: &Site) -> bool {
    let is_held = |name: &str| name == FORWARDER || held.nodes.iter().any(|own| own.name == name);
    site.nodes.iter().all(|node| is_held(&node.name))
}

/// A job that can begin.
pub struct StartedRun {
    job: Request,
    file: Option<PathBuf>,
    whole: Sites,
    home: String,
    /// The own site, if the user has named it.
    from: Option<String>,
    /// The gateway of this machine, without a sites file.
    gateway: Option<Running>,
    beside: Option<Beside>,
    runtime: Runtime,
}

impl StartedRun {
    /// Runs the job. `input`: read for the ranks.
    ///
    /// # Errors
    /// The gateway of this machine has failed.
    pub fn run(self, input: Option<Box<dyn Read + Send>>, observer: impl Observer) -> Result<FinishedRun> {
        let StartedRun { job, file, whole, home, from, gateway, beside, runtime } = self;
        let summary = runtime.block_on(launcher::run(job, input, observer));
        gateway.map_or(Ok(()), Running::end)?;
        // A single line, because the last line names the failure.
        let problem = summary.failure.as_ref().map(|failure| {
            let advice = file.and_then(|file| gateways::advice(&file, &whole, &home, from.as_deref(), failure));
            let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
            format!("{failure}{advice}")
        });
        Ok(FinishedRun { summary, problem, beside })
    }
}

/// A job that has ended, with transfers that may still run.
pub struct FinishedRun {
    pub summary: Summary,
    /// The failure, and the command to type.
    pub problem: Option<String>,
    beside: Option<Beside>,
}

impl FinishedRun {
    /// Waits for the transfers. The exit code is 1 if only they failed.
    ///
    /// # Errors
    /// A transfer's result cannot be read.
    pub fn finish_staging(self, note: impl FnMut(&str)) -> Result<(Summary, Option<Overlap>)> {
        let FinishedRun { mut summary, beside, .. } = self;
        let Some(beside) = beside else { return Ok((summary, None)) };
        let staged = beside.finish_after(&summary, note)?;
        if staged.is_none() && summary.exit_code == 0 {
            summary.exit_code = 1;
        }
        Ok((summary, staged))
    }
}

/// The command as typed, valid at any site. `firsts`: the first rank of each program.
fn typed(request: &RunRequest, firsts: &[u32]) -> Result<Typed> {
    let bind = request.bind.map(|to| (BIND.into(), to.into()));
    let collectives = request.collectives.map(|whose| (COLLECTIVES.into(), whose.into()));
    let from = working_directory()?;
    let below = |folder: &PathBuf| if folder.starts_with("~") { folder.clone() } else { from.join(folder) };
    let part = |(program, &first): (&ProgramRequest, &u32)| {
        let variables = program.variables.iter().map(|text| setting(text, |name| std::env::var_os(name)));
        let mut settings = variables.collect::<Result<Vec<_>, _>>().map_err(CommandError::option)?;
        settings.extend(bind.clone());
        settings.extend(collectives.clone());
        let own = program.per_site.iter().cloned();
        let own_programs = own.filter_map(|share| Some((share.site, share.program?.into_bytes())));
        Ok(tailor::TypedPart {
            part: Part { first, settings, ..command(program.command.clone())? },
            own_programs: own_programs.collect(),
            wdir: program.wdir.as_ref().map(|folder| below(folder).into_os_string().into_vec()),
        })
    };
    let parts = request.programs.iter().zip(firsts).map(part).collect::<Result<_>>()?;
    Ok(Typed { input: request.input, raw: request.raw, ..of_parts(parts, request.mpi) })
}

/// One program, the same at all sites.
///
/// # Errors
/// The working directory is unknown.
pub fn program(words: Vec<OsString>) -> Result<Typed> {
    let part = tailor::TypedPart { part: command(words)?, ..tailor::TypedPart::default() };
    Ok(of_parts(vec![part], MpiChoice::Auto))
}

fn command(words: Vec<OsString>) -> Result<Part> {
    let command = words.into_iter().map(OsStringExt::into_vec).collect();
    Ok(Part { command, directory: working_directory()?.into_os_string().into_vec(), ..Part::default() })
}

/// A command with these programs and this process's environment.
fn of_parts(parts: Vec<tailor::TypedPart>, mpi: MpiChoice) -> Typed {
    Typed { parts, mpi, environment: travelling(std::env::vars_os()), input: InputTo::None, raw: false, homes: homes() }
}
