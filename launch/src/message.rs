//! What launcher and agents say to each other, inside ordinary frames that gateways relay unread.

mod program;

use std::fmt;

use serde::{Deserialize, Serialize};
use types::Identity;

use crate::fence::Fence;
use crate::forward::Piece;

pub use program::{Otherwise, Part, Program};

/// Key and value put into the PMI key-value space.
pub type Entry = (String, String);

/// An MPI library that needs its own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// MPICH and its close relatives with its netmod.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// The word of `--mpi`.
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

/// Which MPI the user named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiChoice {
    /// Look at the program.
    #[default]
    Auto,
    /// This one.
    Named(Family),
    /// None: the program uses libfabric itself.
    Libfabric,
}

/// Which ranks get the standard input of `run`; the others read an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputTo {
    #[default]
    None,
    /// Each of them gets all of it.
    All,
    Rank(u32),
}

impl InputTo {
    /// Whether this rank gets it.
    pub fn reaches(self, rank: u32) -> bool {
        match self {
            InputTo::None => false,
            InputTo::All => true,
            InputTo::Rank(only) => only == rank,
        }
    }
}

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// The exit code a shell would give: 128 + n for signal n.
    pub fn exit_code(self) -> i32 {
        match self {
            End::Code(code) => code,
            End::Signal(signal) => 128 + signal,
        }
    }
}

/// How far a rank came with MPI, as its PMI connection saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiState {
    /// It never called `MPI_Init`.
    #[default]
    Untouched,
    /// It called `MPI_Init` and not `MPI_Finalize`.
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

/// Towards the ranks: launcher → agents; first agent of a site → its other agents (fences only).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Find out whether this can run; answer `Ready` or `Refused`.
    Prepare {
        /// What.
        program: Box<Program>,
        /// All ranks of the job, in the text form of [`types::Roster`].
        roster: String,
    },
    /// Start the ranks. `window`: what each may have in flight in all at first, in bytes.
    Go {
        /// The window in bytes.
        window: u32,
    },
    /// All ranks of the fence's group are in it.
    FenceOut {
        /// Which.
        fence: Fence,
        /// What they brought, one after the other.
        data: Vec<u8>,
        /// A named fence's number, different from all others of the job.
        number: u32,
    },
    /// An agent's rank wants what a rank of this node has published.
    ModexAsk {
        /// The agent that asks.
        asker: Identity,
        /// Its number for this question.
        ticket: u32,
        /// Whose data.
        rank: u32,
    },
    /// The answer to a question of this agent.
    ModexTell {
        /// The question.
        ticket: u32,
        /// The data; `None` when there is none.
        data: Option<Vec<u8>>,
    },
    /// End every rank: this signal now, SIGKILL a second later. Answer `Ended`.
    Kill {
        /// The signal's number.
        signal: i32,
    },
    /// The job is over: end whatever is left, and yourself.
    Finish,
    /// The next bytes of standard input for those ranks of the node that get it; empty at its end. Answered by [`Up::InputTaken`], which
    /// bounds what is under way: an agent acknowledges it at once, so a rank that does not read delays no other message.
    Input { bytes: Vec<u8> },
    /// To an agent that forwards ports.
    Forward(Piece),
}

/// Away from the ranks: agents → launcher; agents → first agent of their site (fences only).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// The agent is there.
    Here,
    /// The program can run here.
    Ready {
        /// The MPI it uses; `None` when none was recognised.
        mpi: Option<Family>,
        /// Things the user should know, such as an overridden setting.
        notes: Vec<String>,
    },
    /// The program cannot run here.
    Refused {
        /// Why, for the user.
        reason: String,
    },
    /// A rank of this node called `MPI_Init`; sent once.
    UsesMpi,
    /// All ranks below that are in the fence's group are in it.
    FenceIn {
        /// Which.
        fence: Fence,
        /// What they brought, one after the other.
        data: Vec<u8>,
    },
    /// A rank of this node wants what a rank of another node has published.
    ModexAsk {
        /// This agent's number for the question.
        ticket: u32,
        /// Whose data.
        rank: u32,
    },
    /// The answer to another agent's question.
    ModexTell {
        /// The agent that asked.
        asker: Identity,
        /// Its number for the question.
        ticket: u32,
        /// The data; `None` when there is none.
        data: Option<Vec<u8>>,
    },
    /// A rank's provider lacks what it needs, such as memory; the rank may fail because of it.
    Trouble {
        /// The rank.
        rank: u32,
        /// What, for the user; does not repeat the place.
        reason: String,
    },
    /// Something the user should know about a rank.
    Note {
        /// The rank.
        rank: u32,
        /// What, for the user; does not repeat the place.
        text: String,
    },
    /// Whole lines a rank wrote.
    Output {
        /// The rank.
        rank: u32,
        /// Where it wrote.
        stream: Stream,
        /// What it wrote.
        bytes: Vec<u8>,
    },
    /// A rank ended.
    Exited {
        /// The rank.
        rank: u32,
        /// How.
        end: End,
        /// How far it had come with MPI.
        state: MpiState,
    },
    /// A rank called `MPI_Abort`.
    Aborted {
        /// The rank.
        rank: u32,
        /// The code it gave.
        code: i32,
        /// Its message, possibly empty.
        message: String,
    },
    /// Something went wrong with one rank, or (`None`) with the agent itself.
    Failed {
        /// The rank.
        rank: Option<u32>,
        /// What, for the user.
        reason: String,
    },
    /// All ranks of this node have ended, and all they left behind.
    Ended,
    /// A rank's pipe has taken this many more bytes of standard input; `None`: it takes no more.
    InputTaken { rank: u32, bytes: Option<u32> },
    /// From an agent that forwards ports.
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
