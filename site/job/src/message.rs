//! Messages between the launcher and agents. They travel in ordinary frames, which gateways relay unread.

mod program;

use std::fmt;

use serde::{Deserialize, Serialize};
use types::Identity;

use crate::fence::Fence;
use crate::forward::Piece;
use crate::mpi::layer::Coverage;

pub use program::{Otherwise, Part, Program};

/// A key and its value in the PMI key-value space.
pub type Entry = (String, String);

/// An MPI library that needs settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// MPICH and close relatives that have its netmod.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// The family's word in `--mpi`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Mpich => "mpich",
            Family::Intel => "intel",
            Family::OpenMpi => "openmpi",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The user's choice of an MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiChoice {
    /// The MPI is recognised from the program.
    #[default]
    Auto,
    Named(Family),
    /// No MPI: the program uses libfabric itself.
    Libfabric,
}

/// The ranks that get the standard input of `run`. The other ranks read an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputTo {
    #[default]
    None,
    /// Each rank gets the whole input.
    All,
    Rank(u32),
}

impl InputTo {
    /// True if this rank gets the input.
    pub fn reaches(self, rank: u32) -> bool {
        match self {
            InputTo::None => false,
            InputTo::All => true,
            InputTo::Rank(only) => only == rank,
        }
    }
}

/// The end of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The exit code.
    Code(i32),
    /// The signal that killed it.
    Signal(i32),
}

impl End {
    /// The exit code as a shell reports it: 128 + n for signal n.
    pub fn exit_code(self) -> i32 {
        match self {
            End::Code(code) => code,
            End::Signal(signal) => 128 + signal,
        }
    }
}

/// The state of a rank's MPI, as its PMI connection shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiState {
    /// It never called `MPI_Init`.
    #[default]
    Untouched,
    /// It called `MPI_Init`, but not yet `MPI_Finalize`.
    Running,
    /// It called `MPI_Finalize`.
    Finalised,
}

/// One of a rank's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Messages towards the ranks: from the launcher to agents, and from the first agent of a site to its other agents
/// (only fences).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Check that this program can run here. The answer is `Ready` or `Refused`.
    Prepare {
        program: Box<Program>,
        /// The text form of [`types::Roster`].
        roster: String,
    },
    /// Start the ranks. `window`: most bytes that each rank may have in flight in total at first. `collectives`: the
    /// coverage that every node of the job allows. `ipv6`: true if a node of the job has an IPv6 address.
    Go { window: u32, collectives: Coverage, ipv6: bool },
    /// All ranks of the fence's group have reached it.
    FenceOut {
        fence: Fence,
        /// The data of all members, one after the other.
        data: Vec<u8>,
        /// For a named fence, a number that no other fence of the job has.
        number: u32,
    },
    /// A rank of the agent `asker` needs the data that a rank of this node has published. `ticket`: the asker's number
    /// for this question.
    ModexAsk { asker: Identity, ticket: u32, rank: u32 },
    /// The answer to a question of this agent. No data if the rank has published none.
    ModexTell { ticket: u32, data: Option<Vec<u8>> },
    /// End every rank: send this signal now and SIGKILL a second later. The answer is `Ended`.
    Kill { signal: i32 },
    /// The job is over: the agent ends the remaining processes and itself.
    Finish,
    /// The next bytes of standard input for the ranks of the node that get it; empty at its end. [`Up::InputTaken`]
    /// answers it and bounds the bytes in flight. The agent acknowledges the message at once, so a rank that does not
    /// read delays no other message.
    Input { bytes: Vec<u8> },
    /// A piece for an agent that forwards ports.
    Forward(Piece),
    /// Send this signal to every rank. After SIGTSTP the launcher stops too, until it sends SIGCONT.
    Signal { signal: i32 },
}

/// Messages away from the ranks: from agents to the launcher, and from agents to the first agent of their site (only
/// fences).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// The agent has started.
    Here,
    /// The program can run here.
    Ready {
        /// `None` if no MPI was recognised.
        mpi: Option<Family>,
        /// The collective operations that ranks of this node can leave to the layer.
        collectives: Coverage,
        /// True if ranks of this node listen at an IPv6 address.
        ipv6: bool,
        /// Notes for the user, for example about an overridden setting.
        notes: Vec<String>,
    },
    /// The program cannot run here. The reason is for the user.
    Refused {
        reason: String,
    },
    /// A rank of this node called `MPI_Init`; sent once.
    UsesMpi,
    /// All ranks below the sender that belong to the fence's group have reached it. `data`: the data of all of them,
    /// one after the other.
    FenceIn {
        fence: Fence,
        data: Vec<u8>,
    },
    /// A rank of this node needs the data that a rank of another node has published. `ticket`: this agent's number for
    /// the question.
    ModexAsk {
        ticket: u32,
        rank: u32,
    },
    /// The answer to another agent's question. No data if the rank has published none.
    ModexTell {
        asker: Identity,
        ticket: u32,
        data: Option<Vec<u8>>,
    },
    /// A rank's provider lacks something, such as memory, and the rank may fail because of it. The reason does not
    /// repeat the place.
    Trouble {
        rank: u32,
        reason: String,
    },
    /// A note for the user about a rank. The text does not repeat the place.
    Note {
        rank: u32,
        text: String,
    },
    /// Whole lines that a rank wrote.
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Exited {
        rank: u32,
        end: End,
        state: MpiState,
    },
    /// A rank called `MPI_Abort` with this code. The message may be empty.
    Aborted {
        rank: u32,
        code: i32,
        message: String,
    },
    /// A rank failed. `None`: the agent itself failed.
    Failed {
        rank: Option<u32>,
        reason: String,
    },
    /// All ranks of this node and the processes that they left behind have ended.
    Ended,
    /// A rank's pipe has taken this many more bytes of standard input. `None`: it takes no more.
    InputTaken {
        rank: u32,
        bytes: Option<u32>,
    },
    /// A piece from an agent that forwards ports.
    Forward(Piece),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive() {
        let up = Up::Output { rank: 3, stream: Stream::Err, bytes: vec![0, 255, 10] };
        assert_eq!(postcard::from_bytes::<Up>(&postcard::to_stdvec(&up).unwrap()).unwrap(), up);
        assert!(postcard::from_bytes::<Down>(&[99, 1, 2]).is_err());
    }

    #[test]
    fn signals_count_from_128() {
        assert_eq!((End::Code(3).exit_code(), End::Signal(9).exit_code()), (3, 137));
    }
}
