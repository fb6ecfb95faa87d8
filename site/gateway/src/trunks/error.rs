//! Reasons why a trunk cannot carry out a request, and why a link cannot be established.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use client::handshake::HandshakeError;
use gateway_tasks::StartError;
use thiserror::Error;
use types::sites::{Fingerprint, Keys, Login};
use wire::WireError;

/// Reasons why nothing can be sent to another site, or measured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum TrunkError {
    #[error("site {0}: there is no route to itself")]
    Itself(String),
    #[error("site {own}: its gateway knows no site {site}")]
    UnknownSite { own: String, site: String },
    #[error("this is site {0}")]
    OtherSite(String),
    /// The trunk is not up; the text is its last problem.
    #[error("{0}")]
    Down(String),
    /// The other gateway was removed from the sites file.
    #[error("{0}")]
    Retired(String),
    #[error(
        "presented fingerprint {}, the sites file has {keys}",
        presented.map_or("none".to_owned(), |key| key.to_string())
    )]
    WrongKey { presented: Option<Fingerprint>, keys: Keys },
    #[error("site {0}: the trunk broke during the probe")]
    Broke(String),
    #[error("site {site}: no answer over the trunk within {limit:?}")]
    NoAnswer { site: String, limit: Duration },
    #[error("site {site}: its gateway {gateway} did not measure within {seconds} s")]
    NotMeasured { site: String, gateway: String, seconds: u64 },
    #[error("site {site}: gateway {gateway}: nothing of a transfer arrived within {limit:?}")]
    NothingArrived { site: String, gateway: String, limit: Duration },
    #[error("site {0}: ranks sent while its link was measured")]
    Disturbed(String),
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Reasons why a link cannot be dialled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {0} s")]
    NoAnswer(u64),
    #[error("{0}")]
    Tls(#[from] client::tls::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("handshake took longer than {0} s: is it a gateway?")]
    Slow(u64),
    /// The other end presents a wrong key, or the place to meet is not up.
    #[error(transparent)]
    Trunk(#[from] TrunkError),
    #[error("site {site}: gateway {gateway} at {address}: {source}{advice}", advice = source.advice(address))]
    At { site: String, gateway: String, address: String, source: Box<LinkError> },
    #[error("site {site}: gateway {gateway} through ssh to {login}: {source}")]
    Through { site: String, gateway: String, login: Login, source: Box<LinkError> },
    /// This gateway was started without a way to run ssh.
    #[error("the program that runs this gateway cannot start ssh")]
    NoTunneller,
    /// The reason why the tunnel failed.
    #[error("{0}")]
    Tunnel(String),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    /// No place let the two gateways meet.
    #[error("{0}")]
    Unmet(String),
}

impl LinkError {
    /// Advice on the possible cause if an address does not answer.
    fn advice(&self, address: &str) -> String {
        let port = address.rsplit_once(':').map_or(address, |(_, port)| port);
        match self {
            LinkError::NoAnswer(_) => format!("; a firewall may block port {port}"),
            LinkError::Io(error) => match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                    format!("; a firewall may block port {port}")
                }
                io::ErrorKind::ConnectionRefused => {
                    format!("; nothing listens there, or a firewall refuses port {port}")
                }
                _ => String::new(),
            },
            _ => String::new(),
        }
    }

    /// Returns true if the other machine refused the connection, so that nothing listens at the port.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            LinkError::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            LinkError::At { source, .. } => source.is_refused(),
            _ => false,
        }
    }
}

/// Reasons why two gateways cannot meet at a place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum MeetingError {
    #[error("it does not know you")]
    Stranger,
    #[error("its sites file has no gateway {gateway} of site {site}")]
    UnknownGateway { site: String, gateway: String },
    #[error("two gateways of one site need no trunk")]
    SameSite,
    #[error("its sites file has the address at which gateway {gateway} of site {site} is dialled")]
    Dialled { site: String, gateway: String },
    #[error("link {link}: its sites file has {links}; compare `links`")]
    Links { link: u16, links: u16 },
    #[error("gateway {gateway} of site {site} is not connected to it")]
    NotConnected { site: String, gateway: String },
    #[error("you asked a moment ago")]
    Hasty,
    #[error("that gateway already relays {0} links, the most that its `memory` permits")]
    Full(usize),
    #[error("its sites file does not let others meet there")]
    NotLet,
    #[error("this seat is taken")]
    Taken,
    #[error("no meeting {number} with gateway {gateway} of site {site} is open here")]
    NotOpen { number: u32, site: String, gateway: String },
    #[error("the meeting is over")]
    Over,
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// The reason that the place sent.
    #[error("{0}")]
    Denied(String),
    #[error("no answer within {0} s")]
    NoAnswer(u64),
    #[error("a newer request replaced this one")]
    AskedAgain,
    #[error("the other gateway did not arrive within {0} s")]
    NothingHappens(u64),
    #[error("the other gateway did not start its handshake")]
    NotBegun,
    #[error("the other end is not a gateway")]
    NoGateway,
}

/// Reasons why a connection with TLS was not admitted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ArrivalError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] client::tls::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("a user or an agent at {0} closed after seeing our key: do the sites files differ?")]
    OurKey(SocketAddr),
    #[error(
        "a gateway {whose} at {peer} dialled and closed after seeing our key: does its sites file show {fingerprint} \
         for site {own}?"
    )]
    OurKeyToGateway { whose: String, peer: SocketAddr, fingerprint: Fingerprint, own: String },
    /// Refused; the peer was sent this text.
    #[error("{0}")]
    Refused(String),
}
