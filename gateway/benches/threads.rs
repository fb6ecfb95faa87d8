//! CPU time of this process's threads and of others, as the kernel counts it.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::time::Duration;

/// The files of the threads whose name begins so.
pub fn threads_named(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().starts_with(name));
    named.map(|task| task.join("schedstat").to_string_lossy().into_owned()).collect()
}

/// What two threads, one per gateway, have used so far.
pub fn cpu_of_threads(files: &[String]) -> Duration {
    assert_eq!(files.len(), 2, "one thread per gateway");
    let nanos = files.iter().map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanos.sum())
}

/// The same of two processes.
pub fn cpu_of_processes(pids: &[u32]) -> Duration {
    cpu_of_threads(&pids.iter().map(|pid| format!("/proc/{pid}/schedstat")).collect::<Vec<_>>())
}

/// The same of a process and all that it has started and that still runs.
pub fn cpu_of_tree(root: u32) -> Duration {
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything: state, parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
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
    let nanos = tree.iter().filter_map(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}
