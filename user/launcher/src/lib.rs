//! The launcher opens a job at all its sites, lets the agents check and then start the ranks, and passes on their
//! output. It ends everything when the job is done or something is lost.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocate;
mod cause;
pub mod coupling;
mod deadline;
mod early;
pub mod forward;
pub mod hosts;
mod input;
mod lifecycle;
mod observer;
pub mod outcome;
pub(crate) mod own_gateways;
pub mod parts;
pub mod placement;
pub mod session;
pub mod spread;
mod suspects;
pub mod tailor;

use std::io::Read;
use std::time::{Duration, Instant as StdInstant};

use client::patience::{core_time, slowness_in};
use tokio::time::Instant;
use types::{Roster, SitesFile};
use wire::control::{HeldAllocation, Part};

pub use allocate::REPLY_GRACE;
pub use cause::LOST_CODE;
pub use observer::Observer;
pub use outcome::{Failure, SiteSummary, Summary};
pub use session::{SessionError, Sites};

use self::deadline::until;
use self::input::Source;
use self::lifecycle::{Action, Job};
use self::observer::{Teller, WriterReport};
use self::session::{Connection, Session};
use crate::spread::{Wish, spread};
use crate::tailor::Typed;
use job::message::Program;
use job::processes::signal_name;
use job::signals::{self, Signals, stand_still};

/// Time limit for a blocked terminal to take the remaining output after a failed job.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time limit for gateways to confirm the announced stop of this process.
const KNOWN: Duration = Duration::from_secs(1);
/// Time limit for giving nodes back when the job does not start.
const GIVE_BACK: Duration = Duration::from_secs(4);

/// Advice for the user when a site is lost.
const LOOK: &str = "`landbridge sites check` shows what works again";

/// A job to run.
#[derive(Clone, Debug)]
pub struct Request {
    pub sites: Sites,
    /// The user's own site.
    pub home: String,
    pub wish: Wish,
    /// The batch job at the own site in which the command was typed. `sites` already contains its nodes.
    pub held: Option<HeldAllocation>,
    /// Time limit of the wait for nodes of batch jobs.
    pub wait: Duration,
    /// Time limit of the ranks.
    pub timeout: Option<Duration>,
    pub typed: Typed,
}

/// Runs a job from its opening to its end. Returns no error: the summary contains the failure.
///
/// SIGINT, SIGTERM and SIGHUP of this process end the job; a second one ends it at once. [`signals::PASSED`] go to the
/// ranks. Ctrl-Z stops first the ranks and then this process, until it is continued. A separate thread reads `input`
/// for the ranks that [`Program::input`] names; it may outlive the job.
pub async fn run(request: Request, input: Option<Box<dyn Read + Send>>, observer: impl Observer) -> Summary {
    let began = StdInstant::now();
    let mut source = Source::new(input);
    let (mut teller, mut interrupts) = match (Teller::new(observer), Signals::catch(&signals::ENDING)) {
        (Ok(teller), Ok(interrupts)) => (teller, interrupts),
        (teller, interrupts) => {
            let output = teller.err().map(|error| format!("cannot start the thread that writes output: {error}"));
            let caught = interrupts.err().map(|error| format!("cannot catch signals: {error}"));
            let reason = output.or(caught).unwrap_or_default();
            return Summary::without_job(Failure::new(reason), 1, began.elapsed().as_secs_f64());
        }
    };
    let summary = match place(&request, &teller, &mut interrupts).await {
        Err((failure, code)) => Summary::without_job(failure, code, began.elapsed().as_secs_f64()),
        Ok((roster, connection)) => {
            teller.placed(roster.clone());
            // Allocated nodes are given back with their job.
            let may_repeat = connection.is_none();
            let mut job = attempt(&request, connection, &roster, &mut source, &mut teller, &mut interrupts).await;
            for attempts in 1.. {
                let others = |failure: &&Failure| may_repeat && attempts < gateways(&request, failure);
                let Some(failure) = job.unstarted().filter(others) else { break };
                teller.note(format!("{failure}; trying again, through other gateways"));
                job = attempt(&request, None, &roster, &mut source, &mut teller, &mut interrupts).await;
            }
            job.summary(began.elapsed().as_secs_f64())
        }
    };
    // Without a failure the observer has already handled everything.
    teller.finish(LAST_WORDS).await;
    summary
}

