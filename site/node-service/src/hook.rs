//! The work of Slurm's hooks for a job. Its input goes to the nodes that Slurm predicts. Input that is missing on the
//! nodes where the job starts comes from a node that has it. Its output is moved away after the job. At the end its
//! copies are removed (`teardown`).
//!
//! The other site is asked for an input once. Predictions may change until the job starts, so missing input is copied
//! node to node; the source is read again only if no copy can be read.

use std::time::Duration;

use thiserror::Error;
use types::UntrustedText;

use crate::directive::{DirectiveTransfer, NODE, Pin, Plan};
use crate::record::{Copies, Record, RecordError, Records};
use crate::slurm::SlurmError;
use crate::step::{Checked, Step, StepEnd, StepError, joined};
use crate::teardown::forget_others;

/// Interval at which Slurm is asked for its prediction.
pub const LOOK: Duration = Duration::from_secs(1);
/// Number of looks without a prediction before the job is let go. Its input then goes to the nodes where it starts.
const UNKNOWN: u32 = 60;
/// Number of times that a prediction may change while a job is staged.
const CHANGES: u32 = 16;

/// Time for which a failed move of output is retried, with pauses that grow to `LONGEST_PAUSE`. Slurm can move the
/// output of at most 128 jobs at a time.
pub const OUTPUT_PATIENCE: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Number of attempts for a step, with pauses that double. A killed service is back after two seconds, on a busy node
/// after ten, and a transfer continues.
pub(crate) const ATTEMPTS: u32 = 4;
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// The nodes and the time at which a job will start, as currently predicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Empty: unknown.
    pub nodes: Vec<String>,
    /// In seconds since 1970.
    pub start: Option<u64>,
}

impl Prediction {
    /// Seconds by which a job that starts as in `other` would start earlier. `None`: unknown.
    fn wins(&self, other: &Prediction) -> Option<u64> {
        Some(self.start?.saturating_sub(other.start?))
    }
}

/// Slurm's information about jobs.
pub trait Cluster {
    /// The job's user.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn user(&self, job: u32) -> Result<u32, SlurmError>;

    /// The predicted nodes and start of the job. `None`: it no longer waits.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn predicted(&self, job: u32) -> Result<Option<Prediction>, SlurmError>;

    /// The nodes on which the job runs or has run.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn nodes(&self, job: u32) -> Result<Vec<String>, SlurmError>;

    /// Time since the job ended and its output was moved away. `None`: it is not over.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn over(&self, job: u32) -> Result<Option<Duration>, SlurmError>;

    /// Shows a text to the job's user, beside Slurm's own information about the job.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn note(&self, job: u32, text: &str) -> Result<(), SlurmError>;

    /// Pins the job to these nodes: from now on it starts nowhere else.
    ///
    /// # Errors
    /// [`SlurmError`].
    fn pin(&self, job: u32, nodes: &[String]) -> Result<(), SlurmError>;

    /// The time since a fixed moment.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// Runs steps as users.
pub trait Steps {
    /// # Errors
    /// [`StepError`].
    fn run(&self, user: u32, step: &Step) -> Result<String, StepError>;
}

/// Reasons for a hook's failure. Slurm shows the message to the job's user.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HookError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Step(#[from] StepError),
    /// A file that this job did not copy is at an input's path.
    #[error(
        "{}: {path} is there already: give the job's input a path where nothing is, because it is removed with the job",
        .nodes.join(",")
    )]
    Occupied { nodes: Vec<String>, path: String },
    /// Transfers could not begin; each reason names its place.
    #[error("{}: correct the script, `scancel {job}` and submit it again", joined(.reasons))]
    Unusable { job: u32, reasons: Vec<UntrustedText> },
    #[error("{}: none has {path}", .nodes.join(","))]
    NoOutput { nodes: Vec<String>, path: String },
    /// Output that stays on the job's nodes after [`OUTPUT_PATIENCE`].
    #[error(
        "{}; given up after {} minutes: {} of {} stays there until its user fetches it by `landbridge stage move`",
        joined(.causes), OUTPUT_PATIENCE.as_secs() / 60, .paths.join(" and "), .nodes.join(",")
    )]
    OutputLeft { causes: Vec<HookError>, paths: Vec<String>, nodes: Vec<String> },
}

/// A job, for its hooks.
pub struct Hook<'a> {
    pub job: u32,
    pub plan: &'a Plan,
    pub cluster: &'a dyn Cluster,
    pub steps: &'a dyn Steps,
    pub records: &'a Records,
}

