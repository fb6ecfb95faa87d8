//! Exchange of the movers' addresses: PMI-1, which the job's agents serve.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use thiserror::Error;

use crate::sys;

/// The agent's answer is missing or violates the protocol.
#[derive(Debug, Error)]
#[error("PMI: {0}")]
pub struct PmiError(String);

#[derive(Debug)]
pub(super) struct Pmi {
    input: BufReader<UnixStream>,
    space: String,
}

impl Pmi {
    /// Takes over the inherited connection to the agent.
    pub(super) fn open(lookup: impl Fn(&str) -> Option<String>) -> Result<Pmi, PmiError> {
        let missing = || PmiError("PMI_FD is not set: this program is started by `landbridge stage`".to_owned());
        let descriptor = lookup("PMI_FD").and_then(|text| text.parse().ok()).ok_or_else(missing)?;
        let stream = sys::inherited(descriptor).map_err(|error| PmiError(format!("PMI_FD={descriptor}: {error}")))?;
        let mut pmi = Pmi { input: BufReader::new(stream.into()), space: String::new() };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let name = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.space = word(&name, "kvsname").ok_or_else(|| PmiError(format!("no name in `{name}`")))?.to_owned();
        Ok(pmi)
    }

    /// Publishes this rank's value and returns the values of all ranks, in order. Collective: all ranks must call it.
    pub(super) fn exchange(&mut self, rank: u32, size: u32, value: &str) -> Result<Vec<String>, PmiError> {
        let space = self.space.clone();
        self.ask(&format!("cmd=put kvsname={space} key=mover-{rank} value={value}"), "put_result")?;
        self.ask("cmd=barrier_in", "barrier_out")?;
        let values = (0..size).map(|other| {
            let line = self.ask(&format!("cmd=get kvsname={space} key=mover-{other}"), "get_result")?;
            Ok(word(&line, "value").unwrap_or_default().to_owned())
        });
        values.collect()
    }

    /// Leaves the job cleanly.
    pub(super) fn finish(mut self) -> Result<(), PmiError> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    fn ask(&mut self, line: &str, answer: &str) -> Result<String, PmiError> {
        let lost = |error: std::io::Error| PmiError(format!("after `{line}`: {error}"));
        self.input.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(lost)?;
        let mut got = String::new();
        self.input.read_line(&mut got).map_err(lost)?;
        let got = got.trim_end().to_owned();
        if word(&got, "cmd") != Some(answer) || word(&got, "rc").is_some_and(|code| code != "0") {
            return Err(PmiError(format!("`{line}` was answered by `{got}`")));
        }
        Ok(got)
    }
}

/// The value of a word `key=value`.
fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').filter_map(|word| word.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
}
