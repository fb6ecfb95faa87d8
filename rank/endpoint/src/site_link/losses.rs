//! Connections to ranks of the same site that can no longer be used, and the items that were queued for them.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Instant;

use rustix::event::epoll;

use super::connection::{Phase, SiteConnection};
use super::{MAX_SILENT, SiteLink};
use crate::link::{Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::Broken;

impl SiteLink {
    /// Handles a connection that can no longer be used. If it has a lane, it waits for the peer's earlier frames, and
    /// possibly its goodbye.
    pub(super) fn lose_connection(&mut self, key: usize, broken: Broken, sink: &mut dyn Sink) {
        let waits = matches!(broken, Broken::Closed | Broken::Io(_) | Broken::Lane(_));
        self.note(key, &broken, sink);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let (Some(native), Some(lane), false, true) =
            (&mut self.native, &mut connection.lane, connection.goodbye, waits)
        {
            native.end(key, lane, broken.to_string());
            self.hot.retain(|hot| *hot != key);
            // If this fails, epoll does not watch the socket, which is just as good.
            let _ = epoll::delete(&self.epoll, &connection.stream);
            return;
        }
        self.drop_connection(key, broken, sink);
    }

    /// Keeps the reason for a report, unless the peer's process has ended: the agent reports that.
    fn note(&mut self, key: usize, broken: &Broken, sink: &dyn Sink) {
        let has_ended = match broken {
            Broken::Closed => true,
            Broken::Io(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            Broken::Duplicate => true,
            Broken::Refused(_) | Broken::Misbehaved(_) | Broken::Lane(_) | Broken::Silent(_) => false,
        };
        let peer = self.connections.get(key).filter(|connection| !connection.goodbye).and_then(|c| c.peer);
        if let (false, Some(address)) = (has_ended, peer.and_then(|peer| sink.address(peer))) {
            self.trouble.get_or_insert_with(|| (address, broken.to_string()));
        }
    }

    pub(super) fn drop_connection(&mut self, key: usize, broken: Broken, sink: &mut dyn Sink) {
        let mut connection = self.connections.remove(key);
        if let (Some(native), Some(lane)) = (&mut self.native, connection.lane.take()) {
            native.forget(key, lane);
        }
        self.hot.retain(|hot| *hot != key);
        if !matches!(connection.phase, Phase::Open) {
            self.opening -= 1;
        }
        let Some(peer) = connection.peer else { return };
        if self.sending.get(&peer) == Some(&key) {
            self.sending.remove(&peer);
        }
        if matches!(broken, Broken::Duplicate) {
            let open =
                |(_, other): &(usize, &SiteConnection)| other.peer == Some(peer) && matches!(other.phase, Phase::Open);
            let items = std::mem::take(&mut connection.queue);
            // The peer may have computed for hours before it refused: its time to dial starts now.
            self.parked.insert(peer, (Instant::now() + self.connect_timeout, items));
            if let Some(other) = self.connections.iter().find(open).map(|(key, _)| key) {
                self.adopt(peer, other);
                self.turn(other, sink);
            }
            return;
        }
        sink.lost(peer, (!connection.goodbye).then(|| broken.to_string()));
        self.give_up(peer, connection.queue, sink);
    }

    /// Gives up connections and items whose time limit has passed. Only the peer's kernel has to be quick: its process
    /// answers a handshake at its next call, which may be after hours of computing. See [`super::life`] for silent
    /// machines.
    pub(super) fn expire(&mut self, sink: &mut dyn Sink) {
        let now = Instant::now();
        let unreachable = |c: &SiteConnection| matches!(c.phase, Phase::Connecting(_)) && c.deadline < now;
        let keys: Vec<usize> = self.connections.iter().filter(|(_, c)| unreachable(c)).map(|(key, _)| key).collect();
        for key in keys {
            let reason = format!("no answer within {} s of dialling", self.connect_timeout.as_secs());
            self.lose_connection(key, Broken::Refused(reason), sink);
        }
        let silent = |c: &SiteConnection| {
            matches!(&c.phase, Phase::Accepting(acceptor) if acceptor.is_first()) && c.deadline < now
        };
        let mut silent: Vec<(Instant, usize)> =
            self.connections.iter().filter(|(_, c)| silent(c)).map(|(key, c)| (c.deadline, key)).collect();
        if silent.len() > MAX_SILENT {
            silent.sort_unstable();
            for (_, key) in &silent[..silent.len() - MAX_SILENT] {
                self.drop_connection(
                    *key,
                    Broken::Refused("it has sent nothing, and other connections wait".into()),
                    sink,
                );
            }
        }
        // A connection in its handshake may come from a peer that we wait for.
        if self.connections.iter().any(|(_, c)| matches!(c.phase, Phase::Accepting(_))) {
            return;
        }
        let late = |(peer, (deadline, _)): (&PeerId, &(Instant, _))| (*deadline < now).then_some(*peer);
        let peers: Vec<PeerId> = self.parked.iter().filter_map(late).collect();
        for peer in peers {
            sink.lost(peer, Some("it refused our connection and did not dial us instead".into()));
            let items = self.parked.remove(&peer).map(|(_, items)| items).unwrap_or_default();
            self.give_up(peer, items, sink);
        }
    }

    /// Reports items that will never be sent.
    fn give_up(&mut self, peer: PeerId, items: VecDeque<Outgoing>, sink: &mut dyn Sink) {
        for item in items {
            if item.detach {
                self.buffered -= item.end;
            }
            item.sent.into_iter().for_each(|sent| sink.unsent(peer, sent));
        }
    }
}
