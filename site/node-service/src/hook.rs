//! What Slurm's hooks do for a job: its input goes to the nodes that Slurm predicts, what is missing where it starts
//! comes from a node that has it, its output leaves after it. At the end its copies go (`teardown`).
//!
//! The other site is asked for an input once. Predictions may change until the job starts, so whatever is missing is
//! copied node to node; only if no copy can be read is the source read again.

use std::time::Duration;

use types::UntrustedText;

use crate::directive::{NODE, Pin, Plan, Transfer};
use crate::record::{Copies, Record, Records};
use crate::step::{Checked, End, Step};
use crate::teardown::forget_others;

/// How often Slurm is asked for its prediction.
pub const LOOK: Duration = Duration::from_secs(1);
/// How long a job may be without a prediction before it is let go. Its input then goes to where it starts.
const UNKNOWN: u32 = 60;
/// How often a prediction may change while a job is staged.
const CHANGES: u32 = 16;

/// How long output that cannot leave is tried again, with pauses that grow to `LONGEST_PAUSE`. Slurm has 128 places
/// for all jobs whose output leaves.
pub const OUTPUT_PATIENCE: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How often a step is tried, with pauses that double: a service that was killed is there again after two seconds, on a
/// busy node after ten, and a transfer continues.
pub(crate) const ATTEMPTS: u32 = 4;
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// Where and when a job will start, as it looks now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Empty: nobody knows.
    pub nodes: Vec<String>,
    /// In seconds since 1970.
    pub start: Option<u64>,
}

impl Prediction {
    /// Seconds that a job wins which starts as in another prediction. `None`: nobody knows.
    fn wins(&self, other: &Prediction) -> Option<u64> {
        Some(self.start?.saturating_sub(other.start?))
    }
}

/// What Slurm knows about jobs.
pub trait Cluster {
    /// The job's user.
    ///
    /// # Errors
    /// Slurm's words.
    fn user(&self, job: u32) -> Result<u32, String>;

    /// Where and when it will start. `None`: it does not wait any more.
    ///
    /// # Errors
    /// Slurm's words.
    fn predicted(&self, job: u32) -> Result<Option<Prediction>, String>;

    /// Where it runs or has run.
    ///
    /// # Errors
    /// Slurm's words.
    fn nodes(&self, job: u32) -> Result<Vec<String>, String>;

    /// For how long it has been over, with its output moved away. `None`: it is not.
    ///
    /// # Errors
    /// Slurm's words.
    fn over(&self, job: u32) -> Result<Option<Duration>, String>;

    /// Shows a text to its user, beside what Slurm shows of the job.
    ///
    /// # Errors
    /// Slurm's words.
    fn note(&self, job: u32, text: &str) -> Result<(), String>;

    /// From now on it starts nowhere else.
    ///
    /// # Errors
    /// Slurm's words.
    fn pin(&self, job: u32, nodes: &[String]) -> Result<(), String>;

