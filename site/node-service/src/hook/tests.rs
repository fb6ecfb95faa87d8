use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::directive::parse;
use crate::step::Kept;
use crate::teardown::{sweep, teardown};

/// A cluster whose predictions come from a list, and nodes that have files or not.
#[derive(Default)]
struct FakeCluster {
    predictions: RefCell<Vec<Option<Vec<&'static str>>>>,
    /// The job's start time on each node.
    times: RefCell<BTreeMap<&'static str, u64>>,
    clock: Cell<u64>,
    /// Duration of a move, in seconds.
    move_takes: Cell<u64>,
    starts: RefCell<Vec<&'static str>>,
    /// Paths on nodes.
    files: RefCell<BTreeMap<String, BTreeSet<String>>>,
    moves: RefCell<Vec<String>>,
    broken: RefCell<Vec<String>>,
    pinned: RefCell<Option<Vec<String>>>,
    slept: Cell<u32>,
    /// The time at which the broken sources work again.
    repaired_at: Cell<Option<u64>>,
    /// Number of steps that fail next.
    fails: Cell<u32>,
    over: RefCell<BTreeMap<u32, Option<Duration>>>,
    /// Places that were checked; places that are unusable; places with an unknown result.
    checks: RefCell<Vec<String>>,
    unusable: RefCell<Vec<String>>,
    unreachable: RefCell<Vec<String>>,
    notes: RefCell<Vec<String>>,
    /// Nodes on which nothing can be removed.
    lost: RefCell<Vec<&'static str>>,
    /// Nodes on which a removal was tried.
    removed: RefCell<Vec<String>>,
}

fn names(nodes: &[&str]) -> Vec<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

impl Cluster for FakeCluster {
    fn user(&self, _: u32) -> Result<u32, SlurmError> {
        Ok(7)
    }

    fn predicted(&self, _: u32) -> Result<Option<Prediction>, SlurmError> {
        let mut predictions = self.predictions.borrow_mut();
        let next = if predictions.len() > 1 { predictions.remove(0) } else { predictions[0].clone() };
        let start = |nodes: &[&str]| self.times.borrow().get(nodes.first()?).copied();
        Ok(next.map(|nodes| Prediction { nodes: names(&nodes), start: start(&nodes) }))
    }

    fn nodes(&self, _: u32) -> Result<Vec<String>, SlurmError> {
        Ok(names(&self.starts.borrow()))
    }

    fn over(&self, job: u32) -> Result<Option<Duration>, SlurmError> {
        self.over.borrow().get(&job).copied().ok_or(SlurmError::NotShown(job))
    }

    fn note(&self, _: u32, text: &str) -> Result<(), SlurmError> {
        self.notes.borrow_mut().push(text.to_owned());
        Ok(())
    }

    fn pin(&self, _: u32, nodes: &[String]) -> Result<(), SlurmError> {
        *self.pinned.borrow_mut() = Some(nodes.to_vec());
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.clock.get())
    }

    fn sleep(&self, time: Duration) {
        self.slept.set(self.slept.get() + 1);
        self.clock.set(self.clock.get() + time.as_secs());
        if self.repaired_at.get().is_some_and(|at| self.clock.get() >= at) {
            self.broken.borrow_mut().clear();
        }
    }
}

fn failed(line: &str) -> StepError {
    StepError::Failed { lines: vec![line.into()] }
}

