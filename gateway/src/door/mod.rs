//! A connection before it is admitted: accepted, bounded, shaken hands with.

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

/// What bounds those who are not admitted yet, and what they wait for.
pub(crate) struct Door {
    pub lobby: Rc<Lobby>,
    pub hellos: Hellos,
    /// How ranks have to come.
    pub inside: Inside,
    /// A job was opened: its members may be waiting.
    pub job_opened: Notify,
}

impl Door {
    /// Of a gateway of this much memory, for ranks that come so.
    pub(crate) fn new(memory: u64, inside: Inside) -> Door {
        let lobby = Rc::new(Lobby::new(places(memory, open_files::allowed())));
        Door { lobby, hellos: Hellos::default(), inside, job_opened: Notify::new() }
    }
}
