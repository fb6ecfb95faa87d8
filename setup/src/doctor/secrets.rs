//! Keeping secrets out of a text that is attached to a report.

/// Words in a setting's name that mark its value as a secret.
const SECRET: &[&str] = &["secret", "token", "passw", "credential", "apikey", "api_key", "private_key", "access_key"];
/// The prefix of a ticket ([`crate::ticket`]).
const TICKET: &str = "lb1/";
const LEFT_OUT: &str = "[removed]";

/// Whether the name of this setting marks its value as a secret.
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

/// What the next word of a line may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Any,
    /// The `=` or `:` after the name of a secret.
    Sign,
    /// The value of a secret.
    Value,
}

fn clean(line: &str) -> String {
    let mut next = Next::Any;
    let mut kept = String::with_capacity(line.len());
    for word in line.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let is_sign = matches!(bare, "=" | ":");
        let (name, value) = bare.split_at(bare.find(['=', ':']).map_or(bare.len(), |at| at + 1));
        if bare.is_empty() {
            // More than one blank.
        } else if next == Next::Value || bare.contains(TICKET) {
            kept.push_str(LEFT_OUT);
            next = Next::Any;
        } else if next == Next::Sign && is_sign {
            kept.push_str(bare);
            next = Next::Value;
        } else if is_secret(name) {
            kept.push_str(name);
            kept.push_str(if value.is_empty() { "" } else { LEFT_OUT });
            next = match (value.is_empty(), name.ends_with(['=', ':'])) {
                (false, _) => Next::Any,
                (true, true) => Next::Value,
                (true, false) => Next::Sign,
            };
        } else {
            kept.push_str(bare);
            next = Next::Any;
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
            landbridge sites join kyoto lb1/h:1/00ff/00000001/5ec7e7\n";
        let kept = without(text);
        for secret in ["hf_abc", "k1", "MC4CAQ", "hunter2", "5ec7e7"] {
            assert!(!kept.contains(secret), "{secret} is in {kept}");
        }
        for harmless in ["HF_TOKEN=[removed] next", "OMP_NUM_THREADS = \"8\"", "\nafter\n", "join kyoto [removed]\n"] {
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
