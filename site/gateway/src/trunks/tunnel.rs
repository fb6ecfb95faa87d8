//! Links through ssh, for firewalls that let nothing else pass.
//!
//! The gateway makes a pair of connected sockets, keeps one, and passes the other to a [`Tunneller`], which has ssh
//! carry its bytes to the other gateway. To the rest of the gateway such a link is like any other: it has its own TLS,
//! with the other site's key pinned, so nothing depends on ssh's promises. Only the kernel's figures about the socket
//! do not describe the path, so pings measure the round trip.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use gateway_tasks::{Tunnel, TunnelOrder, Tunneller};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use types::sites::Login;

use crate::log::{log, short};
use crate::trunks::error::LinkError;
use crate::trunks::handshake::{DIAL_TIMEOUT, Dialled, HANDSHAKE_TIMEOUT, shake};
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// Time limit for ssh's login, on top of the link's own handshake.
const LOGIN: Duration = Duration::from_secs(10);
/// Time limit for a failed tunnel to report the reason.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Most bytes queued between the gateway and ssh in each direction. More would only delay later frames.
const BUFFER: u32 = 256 << 10;

/// Dials a link of a trunk through ssh.
pub(crate) async fn dial(
    list: &TrunkList,
    tunneller: Option<&dyn Tunneller>,
    (trunk, index): (&Trunk, usize),
    login: &Login,
    to: &str,
) -> Result<Dialled, LinkError> {
    let dialled = async {
        let Some(tunneller) = tunneller else { return Err(LinkError::NoTunneller) };
        let (near, far) = match list.path.load.patiently(DIAL_TIMEOUT, pair()).await {
            Ok(pair) => pair?,
            Err(waited) => return Err(LinkError::NoAnswer(waited.as_secs())),
        };
        let peer = near.peer_addr()?;
        let order = TunnelOrder {
            own: list.sites.site.clone(),
            site: trunk.site.clone(),
            login: login.clone(),
            to: to.to_owned(),
        };
        let mut tunnel = tunneller.open(&order, far.into())?;
        match shake(list, trunk, index, near, LOGIN + HANDSHAKE_TIMEOUT).await {
            Ok((stream, run)) => Ok(Dialled { stream, run, peer, tunnel: Some(tunnel) }),
            Err(error) => Err(reason(tunnel.as_mut(), error).await),
        }
    };
    dialled.await.map_err(|source| LinkError::Through {
        site: trunk.site.clone(),
        gateway: trunk.gateway.clone(),
        login: login.clone(),
        source: Box::new(source),
    })
}

/// Returns the reason why a link was not established: the tunnel's if the tunnel failed, else `error`.
async fn reason(tunnel: &mut dyn Tunnel, error: LinkError) -> LinkError {
    match timeout(LAST_WORDS, tunnel.ended()).await {
        Ok(words) if !words.is_empty() => LinkError::Tunnel(words),
        _ => error,
    }
}

/// Lets the tunnel of a closed link deliver the last bytes, and logs the reason if the tunnel failed.
pub(crate) fn close(trunk: &Rc<Trunk>, index: usize, mut tunnel: Box<dyn Tunnel>) {
    let trunk = trunk.clone();
    tokio::task::spawn_local(async move {
        let (site, gateway) = (&trunk.site, &trunk.gateway);
        if let Ok(reason) = timeout(LAST_WORDS, tunnel.ended()).await
            && !reason.is_empty()
        {
            log!(warn, site, site, gateway, link = index, reason = short(&reason), "ssh ended");
        }
    });
}

/// Two connected sockets. The port is open for a moment; a stranger's connection to it is not mistaken for the
/// gateway's.
async fn pair() -> std::io::Result<(TcpStream, std::net::TcpStream)> {
    let listening = TcpSocket::new_v4()?;
    listening.set_recv_buffer_size(BUFFER)?;
    listening.set_send_buffer_size(BUFFER)?;
    listening.bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = listening.listen(8)?;
    let dialling = TcpSocket::new_v4()?;
    dialling.set_recv_buffer_size(BUFFER)?;
    dialling.set_send_buffer_size(BUFFER)?;
    let near = dialling.connect(listener.local_addr()?).await?;
    let far = accept_from(&listener, &near).await?.into_std()?;
    // ssh itself decides whether its socket blocks.
    far.set_nonblocking(false)?;
    SockRef::from(&far).set_tcp_nodelay(true)?;
    Ok((near, far))
}

async fn accept_from(listener: &TcpListener, near: &TcpStream) -> std::io::Result<TcpStream> {
    let wanted = near.local_addr()?;
    loop {
        let (far, peer) = listener.accept().await?;
        if peer == wanted {
            return Ok(far);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_written_at_one_end_arrive_at_the_other() {
        let (mut near, mut far) = pair().await.unwrap();
        near.write_all(b"there").await.unwrap();
        let mut five = [0; 5];
        far.read_exact(&mut five).unwrap();
        far.write_all(b"back!").unwrap();
        near.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"back!");
        drop(far);
        assert_eq!(near.read(&mut five).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_faster_strangers_connection_is_not_taken_for_ours() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stranger = TcpStream::connect(address).await.unwrap();
        let near = TcpStream::connect(address).await.unwrap();
        let far = accept_from(&listener, &near).await.unwrap();
        assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
        assert_ne!(far.peer_addr().unwrap(), stranger.local_addr().unwrap());
    }
}
