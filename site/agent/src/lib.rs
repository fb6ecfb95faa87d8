//! The agent of a node: it checks that the node can run the program, runs the node's ranks, serves PMI-1 or PMIx to
//! them, and ends them.
//!
//! It owns all processes below it and nothing else. When it loses its last gateway, the launcher or its keeper, it ends
//! these processes and itself. It never continues alone.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cores;
mod error;
mod fence;
pub mod folder;
pub mod forward;
mod input;
pub mod keeper;
pub mod leftovers;
pub(crate) mod membership;
pub mod memory;
pub mod modules;
mod movers;
pub mod pmi;
mod pmix;
pub mod prepare;
mod rank;
mod ranks;
mod spawn;

pub use self::error::AgentError;
pub use self::membership::Lifeline;
pub use self::movers::Runs;

use std::ffi::OsString;
use std::time::Duration;

use channel::Route;
use client::Frame;
use rustix::process::Rlimit;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use types::{Identity, UntrustedText};

use self::input::Inputs;
use self::membership::Membership;
use self::memory::Shared;
use self::pmix::{Heard, Pmix};
use self::prepare::{PrepareError, Prepared, Reach, prepare};
use self::rank::{Output, RankEvent, RankHandle, Sinks};
use crate::folder::Folder;
use job::descriptors;
use job::environment::Environment;
use job::fence::Fences;

use crate::pmi::mapping::process_mapping;
use crate::pmi::{Lines, Server, space_name};
use job::group::first_agent;
use job::message::{Down, Family, Program, Up};
use job::mpi;
use job::mpi::layer::Coverage;
use job::order::Order;
use job::processes::{adopt_orphans, end_descendants};
use job::program;
use job::signals;

/// Time between the first signal to the ranks and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// Time limit for the remaining output to be taken after SIGKILL.
const DUMP_AFTER: Duration = Duration::from_millis(1500);
/// Time limit for ending all processes below the agent.
const LIMIT: Duration = Duration::from_secs(3);

/// Runs an agent until its job is over. `lifeline` fires (or is dropped) when the process that started the agent is
/// gone. `folder` is for files of the node's ranks; it is made when needed and removed at the end. `runs` limits the
/// programs that the agent may run.
///
/// Must run on the process's main thread, in a runtime of one thread, because ranks are killed when the thread that
/// started them ends.
///
/// # Errors
/// [`AgentError`]. Every process below this one has ended by then too.
pub async fn run(
    order: Order,
    folder: Folder,
    lifeline: oneshot::Receiver<Lifeline>,
    runs: Runs,
) -> Result<(), AgentError> {
    let runs = if order.only_movers && runs == Runs::Anything { Runs::OwnMovers } else { runs };
    runs.check(&order).map_err(AgentError::NotHere)?;
    let result = match order.forward.clone() {
        // A check without a gateway can only show that this program runs and finds its provider.
        _ if order.gateways.is_empty() => find_provider(),
        Some(allowed) => forward::work(order, allowed, lifeline).await,
        None => work(order, folder.clone(), lifeline, runs).await,
    };
    end_descendants(LIMIT);
    folder.remove();
    result
}

/// Checks that the provider is on this node.
fn find_provider() -> Result<(), AgentError> {
    let path = mpi::find_provider(&Environment::default());
    if path.is_file() { Ok(()) } else { Err(mpi::MpiError::NoProvider(path).into()) }
}