impl Steps for FakeCluster {
    fn run(&self, user: u32, step: &Step) -> Result<String, StepError> {
        assert_eq!(user, 7);
        if self.fails.get() > 0 && !matches!(step, Step::Check { .. }) {
            self.fails.set(self.fails.get() - 1);
            return Err(failed("lost for a moment"));
        }
        let mut files = self.files.borrow_mut();
        match step {
            Step::Move { from, to, .. } => {
                self.clock.set(self.clock.get() + self.move_takes.get());
                let (from, to) = (from.typed("here"), to.clone());
                self.moves.borrow_mut().push(format!("{from} {}", to.typed("here")));
                if self.broken.borrow().contains(&from) {
                    return Err(failed(&format!("{from}: lost")));
                }
                if let StepEnd::Nodes { nodes, path } = to {
                    for node in nodes {
                        assert!(files.entry(node).or_default().insert(path.clone()), "moved again");
                    }
                }
                Ok(String::new())
            }
            Step::Look { nodes, path } => {
                let there = |node: &&String| files.get(*node).is_some_and(|paths| paths.contains(path));
                let there: Vec<&String> = nodes.iter().filter(there).collect();
                Ok(serde_json::to_string(&there).unwrap())
            }
            Step::Check { sources, targets } => {
                let typed: Vec<String> = sources.iter().chain(targets).map(|end| end.typed("here")).collect();
                let of = |places: &[String]| -> Vec<UntrustedText> {
                    let of = typed.iter().filter(|place| places.contains(place));
                    of.map(|place| format!("{place}: bad").into()).collect()
                };
                let checked =
                    Checked { unusable: of(&self.unusable.borrow()), unknown: of(&self.unreachable.borrow()) };
                self.checks.borrow_mut().extend(typed);
                Ok(serde_json::to_string(&checked).unwrap())
            }
            Step::Remove { nodes, paths } => {
                let mut kept = Vec::new();
                for node in nodes {
                    self.removed.borrow_mut().push(node.clone());
                    if self.lost.borrow().contains(&node.as_str()) {
                        kept.push(Kept { node: node.clone(), problem: "no route to it".into() });
                        continue;
                    }
                    let there = files.entry(node.clone()).or_default();
                    there.retain(|path| !paths.contains(path));
                }
                Ok(serde_json::to_string(&kept).unwrap())
            }
        }
    }
}

struct FakeJob {
    world: FakeCluster,
    plan: Plan,
    folder: tempfile::TempDir,
}

impl FakeJob {
    fn new(words: &str) -> FakeJob {
        let plan = parse(format!("#BB_LUA landbridge {words}\n").as_bytes()).unwrap();
        FakeJob { world: FakeCluster::default(), plan, folder: tempfile::tempdir().unwrap() }
    }

    fn predicts(self, predictions: &[&[&'static str]]) -> FakeJob {
        *self.world.predictions.borrow_mut() = predictions.iter().map(|nodes| Some(nodes.to_vec())).collect();
        self
    }

    fn hook<T>(&self, act: impl FnOnce(Hook<'_>) -> T) -> T {
        let records = self.records();
        act(Hook { job: 5, plan: &self.plan, cluster: &self.world, steps: &self.world, records: &records })
    }

    fn records(&self) -> Records {
        Records(self.folder.path().to_owned())
    }

    fn teardown(&self) {
        teardown(5, (&self.world, &self.world), &self.records()).unwrap();
    }

    fn starts(&self, nodes: &[&'static str]) -> Result<(), HookError> {
        *self.world.starts.borrow_mut() = nodes.to_vec();
        self.hook(|hook| hook.pre_run())
    }

    /// The moves. A repeated move counts once.
    fn moves(&self) -> Vec<String> {
        let mut moves = self.world.moves.borrow().clone();
        moves.dedup();
        moves
    }

    fn left(&self) -> usize {
        self.world.files.borrow().values().map(BTreeSet::len).sum()
    }
}

#[test]
fn a_prediction_that_holds_needs_one_move() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&[], &[], &["n1", "n2"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    job.starts(&["n1", "n2"]).unwrap();
    assert_eq!(job.moves(), ["lyon:/d here/n1,n2:/tmp/d"]);
    assert_eq!(job.world.slept.get(), 2);
    job.teardown();
    assert_eq!((job.left(), job.records().jobs()), (0, vec![]));
}

#[test]
fn a_wrong_prediction_is_repaired_node_to_node() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"], &["n2", "n1"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    job.starts(&["n3", "n4"]).unwrap();
    assert_eq!(
        job.moves(),
        ["lyon:/d here/n1:/tmp/d", "here/n1:/tmp/d here/n2:/tmp/d", "here/n1:/tmp/d here/n3,n4:/tmp/d"]
    );
    assert_eq!(job.left(), 4);
    job.teardown();
    assert_eq!(job.left(), 0);
}

#[test]
fn without_a_prediction_the_input_comes_at_the_start() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d stage_in=/scratch/t=/tmp/t").predicts(&[&[]]);
    job.hook(|hook| hook.data_in()).unwrap();
    assert!(job.moves().is_empty() && job.world.slept.get() == UNKNOWN);
    job.starts(&["n3", "n1"]).unwrap();
    assert_eq!(job.moves(), ["lyon:/d here/n3,n1:/tmp/d", "here/n3:/scratch/t here/n3,n1:/tmp/t"]);
}

#[test]
fn a_job_that_no_longer_waits_is_left_alone() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&[]]);
    *job.world.predictions.borrow_mut() = vec![Some(vec![]), None];
    job.hook(|hook| hook.data_in()).unwrap();
    assert!(job.moves().is_empty());
}

