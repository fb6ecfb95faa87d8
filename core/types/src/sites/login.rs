//! An ssh login: `[USER@]HOST[:PORT]`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A machine and an account on it, in ssh's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// `[user@]host`; the host may be a name of the ssh configuration.
    pub target: String,
    /// The port, if not ssh's own.
    pub port: Option<u16>,
}

impl Login {
    /// The words after `ssh` and its options. The target comes after `--`, so it cannot be taken for an option.
    pub fn arguments(&self) -> Vec<String> {
        let port = self.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]);
        port.chain(["--".to_owned(), self.target.clone()]).collect()
    }

    /// The host alone, without user and port.
    pub fn host(&self) -> &str {
        self.target.rsplit_once('@').map_or(self.target.as_str(), |(_, host)| host)
    }
}

/// A text that is not `[USER@]HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not [USER@]HOST[:PORT] ({problem}): for example me@login.lyon.example or me@10.0.0.1:2222")]
#[non_exhaustive]
pub struct LoginError {
    /// The text.
    pub text: String,
    /// The reason.
    pub problem: &'static str,
}

impl FromStr for Login {
    type Err = LoginError;
    fn from_str(text: &str) -> Result<Login, LoginError> {
        let wrong = |problem| LoginError { text: text.to_owned(), problem };
        if text.starts_with('-') {
            return Err(wrong("begins with a dash"));
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(wrong("has a blank in it"));
        }
        // An IPv6 address contains colons, so a port needs brackets around the address.
        let (target, port) = match text.rsplit_once(':') {
            Some((target, port)) if !target.contains(':') || target.ends_with(']') => {
                let port = port
                    .parse()
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or_else(|| wrong("the port is no number from 1 to 65535"))?;
                (target, Some(port))
            }
            _ => (text, None),
        };
        let (user, host) = target.rsplit_once('@').map_or((None, target), |(user, host)| (Some(user), host));
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || user == Some("") || host.starts_with('-') || host.contains(['[', ']', '/']) {
            return Err(wrong("no host"));
        }
        let target = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        Ok(Login { target, port })
    }
}

impl fmt::Display for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.target;
        match (self.port, target.rsplit_once('@')) {
            (None, _) => f.write_str(target),
            (Some(port), Some((user, host))) if host.contains(':') => write!(f, "{user}@[{host}]:{port}"),
            (Some(port), None) if target.contains(':') => write!(f, "[{target}]:{port}"),
            (Some(port), _) => write!(f, "{target}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_becomes_words_for_ssh_and_its_own_text() {
        let login: Login = "me@login.lyon.example:2222".parse().unwrap();
        assert_eq!(login.arguments(), ["-p", "2222", "--", "me@login.lyon.example"]);
        assert_eq!((login.host(), login.to_string().as_str()), ("login.lyon.example", "me@login.lyon.example:2222"));
        for text in ["lyon", "me@lyon", "me@[fd00::1]:22", "[fd00::1]:22", "fd00::1"] {
            assert_eq!(text.parse::<Login>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_login_is_named() {
        for text in ["", "-oProxyCommand=x", "me@-oProxyCommand=x", "a b", "me@", "@lyon", "lyon:x", "lyon:0", "a/b"] {
            let error = text.parse::<Login>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("[USER@]HOST[:PORT]"), "{error}");
        }
    }
}