impl Hook<'_> {
    /// Moves the job's input to the nodes where Slurm will start it, as far as Slurm knows.
    ///
    /// # Errors
    /// [`HookError`]. Slurm shows it as a comment of the job.
    pub fn data_in(&self) -> Result<(), HookError> {
        self.check_other_sites()?;
        if self.plan.inputs.is_empty() {
            return Ok(());
        }
        let mut unknown = 0;
        // The nodes to which the input was copied last, and the seconds that this took.
        let mut copied: Option<(Prediction, u64)> = None;
        for _ in 0..CHANGES {
            let predicted = loop {
                match self.cluster.predicted(self.job)? {
                    None => return Ok(()),
                    Some(predicted) if !predicted.nodes.is_empty() => break predicted,
                    Some(_) if unknown >= UNKNOWN => return Ok(()),
                    Some(_) => unknown += 1,
                }
                self.cluster.sleep(LOOK);
            };
            if self.has_all(&predicted.nodes)? {
                if self.plan.pin == Pin::Always {
                    self.cluster.pin(self.job, &predicted.nodes)?;
                }
                return Ok(());
            }
            if let Some((before, seconds)) = &copied
                && self.plan.pin == Pin::Cheaper
                && before.wins(&predicted).is_some_and(|wins| wins < *seconds)
            {
                return Ok(self.cluster.pin(self.job, &before.nodes)?);
            }
            let began = self.cluster.now();
            self.bring(&predicted.nodes)?;
            copied = Some((predicted, (self.cluster.now() - began).as_secs()));
        }
        // Input that is still missing at the start is copied then.
        Ok(())
    }

    /// Copies missing input to the job's nodes, before the job starts.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn pre_run(&self) -> Result<(), HookError> {
        let nodes = self.cluster.nodes(self.job)?;
        let mut record = self.records.read(self.job)?;
        record.nodes.clone_from(&nodes);
        record.user = self.cluster.user(self.job)?;
        self.records.write(self.job, &record)?;
        self.check_own_nodes(&nodes)?;
        self.bring(&nodes)
    }

    /// Checks sources and targets at sites before the job waits for anything. Slurm names no user before it has
    /// accepted a job, so this is the earliest point at which a check can run as the job's user.
    fn check_other_sites(&self) -> Result<(), HookError> {
        let (sources, targets) = places_at_sites(self.plan);
        let ends = |places: Vec<&str>| places.into_iter().map(|place| StepEnd::Place(place.to_owned())).collect();
        self.check(ends(sources), ends(targets))
    }

    /// Checks targets on the job's own nodes, and targets that depend on its nodes, before its program starts.
    fn check_own_nodes(&self, nodes: &[String]) -> Result<(), HookError> {
        let mut targets = Vec::new();
        for output in &self.plan.outputs {
            let is_own = output.to.starts_with('/');
            if !is_own && !folder_has_node(&output.to) {
                continue;
            }
            let of_all = if output.to.contains(NODE) { nodes } else { &nodes[..nodes.len().min(1)] };
            for node in of_all {
                let path = output.to.replace(NODE, node);
                targets.push(match is_own {
                    true => StepEnd::Nodes { nodes: vec![node.clone()], path },
                    false => StepEnd::Place(path),
                });
            }
        }
        self.check(Vec::new(), targets)
    }

    /// Fails if a transfer could not begin. If a check gives no answer, the job does not wait: its user gets a note.
    fn check(&self, sources: Vec<StepEnd>, targets: Vec<StepEnd>) -> Result<(), HookError> {
        if sources.is_empty() && targets.is_empty() {
            return Ok(());
        }
        let user = self.cluster.user(self.job)?;
        let unchecked = |reason: String| Checked { unusable: Vec::new(), unknown: vec![reason.into()] };
        let Checked { unusable, unknown } = match self.steps.run(user, &Step::Check { sources, targets }) {
            Ok(found) => serde_json::from_str(&found).unwrap_or_else(|e| unchecked(e.to_string())),
            Err(error) => unchecked(error.to_string()),
        };
        if !unusable.is_empty() {
            return Err(HookError::Unusable { job: self.job, reasons: unusable });
        }
        if !unknown.is_empty() {
            // The job goes on whether or not the note reaches its user.
            let _ = self.cluster.note(self.job, &format!("not checked before the job: {}", joined(&unknown)));
        }
        Ok(())
    }

    /// Moves away as much of the job's output as possible. Retries failed moves for [`OUTPUT_PATIENCE`], because the
    /// user may create a folder or free space meanwhile. After that Slurm ends the job, and the output stays where it
    /// is.
    ///
    /// # Errors
    /// [`HookError::OutputLeft`] with the paths that stay and their nodes, or [`HookError::Record`].
    pub fn data_out(&self) -> Result<(), HookError> {
        let record = self.records.read(self.job)?;
        let begun = self.cluster.now();
        let mut left: Vec<&DirectiveTransfer> = self.plan.outputs.iter().collect();
        // Nodes from which an output has already been moved, with its target; they are not asked again.
        let mut gone: Vec<(String, String)> = Vec::new();
        let mut pause = AGAIN;
        loop {
            let mut failed = Vec::new();
            left.retain(|output| {
                let causes = self.take_out(output, &record, &mut gone);
                let is_left = !causes.is_empty();
                failed.extend(causes);
                is_left
            });
            if failed.is_empty() {
                return Ok(());
            }
            if self.cluster.now().saturating_sub(begun) >= OUTPUT_PATIENCE {
                let paths = left.iter().map(|output| output.from.clone()).collect();
                return Err(HookError::OutputLeft { causes: failed, paths, nodes: record.nodes });
            }
            self.cluster.sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Moves an output from the nodes that have it, except those in `gone`. Returns the failures.
    fn take_out(
        &self,
        output: &DirectiveTransfer,
        record: &Record,
        gone: &mut Vec<(String, String)>,
    ) -> Vec<HookError> {
        let nodes = match self.nodes_with(output, record) {
            Ok(nodes) => nodes,
            Err(error) => return vec![error],
        };
        let mut failed = Vec::new();
        for node in nodes {
            let (from, to) = (output.from.clone(), output.to.replace(NODE, &node));
            let done = (node.clone(), to.clone());
            if gone.contains(&done) {
                continue;
            }
            let to = match to.starts_with('/') {
                true => StepEnd::Nodes { nodes: vec![node.clone()], path: to },
                false => StepEnd::Place(to),
            };
            match self.step(record.user, StepEnd::Nodes { nodes: vec![node], path: from }, to) {
                Ok(()) => gone.push(done),
                Err(error) => failed.push(error.into()),
            }
        }
        failed
    }

    /// The nodes from which an output is moved: the job's first one, or all that have it.
    fn nodes_with(&self, output: &DirectiveTransfer, record: &Record) -> Result<Vec<String>, HookError> {
        if !output.to.contains(NODE) {
            return Ok(record.nodes.first().cloned().into_iter().collect());
        }
        let (nodes, path) = (record.nodes.clone(), &output.from);
        let there = self.look(record.user, nodes, path)?;
        match there.is_empty() && !record.nodes.is_empty() {
            true => Err(HookError::NoOutput { nodes: record.nodes.clone(), path: path.clone() }),
            false => Ok(there),
        }
    }

    /// Returns the nodes on which something exists at this path.
    fn look(&self, user: u32, nodes: Vec<String>, path: &str) -> Result<Vec<String>, StepError> {
        let there = self.run(user, &Step::Look { nodes, path: path.to_owned() })?;
        let unreadable = |source| StepError::Output { step: "a look at", path: path.to_owned(), source };
        serde_json::from_str(&there).map_err(unreadable)
    }

    fn has_all(&self, nodes: &[String]) -> Result<bool, RecordError> {
        let record = self.records.read(self.job)?;
        let whole = |copies: &Copies| nodes.iter().all(|node| copies.whole.contains(node));
        Ok(record.inputs.len() == self.plan.inputs.len() && record.inputs.iter().all(whole))
    }

    /// Copies each input to the nodes in `nodes` that do not have it.
    fn bring(&self, nodes: &[String]) -> Result<(), HookError> {
        let mut record = self.records.read(self.job)?;
        record.user = self.cluster.user(self.job)?;
        record.keep = self.plan.keep;
        record.inputs.resize_with(self.plan.inputs.len(), Copies::default);
        for (copies, DirectiveTransfer { to, .. }) in record.inputs.iter_mut().zip(&self.plan.inputs) {
            copies.path.clone_from(to);
        }
        for (at, DirectiveTransfer { from, to }) in self.plan.inputs.iter().enumerate() {
            let missing = self.missing(&mut record, at, nodes, to)?;
            if missing.is_empty() {
                continue;
            }
            forget_others(self.job, self.cluster, self.records, to, &missing)?;
            // Recorded before the copy begins, so that its remains can be removed.
            let copies = &mut record.inputs[at];
            copies
                .begun
                .extend(missing.iter().filter(|node| !copies.begun.contains(node)).cloned().collect::<Vec<_>>());
            self.records.write(self.job, &record)?;
            self.copy(record.user, &record.inputs[at].whole, &missing, from, to)?;
            let copies = &mut record.inputs[at];
            copies.begun.retain(|node| !missing.contains(node));
            copies.whole.extend(missing);
            self.records.write(self.job, &record)?;
        }
        Ok(())
    }

    /// Returns the nodes in `nodes` that do not have an input. A file at its path must be a copy that this job began,
    /// because it will be removed.
    fn missing(&self, record: &mut Record, at: usize, nodes: &[String], to: &str) -> Result<Vec<String>, HookError> {
        let missing = |copies: &Copies| -> Vec<String> {
            nodes.iter().filter(|node| !copies.whole.contains(node)).cloned().collect()
        };
        let first = missing(&record.inputs[at]);
        if first.is_empty() {
            return Ok(first);
        }
        let there = self.look(record.user, first, to)?;
        let copies = &mut record.inputs[at];
        let (ours, others): (Vec<String>, Vec<String>) =
            there.into_iter().partition(|node| copies.begun.contains(node));
        if !others.is_empty() {
            return Err(HookError::Occupied { nodes: others, path: to.to_owned() });
        }
        // A target appears only when complete, so an interrupted attempt had finished on these nodes.
        copies.begun.retain(|node| !ours.contains(node));
        copies.whole.extend(ours);
        Ok(missing(copies))
    }

    /// Copies an input to nodes, from a node that has it if there is one.
    fn copy(&self, user: u32, whole: &[String], missing: &[String], from: &str, to: &str) -> Result<(), StepError> {
        let target = || StepEnd::Nodes { nodes: missing.to_vec(), path: to.to_owned() };
        for node in whole {
            let source = StepEnd::Nodes { nodes: vec![node.clone()], path: to.to_owned() };
            // If this copy cannot be read, the next one may work; an error of the source itself is returned at the end.
            if self.step(user, source, target()).is_ok() {
                return Ok(());
            }
        }
        let source = match from.starts_with('/') {
            true => StepEnd::Nodes { nodes: missing[..1].to_vec(), path: from.to_owned() },
            false => StepEnd::Place(from.to_owned()),
        };
        self.step(user, source, target())
    }

    fn step(&self, user: u32, from: StepEnd, to: StepEnd) -> Result<(), StepError> {
        let (rate, harm) = (self.plan.rate.clone(), self.plan.harm.clone());
        let other_owner = self.plan.other_owner;
        self.run(user, &Step::Move { from, to, rate, harm, other_owner }).map(drop)
    }

    fn run(&self, user: u32, step: &Step) -> Result<String, StepError> {
        run((self.cluster, self.steps), user, step)
    }
}

/// Sources and targets at sites that are known before a job has nodes: targets whose folder contains a node's name are
/// left out.
pub fn places_at_sites(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
    let is_at_site = |place: &&str| !place.starts_with('/');
    let sources = plan.inputs.iter().map(|input| input.from.as_str()).filter(is_at_site);
    let targets = plan.outputs.iter().map(|output| output.to.as_str()).filter(is_at_site);
    (sources.collect(), targets.filter(|to| !folder_has_node(to)).collect())
}

/// True if the folder of a target, and not only its last name, depends on the node.
fn folder_has_node(to: &str) -> bool {
    let to = to.trim_end_matches('.');
    to.rsplit_once('/').is_some_and(|(folder, _)| folder.contains(NODE))
}

/// Runs a step, and repeats it if it fails: temporary and permanent failures look alike here.
pub(crate) fn run((cluster, steps): (&dyn Cluster, &dyn Steps), user: u32, step: &Step) -> Result<String, StepError> {
    let mut result = steps.run(user, step);
    for attempt in 0..ATTEMPTS - 1 {
        if result.is_ok() {
            break;
        }
        cluster.sleep(AGAIN * 2u32.pow(attempt));
        result = steps.run(user, step);
    }
    result
}

#[cfg(test)]
mod tests;
