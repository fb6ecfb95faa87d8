//! The newcomer's side of joining by a ticket. The gateway's side is `gateway::services::join`.

use types::sites::Fingerprint;
use types::{Address, JobId};
use wire::control::JoiningMessage;
use wire::handshake::{Hello, Purpose};
use wire::{Control, Secret};

use crate::dial::dial;
use crate::handshake::{self, initiate};
use crate::key::SiteKey;
use crate::patience::patiently_here;
use crate::tls::{self, TlsStream};
use crate::{CONNECT_TIMEOUT, ClientError};

/// Largest sites file that a newcomer accepts, in bytes.
const MAX_SITES: u32 = 1 << 20;

/// The contents of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The gateway's address to dial.
    pub address: String,
    /// The gateway's key.
    pub fingerprint: Fingerprint,
    /// The ticket's number.
    pub ticket: JobId,
    /// The ticket's secret.
    pub secret: Secret,
}

/// The newcomer's side: presents the ticket and the entry of the site named `site`, whose key is `key`; returns the
/// sites file.
///
/// # Errors
/// [`ClientError`]: nothing answers, it is not the gateway of the ticket, or it refuses with a reason.
pub async fn join(invitation: &Invitation, key: &SiteKey, site: &str, entry: &str) -> Result<String, ClientError> {
    let address = || invitation.address.clone();
    let wrong = |problem: String| ClientError::Join { address: address(), problem };
    let joining = async {
        let connect = |source| ClientError::Connect { address: address(), source };
        let tcp = dial(&invitation.address).await.map_err(connect)?;
        let session = tls::config(key).map_err(|e| wrong(e.to_string()))?;
        // A token is made for a gateway's name, which a newcomer does not know.
        let session = session.dial(None).map_err(|e| wrong(e.to_string()))?;
        let mut stream = TlsStream::handshake(tcp, session).await.map_err(|e| wrong(e.to_string()))?;
        let presented = stream.session().peer();
        if presented != Some(invitation.fingerprint) {
            let shown = presented.map_or("no key".to_owned(), |key| key.to_string());
            return Err(wrong(format!("this is not the gateway that issued the ticket: it presented the key {shown}")));
        }
        let nowhere = Address::standalone(types::id::NOWHERE);
        let hello = Hello {
            purpose: Purpose::Join,
            job: invitation.ticket,
            from: nowhere,
            to: nowhere,
            site: site.to_owned(),
            gateway: String::new(),
            link: 0,
            nonce: [0; 32],
        };
        let shaken = |source| ClientError::Handshake { address: address(), source };
        initiate(&mut stream, hello, &invitation.secret, &invitation.fingerprint.0).await.map_err(shaken)?;
        handshake::write_control(&mut stream, JoiningMessage::Join { entry: entry.to_owned() })
            .await
            .map_err(shaken)?;
        match handshake::read_control(&mut stream, MAX_SITES).await.map_err(shaken)? {
            Control::Joining(JoiningMessage::Joined { sites: Some(text), .. }) => Ok(text),
            Control::Joining(JoiningMessage::Joined { problem, .. }) => Err(wrong(problem)),
            _ => Err(wrong("it sent an unexpected answer".to_owned())),
        }
    };
    let limit = CONNECT_TIMEOUT * 2;
    match patiently_here(limit, joining).await {
        Ok(result) => result,
        Err(waited) => Err(ClientError::Timeout { address: address(), what: "joining", seconds: waited.as_secs() }),
    }
}
