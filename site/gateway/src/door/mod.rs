//! Connections before admission: accepting, separating peers from strangers, limiting, handshaking.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use gateway_tasks::open_files;
use types::sites::Inside;

use crate::door::hellos::Hellos;
use crate::door::lobby::{Lobby, places};
use crate::door::tokens::Tokens;
use crate::path::Path;
use crate::services::Services;
use crate::sites::Sites;
use crate::trunks::Trunks;

mod error;
mod hellos;
pub(crate) mod listener;
mod lobby;
mod proof;
mod stream;
mod tokens;

/// State of the connections that are not admitted yet, and the parts that take them over.
pub(crate) struct Door {
    path: Rc<Path>,
    sites: Rc<Sites>,
    trunks: Rc<Trunks>,
    services: Rc<Services>,
    pub lobby: Rc<Lobby>,
    hellos: Hellos,
    tokens: Tokens,
    /// TLS requirement for ranks.
    inside: Inside,
}

impl Door {
    /// `inside`: the TLS requirement for ranks.
    pub(crate) fn new(trunks: Rc<Trunks>, services: Rc<Services>, inside: Inside) -> Door {
        let (path, sites) = (trunks.path.clone(), trunks.sites.clone());
        let lobby = Rc::new(Lobby::new(places(path.memory, open_files::allowed())));
        // On a machine whose clock is before 1970, tokens of any age count.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tokens = Tokens::new(path.memory, now);
        Door { path, sites, trunks, services, lobby, hellos: Hellos::default(), tokens, inside }
    }
}
