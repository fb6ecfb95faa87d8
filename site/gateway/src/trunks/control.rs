//! Control messages between two gateways. Each is kept until the other gateway acknowledges it, so that none is lost
//! with a link. No I/O.

use std::collections::VecDeque;

use channel::{Arrival, ChannelError, Inbound, Outbound, Route};
use thiserror::Error;
use types::JobId;
use wire::frame::HEADER_LEN;
use wire::{Control, FrameHeader, FrameKind, WireError};

use crate::path::limits::GATEWAY;

/// Most bytes in flight; the longest message fits twice.
const WINDOW: u32 = 2 << 20;
/// Most messages in flight.
const IN_FLIGHT: u32 = 1024;
/// Most bytes queued beyond the window. Each message counts as [`MESSAGE`] bytes of memory besides its payload.
const WAITING: usize = 4 << 20;
const MESSAGE: usize = 128;

/// Reasons why a message cannot be sent.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    /// It cannot be encoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The other gateway acknowledges nothing.
    #[error("{waiting} bytes of control messages are queued for it and it acknowledges none")]
    Full { waiting: usize },
}

/// Control messages in both directions between two gateways.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    outbound: Outbound<(JobId, Vec<u8>)>,
    /// The number of the first message that the other gateway has not acknowledged.
    acknowledged: u32,
    inbound: Inbound<Control>,
    /// Messages that do not fit the window yet.
    queue: VecDeque<(JobId, Vec<u8>)>,
    /// Bytes in `queue`, as [`WAITING`] counts them.
    waiting: usize,
    /// The run number of the other gateway's process, once it is known.
    run: Option<u32>,
}

impl ControlChannel {
    pub(crate) fn new() -> ControlChannel {
        ControlChannel {
            outbound: Outbound::new(WINDOW),
            acknowledged: 0,
            inbound: Inbound::new(WINDOW),
            queue: VecDeque::new(),
            waiting: 0,
            run: None,
        }
    }

    /// Notes the run number of the other gateway's process. Returns true if that process is new: it then knows nothing
    /// of the messages that its predecessor received.
    pub(crate) fn meets(&mut self, run: u32) -> bool {
        let another = self.run.is_some_and(|known| known != run);
        if another {
            *self = ControlChannel::new();
        }
        self.run = Some(run);
        another
    }

    /// Queues a message.
    ///
    /// # Errors
    /// It is too long, or the queue is full.
    pub(crate) fn push(&mut self, message: &Control) -> Result<(), ControlError> {
        let payload = message.encode()?;
        let after = self.waiting + payload.len() + MESSAGE;
        if after > WAITING && !self.queue.is_empty() {
            return Err(ControlError::Full { waiting: self.waiting });
        }
        self.waiting = after;
        self.queue.push_back((message.job().unwrap_or_default(), payload));
        Ok(())
    }

    /// Approximate memory in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.waiting as u64 + self.outbound.in_flight()
    }

    /// The next frame to send on this link, if one may be sent, and its job.
    pub(crate) fn next(&mut self, link: Route) -> Option<(JobId, Vec<u8>)> {
        if let Some(frame) = self.outbound.resend(link) {
            return Some(frame.clone());
        }
        let (_, payload) = self.queue.front()?;
        let bytes = (HEADER_LEN + payload.len()) as u32;
        let in_flight = self.outbound.next().wrapping_sub(self.acknowledged);
        if in_flight >= IN_FLIGHT || !self.outbound.may_send(bytes) {
            return None;
        }
        let (job, payload) = self.queue.pop_front()?;
        self.waiting -= payload.len() + MESSAGE;
        let plain = FrameHeader::plain(FrameKind::Control, job, GATEWAY, GATEWAY);
        let header = FrameHeader { sequence: self.outbound.next(), ack: self.inbound.acknowledge(), ..plain };
        // The length was checked when the message was encoded.
        let frame = header.with_payload(&payload).ok()?;
        self.outbound.sent(link, bytes, (job, frame.clone()));
        Some((job, frame))
    }

    /// Handles the loss of all frames in flight on this link.
    pub(crate) fn lost(&mut self, link: Route) {
        self.outbound.lost(link);
        self.inbound.ack_lost();
    }

    /// Takes a message that arrived and returns the messages that are now next in order. Each is acknowledged at once,
    /// because they are rare.
    pub(crate) fn came(&mut self, header: &FrameHeader, message: Control) -> Result<Vec<Control>, ChannelError> {
        self.acknowledged(header.ack)?;
        let bytes = HEADER_LEN as u32 + header.length;
        let mut ready = Vec::new();
        match self.inbound.received(header.sequence, bytes)? {
            Arrival::Next => {
                ready.push(message);
                ready.extend(std::iter::from_fn(|| self.inbound.next_early()));
            }
            Arrival::Early => self.inbound.keep(header.sequence, bytes, message),
            Arrival::Again => {}
        }
        self.inbound.ack_now();
        Ok(ready)
    }

    pub(crate) fn acknowledged(&mut self, ack: u32) -> Result<(), ChannelError> {
        self.outbound.acknowledged(ack)?;
        // An older acknowledgement changes nothing.
        if self.outbound.next().wrapping_sub(ack) < self.outbound.next().wrapping_sub(self.acknowledged) {
            self.acknowledged = ack;
        }
        Ok(())
    }

    /// The acknowledgement to send, if one is due.
    pub(crate) fn ack(&mut self) -> Option<[u8; HEADER_LEN]> {
        let plain = FrameHeader::plain(FrameKind::Ack, JobId::default(), GATEWAY, GATEWAY);
        self.inbound.ack_is_due().then(|| FrameHeader { ack: self.inbound.acknowledge(), ..plain }.encode())
    }
}

