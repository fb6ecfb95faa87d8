//! `landbridge slurm node-service`, its callers, and the programs it starts.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use folder::Folder;
use job::environment::Environment;
use job::mpi::find_provider;
use node_service::account::Getent;
use node_service::admission::{CallerLimits, Counts};
use node_service::child::OwnProgram;
use node_service::client;
use node_service::credential::Munge;
use node_service::listener;
use node_service::memory::{Bound, own_group};
use node_service::message::{Request, Work};
use node_service::service::Service;
use node_service::slurm::{self, Config};

use crate::error::{Context, Result, refuse};

/// The variable with the path of the provider for an agent.
const PROVIDER: &str = "LANDBRIDGE_PROVIDER";
/// Interval between attempts to listen.
const REBIND: Duration = Duration::from_secs(1);

/// A node's service.
#[derive(Debug)]
pub struct ServiceRequest {
    /// Listening address.
    pub listen: String,
    /// Slurm's name of this node. `None`: the host's name up to the first dot.
    pub node: Option<String>,
    pub munge_socket: Option<PathBuf>,
    /// A local socket for the hooks of Slurm's controller.
    pub hooks: Option<PathBuf>,
    /// The user id of Slurm's controller.
    pub slurm_user: Option<u32>,
    /// Maximum loss of other users' applications to a mover, in percent.
    pub most_harm: f64,
    /// Maximum memory for all movers of a user, in bytes.
    pub user_memory: u64,
    /// A folder for the copy of this program that users run.
    pub programs: PathBuf,
    /// Variables that started programs get.
    pub keep_variable: Vec<String>,
}

/// Serves until the listener fails or a signal ends it.
///
/// # Errors
/// This process is not root, an option is missing, or the listener fails.
pub fn serve(request: &ServiceRequest, log: impl Fn(&str)) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        refuse!("only root can become other users: systemd starts it (`systemctl start landbridge-node`)");
    }
    // New files are private, also those of started programs unless they change the umask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let config = match (&request.munge_socket, request.slurm_user) {
        (Some(_), Some(_)) => Config::default(),
        _ => Config::ask().context("give --munge-socket and --slurm-user, or let Slurm say them")?,
    };
    let node = match &request.node {
        Some(node) => node.clone(),
        None => own_name()?,
    };
    if !slurm::is_node(&node) {
        refuse!("--node {node}: this is no name of a node");
    }
    let (memory, which) = Bound::new(own_group(), request.user_memory);
    log(&which);
    let service = Arc::new(Service {
        node: node.clone(),
        // Without a value, only root is admitted.
        slurm: request.slurm_user.or_else(|| config.user()).unwrap_or(0),
        limits: CallerLimits::default(),
        credentials: Box::new(Munge { socket: request.munge_socket.clone().or_else(|| config.munge_socket()) }),
        accounts: Box::new(Getent),
        programs: Box::new(OwnProgram::new(&request.programs, request.most_harm, &request.keep_variable, provider())?),
        counts: Counts::default(),
        memory,
        user_memory: request.user_memory,
    });
    if let Some(path) = &request.hooks {
        let listener = hooks_socket(path)?;
        let service = service.clone();
        std::thread::Builder::new().name("hooks".into()).spawn(move || service.serve_hooks(&listener))?;
    }
    let listener = bind(&request.listen, &log)?;
    log(&format!("node {node}: serving at {}", request.listen));
    service.serve(&listener).with_context(|| format!("--listen {}", request.listen))?;
    Ok(())
}

/// The provider stays beside the original program, while users run the copy elsewhere.
fn provider() -> Vec<(OsString, OsString)> {
    vec![(PROVIDER.into(), find_provider(&Environment::default()).into())]
}

/// Listens once the address is free: after an earlier service has ended, any user may have taken its port.
fn bind(listen: &str, log: &impl Fn(&str)) -> Result<TcpListener> {
    let mut noted = false;
    loop {
        match listener::listen(listen) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut noted, true) {
                    let look = "`ss -ltnp` shows by what; waiting until it is free";
                    log(&format!("--listen {listen}: another program has this address: {look}"));
                }
                std::thread::sleep(REBIND);
            }
            bound => return bound.with_context(|| format!("--listen {listen}")),
        }
    }
}

fn own_name() -> Result<String> {
    let name = job::host_name();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    if short.is_empty() {
        refuse!("this machine has no name: give Slurm's name for it as --node NAME");
    }
    Ok(short)
}

/// Everybody may connect; the service then decides by the caller's user id.
fn hooks_socket(path: &Path) -> Result<UnixListener> {
    let shown = || format!("--hooks {}", path.display());
    // Only this user can place files in the folder.
    Folder::make_private(path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))
        .with_context(shown)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(shown),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(shown)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).with_context(shown)?;
    Ok(listener)
}

/// Calls a node's service to start an agent. Standard input is its order and lifeline.
///
/// # Errors
/// The service cannot be reached, or refuses.
pub fn call(node: &str, port: u16) -> Result<client::Ended> {
    let mut order = String::new();
    // The buffer of standard input keeps the bytes after the line; later reads get them from there.
    std::io::stdin().lock().read_line(&mut order)?;
    let work = Work::Agent { order: order.trim_end_matches('\n').to_owned() };
    at_node(node, port, work, std::io::stdin())
}

/// Makes a node's service run an order as this process's user.
pub(super) fn at_node(
    node: &str,
    port: u16,
    work: Work,
    input: impl std::io::Read + Send + 'static,
) -> Result<client::Ended> {
    let munge = Munge { socket: Config::ask()?.munge_socket() };
    let address = slurm::address(node)?;
    let request = Request::new(node, work).context("the system's random numbers")?;
    Ok(client::order(&format!("{address}:{port}"), &munge, &request, input)?)
}
