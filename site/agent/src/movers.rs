//! An agent that runs only movers, because a node's service started it for a user without a job there.
//!
//! The user must not compute on the node, nor load any other program or library there. The launcher's messages come
//! from the user, so everything in them that could choose code is refused or left out.

use thiserror::Error;
use types::MOST_HARM;

use job::message::{MpiChoice, Otherwise, Part, Program};
use job::order::Order;
use job::program::MOVER;

/// Without [`MOST_HARM`]: only idle resources.
const NONE: &str = "0";
/// The end of each reason for refusing a program.
const ONLY_STAGE: &str = "without a job on this node, only `landbridge stage` may use it";

/// Reasons why an agent that runs only movers refuses a program.
#[derive(Debug, Error)]
pub(super) enum NotForMovers {
    /// A mover's job has exactly one program.
    #[error("several programs: {}", ONLY_STAGE)]
    SeveralPrograms,
    #[error("`{command}`: {}", ONLY_STAGE)]
    Command { command: String },
    #[error("an MPI library: {}", ONLY_STAGE)]
    Mpi,
    #[error("environment modules: {}", ONLY_STAGE)]
    Modules,
}

/// The programs that an agent may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The user has a right to the node, so any program.
    Anything,
    /// Only movers: the node runs other users' jobs, and the user has no right to it.
    OnlyMovers,
    /// Only movers: this is the machine of the user's own gateway, which is not for programs.
    OwnMovers,
}

impl Runs {
    /// Checks an order.
    ///
    /// # Errors
    /// The reason why the order is refused.
    pub(super) fn check(self, order: &Order) -> Result<(), &'static str> {
        match self {
            Runs::OnlyMovers if order.forward.is_some() => Err("an agent for movers forwards no ports"),
            // The user could choose the library of a fabric.
            Runs::OnlyMovers if order.fabric.is_some() => Err("an agent for movers uses no fabric"),
            Runs::OnlyMovers | Runs::OwnMovers | Runs::Anything => Ok(()),
        }
    }

    /// Returns the program in the form in which it may run here. The user's environment is left out, because it can
    /// make any program load code.
    ///
    /// # Errors
    /// The program is no mover; the error is the reason for the user.
    pub(super) fn admit(self, program: &Program) -> Result<Program, NotForMovers> {
        self.admit_with(program, std::env::var(MOST_HARM).unwrap_or_else(|_| NONE.to_owned()))
    }

    fn admit_with(self, program: &Program, most_harm: String) -> Result<Program, NotForMovers> {
        if self == Runs::Anything {
            return Ok(program.clone());
        }
        let [part] = &program.parts[..] else { return Err(NotForMovers::SeveralPrograms) };
        if part.command != MOVER.map(str::as_bytes) {
            let command: Vec<_> = part.command.iter().map(|word| String::from_utf8_lossy(word)).collect();
            return Err(NotForMovers::Command { command: command.join(" ").escape_debug().to_string() });
        }
        if program.mpi != MpiChoice::Libfabric {
            return Err(NotForMovers::Mpi);
        }
        if !program.modules.is_empty() && self == Runs::OnlyMovers {
            return Err(NotForMovers::Modules);
        }
        let (command, directory) = (part.command.clone(), b"/".to_vec());
        let limit = (self == Runs::OnlyMovers).then(|| (MOST_HARM.into(), most_harm.into_bytes()));
        let part = Part {
            first: part.first,
            command,
            directory,
            settings: Vec::from_iter(limit),
            otherwise: Otherwise::default(),
        };
        // Each field is listed, so that a new one does not reach movers before somebody decides it.
        Ok(Program {
            parts: vec![part],
            environment: Vec::new(),
            modules: Vec::new(),
            mpi: program.mpi,
            input: program.input,
            raw: program.raw,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str]) -> Program {
        let part = Part {
            command: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            directory: b"/home/u".to_vec(),
            settings: vec![(b"LD_PRELOAD".to_vec(), b"/home/u/evil.so".to_vec())],
            otherwise: Otherwise { program: Some(b"/home/u/evil".to_vec()), ..Otherwise::default() },
            ..Part::default()
        };
        let environment = vec![(b"LD_PRELOAD".to_vec(), b"/home/u/evil.so".to_vec())];
        Program { parts: vec![part], environment, mpi: MpiChoice::Libfabric, ..Program::default() }
    }

    #[test]
    fn a_mover_runs_without_anything_of_the_users() {
        let mover = program(&["landbridge", "mover"]);
        let admitted = Runs::OnlyMovers.admit_with(&mover, "3".to_owned()).unwrap();
        assert!(admitted.environment.is_empty() && admitted.parts[0].settings == [(MOST_HARM.into(), b"3".to_vec())]);
        assert_eq!(
            (&admitted.parts[0].otherwise, &admitted.parts[0].directory[..]),
            (&Otherwise::default(), &b"/"[..])
        );
        let own = Runs::OwnMovers.admit(&Program { modules: vec!["x".into()], ..mover.clone() }).unwrap();
        assert!(own.environment.is_empty() && own.modules.is_empty() && own.parts[0].settings.is_empty());
        assert_eq!(Runs::Anything.admit(&mover).unwrap(), mover);
    }

    #[test]
    fn nothing_else_runs_beside_other_users_jobs() {
        for words in
            [&["./solver"][..], &["/bin/landbridge", "mover"], &["landbridge", "mover", "--here"], &["landbridge"], &[]]
        {
            let refused = Runs::OnlyMovers.admit(&program(words)).unwrap_err().to_string();
            assert!(refused.contains("only `landbridge stage` may use it"), "{refused}");
        }
        let mover = || program(&["landbridge", "mover"]);
        assert!(Runs::OnlyMovers.admit(&Program { modules: vec!["x".into()], ..mover() }).is_err());
        assert!(Runs::OnlyMovers.admit(&Program { mpi: MpiChoice::Auto, ..mover() }).is_err());
        assert!(Runs::OnlyMovers.admit(&Program { parts: Vec::new(), ..mover() }).is_err());
    }

    #[test]
    fn no_ports_are_forwarded_and_no_library_is_named() {
        let order = job::order::example(types::sites::Memory::Off, 0);
        assert_eq!(Runs::OnlyMovers.check(&order), Ok(()));
        let fabric = types::sites::Fabric { provider: "cxi".into(), library: Some("/home/u/evil.so".into()) };
        let with = Order(gateway_tasks::AgentOrder { fabric: Some(fabric), ..order.0.clone() });
        assert!(Runs::OnlyMovers.check(&with).is_err() && Runs::Anything.check(&with).is_ok());
    }
}
