//! A user's account on this node, from `getent passwd`: accounts may be in files, in LDAP or in any source the node
//! uses.

use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use crate::bounded::{ProgramLimits, run};

/// Getent may have to ask a directory service.
const LIMITS: ProgramLimits = ProgramLimits { time: Duration::from_secs(30), output: 64 << 10 };

/// A user for whom the service may start programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: u32,
    pub group: u32,
    pub name: String,
    pub home: String,
}

/// Reasons for refusing a user.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccountError {
    #[error("user id 0: nothing is done as root")]
    Root,
    #[error("user id {0} has no account on this node")]
    None(u32),
    #[error("the account of user id {user} is not usable: {problem}")]
    Unusable { user: u32, problem: String },
    #[error("cannot ask who user id {user} is: {problem}")]
    Unasked { user: u32, problem: String },
}

/// Finds accounts.
pub trait Accounts: Send + Sync {
    /// # Errors
    /// [`AccountError`].
    fn find(&self, user: u32) -> Result<Account, AccountError>;
}

/// The node's accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Getent;

impl Accounts for Getent {
    fn find(&self, user: u32) -> Result<Account, AccountError> {
        if user == 0 {
            return Err(AccountError::Root);
        }
        let unasked = |problem: String| AccountError::Unasked { user, problem };
        let mut command = Command::new("getent");
        command.args(["passwd", &user.to_string()]);
        let done = run(command, b"", LIMITS).map_err(|e| unasked(format!("getent: {e}")))?;
        match done.code {
            Some(0) => parse(user, &String::from_utf8_lossy(&done.stdout)),
            Some(2) => Err(AccountError::None(user)),
            _ => Err(unasked(done.stderr.to_string())),
        }
    }
}

/// Parses a passwd line. Its user id must be `user`.
fn parse(user: u32, line: &str) -> Result<Account, AccountError> {
    let unusable = |problem: &str| AccountError::Unusable { user, problem: problem.to_owned() };
    let line = line.strip_suffix('\n').unwrap_or(line);
    if line.chars().any(char::is_control) {
        return Err(unusable("its entry is not one line"));
    }
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, found, group, _, home, _] = fields[..] else { return Err(unusable("its entry has not 7 fields")) };
    if found.parse() != Ok(user) {
        return Err(unusable("its entry is another user's"));
    }
    let group: u32 = group.parse().map_err(|_| unusable("its group is no number"))?;
    if group == 0 {
        return Err(unusable("its group is root's"));
    }
    if !home.starts_with('/') || home == "/" {
        return Err(unusable("it has no home directory"));
    }
    Ok(Account { user, group, name: name.to_owned(), home: home.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_account_is_usable() {
        let account = parse(7, "anna:x:7:8:Anna,,:/home/anna:/bin/sh\n").unwrap();
        assert_eq!(account, Account { user: 7, group: 8, name: "anna".into(), home: "/home/anna".into() });
        for (line, problem) in [
            ("", "7 fields"),
            ("anna:x:7:8:/home/anna:/bin/sh", "7 fields"),
            ("anna:x:0:8::/home/anna:/bin/sh", "another user's"),
            ("anna:x:7:0::/home/anna:/bin/sh", "root's"),
            ("anna:x:7:8:::/bin/sh", "home"),
            ("anna:x:7:8::/:/bin/sh", "home"),
            ("anna:x:7:8::/home/anna:/bin/sh\nbob:x:7:9::/home/bob:/bin/sh\n", "not one line"),
            ("anna:x:7:8::/home/anna\u{1b}[2J:/bin/sh\n", "not one line"),
        ] {
            assert!(parse(7, line).unwrap_err().to_string().contains(problem), "{line}");
        }
        assert_eq!(Getent.find(0), Err(AccountError::Root));
    }
}
