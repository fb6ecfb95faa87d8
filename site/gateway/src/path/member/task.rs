//! The task of a member's connection: reading and forwarding, writing, heartbeats.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use ::member::pulse::{AGENT_SILENCE_S, LOOK_NS, Nod};
use ::member::{Beat, Pulse};
use tcp_info::{Machine, TcpInfo};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep, timeout};
use types::JobId;
use wire::{Control, FrameHeader, FrameKind};

use crate::log::{MEMBERS, log, short};
use crate::path::Path;
use crate::path::decipher::{Decipher, read_some};
use crate::path::limits::{MAX_PING, READ};
use crate::path::member::{ALIVE, Member};
use crate::path::neighbour::Neighbour;
use crate::path::outlet::LINGER;
use crate::path::reading::{Inflow, Stop, TimeShare};
use crate::table::Leave;
use crate::table::error::Violation;

/// The end of a member's connection.
enum MemberEnd {
    Dismissed,
    Silent(String),
    Stop(Stop),
}

/// Serves an admitted connection until it ends, and removes the member from the table. `own` handles the control
/// messages to the gateway. The caller then calls [`finish`].
pub(crate) async fn serve(
    path: &Path,
    member: &Rc<Member>,
    inflow: &mut Inflow,
    own: impl Fn(Control) -> Result<(), Violation>,
) {
    path.connections.borrow_mut().insert(member.id, member.clone());
    let end = tokio::select! {
        biased;
        stop = read_loop(path, member, inflow, own) => MemberEnd::Stop(stop),
        error = member.outlet.run(|| {}) => MemberEnd::Stop(Stop::Lost(error.to_string())),
        () = member.dismissed.notified() => MemberEnd::Dismissed,
        reason = member.heartbeat(path) => MemberEnd::Silent(reason),
    };
    path.connections.borrow_mut().remove(&member.id);
    let (job, identity) = (member.job.get(), member.identity.get());
    let leave = match end {
        MemberEnd::Dismissed => None,
        MemberEnd::Silent(reason) => Some(Leave::Silent(reason)),
        MemberEnd::Stop(Stop::Goodbye(_)) => Some(Leave::Goodbye),
        MemberEnd::Stop(Stop::Lost(reason)) => Some(Leave::Lost(reason)),
        MemberEnd::Stop(Stop::Violation(reason)) => {
            path.counters.violation();
            let (peer, who) = (member.address, identity.slot);
            log!(warn, MEMBERS, %peer, %job, member = %who, reason = short(&reason), "connection closed: protocol \
                violation");
            member.dismiss(&reason);
            Some(Leave::Lost(format!("the gateway closed its connection: {reason}")))
        }
    };
    if let Some(how) = leave {
        path.table.change(|table| table.leave(job, identity.slot, member, how));
    }
    if member.client {
        path.table.change(|table| table.launcher_gone(member));
    }
}

/// Writes the queued frames and closes the connection, within a time limit.
pub(crate) async fn finish(member: &Member, mut inflow: Inflow) {
    member.outlet.finish(|| {}).await;
    // Closing with unread input would reset the connection, and the other end might lose the goodbye.
    let mut sink = [0; 4096];
    let _ = timeout(LINGER, async { while matches!(inflow.read.read(&mut sink).await, Ok(1..)) {} }).await;
}

