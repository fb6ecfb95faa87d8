//! Texts of limited length.

/// The longest beginning of `text` that has at most `limit` bytes and splits no character.
pub fn within(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (limit, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (4, "aäb"), (9, "aäb")] {
            assert_eq!(within("aäb", limit), expected, "{limit}");
        }
    }
}
