//! Slowness of this machine for the gateway. Time limits on peers scale with it: a machine that is busy with a job's
//! ranks answers late, and reads answers late.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use client::patience::{self, core_time};
use tokio::time::sleep;
use types::patience::{Lately, Slowness};

/// Interval between measurements.
const LOOK: Duration = Duration::from_secs(1);

/// The load that the gateway's one thread measured lately.
#[derive(Debug, Default)]
pub(crate) struct Load {
    lately: RefCell<Lately>,
}

impl Load {
    pub(crate) async fn watch(&self) -> Infallible {
        loop {
            self.lately.borrow_mut().note(core_time());
            sleep(LOOK).await;
        }
    }

    fn slowness(&self) -> Slowness {
        self.lately.borrow().slowness(core_time())
    }

    /// Time limit on the silence of an agent or a launcher, after that of an idle machine, `calm`, is over. These
    /// mostly sleep, and their machine is assumed to be as busy as this one.
    pub(crate) fn silence(&self, calm: Duration, silent: Duration) -> Duration {
        self.lately.borrow().slowness_of_sleepers(core_time(), silent).stretch(calm)
    }

    /// Waits for a future: for `calm` on a machine that is not overloaded, longer on a slow one.
    ///
    /// # Errors
    /// The time waited, if the limit was exceeded.
    pub(crate) async fn patiently<T>(&self, calm: Duration, future: impl Future<Output = T>) -> Result<T, Duration> {
        patience::patiently(calm, || self.slowness(), future).await
    }
}
