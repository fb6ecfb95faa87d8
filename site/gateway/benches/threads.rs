//! CPU time of this process's threads and of other processes, as the kernel counts it.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::time::Duration;

/// Files of the threads whose names start with this.
pub(crate) fn threads_named(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().starts_with(name));
    named.map(|task| task.join("schedstat").to_string_lossy().into_owned()).collect()
}

/// CPU time used so far by two threads, one per gateway.
pub(crate) fn cpu_of_threads(files: &[String]) -> Duration {
    assert_eq!(files.len(), 2, "one thread per gateway");
    let nanos = files.iter().map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanos.sum())
}

/// CPU time used so far by processes, including all their threads, even those that have ended.
pub(crate) fn cpu_of_processes(pids: &[u32]) -> Duration {
    pids.iter().map(|pid| cpu(*pid).unwrap_or_else(|| panic!("process {pid} ended before it was measured"))).sum()
}

/// Like [`cpu_of_processes`], for a process and all its descendants that are still running.
pub(crate) fn cpu_of_tree(root: u32) -> Duration {
    let parent = |pid: u32| stat(pid)?[1].parse::<u32>().ok();
    let all: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut tree = vec![root];
    let mut at = 0;
    while at < tree.len() {
        let children = all.iter().copied().filter(|pid| parent(*pid) == Some(tree[at])).collect::<Vec<_>>();
        tree.extend(children);
        at += 1;
    }
    tree.into_iter().filter_map(cpu).sum()
}

/// CPU time a process has used so far, if it exists.
///
/// `schedstat` does not work: for a process it counts only the first thread, and a thread that ends takes its time with
/// it. `stat` has the sum, scaled to the scheduler's measurement and rounded down to ticks (10 ms), in user and in
/// system mode.
fn cpu(pid: u32) -> Option<Duration> {
    // utime and stime are fields 14 and 15 of proc(5).
    let ticks: u64 = stat(pid)?[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Some(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// The fields of a process's `stat` after its name (which may contain anything): state, parent and so on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}
