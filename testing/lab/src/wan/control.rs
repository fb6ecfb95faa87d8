//! Changes a WAN while it runs, by lines of text over a Unix socket.
//!
//! ```text
//! set a b delay=20ms rate=100mbit jitter=1ms loss=1% queue=1000000 down=true     both directions; any subset
//! cable a-gw1 plugged=false                                                       one gateway's cable
//! report                                                                          one line of JSON
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::link::LinkSettings;
use crate::error::LabError;
use crate::state::LabDirectory;
use crate::units::{UnitError, parse_loss, parse_rate, parse_time};

/// The control socket of the lab around the calling process.
#[must_use]
pub fn socket_path() -> PathBuf {
    LabDirectory::around_us().wan_socket()
}

/// Sends a request to the WAN emulator of the lab around the calling process and returns its answer.
///
/// `words` is either `["report"]`, or the names of two sites and the changes between them, in both directions: `down`,
/// `up`, or `delay=…`, `jitter=…`, `rate=…`, `loss=…`, `queue=…`.
///
/// # Errors
/// [`LabError::NoSuchNode`] outside a lab; [`LabError::Options`] with the emulator's error message.
pub fn send(words: &[&str]) -> Result<String, LabError> {
    ask(&socket_path(), words)
}

fn ask(path: &Path, words: &[&str]) -> Result<String, LabError> {
    let mut line = String::new();
    match words {
        ["report"] => line.push_str("report"),
        [from, to, changes @ ..] if !changes.is_empty() => {
            line.push_str(&format!("set {from} {to}"));
            for change in changes {
                line.push(' ');
                line.push_str(match *change {
                    "down" => "down=true",
                    "up" => "down=false",
                    other => other,
                });
            }
        }
        _ => return Err(LabError::Options("lab wan needs `report`, or two sites and a change such as `down`".into())),
    }
    request(path, line)
}

/// Unplugs a gateway's cable to the WAN or plugs it in again.
pub(crate) fn plug(path: &Path, gateway: &str, plugged: bool) -> Result<(), LabError> {
    request(path, format!("cable {gateway} plugged={plugged}")).map(|_| ())
}

fn request(path: &Path, mut line: String) -> Result<String, LabError> {
    line.push('\n');
    let place = path.display().to_string();
    let stream = UnixStream::connect(path)
        .map_err(|e| LabError::NoSuchNode(format!("no WAN emulator at {place} ({e}); run this inside a lab")))?;
    let limit = Duration::from_secs(5);
    let mut answer = String::new();
    stream
        .set_read_timeout(Some(limit))
        .and_then(|()| (&stream).write_all(line.as_bytes()))
        .and_then(|()| BufReader::new(&stream).read_line(&mut answer))
        .map_err(|e| LabError::setup(&place, e))?;
    match answer.trim_end().split_once(' ') {
        Some(("ok", rest)) => Ok(rest.to_owned()),
        _ if answer.trim_end() == "ok" => Ok(String::new()),
        Some(("error", rest)) => Err(LabError::Options(rest.to_owned())),
        _ => Err(LabError::setup(place, "the emulator gave no answer")),
    }
}

/// Reasons for refusing a request. The message is the answer to the client.
#[derive(Debug, PartialEq, Error)]
pub(super) enum RequestError {
    #[error("{0:?} is neither `report` nor `set SITE SITE KEY=VALUE…`")]
    Unknown(String),
    #[error("{0:?} is not KEY=VALUE")]
    NotAChange(String),
    #[error("{0:?} is none of delay, jitter, loss, rate, queue, up, down")]
    Key(String),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("queue {0:?} is not a number of bytes")]
    Queue(String),
    #[error("down {0:?} is neither true nor false")]
    Down(String),
    #[error("there is no site {name:?}; there are {known}")]
    NoSite { name: String, known: String },
    #[error("site {0} has no WAN link to itself")]
    Itself(String),
    #[error("there is no gateway {0:?}")]
    NoGateway(String),
    #[error("the report cannot be written: {0}")]
    Report(String),
}

/// A parsed request.
#[derive(Debug, PartialEq)]
pub(super) enum WanRequest {
    Report,
    Set { from: String, to: String, changes: Vec<Change> },
    Cable { gateway: String, plugged: bool },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Delay(Duration),
    Jitter(Duration),
    Loss(f64),
    Rate(crate::units::Rate),
    Queue(u64),
    Down(bool),
}

impl Change {
    pub(super) fn apply(self, settings: &mut LinkSettings) {
        match self {
            Change::Delay(delay) => settings.delay = delay,
            Change::Jitter(jitter) => settings.jitter = jitter,
            Change::Loss(loss) => settings.loss = loss,
            Change::Rate(rate) => settings.rate = rate,
            Change::Queue(bytes) => settings.queue_bytes = Some(bytes),
            Change::Down(down) => settings.down = down,
        }
    }
}

pub(super) fn parse(line: &str) -> Result<WanRequest, RequestError> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match words.as_slice() {
        ["report"] => Ok(WanRequest::Report),
        ["set", from, to, changes @ ..] if !changes.is_empty() => Ok(WanRequest::Set {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            changes: changes.iter().map(|text| change(text)).collect::<Result<_, _>>()?,
        }),
        ["cable", gateway, plugged @ ("plugged=true" | "plugged=false")] => {
            Ok(WanRequest::Cable { gateway: (*gateway).to_owned(), plugged: *plugged == "plugged=true" })
        }
        _ => Err(RequestError::Unknown(line.to_owned())),
    }
}

fn change(text: &str) -> Result<Change, RequestError> {
    let (key, value) = text.split_once('=').ok_or_else(|| RequestError::NotAChange(text.to_owned()))?;
    Ok(match key {
        "delay" => Change::Delay(parse_time(value)?),
        "jitter" => Change::Jitter(parse_time(value)?),
        "loss" => Change::Loss(parse_loss(value)?),
        "rate" => Change::Rate(parse_rate(value)?),
        "queue" => Change::Queue(value.parse().map_err(|_| RequestError::Queue(value.to_owned()))?),
        "down" => Change::Down(value.parse().map_err(|_| RequestError::Down(value.to_owned()))?),
        _ => return Err(RequestError::Key(key.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    #[test]
    fn requests() {
        assert_eq!(parse("report\n"), Ok(WanRequest::Report));
        assert_eq!(
            parse("set a b delay=20ms rate=100mbit down=true"),
            Ok(WanRequest::Set {
                from: "a".into(),
                to: "b".into(),
                changes: vec![
                    Change::Delay(Duration::from_millis(20)),
                    Change::Rate(Rate(100_000_000)),
                    Change::Down(true)
                ],
            })
        );
        assert_eq!(
            parse("cable a-gw1 plugged=false"),
            Ok(WanRequest::Cable { gateway: "a-gw1".into(), plugged: false })
        );
        for wrong in [
            "",
            "cable a-gw1",
            "cable a-gw1 plugged=no",
            "set a b",
            "set a",
            "set a b delay",
            "set a b delay=5",
            "set a b colour=red",
            "down a b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
