//! Redistributions without a common layout, in which ranks ask each other for their messages: see
//! [`couple::directory`].

use std::ffi::{c_int, c_void};

use couple::Packing;
use couple::directory::Directory;
use plan::redistribution::Description;
use plan::redistribution::directory::{Part, Segment, elements};

use crate::error::{Code, Problem, at_border};
use crate::layout::LayoutOf;
use crate::pointers::{natural32, slice};
use crate::transfer::{Bound, Moves};

/// A layout of which each process knows only its own part.
#[derive(Clone, Debug)]
pub(crate) struct OwnLayout {
    pub(crate) shape: Vec<u64>,
    pub(crate) size: u32,
    part: Part,
}

impl OwnLayout {
    /// `runs`: pairs of first element and count.
    pub(crate) fn new(
        shape: Vec<u64>,
        size: u32,
        runs: impl Iterator<Item = (u64, u64)>,
    ) -> Result<OwnLayout, Problem> {
        let mut local = 0;
        let segment = |(start, length): (u64, u64)| {
            let at = local;
            local += length;
            Segment { start, length, local: at }
        };
        let all = elements(&shape).map_err(Problem::invalid)?;
        let part = Part::new(runs.map(segment).collect(), all).map_err(Problem::invalid)?;
        Ok(OwnLayout { shape, size, part })
    }
}

/// The state of such a redistribution.
pub(crate) struct DirectoryTransfer {
    /// The layouts of the source and of the target.
    layouts: [LayoutOf; 2],
    /// `None` until this rank asks.
    directory: Option<Directory>,
}

/// The peers of messages with the packings of these messages, then the array's shape and strides.
type Messages = (Vec<(u32, Packing)>, Vec<u64>, Vec<i64>);

impl DirectoryTransfer {
    pub(crate) fn new(source: LayoutOf, target: LayoutOf) -> DirectoryTransfer {
        DirectoryTransfer { layouts: [source, target], directory: None }
    }

    fn begin(&mut self, processes: [Option<u32>; 2], ranks: [Vec<u32>; 2], size: u32) -> Result<(), Problem> {
        let mut parts = [None, None];
        for (at, (layout, process)) in self.layouts.iter().zip(processes).enumerate() {
            let Some(process) = process else { continue };
            let part = match layout {
                LayoutOf::Known(layout) => Part::of(layout, process, at == 0).map_err(Problem::invalid)?,
                LayoutOf::Own(own) => own.part.clone(),
            };
            parts[at] = Some((process, part));
        }
        self.directory = Some(Directory::new(parts, ranks, size));
        Ok(())
    }

    /// The messages of this rank, process `process`, for an array of these strides (dense by default), in the order of
    /// sending. `None`: a message has more bytes than memory can have.
    pub(crate) fn messages(
        &self,
        sends: bool,
        process: u32,
        strides: Option<&[i64]>,
        element: usize,
    ) -> Option<Messages> {
        let directory = self.directory.as_ref()?;
        let (shape, dense) = match &self.layouts[usize::from(!sends)] {
            LayoutOf::Known(layout) => (layout.local_shape(process), layout.strides(process, element)),
            LayoutOf::Own(_) => (vec![directory.count(sends)], vec![element as i64]),
        };
        let strides = strides.map_or(dense, <[i64]>::to_vec);
        let packings = directory.packings(sends, &shape, &strides, element)?;
        Some((directory.messages(sends).map(|(peer, _)| peer).zip(packings).collect(), shape, strides))
    }

    /// Number of axes of this rank's array.
    pub(crate) fn axes(&self, sends: bool) -> usize {
        match &self.layouts[usize::from(!sends)] {
            LayoutOf::Known(layout) => layout.axes(),
            LayoutOf::Own(_) => 1,
        }
    }
}

/// A summary that is the same on all processes: it leaves out the parts that only one process knows.
pub(crate) fn summary(layout: &LayoutOf) -> (Option<Description>, Vec<u64>, u32) {
    match layout {
        LayoutOf::Known(layout) => (Some(Description::of(layout)), layout.shape().to_vec(), layout.processes()),
        LayoutOf::Own(own) => (None, own.shape.clone(), own.size),
    }
}

fn asked(bound: Option<&mut Bound>) -> Option<&mut DirectoryTransfer> {
    match &mut bound?.moves {
        Moves::Asked(asked) => Some(asked),
        Moves::Known(_) => None,
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_asks(transfer: *const Bound) -> i32 {
    // SAFETY: the caller's promise.
    let transfer = unsafe { transfer.as_ref() };
    i32::from(transfer.is_some_and(|bound| matches!(bound.moves, Moves::Asked(_))))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_ask(transfer: *mut Bound, rank: i32) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let bound = unsafe { transfer.as_mut() };
        let bound = bound.ok_or_else(|| Problem::invalid("transfer is NULL"))?;
        let rank = natural32(rank, "rank")?;
        let processes = [true, false].map(|sends| bound.process(sends, rank));
        let (ranks, size) = (bound.ranks.clone(), bound.size);
        asked(Some(bound)).map_or(Ok(()), |asked| asked.begin(processes, ranks, size))
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_letter(transfer: *const Bound, to: i32, letter: *mut *const c_void) -> i64 {
    // SAFETY: the caller's promise.
    let Some(Bound { moves: Moves::Asked(asked), .. }) = (unsafe { transfer.as_ref() }) else { return 0 };
    let (Some(directory), Ok(to)) = (&asked.directory, u32::try_from(to)) else { return 0 };
    let own = directory.letter(to);
    // SAFETY: the caller's promise.
    unsafe { letter.write(own.as_ptr().cast()) };
    own.len() as i64
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_read(
    transfer: *mut Bound,
    letters: *const c_void,
    lengths: *const i64,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let Some(bound) = (unsafe { transfer.as_mut() }) else { return Ok(()) };
        let size = bound.size as usize;
        let Some(DirectoryTransfer { directory: Some(directory), .. }) = asked(Some(bound)) else { return Ok(()) };
        // SAFETY: the caller's promise.
        let lengths = unsafe { slice(lengths, size, "lengths") }?;
        let too_long = || Problem { code: Code::Memory, text: "letters have more bytes than memory can".to_owned() };
        let all = lengths.iter().try_fold(0usize, |all, length| all.checked_add(usize::try_from(*length).ok()?));
        // SAFETY: the caller's promise.
        let mut rest = unsafe { slice(letters.cast::<u8>(), all.ok_or_else(too_long)?, "letters") }?;
        let letter = |length: &i64| {
            let (letter, after) = rest.split_at(*length as usize);
            rest = after;
            letter
        };
        let letters: Vec<&[u8]> = lengths.iter().map(letter).collect();
        directory.read(&letters).map_err(Problem::invalid)
    })
}
