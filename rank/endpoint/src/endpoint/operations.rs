//! A rank's operations: messages, remote memory, shares.

use memory::Buffer;

use super::{Endpoint, Route};
use crate::operation::{
    AtomicOp, CompleteWhen, Completion, Match, NotBegun, PeekThen, PeerId, ReadOp, RecvOp, SendOp, ShareOp, UserData,
    WriteOp,
};

impl Endpoint {
    /// Starts sending a message.
    ///
    /// # Errors
    /// [`NotBegun::Again`] when too much is queued; [`NotBegun::UnknownPeer`].
    pub fn send(&mut self, op: SendOp) -> Result<(), NotBegun> {
        self.check_room()?;
        let mut op = op;
        if self.route(op.to) == Route::Memory
            && let Some(memory) = &mut self.memory
        {
            let (to, length) = (op.to, op.buffer.len() as u64);
            let copied = op.complete == CompleteWhen::Buffered;
            match self.protocol.send_whole(op, |message, bytes| memory.write_whole(to, message, bytes)) {
                Ok(()) => {
                    self.traffic.memory.items += 1;
                    self.traffic.memory.bytes += length;
                    return Ok(());
                }
                Err(back) => op = back,
            }
            // The message would be copied only to wait: it is better to try again later.
            if copied && memory.is_full(to) {
                return Err(NotBegun::Again);
            }
        }
        self.protocol.send(op)?;
        self.drain();
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`NotBegun::UnknownPeer`].
    pub fn receive(&mut self, op: RecvOp) -> Result<(), NotBegun> {
        self.check_open()?;
        self.protocol.receive(op)?;
        self.drain();
        Ok(())
    }

    /// Starts a share: bytes for several ranks at other sites. It is sent when all receivers are ready or have room for
    /// it, and completes when its buffer is no longer read. If a receiver is lost, the others still get the share, and
    /// it completes with a failure.
    ///
    /// # Errors
    /// [`NotBegun::Tree`], [`NotBegun::UnknownPeer`], [`NotBegun::Closed`].
    pub fn share(&mut self, op: ShareOp) -> Result<(), NotBegun> {
        self.check_open()?;
        if self.gateway.is_none() {
            return Err(NotBegun::Tree("this rank's job has no other site"));
        }
        self.protocol.share(op)?;
        self.drain();
        Ok(())
    }

    /// Awaits the share of a peer with this key. It completes when all its bytes are in the buffer.
    ///
    /// # Errors
    /// [`NotBegun::Again`] if a share of the peer with this key is awaited already, or too many shares are;
    /// [`NotBegun::UnknownPeer`].
    pub fn receive_share(&mut self, from: PeerId, key: u64, buffer: Buffer, user: UserData) -> Result<(), NotBegun> {
        self.check_open()?;
        self.protocol.receive_share(from, key, buffer, user)?;
        if let Some(gateway) = &mut self.gateway {
            gateway.expect_share(from, &self.protocol);
        }
        self.drain();
        Ok(())
    }

    /// Number of bytes at the start of an awaited share that are in its buffer, to be passed on before the rest
    /// arrives. `None`: the share has completed.
    pub fn share_arrived(&self, user: UserData) -> Option<u64> {
        self.protocol.sharing.arrived(user)
    }

    /// Gives a share up. `true`: its memory is no longer used, and it has no completion with this `user`. `false`: it
    /// is being sent, and completes when its receivers have it or are lost; or it has completed already.
    pub fn forget_share(&mut self, user: UserData) -> bool {
        self.protocol.sharing.forget(user)
    }

    /// The oldest completion of a share not yet taken.
    pub fn next_share_completion(&mut self) -> Option<Completion> {
        self.protocol.sharing.completions.pop_front()
    }

    /// Looks for a message that has arrived (without making progress). Completes at once, possibly with `NoMessage`.
    pub fn peek(&mut self, matching: Match, then: PeekThen, user: UserData) {
        self.protocol.peek(matching, then, user);
        self.drain();
    }

    /// Receives the message claimed earlier under `user.context`.
    ///
    /// # Errors
    /// [`NotBegun::NotClaimed`].
    pub fn receive_claimed(&mut self, buffer: Buffer, user: UserData) -> Result<(), NotBegun> {
        self.protocol.receive_claimed(buffer, user, false)?;
        self.drain();
        Ok(())
    }

    /// Discards the message claimed earlier under `user.context`; completes.
    ///
    /// # Errors
    /// [`NotBegun::NotClaimed`].
    pub fn discard_claimed(&mut self, user: UserData) -> Result<(), NotBegun> {
        self.protocol.receive_claimed(Buffer::empty(), user, true)?;
        self.drain();
        Ok(())
    }

    /// Cancels the oldest posted receive with this context that has not matched. It completes with `Cancelled`. Returns
    /// false if there is none.
    pub fn cancel(&mut self, context: usize) -> bool {
        self.protocol.cancel(context)
    }

    /// Starts writing into a peer's region.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn write(&mut self, op: WriteOp) -> Result<(), NotBegun> {
        self.check_room()?;
        self.protocol.write(op)?;
        self.drain();
        Ok(())
    }

    /// Starts reading from a peer's region.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn read(&mut self, op: ReadOp) -> Result<(), NotBegun> {
        self.check_open()?;
        self.protocol.read(op)?;
        self.drain();
        Ok(())
    }

    /// Starts an atomic operation on a peer's region.
    ///
    /// # Errors
    /// As [`Endpoint::send`], and [`NotBegun::TooLong`].
    pub fn atomic(&mut self, op: AtomicOp) -> Result<(), NotBegun> {
        self.check_room()?;
        self.protocol.atomic(op)?;
        self.drain();
        Ok(())
    }
}
