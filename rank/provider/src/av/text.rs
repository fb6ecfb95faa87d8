//! Addresses as text that can be read back: the output of `fi_av_straddr`, and accepted as a node by `fi_av_insertsvc`
//! and `fi_getinfo`.
//!
//! Outside a job it is libfabric's own text for a `sockaddr_in`, `fi_sockaddr_in://10.1.0.7:40001`, or for a
//! `sockaddr_in6`, `fi_sockaddr_in6://[2001:db8::7]:40001`. In a job that is not enough, since nodes of two sites may
//! have the same address, so there the text also names the endpoint: `landbridge://10.1.0.7:40001/JOB/SITE/SLOT`, the
//! last three in hexadecimal. A prefix `fi_`, which Mercury adds, is accepted. Texts contain no blanks, and unequal
//! addresses have unequal texts.

use std::net::SocketAddr;

use types::id::{is_link_local, plain};
use types::{Address, Identity, SiteId, Slot};

/// libfabric's prefix for a `sockaddr_in`.
const PLAIN: &str = "fi_sockaddr_in://";
/// libfabric's prefix for a `sockaddr_in6`.
const PLAIN_IPV6: &str = "fi_sockaddr_in6://";
const OURS: &str = "landbridge://";

/// Returns true if a name looks like such a text.
pub(super) fn is_text(name: &str) -> bool {
    name.contains("://")
}

pub(super) fn write(address: Address) -> String {
    let Address { socket, job, identity } = address;
    if address == Address::standalone(socket) {
        let prefix = if socket.is_ipv4() { PLAIN } else { PLAIN_IPV6 };
        format!("{prefix}{socket}")
    } else {
        format!("{OURS}{socket}/{job:x}/{:x}/{:x}", identity.site.0, identity.slot.0)
    }
}

pub(super) fn read(text: &str) -> Option<Address> {
    if let Some(socket) = text.strip_prefix(PLAIN).or_else(|| text.strip_prefix(PLAIN_IPV6)) {
        return Some(Address::standalone(read_socket(socket)?));
    }
    let mut parts = text.strip_prefix("fi_").unwrap_or(text).strip_prefix(OURS)?.split('/');
    let socket = read_socket(parts.next()?)?;
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let (job, site, slot) = (number()?, number()?, number()?);
    let identity = Identity { site: SiteId(u16::try_from(site).ok()?), slot: Slot(slot) };
    let address = Address { socket, job: u16::try_from(job).ok()?, identity };
    parts.next().is_none().then_some(address)
}

/// Rejects link-local addresses: a text keeps no scope, so they have no meaning.
fn read_socket(text: &str) -> Option<SocketAddr> {
    text.parse().ok().map(plain).filter(|socket| !is_link_local(socket.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn unequal_addresses_have_unequal_texts_that_are_read_back() {
        let plain = Address::standalone("10.1.0.7:40001".parse().unwrap());
        let ipv6 = Address::standalone("[2001:db8::7]:40001".parse().unwrap());
        let identity = |site, slot| Identity { site: SiteId(site), slot: Slot(slot) };
        let all = [
            plain,
            Address::standalone("10.1.0.7:40002".parse().unwrap()),
            Address { job: 0xbeef, ..plain },
            ipv6,
            Address { job: 0xbeef, identity: identity(1, 2), ..ipv6 },
            Address { job: 0xbeef, identity: identity(1, 0), ..plain },
            Address { job: 0xbeef, identity: identity(0, 1), ..plain },
            Address { job: 0, identity: identity(0, u32::MAX), ..plain },
        ];
        let texts: HashSet<String> = all.iter().map(|address| write(*address)).collect();
        assert_eq!(texts.len(), all.len());
        for address in all {
            let text = write(address);
            assert!(is_text(&text) && !text.contains(char::is_whitespace), "{text}");
            assert_eq!(read(&text), Some(address), "{text}");
        }
        assert_eq!(write(plain), "fi_sockaddr_in://10.1.0.7:40001");
        assert_eq!(write(ipv6), "fi_sockaddr_in6://[2001:db8::7]:40001");
        assert_eq!(read(&format!("fi_{}", write(all[2]))), Some(all[2]));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "10.1.0.7:1",
            "fi_sockaddr_in://10.1.0.7",
            "landbridge://10.1.0.7:1",
            "landbridge://10.1.0.7:1/1/2",
            "landbridge://10.1.0.7:1/1/2/3/4",
            "landbridge://10.1.0.7:1/10000/0/0",
            "landbridge://10.1.0.7:1/1/2/x",
            "fi_sockaddr_in6://[::1]",
            "fi_sockaddr_in6://[fe80::1%2]:1",
            "fi_sockaddr_in6://[fe80::1]:1",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
