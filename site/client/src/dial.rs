//! Dials a host that has several addresses, of one family or of both: Happy Eyeballs (RFC 8305) in its simple form.
//!
//! A machine often has an address of a family that a network on the path does not carry. A caller that dials it then
//! gets no answer rather than an error. So each address gets only a head start, then the next one is dialled as well,
//! and the first connection wins.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use crate::race::race;

/// Head start of an address before the next one is dialled too: the recommendation of RFC 8305, section 8.
const HEAD_START: Duration = Duration::from_millis(250);
/// Largest number of a name's addresses that are dialled.
const MOST: usize = 16;

/// Connects to `host:port` by the first of its addresses that accepts. The caller limits the time.
///
/// # Errors
/// The name has no address, or none accepts. The error is that of the last attempt which failed for a reason other than
/// a missing route; if there is none, that of the first attempt.
pub async fn dial(address: &str) -> io::Result<TcpStream> {
    first_of(resolve(address).await?).await
}

/// The addresses of `host:port`, in the order in which to dial them: the resolver's order, alternating between
/// families.
///
/// # Errors
/// The name cannot be resolved.
pub async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(in_turn(lookup_host(address).await?.take(MOST)))
}

fn in_turn(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let found: Vec<SocketAddr> = found.collect();
    let first = found.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for address in found {
        if address.is_ipv6() == first { one.push(address) } else { other.push(address) }
    }
    let mut other = other.into_iter();
    let mut all: Vec<SocketAddr> =
        one.into_iter().flat_map(|address| [Some(address), other.next()]).flatten().collect();
    all.extend(other);
    all
}

async fn first_of(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    race(addresses.into_iter().map(TcpStream::connect), HEAD_START).await.map_err(|mut failed: Vec<io::Error>| {
        let told = failed.iter().rposition(|error| !is_unroutable(error)).unwrap_or(0);
        if failed.is_empty() { io::Error::other("the name has no address") } else { failed.swap_remove(told) }
    })
}

/// True if this machine has no route to the address at all, such as to IPv6 on a machine with only IPv4.
fn is_unroutable(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(in_turn(found.into_iter()), expected);
        let found = addresses(&["1.1.1.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(in_turn(found.clone().into_iter()), found);
        assert!(in_turn(std::iter::empty()).is_empty());
    }

    #[tokio::test]
    async fn an_address_that_refuses_or_is_silent_does_not_hide_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let refusing = addresses(&["[::1]:1"])[0];
        assert_eq!(first_of(vec![refusing, there]).await.unwrap().peer_addr().unwrap(), there);
        // A listener whose queue is full answers no connection attempt.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let deaf = silent.local_addr().unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let _fill: Vec<_> =
            (0..4).map(|_| std::net::TcpStream::connect_timeout(&deaf, Duration::from_millis(20))).collect();
        let since = Instant::now();
        assert_eq!(first_of(vec![deaf, there]).await.unwrap().peer_addr().unwrap(), there);
        assert!(since.elapsed() >= HEAD_START, "the first one had its head start");
    }

    #[tokio::test]
    async fn the_error_is_the_one_that_says_most() {
        let refused = addresses(&["127.0.0.1:1"])[0];
        // RFC 4291 assigns this address to no host: no route leads there.
        let unroutable = addresses(&["[::2]:1"])[0];
        for all in [vec![refused, unroutable], vec![unroutable, refused]] {
            assert_eq!(first_of(all).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
        assert!(first_of(Vec::new()).await.unwrap_err().to_string().contains("has no address"));
    }
}