/// Opens a job and runs it to its end.
async fn attempt(
    request: &Request,
    connection: Option<Connection>,
    roster: &Roster,
    source: &mut Source,
    teller: &mut Teller,
    interrupts: &mut Signals,
) -> Job {
    let mut job = Job::new(roster.clone(), &request.home, programs(request, roster), request.timeout);
    teller.progress(Some(format!("opening a job at {}", job.site_names())));
    let failed = tokio::select! {
        opened = open(request, connection, roster) => match opened {
            Err(error) => Some((error.into(), Some(1))),
            Ok(session) => drive(session, &mut job, source, teller, interrupts, &request.home).await,
        },
        signal = interrupts.next() => Some((Failure::new("interrupted"), Some(128 + signal))),
    };
    if let Some((failure, code)) = failed {
        job.broken(failure, code);
    }
    job
}

/// The number of gateways of the site of a failure, or else of the user's own.
fn gateways(request: &Request, failure: &Failure) -> usize {
    let name = failure.site.as_ref().unwrap_or(&request.home);
    request.sites.file.site(name).map_or(0, |(_, site)| site.gateways.len())
}

/// The program of each site of the roster.
fn programs(request: &Request, roster: &Roster) -> Vec<Program> {
    let Request { sites, home, typed, .. } = request;
    roster.sites().iter().map(|site| typed.from_home(home, &sites.file, &site.name)).collect()
}

async fn open(request: &Request, connection: Option<Connection>, roster: &Roster) -> Result<Session, SessionError> {
    match connection {
        Some(connection) => connection.open(roster, Part::Lead).await,
        None => Connection::new(&request.sites, &request.home).await?.open(roster, Part::Lead).await,
    }
}

/// Places all ranks; first asks for nodes at the sites that need it. Nodes are held as long as the connection lives.
async fn place(
    request: &Request,
    teller: &Teller,
    interrupts: &mut Signals,
) -> Result<(Roster, Option<Connection>), (Failure, i32)> {
    let (file, home, wish): (&SitesFile, _, _) = (&request.sites.file, &request.home, &request.wish);
    let asks = allocate::asks(file, home, wish, request.wait, request.held.as_ref()).map_err(|failure| (failure, 1))?;
    if asks.is_empty() {
        let roster = spread(file, home, wish).map_err(|e| (Failure::new(e.to_string()), 1))?;
        return Ok((roster, None));
    }
    let connected = tokio::select! {
        connected = Connection::new(&request.sites, home) => connected,
        signal = interrupts.next() => return Err((Failure::new("interrupted"), 128 + signal)),
    };
    let mut connection = connected.map_err(|error| (error.into(), 1))?;
    let placed = tokio::select! {
        placed = allocate::allocate(&mut connection, asks, file, home, wish, teller) => {
            placed.map_err(|failure| (failure, 1))
        }
        signal = interrupts.next() => {
            Err((Failure::new(format!("interrupted by {}", signal_name(signal))), 128 + signal))
        }
    };
    match placed {
        Ok(roster) => Ok((roster, Some(connection))),
        Err(failure) => {
            teller.progress(Some("giving nodes back".to_owned()));
            connection.give_back(GIVE_BACK).await;
            Err(failure)
        }
    }
}

