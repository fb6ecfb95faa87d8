//! Messages between processes of a coupling, other than elements of arrays, and their encoding.

use plan::redistribution::{Description, Mapping};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::untrusted::one_line;

/// Maximum length of a message in bytes: room for an irregular layout of some ten million indices.
pub(crate) const LONGEST: usize = 128 << 20;
/// Messages are cut into parts of this many bytes, headers included.
pub(crate) const PART: usize = 32 << 10;

/// A message from one process to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExchangeMessage {
    /// A variable that the sender's side exports. Each process of the other side receives it from one process of the
    /// sender's side.
    Variable { name: String, variable: Described },
    /// Layout and mapping by which the sender's side fetches a variable. Each process of the other side receives them
    /// from one process of the sender's side.
    Wish { name: String, wish: u32, layout: Description, mapping: Mapping },
    /// The sender's side begins to fetch this version and has finished with older ones.
    /// Sent like [`ExchangeMessage::Wish`].
    Begin { name: String, wish: u32, version: u64 },
    /// The sender requests its part of a version, to be sent under `ticket`. `host`: the host whose processes can read
    /// its memory, see [`pool::HostId`]. `pieces`: the number of pieces requested now, under this ticket and the
    /// following ones; 0: the whole message.
    Request { name: String, wish: u32, version: u64, ticket: u32, host: u64, pieces: u32 },
    /// The answer to a request from the same host: the elements are in the sender's memory, followed by the number
    /// `mark`, and stay there until the receiver has taken them.
    Here { ticket: u32, pid: u32, address: u64, length: u64, mark: u64 },
    /// The answer to [`ExchangeMessage::Here`]: the receiver no longer needs the elements in that memory. `sent`: it
    /// cannot read them there, and asks for them to be sent.
    Taken { ticket: u32, sent: bool },
    /// The answer to a request that the sender cannot meet.
    Refused { ticket: u32, reason: String },
    /// The coupling has ended.
    Over { reason: String },
    /// To another process of the sender's side: the sender requests the elements that arrive there in its fetch number
    /// `fetch` from process `source` of the other side, in the same pieces, under this ticket and the following ones.
    Forward { fetch: u64, source: u32, ticket: u32 },
    /// The sender has its part of a version; other processes of its side have passed it on.
    Passed { name: String, version: u64 },
    /// To another process of the sender's side: the coupling has ended because a process has left its side alone.
    Left { reason: String },
    /// The sender requests further pieces of the message that it requested under this ticket.
    More { ticket: u32, pieces: u32 },
}

/// A variable as its side describes it, before validation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Described {
    /// The type of an element, in the notation that programs share.
    pub dtype: String,
    /// Bytes of an element.
    pub element: u64,
    pub layout: Description,
}

/// Bytes that are not a message of a coupling.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a message of a coupling: {0}")]
pub(crate) struct Unreadable(String);

impl ExchangeMessage {
    /// Escapes the reason, which another program has composed and errors here quote.
    fn shown(mut self) -> ExchangeMessage {
        if let ExchangeMessage::Refused { reason, .. }
        | ExchangeMessage::Over { reason }
        | ExchangeMessage::Left { reason } = &mut self
        {
            *reason = one_line(reason).into_owned();
        }
        self
    }

    /// Its parts. The first byte of each part is 1 if another part follows, otherwise 0.
    pub(crate) fn parts(&self) -> Result<Vec<Vec<u8>>, Unreadable> {
        let bytes = postcard::to_stdvec(self).map_err(|e| Unreadable(e.to_string()))?;
        if bytes.len() > LONGEST {
            return Err(Unreadable(format!("it has {} bytes, at most {LONGEST} are possible", bytes.len())));
        }
        let count = bytes.len().div_ceil(PART - 1);
        let part = |(at, chunk): (usize, &[u8])| [&[u8::from(at + 1 < count)], chunk].concat();
        Ok(bytes.chunks(PART - 1).enumerate().map(part).collect())
    }
}

/// The message that is arriving from one sender in parts.
#[derive(Debug, Default)]
pub(crate) struct PartialMessage(Vec<u8>);

impl PartialMessage {
    /// Takes the next part. Returns the message if this part was the last.
    ///
    /// # Errors
    /// The parts are malformed, do not decode to a message, or exceed [`LONGEST`].
    pub(crate) fn part(&mut self, part: &[u8]) -> Result<Option<ExchangeMessage>, Unreadable> {
        let (more, bytes) = part.split_first().ok_or_else(|| Unreadable("an empty part".into()))?;
        if self.0.len() + bytes.len() > LONGEST {
            return Err(Unreadable(format!("it has more than {LONGEST} bytes")));
        }
        self.0.extend_from_slice(bytes);
        match more {
            0 => {
                let bytes = std::mem::take(&mut self.0);
                postcard::from_bytes(&bytes)
                    .map(ExchangeMessage::shown)
                    .map(Some)
                    .map_err(|e| Unreadable(e.to_string()))
            }
            1 => Ok(None),
            other => Err(Unreadable(format!("a part of kind {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel_in_parts_and_their_reasons_are_escaped() {
        for length in [0, 10, PART, 3 * PART + 5] {
            let message = ExchangeMessage::Over { reason: "x".repeat(length) };
            let parts = message.parts().unwrap();
            assert!(parts.iter().all(|part| part.len() <= PART));
            let mut arriving = PartialMessage::default();
            let (last, before) = parts.split_last().unwrap();
            before.iter().for_each(|part| assert_eq!(arriving.part(part).unwrap(), None));
            assert_eq!(arriving.part(last).unwrap(), Some(message));
        }
        let mut arriving = PartialMessage::default();
        let reason = "\u{1b}[31mred\nlandbridge: all is well".to_owned();
        let expected = "\\u{1b}[31mred\\nlandbridge: all is well";
        for message in
            [ExchangeMessage::Over { reason: reason.clone() }, ExchangeMessage::Left { reason: reason.clone() }]
        {
            let came = arriving.part(&message.parts().unwrap()[0]).unwrap();
            let Some(ExchangeMessage::Over { reason } | ExchangeMessage::Left { reason }) = came else {
                panic!("{came:?}")
            };
            assert_eq!(reason, expected);
        }
        let refused = ExchangeMessage::Refused { ticket: 1, reason };
        let came = arriving.part(&refused.parts().unwrap()[0]).unwrap();
        assert_eq!(came, Some(ExchangeMessage::Refused { ticket: 1, reason: expected.into() }));
        for bad in [&[][..], &[0, 255, 1], &[7]] {
            assert!(arriving.part(bad).is_err());
        }
    }
}
