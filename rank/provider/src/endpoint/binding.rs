//! Binding of completion queues, counters and an address vector to an endpoint, until it is enabled.

use std::sync::Arc;

use super::Endpoint;
use crate::abi::constants::{FI_MSG, FI_RECV, FI_SEND, FI_TAGGED};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::errno::{EBUSY, ENOAV, ENOCQ, Errno};
use crate::opened;

/// Destination of one direction's completions.
#[derive(Default)]
pub(super) struct CompletionBinding {
    pub(super) cq: Option<Arc<Cq>>,
    /// If true, only operations with `FI_COMPLETION` report success (`FI_SELECTIVE_COMPLETION`).
    pub(super) selective: bool,
}

impl Endpoint {
    pub(super) fn bind_av(&self, av: &Arc<Av>) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.av.is_some() {
            return Err(EBUSY);
        }
        state.av = Some(av.clone());
        Ok(())
    }

    pub(super) fn bind_cq(
        self: &Arc<Self>,
        cq: &Arc<Cq>,
        send: bool,
        recv: bool,
        selective: bool,
    ) -> Result<(), Errno> {
        {
            let mut state = self.lock();
            if (send && state.tx.cq.is_some()) || (recv && state.rx.cq.is_some()) {
                return Err(EBUSY);
            }
            if send {
                state.tx = CompletionBinding { cq: Some(cq.clone()), selective };
            }
            if recv {
                state.rx = CompletionBinding { cq: Some(cq.clone()), selective };
            }
        }
        cq.bound.add(self.clone());
        Ok(())
    }

    pub(super) fn bind_cntr(self: &Arc<Self>, cntr: &Arc<Cntr>, [send, recv, read, write]: [bool; 4]) {
        {
            let counters = &mut self.lock().counters;
            for (wanted, place) in [
                (send, &mut counters.send),
                (recv, &mut counters.recv),
                (read, &mut counters.read),
                (write, &mut counters.write),
            ] {
                if wanted {
                    *place = Some(cntr.clone());
                }
            }
        }
        // Reading a counter drives its endpoints; `close` removes them again.
        if send || recv || read || write {
            cntr.bound.add(self.clone());
        }
    }

    /// Opens the endpoint: from now on peers can reach it.
    ///
    /// # Errors
    /// `FI_ENOAV`, `FI_ENOCQ`: not bound. `FI_ENETUNREACH`: a gateway cannot be reached. `FI_EADDRNOTAVAIL`: it cannot
    /// listen on its address. The reason goes to standard error.
    pub(super) fn enable(self: &Arc<Self>) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.av.is_none() {
            return Err(ENOAV);
        }
        let (tx, rx) = (&state.tx.cq, &state.rx.cq);
        let messages = self.caps & (FI_MSG | FI_TAGGED) != 0;
        let sends = self.caps & FI_SEND != 0 || messages;
        let receives = messages && (self.caps & FI_RECV != 0 || self.caps & FI_SEND == 0);
        if (sends && tx.is_none() && state.counters.send.is_none())
            || (receives && rx.is_none() && state.counters.recv.is_none())
        {
            return Err(ENOCQ);
        }
        self.open(&mut state)?;
        drop(state);
        opened::add(self);
        if let Some(driver) = &self.domain.driver {
            driver.add(self.clone());
        }
        Ok(())
    }
}
