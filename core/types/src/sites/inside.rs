//! Encryption of the traffic between a site's ranks: the site's `inside`.

use serde::{Deserialize, Serialize};

use super::fabric::Fabric;
use super::wrong::Wrong;

/// Encryption of connections from ranks to the ranks and gateways of their own site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inside {
    /// Without TLS, for networks whose machines are trusted.
    #[default]
    Clear,
    /// With TLS, for networks that are shared with strangers.
    Encrypted,
}

impl Inside {
    /// Reads the value in the sites file.
    pub(super) fn check(text: Option<&str>, fabric: Option<&Fabric>) -> Result<Inside, Wrong> {
        match (text, fabric) {
            (None | Some("clear"), _) => Ok(Inside::Clear),
            (Some("encrypted"), None) => Ok(Inside::Encrypted),
            (Some("encrypted"), Some(fabric)) => {
                let problem = format!(
                    "`encrypted` cannot be combined with `fabric` = `{}`: traffic on a fabric does not use TLS; remove \
                     `fabric`, so that ranks use TCP, or `inside`",
                    fabric.provider
                );
                Err(Wrong::new("inside", problem))
            }
            (Some(other), _) => {
                let problem =
                    "is neither \"encrypted\" nor \"clear\"; the address that ranks dial belongs to a [[site.gateway]]";
                Err(Wrong::new("inside", format!("`{other}` {problem}")))
            }
        }
    }
}
