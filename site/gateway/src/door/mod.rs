//! Connections before admission: accepting, separating peers from strangers, limiting, handshaking.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use gateway_hooks::open_files;
use tokio::sync::Notify;
use types::sites::Inside;

use crate::door::hellos::Hellos;
use crate::door::lobby::{Lobby, places};
use crate::door::tokens::Tokens;

pub(crate) mod error;
pub(crate) mod hellos;
pub(crate) mod listener;
pub(crate) mod lobby;
pub(crate) mod stream;
pub(crate) mod tokens;

/// State of the connections that are not admitted yet.
pub(crate) struct Door {
    pub lobby: Rc<Lobby>,
    pub hellos: Hellos,
    pub tokens: Tokens,
    /// TLS requirement for ranks.
    pub inside: Inside,
    /// Notified when a job was opened: its members may be waiting.
    pub job_opened: Notify,
}

impl Door {
    /// The door of a gateway with this much memory. `inside`: the TLS requirement for its ranks.
    pub(crate) fn new(memory: u64, inside: Inside) -> Door {
        let lobby = Rc::new(Lobby::new(places(memory, open_files::allowed())));
        // On a machine whose clock is before 1970, tokens of any age count.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Door { lobby, hellos: Hellos::default(), tokens: Tokens::new(memory, now), inside, job_opened: Notify::new() }
    }
}
