//! The handshake of [`wire::handshake`] without I/O: messages in, messages out. Ranks, agents, users and gateways run
//! these two state machines, each over its own sockets.

use thiserror::Error;
use wire::handshake::{Handshake, Hello, Refusal, Welcome};
use wire::{ProvingEnd, Secret};

/// Reasons for a handshake to end without a connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The acceptor refused.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The peer sent another message than the expected one.
    #[error("expected {expected} in the handshake, got another message")]
    OutOfTurn {
        /// The expected message.
        expected: &'static str,
    },
    /// The initiator does not know the secret.
    #[error("wrong proof")]
    Proof,
    /// The acceptor does not know the secret. The handshake has not revealed anything about it.
    #[error(
        "it does not know our secret: another program uses its port, or it has a different job or key under that name"
    )]
    Impostor,
}

/// The side that dialled.
#[derive(Debug)]
pub struct Initiator {
    hello: Hello,
    secret: Secret,
    key: Vec<u8>,
    proved: bool,
}

/// The initiator's next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this message and wait for the next one.
    Send(Handshake),
    /// The connection is open, within these limits.
    Open(Welcome),
}

impl Initiator {
    /// Starts the handshake and returns the message to send first. `key`: the key that the acceptor presented by TLS;
    /// empty without TLS.
    pub fn new(hello: Hello, secret: Secret, key: &[u8]) -> (Initiator, Handshake) {
        (Initiator { hello: hello.clone(), secret, key: key.to_vec(), proved: false }, Handshake::Hello(hello))
    }

    /// The hello: the claimed identity, and the peer that it wants to reach.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sets the key that the acceptor presented by TLS, if it was not known when the handshake started.
    pub fn inside(&mut self, key: &[u8]) -> &mut Initiator {
        self.key.clear();
        self.key.extend_from_slice(key);
        self
    }

    /// Processes the acceptor's next message.
    ///
    /// # Errors
    /// [`Fault`]: this connection cannot be used.
    pub fn step(&mut self, message: Handshake) -> Result<Answer, Fault> {
        match message {
            Handshake::Challenge { nonce, proof } if !self.proved => {
                let transcript = self.hello.transcript(&nonce, &self.key);
                if !self.secret.verify(ProvingEnd::Acceptor, &transcript, &proof) {
                    return Err(Fault::Impostor);
                }
                self.proved = true;
                Ok(Answer::Send(Handshake::Proof(self.secret.prove(ProvingEnd::Initiator, &transcript))))
            }
            Handshake::Welcome(welcome) if self.proved => Ok(Answer::Open(welcome)),
            Handshake::Refuse(refusal) => Err(Fault::Refused(refusal)),
            _ => Err(Fault::OutOfTurn { expected: if self.proved { "a welcome" } else { "a challenge" } }),
        }
    }
}

/// The side that was dialled.
#[derive(Debug, Default)]
pub struct Acceptor(AcceptorState);

#[derive(Debug, Default)]
enum AcceptorState {
    #[default]
    Hello,
    /// A hello has arrived; the caller decides whether to continue with the initiator.
    Asked,
    Proof {
        hello: Box<Hello>,
        secret: Secret,
        transcript: Vec<u8>,
    },
    Proved,
}

/// A message that the acceptor received. The caller answers with [`Acceptor::challenge`], a welcome or a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The identity that the initiator claims.
    Claimed(Hello),
    /// It knows the secret, so its claim is true.
    Proved(Hello),
}

impl Acceptor {
    /// Returns true if no message was received yet: the next message has a preface.
    pub fn is_first(&self) -> bool {
        matches!(self.0, AcceptorState::Hello)
    }

    /// Processes the initiator's next message.
    ///
    /// # Errors
    /// [`Fault`]: this connection cannot be used.
    pub fn step(&mut self, message: Handshake) -> Result<Heard, Fault> {
        match (std::mem::take(&mut self.0), message) {
            (AcceptorState::Hello, Handshake::Hello(hello)) => {
                self.0 = AcceptorState::Asked;
                Ok(Heard::Claimed(hello))
            }
            (AcceptorState::Proof { hello, secret, transcript }, Handshake::Proof(proof)) => {
                self.0 = AcceptorState::Proved;
                match secret.verify(ProvingEnd::Initiator, &transcript, &proof) {
                    true => Ok(Heard::Proved(*hello)),
                    false => Err(Fault::Proof),
                }
            }
            (state, _) => {
                let expected = if matches!(state, AcceptorState::Hello) { "a hello" } else { "a proof" };
                self.0 = AcceptorState::Proved;
                Err(Fault::OutOfTurn { expected })
            }
        }
    }

