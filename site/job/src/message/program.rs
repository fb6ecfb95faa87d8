//! The program of a site's ranks, as an agent runs it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{InputTo, MpiChoice};

/// The programs of a site's ranks, and their environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The commands, in the order of their first ranks. There is one, unless several programs were typed, separated by
    /// `:`.
    pub parts: Vec<Part>,
    /// The user's environment.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Environment modules that are loaded first.
    pub modules: Vec<String>,
    pub mpi: MpiChoice,
    pub input: InputTo,
    /// True if ranks' output is passed on as it comes, instead of in whole lines.
    pub raw: bool,
}

/// A command and the ranks that run it: from `first` to the first rank of the next part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub first: u32,
    /// The program (looked up in `PATH` unless it has a slash) and its arguments, as raw bytes. Empty: there is no
    /// program, and the agent only reports whether it could run one. Arguments that [`Otherwise::arguments`] lists have
    /// `~/` in place of the user's home on the node.
    pub command: Vec<Vec<u8>>,
    /// The working directory, as raw bytes. `~/` at its beginning, or at the program's, stands for the user's home on
    /// the node.
    pub directory: Vec<u8>,
    /// Variables that override the user's environment and the modules.
    pub settings: Vec<(Vec<u8>, Vec<u8>)>,
    pub otherwise: Otherwise,
}

/// Alternatives on a node where the program or its directory is not at its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Otherwise {
    /// The path at which the program was typed; used if only this path exists on the node.
    pub program: Option<Vec<u8>>,
    /// The directory as it was typed; used if only this path exists on the node.
    pub directory: Option<Vec<u8>>,
    /// Arguments that contain a path below the user's home: their index in the command, and their typed form. The typed
    /// path is used if only that exists on the node.
    #[serde(default)]
    pub arguments: Vec<(u32, Vec<u8>)>,
    /// Advice for the user: where to set the program's path at this site.
    pub program_advice: String,
    /// Advice for the user: where to set the directory at this site.
    pub directory_advice: String,
}

impl Program {
    /// The ranks of each part in a job of `size` ranks.
    pub fn ranks(&self, size: u32) -> Vec<Range<u32>> {
        let ends = self.parts.iter().skip(1).map(|part| part.first).chain([size]);
        self.parts.iter().zip(ends).map(|(part, end)| part.first..end).collect()
    }

    /// The number of the part that a rank belongs to; MPI calls it `MPI_APPNUM`.
    pub fn part_of(&self, rank: u32) -> u32 {
        self.parts.iter().skip(1).filter(|part| part.first <= rank).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_belongs_to_one_part() {
        let part = |first| Part { first, ..Part::default() };
        let program = Program { parts: vec![part(0), part(1), part(4)], ..Program::default() };
        assert_eq!(program.ranks(6), [0..1, 1..4, 4..6]);
        assert_eq!((0..6).map(|rank| program.part_of(rank)).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2]);
        assert_eq!(Program::default().part_of(3), 0);
    }
}
