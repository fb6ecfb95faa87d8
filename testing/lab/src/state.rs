use std::path::{Path, PathBuf};

/// Environment variable of every process of a lab: the directory of its sockets, keys and logs.
pub(crate) const STATE_VARIABLE: &str = "LANDBRIDGE_LAB";
/// Environment variable of the command and the gateways: the sites file.
pub(crate) const SITES_VARIABLE: &str = "LANDBRIDGE_SITES";

/// The directory of a lab's files. In namespaces it lies on a tmpfs that only the lab sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabDirectory {
    root: PathBuf,
}

impl LabDirectory {
    pub(crate) fn at(root: impl Into<PathBuf>) -> LabDirectory {
        LabDirectory { root: root.into() }
    }

    /// The state directory of an isolated lab, the same in each.
    pub(crate) fn isolated() -> LabDirectory {
        LabDirectory::at("/run/landbridge-lab")
    }

    pub(crate) fn around_us() -> LabDirectory {
        std::env::var_os(STATE_VARIABLE).map_or_else(LabDirectory::isolated, LabDirectory::at)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    pub(crate) fn log(&self, host: &str) -> PathBuf {
        self.logs().join(format!("{host}.log"))
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.root.join("host")
    }

    pub(crate) fn socket(&self, host: &str) -> PathBuf {
        self.sockets().join(format!("{host}.sock"))
    }

    /// The mount point of a site's pool.
    pub(crate) fn pool(&self, site: impl std::fmt::Display) -> PathBuf {
        self.root.join(format!("pool-{site}"))
    }

    pub(crate) fn sites_file(&self) -> PathBuf {
        self.root.join("sites.toml")
    }

    pub(crate) fn hosts_file(&self, site: char) -> PathBuf {
        self.root.join(format!("hosts.{site}"))
    }

    pub(crate) fn key(&self, site: char) -> PathBuf {
        self.root.join(format!("{site}.key"))
    }

    pub(crate) fn wan_socket(&self) -> PathBuf {
        self.root.join("wan.sock")
    }

    pub(crate) fn wan_report(&self) -> PathBuf {
        self.root.join("wan.json")
    }

    /// The socket for requests to unplug and plug cables.
    pub(crate) fn cables_socket(&self) -> PathBuf {
        self.root.join("cables.sock")
    }

    pub(crate) fn create(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(self.logs())?;
        std::fs::create_dir_all(self.sockets())
    }
}
