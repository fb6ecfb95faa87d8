//! Copies the elements of a message between strided memory and a buffer, at the speed of memory.

use std::io;
use std::ptr::copy_nonoverlapping;

use plan::redistribution::{Message, Piece};

/// How to copy a message's elements, for an array of known strides and element size: compiled once, run often.
#[derive(Clone, Debug)]
pub struct Packing {
    /// Places along all axes but those in `strips`, from the slowest axis to the fastest. Offsets are in bytes.
    levels: Vec<Vec<Piece>>,
    strips: Vec<Strip>,
    bytes: usize,
}

/// Chunks of bytes at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strip {
    offset: i64,
    count: usize,
    stride: i64,
    chunk: usize,
}

impl Packing {
    /// `strides`: in bytes, for each axis of the local array. `None`: the message has more bytes than memory can.
    pub fn new(message: &Message, strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(message.elements(), element)?;
        Some(Packing::compiled(message.levels(strides).map(Iterator::collect).collect(), element, bytes))
    }

    fn compiled(mut levels: Vec<Vec<Piece>>, element: usize, bytes: usize) -> Packing {
        if bytes == 0 {
            return Packing { levels: Vec::new(), strips: Vec::new(), bytes };
        }
        let mut strips = vec![Strip { offset: 0, count: 1, stride: 0, chunk: element }];
        // As long as a place of the next axis is one chunk, its places are strips of such chunks.
        while let ([Strip { offset, count: 1, chunk, .. }], Some(level)) = (strips.as_slice(), levels.last()) {
            let strip = |piece: &Piece| Strip::new(piece.start + offset, piece.count as usize, piece.stride, *chunk);
            strips = joined(level.iter().map(strip));
            levels.pop();
        }
        Packing { levels, strips, bytes }
    }

    /// All elements of an array of this shape, in the order of its axes.
    pub(crate) fn of_array(shape: &[u64], strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))?, element)?;
        let level = |(extent, stride): (&u64, &i64)| vec![Piece { start: 0, count: *extent, stride: *stride }];
        Some(Packing::compiled(shape.iter().zip(strides).map(level).collect(), element, bytes))
    }

    /// The elements at these places of an array: first ones and counts, numbered row-major over its shape. `strides`:
    /// in bytes. `None`: they have more bytes than memory can.
    pub fn of_places(places: &[(u64, u64)], shape: &[u64], strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(places.iter().try_fold(0u64, |all, (_, count)| all.checked_add(*count))?, element)?;
        let (row, stride) = shape.last().zip(strides.last()).map_or((1, 0), |(row, stride)| (*row, *stride));
        let mut pieces = Vec::with_capacity(places.len());
        for (first, count) in places.iter().copied() {
            let (mut at, end) = (first, first + count);
            while at < end {
                // As far as the row goes.
                let count = (end - at).min(row - at % row);
                let mut rest = at;
                let mut start = 0;
                for (extent, stride) in shape.iter().zip(strides).rev() {
                    start += (rest % extent) as i64 * stride;
                    rest /= extent;
                }
                pieces.push(Piece { start, count, stride });
                at += count;
            }
        }
        Some(Packing::compiled(vec![pieces], element, bytes))
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies from the array to the buffer.
    ///
    /// # Safety
    /// `array` is where local index 0 along every axis is; all elements of the message can be read from there; `buffer`
    /// has room for [`Packing::bytes`], none of them in the array.
    pub unsafe fn pack(&self, array: *const u8, buffer: *mut u8) {
        let mut buffer = buffer;
        self.walk(0, 0, &mut |offset, strip| {
            // SAFETY: the caller's promise; the buffer advances by as much as is written.
            unsafe {
                copy(array.offset(offset as isize), strip.stride as isize, buffer, strip.chunk as isize, strip);
                buffer = buffer.add(strip.count * strip.chunk);
            }
        });
    }

    /// Copies from the buffer to the array.
    ///
    /// # Safety
    /// As [`Packing::pack`], but the elements can be written, and the buffer can be read.
    pub unsafe fn unpack(&self, buffer: *const u8, array: *mut u8) {
        let mut buffer = buffer;
        self.walk(0, 0, &mut |offset, strip| {
            // SAFETY: the caller's promise; the buffer advances by as much as is read.
            unsafe {
                copy(buffer, strip.chunk as isize, array.offset(offset as isize), strip.stride as isize, strip);
                buffer = buffer.add(strip.count * strip.chunk);
            }
        });
    }

    /// The same, but the message's bytes come from `read`, which fills what it is given with the next ones: they pass
    /// through the cache and not through memory.
    ///
    /// # Errors
    /// Those of `read`; then some elements have been written.
    ///
    /// # Safety
    /// As [`Packing::unpack`].
    pub(crate) unsafe fn unpack_from(
        &self,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
        array: *mut u8,
    ) -> io::Result<()> {
        let mut inflow = Inflow { read, left: self.bytes, buffer: vec![0; BOUNCE.min(self.bytes)], at: 0, end: 0 };
        let mut result = Ok(());
        self.walk(0, 0, &mut |offset, strip| {
            if result.is_ok() {
                // SAFETY: the caller's promise.
                result = unsafe { inflow.strip(strip, array.offset(offset as isize)) };
            }
        });
        result
    }

    /// Calls `work` for each strip and where it begins, in the order of the message.
    fn walk(&self, depth: usize, offset: i64, work: &mut impl FnMut(i64, &Strip)) {
        let Some(level) = self.levels.get(depth) else {
            return self.strips.iter().for_each(|strip| work(offset + strip.offset, strip));
        };
        for piece in level {
            (0..piece.count as i64).for_each(|at| self.walk(depth + 1, offset + piece.start + at * piece.stride, work));
        }
    }
}

