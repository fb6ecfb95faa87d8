//! Decides which orders are accepted. Pure, except for the counts of running orders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use types::UntrustedText;

use crate::account::AccountError;
use crate::credential::{CredentialError, OpenedCredential};
use crate::message::{HookRequest, Request, VERSION, Work};
use crate::stream::LineError;

/// Reasons for refusing an order; sent to the caller.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error("unknown request: {0}: install the same Landbridge release on both machines")]
    Order(UntrustedText),
    #[error("the caller speaks version {theirs} of the protocol, this node {VERSION}: update the older Landbridge")]
    Release { theirs: u32 },
    #[error("the order is for node {theirs}, and this is {ours}")]
    Node { theirs: UntrustedText, ours: String },
    #[error("this node already runs {running} orders of user id {user}, the most it permits: wait for one to end")]
    TooMany { user: u32, running: u32 },
    #[error("this node already runs {0} orders, the most it permits: wait for one to end")]
    Full(u32),
    #[error("too many connections ({0}) that are not authenticated yet: try again")]
    Crowded(usize),
    #[error("cannot examine or remove {path}: a path is absolute, without `..`, and not the root")]
    Path { path: UntrustedText },
    #[error("user id {0} is neither root nor Slurm's user: only they may ask here")]
    Stranger(u32),
    #[error("no memory for it: {0}")]
    Memory(std::io::Error),
    #[error("cannot start it: {0}")]
    Start(std::io::Error),
    #[error("{0}")]
    Connection(#[from] std::io::Error),
}

/// Returns the work that a user requests, if the request is for node `ours` and acceptable. The caller of this function
/// checks that the user has an account.
/// # Errors
/// [`Refusal`].
pub fn judge(user: u32, request: Request, ours: &str) -> Result<Work, Refusal> {
    if user == 0 {
        return Err(AccountError::Root.into());
    }
    if request.node != ours {
        return Err(Refusal::Node { theirs: request.node.into(), ours: ours.to_owned() });
    }
    match &request.work {
        Work::Agent { order } if order.contains('\n') => return Err(Refusal::Order("it has several lines".into())),
        Work::Agent { .. } => {}
        Work::Look { path } => fits(std::slice::from_ref(path))?,
        Work::Remove { paths } => fits(paths)?,
    }
    Ok(request.work)
}

/// The request in an opened credential.
///
/// # Errors
/// [`Refusal`]: the credential holds no request, or one of another release.
pub fn request(opened: &OpenedCredential) -> Result<Request, Refusal> {
    #[derive(serde::Deserialize)]
    struct Release {
        landbridge_node_service: u32,
    }
    // A credential of another release may have other fields.
    let Release { landbridge_node_service } = read(&opened.payload)?;
    release(landbridge_node_service)?;
    read(&opened.payload)
}

/// Parses the request of a Slurm hook, if its peer is root or Slurm's user.
///
/// # Errors
/// [`Refusal`].
pub fn judge_hook(line: &[u8], peer: u32, slurm: u32) -> Result<HookRequest, Refusal> {
    if peer != 0 && peer != slurm {
        return Err(Refusal::Stranger(peer));
    }
    let request: HookRequest = read(line)?;
    release(request.landbridge_node_service)?;
    if request.user == 0 {
        return Err(AccountError::Root.into());
    }
    match request.step.contains('\n') {
        true => Err(Refusal::Order("it has several lines".into())),
        false => Ok(request),
    }
}

fn read<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|e| Refusal::Order(e.to_string().into()))
}

fn release(theirs: u32) -> Result<(), Refusal> {
    if theirs == VERSION { Ok(()) } else { Err(Refusal::Release { theirs }) }
}

fn fits(paths: &[Vec<u8>]) -> Result<(), Refusal> {
    match paths.iter().find(|path| !is_whole(path)) {
        Some(path) => Err(Refusal::Path { path: UntrustedText::from_bytes(path) }),
        None => Ok(()),
    }
}

fn is_whole(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").peekable();
    path.first() == Some(&b'/') && !path.contains(&0) && parts.peek().is_some() && parts.all(|part| part != b"..")
}

/// Limits on the number of callers and orders at a time.
#[derive(Clone, Copy, Debug)]
pub struct CallerLimits {
    /// Callers that have not yet proved their identity.
    pub strangers: usize,
    /// Orders of one user.
    pub per_user: u32,
    /// Orders of all users.
    pub orders: u32,
}

impl Default for CallerLimits {
    fn default() -> CallerLimits {
        CallerLimits { strangers: 512, per_user: 32, orders: 128 }
    }
}

