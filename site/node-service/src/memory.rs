//! Memory limits for the movers of each user on this node, so that no user takes memory that another user's movers
//! need.
//!
//! [`Groups`]: each user has a control group (version 2) with `memory.max`, and in it one group for each order.
//! Processes that an order leaves are killed with its group.
//!
//! [`Turns`]: if the service may make no groups, each user has a number of movers at a time, and each process has a
//! limit of its own. Together these stay below the user's limit. Orders beyond it wait for their turn, in order of
//! arrival.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Limit on a process's own memory in a group, in bytes.
pub const MOST_OF_PROCESS: u64 = 1 << 30;
/// Movers of a user at a time without groups.
pub const TURNS: u32 = 4;
/// Time limit for an order to get its turn. Its caller gives up after 30 s.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The group of the service itself.
const SERVICE: &str = "service";
/// Time limit for the processes of a killed group to be gone.
const GONE: Duration = Duration::from_secs(5);

/// The kind of limit in force.
#[derive(Debug)]
pub enum Bound {
    Groups(Groups),
    Turns(Turns),
}

/// An order's part of its user's memory. Dropping it gives it back.
#[derive(Debug)]
pub enum MemoryShare {
    Group(OrderGroup),
    Turn(UserTurn),
}

impl MemoryShare {
    /// The control group in which the order's processes run.
    pub fn group(&self) -> Option<&Path> {
        match self {
            MemoryShare::Group(group) => Some(&group.path),
            MemoryShare::Turn(_) => None,
        }
    }
}

impl Bound {
    /// `own`: the control group of this process, which may make others below it. `most`: bytes for each user.
    ///
    /// Returns the bound, and a text that names it and gives the reason for the choice.
    pub fn new(own: std::io::Result<PathBuf>, most: u64) -> (Bound, String) {
        let size = format!("{} MiB for the movers of each user", most >> 20);
        match own.and_then(|own| Groups::new(&own, most)) {
            Ok(groups) => (Bound::Groups(groups), format!("memory: {size}, by control groups")),
            Err(error) => {
                let turns = format!(
                    "{TURNS} movers at a time, each of whose processes may have {} MiB",
                    (most / u64::from(TURNS)) >> 20
                );
                let why =
                    format!("no control groups ({error}): the unit needs Delegate=yes, and the node version 2 of them");
                (Bound::Turns(Turns::default()), format!("memory: {size}, by turns: {turns}; {why}"))
            }
        }
    }

    /// Takes a part for an order of this user. Waits at most [`PATIENCE`].
    ///
    /// # Errors
    /// [`std::io::Error`]; of kind `TimedOut` after that time.
    pub fn enter(&self, user: u32) -> std::io::Result<MemoryShare> {
        match self {
            Bound::Groups(groups) => groups.enter(user).map(MemoryShare::Group),
            Bound::Turns(turns) => turns.enter(user, PATIENCE).map(MemoryShare::Turn).ok_or_else(|| {
                let problem = format!(
                    "this node already runs {TURNS} movers of user id {user}, the most it permits: wait for one to end"
                );
                std::io::Error::new(std::io::ErrorKind::TimedOut, problem)
            }),
        }
    }

    /// Limit on the own memory of each process of a user, in bytes.
    pub fn of_process(&self, most: u64) -> u64 {
        match self {
            Bound::Groups(_) => MOST_OF_PROCESS,
            Bound::Turns(_) => MOST_OF_PROCESS.min(most / u64::from(TURNS)),
        }
    }
}

/// Control groups below the group of this service.
#[derive(Clone, Debug)]
pub struct Groups {
    own: PathBuf,
    most: u64,
    /// The number of the last order. The lock is held while groups are made and removed, so that no group is removed
    /// between its creation and its use.
    last: Arc<Mutex<u64>>,
}

impl Groups {
    /// # Errors
    ///   This process may make no groups with a memory limit.
    fn new(own: &Path, most: u64) -> std::io::Result<Groups> {
        let controllers = std::fs::read_to_string(own.join("cgroup.controllers"))?;
        if !controllers.split_whitespace().any(|name| name == "memory") {
            return Err(std::io::Error::other(format!("{} has no controller of memory", own.display())));
        }
        let groups = Groups { own: own.to_owned(), most, last: Arc::default() };
        groups.begin().inspect_err(|_| groups.undo())?;
        Ok(groups)
    }

