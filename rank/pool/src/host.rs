//! Hosts. Processes of one host, that is one kernel and one pid namespace, may refer to each other by process id.

use std::hash::{Hash, Hasher};

/// A kernel and a pid namespace. Two nodes that share a pool have different ones, and so do two containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(pub u64);

impl HostId {
    /// This process's host. If the system does not reveal it: 0, which shares processes with no host, not even this
    /// one.
    pub fn own() -> HostId {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let (Ok(boot), Ok(namespace)) = (boot, namespace) else { return HostId(0) };
        let mut hasher = std::hash::DefaultHasher::new();
        (boot, namespace).hash(&mut hasher);
        HostId(hasher.finish().max(1))
    }

    /// True if a process id on `other` denotes the same process here.
    pub fn shares_processes(self, other: HostId) -> bool {
        self == other && self.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_host_shares_nothing() {
        assert!(HostId::own().shares_processes(HostId::own()));
        assert!(!HostId::own().shares_processes(HostId(1)));
        assert!(!HostId(0).shares_processes(HostId(0)));
    }
}
