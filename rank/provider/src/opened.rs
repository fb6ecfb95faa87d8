//! The open endpoints of this process, for callers that do not come through libfabric.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::endpoint::Endpoint;

static OPENED: Mutex<Vec<Weak<Endpoint>>> = Mutex::new(Vec::new());

/// Records an endpoint that has opened.
pub(crate) fn add(endpoint: &Arc<Endpoint>) {
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|other| other.strong_count() > 0);
    if !all.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(endpoint))) {
        all.push(Arc::downgrade(endpoint));
    }
}

/// The process's oldest open endpoint.
pub(crate) struct OldestEndpoint;

impl collectives::Transport for OldestEndpoint {
    fn with(&self, work: &mut dyn FnMut(&mut ::endpoint::Endpoint)) -> bool {
        let all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).any(|endpoint| endpoint.with(work))
    }
}