/// Reads and forwards until the connection ends.
async fn read_loop(
    path: &Path,
    member: &Rc<Member>,
    inflow: &mut Inflow,
    own: impl Fn(Control) -> Result<(), Violation>,
) -> Stop {
    let Inflow { read, cipher, plain } = inflow;
    let (mut partial, mut decipher) = (path.partial(), Decipher::new(path, cipher));
    partial.save(plain);
    let mut share = TimeShare::default();
    loop {
        let turn = poll_fn(|cx| {
            let mut scratch = path.plain.borrow_mut();
            let start = partial.len();
            let come = match &member.session {
                None => read_some(read, cx, &mut scratch[start..start + READ]).map_ok(|count| (count, false)),
                Some(session) => decipher.read(cx, read, path, session, &member.outlet, &mut scratch[start..]),
            };
            let (count, closed) = ready!(share.of(come))?;
            member.heard.set(path.tick());
            partial.restore(&mut scratch);
            let bytes = &scratch[..start + count];
            let result = path.forward(&Neighbour::Member(member.clone()), bytes, |header, payload| {
                member.handle(path, header, payload, &own)
            });
            if let Ok(used) = result {
                partial.save(&bytes[used..]);
            }
            Poll::Ready(result.and_then(|used| if closed { Err(Stop::closed()) } else { Ok(used) }))
        });
        if let Err(stop) = turn.await {
            return stop;
        }
        path.after_turn();
        share.taken(path.tick()).await;
        let waits_for = member.waits_for.take();
        if let Some(target) = waits_for {
            member.paused(path, target.drained(member.job.get())).await;
        }
        if path.is_memory_short() {
            member.paused(path, path.memory_eased()).await;
        }
    }
}

impl Member {
    /// Handles a frame addressed to the gateway itself.
    fn handle(
        &self,
        path: &Path,
        header: &FrameHeader,
        payload: &[u8],
        own: impl Fn(Control) -> Result<(), Violation>,
    ) -> Result<(), Stop> {
        match header.kind {
            FrameKind::Ping => {
                let back = FrameHeader::plain(FrameKind::Pong, header.job, header.to, header.from);
                self.send_own(path, back, &payload[..payload.len().min(MAX_PING as usize)]);
                Ok(())
            }
            FrameKind::Bye => Err(Stop::Goodbye(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Control => {
                let message = Control::decode(payload).map_err(|e| Stop::Violation(e.to_string()))?;
                Ok(own(message)?)
            }
            FrameKind::Pong
            | FrameKind::Ack
            | FrameKind::Data
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

    /// Waits for `until` without reading from the member. The pause is not the member's fault, so the member counts as
    /// heard.
    async fn paused(&self, path: &Path, until: impl Future<Output = ()>) {
        tokio::pin!(until);
        while timeout(ALIVE, &mut until).await.is_err() {
            self.heard.set(path.now());
        }
    }

    /// Pings a silent agent or launcher, and a silent rank of a job without agents. Returns when the member has been
    /// silent for too long. The limit is longer if the member's machine answers and this one is busy: 64 ranks on two
    /// cores once kept a launcher from running for many seconds. A rank of a job with agents is heard only while its
    /// program calls MPI, so its agent vouches for it. A member that is sending, or that is not being read, gets a sign
    /// of life from this gateway each second.
    async fn heartbeat(&self, path: &Path) -> String {
        let start = path.tick();
        let since = |at: Instant| (at - start).as_nanos() as u64;
        let (mut pulse, mut nod) = (Pulse::new(AGENT_SILENCE_S, 0), Nod::new(0));
        let mut machine = Machine::default();
        loop {
            sleep(Duration::from_nanos(LOOK_NS)).await;
            let now = path.tick();
            if self.job.get() == JobId::default() {
                pulse.heard(since(now));
                continue;
            }
            let heard = since(self.heard.get().max(start));
            // A member for which bytes are queued sees a sign of life anyway.
            if nod.is_due(heard, since(now)) && self.outlet.queued() == 0 {
                self.send_own(path, self.header(FrameKind::Pong), &[]);
            }
            let (job, slot) = (self.job.get(), self.identity.get().slot);
            if self.stopped.get() || path.table.read().jobs.get(&job).is_none_or(|job| !job.watches(slot)) {
                pulse.heard(since(now));
                continue;
            }
            pulse.heard(heard);
            let arrived = TcpInfo::of(self.outlet.socket()).ok().and_then(|info| info.arrived);
            let answers = machine.answers(arrived, since(now));
            let load = &path.load;
            let stretch = |limit, silent| if answers { load.silence(limit, silent) } else { limit };
            match pulse.look_patiently(since(now), stretch) {
                Beat::Quiet => {}
                Beat::Ping => self.send_own(path, self.header(FrameKind::Ping), &[]),
                Beat::Lost(seconds) => return format!("no sign of life for {seconds} s"),
            }
        }
    }
}
