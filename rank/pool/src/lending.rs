//! Memory that a process lends to others of its node, in slots. It writes into a slot and tells one of the others, by
//! whatever means, which one; that one reads it where it is, and gives it back. So elements are copied once on their
//! way in, and once on their way out, and by nobody in between.
//!
//! The memory is a file without a name, which others open through its owner's entry in /proc: nothing is left of it
//! when the processes are gone, however they went, and no limit of /dev/shm applies.

use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::HostId;
use crate::mapping::Mapping;

/// Bytes of a [`Lender::address`].
pub const ADDRESS: usize = 48;
/// Each slot's word is in a cache line of its own: two processes write it.
const LINE: u64 = 64;
/// Of a word: the slot may be taken.
const FREE: u64 = 0;

/// A process's own memory for others.
pub struct Lender {
    memory: Slots,
    file: File,
    next: AtomicU64,
}

/// Another process's memory.
pub struct Borrower(Slots);

/// A slot while it is lent: it may be lent again later, but never as this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub slot: u64,
    /// The word of the slot.
    pub number: u64,
}

/// The first word says whose memory it is, each slot has one more, and then come the slots.
struct Slots {
    mapping: Mapping,
    key: u64,
    count: u64,
    bytes: u64,
}

impl Lender {
    /// `count` slots of `bytes` each, of which none takes memory before it is used.
    ///
    /// # Errors
    /// The system's.
    pub fn new(count: u64, bytes: u64) -> io::Result<Lender> {
        let file = File::from(memfd_create("landbridge-lent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        let length = length(count, bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        ftruncate(&file, length)?;
        // Nobody can make it shorter under those who read.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let key = std::hash::RandomState::new().hash_one(length).max(1);
        let memory = Slots { mapping: Mapping::new(&file, 0, length)?, key, count, bytes };
        memory.mapping.word(0).store(key, Ordering::Release);
        Ok(Lender { memory, file, next: AtomicU64::new(1) })
    }

    /// What another process has to know to open it.
    pub fn address(&self) -> [u8; ADDRESS] {
        let Slots { key, count, bytes, .. } = self.memory;
        let words = [HostId::own().0, std::process::id().into(), self.file.as_raw_fd() as u64, key, count, bytes];
        let mut address = [0; ADDRESS];
        address.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        address
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.memory.bytes as usize
    }

    /// A slot that nobody uses, to be written and lent; `None`: all are lent.
    pub fn take(&self) -> Option<Lent> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let free = |slot: &u64| {
            let word = self.memory.word(*slot);
            // The elements that another has read were read before its word was set.
            word.compare_exchange(FREE, number, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = (0..self.memory.count).find(free)?;
        Some(Lent { slot, number })
    }

    /// Whether nobody has given it back yet.
    pub fn is_lent(&self, lent: Lent) -> bool {
        self.memory.word(lent.slot).load(Ordering::Acquire) == lent.number
    }

    /// Where the bytes of a slot are, which is written only between [`Lender::take`] and telling another process.
    pub fn place(&self, lent: Lent) -> *mut u8 {
        self.memory.place(lent.slot)
    }
}

impl Borrower {
    /// Opens another process's memory.
    ///
    /// # Errors
    /// It is of another host, its process is gone or not of this user, or the address is none.
    pub fn open(address: &[u8]) -> io::Result<Borrower> {
        let mut words = address.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let mut word = || words.next().ok_or(io::ErrorKind::InvalidInput);
        let (host, pid, fd, key, count, bytes) = (word()?, word()?, word()?, word()?, word()?, word()?);
        if !HostId::own().shares_processes(HostId(host)) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
        let length = length(count, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() != length {
            return Err(io::ErrorKind::NotFound.into());
        }
        let memory = Slots { mapping: Mapping::new(&file, 0, length)?, key, count, bytes };
        match memory.mapping.word(0).load(Ordering::Acquire) == key {
            true => Ok(Borrower(memory)),
            // Another process with the number of one that is gone.
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Where the bytes of a slot are, which may be read until it is given back.
    pub fn place(&self, lent: Lent) -> *const u8 {
        self.0.place(lent.slot)
    }

    /// Has been read, and may be used again.
    pub fn give_back(&self, lent: Lent) {
        self.0.give_back(lent);
    }
}

impl std::fmt::Debug for Lender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lender({} slots of {} bytes)", self.memory.count, self.memory.bytes)
    }
}

impl std::fmt::Debug for Borrower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Borrower({} slots of {} bytes)", self.0.count, self.0.bytes)
    }
}

impl Lent {
    /// Bytes of [`Lent::told`].
    pub const BYTES: usize = 16;

    /// What another process is told.
    pub fn told(self) -> [u8; Lent::BYTES] {
        ((u128::from(self.number) << 64) | u128::from(self.slot)).to_le_bytes()
    }

    /// What [`Lent::told`] says.
    pub fn read(told: [u8; Lent::BYTES]) -> Lent {
        let both = u128::from_le_bytes(told);
        Lent { slot: both as u64, number: (both >> 64) as u64 }
    }
}

impl Slots {
    fn word(&self, slot: u64) -> &AtomicU64 {
        assert!(slot < self.count, "there is no slot {slot}");
        self.mapping.word(LINE * (slot + 1))
    }

    fn place(&self, slot: u64) -> *mut u8 {
        assert!(slot < self.count, "there is no slot {slot}");
        self.mapping.at(head(self.count) + slot * self.bytes, self.bytes as usize)
    }

    fn give_back(&self, lent: Lent) {
        // Nobody but the one that it is lent to writes this word now.
        if self.word(lent.slot).load(Ordering::Relaxed) == lent.number {
            self.word(lent.slot).store(FREE, Ordering::Release);
        }
    }
}

/// Bytes before the first slot: whole pages.
fn head(count: u64) -> u64 {
    (LINE * (count + 1)).next_multiple_of(4096)
}

fn length(count: u64, bytes: u64) -> Option<u64> {
    let head = count.checked_add(1)?.checked_mul(LINE)?.checked_next_multiple_of(4096)?;
    head.checked_add(count.checked_mul(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(lender: &Lender, lent: Lent, with: u8) {
        // SAFETY: the slot has as many bytes, and is ours.
        unsafe { std::ptr::write_bytes(lender.place(lent), with, lender.bytes()) };
    }

    #[test]
    fn what_is_lent_is_read_and_given_back() {
        let lender = Lender::new(3, 8192).unwrap();
        let borrower = Borrower::open(&lender.address()).unwrap();
        for round in 1..20 {
            let lent: Vec<Lent> = std::iter::from_fn(|| lender.take()).collect();
            assert_eq!(lent.len(), 3);
            for (at, each) in (0..).zip(&lent) {
                write(&lender, *each, 10 * round + at);
                let each = Lent::read(each.told());
                // SAFETY: nobody writes it before it is given back.
                let read = unsafe { std::slice::from_raw_parts(borrower.place(each), 8192) };
                assert!(read.iter().all(|byte| *byte == 10 * round + at));
                assert!(lender.is_lent(each));
                borrower.give_back(each);
                assert!(!lender.is_lent(each));
            }
        }
    }

    #[test]
    fn a_slot_that_is_lent_again_is_another() {
        let lender = Lender::new(1, 64).unwrap();
        let borrower = Borrower::open(&lender.address()).unwrap();
        let first = lender.take().unwrap();
        borrower.give_back(first);
        let second = lender.take().unwrap();
        assert!(first.slot == second.slot && !lender.is_lent(first) && lender.is_lent(second));
        // Twice has no effect on the second one.
        borrower.give_back(first);
        assert!(lender.is_lent(second) && lender.take().is_none());
    }

    #[test]
    fn what_is_read_outlives_its_owner() {
        let lender = Lender::new(1, 64).unwrap();
        let borrower = Borrower::open(&lender.address()).unwrap();
        let lent = lender.take().unwrap();
        write(&lender, lent, 7);
        drop(lender);
        // SAFETY: the mapping is the borrower's own.
        assert_eq!(unsafe { *borrower.place(lent) }, 7);
    }

    #[test]
    fn addresses_that_are_none_are_refused() {
        let lender = Lender::new(2, 4096).unwrap();
        let good = lender.address();
        let with = |word: usize, value: u64| {
            let mut address = good;
            address[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
            address
        };
        let before = good[..40].to_vec();
        let none = std::fs::File::open("/dev/null").unwrap();
        let another = Lender::new(2, 4096).unwrap();
        let bad: Vec<Vec<u8>> = vec![
            before,
            vec![0; ADDRESS],
            with(0, 1).to_vec(),
            with(1, u64::from(u32::MAX)).to_vec(),
            with(2, none.as_raw_fd() as u64).to_vec(),
            with(2, another.file.as_raw_fd() as u64).to_vec(),
            with(4, 3).to_vec(),
            with(4, u64::MAX).to_vec(),
            with(5, u64::MAX / 2).to_vec(),
        ];
        for address in bad {
            assert!(Borrower::open(&address).is_err(), "{address:?}");
        }
        assert!(Borrower::open(&good).is_ok());
    }
}
