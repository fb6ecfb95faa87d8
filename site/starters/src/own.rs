//! An allocation that is the user's own, so Landbridge neither makes it nor gives it back.

use std::future::Future;
use std::pin::Pin;

use gateway_hooks::{AllocationHandle, AllocationNews};
use tokio::sync::Notify;
use wire::control::HeldAllocation;

pub(super) struct Held {
    allocation: HeldAllocation,
    reported: bool,
    released: Notify,
}

impl Held {
    pub(super) fn new(allocation: HeldAllocation) -> Held {
        Held { allocation, reported: false, released: Notify::new() }
    }
}

impl AllocationHandle for Held {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(async {
            if !std::mem::replace(&mut self.reported, true) {
                let HeldAllocation { id, nodes } = self.allocation.clone();
                return AllocationNews::Granted { id, nodes };
            }
            self.released.notified().await;
            AllocationNews::Ended("the allocation is the user's own".to_owned())
        })
    }

    fn release(&mut self) {
        self.reported = true;
        self.released.notify_one();
    }
}
