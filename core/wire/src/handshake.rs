//! The handshake at the start of a connection, on a rank's port and on a gateway's port alike.
//!
//! ```text
//! initiator → acceptor   Hello      who I am, whom I mean, what for, 32 random bytes
//! acceptor  → initiator  Challenge  32 random bytes, HMAC(secret, "acceptor" ‖ transcript)
//! initiator → acceptor   Proof      HMAC(secret, "initiator" ‖ transcript)
//! acceptor  → initiator  Welcome    the limits of this connection   (or Refuse, and the connection closes)
//! ```
//! The transcript is the hello, the acceptor's random bytes and, with TLS, the acceptor's key. Both ends prove the
//! secret, and neither sends it. A proof is useless between other ends or at another time: an attacker that relays
//! these messages cannot get them accepted by any acceptor but the one that the initiator means.
//!
//! Every message is a 4-byte length, a type byte and a body; the length counts type and body. `Hello` has the preface
//! `LBRIDGE` and a version byte before its length, so that a gateway's one port can distinguish it from TLS. After
//! `Welcome`, frames follow. In a trunk's TLS session the same messages are used with [`Secret::NONE`], because TLS has
//! already authenticated the peer.
//!
//! [`Secret::NONE`]: crate::Secret::NONE

use types::{Address, JobId};

use crate::VERSION;
use crate::error::WireError;
use crate::proof::{NONCE_LEN, PROOF_LEN};
use crate::reader::{FieldReader, put_text};

/// First bytes of a connection, before the version.
pub const PREFACE: &[u8; 7] = b"LBRIDGE";
/// Preface and version.
pub const PREFACE_LEN: usize = 8;
/// The longest handshake message, type and body, in bytes.
pub const MAX_HANDSHAKE: usize = 1024;
const MAX_TEXT: usize = 512;
const MAX_NAME: usize = 64;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// A rank's endpoint to another rank's endpoint of the same site; proof by job secret.
    Peer = 0,
    /// A rank or an agent to its gateway, inside a job; proof by job secret. Agents do this with TLS.
    Member = 1,
    /// A user's command to the gateway of its own site; with TLS, proof by the secret derived from the site's key.
    Client = 2,
    /// One link of a trunk; with TLS.
    Trunk = 3,
    /// A site that holds a ticket and wants to join; with TLS, proof by the ticket's secret.
    Join = 4,
    /// A gateway to the host of a meeting with another gateway, when neither of the two can be dialled; proof by its
    /// secret for that meeting. `Welcome` comes once the other gateway is there; after it, the two exchange arbitrary
    /// bytes.
    Meet = 5,
}

/// The initiator of a connection, and its purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub purpose: Purpose,
    /// The job; zero outside a job. `Join`: the ticket's number. `Meet`: the meeting's number. `Trunk`: the run number
    /// of the initiator's program, which is random: a restarted gateway has forgotten everything.
    pub job: JobId,
    /// The initiator.
    pub from: Address,
    /// The peer that the initiator wants to reach; of a gateway's identity, only the site counts.
    pub to: Address,
    /// `Trunk`, `Join`, `Meet`: name of the initiator's site. `Member`, `Client`: name of the site it wants to reach.
    /// Otherwise empty.
    pub site: String,
    /// `Trunk`, `Meet`: name of the initiator's gateway. `Member`, `Client`: name of the gateway it wants to reach.
    /// Otherwise empty.
    pub gateway: String,
    /// `Trunk`, `Meet`: the index of this link in the trunk, from 0.
    pub link: u16,
    /// Never used before: random bytes, or, to a gateway without TLS, a [token](crate::token).
    pub nonce: [u8; NONCE_LEN],
}

/// The limits of a connection, sent by its acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Longest payload of a frame, in bytes.
    pub max_payload: u32,
    /// Bytes (headers and payloads) that a member may initially have in flight to all peers, until they are
    /// acknowledged end to end.
    pub window: u32,
    /// `Trunk`: the run number of the acceptor's program, as in [`Hello`]. Otherwise zero.
    pub run: u32,
}

/// A handshake message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// First, by the initiator.
    Hello(Hello),
    /// Second, by the acceptor.
    Challenge {
        /// Random bytes, never used before.
        nonce: [u8; NONCE_LEN],
        /// The proof that the acceptor knows the secret.
        proof: [u8; PROOF_LEN],
    },
    /// Third, by the initiator.
    Proof([u8; PROOF_LEN]),
    /// Last, by the acceptor.
    Welcome(Welcome),
    /// Last, by the acceptor: a refusal.
    Refuse(Refusal),
}