/// Bytes of these elements; `None`: more than memory can have.
fn bytes_of(elements: u64, element: usize) -> Option<usize> {
    Some(isize::try_from(elements).ok()?.checked_mul(isize::try_from(element).ok()?)? as usize)
}

/// Bytes that are read at once: they stay in a core's own cache.
const BOUNCE: usize = 128 << 10;

/// A message's bytes as they are read.
struct Inflow<'a> {
    read: &'a mut dyn FnMut(&mut [u8]) -> io::Result<()>,
    /// Bytes that have not been read.
    left: usize,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been used.
    at: usize,
    end: usize,
}

impl Inflow<'_> {
    /// # Safety
    /// The chunks of the strip can be written at `to`.
    unsafe fn strip(&mut self, strip: &Strip, to: *mut u8) -> io::Result<()> {
        let (chunk, mut done) = (strip.chunk, 0);
        while done < strip.count {
            // SAFETY: the caller's promise.
            let place = unsafe { to.offset(done as isize * strip.stride as isize) };
            if self.end - self.at < chunk && chunk >= BOUNCE / 4 {
                // SAFETY: the caller's promise: a whole chunk can be written there.
                self.straight(unsafe { std::slice::from_raw_parts_mut(place, chunk) })?;
                done += 1;
                continue;
            }
            if self.end - self.at < chunk {
                self.refill()?;
            }
            let count = ((self.end - self.at) / chunk).min(strip.count - done);
            let some = Strip { count, ..*strip };
            // SAFETY: the buffer has the bytes of these chunks, and the caller promises their places.
            unsafe {
                copy(self.buffer[self.at..].as_ptr(), chunk as isize, place, strip.stride as isize, &some);
            }
            self.at += count * chunk;
            done += count;
        }
        Ok(())
    }

    /// Reads a long chunk without a detour.
    fn straight(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        let (first, rest) = chunk.split_at_mut(self.end - self.at);
        first.copy_from_slice(&self.buffer[self.at..self.end]);
        (self.at, self.end) = (0, 0);
        self.left -= rest.len();
        (self.read)(rest)
    }

    fn refill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        let more = self.left.min(self.buffer.len() - self.end);
        (self.read)(&mut self.buffer[self.end..self.end + more])?;
        self.end += more;
        self.left -= more;
        Ok(())
    }
}

impl Strip {
    fn new(offset: i64, count: usize, stride: i64, chunk: usize) -> Strip {
        match stride == chunk as i64 {
            true => Strip { offset, count: 1, stride: 0, chunk: count * chunk },
            false => Strip { offset, count, stride, chunk },
        }
    }
}