/// Counts running orders. Dropping a [`CallerSeat`] gives it back.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    running: Arc<Mutex<HashMap<Option<u32>, u32>>>,
}

/// A caller's seat among the callers being served.
#[derive(Debug)]
pub struct CallerSeat {
    counts: Counts,
    /// `None`: a seat in the total over all users.
    user: Option<u32>,
}

impl Counts {
    /// Takes a seat, if fewer than `limit` are taken. `user`: `None` for the total over all users.
    ///
    /// # Errors
    /// The number of seats taken.
    pub fn enter(&self, user: Option<u32>, limit: u32) -> Result<CallerSeat, u32> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = running.entry(user).or_default();
        if *count >= limit {
            return Err(*count);
        }
        *count += 1;
        Ok(CallerSeat { counts: self.clone(), user })
    }
}

impl Drop for CallerSeat {
    fn drop(&mut self) {
        let mut running = self.counts.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                running.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(user: u32, request: &str) -> OpenedCredential {
        OpenedCredential { user, payload: request.as_bytes().to_vec() }
    }

    fn judged(user: u32, text: &str) -> Result<Work, Refusal> {
        judge(user, request(&opened(user, text))?, "n1")
    }

    fn refused(user: u32, text: &str) -> String {
        judged(user, text).unwrap_err().to_string()
    }

    #[test]
    fn only_an_order_for_this_node_and_service_is_done() {
        let agent = concat!(
            r#"{"landbridge_node_service":2,"node":"n1","nonce":"000102030405060708090a0b0c0d0e0f","#,
            r#""work":{"agent":{"order":"{}"}}}"#
        );
        assert_eq!(judged(7, agent).unwrap(), Work::Agent { order: "{}".into() });
        assert!(refused(0, agent).contains("nothing is done as root"));
        assert!(refused(7, &agent.replace("n1", "n2")).contains("for node n2, and this is n1"));
        assert!(refused(7, &agent.replace(":2,", ":1,")).contains("version 1"));
        assert!(refused(7, r#"{"landbridge_node_service":1,"node":"n1","work":"x"}"#).contains("version 1"));
        assert!(refused(7, &agent.replace("0f", "0g")).contains("32 hexadecimal digits"));
        assert!(refused(7, &agent.replace("agent", "shell")).contains("unknown variant `shell`"));
        assert!(refused(7, &agent.replace("\"{}\"", "\"a\\nb\"")).contains("several lines"));
        for other in
            ["", "{", "null", "{\"node\":\"n1\"}", "a credential for Slurm", &agent.replace("}}}", "}},\"x\":1}")]
        {
            assert!(refused(7, other).contains("unknown request"), "{other}");
        }
        assert!(request(&OpenedCredential { user: 7, payload: vec![0xff; 9] }).is_err());
    }

    #[test]
    fn only_whole_paths_are_removed() {
        let remove = |path: &str| {
            let work = Work::Remove { paths: vec![path.as_bytes().to_vec()] };
            judge(7, Request::new("n1", work).unwrap(), "n1").is_ok()
        };
        assert!(remove("/tmp/x") && remove("/scratch/a/b..c/"));
        for wrong in ["", "x", "/", "//", "/.", "/tmp/../etc", "/tmp/x/..", "../x", "/tmp/\0x"] {
            assert!(!remove(wrong), "{wrong}");
        }
    }

    #[test]
    fn hooks_are_root_or_slurm_and_work_for_users_only() {
        let hook = br#"{"landbridge_node_service":2,"user":7,"step":"{}"}"#;
        assert!(judge_hook(hook, 0, 64).is_ok() && judge_hook(hook, 64, 64).is_ok());
        assert!(judge_hook(hook, 7, 64).unwrap_err().to_string().contains("user id 7 is neither root nor Slurm's"));
        let root = br#"{"landbridge_node_service":2,"user":0,"step":"{}"}"#;
        assert!(judge_hook(root, 64, 64).unwrap_err().to_string().contains("as root"));
        assert!(judge_hook(b"x", 0, 64).is_err());
    }

    #[test]
    fn places_are_limited_and_given_back() {
        let counts = Counts::default();
        let first = counts.enter(Some(7), 2).unwrap();
        let _second = counts.enter(Some(7), 2).unwrap();
        assert_eq!(counts.enter(Some(7), 2).unwrap_err(), 2);
        assert!(counts.enter(Some(8), 2).is_ok() && counts.enter(None, 1).is_ok());
        drop(first);
        assert!(counts.enter(Some(7), 2).is_ok());
        assert!(counts.running.lock().unwrap().len() == 1);
    }
}
