//! The gateway's one [`Table`], shared by all tasks of its thread. A change of it has the resulting effects carried out
//! before the call returns.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Weak;

use tokio::sync::Notify;
use wire::FrameHeader;
use wire::many::Astray;

use crate::table::error::Violation;
use crate::table::spread::{Lost, Take};
use crate::table::{Effect, Origin, Route, Table, TrunkId};

/// The part of a gateway that carries out effects. It may change the table meanwhile.
pub(crate) trait CarryOut<M> {
    fn carry_out(&self, effect: Effect<M>);
}

/// See the module docs.
pub(crate) struct SharedTable<M: 'static> {
    table: RefCell<Table<M>>,
    /// True while effects are being carried out.
    settling: Cell<bool>,
    /// Carries out the effects. Gone when the gateway is ending.
    effects: Weak<dyn CarryOut<M>>,
    /// Notified when a job was opened: its members may be waiting.
    pub job_opened: Notify,
}

impl<M: Clone + PartialEq> SharedTable<M> {
    pub(crate) fn new(table: Table<M>, effects: Weak<dyn CarryOut<M>>) -> SharedTable<M> {
        SharedTable { table: RefCell::new(table), settling: Cell::new(false), effects, job_opened: Notify::new() }
    }

    /// The table, read-only. Do not hold it across a call that may change the table.
    pub(crate) fn read(&self) -> Ref<'_, Table<M>> {
        self.table.borrow()
    }

    /// Changes the table, then carries out the resulting effects until none is left. Nothing else may access the table
    /// within `change`. Changes made while effects are carried out are settled by the outermost call.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Table<M>) -> R) -> R {
        let (result, opened) = {
            let mut table = self.table.borrow_mut();
            let epoch = table.epoch;
            let result = change(&mut table);
            (result, table.epoch != epoch)
        };
        if opened {
            self.job_opened.notify_waiters();
        }
        if !self.settling.replace(true) {
            self.settle();
            self.settling.set(false);
        }
        result
    }

    fn settle(&self) {
        let Some(effects) = self.effects.upgrade() else { return };
        loop {
            let taken = self.table.borrow_mut().take_effects();
            if taken.is_empty() {
                return;
            }
            taken.into_iter().for_each(|effect| effects.carry_out(effect));
        }
    }

    /// Looks up the route of a frame, and counts the frame. This produces no effects.
    pub(crate) fn route<R>(&self, origin: Origin, header: &FrameHeader, then: impl FnOnce(Route<'_, M>) -> R) -> R {
        then(self.table.borrow_mut().route(origin, header))
    }

    /// Checks a frame for several receivers and passes its parts to `take` ([`Table::spread`]).
    pub(crate) fn spread<'b>(
        &self,
        origin: Origin,
        header: &FrameHeader,
        payload: &'b [u8],
        take: &mut Take<'_, 'b, M>,
    ) -> Result<Vec<Lost>, Violation> {
        self.table.borrow_mut().spread(origin, header, payload, take)
    }

    /// Looks up the route of a report about a lost copy.
    pub(crate) fn astray<R>(
        &self,
        by: Option<TrunkId>,
        header: &FrameHeader,
        astray: Astray,
        then: impl FnOnce(Route<'_, M>) -> R,
    ) -> R {
        then(self.table.borrow_mut().astray(by, header, astray))
    }
}
