//! The choice of the gateway that dials, and its way to the other. Both gateways, the check and `sites add` must agree,
//! so they share this code.

use super::{Gateway, Login};

/// The way to reach a gateway of another site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approach<'a> {
    /// A TCP connection to this `host:port`.
    Direct(&'a str),
    /// ssh to this login, and from there to this `host:port`.
    Ssh(&'a Login, &'a str),
}

/// The way in which a trunk's links are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialling<'a> {
    /// The gateway of the earlier site dials the other.
    Earlier(Approach<'a>),
    /// The gateway of the later site dials the other.
    Later(Approach<'a>),
    /// Neither can be dialled: they must meet at a third gateway.
    Meeting,
}

impl Dialling<'_> {
    /// The choice for two gateways; `earlier` belongs to the site that comes first in the sites file. ssh takes
    /// precedence, because a login in a gateway's entry means that only ssh passes a firewall. Otherwise the earlier
    /// gateway dials if it can.
    pub fn between<'a>(earlier: &'a Gateway, later: &'a Gateway) -> Dialling<'a> {
        match (&earlier.ssh, &earlier.advertise, &later.ssh, &later.advertise) {
            (_, _, Some(login), _) => Dialling::Earlier(Approach::Ssh(login, &later.inside)),
            (Some(login), _, None, _) => Dialling::Later(Approach::Ssh(login, &earlier.inside)),
            (None, _, None, Some(address)) => Dialling::Earlier(Approach::Direct(address)),
            (None, Some(address), None, None) => Dialling::Later(Approach::Direct(address)),
            (None, None, None, None) => Dialling::Meeting,
        }
    }

    /// Returns true if the links go through ssh, from either side.
    pub fn is_ssh(&self) -> bool {
        matches!(self, Dialling::Earlier(Approach::Ssh(..)) | Dialling::Later(Approach::Ssh(..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::SitesFile;

    fn gateway(lines: &str) -> Gateway {
        let text = format!(
            "[[site]]\nname = \"a\"\nfingerprint = \"sha256:{}\"\n[[site.gateway]]\nname = \"gw1\"\ninside = \"in:1\"\n{lines}\n\
             [[site.node]]\nname = \"n\"\n",
            "0".repeat(64)
        );
        SitesFile::parse(&text, "x").unwrap().sites[0].gateways[0].clone()
    }

    #[test]
    fn a_login_goes_before_an_address_and_the_earlier_before_the_later() {
        let (open, closed) = (gateway("advertise = \"out:2\""), gateway(""));
        let (ssh, both) = (gateway("ssh = \"me@h:22\""), gateway("ssh = \"me@h:22\"\nadvertise = \"out:2\""));
        let login: Login = "me@h:22".parse().unwrap();
        let (direct, through) = (Approach::Direct("out:2"), Approach::Ssh(&login, "in:1"));
        let table = [
            (&open, &open, Dialling::Earlier(direct)),
            (&closed, &open, Dialling::Earlier(direct)),
            (&open, &closed, Dialling::Later(direct)),
            (&closed, &closed, Dialling::Meeting),
            (&closed, &ssh, Dialling::Earlier(through)),
            (&ssh, &closed, Dialling::Later(through)),
            (&ssh, &ssh, Dialling::Earlier(through)),
            (&open, &ssh, Dialling::Earlier(through)),
            (&both, &open, Dialling::Later(through)),
        ];
        for (earlier, later, expected) in table {
            let found = Dialling::between(earlier, later);
            assert_eq!(found, expected, "{earlier:?} {later:?}");
            let through_ssh = earlier.ssh.is_some() || later.ssh.is_some();
            assert_eq!(found.is_ssh(), through_ssh);
        }
    }
}