#[test]
fn predictions_that_never_settle_end_the_staging_not_the_job() {
    let many: Vec<Vec<&'static str>> = (0..40).map(|at| vec![["n1", "n2", "n3"][at % 3]]).collect();
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&many.iter().map(Vec::as_slice).collect::<Vec<_>>());
    job.hook(|hook| hook.data_in()).unwrap();
    assert_eq!(job.moves().iter().filter(|text| text.starts_with("lyon")).count(), 1);
}

#[test]
fn only_if_no_copy_can_be_read_the_source_is_read_again() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1", "n2"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    job.world.broken.borrow_mut().push("here/n1:/tmp/d".into());
    job.starts(&["n3"]).unwrap();
    job.world.broken.borrow_mut().push("here/n2:/tmp/d".into());
    job.world.broken.borrow_mut().push("here/n3:/tmp/d".into());
    job.starts(&["n4"]).unwrap();
    let sources: Vec<String> = job.moves().iter().map(|text| text.split(' ').next().unwrap().to_owned()).collect();
    let [n1, n2, n3] = ["here/n1:/tmp/d", "here/n2:/tmp/d", "here/n3:/tmp/d"];
    assert_eq!(sources, ["lyon:/d", n1, n2, n1, n2, n3, "lyon:/d"]);
}

#[test]
fn what_fails_for_a_moment_is_tried_again() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"]]);
    job.world.fails.set(ATTEMPTS - 1);
    job.hook(|hook| hook.data_in()).unwrap();
    job.starts(&["n1"]).unwrap();
    assert_eq!((job.moves().len(), job.world.slept.get()), (1, ATTEMPTS - 1));
    job.world.fails.set(ATTEMPTS);
    assert!(job.starts(&["n2"]).unwrap_err().to_string().contains("for a moment"));
}

#[test]
fn what_was_there_before_is_neither_replaced_nor_removed() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"]]);
    job.world.files.borrow_mut().entry("n1".into()).or_default().insert("/tmp/d".into());
    let error = job.hook(|hook| hook.data_in()).unwrap_err().to_string();
    let remedy = "give the job's input a path where nothing is, because it is removed with the job";
    assert_eq!(error, format!("n1: /tmp/d is there already: {remedy}"));
    job.teardown();
    assert_eq!((job.left(), job.moves().len()), (1, 0));
}

#[test]
fn an_attempt_that_was_cut_off_is_continued_or_found_complete_and_removed_in_the_end() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1", "n2"]]);
    job.world.broken.borrow_mut().push("lyon:/d".into());
    job.hook(|hook| hook.data_in()).unwrap_err();
    assert_eq!(job.records().read(5).unwrap().inputs[0].begun, ["n1", "n2"]);
    // One node had put it in place when the other was lost.
    job.world.files.borrow_mut().entry("n2".into()).or_default().insert("/tmp/d".into());
    job.starts(&["n1", "n2"]).unwrap();
    assert_eq!(job.moves(), ["lyon:/d here/n1,n2:/tmp/d", "here/n2:/tmp/d here/n1:/tmp/d"]);
    job.teardown();
    assert_eq!(job.left(), 0);
}

#[test]
fn kept_input_stays_where_the_job_ran_only() {
    let job = FakeJob::new("keep stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    job.starts(&["n2"]).unwrap();
    job.teardown();
    let left = job.world.files.borrow();
    assert!(left["n1"].is_empty() && left["n2"].contains("/tmp/d"));
}

#[test]
fn what_slurm_does_not_tear_down_is_swept_once_the_job_is_over() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1", "n2"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    let (world, second) = (&job.world, Duration::from_secs(1));
    let sweep = || sweep((world, world), &job.records());
    assert_eq!(sweep().unwrap_err().to_string(), "job 5: Slurm does not show job 5");
    for since in [None, Some(second)] {
        world.over.borrow_mut().insert(5, since);
        assert_eq!((sweep().unwrap(), job.left()), (vec![], 2), "{since:?}");
    }
    // Slurm may have killed a hook while it wrote.
    std::fs::write(job.folder.path().join("6.new"), "{").unwrap();
    world.over.borrow_mut().extend([(5, Some(60 * second)), (6, Some(Duration::MAX))]);
    assert_eq!((sweep().unwrap(), job.left(), job.records().jobs()), (vec![5, 6], 0, vec![]));
    assert_eq!(sweep().unwrap(), Vec::<u32>::new());
}

