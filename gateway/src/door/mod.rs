//! Connections before admission: accepting, limiting, handshaking.

use std::rc::Rc;

use hooks::open_files;
use tokio::sync::Notify;
use types::sites::Inside;

use crate::door::hellos::Hellos;
use crate::door::lobby::{Lobby, places};

pub(crate) mod error;
pub(crate) mod hellos;
pub(crate) mod listener;
pub(crate) mod lobby;
pub(crate) mod stream;

/// Limits on connections that are not admitted yet, and what they wait for.
pub(crate) struct Door {
    pub lobby: Rc<Lobby>,
    pub hellos: Hellos,
    /// Whether ranks must connect with TLS.
    pub inside: Inside,
    /// Notified when a job was opened: its members may be waiting.
    pub job_opened: Notify,
}

impl Door {
    /// For a gateway with this much memory, whose ranks connect as `inside` says.
    pub(crate) fn new(memory: u64, inside: Inside) -> Door {
        let lobby = Rc::new(Lobby::new(places(memory, open_files::allowed())));
        Door { lobby, hellos: Hellos::default(), inside, job_opened: Notify::new() }
    }
}
