//! Memory that a process lends, slot by slot, to others of its node. The lender fills a slot and sends the slot's
//! number to a borrower by any means. The borrower reads the slot in place and gives it back. So elements are copied
//! once on their way in, once on their way out, and never in between.
//!
//! The memory is a file without a name, which others open through its owner's entry in /proc. It vanishes with the
//! processes, even if they are killed, and no limit of /dev/shm applies.

use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::HostId;
use crate::mapping::Mapping;

/// Length of [`Lender::address`] in bytes.
pub const ADDRESS: usize = 48;
/// Each slot's word is in a cache line of its own, because two processes write it.
const LINE: u64 = 64;
/// Value of a free slot's word.
const FREE: u64 = 0;

/// Memory that this process lends to others.
pub struct Lender {
    memory: Slots,
    file: File,
    next: AtomicU64,
}

/// Memory borrowed from another process.
pub struct Borrower(Slots);

/// A slot while it is lent. A later loan of the same slot has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub slot: u64,
    /// Value of the slot's word during this loan.
    pub number: u64,
}

/// A line with the owner's key, one line for each slot's word, then the slots, which begin at a page.
struct Slots {
    mapping: Mapping,
    key: u64,
    count: u64,
    bytes: u64,
}

impl Lender {
    /// Creates `count` slots of `bytes` each. A slot takes no memory before its first use.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(count: u64, bytes: u64) -> io::Result<Lender> {
        let file = File::from(memfd_create("landbridge-lent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        let length = length(count, bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        ftruncate(&file, length)?;
        // The seals keep the file from shrinking while others read it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let key = std::hash::RandomState::new().hash_one(length).max(1);
        let memory = Slots { mapping: Mapping::new(&file, 0, length)?, key, count, bytes };
        memory.mapping.word(0).store(key, Ordering::Release);
        Ok(Lender { memory, file, next: AtomicU64::new(1) })
    }

    /// The address with which another process opens this memory.
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

    /// Takes a free slot, to be written and lent. `None`: all are lent.
    pub fn take(&self) -> Option<Lent> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let free = |slot: &u64| {
            let word = self.memory.word(*slot);
            // Acquire: the borrower read all elements before it freed the slot.
            word.compare_exchange(FREE, number, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = (0..self.memory.count).find(free)?;
        Some(Lent { slot, number })
    }

    /// True until the borrower gives the slot back.
    pub fn is_lent(&self, lent: Lent) -> bool {
        self.memory.word(lent.slot).load(Ordering::Acquire) == lent.number
    }

    /// Address of a slot's bytes. Write them only between [`Lender::take`] and sending the slot to another process.
    pub fn place(&self, lent: Lent) -> *mut u8 {
        self.memory.place(lent.slot)
    }
}

impl Borrower {
    /// Opens another process's memory.
    ///
    /// # Errors
    /// The memory is on another host, its process is gone or belongs to another user, or the address is malformed.
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
            // Another process has the process id of one that is gone.
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Address of a slot's bytes. Read them only until the slot is given back.
    pub fn place(&self, lent: Lent) -> *const u8 {
        self.0.place(lent.slot)
    }

    /// Gives a slot back: its bytes have been read, and the lender may use it again.
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
    /// Length of [`Lent::to_bytes`] in bytes.
    pub const BYTES: usize = 16;

    /// Encodes the slot for the borrower.
    pub fn to_bytes(self) -> [u8; Lent::BYTES] {
        ((u128::from(self.number) << 64) | u128::from(self.slot)).to_le_bytes()
    }

    /// Decodes [`Lent::to_bytes`].
    pub fn read(bytes: [u8; Lent::BYTES]) -> Lent {
        let both = u128::from_le_bytes(bytes);
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
        // Only the borrower writes this word while the slot is lent.
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
        // SAFETY: the slot has `lender.bytes()` bytes and was taken by us.
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
                let each = Lent::read(each.to_bytes());
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
        // A second return has no effect on the new loan.
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