    fn begin(&self) -> std::io::Result<()> {
        let service = self.own.join(SERVICE);
        make(&service)?;
        // Control groups that distribute memory to others have no processes of their own.
        std::fs::write(service.join("cgroup.procs"), std::process::id().to_string())?;
        std::fs::write(self.own.join("cgroup.subtree_control"), "+memory")?;
        // No user has this id: this tests whether groups can be made.
        self.enter(u32::MAX).map(drop)
    }

    /// Restores the earlier state: this process is in its own group again.
    fn undo(&self) {
        let _ = std::fs::write(self.own.join("cgroup.subtree_control"), "-memory");
        let _ = std::fs::write(self.own.join("cgroup.procs"), std::process::id().to_string());
        let _ = std::fs::remove_dir(self.own.join(SERVICE));
    }

    fn enter(&self, user: u32) -> std::io::Result<OrderGroup> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = self.own.join(format!("user-{user}"));
        make(&of_user)?;
        std::fs::write(of_user.join("memory.max"), self.most.to_string())?;
        *last += 1;
        let path = of_user.join(format!("order-{last}"));
        make(&path)?;
        Ok(OrderGroup { path, of_user, last: self.last.clone() })
    }
}

/// The group of an order.
#[derive(Debug)]
pub struct OrderGroup {
    path: PathBuf,
    of_user: PathBuf,
    last: Arc<Mutex<u64>>,
}

