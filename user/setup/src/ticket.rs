//! A ticket as a single word, which a user copies from one terminal to another.

use std::fmt;
use std::str::FromStr;

use client::Invitation;
use thiserror::Error;
use types::JobId;

const HEAD: &str = "lb1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket(pub Invitation);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Invitation { address, fingerprint, ticket, secret } = &self.0;
        let print = fingerprint.to_string();
        let print = print.strip_prefix("sha256:").unwrap_or(&print);
        write!(f, "{HEAD}/{address}/{print}/{:08x}/{}", ticket.0, secret.to_hex())
    }
}

/// A word that is not a ticket. The error does not quote it, because it may contain a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("this is no ticket ({what}): `landbridge sites invite` prints one, copy it whole")]
#[non_exhaustive]
pub struct TicketError {
    /// The problem.
    pub what: &'static str,
}

impl FromStr for Ticket {
    type Err = TicketError;
    fn from_str(text: &str) -> Result<Ticket, TicketError> {
        let wrong = |what| TicketError { what };
        let parts: Vec<&str> = text.trim().split('/').collect();
        let [HEAD, address, print, number, secret] = parts.as_slice() else {
            return Err(wrong("it has not its five parts"));
        };
        if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            return Err(wrong("its address is not host:port"));
        }
        let hex = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(number, 16).ok().filter(|_| hex(number)).ok_or_else(|| wrong("its number"))?;
        Ok(Ticket(Invitation {
            address: (*address).to_owned(),
            fingerprint: format!("sha256:{print}").parse().map_err(|_| wrong("its fingerprint"))?,
            ticket: JobId(number),
            secret: secret.parse().map_err(|_| wrong("its secret"))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::sites::Fingerprint;
    use wire::Secret;

    #[test]
    fn a_ticket_survives_and_half_a_ticket_does_not() {
        let ticket = Ticket(Invitation {
            address: "login:7700".into(),
            fingerprint: Fingerprint([0xab; 32]),
            ticket: JobId(10),
            secret: Secret::new([7; 32]),
        });
        let text = ticket.to_string();
        assert_eq!(format!(" {text}\n").parse(), Ok(ticket));
        for cut in 0..text.len() {
            let error = text[..cut].parse::<Ticket>().unwrap_err().to_string();
            assert!(error.contains("no ticket") && !error.contains("0707"), "{cut}: {error}");
        }
        assert!(text.replace("0000000a", "+000000a").parse::<Ticket>().is_err());
        assert!(text.replace(":7700", "").parse::<Ticket>().is_err());
    }
}
