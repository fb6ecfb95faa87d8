//! MPI datatypes for the elements of a message, so that an MPI library moves them from one array to another by itself,
//! possibly with one copy.
//!
//! Most MPI libraries copy simpler datatypes faster. So the start of the elements is in the address, contiguous bytes
//! are one block, and blocks at equal distances are a vector.

use plan::redistribution::{StridedRun, Transfer, TransferMessage};

/// Longer messages are packed and sent in pieces: not every MPI library can count more bytes in one message.
const PART: u64 = 1 << 30;
/// Maximum runs along an axis: with more, a datatype takes longer than packing.
const MOST_RUNS: usize = 4096;
/// Maximum places that a datatype lists.
const MOST_PLACES: u64 = 1 << 16;
/// Runs shorter than this many bytes are packed faster here than by an MPI library.
const SHORT_RUN: u64 = 1024;
/// The same for Intel MPI in messages of at most [`SHORT_MESSAGE`] bytes: packing them in pieces takes longer than
/// Intel MPI takes. In such messages, Open MPI is faster than packing for runs of any length.
const SHORT_RUN_OF_INTEL: u64 = 64;
const SHORT_MESSAGE: u64 = 64 << 10;

/// Elements of an array, relative to the array's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedElements {
    /// Offset of the first element, in bytes from local index 0 along every axis.
    pub offset: i64,
    /// Number of contiguous bytes.
    pub block: u64,
    /// The steps that build the datatype, unless all elements are contiguous. The first step builds on `MPI_BYTE`, each
    /// other step on the datatype of the step before it.
    pub steps: Vec<DatatypeStep>,
}

/// An MPI function that builds a datatype from another one. Places and strides are in bytes, lengths in elements of the
/// other datatype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatatypeStep {
    /// `MPI_Type_create_hvector`.
    Vector { count: u64, length: u64, stride: i64 },
    /// `MPI_Type_create_hindexed_block`.
    IndexedBlock { length: u64, places: Vec<i64> },
    /// `MPI_Type_create_hindexed`.
    Indexed { lengths: Vec<u64>, places: Vec<i64> },
}

impl StridedElements {
    /// The place of a message's elements of `element` bytes in an array of these strides (in bytes, by axis).
    /// `library`: the MPI library's version string. `None`: the message is better packed and sent as bytes.
    pub fn of(message: &TransferMessage, strides: &[i64], element: usize, library: &str) -> Option<StridedElements> {
        let levels = StridedElements::levels(message, strides, element, library)?;
        Some(StridedElements::of_levels(levels, element as u64))
    }

    /// Returns true if MPI moves a message of a process from array to array when both arrays are dense. A message that
    /// is straight at one end only is packed at both, so both ends cut it alike.
    pub fn is_straight(
        transfer: &Transfer,
        process: u32,
        message: &TransferMessage,
        element: usize,
        library: &str,
    ) -> bool {
        let there = transfer.at_peer(process, message);
        let fits = |process: u32, message: &TransferMessage| {
            let layout = if message.is_sent() { transfer.source() } else { transfer.target() };
            StridedElements::levels(message, &layout.strides(process, element), element, library).is_some()
        };
        fits(process, message) && fits(message.peer, &there)
    }

    /// Runs along each axis; `None` if the message is better packed.
    fn levels(
        message: &TransferMessage,
        strides: &[i64],
        element: usize,
        library: &str,
    ) -> Option<Vec<Vec<StridedRun>>> {
        let bytes = message.elements().checked_mul(element as u64).filter(|bytes| (1..=PART).contains(bytes))?;
        let level = |runs: &mut dyn Iterator<Item = StridedRun>| {
            let runs: Vec<StridedRun> = runs.take(MOST_RUNS + 1).collect();
            (runs.len() <= MOST_RUNS).then_some(runs)
        };
        let levels: Vec<Vec<StridedRun>> =
            message.levels(strides).map(|mut runs| level(&mut runs)).collect::<Option<_>>()?;
        is_fast(&levels, element, bytes, short_run(library, bytes)).then_some(levels)
    }

