//! How slow this machine is for the gateway. Limits on what others do follow it: a machine that is busy with a job's ranks
//! answers late, and reads late what has been answered.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use client::patience::{core_time, patiently};
use tokio::time::sleep;
use types::patience::{Lately, Slowness};

use crate::gateway::Gateway;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// One for the whole gateway, which is one thread.
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

    /// A limit on the silence of an agent or a launcher, which mostly sleep, as long as it is on a machine as busy as this one.
    pub(crate) fn silence(&self, calm: Duration) -> Duration {
        self.lately.borrow().slowness_of_sleepers(core_time()).stretch(calm)
    }
}

impl Gateway {
    /// Waits for something for `calm` on a machine that is well, longer on one that is slow.
    ///
    /// # Errors
    /// How long was waited, when that was too long.
    pub(crate) async fn patiently<T>(&self, calm: Duration, future: impl Future<Output = T>) -> Result<T, Duration> {
        patiently(calm, || self.services.load.slowness(), future).await
    }
}
