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