    /// The time since some moment.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// Does steps as users.
pub trait Steps {
    /// # Errors
    /// Why it failed, with the place.
    fn run(&self, user: u32, step: &Step) -> Result<String, String>;
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
    /// Moves the job's input to where Slurm will start it, as far as Slurm knows.
    ///
    /// # Errors
    /// For the job's user: Slurm shows it as a comment of the job.
    pub fn data_in(&self) -> Result<(), String> {
        self.check_other_sites()?;
        if self.plan.inputs.is_empty() {
            return Ok(());
        }
        let mut unknown = 0;
        // Where the input was copied to last, and how many seconds that took.
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
                let pinned = self.plan.pin == Pin::Always;
                return if pinned { self.cluster.pin(self.job, &predicted.nodes) } else { Ok(()) };
            }
            if let Some((before, seconds)) = &copied
                && self.plan.pin == Pin::Cheaper
                && before.wins(&predicted).is_some_and(|wins| wins < *seconds)
            {
                return self.cluster.pin(self.job, &before.nodes);
            }
            let began = self.cluster.now();
            self.bring(&predicted.nodes)?;
            copied = Some((predicted, (self.cluster.now() - began).as_secs()));
        }
        // What is still missing at the start is copied then.
        Ok(())
    }

    /// Copies what is missing to where the job starts, before it starts.
    ///
    /// # Errors
    /// For the job's user.
    pub fn pre_run(&self) -> Result<(), String> {
        let nodes = self.cluster.nodes(self.job)?;
        let mut record = self.records.read(self.job)?;
        record.nodes.clone_from(&nodes);
        record.user = self.cluster.user(self.job)?;
        self.records.write(self.job, &record)?;
        self.check_own_nodes(&nodes)?;
        self.bring(&nodes)
    }

    /// Before the job waits for anything: sources and targets at sites. Slurm names no user before it has accepted a
    /// job, so this is the first moment at which anybody can look as the job's user.
    fn check_other_sites(&self) -> Result<(), String> {
        let (sources, targets) = places_at_sites(self.plan);
        let ends = |places: Vec<&str>| places.into_iter().map(|place| End::Place(place.to_owned())).collect();
        self.check(ends(sources), ends(targets))
    }

    /// Before the job's program starts: targets on its own nodes, and those that depend on which nodes it has.
    fn check_own_nodes(&self, nodes: &[String]) -> Result<(), String> {
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
                    true => End::Nodes { nodes: vec![node.clone()], path },
                    false => End::Place(path),
                });
            }
        }
        self.check(Vec::new(), targets)
    }

    /// Fails if a transfer could not begin. Whatever cannot be known keeps no job waiting: its user is told.
    fn check(&self, sources: Vec<End>, targets: Vec<End>) -> Result<(), String> {
        if sources.is_empty() && targets.is_empty() {
            return Ok(());
        }
        let user = self.cluster.user(self.job)?;
        let looked = self.steps.run(user, &Step::Check { sources, targets });
        let checked = looked.and_then(|found| serde_json::from_str(&found).map_err(|e| e.to_string()));
        let Checked { unusable, unknown } =
            checked.unwrap_or_else(|problem| Checked { unusable: Vec::new(), unknown: vec![problem.into()] });
        let joined =
            |texts: &[UntrustedText]| texts.iter().map(UntrustedText::to_string).collect::<Vec<_>>().join("; ");
        if !unusable.is_empty() {
            let remedy = format!("mend this, `scancel {}` and submit it again", self.job);
            return Err(format!("{}: {remedy}", joined(&unusable)));
        }
        if !unknown.is_empty() {
            // The job goes on whether its user reads it or not.
            let _ = self.cluster.note(self.job, &format!("not checked before the job: {}", joined(&unknown)));
        }
        Ok(())
    }

    /// Moves the job's output away: all that can be. What cannot is tried again for [`OUTPUT_PATIENCE`], because its
    /// user may make a folder or room meanwhile; then Slurm ends the job, and the output stays where it is.
    ///
    /// # Errors
    /// For the job's user: what stays on which node.
    pub fn data_out(&self) -> Result<(), String> {
        let record = self.records.read(self.job)?;
        let begun = self.cluster.now();
        let mut left: Vec<&Transfer> = self.plan.outputs.iter().collect();
        // The nodes from which an output has left already are not asked again.
        let mut gone: Vec<(String, String)> = Vec::new();
        let mut pause = AGAIN;
        loop {
            let mut failed = Vec::new();
            left.retain(|output| {
                let problems = self.take_out(output, &record, &mut gone);
                let is_left = !problems.is_empty();
                failed.extend(problems);
                is_left
            });
            if failed.is_empty() {
                return Ok(());
            }
            if self.cluster.now().saturating_sub(begun) >= OUTPUT_PATIENCE {
                let paths: Vec<&str> = left.iter().map(|output| output.from.as_str()).collect();
                let place = format!("{} of {}", paths.join(" and "), record.nodes.join(","));
                return Err(format!(
                    "{}; given up after {} minutes: {place} stays there until its user fetches it by `landbridge stage move`",
                    failed.join("; "),
                    OUTPUT_PATIENCE.as_secs() / 60
                ));
            }
            self.cluster.sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Moves an output from the nodes that have it, except those from which it is gone. Returns what has failed.
    fn take_out(&self, output: &Transfer, record: &Record, gone: &mut Vec<(String, String)>) -> Vec<String> {
        let nodes = match self.nodes_with(output, record) {
            Ok(nodes) => nodes,
            Err(problem) => return vec![problem],
        };
        let mut failed = Vec::new();
        for node in nodes {
            let (from, to) = (output.from.clone(), output.to.replace(NODE, &node));
            let done = (node.clone(), to.clone());
            if gone.contains(&done) {
                continue;
            }
            let to = match to.starts_with('/') {
                true => End::Nodes { nodes: vec![node.clone()], path: to },
                false => End::Place(to),
            };
            match self.step(record.user, End::Nodes { nodes: vec![node], path: from }, to) {
                Ok(()) => gone.push(done),
                Err(problem) => failed.push(problem),
            }
        }
        failed
    }

    /// The nodes from which an output is taken: the first one, or all that have it.
    fn nodes_with(&self, output: &Transfer, record: &Record) -> Result<Vec<String>, String> {
        if !output.to.contains(NODE) {
            return Ok(record.nodes.first().cloned().into_iter().collect());
        }
        let (nodes, path) = (record.nodes.clone(), &output.from);
        let there = self.look(record.user, nodes, path)?;
        match there.is_empty() && !record.nodes.is_empty() {
            true => Err(format!("{}: none has {path}", record.nodes.join(","))),
            false => Ok(there),
        }
    }

    /// Which of these nodes have something at this path.
    fn look(&self, user: u32, nodes: Vec<String>, path: &str) -> Result<Vec<String>, String> {
        let there = self.run(user, &Step::Look { nodes, path: path.to_owned() })?;
        serde_json::from_str(&there).map_err(|e| format!("a look at {path}: {e}"))
    }

    fn has_all(&self, nodes: &[String]) -> Result<bool, String> {
        let record = self.records.read(self.job)?;
        let whole = |copies: &Copies| nodes.iter().all(|node| copies.whole.contains(node));
        Ok(record.inputs.len() == self.plan.inputs.len() && record.inputs.iter().all(whole))
    }

    /// Copies each input to those of these nodes that do not have it.
    fn bring(&self, nodes: &[String]) -> Result<(), String> {
        let mut record = self.records.read(self.job)?;
        record.user = self.cluster.user(self.job)?;
        record.keep = self.plan.keep;
        record.inputs.resize_with(self.plan.inputs.len(), Copies::default);
        for (copies, Transfer { to, .. }) in record.inputs.iter_mut().zip(&self.plan.inputs) {
            copies.path.clone_from(to);
        }
        for (at, Transfer { from, to }) in self.plan.inputs.iter().enumerate() {
            let missing = self.missing(&mut record, at, nodes, to)?;
            if missing.is_empty() {
                continue;
            }
            forget_others(self.job, self.cluster, self.records, to, &missing)?;
            // Before anything is there, so that whatever is there can be removed.
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

    /// Those of these nodes that do not have an input. What is at its path on others must be ours: it will be removed.
    fn missing(&self, record: &mut Record, at: usize, nodes: &[String], to: &str) -> Result<Vec<String>, String> {
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
            return Err(format!(
                "{}: {to} is there already: give the job's input a path where nothing is, because it is removed with the job",
                others.join(",")
            ));
        }
        // A target appears as a whole, so an attempt that was cut off had come to its end there.
        copies.begun.retain(|node| !ours.contains(node));
        copies.whole.extend(ours);
        Ok(missing(copies))
    }

    /// Copies an input to nodes, from a node that has it if there is one.
    fn copy(&self, user: u32, whole: &[String], missing: &[String], from: &str, to: &str) -> Result<(), String> {
        let target = || End::Nodes { nodes: missing.to_vec(), path: to.to_owned() };
        for node in whole {
            let source = End::Nodes { nodes: vec![node.clone()], path: to.to_owned() };
            // Whatever is wrong with this copy, the next one may be right; in the end the source says what is.
            if self.step(user, source, target()).is_ok() {
                return Ok(());
            }
        }
        let source = match from.starts_with('/') {
            true => End::Nodes { nodes: missing[..1].to_vec(), path: from.to_owned() },
            false => End::Place(from.to_owned()),
        };
        self.step(user, source, target())
    }

    fn step(&self, user: u32, from: End, to: End) -> Result<(), String> {
        let (rate, harm) = (self.plan.rate.clone(), self.plan.harm.clone());
        let other_owner = self.plan.other_owner;
        self.run(user, &Step::Move { from, to, rate, harm, other_owner }).map(drop)
    }

    fn run(&self, user: u32, step: &Step) -> Result<String, String> {
        run((self.cluster, self.steps), user, step)
    }
}

/// Sources and targets that are at sites, and known before a job has nodes: not a target whose folder has the name of a
/// node in it.
pub fn places_at_sites(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
    let is_at_site = |place: &&str| !place.starts_with('/');
    let sources = plan.inputs.iter().map(|input| input.from.as_str()).filter(is_at_site);
    let targets = plan.outputs.iter().map(|output| output.to.as_str()).filter(is_at_site);
    (sources.collect(), targets.filter(|to| !folder_has_node(to)).collect())
}

/// Whether the folder of a target, and not only its last name, depends on the node.
fn folder_has_node(to: &str) -> bool {
    let to = to.trim_end_matches('.');
    to.rsplit_once('/').is_some_and(|(folder, _)| folder.contains(NODE))
}

/// Does a step, again if it fails: what can go wrong for a moment and what cannot look alike from here.
pub(crate) fn run((cluster, steps): (&dyn Cluster, &dyn Steps), user: u32, step: &Step) -> Result<String, String> {
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