#[test]
fn a_teardown_that_cannot_be_done_is_remembered_and_done_later() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1", "n2"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    let (world, records) = (&job.world, job.records());
    world.lost.borrow_mut().push("n1");
    let error = teardown(5, (world, world), &records).unwrap_err().to_string();
    let record = records.shown(5);
    assert_eq!(error, format!("n1: no route to it; tried again in 30 s, while {record} is there"));
    assert_eq!(records.read(5).unwrap().inputs[0].whole, ["n1"], "what is gone is not removed again");
    let tries = |node: &str| world.removed.borrow().iter().filter(|tried| *tried == node).count();
    assert_eq!((job.left(), tries("n1"), tries("n2")), (1, ATTEMPTS as usize, 1));
    world.over.borrow_mut().insert(5, Some(Duration::from_secs(60)));
    let sweep = || sweep((world, world), &records);
    assert_eq!((sweep().unwrap(), tries("n1")), (vec![], ATTEMPTS as usize), "not at once");
    for pause in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
        world.clock.set(world.clock.get() + pause);
        let before = tries("n1");
        assert!(sweep().unwrap_err().to_string().contains("job 5: n1: no route"));
        assert_eq!((tries("n1"), job.left()), (before + 1, 1));
    }
    // The machine was restarted, and so was its clock.
    world.clock.set(3);
    world.lost.borrow_mut().clear();
    assert_eq!((sweep().unwrap(), job.left(), records.jobs()), (vec![5], 0, vec![]));
}

#[test]
fn a_late_teardown_removes_nothing_of_a_later_job() {
    let job = FakeJob::new("stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    let (world, records) = (&job.world, job.records());
    world.lost.borrow_mut().push("n1");
    teardown(5, (world, world), &records).unwrap_err();
    // The node was lost, and comes back with an empty disk.
    world.lost.borrow_mut().clear();
    world.files.borrow_mut().clear();
    world.over.borrow_mut().extend([(5, Some(Duration::MAX)), (6, None)]);
    let later = Hook { job: 6, plan: &job.plan, cluster: world, steps: world, records: &records };
    later.data_in().unwrap();
    world.clock.set(1000);
    assert_eq!((sweep((world, world), &records).unwrap(), job.left()), (vec![5], 1));
    teardown(6, (world, world), &records).unwrap();
    assert_eq!(job.left(), 0);
}

#[test]
fn a_pinned_job_starts_where_its_input_is() {
    let job = FakeJob::new("pin stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"], &["n2"]]);
    job.hook(|hook| hook.data_in()).unwrap();
    assert_eq!(*job.world.pinned.borrow(), Some(names(&["n2"])));
}

#[test]
fn a_job_is_pinned_if_copying_takes_longer_than_waiting() {
    for (takes, n2, pinned) in [(100, 950, true), (100, 800, false), (10, 950, false)] {
        let job = FakeJob::new("pin=cheaper stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"], &["n2"]]);
        job.world.times.borrow_mut().extend([("n1", 1000), ("n2", n2)]);
        job.world.move_takes.set(takes);
        job.hook(|hook| hook.data_in()).unwrap();
        assert_eq!(*job.world.pinned.borrow(), pinned.then(|| names(&["n1"])), "{takes} s, {n2}");
        assert_eq!(job.left(), if pinned { 1 } else { 2 });
    }
    let job = FakeJob::new("pin=cheaper stage_in=lyon:/d=/tmp/d").predicts(&[&["n1"], &["n2"]]);
    job.world.move_takes.set(1000);
    job.hook(|hook| hook.data_in()).unwrap();
    assert_eq!((job.world.pinned.borrow().clone(), job.left()), (None, 2), "nobody knows when it starts");
}

#[test]
fn output_leaves_from_the_first_node() {
    let job = FakeJob::new("stage_out=/tmp/o=lyon:/o stage_out=/tmp/p=/scratch/p");
    job.starts(&["n3", "n1"]).unwrap();
    job.hook(|hook| hook.data_out()).unwrap();
    assert_eq!(job.moves(), ["here/n3:/tmp/o lyon:/o", "here/n3:/tmp/p here/n3:/scratch/p"]);
    job.world.files.borrow_mut().clear();
    job.world.broken.borrow_mut().push("here/n3:/tmp/o".into());
    assert!(job.hook(|hook| hook.data_out()).unwrap_err().to_string().contains("here/n3:/tmp/o: lost"));
    let others = job.moves().iter().filter(|text| *text == "here/n3:/tmp/p here/n3:/scratch/p").count();
    assert_eq!(others, 2, "one that fails does not keep the others");
}

