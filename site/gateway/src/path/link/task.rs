//! The task of a link: reading and forwarding, writing, heartbeats.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use member::pulse::{Beat, LINK_SILENCE_S, LOOK_NS, Nod, Pulse};
use tokio::time::{Instant, sleep};
use types::JobId;
use wire::{FrameHeader, FrameKind};

use crate::path::Path;
use crate::path::decipher::Decipher;
use crate::path::limits::GATEWAY;
use crate::path::link::Link;
use crate::path::neighbour::Neighbour;
use crate::path::reading::{Inflow, Stop, TimeShare};

/// Serves a link until it closes or is cut; returns the reason. `own` handles the frames for the gateway itself. The
/// caller then sends its last frames, if any, and calls [`finish`].
pub(crate) async fn serve(
    path: &Path,
    link: &Rc<Link>,
    inflow: Inflow,
    own: impl Fn(&FrameHeader, &[u8]) -> Result<(), Stop>,
) -> Stop {
    tokio::select! {
        biased;
        stop = read_loop(path, link, inflow, own) => stop,
        error = link.outlet.run(|| link.refill(path)) => Stop::Lost(error.to_string()),
        reason = link.heartbeat(path) => Stop::Lost(reason),
        () = link.cut.notified() => Stop::Lost(link.cut_reason.take()),
    }
}

/// Writes the queued frames within a time limit and closes the connection.
pub(crate) async fn finish(path: &Path, link: &Link) {
    link.pings.borrow_mut().clear();
    link.outlet.finish(|| link.refill(path)).await;
    link.outlet.seal();
    link.waiting.borrow_mut().clear();
    link.notices.borrow_mut().clear();
    link.drained.notify_waiters();
}

impl Link {
    /// Pings a silent peer and returns when it has been silent for too long. A peer that sends gets a sign of life from
    /// this gateway once per second.
    async fn heartbeat(&self, path: &Path) -> String {
        let since = |at: Instant| (at - self.since).as_nanos() as u64;
        let (mut pulse, mut nod) = (Pulse::new(LINK_SILENCE_S, 0), Nod::new(0));
        let signal = |kind| self.send_own(path, FrameHeader::plain(kind, JobId::default(), GATEWAY, GATEWAY), &[]);
        loop {
            sleep(Duration::from_nanos(LOOK_NS)).await;
            let (now_ns, heard_ns) = (since(path.tick()), since(self.heard.get()));
            if nod.is_due(heard_ns, now_ns) && self.queued() == 0 {
                signal(FrameKind::Pong);
            }
            pulse.heard(heard_ns);
            match pulse.look(now_ns) {
                Beat::Quiet => {}
                Beat::Ping => signal(FrameKind::Ping),
                Beat::Lost(seconds) => return format!("no sign of life for {seconds} s"),
            }
        }
    }
}

async fn read_loop(
    path: &Path,
    link: &Rc<Link>,
    inflow: Inflow,
    own: impl Fn(&FrameHeader, &[u8]) -> Result<(), Stop>,
) -> Stop {
    let Inflow { mut read, cipher, plain } = inflow;
    let (mut partial, mut decipher) = (path.partial(), Decipher::new(path, &cipher));
    partial.save(&plain);
    let source = Neighbour::Link(link.clone());
    let mut share = TimeShare::default();
    loop {
        let turn = poll_fn(|cx| {
            let mut scratch = path.plain.borrow_mut();
            let start = partial.len();
            let come = decipher.read(cx, &mut read, path, &link.session, &link.outlet, &mut scratch[start..]);
            let (count, closed) = ready!(share.of(come))?;
            if link.outlet.is_closed() {
                // The link has been replaced or its site removed: bytes that still arrive are outdated.
                return Poll::Ready(Err(Stop::Lost(link.cut_reason.borrow().clone())));
            }
            link.heard.set(path.tick());
            partial.restore(&mut scratch);
            let bytes = &scratch[..start + count];
            let result = path.forward(&source, bytes, &own);
            let result = result.and_then(|used| link.is_not_read().map_or(Ok(used), |why| Err(Stop::Violation(why))));
            if let Ok(used) = result {
                link.received.set(link.received.get() + used as u64);
                partial.save(&bytes[used..]);
            }
            Poll::Ready(result.and_then(|_| if closed { Err(Stop::closed()) } else { Ok(()) }))
        });
        if let Err(stop) = turn.await {
            return stop;
        }
        path.after_turn();
        share.taken(path.now()).await;
    }
}
