//! The handshake of [`wire::handshake`] without I/O: messages in, messages out. Ranks, agents, users and gateways run these two
//! machines, each over its own sockets.

use thiserror::Error;
use wire::Secret;
use wire::handshake::{Handshake, Hello, Refusal, Welcome};

/// Why a handshake ended without a connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The acceptor said no.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The peer sent another message than the one that is due.
    #[error("expected {expected} in the handshake, got something else")]
    OutOfTurn {
        /// What was due.
        expected: &'static str,
    },
    /// The initiator does not know the secret.
    #[error("wrong proof")]
    Proof,
}

/// The side that dialled.
#[derive(Debug)]
pub struct Initiator {
    hello: Hello,
    secret: Secret,
    proved: bool,
}

/// What the initiator does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Sends this and waits for more.
    Send(Handshake),
    /// The connection is open, within these limits.
    Open(Welcome),
}

impl Initiator {
    /// Begins: the message to send first.
    pub fn new(hello: Hello, secret: Secret) -> (Initiator, Handshake) {
        (Initiator { hello: hello.clone(), secret, proved: false }, Handshake::Hello(hello))
    }

    /// What it said of itself, and whom it means to reach.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Takes the acceptor's next message.
    ///
    /// # Errors
    /// [`Fault`]: nothing more can come of this connection.
    pub fn step(&mut self, message: Handshake) -> Result<Answer, Fault> {
        match message {
            Handshake::Challenge(challenge) if !self.proved => {
                self.proved = true;
                let proof = self.secret.prove(&challenge, &self.hello.claims());
                Ok(Answer::Send(Handshake::Proof(proof)))
            }
            Handshake::Welcome(welcome) if self.proved => Ok(Answer::Open(welcome)),
            Handshake::Refuse(refusal) => Err(Fault::Refused(refusal)),
            _ => Err(Fault::OutOfTurn { expected: if self.proved { "a welcome" } else { "a challenge" } }),
        }
    }
}

/// The side that was dialled.
#[derive(Debug, Default)]
pub struct Acceptor(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Hello,
    /// Its owner decides whether to go on with the initiator.
    Asked,
    Proof {
        hello: Box<Hello>,
        secret: Secret,
        challenge: [u8; 32],
    },
    Proved,
}

/// What the acceptor heard. Its owner answers: with [`Acceptor::challenge`], with a welcome, or with a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Who the initiator claims to be.
    Claimed(Hello),
    /// It knows the secret, so what it claimed is so.
    Proved(Hello),
}

impl Acceptor {
    /// Whether nothing was heard yet: the next message has a preface.
    pub fn is_first(&self) -> bool {
        matches!(self.0, State::Hello)
    }

    /// Takes the initiator's next message.
    ///
    /// # Errors
    /// [`Fault`]: nothing more can come of this connection.
    pub fn step(&mut self, message: Handshake) -> Result<Heard, Fault> {
        match (std::mem::take(&mut self.0), message) {
            (State::Hello, Handshake::Hello(hello)) => {
                self.0 = State::Asked;
                Ok(Heard::Claimed(hello))
            }
            (State::Proof { hello, secret, challenge }, Handshake::Proof(proof)) => {
                self.0 = State::Proved;
                match secret.verify(&challenge, &hello.claims(), &proof) {
                    true => Ok(Heard::Proved(*hello)),
                    false => Err(Fault::Proof),
                }
            }
            (state, _) => {
                let expected = if matches!(state, State::Hello) { "a hello" } else { "a proof" };
                self.0 = State::Proved;
                Err(Fault::OutOfTurn { expected })
            }
        }
    }

    /// Goes on with an initiator that claims this: the message to send. `challenge`: fresh random bytes.
    pub fn challenge(&mut self, hello: Hello, secret: Secret, challenge: [u8; 32]) -> Handshake {
        self.0 = State::Proof { hello: Box::new(hello), secret, challenge };
        Handshake::Challenge(challenge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Address, JobId};
    use wire::handshake::{Purpose, RefusalCode};

    const WELCOME: Welcome = Welcome { max_payload: 4096, window: 1, run: 2 };

    fn hello() -> Hello {
        let [from, to] = ["10.0.0.1:1", "10.0.0.2:2"].map(|socket| Address::standalone(socket.parse().unwrap()));
        let (site, gateway) = (String::new(), String::new());
        Hello { purpose: Purpose::Peer, job: JobId(7), from, to, site, gateway, link: 0 }
    }

    /// Runs both ends to the welcome.
    fn run(ours: u8, theirs: u8) -> Result<Welcome, Fault> {
        let (mut initiator, first) = Initiator::new(hello(), Secret::new([ours; 32]));
        let mut acceptor = Acceptor::default();
        assert!(acceptor.is_first());
        assert_eq!(acceptor.step(first), Ok(Heard::Claimed(hello())));
        let challenge = acceptor.challenge(hello(), Secret::new([theirs; 32]), [9; 32]);
        assert!(!acceptor.is_first());
        let Answer::Send(proof) = initiator.step(challenge)? else { panic!("open before it has proved anything") };
        assert_eq!(acceptor.step(proof)?, Heard::Proved(hello()));
        match initiator.step(Handshake::Welcome(WELCOME))? {
            Answer::Open(welcome) => Ok(welcome),
            Answer::Send(message) => panic!("{message:?} after a welcome"),
        }
    }

    #[test]
    fn who_share_a_secret_open() {
        assert_eq!(run(5, 5), Ok(WELCOME));
        assert_eq!(run(5, 6), Err(Fault::Proof));
    }

    #[test]
    fn a_refusal_ends_it_at_any_time() {
        let refusal = Refusal::new(RefusalCode::Unknown, "no such job");
        let (mut initiator, _) = Initiator::new(hello(), Secret::NONE);
        assert_eq!(initiator.step(Handshake::Refuse(refusal.clone())), Err(Fault::Refused(refusal)));
    }

    #[test]
    fn messages_out_of_turn_end_it() {
        let messages = [
            Handshake::Hello(hello()),
            Handshake::Challenge([1; 32]),
            Handshake::Proof([0; 32]),
            Handshake::Welcome(WELCOME),
        ];
        for message in &messages {
            let (mut initiator, _) = Initiator::new(hello(), Secret::NONE);
            let due = matches!(message, Handshake::Challenge(_));
            assert_eq!(initiator.step(message.clone()).is_ok(), due, "{message:?}");
            assert!(!due || initiator.step(message.clone()).is_err(), "twice");
            let mut acceptor = Acceptor::default();
            let due = matches!(message, Handshake::Hello(_));
            assert_eq!(acceptor.step(message.clone()).is_ok(), due, "{message:?}");
            for again in &messages {
                assert!(acceptor.step(again.clone()).is_err(), "{again:?}, and nobody was challenged");
            }
        }
    }
}
