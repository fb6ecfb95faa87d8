//! PMI-1: the protocol with which ranks of MPICH and Intel MPI get their rank numbers from the launcher and exchange
//! addresses.
//!
//! [`Server`] is the server of one node as a pure state machine: commands go in, replies and events come out. The
//! sockets are in [`crate`]. A barrier leaves the node as an event and returns through [`Server::barrier_out`]
//! with the entries that ranks of other nodes have put, because in PMI-1 a `get` is defined only after a barrier that
//! follows the `put`.
//!
//! The wire protocol is described in Balaji et al., *PMI: A Scalable Parallel Process-Management Interface for
//! Extreme-Scale Systems* (EuroMPI 2010), and by the messages that MPICH 5.0 and Intel MPI 2021 send.

mod command;
pub mod mapping;

use std::collections::HashMap;

pub use command::{Command, Lines};

use types::JobId;

use job::message::{Entry, MpiState};

// Limits sent to the ranks, in bytes.
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 4096;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Write this line to the rank with this local number.
    Reply {
        /// Number of the rank on its node.
        local: usize,
        /// The line, newline included.
        line: String,
    },
    /// A rank called `MPI_Init`.
    Initialised {
        /// Number of the rank on its node.
        local: usize,
    },
    /// All ranks of the node have entered the barrier. These are the entries put since the last one.
    Barrier { entries: Vec<Entry> },
    /// A rank called `MPI_Abort`.
    Abort {
        /// Number of the rank on its node.
        local: usize,
        /// The code given to `MPI_Abort`.
        code: i32,
        /// The message given to it, possibly empty.
        message: String,
    },
    /// A rank called `MPI_Comm_spawn`, which was refused.
    SpawnRefused {
        /// Number of the rank on its node.
        local: usize,
        /// The program that it wanted to start.
        program: String,
    },
    /// A rank violated the protocol.
    Broken {
        /// Number of the rank on its node.
        local: usize,
        /// The violation.
        problem: String,
    },
}

/// The PMI-1 server of a node.
#[derive(Debug)]
pub struct Server {
    /// Differs between jobs, because MPICH builds the names of its shared memory on a node from it.
    kvs_name: String,
    size: u32,
    values: HashMap<String, String>,
    fresh: Vec<Entry>,
    ranks: Vec<Local>,
}

#[derive(Clone, Debug, Default)]
struct Local {
    /// The index of its program among the job's programs: its `MPI_APPNUM`.
    program: u32,
    state: MpiState,
    in_barrier: bool,
}

/// The name of a job's key-value space.
pub fn space_name(job: JobId) -> String {
    format!("landbridge-{job}")
}

impl Server {
    /// A server for `job` with `size` ranks. `local`: for each rank of this node, the number of its program. `mapping`:
    /// the ranks that share a node, as [`mapping::process_mapping`] writes them.
    pub fn new(job: JobId, size: u32, local: &[u32], mapping: String) -> Server {
        let values = HashMap::from([("PMI_process_mapping".to_owned(), mapping)]);
        let ranks = local.iter().map(|&program| Local { program, ..Local::default() }).collect();
        Server { kvs_name: space_name(job), size, values, fresh: Vec::new(), ranks }
    }

    /// The MPI state of a rank of this node.
    pub fn state(&self, local: usize) -> MpiState {
        self.ranks.get(local).map_or(MpiState::Untouched, |rank| rank.state)
    }