#[test]
fn output_that_cannot_leave_is_tried_again_and_stays_in_the_end() {
    let words = "stage_out=/tmp/o=lyon:none/o stage_out=/tmp/p=lyon:p";
    let job = FakeJob::new(words);
    job.starts(&["n3"]).unwrap();
    job.world.broken.borrow_mut().push("here/n3:/tmp/o".into());
    let error = job.hook(|hook| hook.data_out()).unwrap_err().to_string();
    let stays = "/tmp/o of n3 stays there until its user fetches it by `landbridge stage move`";
    assert_eq!(error, format!("here/n3:/tmp/o: lost; given up after 10 minutes: {stays}"));
    let tries = |path: &str| job.world.moves.borrow().iter().filter(|text| text.contains(path)).count();
    assert!(tries("/tmp/o") > 10 && tries("/tmp/p") == 1, "{:?}", job.world.moves.borrow());
    // The user creates the folder after five minutes.
    let job = FakeJob::new(words);
    job.starts(&["n3"]).unwrap();
    job.world.broken.borrow_mut().push("here/n3:/tmp/o".into());
    job.world.repaired_at.set(Some(300));
    job.hook(|hook| hook.data_out()).unwrap();
}

#[test]
fn output_with_the_nodes_name_in_it_leaves_from_all_nodes_that_have_it() {
    let job = FakeJob::new("stage_out=/tmp/o=lyon:/o.{node}");
    job.starts(&["n3", "n1", "n2"]).unwrap();
    assert!(job.hook(|hook| hook.data_out()).unwrap_err().to_string().contains("n3,n1,n2: none has /tmp/o"));
    for node in ["n1", "n3"] {
        job.world.files.borrow_mut().entry(node.into()).or_default().insert("/tmp/o".into());
    }
    job.hook(|hook| hook.data_out()).unwrap();
    assert_eq!(job.moves(), ["here/n3:/tmp/o lyon:/o.n3", "here/n1:/tmp/o lyon:/o.n1"]);
}

#[test]
fn places_at_sites_are_checked_before_the_job_waits() {
    let words = "stage_in=lyon:/d=/tmp/d stage_in=/scratch/t=/tmp/t stage_out=/tmp/o=lyon:to/o-{node} stage_out=/tmp/p=/scratch/p";
    let job = FakeJob::new(words).predicts(&[&["n1"]]);
    job.world.unusable.borrow_mut().push("lyon:to/o-{node}".into());
    let error = job.hook(|hook| hook.data_in()).unwrap_err().to_string();
    assert_eq!(error, "lyon:to/o-{node}: bad: correct the script, `scancel 5` and submit it again");
    assert_eq!(*job.world.checks.borrow(), ["lyon:/d", "lyon:to/o-{node}"]);
    assert!(job.moves().is_empty(), "nothing is moved for a job that cannot end well");
}

#[test]
fn a_job_without_input_is_checked_too() {
    let job = FakeJob::new("stage_out=/tmp/o=lyon:to/o");
    job.world.unusable.borrow_mut().push("lyon:to/o".into());
    assert!(job.hook(|hook| hook.data_in()).unwrap_err().to_string().contains("lyon:to/o: bad"));
}

#[test]
fn places_that_depend_on_the_nodes_are_checked_when_the_job_has_them() {
    let job = FakeJob::new("stage_out=/tmp/o=/scratch/p stage_out=/tmp/q=/x/{node}/ stage_out=/tmp/r=lyon:{node}/r");
    job.hook(|hook| hook.data_in()).unwrap();
    assert!(job.world.checks.borrow().is_empty());
    job.world.unusable.borrow_mut().push("here/n1:/x/n1/".into());
    assert!(job.starts(&["n3", "n1"]).unwrap_err().to_string().contains("here/n1:/x/n1/: bad"));
    let checked =
        ["here/n3:/scratch/p", "here/n3:/x/n3/", "here/n1:/x/n1/", "lyon:n3/r", "lyon:n1/r"].map(str::to_owned);
    assert_eq!(*job.world.checks.borrow(), checked);
}

#[test]
fn what_cannot_be_known_keeps_no_job_waiting() {
    let job = FakeJob::new("stage_out=/tmp/o=lyon:to/o");
    job.world.unreachable.borrow_mut().push("lyon:to/o".into());
    job.hook(|hook| hook.data_in()).unwrap();
    assert_eq!(*job.world.notes.borrow(), ["not checked before the job: lyon:to/o: bad"]);
}
