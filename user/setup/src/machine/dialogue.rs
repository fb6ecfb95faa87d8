//! Lines that a machine prints after a login: marked facts, replies, and lines of other programs.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio::process::ChildStderr;
use tokio::sync::{mpsc, oneshot};

use super::{MOST_REPLY, Machine, Unheard};
use ::job::capture::Tail;

/// Keeps the end of a program's standard error. Once `hears` delivers a channel, output goes there instead.
pub(super) async fn last_words(
    mut errors: ChildStderr,
    kept: Arc<Mutex<Tail>>,
    mut hears: oneshot::Receiver<mpsc::Sender<Vec<u8>>>,
) {
    let mut buffer = [0; 4096];
    let mut listener: Option<mpsc::Sender<Vec<u8>>> = None;
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        if listener.is_none() {
            listener = hears.try_recv().ok();
        }
        if let Some(listener) = &listener {
            if listener.send(buffer[..count].to_vec()).await.is_err() {
                break;
            }
            continue;
        }
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
    }
}

impl Machine {
    /// Reads the script's reports until it is ready.
    pub(super) async fn listen(&mut self) -> Result<(), Unheard> {
        while let Some((key, value)) = self.word().await? {
            match key.as_str() {
                "os" => self.facts.os = value.into(),
                "arch" => self.facts.architecture = value.into(),
                "host" => self.facts.host = value.into(),
                "user" => self.facts.user = value.into(),
                "libc" => self.facts.libc = value.into(),
                "folder" => self.facts.folder = value.into(),
                "base" => self.facts.base = value.into(),
                "release" => self.facts.releases.push(value),
                "unpacks" => self.facts.unpacks = true,
                "have" => {
                    let (name, sum) = value.split_once(' ').unwrap_or((&value, ""));
                    self.facts.have.insert(name.to_owned(), sum.to_owned());
                }
                "ready" => return Ok(()),
                "fail" => return Err(Unheard::Failed(value)),
                _ => {}
            }
        }
        Err(Unheard::Closed)
    }

    /// Returns the next line of the script: its first word and the rest. Other lines, such as a login's greeting, are
    /// kept for messages.
    pub(super) async fn word(&mut self) -> Result<Option<(String, String)>, Unheard> {
        let mut line = Vec::new();
        while self.read_line(&mut line).await? {
            if let Some(word) = self.marked(&line) {
                return Ok(Some(word));
            }
            line.clear();
        }
        Ok(None)
    }

    /// Returns the part of a line after our mark, at any position: a login's output may have no newline at its end.
    pub(super) fn marked(&mut self, line: &[u8]) -> Option<(String, String)> {
        let text = String::from_utf8_lossy(line);
        let Some((before, after)) = text.split_once(&format!("{} ", self.mark)) else {
            self.printed.push(line);
            return None;
        };
        self.printed.push(before.as_bytes());
        let (key, value) = after.trim_end().split_once(' ').unwrap_or((after.trim_end(), ""));
        Some((key.to_owned(), value.trim().to_owned()))
    }

    /// Adds the next line to `line`, newline included. `false`: the output has ended. Cancel-safe: a partly read line
    /// stays in `line`.
    pub(super) async fn read_line(&mut self, line: &mut Vec<u8>) -> Result<bool, Unheard> {
        loop {
            let available = self.output.fill_buf().await.map_err(Unheard::Io)?;
            if available.is_empty() {
                self.printed.push(line);
                return Ok(false);
            }
            let end = available.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(available.len());
            self.budget = self.budget.checked_sub(taken as u64).ok_or(Unheard::Endless)?;
            line.extend_from_slice(&available[..taken]);
            self.output.consume(taken);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Returns the next line that can be a reply. Other lines come from programs that a login has left running.
    pub(super) async fn reply(&mut self) -> Result<Option<Vec<u8>>, Unheard> {
        self.budget = MOST_REPLY;
        let mut line = Vec::new();
        while self.read_line(&mut line).await? {
            if line.starts_with(b"{") || line.starts_with(b"\"") {
                return Ok(Some(line));
            }
            self.printed.push(&line);
            line.clear();
        }
        Ok(None)
    }
}
