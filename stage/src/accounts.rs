//! Names and ids of this machine's users and groups. They come from `getent`, so accounts may live in files, in LDAP or
//! in any other source the machine is configured for.

use std::process::{Command, Stdio};

/// The name of a group or of a user. `None`: there is no such account.
pub(crate) fn name(group: bool, id: u32) -> Option<String> {
    let (name, found) = ask(group, &id.to_string())?;
    (found == id).then_some(name)
}

/// The id of a group or of a user. `None`: there is no such account.
pub(crate) fn id(group: bool, name: &str) -> Option<u32> {
    // `getent` would take a number for an id.
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (found, id) = ask(group, name)?;
    (found == name).then_some(id)
}

fn ask(group: bool, key: &str) -> Option<(String, u32)> {
    let database = if group { "group" } else { "passwd" };
    let mut command = Command::new("getent");
    command.args([database, "--", key]).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.output().ok().filter(|done| done.status.success())?;
    parse(&String::from_utf8_lossy(&done.stdout))
}

/// The name and the id of an entry: its first and its third field.
fn parse(text: &str) -> Option<(String, u32)> {
    let mut lines = text.lines();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let mut fields = line.split(':');
    let (name, id) = (fields.next()?, fields.nth(1)?);
    Some((name.to_owned(), id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_both_ways() {
        assert_eq!((name(false, 0).as_deref(), id(false, "root")), (Some("root"), Some(0)));
        assert_eq!((name(true, 0).as_deref(), id(true, "root")), (Some("root"), Some(0)));
        assert_eq!((name(false, 4_000_000_001), id(false, "no-such-user"), id(false, "0")), (None, None, None));
        assert_eq!(id(true, "--service=x"), None);
    }

    #[test]
    fn only_one_whole_entry_is_read() {
        assert_eq!(parse("anna:x:7:8:Anna:/home/anna:/bin/sh\n"), Some(("anna".into(), 7)));
        for text in ["", "anna", "anna:x", "anna:x:seven:8", "anna:x:7:8\nbob:x:9:9\n"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
