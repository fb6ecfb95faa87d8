//! Measures the pressure on applications of this node: the time that their threads wait for a core, from
//! `/proc/PID/task/TID/schedstat`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use types::MOST_HARM;

use crate::control::Aim;

/// Interval between searches for processes.
const LOOK: Duration = Duration::from_secs(1);
/// A thread that uses less than this share of a core does not count as computing.
const COMPUTES: f64 = 0.1;

/// Nanoseconds since the start of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: u64,
    /// Time runnable but waiting for a core.
    waited: u64,
}

fn times(task: &Path) -> Option<Times> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace().map(str::parse);
    Some(Times { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
}

/// Nanoseconds that a thread of this process has run and waited, and whether it wants to run now. The kernel accounts a
/// wait only once the thread runs again.
pub(crate) fn of_thread(thread: u32) -> Option<(u64, u64, bool)> {
    let folder = format!("/proc/self/task/{thread}");
    let stat = std::fs::read_to_string(format!("{folder}/stat")).ok()?;
    let runnable = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'));
    times(Path::new(&folder)).map(|times| (times.ran, times.waited, runnable))
}

/// Users whose applications are watched: the mover's own, or all users where it works behind other users' jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Whose {
    Users,
    /// `most`: the share of their time that they may lose at most, whatever the mover's user asks for.
    Everybodys {
        most: f64,
    },
}

impl Whose {
    /// Reads the setting from the environment.
    pub(crate) fn of(lookup: impl Fn(&str) -> Option<String>) -> Whose {
        match lookup(MOST_HARM) {
            None => Whose::Users,
            // An unreadable limit allows no harm.
            Some(text) => Whose::Everybodys { most: text.parse().map_or(0.0, |percent: f64| percent / 100.0) },
        }
    }

    /// Restricts the user's limits. A deadline overrides the harm, so it is not allowed beside other users'
    /// applications.
    pub(crate) fn allows(self, aim: Aim) -> Aim {
        match self {
            Whose::Users => aim,
            Whose::Everybodys { most } => Aim { deadline: None, harm: aim.harm.min(most), ..aim },
        }
    }
}

/// The applications on this node: all computing processes of the watched users, except ours.
#[derive(Debug)]
pub(crate) struct Applications {
    /// `None`: all users except root, whose processes are the system's.
    user: Option<u32>,
    looked: Option<Duration>,
    looks: u64,
    /// All threads, keyed by process and thread.
    seen: HashMap<(u32, u32), Times>,
    /// Computing threads, with their times at the last sample.
    computing: HashMap<(u32, u32), Times>,
    sampled: Option<Duration>,
}

impl Applications {
    pub(crate) fn new(whose: Whose) -> Applications {
        let user = matches!(whose, Whose::Users).then(|| rustix::process::geteuid().as_raw());
        Applications { user, looked: None, looks: 0, seen: HashMap::new(), computing: HashMap::new(), sampled: None }
    }

    /// The share of the time since the last call that threads of applications waited for a core. `None`: nothing
    /// computes here.
    pub(crate) fn sample(&mut self, now: Duration) -> Option<f64> {
        // A second search soon after the first finds threads that have been computing from the start.
        let soon = self.looks == 1;
        if soon || self.looked.is_none_or(|looked| now >= looked + LOOK) {
            self.look(now, soon);
        }
        let passed = self.sampled.replace(now).map(|before| now.saturating_sub(before).as_nanos() as f64);
        let mut waited = 0;
        self.computing.retain(|(process, thread), before| {
            let Some(found) = times(Path::new(&format!("/proc/{process}/task/{thread}"))) else { return false };
            waited += found.waited.saturating_sub(before.waited);
            *before = found;
            true
        });
        let passed = passed.filter(|passed| *passed > 0.0)?;
        // Threads of a parallel program wait for each other, so a delay of one delays all: sum their waiting times.
        // This overestimates the harm to programs with independent threads.
        (!self.computing.is_empty()).then(|| (waited as f64 / passed).min(1.0))
    }

    /// Finds threads that computed since the last search. `soon`: the first search was at the previous sample.
    fn look(&mut self, now: Duration, soon: bool) {
        self.looks += 1;
        let passed = self.looked.replace(now).map(|before| now.saturating_sub(before).as_nanos() as f64);
        let mut seen = HashMap::new();
        let mut computing = HashMap::new();
        for process in self.processes() {
            let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
            for entry in threads.flatten() {
                let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Some(found) = times(&entry.path()) else { continue };
                let key = (process, thread);
                if let (Some(before), Some(passed)) = (self.seen.get(&key), passed)
                    && (found.ran + found.waited).saturating_sub(before.ran + before.waited) as f64 >= COMPUTES * passed
                {
                    let fresh = if soon { *before } else { found };
                    computing.insert(key, self.computing.get(&key).copied().unwrap_or(fresh));
                }
                seen.insert(key, found);
            }
        }
        self.seen = seen;
        if passed.is_some() {
            self.computing = computing;
        }
    }

    fn processes(&self) -> Vec<u32> {
        use std::os::unix::fs::MetadataExt;
        let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
        let own = |entry: &std::fs::DirEntry| {
            entry.metadata().is_ok_and(|found| match self.user {
                Some(user) => found.uid() == user,
                None => found.uid() != 0,
            })
        };
        let ours =
            |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "landbridge");
        all.flatten()
            .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry)))
            .filter(|(_, entry)| own(entry) && !ours(&entry.path()))
            .map(|(process, _)| process)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn users_cannot_take_others_time() {
        let aim = Aim { rate: Some(5), deadline: Some(Duration::from_secs(1)), harm: 0.5 };
        assert_eq!(Whose::of(|_| None).allows(aim), aim);
        for (text, most) in [("3", 0.03), ("0", 0.0), ("90", 0.5), ("much", 0.0)] {
            let allowed = Whose::of(|name| (name == MOST_HARM).then(|| text.to_owned())).allows(aim);
            assert_eq!(allowed, Aim { deadline: None, harm: most, ..aim }, "{text}");
        }
    }

    /// With twice as many busy processes as cores, each process waits half of its time.
    #[test]
    fn processes_that_share_a_core_are_held_up() {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        let cores = std::thread::available_parallelism().unwrap().get();
        let mut children: Vec<_> = (0..2 * cores).map(|_| spin()).collect();
        let began = Instant::now();
        let mut applications = Applications::new(Whose::Users);
        let mut found = Vec::new();
        while began.elapsed() < Duration::from_secs(3) {
            found.extend(applications.sample(began.elapsed()).filter(|_| began.elapsed() > Duration::from_secs(2)));
            std::thread::sleep(Duration::from_millis(100));
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mean = found.iter().sum::<f64>() / found.len() as f64;
        assert!(found.len() >= 3 && (0.25..=1.0).contains(&mean), "{found:?}");
    }
}
