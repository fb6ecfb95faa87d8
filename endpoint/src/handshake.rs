//! What this endpoint says of itself when a connection begins, and whom it lets in. The messages are `member::handshake`'s.

use member::handshake::{Acceptor, Fault, Heard};
use types::{Address, JobId};
use wire::Secret;
use wire::frame::MAX_PAYLOAD;
use wire::handshake::{Handshake, Hello, Purpose, Refusal, RefusalCode, Welcome};

use crate::link::Misbehaved;
use crate::reader::Broken;

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

    /// Whether whoever dials this endpoint means it.
    ///
    /// # Errors
    /// Why it is to be refused.
    pub fn admits(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.purpose != Purpose::Peer {
            return Err(Refusal::new(RefusalCode::Purpose, "this is a rank's port: gateways are elsewhere"));
        }
        if hello.job != self.job {
            let text = format!("this rank belongs to job {}, not {}", self.job, hello.job);
            return Err(Refusal::new(RefusalCode::Unknown, text));
        }
        if hello.to.key() != self.me.key() {
            return Err(Refusal::new(RefusalCode::OtherPeer, format!("here is {:?}, not {:?}", self.me, hello.to)));
        }
        Ok(())
    }
}

/// What the accepting end sends next, and when the handshake is over, who is there or why it was refused.
type Accepted = (Option<Handshake>, Option<Result<Address, Refusal>>);

/// The accepting end's next step.
pub(crate) fn accept(acceptor: &mut Acceptor, message: Handshake, own: &Credentials) -> Result<Accepted, Broken> {
    let refused = |refusal: Refusal| (Some(Handshake::Refuse(refusal.clone())), Some(Err(refusal)));
    match acceptor.step(message) {
        Ok(Heard::Claimed(hello)) => {
            if let Err(refusal) = own.admits(&hello) {
                return Ok(refused(refusal));
            }
            let mut challenge = [0; 32];
            getrandom::fill(&mut challenge).map_err(|e| std::io::Error::other(e.to_string()))?;
            Ok((Some(acceptor.challenge(hello, own.secret.clone(), challenge)), None))
        }
        Ok(Heard::Proved(hello)) => Ok((Some(Handshake::Welcome(WELCOME)), Some(Ok(hello.from)))),
        Err(Fault::Proof) => {
            let text = format!("the proof of job {} is wrong", own.job);
            Ok(refused(Refusal::new(RefusalCode::Proof, text)))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// The limits that this endpoint gives another: none beyond the protocol's.
const WELCOME: Welcome = Welcome { max_payload: MAX_PAYLOAD, window: u32::MAX, run: 0 };

/// Refuses limits that no acceptor gives.
pub(crate) fn check(welcome: &Welcome) -> Result<(), Misbehaved> {
    match welcome.max_payload {
        1024..=MAX_PAYLOAD => Ok(()),
        _ => Err(Misbehaved::Protocol("a frame length out of bounds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(port: u16, job: u32) -> Credentials {
        let me = Address::standalone(std::net::SocketAddrV4::new([10, 0, 0, 1].into(), port));
        Credentials { job: JobId(job), secret: Secret::NONE, me }
    }

    #[test]
    fn who_means_another_is_refused() {
        let (a, b, c) = (credentials(1, 7), credentials(2, 7), credentials(3, 7));
        assert_eq!(b.admits(&a.hello(Purpose::Peer, b.me)), Ok(()));
        for (hello, code) in [
            (a.hello(Purpose::Member, b.me), RefusalCode::Purpose),
            (credentials(1, 8).hello(Purpose::Peer, b.me), RefusalCode::Unknown),
            (a.hello(Purpose::Peer, c.me), RefusalCode::OtherPeer),
        ] {
            assert_eq!(b.admits(&hello).unwrap_err().code, code);
        }
    }
}