impl Drop for OrderGroup {
    fn drop(&mut self) {
        // Linux before 5.14 has no such file; there the order's supervisor has ended the remaining processes.
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
        let begun = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && self.path.is_dir() && begun.elapsed() < GONE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails if another order of this user has a group in it.
        let _ = std::fs::remove_dir(&self.of_user);
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The control group (version 2) of this process. The root group belongs to the machine and cannot be divided.
///
/// # Errors
/// [`std::io::Error`]; also if the process is in no such group.
pub fn own_group() -> std::io::Result<PathBuf> {
    let (groups, mounts) =
        (std::fs::read_to_string("/proc/self/cgroup")?, std::fs::read_to_string("/proc/self/mounts")?);
    find(&groups, &mounts).ok_or_else(|| std::io::Error::other("this process is in none of version 2"))
}

fn find(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).filter(|own| !own.is_empty())?;
    Some(mounted(mounts)?.join(own))
}

/// The mount point of control groups of version 2.
fn mounted(mounts: &str) -> Option<PathBuf> {
    let is_second = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    mounts.lines().find(is_second)?.split(' ').nth(1).map(PathBuf::from)
}

/// Turns of users, in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<TurnQueues>);

#[derive(Debug, Default)]
struct TurnQueues {
    users: Mutex<HashMap<u32, UserQueue>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct UserQueue {
    running: u32,
    waiting: VecDeque<u64>,
    last: u64,
}

/// A user's turn. Dropping it ends the turn.
#[derive(Debug)]
pub struct UserTurn {
    turns: Turns,
    user: u32,
}

impl Turns {
    /// Waits for a turn of this user. `None`: the turn did not come in time.
    fn enter(&self, user: u32, patience: Duration) -> Option<UserTurn> {
        let deadline = Instant::now() + patience;
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = users.entry(user).or_default();
        queue.last += 1;
        let own = queue.last;
        queue.waiting.push_back(own);
        loop {
            let queue = users.entry(user).or_default();
            if queue.running < TURNS && queue.waiting.front() == Some(&own) {
                queue.waiting.pop_front();
                queue.running += 1;
                // The next order in the queue may have a turn too.
                self.0.changed.notify_all();
                return Some(UserTurn { turns: self.clone(), user });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                queue.waiting.retain(|number| *number != own);
                self.0.changed.notify_all();
                return None;
            }
            users = self.0.changed.wait_timeout(users, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for UserTurn {
    fn drop(&mut self) {
        let mut users = self.turns.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = users.get_mut(&self.user) {
            queue.running = queue.running.saturating_sub(1);
            if queue.running == 0 && queue.waiting.is_empty() {
                users.remove(&self.user);
            }
        }
        self.turns.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_group_with_the_limit_and_each_order_one_in_it() {
        // A plain folder stands for the cgroup file system, which creates its control files with each group.
        let folder = tempfile::tempdir().unwrap();
        assert!(Groups::new(folder.path(), 5 << 20).is_err());
        std::fs::write(folder.path().join("cgroup.controllers"), "cpu io\n").unwrap();
        assert!(Groups::new(folder.path(), 5 << 20).unwrap_err().to_string().contains("no controller of memory"));
        assert!(!folder.path().join(SERVICE).exists(), "nothing was changed");
        std::fs::write(folder.path().join("cgroup.controllers"), "cpu memory io\n").unwrap();
        let groups = Groups::new(folder.path(), 5 << 20).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("service/cgroup.procs"), std::process::id().to_string());
        assert_eq!(read("cgroup.subtree_control"), "+memory");
        let (first, second) = (groups.enter(7).unwrap(), groups.enter(7).unwrap());
        let other = groups.enter(8).unwrap();
        assert_eq!((read("user-7/memory.max"), read("user-8/memory.max")), ("5242880".into(), "5242880".into()));
        assert_eq!((first.path.parent(), other.path.parent().is_some()), (second.path.parent(), true));
        assert!(first.path != second.path && first.path.parent() != other.path.parent());
    }

    #[test]
    fn what_an_order_leaves_is_killed_with_its_group() {
        // A real group, if this process may make one: as root on a machine that has version 2 mounted.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let Some(root) = mounted(&mounts) else { return };
        let own = root.join(format!("landbridge-test-{}", std::process::id()));
        if std::fs::create_dir(&own).is_err() {
            return;
        }
        let path = own.join("order-1");
        std::fs::create_dir(&path).unwrap();
        let has_kill = path.join("cgroup.kill").exists();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(path.join("cgroup.procs"), child.id().to_string()).unwrap();
        if !has_kill {
            child.kill().unwrap();
        }
        let group = OrderGroup { path: path.clone(), of_user: own.clone(), last: Arc::default() };
        let waiter = std::thread::spawn(move || child.wait().unwrap());
        drop(group);
        assert!(!waiter.join().unwrap().success());
        assert!(!path.exists() && !own.exists(), "nothing is left of the groups");
    }

    #[test]
    fn the_group_of_this_process_is_found() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let groups = "1:name=systemd:/x\n0::/system.slice/landbridge-node.service\n";
        assert_eq!(find(groups, mounts), Some("/sys/fs/cgroup/system.slice/landbridge-node.service".into()));
        assert_eq!((find("9:memory:/x\n", mounts), find(groups, "proc /proc proc rw 0 0\n")), (None, None));
        assert_eq!(find("0::/\n", mounts), None, "the machine's");
    }

    #[test]
    fn without_groups_orders_wait_for_their_turn_in_order_of_arrival() {
        let turns = Turns::default();
        let mut running: Vec<UserTurn> = (0..TURNS).map(|_| turns.enter(7, Duration::ZERO).unwrap()).collect();
        assert!(turns.enter(7, Duration::ZERO).is_none(), "the limit");
        assert!(turns.enter(8, Duration::ZERO).is_some(), "another user does not wait");
        let (came, order) = std::sync::mpsc::channel();
        let mut waiters = Vec::new();
        for number in 0..3 {
            let (own, came) = (turns.clone(), came.clone());
            waiters.push(std::thread::spawn(move || {
                let turn = own.enter(7, Duration::from_secs(60)).unwrap();
                came.send(number).unwrap();
                drop(turn);
            }));
            let arrived = || turns.0.users.lock().unwrap()[&7].waiting.len() == number as usize + 1;
            while !arrived() {
                std::thread::yield_now();
            }
        }
        assert!(order.try_recv().is_err());
        running.pop();
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        drop(running);
        assert!(turns.0.users.lock().unwrap().is_empty());
    }

    #[test]
    fn turns_and_the_limit_of_a_process_keep_a_user_below_the_limit() {
        let most = 2 << 30;
        let (bound, words) = Bound::new(Err(std::io::Error::other("none here")), most);
        assert!(bound.of_process(most) * u64::from(TURNS) <= most);
        assert!(words.contains("by turns") && words.contains("none here") && words.contains("512 MiB"), "{words}");
    }
}
