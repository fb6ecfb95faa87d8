//! Driving the port: the part of the site link that exists only if the site has its own network.

use std::time::{Duration, Instant};

use wire::FrameHeader;
use wire::frame::FrameKind;

use super::SiteLink;
use super::connection::Phase;
use super::native::Finding;
use crate::link::Sink;
use crate::reader::Broken;

/// Time limit for goodbyes on close.
const FAREWELL: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(20);

impl SiteLink {
    /// Takes frames from the port and gives it queued ones. Returns true if anything moved.
    pub(super) fn drive_port(&mut self, sink: &mut dyn Sink) -> bool {
        let Some(native) = &mut self.native else { return false };
        let (mut broken, mut farewells) = (Vec::new(), Vec::new());
        let mut moved = match native.poll(&mut self.connections, Some(sink), &mut broken, &mut farewells) {
            Ok(moved) => moved,
            // The port itself is broken, and every lane with it.
            Err(reason) => {
                let keys = self.connections.iter().filter(|(_, connection)| connection.lane.is_some());
                broken.extend(keys.map(|(key, _)| (key, Broken::Lane(reason.to_string()))));
                true
            }
        };
        self.answer(&farewells);
        for (key, reason) in broken {
            self.lose_connection(key, reason, sink);
        }
        let waiting = self.native.as_mut().map(|native| native.take_waiting()).unwrap_or_default();
        for key in waiting {
            if self.connections.contains(key) {
                match self.flush(key, sink) {
                    Ok(any) => moved |= any,
                    Err(broken) => self.lose_connection(key, broken, sink),
                }
            }
        }
        self.tally(sink);
        if self.native.as_ref().is_some_and(|native| !native.ending.is_empty()) {
            self.end_lanes(sink);
        }
        moved
    }

    /// Reports the number of frames sent to each peer, and ends lanes that lose the peers' frames.
    fn tally(&mut self, sink: &mut dyn Sink) {
        let Some(native) = &mut self.native else { return };
        let found = native.look(&mut self.connections);
        let me = self.own.me.identity;
        let header = FrameHeader::plain(FrameKind::Tally, self.own.job, me, me);
        for (key, finding) in found {
            let broken = match finding {
                Finding::Broken(broken) => Some(broken),
                Finding::Tell(made) => {
                    let Some(connection) = self.connections.get_mut(key) else { continue };
                    connection.writer.stage(&FrameHeader { length: 4, ..header }.encode());
                    connection.writer.stage(&made.to_le_bytes());
                    connection.writer.send(&mut connection.stream, None).err().map(Broken::from)
                }
            };
            if let Some(broken) = broken {
                self.lose_connection(key, broken, sink);
            }
        }
    }

    /// Drops connections whose peer has sent its goodbye, or had the time for it.
    fn end_lanes(&mut self, sink: &mut dyn Sink) {
        let now = Instant::now();
        let keys = self.native.as_ref().map(|native| native.ending.clone()).unwrap_or_default();
        for key in keys {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let Some((until, reason)) = connection.lane.as_ref().and_then(|lane| lane.ending.clone()) else { continue };
            if connection.goodbye || until < now {
                self.drop_connection(key, Broken::Lane(reason), sink);
            }
        }
    }

    /// Answers goodbyes over TCP, so that their senders may close.
    fn answer(&mut self, farewells: &[usize]) {
        let me = self.own.me.identity;
        let header = FrameHeader::plain(FrameKind::Bye, self.own.job, me, me);
        for key in farewells {
            let Some(connection) = self.connections.get_mut(*key) else { continue };
            connection.writer.stage(&header.encode());
            // A peer that does not read the answer waits a little longer.
            let _ = connection.writer.send(&mut connection.stream, None);
        }
    }

    /// Sends a goodbye on all lanes, and waits a moment until their frames have been sent and the goodbyes are
    /// answered.
    pub(super) fn leave_lanes(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        while let Some(native) = &mut self.native {
            let mut all_left = true;
            for (_, connection) in &mut self.connections {
                let done = !matches!(connection.phase, Phase::Open) || !connection.queue.is_empty();
                if done || connection.goodbye || connection.has_answered() {
                    continue;
                }
                let Some(lane) = connection.lane.as_mut().filter(|lane| lane.ending.is_none()) else { continue };
                if lane.peer.is_some() {
                    native.say_goodbye(lane);
                    all_left = false;
                }
            }
            // All other frames that arrive are discarded.
            let mut farewells = Vec::new();
            let moved = native.poll(&mut self.connections, None, &mut Vec::new(), &mut farewells);
            self.answer(&farewells);
            if all_left || moved.is_err() || Instant::now() > deadline {
                return;
            }
            if matches!(moved, Ok(false)) {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
