//! A gateway's reports to its members about its route to another site.

use crate::error::WireError;
use crate::reader::FieldReader;
use crate::text::within;

/// The payload of a [`crate::FrameKind::Passage`] frame, about the site in the frame's `from`. One byte, then text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Some of the frames in flight are lost; frames sent from now on arrive.
    Broken,
    /// All frames in flight are lost, and no frame arrives through this gateway at present, for this reason.
    Away(String),
    /// Frames sent from now on arrive.
    Open,
}

/// The longest reason sent, in bytes.
const MAX_REASON: usize = 1024;

impl Passage {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let (code, reason) = match self {
            Passage::Broken => (0, ""),
            Passage::Away(reason) => (1, reason.as_str()),
            Passage::Open => (2, ""),
        };
        let mut out = vec![code];
        out.extend_from_slice(within(reason, MAX_REASON).as_bytes());
        out
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It is empty, or of an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Passage, WireError> {
        match FieldReader::new("passage", bytes).u8()? {
            0 => Ok(Passage::Broken),
            1 => Ok(Passage::Away(String::from_utf8_lossy(&bytes[1..]).into_owned())),
            2 => Ok(Passage::Open),
            code => Err(WireError::Unknown { what: "passage", code }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_survive_and_long_reasons_are_cut() {
        for passage in [Passage::Broken, Passage::Away("no answer".into()), Passage::Open] {
            assert_eq!(Passage::decode(&passage.encode()), Ok(passage));
        }
        let long = Passage::Away("ä".repeat(600)).encode();
        assert!(long.len() <= MAX_REASON + 1);
        assert!(matches!(Passage::decode(&long), Ok(Passage::Away(text)) if text.chars().all(|c| c == 'ä')));
        assert!(Passage::decode(&[]).is_err() && Passage::decode(&[3]).is_err());
    }
}