/// An acceptor's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs to compare.
    pub code: RefusalCode,
    /// For people to read; cut at 512 bytes when sent.
    pub text: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalCode {
    /// The initiator speaks another version of the protocol.
    Version = 0,
    /// The acceptor does not serve connections of this purpose, or not over this transport.
    Purpose = 1,
    /// The acceptor does not know the job, ticket or meeting (not yet, or no longer).
    Unknown = 2,
    /// The acceptor is not the peer that the initiator wants.
    OtherPeer = 3,
    /// The initiator does not know the secret.
    Proof = 4,
    /// The acceptor has dialled a connection between these two ranks, which exists or will exist soon.
    Duplicate = 5,
    /// The proof is right, but the initiator is not admitted, for the reason in the text.
    NotAdmitted = 6,
}

impl Refusal {
    /// A refusal of this kind.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Handshake {
    /// The bytes to send, preface and length included.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        if let Handshake::Hello(_) = self {
            out.extend_from_slice(PREFACE);
            out.push(VERSION);
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        match self {
            Handshake::Hello(hello) => {
                out.push(0);
                hello.put(&mut out);
            }
            Handshake::Challenge { nonce, proof } => {
                out.push(1);
                out.extend_from_slice(nonce);
                out.extend_from_slice(proof);
            }
            Handshake::Proof(bytes) => {
                out.push(2);
                out.extend_from_slice(bytes);
            }
            Handshake::Welcome(welcome) => {
                out.push(3);
                out.extend_from_slice(&welcome.max_payload.to_le_bytes());
                out.extend_from_slice(&welcome.window.to_le_bytes());
                out.extend_from_slice(&welcome.run.to_le_bytes());
            }
            Handshake::Refuse(Refusal { code, text }) => {
                out.push(4);
                put_text(&mut out, text, MAX_TEXT);
                // Without a code, this is the message that releases before version 4 expect, so they can show the
                // reason.
                if *code != RefusalCode::Version {
                    out.push(*code as u8);
                }
            }
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Reads one message from the start of `bytes`. Returns the message and its length, or `None` when more bytes are
    /// needed. `first`: a preface must come first.
    ///
    /// # Errors
    /// [`WireError`] as soon as the bytes cannot become a message.
    pub fn decode(bytes: &[u8], first: bool) -> Result<Option<(Handshake, usize)>, WireError> {
        let mut at = 0;
        if first {
            let known = bytes.len().min(PREFACE.len());
            if bytes[..known] != PREFACE[..known] {
                let mut seen = [0; 7];
                seen[..known].copy_from_slice(&bytes[..known]);
                return Err(WireError::Magic(seen));
            }
            match bytes.get(PREFACE.len()) {
                None => return Ok(None),
                Some(&VERSION) => at = PREFACE_LEN,
                Some(&theirs) => return Err(WireError::Version { theirs, ours: VERSION }),
            }
        }
        let Some(length) = bytes.get(at..at + 4) else { return Ok(None) };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > MAX_HANDSHAKE {
            let limit = MAX_HANDSHAKE as u64;
            return Err(WireError::TooLong { what: "handshake", length: length as u64, limit });
        }
        let Some(body) = bytes.get(at + 4..at + 4 + length) else { return Ok(None) };
        Ok(Some((Self::body(body)?, at + 4 + length)))
    }

    fn body(bytes: &[u8]) -> Result<Handshake, WireError> {
        let mut reader = FieldReader::new("handshake", bytes);
        let message = match reader.u8()? {
            0 => Handshake::Hello(Hello::get(&mut reader)?),
            1 => Handshake::Challenge { nonce: reader.array()?, proof: reader.array()? },
            2 => Handshake::Proof(reader.array()?),
            3 => Handshake::Welcome(Welcome { max_payload: reader.u32()?, window: reader.u32()?, run: reader.u32()? }),
            4 => {
                let text = reader.text(MAX_TEXT)?;
                let code = match reader.is_empty() {
                    true => RefusalCode::Version,
                    false => RefusalCode::get(reader.u8()?)?,
                };
                Handshake::Refuse(Refusal { code, text })
            }
            code => return Err(WireError::Unknown { what: "handshake type", code }),
        };
        reader.end()?;
        Ok(message)
    }
}

impl RefusalCode {
    fn get(code: u8) -> Result<RefusalCode, WireError> {
        Ok(match code {
            1 => RefusalCode::Purpose,
            2 => RefusalCode::Unknown,
            3 => RefusalCode::OtherPeer,
            4 => RefusalCode::Proof,
            5 => RefusalCode::Duplicate,
            6 => RefusalCode::NotAdmitted,
            code => return Err(WireError::Unknown { what: "refusal code", code }),
        })
    }
}

impl Hello {
    /// The bytes that proofs cover. `nonce`: the acceptor's. `key`: the key that the acceptor presented in TLS; empty
    /// without TLS.
    pub fn transcript(&self, nonce: &[u8; NONCE_LEN], key: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.put(&mut out);
        out.extend_from_slice(nonce);
        out.extend_from_slice(key);
        out
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.purpose as u8);
        out.extend_from_slice(&self.job.0.to_le_bytes());
        out.extend_from_slice(&self.from.to_bytes());
        out.extend_from_slice(&self.to.to_bytes());
        out.extend_from_slice(&self.link.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        put_text(out, &self.site, MAX_NAME);
        put_text(out, &self.gateway, MAX_NAME);
    }

