//! The handshake of [`wire::handshake`] as a machine without I/O: messages in, messages out.

use types::{Address, JobId};
use wire::Secret;
use wire::frame::MAX_PAYLOAD;
use wire::handshake::{Handshake, Hello, Purpose, Welcome};

use crate::link::Misbehaved;

/// What this endpoint says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub job: JobId,
    pub secret: Secret,
    pub me: Address,
}

impl Credentials {
    /// The first message to `to`.
    pub fn hello(&self, purpose: Purpose, to: Address) -> Hello {
        let (site, gateway) = (String::new(), String::new());
        Hello { purpose, job: self.job, from: self.me, to, site, gateway, link: 0 }
    }
}

/// The side that dialled.
#[derive(Debug)]
pub(crate) struct Initiator {
    hello: Hello,
    proved: bool,
}

/// The side that was dialled.
#[derive(Debug)]
pub(crate) enum Acceptor {
    Hello,
    Proof { hello: Hello, challenge: [u8; 32] },
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send this and wait for more.
    Reply(Handshake),
    /// Send this (if anything): the connection is open.
    Open { reply: Option<Handshake>, peer: Address, welcome: Welcome },
    /// Send this (if anything) and close, for this reason.
    Refused { reply: Option<Handshake>, reason: String },
}

impl Initiator {
    pub fn new(hello: Hello) -> (Initiator, Handshake) {
        (Initiator { hello: hello.clone(), proved: false }, Handshake::Hello(hello))
    }

    pub fn step(&mut self, message: Handshake, secret: &Secret) -> Result<Step, Misbehaved> {
        match message {
            Handshake::Challenge(challenge) if !self.proved => {
                self.proved = true;
                Ok(Step::Reply(Handshake::Proof(secret.prove(&challenge, &self.hello.claims()))))
            }
            Handshake::Welcome(welcome) if self.proved => {
                if welcome.max_payload < 1024 || welcome.max_payload > MAX_PAYLOAD {
                    return Err(Misbehaved::Protocol("a frame length out of bounds"));
                }
                Ok(Step::Open { reply: None, peer: self.hello.to, welcome })
            }
            Handshake::Refuse(reason) => Ok(Step::Refused { reply: None, reason }),
            _ => Err(Misbehaved::Protocol("a handshake message out of turn")),
        }
    }
}

impl Acceptor {
    /// `challenge`: 32 fresh random bytes.
    pub fn step(&mut self, message: Handshake, own: &Credentials, challenge: [u8; 32]) -> Result<Step, Misbehaved> {
        let refuse = |reason: String| Ok(Step::Refused { reply: Some(Handshake::Refuse(reason.clone())), reason });
        match (std::mem::replace(self, Acceptor::Hello), message) {
            (Acceptor::Hello, Handshake::Hello(hello)) => {
                if hello.purpose != Purpose::Peer {
                    return refuse("this is a rank's port: gateways are elsewhere".into());
                }
                if hello.job != own.job {
                    return refuse(format!("this rank belongs to job {}, not {}", own.job, hello.job));
                }
                if hello.to.key() != own.me.key() {
                    return refuse(format!("here is {:?}, not {:?}", own.me, hello.to));
                }
                *self = Acceptor::Proof { hello, challenge };
                Ok(Step::Reply(Handshake::Challenge(challenge)))
            }
            (Acceptor::Proof { hello, challenge }, Handshake::Proof(proof)) => {
                if !own.secret.verify(&challenge, &hello.claims(), &proof) {
                    return refuse(format!("the proof of job {} is wrong", hello.job));
                }
                let welcome = Welcome { max_payload: MAX_PAYLOAD, window: u32::MAX, run: 0 };
                Ok(Step::Open { reply: Some(Handshake::Welcome(welcome)), peer: hello.from, welcome })
            }
            _ => Err(Misbehaved::Protocol("a handshake message out of turn")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(port: u16, secret: u8) -> Credentials {
        let me = Address::standalone(std::net::SocketAddrV4::new([10, 0, 0, 1].into(), port));
        Credentials { job: JobId(7), secret: Secret::new([secret; 32]), me }
    }

    /// Runs both sides to their ends.
    fn run(dialler: &Credentials, dialled: &Credentials, to: Address) -> (Step, Step) {
        let (mut initiator, mut message) = Initiator::new(dialler.hello(Purpose::Peer, to));
        let mut acceptor = Acceptor::Hello;
        loop {
            let theirs = acceptor.step(message, dialled, [9; 32]).unwrap();
            let reply = match &theirs {
                Step::Reply(reply)
                | Step::Open { reply: Some(reply), .. }
                | Step::Refused { reply: Some(reply), .. } => reply,
                other => panic!("{other:?}"),
            };
            match initiator.step(reply.clone(), &dialler.secret).unwrap() {
                Step::Reply(next) => message = next,
                ours => return (ours, theirs),
            }
        }
    }

    #[test]
    fn members_of_a_job_open() {
        let (a, b) = (credentials(1, 5), credentials(2, 5));
        let (ours, theirs) = run(&a, &b, b.me);
        assert!(matches!(ours, Step::Open { peer, .. } if peer == b.me));
        assert!(matches!(theirs, Step::Open { peer, .. } if peer == a.me));
    }

    #[test]
    fn strangers_are_refused_with_a_reason() {
        let (a, b, c) = (credentials(1, 5), credentials(2, 6), credentials(3, 5));
        let other_job = Credentials { job: JobId(8), ..a.clone() };
        for (dialler, to, expected) in
            [(&a, b.me, "proof"), (&other_job, b.me, "belongs to job"), (&a, c.me, "here is")]
        {
            let (ours, _) = run(dialler, &b, to);
            assert!(matches!(&ours, Step::Refused { reason, .. } if reason.contains(expected)), "{ours:?}");
        }
    }
}
