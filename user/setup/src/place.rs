//! The machine of a site: `[USER@]HOST[:PORT]` as ssh understands it, or this machine.

use std::fmt;
use std::str::FromStr;

use types::sites::{Login, LoginError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachinePlace {
    /// The machine that this program runs on.
    Here,
    /// A machine that the user's ssh reaches.
    Ssh(Login),
}

impl MachinePlace {
    /// The words that follow `ssh` and its options.
    pub(crate) fn arguments(&self) -> Vec<String> {
        match self {
            MachinePlace::Here => Vec::new(),
            MachinePlace::Ssh(login) => login.arguments(),
        }
    }

    /// The host, without user and port. `None` for this machine.
    pub fn host(&self) -> Option<&str> {
        match self {
            MachinePlace::Here => None,
            MachinePlace::Ssh(login) => Some(login.host()),
        }
    }
}

impl FromStr for MachinePlace {
    type Err = LoginError;
    fn from_str(text: &str) -> Result<MachinePlace, LoginError> {
        text.parse().map(MachinePlace::Ssh)
    }
}

impl fmt::Display for MachinePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MachinePlace::Here => f.write_str("this machine"),
            MachinePlace::Ssh(login) => login.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_it_and_back() {
        for (text, target, port, host) in [
            ("login.lyon", "login.lyon", None, "login.lyon"),
            ("me@login.lyon", "me@login.lyon", None, "login.lyon"),
            ("me@10.0.0.1:2222", "me@10.0.0.1", Some(2222), "10.0.0.1"),
            ("me@fe80::1", "me@fe80::1", None, "fe80::1"),
            ("me@[fe80::1]:22", "me@fe80::1", Some(22), "fe80::1"),
        ] {
            let place: MachinePlace = text.parse().unwrap();
            assert_eq!(place, MachinePlace::Ssh(Login { target: target.into(), port }), "{text}");
            assert_eq!((place.host(), place.to_string().as_str()), (Some(host), text));
        }
    }

    #[test]
    fn what_ssh_would_take_for_an_option_is_refused() {
        for text in
            ["", "-oProxyCommand=x", "me@", "@host", "me@-oX", "a b", "host:0", "host:ssh", "host:99999", "me@a/b"]
        {
            assert!(text.parse::<MachinePlace>().is_err(), "{text}");
        }
    }
}
