//! Frames that arrive on a trunk's links for this gateway itself.

use std::rc::Rc;

use types::JobId;
use wire::control::{AllocationMessage, JobMessage, MeetingMessage};
use wire::{Control, FrameHeader, FrameKind};

use crate::path::limits::MAX_PING;
use crate::path::link::Link;
use crate::path::reading::Stop;
use crate::table::TrunkId;
use crate::table::error::Violation;
use crate::trunks::Trunks;
use crate::trunks::meeting::Wish;

impl Trunks {
    /// Handles a frame for this gateway.
    pub(super) fn handle(self: &Rc<Self>, link: &Link, header: &FrameHeader, payload: &[u8]) -> Result<(), Stop> {
        match header.kind {
            FrameKind::Ping => {
                if header.job != JobId::default() {
                    self.survey.receives(self.path.now());
                }
                let back = FrameHeader::plain(FrameKind::Pong, header.job, header.to, header.from);
                link.answer(&self.path, back, &payload[..payload.len().min(MAX_PING as usize)]);
                Ok(())
            }
            FrameKind::Pong => {
                match header.job {
                    JobId(0) => link.pong(payload),
                    job => self.measuring.acknowledged(job, self.path.now()),
                }
                Ok(())
            }
            FrameKind::Bye => Err(Stop::Goodbye(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Control => {
                let message = Control::decode(payload).map_err(|e| Stop::Violation(e.to_string()))?;
                let ready = self.list.get(link.trunk).control_came(&self.path, header, message)?;
                ready.into_iter().try_for_each(|message| self.control(link.trunk, message))
            }
            FrameKind::Ack => Ok(self.list.get(link.trunk).control_acknowledged(&self.path, header.ack)?),
            FrameKind::Data
            | FrameKind::Ask
            | FrameKind::Again
            | FrameKind::Answer
            | FrameKind::Refused
            | FrameKind::Undeliverable
            | FrameKind::Introduction
            | FrameKind::Passage
            | FrameKind::Tally
            | FrameKind::Many
            | FrameKind::Astray
            | FrameKind::Links => Ok(()),
        }
    }

    fn control(self: &Rc<Self>, trunk: TrunkId, message: Control) -> Result<(), Stop> {
        let begins = matches!(
            message,
            Control::Job(JobMessage::Open { .. }) | Control::Allocation(AllocationMessage::Ask { .. })
        );
        if begins {
            self.list.kick();
        }
        let table = &self.path.table;
        let result = match message {
            Control::Job(message) => table.change(|table| table.job_from_trunk(trunk, message)),
            Control::Allocation(message) => table.change(|table| table.allocation_from_trunk(trunk, message)),
            Control::Meeting(message) => {
                self.meeting(trunk, message);
                return Ok(());
            }
            Control::Measurement(message) => self.measuring.handle_trunk_message(trunk, message),
            Control::Links(message) => self.survey.handle_trunk_message(trunk, message),
            Control::Coupling(message) => self.couplings.handle_trunk_message(trunk, message),
            Control::Observation(_) | Control::Joining(_) => {
                Err(Violation(format!("site {} may not send a message for users", self.list.get(trunk).site)))
            }
        };
        Ok(result?)
    }

    fn meeting(self: &Rc<Self>, from: TrunkId, message: MeetingMessage) {
        match message {
            MeetingMessage::Ask { site, gateway, link } => self.host.wish(from, Wish { site, gateway, link }),
            MeetingMessage::Call { site, gateway, link, meeting, secret } => {
                let call = self.visits.called(from, &Wish { site, gateway, link }, meeting, secret);
                call.into_iter().for_each(|call| self.follow(call));
            }
            MeetingMessage::Refused { site, gateway, link, reason } => {
                self.visits.refused(from, &Wish { site, gateway, link }, reason);
            }
            MeetingMessage::CanCome { site, gateway } => {
                self.host.news(from, &site, &gateway);
                self.visits.can_come(&site, &gateway);
            }
        }
    }
}
