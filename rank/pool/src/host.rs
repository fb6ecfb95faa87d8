//! Which processes may refer to each other by process id: those of one kernel and one pid namespace.

use std::hash::{Hash, Hasher};

/// A kernel and a pid namespace. Two nodes that share a pool have different ones, and so have two containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(pub u64);

impl HostId {
    /// This process's host. If the system does not tell, a value that equals none, not even its own.
    pub fn own() -> HostId {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let (Ok(boot), Ok(namespace)) = (boot, namespace) else { return HostId(0) };
        let mut hasher = std::hash::DefaultHasher::new();
        (boot, namespace).hash(&mut hasher);
        HostId(hasher.finish().max(1))
    }

    /// Whether process ids of the other mean the same here.
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