/// Runs an open job. Returns the failure if the launcher's own connection breaks.
async fn drive(
    mut session: Session,
    job: &mut Job,
    source: &mut Source,
    teller: &mut Teller,
    interrupts: &mut Signals,
    home: &str,
) -> Option<(Failure, Option<i32>)> {
    // Only now: without a job, these signals keep their usual effect on a program.
    let mut others = match Others::catch() {
        Ok(others) => others,
        Err(error) => return Some((Failure::new(format!("cannot catch signals: {error}")), None)),
    };
    job.opened(Instant::now());
    let (begun, before) = (Instant::now(), core_time());
    // Time limit for gateways to confirm the announced stop of this process.
    let mut stopping = None;
    loop {
        for action in job.actions() {
            let stops = matches!(action, Action::Stop);
            if let Err(error) = carry_out(action, &mut session, job, teller) {
                return Some(connection_lost(home, &error));
            }
            if stops {
                stopping = Some(Instant::now() + KNOWN);
            }
        }
        job.heard(teller.pending == 0);
        if job.has_actions() {
            continue;
        }
        if job.is_over() {
            return None;
        }
        session.flush();
        if stopping.is_some_and(|until| session.is_stop_known() || until <= Instant::now()) {
            stopping = None;
            stand_still(&mut others.continued).await;
            session.stop(false);
            job.signalled(signals::CONTINUE);
            continue;
        }
        // A loss that is about to be confirmed may be the cause of the known failure.
        let deadline = job.deadline().max(session.suspects_until().filter(|_| job.is_settling()));
        tokio::select! {
            biased;
            signal = interrupts.next() => job.interrupted(signal, Instant::now()),
            signal = others.passed.next() => job.signalled(signal),
            _ = others.stop.next(), if stopping.is_none() => job.stopped(),
            () = until(stopping) => {}
            incoming = session.next() => match incoming {
                Ok(messages) => messages.into_iter().for_each(|message| job.incoming(message, Instant::now())),
                Err(error) => return Some(connection_lost(home, &error)),
            },
            Some(told) = teller.told.recv() => observed(told, &mut session, job, teller),
            () = until(deadline) => job.deadline_over(Instant::now(), slowness_in(begun.elapsed(), before)),
            bytes = source.next(), if job.takes_input() => job.input(bytes),
        }
    }
}

/// Carries out one order of the state machine.
///
/// # Errors
/// The launcher's own connection is lost.
fn carry_out(action: Action, session: &mut Session, job: &mut Job, teller: &mut Teller) -> Result<(), SessionError> {
    match action {
        Action::Send(to, message) => session.send(to, &message)?,
        Action::Output { agent, rank, stream, bytes } => {
            session.hold(agent, bytes.len() as u64);
            teller.output(agent, rank, stream, bytes);
        }
        Action::QuestionAgents => session.question_agents(),
        Action::Progress(doing) => teller.progress(doing),
        Action::Note(text) => teller.note(text),
        Action::OpenRelays { roster, window } => session.open_relays(&roster, window),
        Action::Stop => {
            session.flush();
            session.stop(true);
        }
        Action::Close => {
            session.notes().into_iter().for_each(|text| teller.note(text));
            session.flush();
            job.closing_at(&session.close());
        }
    }
    Ok(())
}

/// The observer has passed on output, or cannot.
fn observed(told: WriterReport, session: &mut Session, job: &mut Job, teller: &mut Teller) {
    match told {
        WriterReport::Gone { agent, bytes } => {
            session.release(agent, bytes);
            teller.pending = teller.pending.saturating_sub(bytes);
        }
        WriterReport::Failed(error) => job.output_failed(&error, Instant::now()),
    }
}

/// The failure if the launcher's own connection is lost.
fn connection_lost(home: &str, error: &SessionError) -> (Failure, Option<i32>) {
    let reason = format!("{}. {LOOK}", without_site(home, error));
    (Failure::at_site(home, reason), None)
}

/// The error's text without the site, because the failure names it.
fn without_site(site: &str, error: &SessionError) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("site {site}: ")).map_or(text.clone(), str::to_owned)
}

/// The signals that do not end a job: passed to the ranks, stopping and continuing.
struct Others {
    passed: Signals,
    stop: Signals,
    continued: Signals,
}

impl Others {
    fn catch() -> std::io::Result<Others> {
        let (passed, stop) = (Signals::catch(&signals::PASSED)?, Signals::catch(&[signals::STOP])?);
        Ok(Others { passed, stop, continued: Signals::catch(&[signals::CONTINUE])? })
    }
}
