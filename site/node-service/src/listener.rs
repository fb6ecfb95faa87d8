//! The service's port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as start, socket_with, sockopt};

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens on `address:port`. `[::]` means every address of both families, independent of the system's default
/// (`net.ipv6.bindv6only`), and 0.0.0.0 on a machine whose kernel has no IPv6.
///
/// # Errors
/// [`std::io::Error`]: the address does not belong to this machine, or the port is in use.
pub fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match open(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let every = address.ip().is_unspecified();
    let flags = SocketFlags::CLOEXEC;
    let socket = match address {
        SocketAddr::V4(_) => socket_with(AddressFamily::INET, SocketType::STREAM, flags, None),
        SocketAddr::V6(_) => socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None),
    };
    let socket = match socket {
        Err(Errno::AFNOSUPPORT) if every && address.is_ipv6() => {
            return open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()));
        }
        socket => socket?,
    };
    if every && address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // A restarted service must not wait until the previous one's connections have timed out.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    start(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn every_address_is_one_of_either_family() {
        let listener = listen("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for ip in ["127.0.0.1", "::1"] {
            TcpStream::connect((ip, port)).unwrap();
            let (_, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_canonical(), ip.parse::<std::net::IpAddr>().unwrap());
        }
        let error = listen(&format!("0.0.0.0:{port}")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let narrow = listen("[::1]:0").unwrap();
        assert!(TcpStream::connect(("127.0.0.1", narrow.local_addr().unwrap().port())).is_err());
    }
}