/// Chunks of the same length at equal distances as one strip.
fn joined(strips: impl Iterator<Item = Strip>) -> Vec<Strip> {
    let mut all: Vec<Strip> = Vec::new();
    for strip in strips {
        if let Some(last) = all.last_mut().filter(|last| last.chunk == strip.chunk && strip.count == 1) {
            let distance = strip.offset - (last.offset + (last.count as i64 - 1) * last.stride);
            if last.count == 1 || distance == last.stride {
                *last = Strip { count: last.count + 1, stride: distance, ..*last };
                continue;
            }
        }
        all.push(strip);
    }
    all
}

/// Copies the chunks of a strip between two places with these distances.
///
/// # Safety
/// All chunks can be read and written, and none is in both places.
unsafe fn copy(from: *const u8, from_stride: isize, to: *mut u8, to_stride: isize, strip: &Strip) {
    // SAFETY: the caller's promise.
    unsafe {
        match strip.chunk {
            1 => copy_each::<1>(from, from_stride, to, to_stride, strip.count),
            2 => copy_each::<2>(from, from_stride, to, to_stride, strip.count),
            4 => copy_each::<4>(from, from_stride, to, to_stride, strip.count),
            8 => copy_each::<8>(from, from_stride, to, to_stride, strip.count),
            16 => copy_each::<16>(from, from_stride, to, to_stride, strip.count),
            32 => copy_each::<32>(from, from_stride, to, to_stride, strip.count),
            64 => copy_each::<64>(from, from_stride, to, to_stride, strip.count),
            128 => copy_each::<128>(from, from_stride, to, to_stride, strip.count),
            chunk => {
                for at in 0..strip.count as isize {
                    copy_nonoverlapping(from.offset(at * from_stride), to.offset(at * to_stride), chunk);
                }
            }
        }
    }
}