#[cfg(test)]
mod tests {
    use wire::control::{JobMessage, MeasurementMessage};

    use super::*;

    const LINK: Route = Route(0);

    fn closed(job: u32) -> Control {
        Control::Job(JobMessage::close(JobId(job)))
    }

    fn take(to: &mut ControlChannel, frame: &[u8]) -> Vec<Control> {
        let header = FrameHeader::decode(frame, wire::frame::MAX_PAYLOAD).unwrap();
        to.came(&header, Control::decode(&frame[HEADER_LEN..]).unwrap()).unwrap()
    }

    #[test]
    fn messages_survive_a_link_and_arrive_in_order() {
        let (mut a, mut b) = (ControlChannel::new(), ControlChannel::new());
        (1..=4).for_each(|job| a.push(&closed(job)).unwrap());
        let (job, first) = a.next(LINK).unwrap();
        assert_eq!(job, JobId(1));
        let (_, (_, third)) = (a.next(Route(1)).unwrap(), a.next(LINK).unwrap());
        assert_eq!(take(&mut b, &first), [closed(1)]);
        assert_eq!(take(&mut b, &third), []);
        // The second message was on a link that broke, and so was the acknowledgement of the first.
        assert!(b.ack().is_some());
        a.lost(Route(1));
        b.lost(Route(1));
        assert_eq!(take(&mut b, &a.next(LINK).unwrap().1), [closed(2), closed(3)]);
        assert_eq!(take(&mut b, &first), [], "it has arrived before");
        assert_eq!(take(&mut b, &a.next(LINK).unwrap().1), [closed(4)]);
        let ack = FrameHeader::decode(&b.ack().unwrap(), 0).unwrap();
        a.acknowledged(ack.ack).unwrap();
        assert_eq!((a.outbound.in_flight(), b.ack()), (0, None));
    }

    #[test]
    fn a_restarted_peer_starts_over() {
        let mut a = ControlChannel::new();
        assert!(!a.meets(5) && !a.meets(5));
        a.push(&closed(1)).unwrap();
        let _ = a.next(LINK);
        assert!(a.meets(6));
        a.lost(LINK);
        assert_eq!(a.next(LINK), None, "messages for the previous run are gone");
    }

    #[test]
    fn a_peer_that_does_not_acknowledge_is_sent_no_more_than_the_window() {
        let mut a = ControlChannel::new();
        let long = Control::Measurement(MeasurementMessage::Probe { site: "x".repeat(500_000) });
        let taken = std::iter::from_fn(|| a.push(&long).ok()).take(100).count();
        assert_eq!(taken, WAITING / 500_000, "the rest is refused");
        let sent: usize = std::iter::from_fn(|| a.next(LINK)).map(|(_, frame)| frame.len()).sum();
        assert!(sent <= WINDOW as usize && sent > WINDOW as usize / 2, "{sent}");
        assert!(a.held() <= (WAITING + WINDOW as usize) as u64);
        assert!(a.push(&long).is_ok());
        while a.next(Route(1)).is_some() {}
        let before = a.held();
        a.acknowledged(2).unwrap();
        assert!(a.held() <= before - 1_000_000);
    }
}