    /// `levels`: runs along each axis, from the slowest to the fastest.
    fn of_levels(levels: Vec<Vec<StridedRun>>, element: u64) -> StridedElements {
        let mut place = StridedElements { offset: 0, block: element, steps: Vec::new() };
        for mut runs in levels.into_iter().rev() {
            let first = runs[0].start;
            place.offset += first;
            runs.iter_mut().for_each(|run| run.start -= first);
            match runs.as_slice() {
                [StridedRun { count: 1, .. }] => {}
                [StridedRun { count, stride, .. }] if place.steps.is_empty() && *stride == place.block as i64 => {
                    place.block *= count;
                }
                runs if place.steps.is_empty() => place.steps.push(DatatypeStep::of_blocks(runs, place.block)),
                runs => place.steps.push(DatatypeStep::of_datatype(runs)),
            }
        }
        place
    }
}

impl DatatypeStep {
    /// Runs of blocks of bytes.
    fn of_blocks(runs: &[StridedRun], block: u64) -> DatatypeStep {
        if let [StridedRun { count, stride: stride @ 1.., .. }] = *runs {
            return DatatypeStep::Vector { count, length: block, stride };
        }
        if runs.iter().any(|run| run.stride != block as i64) {
            return DatatypeStep::IndexedBlock { length: block, places: each(runs) };
        }
        let lengths: Vec<u64> = runs.iter().map(|run| run.count * block).collect();
        let places: Vec<i64> = runs.iter().map(|run| run.start).collect();
        match distance(&places) {
            Some(stride) if lengths.iter().all(|length| *length == lengths[0]) => {
                DatatypeStep::Vector { count: runs.len() as u64, length: lengths[0], stride }
            }
            _ => DatatypeStep::Indexed { lengths, places },
        }
    }

    /// Runs of elements of another datatype.
    fn of_datatype(runs: &[StridedRun]) -> DatatypeStep {
        let places = each(runs);
        match distance(&places) {
            Some(stride) => DatatypeStep::Vector { count: places.len() as u64, length: 1, stride },
            None => DatatypeStep::IndexedBlock { length: 1, places },
        }
    }
}

fn each(runs: &[StridedRun]) -> Vec<i64> {
    runs.iter().flat_map(|run| (0..run.count as i64).map(|at| run.start + at * run.stride)).collect()
}

/// The distance from each place to the next, if it is constant and positive: Open MPI 5.0.11 accesses memory beyond
/// vectors with negative strides.
fn distance(places: &[i64]) -> Option<i64> {
    let stride = places.get(1)? - places[0];
    (stride > 0 && places.windows(2).all(|pair| pair[1] - pair[0] == stride)).then_some(stride)
}

/// [`SHORT_RUN`] for this library and a message of this many bytes.
fn short_run(library: &str, bytes: u64) -> u64 {
    match library {
        _ if bytes > SHORT_MESSAGE => SHORT_RUN,
        _ if library.contains("Open MPI") => 0,
        _ if library.contains("Intel") => SHORT_RUN_OF_INTEL,
        _ => SHORT_RUN,
    }
}

/// Returns true if an MPI library copies elements at these runs, `bytes` in total, at least as fast as packing here.
fn is_fast(levels: &[Vec<StridedRun>], element: usize, bytes: u64, short: u64) -> bool {
    let mut pieces = 1u64;
    for (at, level) in levels.iter().enumerate() {
        let (runs, places) = (level.len() as u64, level.iter().map(|run| run.count).sum::<u64>());
        let is_block = at + 1 == levels.len() && level.iter().all(|run| run.stride == element as i64);
        if !is_block && places > MOST_PLACES && (runs > 1 || level[0].stride < 0) {
            return false;
        }
        pieces = pieces.saturating_mul(if is_block { runs } else { places });
    }
    bytes >= short.saturating_mul(pieces)
}

#[cfg(test)]
mod tests {
    use plan::redistribution::testing::{Case, Chance};

    use super::*;
    use crate::pack::Packing;

