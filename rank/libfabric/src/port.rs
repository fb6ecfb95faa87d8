//! An endpoint on a site's own network, opened through libfabric: sends frames, receives frames.
//!
//! Frames are messages of at most [`Port::frame`] bytes. They are sent from and received into the port's own memory,
//! registered if the provider requires it. A number of receives is kept posted. When none is posted, the provider
//! queues incoming frames, or makes the sender wait (`FI_RM_ENABLED`): a slow receiver is never overrun. A provider
//! matches messages between two endpoints in order (`FI_ORDER_SAS`), but may report a short one before a long one that
//! was sent earlier: a user that needs order numbers them.
//!
//! Driven by polling, by one thread at a time; nothing here waits.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

use crate::abi::constants::*;
use crate::abi::events::{fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_cq_err_entry_1_20, fi_cq_msg_entry};
use crate::abi::objects::*;
use crate::call::{AGAIN, ERROR_AVAILABLE, Fault, entry};
use crate::frames::{Block, Control};
use crate::library::Libfabric;
use crate::offer::ProviderOffer;

/// Send frames per block; more blocks are added as needed.
const BLOCK: usize = 16;
/// Maximum number of completions per read.
const BATCH: usize = 16;
/// Longer than any provider's address, in bytes.
const MAX_NAME: usize = 256;

/// Address of a peer, as the provider's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(u64);

/// A frame that belongs to the port's user until it is posted or returned.
#[derive(Debug)]
pub struct Staged(usize);

/// Result of posting a frame.
#[derive(Debug)]
pub enum Posted {
    /// It was sent, and there will be no event for it.
    Left,
    /// It is in flight; an event with its ticket will follow.
    UnderWay,
    /// The provider has no room; post the frame again after polling.
    Again(Staged),
}

/// An event found by polling.
#[derive(Debug)]
pub enum PortEvent<'a> {
    /// A frame has arrived.
    Received(&'a [u8]),
    /// A frame with this ticket has been sent.
    Sent(u64),
    /// A frame with this ticket will never arrive.
    Failed(u64, Fault),
}

/// An open endpoint. Closes when dropped; frames in flight may then be lost.
pub struct Port {
    library: Libfabric,
    offer: ProviderOffer,
    name: Vec<u8>,
    frame: usize,
    inject: usize,
    wait: Option<RawFd>,
    peers: HashMap<Vec<u8>, PeerAddress>,
    receives: Option<Block>,
    unposted: Vec<usize>,
    sends: Vec<Block>,
    free: Vec<usize>,
    next_key: u64,
    objects: Objects,
}

/// libfabric's objects; null until opened.
struct Objects {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
}

// SAFETY: `FI_THREAD_DOMAIN` is negotiated: all objects may be used from any thread, one at a time, which `&mut self`
// ensures (and `&self` where libfabric only reads). Blocks belong to the port.
unsafe impl Send for Port {}

impl Port {
    /// Opens an endpoint as offered, with frames of at most `frame` bytes and `receives` receives posted at a time.
    ///
    /// # Errors
    /// The call that failed.
    pub fn open(library: &Libfabric, offer: ProviderOffer, frame: usize, receives: usize) -> Result<Port, Fault> {
        let (info, ep_attr, _) = offer.parts();
        // SAFETY: an offer's attributes are there.
        let (tx, rx) = unsafe { (&*info.tx_attr, &*info.rx_attr) };
        let (frame, inject) = (frame.min(ep_attr.max_msg_size), tx.inject_size);
        let receives = if rx.size > 0 { receives.min(rx.size) } else { receives };
        let objects =
            Objects { fabric: null_mut(), domain: null_mut(), av: null_mut(), cq: null_mut(), ep: null_mut() };
        let mut port = Port {
            library: library.clone(),
            offer,
            name: Vec::new(),
            frame,
            inject,
            wait: None,
            peers: HashMap::new(),
            receives: None,
            unposted: (0..receives).collect(),
            sends: Vec::new(),
            free: Vec::new(),
            next_key: 1,
            objects,
        };
        port.open_objects()?;
        let block = port.register(Block::new(receives, frame, 0))?;
        port.receives = Some(block);
        port.post_receives()?;
        Ok(port)
    }

    /// The provider and the libfabric that contains it, in readable form.
    pub fn describe(&self) -> String {
        format!("{} of {:?}", self.provider(), self.library)
    }

    /// The provider's full name.
    pub fn provider(&self) -> String {
        self.offer.provider()
    }

