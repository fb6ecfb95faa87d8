//! The cores on which each rank of a node may run.
//!
//! Each rank gets an equal share of the cores, whole and neighbouring cores where possible. Two ranks that wake each
//! other then do not share a core while another one is idle (Linux in virtual machines often does that), and a rank's
//! threads still have several cores. A share, instead of one core, keeps two jobs on a node from disturbing each other
//! more than without binding.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};
use thiserror::Error;

use job::environment::Environment;
use types::settings::{self, BIND, Binding, SettingError};

const TOPOLOGY: &str = "/sys/devices/system/cpu";

/// Reasons why ranks cannot be bound.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BindError {
    #[error(transparent)]
    Unknown(#[from] SettingError),
    #[error(
        "--bind-to core: this node has {cores} core(s) for {ranks} ranks: use --bind-to share or none, or fewer ranks here"
    )]
    TooFew { cores: usize, ranks: u32 },
}

/// The share of each rank of a node. `None`: the system places the ranks, because the user chose so, there are fewer
/// cores than ranks, or the system does not report the cores of this process.
///
/// # Errors
/// [`BindError`].
pub fn shares(ranks: u32, environment: &Environment) -> Result<Option<Vec<CpuSet>>, BindError> {
    let chosen = environment.get(BIND).unwrap_or_default().to_string_lossy();
    let one_each = match settings::binding(&chosen)? {
        Binding::Share => false,
        Binding::Core => true,
        Binding::None => return Ok(None),
    };
    // This fails on machines with more cores than a set can hold. Cores are not scarce there.
    let Ok(allowed) = sched_getaffinity(None) else { return Ok(None) };
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    cores.sort_by_key(|core| neighbourhood(Path::new(TOPOLOGY), *core));
    if one_each {
        return whole(&cores, |core| neighbourhood(Path::new(TOPOLOGY), core), ranks).map(Some);
    }
    Ok(split(&cores, ranks as usize))
}

/// One whole core for each rank, with all its threads. `cores`: hardware threads, sorted by `place`.
fn whole(cores: &[usize], place: impl Fn(usize) -> (u32, u32, usize), ranks: u32) -> Result<Vec<CpuSet>, BindError> {
    let same = |a: &usize, b: &usize| (place(*a).0, place(*a).1) == (place(*b).0, place(*b).1);
    let groups: Vec<&[usize]> = cores.chunk_by(same).collect();
    if groups.len() < ranks as usize {
        return Err(BindError::TooFew { cores: groups.len(), ranks });
    }
    let set = |threads: &&[usize]| {
        let mut set = CpuSet::new();
        threads.iter().for_each(|thread| set.set(*thread));
        set
    };
    Ok(groups.iter().take(ranks as usize).map(set).collect())
}

/// Shares of cores that differ by at most one core.
fn split(cores: &[usize], ranks: usize) -> Option<Vec<CpuSet>> {
    if ranks < 2 || cores.len() < ranks {
        return None;
    }
    let share = |rank: usize| {
        let mut set = CpuSet::new();
        cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks].iter().for_each(|core| set.set(*core));
        set
    };
    Some((0..ranks).map(share).collect())
}

/// Package, core in the package, and number of a hardware thread, so that sorting puts the threads of a core next to
/// each other. A thread whose core the system does not report counts as a core of its own.
fn neighbourhood(topology: &Path, core: usize) -> (u32, u32, usize) {
    let number = |what: &str| {
        let text = std::fs::read_to_string(topology.join(format!("cpu{core}/topology/{what}"))).ok()?;
        text.trim().parse().ok()
    };
    (number("physical_package_id").unwrap_or(0), number("core_id").unwrap_or(core as u32), core)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(shares: &[CpuSet]) -> Vec<Vec<usize>> {
        shares.iter().map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()).collect()
    }

    #[test]
    fn shares_are_equal() {
        assert_eq!(listed(&split(&[0, 1], 2).unwrap()), [[0], [1]]);
        assert_eq!(listed(&split(&[3, 7, 5, 9, 11], 2).unwrap()), [vec![3, 7], vec![5, 9, 11]]);
        assert_eq!(split(&[0, 1], 3), None, "fewer cores than ranks");
        assert_eq!(split(&[0, 1, 2, 3], 1), None, "a single rank is not bound");
    }

    #[test]
    fn threads_of_a_core_stay_together() {
        let folder = tempfile::tempdir().unwrap();
        // Two packages of two cores of two threads, numbered as Linux does on most machines: 4 is the other thread of
        // 0.
        for cpu in 0..8 {
            let topology = folder.path().join(format!("cpu{cpu}/topology"));
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("physical_package_id"), format!("{}\n", cpu / 2 % 2)).unwrap();
            std::fs::write(topology.join("core_id"), format!("{}\n", cpu % 2)).unwrap();
        }
        let mut cores: Vec<usize> = (0..8).collect();
        cores.sort_by_key(|core| neighbourhood(folder.path(), *core));
        assert_eq!(cores, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(neighbourhood(folder.path(), 99), (0, 99, 99));
    }

    #[test]
    fn one_core_each_has_all_its_threads() {
        // Threads 0 and 4 are one core, 1 and 5 another.
        let place = |thread: usize| (0, (thread % 4) as u32, thread);
        assert_eq!(listed(&whole(&[0, 4, 1, 5], place, 2).unwrap()), [[0, 4], [1, 5]]);
        assert_eq!(listed(&whole(&[0, 4, 1, 5], place, 1).unwrap()), [[0, 4]]);
        assert_eq!(whole(&[0, 4, 1, 5], place, 3), Err(BindError::TooFew { cores: 2, ranks: 3 }));
    }

    #[test]
    fn an_unknown_value_is_named() {
        let mut environment = Environment::default();
        environment.set(BIND, "socket");
        assert!(shares(2, &environment).unwrap_err().to_string().contains("LANDBRIDGE_BIND=socket: give `share`"));
        environment.set(BIND, "none");
        assert_eq!(shares(2, &environment), Ok(None));
    }
}
