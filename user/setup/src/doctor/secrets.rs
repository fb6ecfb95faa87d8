//! Keeps secrets out of a text that is attached to a report.

/// Words in a setting's name that mark its value as a secret.
const SECRET: &[&str] = &[
    "secret",
    "token",
    "passw",
    "credential",
    "apikey",
    "api_key",
    "private_key",
    "access_key",
    "authorization",
    "cookie",
];
/// Words of HTTP that precede a secret.
const SCHEMES: &[&str] = &["basic", "negotiate", "digest"];
/// Options of well-known commands whose value is `USER:PASSWORD`.
const LOGINS: &[&str] = &["-u", "--user", "--proxy-user"];
/// The prefix of a ticket ([`crate::ticket`]).
const TICKET: &str = "lb1/";
const LEFT_OUT: &str = "[removed]";

/// True if the name of this setting marks its value as a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|word| name.contains(word))
}

/// The text without private keys in PEM, without tickets, and without values that follow a secret's name and `=` or
/// `:`.
pub(super) fn without(text: &str) -> String {
    let mut in_key = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            kept.push_str(LEFT_OUT);
            kept.push('\n');
        }
        if !in_key {
            kept.push_str(&clean(line));
        }
        in_key &= !line.contains("-----END");
    }
    kept
}

/// The expected kind of a line's next word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretAhead {
    Any,
    /// The `=` or `:` after the name of a secret.
    Sign,
    /// The value of a secret.
    Value,
    /// Possibly `USER:PASSWORD`.
    Login,
}

/// True if a word names the encoding of a secret that follows: `Bearer` anywhere, others only after `Authorization:`.
fn is_scheme(word: &str, next: SecretAhead) -> bool {
    word.eq_ignore_ascii_case("bearer")
        || next == SecretAhead::Value && SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// An address that contains a password, such as `https://me:secret@host/`, without the user and the password.
fn without_user(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let host = &rest[..rest.find('/').unwrap_or(rest.len())];
    let (user, _) = host.rsplit_once('@').filter(|(user, _)| user.contains(':'))?;
    Some(format!("{scheme}://{LEFT_OUT}{}", &rest[user.len()..]))
}

fn clean(line: &str) -> String {
    let mut next = SecretAhead::Any;
    let mut kept = String::with_capacity(line.len());
    for word in line.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let is_sign = matches!(bare, "=" | ":");
        let (name, value) = bare.split_at(bare.find(['=', ':']).map_or(bare.len(), |at| at + 1));
        if bare.is_empty() {
            // More than one blank.
        } else if is_scheme(bare, next) {
            kept.push_str(bare);
            next = SecretAhead::Value;
        } else if LOGINS.contains(&bare) {
            kept.push_str(bare);
            next = SecretAhead::Login;
        } else if next == SecretAhead::Login && bare.contains(':') {
            kept.push_str(LEFT_OUT);
            next = SecretAhead::Any;
        } else if let Some(without) = without_user(bare) {
            kept.push_str(&without);
            next = SecretAhead::Any;
        } else if next == SecretAhead::Value || bare.contains(TICKET) {
            kept.push_str(LEFT_OUT);
            next = SecretAhead::Any;
        } else if next == SecretAhead::Sign && is_sign {
            kept.push_str(bare);
            next = SecretAhead::Value;
        } else if is_secret(name) {
            kept.push_str(name);
            kept.push_str(if value.is_empty() { "" } else { LEFT_OUT });
            next = match (value.is_empty(), name.ends_with(['=', ':'])) {
                (false, _) => SecretAhead::Any,
                (true, true) => SecretAhead::Value,
                (true, false) => SecretAhead::Sign,
            };
        } else {
            kept.push_str(bare);
            next = SecretAhead::Any;
        }
        kept.push_str(&word[bare.len()..]);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tickets_and_values_of_secrets_are_left_out() {
        let text = "HF_TOKEN=hf_abc next\nenvironment = { API_KEY = \"k1\", OMP_NUM_THREADS = \"8\" }\n\
            -----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\nafter\npassword: hunter2\n\
            landbridge sites join kyoto lb1/h:1/00ff/00000001/5ec7e7\n\
            Authorization: Bearer abcdef123\n> authorization: Basic bWU6cHc=\ncurl -u me:pw55 x\nsaw bearer abc456\n\
            git clone https://me:pw66@host/r and https://host:8443/a@b\n";
        let kept = without(text);
        for secret in ["hf_abc", "k1", "MC4CAQ", "hunter2", "5ec7e7", "abcdef123", "bWU6cHc", "pw55", "abc456", "pw66"]
        {
            assert!(!kept.contains(secret), "{secret} is in {kept}");
        }
        for harmless in [
            "HF_TOKEN=[removed] next",
            "OMP_NUM_THREADS = \"8\"",
            "\nafter\n",
            "join kyoto [removed]\n",
            "https://[removed]@host/r and https://host:8443/a@b\n",
        ] {
            assert!(kept.contains(harmless), "{harmless} is not in {kept}");
        }
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let text =
            "site a: gateway gw1: refused\nits secret is wrong\n  x = 1\n\n\tkey ok: /home/me/a.key is sha256:00\n";
        assert_eq!(without(text), text);
    }
}
