//! Control messages of a trunk: the choice of their link, their memory, and the end of links to a gateway that
//! acknowledges none.

use channel::ChannelError;
use types::JobId;
use wire::{Control, FrameHeader};

use crate::log::log;
use crate::path::Path;
use crate::trunks::control::ControlError;
use crate::trunks::trunk::Trunk;

impl Trunk {
    /// Sends a message, now or as soon as a link is up. If too many messages are queued because the other gateway
    /// acknowledges none, its links are cut.
    pub(crate) fn send_control(&self, path: &Path, message: impl Into<Control>) {
        let pushed = self.control.borrow_mut().push(&message.into());
        self.flush_control(path);
        let Err(error) = pushed else { return };
        let links = self.up_links();
        if !links.is_empty() && links.iter().all(|link| link.is_cut()) {
            // The links have already been cut.
            return;
        }
        log!(error, &self.site, site = self.site, gateway = self.gateway, %error, "control message not sent");
        if let ControlError::Full { .. } = error
            && !links.is_empty()
        {
            path.counters.violation();
            links.iter().for_each(|link| link.cut(format!("rules broken: {error}")));
        }
    }

    /// Sends queued messages and the acknowledgement that is due.
    pub(crate) fn flush_control(&self, path: &Path) {
        self.send_waiting(path);
        let held = self.control.borrow().held();
        path.counters.release(self.held.replace(held));
        path.counters.hold(held);
    }

    fn send_waiting(&self, path: &Path) {
        let Some(link) = self.links.first() else { return };
        let mut control = self.control.borrow_mut();
        while let Some((job, frame)) = control.next(link.route()) {
            // In the job's own queue, behind the frames that the job has sent before.
            link.send(path, job, &frame);
        }
        if let Some(ack) = control.ack() {
            link.send(path, JobId::default(), &ack);
        }
    }

    /// Takes a message that arrived and returns the messages that are now next in order.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub(crate) fn control_came(
        &self,
        path: &Path,
        header: &FrameHeader,
        message: Control,
    ) -> Result<Vec<Control>, ChannelError> {
        let ready = self.control.borrow_mut().came(header, message)?;
        self.flush_control(path);
        Ok(ready)
    }

    /// Notes that the other gateway has all messages before `ack`.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub(crate) fn control_acknowledged(&self, path: &Path, ack: u32) -> Result<(), ChannelError> {
        self.control.borrow_mut().acknowledged(ack)?;
        self.flush_control(path);
        Ok(())
    }
}
