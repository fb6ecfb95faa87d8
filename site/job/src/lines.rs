//! Splits a rank's output into whole lines, so that lines of different ranks never mix.

/// Most bytes of a line; a longer line is passed on in pieces.
pub const MAX_LINE: usize = 64 << 10;

/// The beginning of a line whose end has not arrived yet.
#[derive(Debug, Default)]
pub struct LineBuffer(Vec<u8>);

impl LineBuffer {
    /// Takes bytes and returns the lines that are now complete, newlines included; empty if there are none.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let split = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.0.len() + bytes.len() > MAX_LINE => bytes.len(),
            None => 0,
        };
        if split == 0 {
            self.0.extend_from_slice(bytes);
            return Vec::new();
        }
        let mut whole = std::mem::replace(&mut self.0, bytes[split..].to_vec());
        whole.extend_from_slice(&bytes[..split]);
        whole
    }

    /// True if a line has begun and not ended.
    pub fn has_begun(&self) -> bool {
        !self.0.is_empty()
    }

    /// The unfinished line; empty if there is none.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_returned() {
        let mut lines = LineBuffer::default();
        assert_eq!(lines.push(b"one"), b"");
        assert_eq!(lines.push(b" line\nand\nhalf"), b"one line\nand\n");
        assert_eq!(lines.push(b"\n"), b"half\n");
        lines.push(b"end");
        assert_eq!((lines.rest(), lines.rest()), (b"end".to_vec(), vec![]));
    }

    #[test]
    fn an_endless_line_is_not_kept() {
        let mut lines = LineBuffer::default();
        assert_eq!(lines.push(&[b'x'; MAX_LINE]), b"");
        assert_eq!(lines.push(b"y").len(), MAX_LINE + 1);
    }
}
