//! Hosts and addresses with ports.

use std::net::SocketAddr;

use super::wrong::Wrong;
use crate::untrusted::printable;

/// The longest host name in bytes (RFC 1035).
pub(super) const MAX_HOST: usize = 253;

/// Checks `host:port` and returns the port.
pub(super) fn host_port(place: &str, value: &str) -> Result<u16, Wrong> {
    let shown = printable(value);
    let wrong = || Wrong::new(place, format!("`{shown}` is not host:port"));
    let (host, port) = value.rsplit_once(':').ok_or_else(wrong)?;
    if host.contains(':') && !is_bracketed(host) {
        let message = format!(
            "`{shown}` is not host:port: an IPv6 address is in brackets and without a zone, as in `[2001:db8::7]:7700`"
        );
        return Err(Wrong::new(place, message));
    }
    if !host.contains(':') && !is_host_name(host) {
        return Err(wrong());
    }
    port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)
}

/// Returns true if a text has the form of a host's name or of an IPv4 address.
fn is_host_name(host: &str) -> bool {
    (1..=MAX_HOST).contains(&host.len())
        && !host.starts_with('-')
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Checks `address:port` that a gateway binds.
pub(super) fn listen_address(value: &str) -> Result<(), Wrong> {
    let address: Option<SocketAddr> = value.parse().ok();
    match address.filter(|address| address.port() != 0) {
        Some(_) => Ok(()),
        None => {
            let value = printable(value);
            let message = format!("`{value}` is not an IP address and a port, such as 10.0.0.1:7700 or [::]:7700");
            Err(Wrong::new("listen", message))
        }
    }
}

/// Returns true if a host is an IPv6 address in brackets, the form required before a port.
fn is_bracketed(host: &str) -> bool {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
}
