//! The memory that a node's ranks share. It is made before they start, and is gone after they have ended.
//!
//! Within a node the region has no name. Ranks inherit it or open it through this agent's entry in `/proc`. It
//! disappears with the last process that has it open, however that process ends. A pool's region has a name, because
//! nodes share no `/proc`. The site's first agent makes it; the first agent or keeper of the site to end removes it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pool::{PoolError, Region, Shape};
use types::sites::Memory;
use types::{JobId, Roster};

use crate::keeper;
use job::order::Order;

const IN_NODE: &str = "/dev/shm";
/// Time limit for a pool's region to appear on another node after the launcher has been notified that it exists.
const APPEARS: Duration = Duration::from_secs(3);

/// The region that this node's ranks share.
#[derive(Debug)]
pub struct Shared {
    /// Kept open for ranks that open it through this agent.
    region: Option<OpenRegion>,
    /// The path at which ranks open the region.
    path: PathBuf,
    named: bool,
    job: JobId,
}

struct OpenRegion(Region);

impl std::fmt::Debug for OpenRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Region")
    }
}

/// Makes the region that this node's ranks need, if any. A job without ranks, which only checks the site, tries this as
/// well.
///
/// # Errors
/// [`PoolError`].
pub fn share(order: &Order, roster: &Roster) -> Result<Option<Shared>, PoolError> {
    let trying = roster.size() == 0;
    let site = || roster.nodes().filter(|(site, ..)| *site == order.site_id);
    let of_node = || site().find(|(_, node, ..)| *node == order.node_id);
    let shape = |first, ranks: u32| Shape { job: order.job, first, ranks: ranks.max(1) };
    match &order.memory {
        Memory::Off => Ok(None),
        Memory::Node => {
            let Some((_, _, first, node)) = of_node().filter(|(.., node)| node.ranks > 1 || trying) else {
                return Ok(None);
            };
            let region = Region::unnamed(Path::new(IN_NODE), shape(first.0, node.ranks))?;
            let path = format!("/proc/{}/fd/{}", std::process::id(), region.file().as_raw_fd()).into();
            Ok(Some(Shared { region: Some(OpenRegion(region)), path, named: false, job: order.job }))
        }
        Memory::Pool(folder) => {
            let ranks = roster.site(order.site_id).map_or(0, |site| site.size());
            let path = Region::name(folder, &order.site, order.job);
            if trying {
                // Every node tries this, so each one needs a name of its own.
                let name = format!("{}-{}", order.site, order.node);
                Region::named(folder, &name, shape(0, 1))?;
                Region::remove(&Region::name(folder, &name, order.job));
                return Ok(None);
            }
            let Some((_, creator, first, _)) = site().find(|(.., node)| node.ranks > 0).filter(|_| ranks > 1) else {
                return Ok(None);
            };
            let region = if creator == order.node_id {
                keeper::remove_in_the_end(&path);
                Some(OpenRegion(Region::named(folder, &order.site, shape(first.0, ranks))?))
            } else {
                check_folder(folder)?;
                None
            };
            Ok(Some(Shared { region, path, named: true, job: order.job }))
        }
    }
}

/// Checks that the folder exists before anything waits for a file in it.
fn check_folder(folder: &Path) -> Result<(), PoolError> {
    let error = |source| PoolError::Folder { folder: folder.to_owned(), source };
    std::fs::read_dir(folder).map(drop).map_err(error)
}

impl Shared {
    /// The path at which ranks open the region.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor that a rank inherits, because a rank in a user namespace of its own may not open another process's.
    /// `None`: the region has a name.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let unnamed = self.region.as_ref().filter(|_| !self.named);
        unnamed.map(|OpenRegion(region)| region.file().try_clone().map(OwnedFd::from)).transpose()
    }

    /// Checks that this node sees the region. Blocks only while the region is missing, and for a few seconds at most.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn check(&self) -> Result<(), PoolError> {
        let end = Instant::now() + APPEARS;
        loop {
            match Region::open(&self.path, self.job) {
                Err(PoolError::Foreign { .. }) if self.named && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                result => return result.map(drop),
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.named {
            Region::remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::order::example;

    fn shared(memory: Memory, node: u32, roster: &str) -> Result<Option<Shared>, PoolError> {
        share(&example(memory, node), &roster.parse().unwrap())
    }

    #[test]
    fn a_node_with_several_ranks_gets_a_region_that_leaves_no_trace() {
        let shared = shared(Memory::Node, 1, "a:n1*2;b:n1*3,n2*4").unwrap().unwrap();
        shared.check().unwrap();
        let region = Region::open(shared.path(), shared.job).unwrap();
        assert_eq!((region.shape().first, region.shape().ranks), (5, 4));
        let inherited = shared.descriptor().unwrap().unwrap();
        let by_number = format!("/proc/self/fd/{}", inherited.as_raw_fd());
        assert_eq!(Region::open(Path::new(&by_number), shared.job).unwrap().shape(), region.shape());
        let ours = format!("landbridge-{}", shared.job);
        let names = std::fs::read_dir(IN_NODE).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.filter_map(|name| name.into_string().ok()).all(|name| !name.starts_with(&ours)));
    }

    #[test]
    fn a_lone_rank_and_memory_off_share_nothing() {
        assert!(shared(Memory::Node, 0, "a:n1*2;b:n1*1,n2*4").unwrap().is_none());
        assert!(shared(Memory::Off, 0, "a:n1*2;b:n1*3,n2*4").unwrap().is_none());
        assert!(shared(Memory::Pool("/no/such".into()), 0, "a:n1*2;b:n1*1,n2*0").unwrap().is_none());
    }

    #[test]
    fn a_pool_spans_the_site_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let memory = || Memory::Pool(folder.path().to_owned());
        let roster = "a:n1*2;b:n0*0,n1*2,n2*4";
        let second = shared(memory(), 2, roster).unwrap().unwrap();
        let absent = second.check().unwrap_err().to_string();
        assert!(absent.contains("is this folder the same on all nodes of the site?"), "{absent}");
        let first = shared(memory(), 1, roster).unwrap().unwrap();
        second.check().unwrap();
        let region = Region::open(second.path(), second.job).unwrap();
        assert_eq!((region.shape().first, region.shape().ranks), (2, 6));
        let leftover = shared(memory(), 1, roster).unwrap_err().to_string();
        assert!(leftover.contains("left over by a dead job"), "{leftover}");
        drop(first);
        drop(second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_job_without_ranks_tries_the_folder() {
        assert!(shared(Memory::Node, 0, "a:n1*0;b:n1*0").unwrap().is_some());
        let folder = tempfile::tempdir().unwrap();
        assert!(shared(Memory::Pool(folder.path().to_owned()), 0, "a:n1*0;b:n1*0").unwrap().is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let missing = shared(Memory::Pool("/no/such".into()), 0, "a:n1*0;b:n1*0").unwrap_err().to_string();
        assert!(missing.contains("memory /no/such:"), "{missing}");
    }
}
