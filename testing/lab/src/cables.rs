//! The lab's ends of the hosts' cables: the switch port of every host, and the WAN emulator's port of every gateway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::error::LabError;
use crate::layout::{Host, HostRole, LabLayout};
use crate::message::{Channel, LabMessage, LabMessageKind};
use crate::network;
use crate::state::LabDirectory;
use crate::wan;

/// Time limit for a client's one message; on a machine where twenty processes compete for a core, seconds pass between
/// a client's connection and its message.
const MESSAGE_LIMIT: Duration = Duration::from_secs(10);

/// Serves requests to unplug cables and to plug them in again.
#[derive(Debug)]
pub(crate) struct Cables {
    listener: UnixListener,
    layout: LabLayout,
    state: LabDirectory,
    isolated: bool,
}

impl AsFd for Cables {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Cables {
    pub(crate) fn open(layout: LabLayout, state: &LabDirectory, isolated: bool) -> Result<Cables, LabError> {
        let path = state.cables_socket();
        let wrong = |e: io::Error| LabError::setup(path.display().to_string(), e);
        let listener = UnixListener::bind(&path).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        Ok(Cables { listener, layout, state: state.clone(), isolated })
    }

    /// Serves waiting clients; call it when the listener is readable.
    pub(crate) fn serve(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Accepted sockets block on Linux; `receive` has a time limit.
            let channel = Channel::new(stream);
            let Ok(Some(message)) = channel.receive(Some(MESSAGE_LIMIT)) else { continue };
            // A client that is gone needs no answer.
            let _ = match self.obey(&message) {
                Ok(()) => channel.send(LabMessageKind::Done, &[]),
                Err(error) => channel.send_json(LabMessageKind::Failed, &error),
            };
        }
    }

    fn obey(&self, message: &LabMessage) -> Result<(), LabError> {
        let (LabMessageKind::Cables, [name, plugged]) = (message.kind, message.fields.as_slice()) else {
            return Err(LabError::setup("a request about cables", "malformed"));
        };
        if !self.isolated {
            return Err(LabError::loopback("has no cables to cut"));
        }
        let host = self.layout.hosts().find(|host| host.name().as_bytes() == name.as_slice());
        let host = host.ok_or_else(|| {
            let known: Vec<String> = self.layout.hosts().map(Host::name).collect();
            let name = String::from_utf8_lossy(name);
            LabError::NoSuchNode(format!("there is no host {name:?}; this lab has {}", known.join(", ")))
        })?;
        let plugged = plugged.as_slice() == [1];
        network::apply(&network::cable(host, plugged), &host.name())?;
        if host.role == HostRole::Gateway {
            wan::plug(&self.state.wan_socket(), &host.name(), plugged)?;
        }
        Ok(())
    }
}
