//! (skeleton of the interface; the inside is being written)
#![allow(missing_docs, unused_variables, clippy::unimplemented)]
use std::sync::Arc;
use std::time::Duration;

use memory::{Buffer, Regions};
use thiserror::Error;
use types::Address;

use crate::config::Config;
use crate::operation::{
    AtomicOp, Completion, Match, NotBegun, PeekThen, PeerId, ReadOp, RecvOp, SendOp, UserData, WriteOp,
};

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: std::net::SocketAddrV4, source: std::io::Error },
    #[error("gateway {address}: {reason}")]
    Gateway { address: std::net::SocketAddrV4, reason: String },
}

pub struct Endpoint {}

impl Endpoint {
    /// Binds the listener; in a job of several sites also connects to the site's gateways (bounded wait).
    pub fn open(config: Config, regions: Arc<Regions>) -> Result<Endpoint, OpenError> {
        unimplemented!()
    }
    /// Its own address, final after `open`.
    pub fn address(&self) -> Address {
        unimplemented!()
    }
    /// Interns an address. Cheap when known. Never fails (an unreachable peer shows as failed operations).
    pub fn peer(&mut self, address: Address) -> PeerId {
        unimplemented!()
    }
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        unimplemented!()
    }
    pub fn send(&mut self, op: SendOp) -> Result<(), NotBegun> {
        unimplemented!()
    }
    pub fn receive(&mut self, op: RecvOp) -> Result<(), NotBegun> {
        unimplemented!()
    }
    /// Looks for a message that has arrived (makes no progress itself). Completes at once, maybe with `NoMessage`.
    pub fn peek(&mut self, matching: Match, then: PeekThen, user: UserData) {
        unimplemented!()
    }
    /// Receives the message claimed earlier under `user.context`.
    pub fn receive_claimed(&mut self, buffer: Buffer, user: UserData) -> Result<(), NotBegun> {
        unimplemented!()
    }
    /// Discards the message claimed earlier under `user.context`; completes.
    pub fn discard_claimed(&mut self, user: UserData) -> Result<(), NotBegun> {
        unimplemented!()
    }
    /// Cancels the posted receive with this context if it has not matched; it completes with `Cancelled`. Whether one was found.
    pub fn cancel(&mut self, context: usize) -> bool {
        unimplemented!()
    }
    pub fn write(&mut self, op: WriteOp) -> Result<(), NotBegun> {
        unimplemented!()
    }
    pub fn read(&mut self, op: ReadOp) -> Result<(), NotBegun> {
        unimplemented!()
    }
    pub fn atomic(&mut self, op: AtomicOp) -> Result<(), NotBegun> {
        unimplemented!()
    }
    /// Moves bytes without waiting. Whether anything moved.
    pub fn progress(&mut self) -> bool {
        unimplemented!()
    }
    /// Sleeps until a socket has something or the time is over; then `progress`. Use when idle.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        unimplemented!()
    }
    pub fn next_completion(&mut self) -> Option<Completion> {
        unimplemented!()
    }
    /// Whether bytes, acknowledgements or transfers of ours are still under way.
    pub fn is_idle(&self) -> bool {
        unimplemented!()
    }
    /// Flushes what is queued (bounded by `Limits::linger`), says goodbye, closes.
    pub fn close(&mut self) {
        unimplemented!()
    }
}