    /// Handles a command of a rank.
    pub fn command(&mut self, local: usize, command: &Command) -> Vec<Event> {
        let Some(rank) = self.ranks.get_mut(local) else { return Vec::new() };
        let reply = |line: String| vec![Event::Reply { local, line: line + "\n" }];
        match command.name.as_str() {
            "init" => {
                rank.state = MpiState::Running;
                // Subversion 2 adds barriers of rank groups, which no MPI library requires.
                let subversion = command.number("pmi_subversion").unwrap_or(0).min(1);
                let line = format!("cmd=response_to_init pmi_version=1 pmi_subversion={subversion} rc=0");
                let mut events = reply(line);
                events.push(Event::Initialised { local });
                events
            }
            "get_maxes" => reply(format!("cmd=maxes kvsname_max=256 keylen_max={KEY_MAX} vallen_max={VALUE_MAX} rc=0")),
            "get_appnum" => reply(format!("cmd=appnum appnum={} rc=0", rank.program)),
            "get_universe_size" => reply(format!("cmd=universe_size size={} rc=0", self.size)),
            "get_my_kvsname" => reply(format!("cmd=my_kvsname kvsname={} rc=0", self.kvs_name)),
            "put" => self.put(local, command),
            "get" => reply(match command.get("key").and_then(|key| self.values.get(key)) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
            }),
            "barrier_in" => self.barrier_in(local),
            "finalize" => {
                rank.state = MpiState::Finalised;
                reply("cmd=finalize_ack rc=0".into())
            }
            "abort" => {
                let code = command.number("exitcode").unwrap_or(1) as i32;
                let message = command.get("error_msg").or(command.get("message")).unwrap_or_default();
                // MPICH's placeholder for an empty message.
                let message = if message == "abort" { String::new() } else { message.to_owned() };
                vec![Event::Abort { local, code, message }]
            }
            // MPI_Comm_spawn would need new ranks, and the name service would need other jobs. MPI turns this rc into
            // an error of its own.
            "spawn" => spawn(local, command),
            "publish_name" => reply("cmd=publish_result rc=-1 msg=unsupported".into()),
            "unpublish_name" => reply("cmd=unpublish_result rc=-1 msg=unsupported".into()),
            "lookup_name" => reply("cmd=lookup_result rc=-1 msg=unsupported".into()),
            other => vec![Event::Broken { local, problem: format!("unknown PMI-1 command `{other}`") }],
        }
    }

    fn put(&mut self, local: usize, command: &Command) -> Vec<Event> {
        let result = match (command.get("key"), command.get("value")) {
            (Some(key), Some(value)) if key.len() <= KEY_MAX && value.len() <= VALUE_MAX => {
                self.values.insert(key.to_owned(), value.to_owned());
                self.fresh.push((key.to_owned(), value.to_owned()));
                "rc=0 msg=success"
            }
            (Some(_), Some(_)) => "rc=-1 msg=key_or_value_too_long",
            _ => "rc=-1 msg=key_or_value_missing",
        };
        vec![Event::Reply { local, line: format!("cmd=put_result {result}\n") }]
    }

    fn barrier_in(&mut self, local: usize) -> Vec<Event> {
        if std::mem::replace(&mut self.ranks[local].in_barrier, true) {
            return vec![Event::Broken { local, problem: "a second barrier_in inside one PMI barrier".into() }];
        }
        if self.ranks.iter().all(|rank| rank.in_barrier) {
            return vec![Event::Barrier { entries: std::mem::take(&mut self.fresh) }];
        }
        Vec::new()
    }

    /// Every rank of the job has entered the barrier. Stores the entries of other nodes and lets this node's ranks
    /// continue.
    pub fn barrier_out(&mut self, entries: Vec<Entry>) -> Vec<Event> {
        self.values.extend(entries);
        let line = "cmd=barrier_out rc=0\n";
        let ranks = self.ranks.iter_mut().enumerate();
        ranks
            .filter_map(|(local, rank)| std::mem::take(&mut rank.in_barrier).then_some(local))
            .map(|local| Event::Reply { local, line: line.into() })
            .collect()
    }
}

/// Refuses a spawn. A spawn of several programs has one command for each, and only the last one gets a reply.
fn spawn(local: usize, command: &Command) -> Vec<Event> {
    if command.number("spawnssofar") < command.number("totspawns") {
        return Vec::new();
    }
    let program = command.get("execname").unwrap_or_default().to_owned();
    let line = "cmd=spawn_result rc=-1 msg=landbridge_cannot_spawn\n".to_owned();
    vec![Event::Reply { local, line }, Event::SpawnRefused { local, program }]
}

#[cfg(test)]
mod tests;
