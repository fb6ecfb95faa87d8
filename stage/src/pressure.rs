//! How much an application on this node is held up: the time that its threads wait for a core, from
//! `/proc/PID/task/TID/schedstat`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use types::MOST_HARM;

use crate::control::Aim;

/// How often processes are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// A thread with less than this share of a core is none of an application that computes.
const COMPUTES: f64 = 0.1;

/// Nanoseconds since a thread's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: u64,
    /// Could have run, and waited for a core.
    waited: u64,
}

fn times(task: &Path) -> Option<Times> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace().map(str::parse);
    Some(Times { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
}

/// The thread with this id of this process: the time that it has run and waited, in nanoseconds, and whether it wants
/// to run now. A thread that waits is not charged with it before it runs again.
pub(crate) fn of_thread(thread: u32) -> Option<(u64, u64, bool)> {
    let folder = format!("/proc/self/task/{thread}");
    let stat = std::fs::read_to_string(format!("{folder}/stat")).ok()?;
    let runnable = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'));
    times(Path::new(&folder)).map(|times| (times.ran, times.waited, runnable))
}

/// Whose applications are watched: those of the mover's user, or everybody's, where it works behind others' jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Whose {
    Users,
    /// With the share of their time that they may lose, whatever the user wants.
    Everybodys {
        most: f64,
    },
}

impl Whose {
    /// As the environment says.
    pub(crate) fn of(lookup: impl Fn(&str) -> Option<String>) -> Whose {
        match lookup(MOST_HARM) {
            None => Whose::Users,
            // What cannot be read allows nothing.
            Some(text) => Whose::Everybodys { most: text.parse().map_or(0.0, |percent: f64| percent / 100.0) },
        }
    }

    /// What the user may have. A deadline would be kept whatever the harm, so it is not for others' applications.
    pub(crate) fn allows(self, aim: Aim) -> Aim {
        match self {
            Whose::Users => aim,
            Whose::Everybodys { most } => Aim { deadline: None, harm: aim.harm.min(most), ..aim },
        }
    }
}

/// The applications on this node: all of these users' processes that compute and are not ours.
#[derive(Debug)]
pub(crate) struct Applications {
    /// `None`: everybody but root, whose processes are the system's.
    user: Option<u32>,
    looked: Option<Duration>,
    looks: u64,
    /// All threads, by process and thread.
    seen: HashMap<(u32, u32), Times>,
    /// Those that compute, with their times at the last sample.
    computing: HashMap<(u32, u32), Times>,
    sampled: Option<Duration>,
}

impl Applications {
    pub(crate) fn new(whose: Whose) -> Applications {
        let user = matches!(whose, Whose::Users).then(|| rustix::process::geteuid().as_raw());
        Applications { user, looked: None, looks: 0, seen: HashMap::new(), computing: HashMap::new(), sampled: None }
    }

    /// The time since the last call for which threads of applications were kept from running, as a share. `None`:
    /// nothing computes here.
    pub(crate) fn sample(&mut self, now: Duration) -> Option<f64> {
        // Of what computes already at the beginning, the second call knows the first share.
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
        // Threads of a parallel program wait for each other: what one of them loses, all do. So their times are summed,
        // which is too much for programs whose threads have nothing to do with each other.
        (!self.computing.is_empty()).then(|| (waited as f64 / passed).min(1.0))
    }

    /// Finds the threads that have computed since it last looked. `soon`: its first look was at the last sample.
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

    /// Twice as many busy processes as cores wait for half of their time.
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