/// The same for a length that the compiler knows.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_each<const CHUNK: usize>(
    from: *const u8,
    from_stride: isize,
    to: *mut u8,
    to_stride: isize,
    count: usize,
) {
    for at in 0..count as isize {
        // SAFETY: the caller's promise.
        unsafe {
            copy_nonoverlapping(from.offset(at * from_stride), to.offset(at * to_stride), CHUNK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::redistribution::testing::{Case, Chance};

    #[test]
    fn what_is_packed_is_what_the_message_says() {
        for seed in 0..4000 {
            let mut chance = Chance::new(seed);
            let case = Case::new(&mut chance);
            let element = [1, 2, 4, 8, 12, 16, 40, 64][chance.below(8) as usize];
            for process in 0..case.transfer.source().processes() {
                let shape = case.transfer.source().local_shape(process);
                let messages = case.transfer.sends(process);
                check(&messages, &shape, element, &mut chance, seed);
            }
            for process in 0..case.transfer.target().processes() {
                let shape = case.transfer.target().local_shape(process);
                let messages = case.transfer.receives(process);
                check(&messages, &shape, element, &mut chance, seed);
            }
        }
    }

    #[test]
    fn long_messages_are_read_piece_by_piece() {
        let mut chance = Chance::new(3);
        for (shape, gap) in [([7, 40_000], 0), ([7, 40_000], 3), ([300, 1000], 5), ([1, 700_001], 0), ([9_000, 3], 8)] {
            let row = shape[1] as i64 * 8 + gap * 8;
            let packing = Packing::of_array(&shape, &[row, 8], 8).unwrap();
            let memory: Vec<u8> = (0..row as u64 * shape[0]).map(|_| chance.below(256) as u8).collect();
            let mut buffer = vec![0; packing.bytes()];
            let mut got = vec![0; memory.len()];
            let mut sizes = Vec::new();
            // SAFETY: the array is in the memory.
            unsafe {
                packing.pack(memory.as_ptr(), buffer.as_mut_ptr());
                let mut rest = &buffer[..];
                let mut read = |into: &mut [u8]| {
                    sizes.push(into.len());
                    io::Read::read_exact(&mut rest, into)
                };
                packing.unpack_from(&mut read, got.as_mut_ptr()).unwrap();
            }
            for at in 0..shape[0] as usize {
                let own = at * row as usize..at * row as usize + shape[1] as usize * 8;
                assert_eq!(got[own.clone()], memory[own]);
            }
            assert_eq!(sizes.iter().sum::<usize>(), packing.bytes());
            assert!(sizes.len() <= 2 + 2 * packing.bytes() / (BOUNCE / 4), "{} reads", sizes.len());
        }
    }

    #[test]
    fn places_are_found_in_arrays_of_any_strides() {
        for seed in 0..500 {
            let mut chance = Chance::new(seed);
            let shape: Vec<u64> = (0..chance.below(4)).map(|_| 1 + chance.below(5)).collect();
            let mut strides = vec![0; shape.len()];
            let mut size = 8;
            for axis in chance.shuffled(shape.len()) {
                size += 8 * chance.below(2) as i64;
                strides[axis] = size;
                size *= shape[axis] as i64;
            }
            let memory: Vec<u8> = (0..size as u64 + 8).map(|_| chance.below(256) as u8).collect();
            let all: u64 = shape.iter().product();
            let place = |chance: &mut Chance| {
                let first = chance.below(all);
                (first, chance.below(all - first + 1))
            };
            let places: Vec<(u64, u64)> = (0..chance.below(5)).map(|_| place(&mut chance)).collect();
            let mut expected = Vec::new();
            for number in places.iter().flat_map(|(first, count)| *first..first + count) {
                let along = |axis: usize| number / shape[axis + 1..].iter().product::<u64>() % shape[axis];
                let offset: i64 = (0..shape.len()).map(|axis| along(axis) as i64 * strides[axis]).sum();
                expected.extend_from_slice(&memory[offset as usize..offset as usize + 8]);
            }
            let packing = Packing::of_places(&places, &shape, &strides, 8).unwrap();
            let mut buffer = vec![0; packing.bytes()];
            // SAFETY: every element is in the memory, as the slices above have shown.
            unsafe { packing.pack(memory.as_ptr(), buffer.as_mut_ptr()) };
            assert_eq!(buffer, expected, "seed {seed}");
        }
    }

    /// Packs and unpacks with strides that have gaps, some of them negative.
    fn check(messages: &[Message], shape: &[u64], element: usize, chance: &mut Chance, seed: u64) {
        let (mut strides, mut base, mut size) = (vec![0; shape.len()], 0, element as i64);
        for (axis, extent) in shape.iter().enumerate().rev() {
            size += chance.below(2) as i64 * 3;
            strides[axis] = size;
            if chance.below(4) == 0 {
                base += size * (*extent as i64 - 1).max(0);
                strides[axis] = -size;
            }
            size *= (*extent as i64).max(1);
        }
        let memory: Vec<u8> = (0..size as u64 + 64).map(|_| chance.below(256) as u8).collect();
        for message in messages {
            let packing = Packing::new(message, &strides, element).unwrap();
            let mut offsets = Vec::new();
            message.for_each_piece(&strides, &mut |piece| {
                offsets.extend((0..piece.count as i64).map(|at| (base + piece.start + at * piece.stride) as usize));
            });
            let expected: Vec<u8> = offsets.iter().flat_map(|at| memory[*at..at + element].iter().copied()).collect();
            let mut buffer = vec![0; packing.bytes()];
            // SAFETY: every element of the message is in the memory, as the slices above have shown.
            unsafe { packing.pack(memory.as_ptr().offset(base as isize), buffer.as_mut_ptr()) };
            assert_eq!(buffer, expected, "seed {seed}");
            let mut wanted = vec![0; memory.len()];
            let mut got = wanted.clone();
            for (at, element_bytes) in offsets.iter().zip(expected.chunks(element)) {
                wanted[*at..at + element].copy_from_slice(element_bytes);
            }
            // SAFETY: as above.
            unsafe { packing.unpack(buffer.as_ptr(), got.as_mut_ptr().offset(base as isize)) };
            assert_eq!(got, wanted, "seed {seed}");
            got.fill(0);
            let mut rest = &buffer[..];
            let mut read = |into: &mut [u8]| io::Read::read_exact(&mut rest, into);
            // SAFETY: as above.
            unsafe { packing.unpack_from(&mut read, got.as_mut_ptr().offset(base as isize)) }.unwrap();
            assert_eq!(got, wanted, "seed {seed}");
        }
    }
}
