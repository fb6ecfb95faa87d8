//! Shell quoting: for scripts, for commands on other machines, and for commands that a message asks the user to type.

use std::path::Path;

/// Joins the words into one line, which any shell, csh and fish included, splits into the same words.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell. A plain word stays as it is, which keeps messages readable.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    // A leading tilde stays outside the quotes: it stands for the home of the login account.
    let (home, rest) = match word.strip_prefix("~/") {
        Some(rest) => ("~/", rest),
        None => ("", word),
    };
    if !home.is_empty() && !rest.is_empty() && rest.chars().all(plain) {
        return word.to_owned();
    }
    format!("{home}{}", literal(rest))
}

/// Quotes the text as one word of a POSIX shell. No character keeps a special meaning, not even a leading tilde.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A quoted path that no program takes for an option.
pub fn path(path: impl AsRef<Path>) -> String {
    let path = path.as_ref().to_string_lossy();
    quoted(&if path.starts_with('-') { format!("./{path}") } else { path.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        let words = ["/opt/a b/x", "it's", "", "$HOME", "plain-1.2", "a\nb", "*"].map(str::to_owned);
        let script = format!("printf '%s\\0' {}", line(&words));
        let out = std::process::Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let back: Vec<_> =
            out.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        assert_eq!(back[..words.len()], words);
        assert_eq!(line(&["~/bin/landbridge".to_owned(), "agent".to_owned()]), "~/bin/landbridge agent");
        assert_eq!(quoted("~/my bin/x"), "~/'my bin/x'");
        assert_eq!(literal("~/my bin"), "'~/my bin'");
        assert_eq!(["in put", "-x", "/tmp/x"].map(path), ["'in put'", "./-x", "/tmp/x"]);
    }
}
