//! Text of other machines, made fit for a terminal.

/// The text with `instead` for every character that would control the terminal.
pub(crate) fn printable(text: &str, instead: char) -> String {
    text.chars().map(|c| if c.is_control() { instead } else { c }).collect()
}
