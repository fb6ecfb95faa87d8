//! Events of ranks, and what the agent does with them.

use job::fence::Fence;
use job::group::Group;
use job::message::{Entry, MpiState, Up};
use job::processes::{end_descendants, signal_group};
use tokio::time::Instant;

use super::error::AgentError;
use super::pmix::spawn_refused;
use super::rank::{Output, RankEvent};
use super::{Agent, DUMP_AFTER, GRACE, LIMIT, fence};
use crate::pmi::Event;

impl Agent {
    fn rank_number(&self, local: usize) -> u32 {
        self.prepared.as_ref().map_or(0, |prepared| prepared.first.0) + local as u32
    }

    pub(super) fn rank_event(&mut self, event: Option<RankEvent>) -> Result<(), AgentError> {
        match event {
            None => Ok(()),
            // The agent was ordered to end meanwhile.
            Some(RankEvent::Modules { .. }) if self.ended || self.deadline.is_some() => Ok(()),
            Some(RankEvent::Modules { program, roster, loaded: Ok(loaded) }) => {
                self.prepare(&program, &roster, &loaded)
            }
            Some(RankEvent::Modules { loaded: Err(error), .. }) => {
                self.report(&Up::Refused { reason: error.to_string() })
            }
            Some(RankEvent::Trouble { local, reason }) => {
                self.report(&Up::Trouble { rank: self.rank_number(local), reason })
            }
            Some(RankEvent::Pmi { local, bytes }) => {
                let commands = match self.ranks[local].lines.feed(&bytes) {
                    Ok(commands) => commands,
                    Err(error) => {
                        let problem = error.to_string();
                        return self.pmi_events(vec![Event::Broken { local, problem }]);
                    }
                };
                let Some(server) = self.pmi.as_mut() else { return Ok(()) };
                let events = commands.iter().flat_map(|command| server.command(local, command)).collect();
                self.pmi_events(events)
            }
            Some(RankEvent::Input { local, bytes }) => {
                self.report(&Up::InputTaken { rank: self.rank_number(local), bytes })
            }
            Some(RankEvent::Exited { local, end }) => {
                // The rank's last output is already queued, and must be reported before its end.
                while let Ok(output) = self.outputs.try_recv() {
                    self.output(Some(output))?;
                }
                self.ranks[local].alive = false;
                // The rank's last calls to libpmix are already queued too.
                while let Ok(heard) = self.heard.try_recv() {
                    self.heard(heard)?;
                }
                let state = match (&self.pmix, &self.pmi) {
                    (Some(pmix), _) => pmix.state(local),
                    (None, Some(pmi)) => pmi.state(local),
                    (None, None) => MpiState::Untouched,
                };
                self.report(&Up::Exited { rank: self.rank_number(local), end, state })?;
                self.modex_ended(self.rank_number(local))?;
                self.check_ended()
            }
        }
    }

    pub(super) fn pmi_events(&mut self, events: Vec<Event>) -> Result<(), AgentError> {
        for event in events {
            match event {
                Event::Reply { local, line } => {
                    let sent = self.ranks[local].handle.as_ref().map_or(Ok(()), |handle| handle.reply(line));
                    if let Err(error) = sent {
                        let reason = error.to_string();
                        self.report(&Up::Failed { rank: Some(self.rank_number(local)), reason })?;
                    }
                }
                Event::Initialised { local } => self.initialised(local)?,
                Event::Barrier { entries } => self.barrier(&entries)?,
                Event::SpawnRefused { local, program } => {
                    self.report(&spawn_refused(self.rank_number(local), &program))?;
                }
                Event::Abort { local, code, message } => {
                    self.report(&Up::Aborted { rank: self.rank_number(local), code, message })?;
                }
                Event::Broken { local, problem } => {
                    let reason = format!("its MPI library broke the PMI-1 protocol: {problem}");
                    self.report(&Up::Failed { rank: Some(self.rank_number(local)), reason })?;
                }
            }
        }
        Ok(())
    }

    /// A rank that uses PMI-1 has called `MPI_Init`.
    fn initialised(&mut self, local: usize) -> Result<(), AgentError> {
        if self.prepared.as_ref().is_some_and(|prepared| prepared.mpi.is_none() && !prepared.uses_libfabric) {
            let part = self.prepared.as_ref().and_then(|prepared| prepared.part(local as u32));
            let program = part.and_then(|part| part.path.clone()).unwrap_or_default();
            let reason = format!(
                "started an MPI library, but {} did not show which: name it with --mpi mpich or --mpi intel; --mpi none is for programs without one",
                program.display()
            );
            return self.report(&Up::Failed { rank: Some(self.rank_number(local)), reason });
        }
        self.uses_mpi()
    }

    pub(super) fn uses_mpi(&mut self) -> Result<(), AgentError> {
        if !std::mem::replace(&mut self.reported_mpi, true) {
            self.report(&Up::UsesMpi)?;
        }
        Ok(())
    }

    /// All ranks of this node have entered a PMI-1 barrier.
    pub(super) fn barrier(&mut self, entries: &[Entry]) -> Result<(), AgentError> {
        let size = self.prepared.as_ref().map_or(0, |prepared| prepared.roster.size());
        self.fence(Fence::plain(Group::all(size)), fence::write_entries(entries))
    }

    pub(super) fn takes_output(&self) -> bool {
        self.dumping || self.membership.has_room(self.launcher)
    }

    pub(super) fn output(&mut self, output: Option<Output>) -> Result<(), AgentError> {
        match output {
            Some(Output { local, stream, bytes }) if !self.dumping => {
                self.report(&Up::Output { rank: self.rank_number(local), stream, bytes })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn signal_ranks(&self, signal: i32) {
        for handle in self.ranks.iter().filter(|rank| rank.alive).filter_map(|rank| rank.handle.as_ref()) {
            signal_group(handle.pid, signal);
        }
    }

    pub(super) fn kill(&mut self, signal: i32) -> Result<(), AgentError> {
        // Every rank gets the signal, and every rank's end is reported, so all ranks must be started first.
        while self.starting.is_some() {
            self.start_next()?;
        }
        self.signal_ranks(signal);
        if signal == 9 {
            self.killed = true;
            self.deadline = Some(Instant::now() + DUMP_AFTER);
        } else if !self.killed {
            self.deadline.get_or_insert(Instant::now() + GRACE);
        }
        self.check_ended()
    }

    /// Handles the deadline: sends SIGKILL first; the next time, drops the output instead of waiting for it to be
    /// taken.
    pub(super) fn harden(&mut self) {
        if std::mem::replace(&mut self.killed, true) {
            self.dumping = true;
            self.deadline = None;
        } else {
            self.signal_ranks(9);
            self.deadline = Some(Instant::now() + DUMP_AFTER);
        }
    }

    pub(super) fn check_ended(&mut self) -> Result<(), AgentError> {
        if self.ended || self.starting.is_some() || self.ranks.iter().any(|rank| rank.alive) {
            return Ok(());
        }
        self.ended = true;
        self.deadline = None;
        end_descendants(LIMIT);
        self.report(&Up::Ended)
    }
}