    /// The address that peers use to reach this port.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Maximum length of a frame, in bytes.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// A descriptor that is readable when polling may find something, if the provider has one. Call [`Port::may_sleep`]
    /// before each wait on it.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: belongs to the completion queue, which is open as long as the port.
        self.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns true if it is safe to wait on the descriptor: nothing has arrived that it would not report.
    pub fn may_sleep(&self) -> bool {
        // SAFETY: both objects are open; `fi_trywait` takes an array of objects.
        unsafe {
            let trywait = entry!((*self.objects.fabric).ops, fi_ops_fabric, trywait);
            let mut fids = [&raw mut (*self.objects.cq).fid];
            trywait.is_none_or(|trywait| trywait(self.objects.fabric, fids.as_mut_ptr(), 1) == 0)
        }
    }

    /// Adds a peer by its port's name.
    ///
    /// # Errors
    /// A name that this provider's ports cannot have, or the provider's error.
    pub fn insert(&mut self, name: &[u8]) -> Result<PeerAddress, Fault> {
        if let Some(known) = self.peers.get(name) {
            return Ok(*known);
        }
        let is_text = self.offer.parts().0.addr_format == FI_ADDR_STR;
        // Providers read as many bytes as their addresses have, regardless of the given length.
        let fits =
            if is_text { name.len() < MAX_NAME && name.last() == Some(&0) } else { name.len() == self.name.len() };
        if !fits {
            return Err(self.library.fault("fi_av_insert", -i64::from(libc::EINVAL)));
        }
        let mut padded = [0u8; MAX_NAME];
        padded[..name.len()].copy_from_slice(name);
        let mut number = FI_ADDR_NOTAVAIL;
        // SAFETY: the address vector is open; the buffer is longer than any address, and the provider copies it.
        let code = unsafe {
            let insert = entry!((*self.objects.av).ops, fi_ops_av, insert)
                .ok_or_else(|| self.library.missing("fi_av_insert"))?;
            insert(self.objects.av, padded.as_ptr().cast(), 1, &mut number, 0, null_mut())
        };
        if code != 1 || number == FI_ADDR_NOTAVAIL {
            return Err(self.library.fault("fi_av_insert", if code < 0 { code } else { -libc::EINVAL }));
        }
        self.peers.insert(name.to_vec(), PeerAddress(number));
        Ok(PeerAddress(number))
    }

    /// Returns a frame to fill.
    ///
    /// # Errors
    /// Memory for more frames could not be registered.
    pub fn stage(&mut self) -> Result<Staged, Fault> {
        if self.free.is_empty() {
            let first = self.sends.len() * BLOCK;
            let block = self.register(Block::new(BLOCK, self.frame, first))?;
            self.sends.push(block);
            self.free.extend((first..first + BLOCK).rev());
        }
        Ok(Staged(self.free.pop().unwrap_or_default()))
    }

    pub fn bytes(&mut self, staged: &Staged) -> &mut [u8] {
        // SAFETY: the owner of the `Staged` owns the frame; posting the frame consumes it.
        unsafe { self.sends[staged.0 / BLOCK].bytes_mut(staged.0 % BLOCK) }
    }

    /// Returns an unused frame.
    pub fn unstage(&mut self, staged: Staged) {
        self.free.push(staged.0);
    }

    /// Sends the first `length` bytes of a frame.
    ///
    /// # Errors
    /// The provider's error; the frame has been returned.
    pub fn post(&mut self, staged: Staged, length: usize, to: PeerAddress, ticket: u64) -> Result<Posted, Fault> {
        let Staged(number) = staged;
        let length = length.min(self.frame);
        let (block, at) = (&self.sends[number / BLOCK], number % BLOCK);
        let (start, control, ep) = (block.start(at), block.control(at), self.objects.ep);
        // SAFETY: the endpoint is open. The frame's memory does not move, and nobody touches it until its completion
        // (until then it is in no list), or it was copied if injected. Its control is ours until posted.
        let (code, injected) = unsafe {
            let table = (*ep).msg;
            let inject = if length <= self.inject { entry!(table, fi_ops_msg, inject) } else { None };
            match inject {
                Some(inject) => (inject(ep, start.cast(), length, to.0), true),
                None => {
                    let send = entry!(table, fi_ops_msg, send).ok_or_else(|| self.library.missing("fi_send"))?;
                    (*control).ticket = ticket;
                    (send(ep, start.cast(), length, block.descriptor(), to.0, control.cast()), false)
                }
            }
        };
        match code {
            0 if injected => {
                self.free.push(number);
                Ok(Posted::Left)
            }
            0 => Ok(Posted::UnderWay),
            AGAIN => Ok(Posted::Again(staged)),
            code => {
                self.free.push(number);
                Err(self.library.fault("fi_send", code as i64))
            }
        }
    }