    /// The offset of each byte of a datatype, in its order, as the MPI standard defines it.
    fn bytes_of(place: &StridedElements) -> Vec<i64> {
        let inner = |length: u64, of: &[i64], extent: i64, at: i64| -> Vec<i64> {
            (0..length as i64).flat_map(|item| of.iter().map(move |byte| at + item * extent + byte)).collect()
        };
        if place.steps.is_empty() {
            return (0..place.block as i64).map(|byte| place.offset + byte).collect();
        }
        let (mut bytes, mut extent) = (vec![0], 1);
        for step in &place.steps {
            let made: Vec<i64> = match step {
                DatatypeStep::Vector { count, length, stride } => {
                    (0..*count as i64).flat_map(|at| inner(*length, &bytes, extent, at * stride)).collect()
                }
                DatatypeStep::IndexedBlock { length, places } => {
                    places.iter().flat_map(|at| inner(*length, &bytes, extent, *at)).collect()
                }
                DatatypeStep::Indexed { lengths, places } => {
                    places.iter().zip(lengths).flat_map(|(at, length)| inner(*length, &bytes, extent, *at)).collect()
                }
            };
            bytes = made;
            extent = bytes.iter().max().map_or(0, |most| most + 1);
        }
        bytes.iter().map(|byte| place.offset + byte).collect()
    }

    #[test]
    fn datatypes_are_of_the_bytes_that_packing_copies() {
        let (mut datatypes, mut nested) = (0, 0);
        for seed in 0..3000 {
            let case = Case::new(&mut Chance::new(seed));
            let layout = case.transfer.source();
            for process in 0..layout.processes() {
                let shape = layout.local_shape(process);
                let (mut strides, mut next) = (vec![0; shape.len()], 4);
                for (stride, extent) in strides.iter_mut().zip(&shape).rev() {
                    *stride = next;
                    next *= (*extent).max(1) as i64;
                }
                let array: Vec<u8> = (0..next).map(|at| (at * 7 + at / 251) as u8).collect();
                for message in case.transfer.sends(process) {
                    let Some(place) = StridedElements::of(&message, &strides, 4, "Open MPI") else { continue };
                    let packing = Packing::new(&message, &strides, 4).unwrap();
                    let mut packed = vec![0; packing.bytes()];
                    // SAFETY: the array has the layout's local shape, and the buffer as many bytes as the message.
                    unsafe { packing.pack(array.as_ptr(), packed.as_mut_ptr()) };
                    let found: Vec<u8> = bytes_of(&place).iter().map(|at| array[*at as usize]).collect();
                    assert_eq!(found, packed, "seed {seed}, process {process}: {place:?}");
                    datatypes += 1;
                    nested += u32::from(place.steps.len() > 1);
                }
            }
        }
        assert!(datatypes > 1000 && nested > 50, "{datatypes} datatypes, {nested} of them of more than one step");
    }

    #[test]
    fn both_ends_know_which_messages_are_straight() {
        let mut found = [0, 0];
        for seed in 0..4000 {
            let transfer = Case::new(&mut Chance::new(seed)).transfer;
            for process in 0..transfer.source().processes() {
                for message in transfer.sends(process) {
                    let there = transfer.receives(message.peer);
                    let there = there.iter().find(|there| there.peer == process).unwrap();
                    let straight = |of, message: &TransferMessage| {
                        StridedElements::is_straight(&transfer, of, message, 1000, "MPICH")
                    };
                    assert_eq!(straight(process, &message), straight(message.peer, there), "seed {seed}");
                    found[usize::from(straight(process, &message))] += 1;
                }
            }
        }
        assert!(found.iter().all(|count| *count > 10), "{found:?}");
    }

    #[test]
    fn short_runs_are_packed_where_that_is_faster() {
        let runs =
            vec![StridedRun { start: 0, count: 100, stride: 8 }, StridedRun { start: 4000, count: 100, stride: 8 }];
        let levels = vec![runs];
        let intel = "Intel(R) MPI Library 2021.17";
        for (library, bytes, fast) in [
            ("Open MPI v5.0.11", 1600, true),
            ("Open MPI v5.0.11", 1 << 20, false),
            (intel, 1600, true),
            (intel, 1 << 20, false),
            ("MPICH", 1600, false),
        ] {
            assert_eq!(is_fast(&levels, 8, 1600, short_run(library, bytes)), fast, "{library}, {bytes}");
        }
    }
}
