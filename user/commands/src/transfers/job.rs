//! A transfer that is ready to start, and its run by movers: on this machine or in a job.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use serde::Serialize;
use stage::Place;
use stage::mover::{Event, Order, Placed, Settings, Spot, Task};
use stage::relaid::Layouts;
use types::untrusted::one_line;

use super::places::absolute;
use super::socket::TransferSocket;
use crate::error::{CommandError, Context, Result, refuse};

/// Signal for a file beyond the user's size limit.
const SIGXFSZ: i32 = 25;

/// A transfer that is ready to start.
pub struct PreparedTransfer {
    /// The command whose first mover reads the order and writes events.
    pub command: Command,
    pub order: Order,
    /// The places as typed.
    pub places: Vec<String>,
    /// The places in a sentence.
    pub title: String,
}

/// A transfer between places of this machine: needs no job. `into`: each target is a folder.
pub fn here_only(
    pairs: &[(Place, Place)],
    (into, layouts): (bool, Option<Layouts>),
    options: Settings,
    places: Vec<String>,
    title: String,
) -> Result<PreparedTransfer> {
    let spot = |place: &Place| {
        let (node, path, typed) = (String::new(), absolute(place)?, place.to_string());
        Ok::<_, CommandError>(Spot { rank: 0, node, path, typed })
    };
    let task = |(from, to): &(Place, Place)| {
        Ok(Task { from: spot(from)?, to: vec![spot(to)?], into, optional: false, layouts: layouts.clone() })
    };
    let order = Order { tasks: pairs.iter().map(task).collect::<Result<_>>()?, looks: Vec::new(), options };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mover", "--here"]);
    Ok(PreparedTransfer { command, order, places, title })
}

/// Result of moving one source to one target.
#[derive(Debug, Serialize)]
pub struct Moved {
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub placed: Placed,
}

/// Receives the progress of a transfer.
pub trait TransferObserver {
    /// Bytes have arrived.
    fn progress(&mut self, arrived: u64, total: u64);

    /// The movers report nothing more.
    fn ended(&mut self);
}

/// Sends the order to the movers, and waits for their end. `None`: they failed, and have printed the reason.
///
/// # Errors
/// The movers cannot be started, or report a failure.
pub fn carry_out(transfer: PreparedTransfer, observer: &mut dyn TransferObserver) -> Result<Option<Vec<Moved>>> {
    let PreparedTransfer { mut command, order, places, title } = transfer;
    let socket = TransferSocket::open(places, title, order.options.rate)?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the movers")?;
    let input = child.stdin.take().context("standard input of the movers")?;
    let output = child.stdout.take().context("standard output of the movers")?;
    let mut line = serde_json::to_vec(&order)?;
    line.push(b'\n');
    socket.begin(input, &line);
    let mut report = MoversReport::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("output of the movers")?;
        let event =
            serde_json::from_str(&line).with_context(|| format!("output of the movers: `{}`", one_line(&line)))?;
        if let Event::Progress { arrived, total } = event {
            socket.progress(arrived, total);
            observer.progress(arrived, total);
        }
        report.take(event);
    }
    observer.ended();
    report.result(&order, child.wait().context("waiting for the movers")?)
}

/// The events of movers.
#[derive(Default)]
struct MoversReport {
    moved: Vec<Moved>,
    /// The sources that do not exist.
    absent: Vec<String>,
    failed: Option<String>,
}

impl MoversReport {
    fn take(&mut self, event: Event) {
        match event {
            Event::Placed { from, to, report } => self.moved.push(Moved { from, to, placed: report }),
            Event::Failed { text } => self.failed = Some(one_line(&text).into_owned()),
            Event::Absent { from } => self.absent.push(from),
            Event::Progress { .. } | Event::Looked { .. } => {}
            Event::Cancelled => {
                self.failed = Some("cancelled: files that had not arrived completely are removed".to_owned())
            }
        }
    }

    /// `None`: the job has printed the reason of its failure.
    fn result(self, order: &Order, status: ExitStatus) -> Result<Option<Vec<Moved>>> {
        let MoversReport { moved, absent, failed } = self;
        if let Some(text) = failed {
            return Err(CommandError::Request(text));
        }
        if moved.is_empty() && !absent.is_empty() {
            refuse!("none of these exists: {}", one_line(&absent.join(", ")));
        }
        if let Some(signal) = status.signal() {
            let to = order.tasks.iter().flat_map(|task| &task.to).map(|spot| spot.typed.as_str()).collect::<Vec<_>>();
            let why = if signal == SIGXFSZ { ", the limit on the size of files (`ulimit -f`)" } else { "" };
            refuse!(
                "{}: what was moving it was ended by signal {signal}{why}; the same command continues",
                to.join(" ")
            );
        }
        let expected: usize = order.tasks.iter().map(|task| task.to.len()).sum();
        let absent = order.tasks.iter().filter(|task| absent.contains(&task.from.typed));
        let absent: usize = absent.map(|task| task.to.len()).sum();
        Ok(Some(moved).filter(|moved| status.success() && moved.len() + absent == expected))
    }
}