async fn work(
    order: Order,
    folder: Folder,
    lifeline: oneshot::Receiver<Lifeline>,
    runs: Runs,
) -> Result<(), AgentError> {
    adopt_orphans().map_err(|source| AgentError::System { what: "adopting orphans", source })?;
    let (membership, reach) = Membership::join(&order, lifeline).await?;
    let mut agent = Agent::new(order, folder, membership, reach, descriptors::raise(), runs)?;
    while !agent.finished {
        let deadline = agent.deadline;
        tokio::select! {
            biased;
            frame = agent.membership.next() => if let Some((route, frame)) = frame? {
                agent.frame(route, &frame)?;
            },
            Some(heard) = agent.heard.recv() => agent.heard(heard)?,
            event = agent.events.recv() => agent.rank_event(event)?,
            output = agent.outputs.recv(), if agent.takes_output() => agent.output(output)?,
            () = until(deadline) => agent.harden(),
            () = tokio::task::yield_now(), if agent.starting.is_some() => {}
        }
        agent.start_next()?;
    }
    agent.membership.leave().await;
    Ok(())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

struct Agent {
    order: Order,
    me: Identity,
    launcher: Identity,
    reach: Reach,
    membership: Membership,
    sinks: Sinks,
    events: mpsc::Receiver<RankEvent>,
    outputs: mpsc::Receiver<Output>,
    /// The limit on open files of each rank.
    open_files: Rlimit,
    runs: Runs,
    prepared: Option<Prepared>,
    ranks: Vec<Running>,
    /// The ranks' standard input.
    inputs: Inputs,
    /// The window of the ranks. `None`: no rank is waiting to start.
    starting: Option<u32>,
    folder: Folder,
    /// Locks on the claims in `folder`.
    locks: Vec<std::fs::File>,
    pmi: Option<Server>,
    /// The PMIx server, if the ranks use Open MPI.
    pmix: Option<Pmix>,
    heard: mpsc::UnboundedReceiver<Heard>,
    hear: mpsc::UnboundedSender<Heard>,
    /// Fences of the site's nodes, collected by the site's first agent.
    fences: Fences<Identity>,
    reported_mpi: bool,
    /// Time of the next step of ending: SIGKILL, then dropping the output.
    deadline: Option<Instant>,
    killed: bool,
    dumping: bool,
    ended: bool,
    finished: bool,
}

struct Running {
    /// `None` if it could not be started.
    handle: Option<RankHandle>,
    lines: Lines,
    alive: bool,
}

impl Agent {
    fn new(
        order: Order,
        folder: Folder,
        mut membership: Membership,
        reach: Reach,
        open_files: Rlimit,
        runs: Runs,
    ) -> Result<Agent, AgentError> {
        // Each rank that waits for PMIx has one request in flight, so this stays bounded.
        let (hear, heard) = mpsc::unbounded_channel();
        let (event_sink, events) = mpsc::channel(256);
        let (output_sink, outputs) = mpsc::channel(4);
        let (me, launcher) = (order.identity()?, order.launcher());
        membership.send(launcher, &Up::Here)?;
        Ok(Agent {
            order,
            me,
            launcher,
            reach,
            membership,
            sinks: Sinks { events: event_sink, outputs: output_sink },
            events,
            outputs,
            open_files,
            runs,
            prepared: None,
            ranks: Vec::new(),
            inputs: Inputs::default(),
            starting: None,
            folder,
            locks: Vec::new(),
            pmi: None,
            pmix: None,
            heard,
            hear,
            fences: Fences::default(),
            reported_mpi: false,
            deadline: None,
            killed: false,
            dumping: false,
            ended: false,
            finished: false,
        })
    }

    fn report(&mut self, message: &Up) -> Result<(), AgentError> {
        self.membership.send(self.launcher, message)
    }

    fn frame(&mut self, route: Route, frame: &Frame) -> Result<(), AgentError> {
        let (from, first) = (frame.header.from, first_agent(self.order.site_id));
        if from == self.launcher || (from == first && from != self.me) {
            for message in self.membership.take::<Down>(route, frame)? {
                self.down(from, message)?;
            }
            return Ok(());
        }
        for message in self.membership.take::<Up>(route, frame)? {
            match message {
                Up::FenceIn { fence, data } => self.fence_below(from, fence, &data)?,
                _ => return Err(AgentError::Message { from, problem: "agents exchange only fences" }),
            }
        }
        Ok(())
    }

    fn down(&mut self, from: Identity, message: Down) -> Result<(), AgentError> {
        if from != self.launcher && !matches!(message, Down::FenceOut { .. }) {
            return Err(AgentError::Message { from, problem: "only the launcher gives orders" });
        }
        match message {
            Down::Prepare { program, roster } => {
                let program = match self.runs.admit(&program) {
                    Ok(program) => program,
                    Err(error) => return self.report(&Up::Refused { reason: error.to_string() }),
                };
                if program.modules.is_empty() {
                    return self.prepare(&program, &roster, &[]);
                }
                let events = self.sinks.events.clone();
                tokio::spawn(async move {
                    let loaded = modules::load(&program.modules).await;
                    // If the agent has ended, nothing needs the modules.
                    let _ = events.send(RankEvent::Modules { program: Box::new(program), roster, loaded }).await;
                });
                Ok(())
            }
            Down::Go { window, collectives, ipv6 } => self.go(window, collectives, ipv6),
            Down::FenceOut { fence, data, number } => self.fence_out(&fence, data, number),
            Down::ModexAsk { asker, ticket, rank } => self.modex_asked(asker, ticket, rank),
            Down::ModexTell { ticket, data } => {
                if let Some(pmix) = self.pmix.as_mut() {
                    pmix.handle_answer(ticket, data);
                }
                Ok(())
            }
            Down::Kill { signal } => self.kill(signal),
            Down::Finish => {
                self.finished = true;
                Ok(())
            }
            Down::Input { bytes } => {
                self.inputs.push(bytes);
                Ok(())
            }
            Down::Signal { signal } => {
                match signal {
                    signals::STOP => self.membership.stand_by(true),
                    signals::CONTINUE => self.membership.stand_by(false),
                    _ => {}
                }
                self.signal_ranks(signal);
                Ok(())
            }
            Down::Forward(_) => {
                Err(AgentError::Message { from, problem: "this agent runs ranks and forwards no ports" })
            }
        }
    }

    fn prepare(&mut self, program: &Program, roster: &str, loaded: &[(OsString, OsString)]) -> Result<(), AgentError> {
        let answer = match prepare(&self.order, &self.reach, program, roster, loaded) {
            Err(error) => Up::Refused { reason: error.to_string() },
            // The node's service counts orders and limits the resources of each, so an order gets one mover.
            Ok(prepared) if self.runs == Runs::OnlyMovers && prepared.count > 1 => {
                let (site, node, count) = (&self.order.site, &self.order.node, prepared.count);
                Up::Refused {
                    reason: format!("{site}/{node}: {count} movers: without a job on a node, one runs there"),
                }
            }
            Ok(prepared) => match self.serve(prepared) {
                Err(error) => Up::Refused { reason: error.to_string() },
                Ok(ready) => ready,
            },
        };
        self.report(&answer)
    }

    /// Starts the PMI-1 or PMIx server from which ranks get their numbers and find each other.
    fn serve(&mut self, mut prepared: Prepared) -> Result<Up, PrepareError> {
        let notes = std::mem::take(&mut prepared.notes);
        let mapping = process_mapping(&prepared.roster);
        let (size, local) = (prepared.roster.size(), prepared.program_numbers());
        match prepared.pmix.take() {
            Some(library) if !local.is_empty() => {
                let ranks = prepared.first.0..prepared.first.0 + prepared.count;
                self.locks = self.folder.create(ranks, &[])?;
                for part in &mut prepared.parts {
                    mpi::openmpi::share_memory_in(&mut part.environment, self.folder.memory());
                }
                let (path, order) = (self.folder.path(), &self.order);
                let started = Pmix::start(library, order.job, &prepared, prepared.index, path, &self.hear);
                self.pmix = Some(started?);
            }
            _ => {
                self.own_shared_files(&mut prepared);
                self.pmi = Some(Server::new(self.order.job, size, &local, mapping));
            }
        }
        let peers = prepared.roster.site(self.order.site_id).map_or(0, |site| site.size());
        self.open_files = descriptors::for_peers(self.open_files, peers);
        let (mpi, collectives, ipv6) = (prepared.mpi, prepared.collectives(), prepared.ipv6());
        self.prepared = Some(prepared);
        Ok(Up::Ready { mpi, collectives, ipv6, notes })
    }

    /// Ensures that the files that the ranks' MPI library puts into shared memory are removed, however the ranks end.
    fn own_shared_files(&mut self, prepared: &mut Prepared) {
        let claims = match prepared.mpi {
            Some(Family::Mpich) => mpi::mpich::shared_files(&space_name(self.order.job)),
            Some(Family::Intel) => Vec::new(),
            Some(Family::OpenMpi) | None => return,
        };
        match self.folder.create(0..0, &claims) {
            Ok(locks) => self.locks = locks,
            // The ranks run without this, and remove their files themselves when they end normally.
            Err(error) => return tracing::warn!(%error, "files left by killed ranks will not be removed"),
        }
        if prepared.mpi == Some(Family::Intel) {
            for part in &mut prepared.parts {
                mpi::intel::share_memory_in(&mut part.environment, self.folder.memory());
            }
        }
    }

    fn go(&mut self, window: u32, collectives: Coverage, ipv6: bool) -> Result<(), AgentError> {
        let problem = "go before prepare";
        let prepared = self.prepared.as_mut().ok_or(AgentError::Message { from: self.launcher, problem })?;
        if let Some(Err(error)) = prepared.shared.as_ref().map(Shared::check) {
            return self.report(&Up::Failed { rank: None, reason: error.to_string() });
        }
        prepared.cover(collectives);
        if ipv6 {
            prepared.make_room_for_ipv6();
        }
        self.inputs = Inputs::new(prepared.input, prepared.first.0, prepared.count);
        self.starting = Some(window);
        Ok(())
    }

    /// Starts the next waiting rank. A busy machine needs seconds to start hundreds of ranks, and an agent that is
    /// silent meanwhile counts as lost, so it starts one rank between any two other events.
    fn start_next(&mut self) -> Result<(), AgentError> {
        let (Some(window), Some(prepared)) = (self.starting, &self.prepared) else {
            self.starting = None;
            return Ok(());
        };
        let local = self.ranks.len() as u32;
        if local >= prepared.count {
            self.starting = None;
            return self.check_ended();
        }
        let started = match self.pmix.as_ref().map(|pmix| pmix.admit(local)).transpose() {
            Ok(variables) => {
                rank::start(prepared, local, window, self.open_files, variables, self.inputs.take(local), &self.sinks)
                    .map_err(|error| {
                        let part = prepared.part(local);
                        let word = part.and_then(|part| part.words.first());
                        let name = word.map(|word| UntrustedText::from(word.as_os_str())).unwrap_or_default();
                        let interpreter = part.and_then(|part| program::bad_interpreter(part.path.as_deref()?, &error));
                        format!("cannot start {name}: {}", interpreter.unwrap_or_else(|| error.to_string()))
                    })
            }
            Err(error) => Err(error.to_string()),
        };
        let (failed, handle) = match started {
            Ok(handle) => (None, Some(handle)),
            Err(reason) => (Some(Up::Failed { rank: Some(prepared.first.0 + local), reason }), None),
        };
        self.ranks.push(Running { alive: handle.is_some(), handle, lines: Lines::default() });
        failed.map_or(Ok(()), |failed| self.report(&failed))
    }
}
