//! The identity that this endpoint proves when a connection starts, and the peers that it admits. The messages are
//! `member::handshake`'s.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use member::handshake::{Acceptor, Fault, Heard, Initiator};
use types::{Address, JobId};
use wire::frame::MAX_PAYLOAD;
use wire::handshake::{Handshake, Hello, Purpose, Refusal, RefusalCode, Welcome};
use wire::token::{Audience, TOKEN_LEN};
use wire::{Secret, Token};

use crate::config::SiteGateway;
use crate::link::Misbehaved;
use crate::reader::Broken;

/// The identity and secrets of this endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub job: JobId,
    pub secret: Secret,
    pub me: Address,
}

impl Credentials {
    /// Starts a handshake with another rank.
    pub(crate) fn dial(&self, to: Address) -> io::Result<(Initiator, Handshake)> {
        Ok(self.begin(Purpose::Peer, to, (String::new(), String::new()), random()?))
    }

    /// Starts a handshake with a gateway of this site.
    pub(crate) fn dial_gateway(&self, gateway: &SiteGateway) -> io::Result<(Initiator, Handshake)> {
        let names = (gateway.site.clone(), gateway.name.clone());
        Ok(self.begin(Purpose::Member, self.me, names, self.token(gateway)?))
    }

    /// A fresh [token](wire::token) for a gateway of this site.
    pub(crate) fn token(&self, gateway: &SiteGateway) -> io::Result<[u8; TOKEN_LEN]> {
        // A clock before 1970 makes an old token, which a gateway treats like a missing one.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let to = Audience { site: &gateway.site, gateway: &gateway.name };
        Ok(Token::make(&self.secret, (self.job.0, since.as_secs()), to, random()?))
    }

    fn begin(
        &self,
        purpose: Purpose,
        to: Address,
        (site, gateway): (String, String),
        nonce: [u8; 32],
    ) -> (Initiator, Handshake) {
        let hello = Hello { purpose, job: self.job, from: self.me, to, site, gateway, link: 0, nonce };
        Initiator::new(hello, self.secret.clone(), &[])
    }

    /// Checks that a peer that dialled meant this endpoint.
    ///
    /// # Errors
    /// The refusal to send to the peer.
    pub(crate) fn admits(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.purpose != Purpose::Peer {
            return Err(Refusal::new(RefusalCode::Purpose, "this is a rank's port, not a gateway's"));
        }
        if hello.job != self.job {
            let text = format!("this rank belongs to job {}, not {}", self.job, hello.job);
            return Err(Refusal::new(RefusalCode::Unknown, text));
        }
        if hello.to.key() != self.me.key() {
            return Err(Refusal::new(RefusalCode::OtherPeer, format!("this is {:?}, not {:?}", self.me, hello.to)));
        }
        Ok(())
    }
}

fn random<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no random numbers: {e}")))?;
    Ok(bytes)
}

/// The accepting end's next message and, when the handshake is over, the peer's address or its refusal.
type Accepted = (Option<Handshake>, Option<Result<Address, Refusal>>);

/// The accepting end's next step. `key`: the key that this end presented by TLS; empty without TLS.
pub(crate) fn accept(
    acceptor: &mut Acceptor,
    message: Handshake,
    own: &Credentials,
    key: &[u8],
) -> Result<Accepted, Broken> {
    let refused = |refusal: Refusal| (Some(Handshake::Refuse(refusal.clone())), Some(Err(refusal)));
    match acceptor.step(message) {
        Ok(Heard::Claimed(hello)) => {
            if let Err(refusal) = own.admits(&hello) {
                return Ok(refused(refusal));
            }
            Ok((Some(acceptor.challenge(hello, own.secret.clone(), random()?, key)), None))
        }
        Ok(Heard::Proved(hello)) => Ok((Some(Handshake::Welcome(WELCOME)), Some(Ok(hello.from)))),
        Err(Fault::Proof) => {
            let text = format!("the proof of job {} is wrong", own.job);
            Ok(refused(Refusal::new(RefusalCode::Proof, text)))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// The limits that this endpoint grants: none beyond the protocol's.
const WELCOME: Welcome = Welcome { max_payload: MAX_PAYLOAD, window: u32::MAX, run: 0 };

/// Rejects limits that no acceptor grants.
pub(crate) fn check(welcome: &Welcome) -> Result<(), Misbehaved> {
    match welcome.max_payload {
        1024..=MAX_PAYLOAD => Ok(()),
        _ => Err(Misbehaved::Protocol("a frame length limit that is out of bounds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(port: u16, job: u32) -> Credentials {
        let me = Address::standalone(std::net::SocketAddr::from(([10, 0, 0, 1], port)));
        Credentials { job: JobId(job), secret: Secret::NONE, me }
    }

    #[test]
    fn who_means_another_is_refused() {
        let (a, b, c) = (credentials(1, 7), credentials(2, 7), credentials(3, 7));
        let hello = |from: &Credentials, to| from.dial(to).unwrap().0.hello().clone();
        assert_eq!(b.admits(&hello(&a, b.me)), Ok(()));
        let gateway = SiteGateway { site: "a".into(), name: "gw1".into(), address: a.me.socket };
        let other = credentials(1, 8);
        for (hello, code) in [
            (a.dial_gateway(&gateway).unwrap().0.hello().clone(), RefusalCode::Purpose),
            (hello(&other, b.me), RefusalCode::Unknown),
            (hello(&a, c.me), RefusalCode::OtherPeer),
        ] {
            assert_eq!(b.admits(&hello).unwrap_err().code, code);
        }
    }
}