    fn get(reader: &mut FieldReader<'_>) -> Result<Hello, WireError> {
        Ok(Hello {
            purpose: match reader.u8()? {
                0 => Purpose::Peer,
                1 => Purpose::Member,
                2 => Purpose::Client,
                3 => Purpose::Trunk,
                4 => Purpose::Join,
                5 => Purpose::Meet,
                code => return Err(WireError::Unknown { what: "connection purpose", code }),
            },
            job: JobId(reader.u32()?),
            from: reader.address()?,
            to: reader.address()?,
            link: reader.u16()?,
            nonce: reader.array()?,
            site: reader.text(MAX_NAME)?,
            gateway: reader.text(MAX_NAME)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            purpose: Purpose::Trunk,
            job: JobId(7),
            from: Address::standalone("10.0.0.1:5".parse().unwrap()),
            to: Address::standalone("10.0.0.2:6".parse().unwrap()),
            site: "lyon".into(),
            gateway: "gw1".into(),
            link: 3,
            nonce: [2; 32],
        }
    }

    #[test]
    fn messages_survive_byte_by_byte() {
        let welcome = Welcome { max_payload: 16384, window: 1 << 20, run: 9 };
        for message in [
            Handshake::Hello(hello()),
            Handshake::Hello(Hello { purpose: Purpose::Meet, ..hello() }),
            Handshake::Challenge { nonce: [3; 32], proof: [5; 32] },
            Handshake::Proof([4; 32]),
            Handshake::Welcome(welcome),
            Handshake::Refuse(Refusal::new(RefusalCode::Unknown, "no such job")),
            Handshake::Refuse(Refusal::new(RefusalCode::Version, "another release")),
        ] {
            let first = matches!(message, Handshake::Hello(_));
            let bytes = message.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Handshake::decode(&bytes[..cut], first), Ok(None), "{message:?} cut at {cut}");
            }
            assert_eq!(Handshake::decode(&bytes, first), Ok(Some((message, bytes.len()))));
        }
    }

    #[test]
    fn older_releases_can_read_why_their_version_is_refused() {
        let bytes = Handshake::Refuse(Refusal::new(RefusalCode::Version, "same release")).encode();
        assert_eq!(bytes, *b"\x0f\0\0\0\x04\x0c\0same release");
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        assert!(matches!(Handshake::decode(b"GET / HTTP/1.1", true), Err(WireError::Magic(_))));
        assert!(matches!(Handshake::decode(&[0x16, 3, 1], true), Err(WireError::Magic(_))));
        assert_eq!(Handshake::decode(b"LBRIDGE\x09", true), Err(WireError::Version { theirs: 9, ours: VERSION }));
        assert!(matches!(Handshake::decode(&[255; 8], false), Err(WireError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, first: bool) {
            let _ = Handshake::decode(&bytes, first);
            let mut prefixed = PREFACE.to_vec();
            prefixed.push(VERSION);
            prefixed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            prefixed.extend_from_slice(&bytes);
            let _ = Handshake::decode(&prefixed, true);
        }
    }
}