    /// Makes progress and reports events. Returns true if there were any.
    ///
    /// # Errors
    /// The port is broken.
    pub fn poll(&mut self, tell: &mut dyn FnMut(PortEvent<'_>)) -> Result<bool, Fault> {
        let nothing = fi_cq_msg_entry { op_context: null_mut(), flags: 0, len: 0 };
        let mut entries = [nothing; BATCH];
        let cq = self.objects.cq;
        // SAFETY: the queue is open, its format is FI_CQ_FORMAT_MSG, and there is room for `BATCH` entries.
        let count = unsafe {
            let read = entry!((*cq).ops, fi_ops_cq, read).ok_or_else(|| self.library.missing("fi_cq_read"))?;
            read(cq, entries.as_mut_ptr().cast(), BATCH)
        };
        match count {
            AGAIN => {
                if !self.unposted.is_empty() {
                    self.post_receives()?;
                }
                return Ok(false);
            }
            ERROR_AVAILABLE => self.take_error(tell)?,
            count if count < 0 => return Err(self.library.fault("fi_cq_read", count as i64)),
            count => {
                for entry in &entries[..(count as usize).min(BATCH)] {
                    self.complete(entry.op_context, Ok(entry.len), tell);
                }
            }
        }
        self.post_receives()?;
        Ok(true)
    }

    /// An operation has ended; its context identifies the frame.
    fn complete(&mut self, context: *mut c_void, result: Result<usize, Fault>, tell: &mut dyn FnMut(PortEvent<'_>)) {
        if context.is_null() {
            return;
        }
        // SAFETY: libfabric returns the contexts that it was given, each the control of one of our frames, once.
        let (number, ticket) = unsafe { ((*context.cast::<Control>()).number, (*context.cast::<Control>()).ticket) };
        if let Some(receives) = self.receives.as_ref().filter(|receives| receives.holds(context, number)) {
            if let Ok(length) = result {
                // SAFETY: the receive is complete: the provider no longer holds the frame.
                tell(PortEvent::Received(unsafe { receives.bytes(number, length) }));
            }
            self.unposted.push(number);
            return;
        }
        self.free.push(number);
        tell(match result {
            Ok(_) => PortEvent::Sent(ticket),
            Err(fault) => PortEvent::Failed(ticket, fault),
        });
    }

    fn take_error(&mut self, tell: &mut dyn FnMut(PortEvent<'_>)) -> Result<(), Fault> {
        // SAFETY: numbers and null pointers: no buffer for more data. A library that knows a longer structure writes
        // only the fields of the API version that we requested; room for the next field is there anyway.
        let mut error: fi_cq_err_entry_1_20 = unsafe { std::mem::zeroed() };
        let cq = self.objects.cq;
        // SAFETY: the queue is open.
        let code = unsafe {
            let readerr = entry!((*cq).ops, fi_ops_cq, readerr).ok_or_else(|| self.library.missing("fi_cq_readerr"))?;
            readerr(cq, &mut error.entry, 0)
        };
        if code < 0 && code != AGAIN {
            return Err(self.library.fault("fi_cq_readerr", code as i64));
        }
        let fi_cq_err_entry { op_context, err, .. } = error.entry;
        let fault = self.library.fault("fi_send", -i64::from(err));
        self.complete(op_context, Err(fault), tell);
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Fault> {
        let (Some(receives), ep) = (&self.receives, self.objects.ep) else { return Ok(()) };
        while let Some(number) = self.unposted.pop() {
            let (start, context) = (receives.start(number), receives.context(number));
            // SAFETY: the endpoint is open; the frame is in no list now, so nobody touches it until it completes.
            let code = unsafe {
                let recv = entry!((*ep).msg, fi_ops_msg, recv).ok_or_else(|| self.library.missing("fi_recv"))?;
                recv(ep, start.cast(), self.frame, receives.descriptor(), FI_ADDR_UNSPEC, context)
            };
            match code {
                0 => {}
                AGAIN => {
                    self.unposted.push(number);
                    break;
                }
                code => return Err(self.library.fault("fi_recv", code as i64)),
            }
        }
        Ok(())
    }
}

mod objects;

#[cfg(test)]
mod tests;