    /// Continues with an initiator that made this claim, and returns the message to send. `nonce`: fresh random bytes;
    /// `key`: the key that this end presented by TLS; empty without TLS.
    pub fn challenge(&mut self, hello: Hello, secret: Secret, nonce: [u8; 32], key: &[u8]) -> Handshake {
        let transcript = hello.transcript(&nonce, key);
        let proof = secret.prove(ProvingEnd::Acceptor, &transcript);
        self.0 = AcceptorState::Proof { hello: Box::new(hello), secret, transcript };
        Handshake::Challenge { nonce, proof }
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
        Hello { purpose: Purpose::Peer, job: JobId(7), from, to, site, gateway, link: 0, nonce: [3; 32] }
    }

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32])
    }

    /// Runs both ends to the welcome; each has a secret and knows a key of the acceptor.
    fn run(ours: (u8, &[u8]), theirs: (u8, &[u8])) -> Result<Welcome, Fault> {
        let (mut initiator, first) = Initiator::new(hello(), secret(ours.0), ours.1);
        let mut acceptor = Acceptor::default();
        assert!(acceptor.is_first());
        assert_eq!(acceptor.step(first), Ok(Heard::Claimed(hello())));
        let challenge = acceptor.challenge(hello(), secret(theirs.0), [9; 32], theirs.1);
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
        assert_eq!(run((5, b""), (5, b"")), Ok(WELCOME));
        assert_eq!(run((5, b"key"), (5, b"key")), Ok(WELCOME));
    }

    #[test]
    fn who_does_not_know_the_secret_is_shown_no_proof() {
        assert_eq!(run((5, b""), (6, b"")), Err(Fault::Impostor));
    }

    #[test]
    fn what_is_passed_on_from_another_tls_session_proves_nothing() {
        assert_eq!(run((5, b"key of the one in the middle"), (5, b"key")), Err(Fault::Impostor));
        assert_eq!(run((5, b"key"), (5, b"")), Err(Fault::Impostor));
    }

    #[test]
    fn an_initiator_that_does_not_know_the_secret_is_not_let_in() {
        for wrong in [
            secret(6).prove(ProvingEnd::Initiator, &hello().transcript(&[9; 32], b"")),
            // A reflected proof, two for other hellos, one for other random bytes.
            secret(5).prove(ProvingEnd::Acceptor, &hello().transcript(&[9; 32], b"")),
            secret(5).prove(ProvingEnd::Initiator, &Hello { nonce: [4; 32], ..hello() }.transcript(&[9; 32], b"")),
            secret(5)
                .prove(ProvingEnd::Initiator, &Hello { gateway: "gw2".into(), ..hello() }.transcript(&[9; 32], b"")),
            secret(5).prove(ProvingEnd::Initiator, &hello().transcript(&[8; 32], b"")),
        ] {
            let mut acceptor = Acceptor::default();
            acceptor.step(Handshake::Hello(hello())).unwrap();
            acceptor.challenge(hello(), secret(5), [9; 32], b"");
            assert_eq!(acceptor.step(Handshake::Proof(wrong)), Err(Fault::Proof));
        }
    }

    #[test]
    fn a_refusal_ends_it_at_any_time() {
        let refusal = Refusal::new(RefusalCode::Unknown, "no such job");
        let (mut initiator, _) = Initiator::new(hello(), Secret::NONE, b"");
        assert_eq!(initiator.step(Handshake::Refuse(refusal.clone())), Err(Fault::Refused(refusal)));
    }

    #[test]
    fn messages_out_of_turn_end_it() {
        let proof = Secret::NONE.prove(ProvingEnd::Acceptor, &hello().transcript(&[1; 32], b""));
        let messages = [
            Handshake::Hello(hello()),
            Handshake::Challenge { nonce: [1; 32], proof },
            Handshake::Proof([0; 32]),
            Handshake::Welcome(WELCOME),
        ];
        for message in &messages {
            let (mut initiator, _) = Initiator::new(hello(), Secret::NONE, b"");
            let due = matches!(message, Handshake::Challenge { .. });
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
