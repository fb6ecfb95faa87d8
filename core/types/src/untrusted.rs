//! Text from others: peers, login nodes, other users' programs, names of files, printed records of other programs.
//!
//! Such text can hold a terminal's control sequences, a line break followed by a forged message, or characters that
//! reverse the order of the text around them. [`UntrustedText`] is the one type for it: its `Display` escapes all of
//! these and cuts the text after [`SHOWN`] characters. Make one as soon as the text comes in.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Most characters of an untrusted text that a message shows.
pub const SHOWN: usize = 400;

/// A text from others. Its `Display` escapes control characters, line separators and changes of text direction, as a
/// Rust string literal does, and ends after [`SHOWN`] characters. Its serialized form is the text itself.
///
/// ```
/// use types::UntrustedText;
/// assert_eq!(UntrustedText::from("lyon\n\u{1b}[2J").to_string(), "lyon\\n\\u{1b}[2J");
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UntrustedText(String);

impl UntrustedText {
    /// Decodes bytes of any encoding. Invalid UTF-8 becomes U+FFFD.
    pub fn from_bytes(bytes: &[u8]) -> UntrustedText {
        UntrustedText(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The unescaped text, for comparing and parsing. Never print it.
    pub fn raw(&self) -> &str {
        &self.0
    }

    /// Returns true if the text is empty or only white space.
    pub fn is_blank(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Display for UntrustedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded in one piece, so that a width in the format holds.
        f.pad(&printable(&self.0))
    }
}

impl fmt::Debug for UntrustedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl From<&str> for UntrustedText {
    fn from(text: &str) -> UntrustedText {
        UntrustedText(text.to_owned())
    }
}

impl From<String> for UntrustedText {
    fn from(text: String) -> UntrustedText {
        UntrustedText(text)
    }
}

impl From<&OsStr> for UntrustedText {
    fn from(text: &OsStr) -> UntrustedText {
        UntrustedText::from_bytes(text.as_bytes())
    }
}

impl From<&Path> for UntrustedText {
    fn from(path: &Path) -> UntrustedText {
        path.as_os_str().into()
    }
}

/// At most [`SHOWN`] characters of a text; escapes characters that act on a terminal or start a new line.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN));
    let mut rest = text.chars();
    for c in rest.by_ref().take(SHOWN) {
        if acts(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    let left = rest.as_str().len();
    if left > 0 {
        shown += &format!("… ({left} more bytes)");
    }
    shown
}

/// The whole text, possibly of several lines; escapes all other characters that act on a terminal. Each line after the
/// first begins with white space, so none of them can pass for a message of its own.
///
/// ```
/// assert_eq!(types::untrusted::indented("a\nlandbridge: b\u{7}"), "a\n landbridge: b\\u{7}");
/// ```
pub fn indented(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            shown.push('\n');
        }
        if number > 0 && !line.is_empty() && !line.starts_with([' ', '\t']) {
            shown.push(' ');
        }
        shown.push_str(&visible(line));
    }
    shown
}

/// The whole text; escapes characters that act on a terminal, except line breaks and tabs. For output whose lines this
/// program has composed.
pub fn visible(text: &str) -> Cow<'_, str> {
    escape(text, |c| acts(c) && c != '\n' && c != '\t')
}

/// The whole text on one line; escapes every character that acts on a terminal.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, acts)
}

fn escape(text: &str, escaped: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Returns true if a character has an effect on a terminal besides appearing in its place.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_is_left() {
        let osc = "\u{1b}]52;c;aGk=\u{7}ok\r\nlandbridge: done\u{9b}2J\u{202e}txt";
        let shown = UntrustedText::from(osc).to_string();
        assert!(!shown.chars().any(acts), "{shown}");
        assert_eq!(shown, "\\u{1b}]52;c;aGk=\\u{7}ok\\r\\nlandbridge: done\\u{9b}2J\\u{202e}txt");
        assert_eq!(UntrustedText::from("naïve — Ωmega").to_string(), "naïve — Ωmega");
    }

    #[test]
    fn a_long_text_is_cut_and_its_rest_is_counted() {
        let shown = printable(&"é".repeat(SHOWN + 3));
        assert_eq!(shown, format!("{}… (6 more bytes)", "é".repeat(SHOWN)));
        assert_eq!(printable(&"x".repeat(SHOWN)), "x".repeat(SHOWN));
    }

    #[test]
    fn lines_after_the_first_are_no_messages_of_their_own() {
        assert_eq!(indented("one"), "one");
        assert_eq!(
            indented("a\r\nlandbridge: all is well\n  b\n\nc\u{1b}]0;x"),
            "a\\r\n landbridge: all is well\n  b\n\n c\\u{1b}]0;x"
        );
        assert_eq!(visible("a\tb\n"), "a\tb\n");
        assert_eq!(visible("a\u{9b}2J\n"), "a\\u{9b}2J\n");
    }

    #[test]
    fn bytes_that_are_no_text_print_too() {
        let path = Path::new(OsStr::from_bytes(b"a\xff\x1b"));
        assert_eq!(UntrustedText::from(path).to_string(), "a\u{fffd}\\u{1b}");
        assert_eq!(format!("{:?}", UntrustedText::from("x")), "`x`");
        assert_eq!(format!("{:>3}", UntrustedText::from("x")), "  x");
    }
}
