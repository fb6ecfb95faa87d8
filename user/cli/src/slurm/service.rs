//! `landbridge slurm node-service`, its callers, and the programs it starts.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
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

use types::untrusted::printable;

use crate::log;
use crate::slurm::args::NodeServiceArgs;

/// Time limit for a running transfer to leave a target that is removed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The variable with the path of the provider for an agent.
const PROVIDER: &str = "LANDBRIDGE_PROVIDER";
/// Interval between attempts to listen.
const REBIND: Duration = Duration::from_secs(1);

/// Serves until the listener fails or a signal ends it.
pub(crate) fn serve(args: &NodeServiceArgs) -> Result<i32> {
    log::start(std::env::var_os(log::VARIABLE).as_deref())?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root can become other users: systemd starts it (`systemctl start landbridge-node`)");
    }
    // New files are private, also those of started programs unless they change the umask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let config = match (&args.munge_socket, args.slurm_user) {
        (Some(_), Some(_)) => Config::default(),
        _ => Config::ask().context("give --munge-socket and --slurm-user, or let Slurm say them")?,
    };
    let node = match &args.node {
        Some(node) => node.clone(),
        None => own_name()?,
    };
    if !slurm::is_node(&node) {
        bail!("--node {node}: this is no name of a node");
    }
    let (memory, which) = Bound::new(own_group(), args.user_memory);
    log::note(&which);
    let service = Arc::new(Service {
        node: node.clone(),
        // Without a value, only root is admitted.
        slurm: args.slurm_user.or_else(|| config.user()).unwrap_or(0),
        limits: CallerLimits::default(),
        credentials: Box::new(Munge { socket: args.munge_socket.clone().or_else(|| config.munge_socket()) }),
        accounts: Box::new(Getent),
        programs: Box::new(OwnProgram::new(&args.programs, args.most_harm, &args.keep_variable, provider())?),
        counts: Counts::default(),
        memory,
        user_memory: args.user_memory,
    });
    if let Some(path) = &args.hooks {
        let listener = hooks_socket(path)?;
        let service = service.clone();
        std::thread::Builder::new().name("hooks".into()).spawn(move || service.serve_hooks(&listener))?;
    }
    let listener = bind(&args.listen)?;
    log::note(&format!("node {node}: serving at {}", args.listen));
    service.serve(&listener).with_context(|| format!("--listen {}", args.listen))?;
    Ok(0)
}

/// The provider stays beside the original program, while users run the copy elsewhere.
fn provider() -> Vec<(OsString, OsString)> {
    vec![(PROVIDER.into(), find_provider(&Environment::default()).into())]
}

/// Listens once the address is free: after an earlier service has ended, any user may have taken its port.
fn bind(listen: &str) -> Result<TcpListener> {
    let mut told = false;
    loop {
        match listener::listen(listen) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut told, true) {
                    let look = "`ss -ltnp` shows by what; waiting until it is free";
                    log::note(&format!("--listen {listen}: another program has this address: {look}"));
                }
                std::thread::sleep(REBIND);
            }
            bound => return bound.with_context(|| format!("--listen {listen}")),
        }
    }
}

fn own_name() -> Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    if short.is_empty() {
        bail!("this machine has no name: give Slurm's name for it as --node NAME");
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

/// Calls a node's service to start an agent. Standard input is its order and lifeline. Returns the agent's exit code.
pub(crate) fn call(node: &str, port: u16) -> Result<i32> {
    let mut order = String::new();
    // The buffer of standard input keeps the bytes after the line; later reads get them from there.
    std::io::stdin().lock().read_line(&mut order)?;
    let work = Work::Agent { order: order.trim_end_matches('\n').to_owned() };
    let ended = at_node(node, port, work, std::io::stdin())?;
    for line in ended.words.raw().lines() {
        writeln!(crate::output::stderr(), "{}", printable(line))?;
    }
    Ok(ended.code)
}

/// Makes a node's service run an order as this process's user.
pub(crate) fn at_node(
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

/// Checks whether the target path of a job's input, given on standard input, exists. Follows no link at its end. Only
/// the path identifies the input when it is removed, so nobody else may be able to rename anything on the way.
pub(crate) fn look() -> Result<i32> {
    let path: Vec<u8> = read_line("a path")?;
    let path = PathBuf::from(OsString::from_vec(path));
    match Folder::of_unshared(&path).and_then(|named| Ok(named.stat()?)) {
        Ok(_) => Ok(1),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => {
            crate::output::note(&format!("cannot look at {}: {error}", path.display()));
            Ok(2)
        }
    }
}

/// Removes staged files: a list of paths on standard input. Missing paths are not an error.
pub(crate) fn remove() -> Result<i32> {
    let paths: Vec<Vec<u8>> = read_line("a list of paths")?;
    let mut failed = 0;
    for path in paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))) {
        if let Err(error) = stage::evict(&path, PATIENCE) {
            failed += 1;
            crate::output::note(&error.to_string());
        }
    }
    Ok(if failed > 0 { 2 } else { 0 })
}

fn read_line<T: serde::de::DeserializeOwned>(what: &'static str) -> Result<T> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    serde_json::from_str(&line).context(what)
}
