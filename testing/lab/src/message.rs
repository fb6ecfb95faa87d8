//! Messages between the processes of a lab: a kind, some byte strings and possibly open files, over a Unix stream
//! socket.
//!
//! Owns the encoding and its limits. Knows nothing about the meaning of messages.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message in bytes; an environment and an argument list fit many times over.
const LIMIT: usize = 16 << 20;
const MOST_FILES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LabMessageKind {
    /// To a new process: its plan (JSON).
    Plan = 1,
    /// From a node: its namespaces exist, interfaces may be moved in.
    Namespaces = 2,
    /// To a node: its interfaces are there.
    Go = 3,
    /// From a process: it is ready to serve.
    Ready = 4,
    /// From a process: the outcome (JSON).
    Done = 5,
    /// From a process: a `LabError` (JSON).
    Failed = 6,
    /// To a node: run a command, with its three standard files.
    Run = 7,
    /// From a node: the command ended (wait status).
    Exit = 8,
    /// To a node or a supervisor: deliver this signal.
    Signal = 9,
    /// To a node: does anything listen on this address?
    Listens = 10,
    /// From a node: one byte, 0 or 1.
    Answer = 11,
    /// To a node: end at once, with everything on it.
    Die = 12,
    /// To a node: stop every process.
    Freeze = 13,
    /// To a node: resume the stopped processes.
    Thaw = 14,
    /// To a node: reset a TCP connection (JSON); the answer describes it (`Done`, JSON).
    Reset = 15,
    /// To a supervisor: unplug the cables of a host (its name, 0) or plug them in again (its name, 1).
    Cables = 16,
}

impl LabMessageKind {
    fn from_byte(byte: u8) -> Option<LabMessageKind> {
        use LabMessageKind::*;
        [
            Plan, Namespaces, Go, Ready, Done, Failed, Run, Exit, Signal, Listens, Answer, Die, Freeze, Thaw, Reset,
            Cables,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

#[derive(Debug)]
pub(crate) struct LabMessage {
    pub kind: LabMessageKind,
    pub fields: Vec<Vec<u8>>,
    pub files: Vec<OwnedFd>,
}

impl LabMessage {
    /// The first field as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> io::Result<T> {
        let field = self.fields.first().map_or(&[][..], Vec::as_slice);
        serde_json::from_slice(field).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// The first field as a little-endian number.
    pub(crate) fn number(&self) -> io::Result<i32> {
        let field = self.fields.first().map_or(&[][..], Vec::as_slice);
        let bytes = field.try_into().map_err(|_| invalid("a number of the wrong size"))?;
        Ok(i32::from_le_bytes(bytes))
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> Channel {
        Channel { stream }
    }

    /// The end that the parent process passed as our standard input.
    pub(crate) fn from_stdin() -> io::Result<Channel> {
        Ok(Channel { stream: UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?) })
    }

    /// Our end, and the end that becomes the standard input of a child.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Channel { stream: ours }, theirs.into()))
    }

    pub(crate) fn send(&self, kind: LabMessageKind, fields: &[&[u8]]) -> io::Result<()> {
        self.send_files(kind, fields, &[])
    }

    pub(crate) fn send_json<T: Serialize>(&self, kind: LabMessageKind, value: &T) -> io::Result<()> {
        let text = serde_json::to_vec(value).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.send(kind, &[&text])
    }

    pub(crate) fn send_number(&self, kind: LabMessageKind, number: i32) -> io::Result<()> {
        self.send(kind, &[&number.to_le_bytes()])
    }

    pub(crate) fn send_files(
        &self,
        kind: LabMessageKind,
        fields: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut body = vec![0; 4];
        body.push(kind as u8);
        for field in fields {
            let length = u32::try_from(field.len()).map_err(|_| invalid("a field of more than 4 GiB"))?;
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(field);
        }
        let length = body.len() - 4;
        if length > LIMIT {
            return Err(invalid("arguments and environment exceed 16 MiB"));
        }
        body[..4].copy_from_slice(&(length as u32).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(invalid("more than three files in one message"));
        }
        let sent = loop {
            match rustix::net::sendmsg(&self.stream, &[IoSlice::new(&body)], &mut ancillary, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        (&self.stream).write_all(&body[sent..])
    }

    /// Waits for one message, at most `limit`. Returns `None` if the other end is gone.
    pub(crate) fn receive(&self, limit: Option<Duration>) -> io::Result<Option<LabMessage>> {
        self.stream.set_read_timeout(limit)?;
        let mut header = [0u8; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut parts = [IoSliceMut::new(&mut header)];
            match rustix::net::recvmsg(&self.stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                other => break other?.bytes,
            }
        };
        if got == 0 {
            return Ok(None);
        }
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        (&self.stream).read_exact(&mut header[got..])?;
        let length = u32::from_le_bytes(header) as usize;
        if length == 0 || length > LIMIT {
            return Err(invalid("a message of an impossible length"));
        }
        let mut body = vec![0; length];
        (&self.stream).read_exact(&mut body)?;
        let kind = LabMessageKind::from_byte(body[0]).ok_or_else(|| invalid("a message of an unknown kind"))?;
        Ok(Some(LabMessage { kind, fields: split_fields(&body[1..])?, files }))
    }
}

fn split_fields(mut rest: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(|| invalid("a field without a length"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (field, tail) = tail.split_at_checked(length).ok_or_else(|| invalid("a field longer than its message"))?;
        fields.push(field.to_vec());
        rest = tail;
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_and_files_arrive() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs.into());
        let (read, write) = std::io::pipe().unwrap();
        ours.send_files(LabMessageKind::Run, &[b"x", b"", &[7; 70_000]], &[write.as_fd()]).unwrap();
        drop(write);
        let message = theirs.receive(Some(Duration::from_secs(5))).unwrap().unwrap();
        assert_eq!(message.kind, LabMessageKind::Run);
        assert_eq!(message.fields, vec![b"x".to_vec(), vec![], vec![7; 70_000]]);
        assert_eq!(message.files.len(), 1);
        drop(message);
        let mut rest = Vec::new();
        (&read).read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        drop(ours);
        assert!(theirs.receive(None).unwrap().is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [&[0, 0, 0, 0][..], &[255, 255, 255, 255], &[1, 0, 0, 0, 99], &[3, 0, 0, 0, 7, 1, 1]] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            assert!(Channel::new(ours).receive(Some(Duration::from_secs(5))).is_err(), "{bytes:?}");
        }
        assert!(split_fields(&[2, 0, 0, 0, 1]).is_err());
    }
}
