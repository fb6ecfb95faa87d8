//! Copies the elements of a message between strided memory and a buffer, at memory bandwidth.

use std::io;
use std::ptr::copy_nonoverlapping;

use plan::redistribution::compact;
use plan::redistribution::{StridedRun, TransferMessage};

/// A compiled plan for copying a message's elements from or to an array of known strides and element size; reusable.
#[derive(Clone, Debug)]
pub struct Packing {
    /// Places along all axes but those in `strips`, from the slowest axis to the fastest. Offsets are in bytes.
    levels: Vec<Vec<StridedRun>>,
    strips: Strips,
    bytes: usize,
}

/// Chunks of bytes at equal distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Strip {
    offset: i64,
    count: usize,
    stride: i64,
    chunk: usize,
}

impl Packing {
    /// `strides`: in bytes, for each axis of the local array. `None`: the message has more bytes than memory can have.
    pub fn new(message: &TransferMessage, strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(message.elements(), element)?;
        Some(Packing::compiled(message.levels(strides).map(Iterator::collect).collect(), element, bytes))
    }

    fn compiled(mut levels: Vec<Vec<StridedRun>>, element: usize, bytes: usize) -> Packing {
        if bytes == 0 {
            return Packing { levels: Vec::new(), strips: Strips::Listed(Vec::new()), bytes };
        }
        let mut strips = vec![Strip { offset: 0, count: 1, stride: 0, chunk: element }];
        // While each place of the next axis is one chunk, the places of that axis are strips of such chunks.
        while let ([Strip { offset, count: 1, chunk, .. }], Some(level)) = (strips.as_slice(), levels.last()) {
            let strip =
                |piece: &StridedRun| Strip::new(piece.start + offset, piece.count as usize, piece.stride, *chunk);
            strips = joined(level.iter().map(strip));
            levels.pop();
        }
        // Strips that repeat at each place of an axis take little memory compared with the elements.
        let strips = if levels.is_empty() { Strips::new(strips, element) } else { Strips::Listed(strips) };
        Packing { levels, strips, bytes }
    }

    /// All elements of an array of this shape, in the order of its axes.
    pub(crate) fn of_array(shape: &[u64], strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))?, element)?;
        let level = |(extent, stride): (&u64, &i64)| vec![StridedRun { start: 0, count: *extent, stride: *stride }];
        Some(Packing::compiled(shape.iter().zip(strides).map(level).collect(), element, bytes))
    }

    /// The elements at these places of an array: pairs of first element and count, numbered row-major over its shape.
    /// `strides`: in bytes. `None`: they have more bytes than memory can have.
    pub fn of_places(places: &[(u64, u64)], shape: &[u64], strides: &[i64], element: usize) -> Option<Packing> {
        let bytes = bytes_of(places.iter().try_fold(0u64, |all, (_, count)| all.checked_add(*count))?, element)?;
        let (row, stride) = shape.last().zip(strides.last()).map_or((1, 0), |(row, stride)| (*row, *stride));
        let mut pieces = Vec::with_capacity(places.len());
        for (first, count) in places.iter().copied() {
            let (mut at, end) = (first, first + count);
            while at < end {
                // Up to the end of the row.
                let count = (end - at).min(row - at % row);
                let mut rest = at;
                let mut start = 0;
                for (extent, stride) in shape.iter().zip(strides).rev() {
                    start += (rest % extent) as i64 * stride;
                    rest /= extent;
                }
                pieces.push(StridedRun { start, count, stride });
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
    /// `array` is the address of local index 0 along every axis; all elements of the message can be read from there;
    /// `buffer` has room for [`Packing::bytes`], and does not overlap the array.
    pub unsafe fn pack(&self, array: *const u8, buffer: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.pack_next(&mut self.begin(), array, buffer, self.bytes) };
    }

    /// Copies from the buffer to the array.
    ///
    /// # Safety
    /// As [`Packing::pack`], but the elements can be written, and the buffer can be read.
    pub unsafe fn unpack(&self, buffer: *const u8, array: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.unpack_next(&mut self.begin(), buffer, array, self.bytes) };
    }

    /// A cursor at the first byte of the message.
    pub fn begin(&self) -> Cursor {
        let offset = self.levels.iter().map(|level| level[0].start).sum();
        let ahead = self.levels.last().map_or(0, |level| level[0].stride);
        let (along, here) = (vec![(0, 0); self.levels.len()], self.strips.first());
        Cursor { along, offset, ahead, here, chunk: 0, byte: 0, at: 0 }
    }

    /// Copies the next `bytes` of the message from the array to the buffer. The message must have as many left.
    ///
    /// # Safety
    /// As [`Packing::pack`]; the buffer has room for `bytes`.
    pub unsafe fn pack_next(&self, cursor: &mut Cursor, array: *const u8, buffer: *mut u8, bytes: usize) {
        let mut buffer = buffer;
        self.walk(cursor, bytes, &mut |offset, ahead, strip| {
            strip.fetch(array.wrapping_offset(offset as isize), ahead);
            // SAFETY: the caller's promise; the buffer advances by as much as is written.
            unsafe {
                copy(array.offset(offset as isize), strip.stride as isize, buffer, strip.chunk as isize, strip);
                buffer = buffer.add(strip.count * strip.chunk);
            }
        });
    }

    /// Copies the next `bytes` of the message from the buffer to the array. The message must have as many left.
    ///
    /// # Safety
    /// As [`Packing::unpack`]; `bytes` can be read from the buffer.
    pub unsafe fn unpack_next(&self, cursor: &mut Cursor, buffer: *const u8, array: *mut u8, bytes: usize) {
        let mut buffer = buffer;
        self.walk(cursor, bytes, &mut |offset, ahead, strip| {
            strip.fetch(array.wrapping_offset(offset as isize), ahead);
            // SAFETY: the caller's promise; the buffer advances by as much as is read.
            unsafe {
                copy(buffer, strip.chunk as isize, array.offset(offset as isize), strip.stride as isize, strip);
                buffer = buffer.add(strip.count * strip.chunk);
            }
        });
    }

    /// Advances the cursor by this many bytes.
    pub(crate) fn skip(&self, cursor: &mut Cursor, bytes: usize) {
        self.walk(cursor, bytes, &mut |_, _, _| {});
    }

    /// Offset of the message in the array, if all its bytes are contiguous there.
    pub(crate) fn straight_all(&self) -> Option<i64> {
        let strip = self.strips.first().strip;
        (self.levels.is_empty() && strip.chunk == self.bytes).then_some(strip.offset)
    }

    /// Offset of the next bytes of the message, and how many of them are contiguous there.
    pub(crate) fn straight(&self, cursor: &Cursor) -> (i64, usize) {
        match cursor.at < self.bytes {
            true => (cursor.place(&cursor.here.strip), cursor.here.strip.chunk - cursor.byte),
            false => (0, 0),
        }
    }

    /// Copies some of the next bytes of the message to the array. They come from `read`, which fills the slice it is
    /// given. Short chunks pass through the buffer, which stays in the cache, and not through memory; long chunks are
    /// read into the array directly.
    ///
    /// # Errors
    /// The errors of `read`.
    ///
    /// # Safety
    /// As [`Packing::unpack`].
    pub(crate) unsafe fn unpack_some(
        &self,
        cursor: &mut Cursor,
        buffer: &mut Vec<u8>,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
        array: *mut u8,
    ) -> io::Result<()> {
        let (offset, follow) = self.straight(cursor);
        if follow >= BOUNCE / 4 {
            // SAFETY: the caller's promise: the rest of a chunk can be written there.
            read(unsafe { std::slice::from_raw_parts_mut(array.offset(offset as isize), follow) })?;
            self.skip(cursor, follow);
            return Ok(());
        }
        let bytes = BOUNCE.min(self.bytes - cursor.at);
        buffer.resize(buffer.len().max(bytes), 0);
        read(&mut buffer[..bytes])?;
        // SAFETY: the caller's promise.
        unsafe { self.unpack_next(cursor, buffer.as_ptr(), array, bytes) };
        Ok(())
    }

    /// Calls `work` for the next `bytes` of the message, in order: for whole strips or parts of one. Its arguments are
    /// the strip's offset, the distance from there to the same strip at the next place of the levels, and the strip.
    fn walk(&self, cursor: &mut Cursor, bytes: usize, work: &mut impl FnMut(i64, i64, &Strip)) {
        let end = self.bytes.min(cursor.at + bytes);
        while cursor.at < end {
            let (strip, left) = (cursor.here.strip, end - cursor.at);
            let place = cursor.place(&strip);
            let done = if cursor.byte == 0 && left >= strip.chunk {
                let count = (strip.count - cursor.chunk).min(left / strip.chunk);
                work(place, cursor.ahead, &Strip { count, ..strip });
                cursor.chunk += count;
                count * strip.chunk
            } else {
                let length = (strip.chunk - cursor.byte).min(left);
                work(place, cursor.ahead, &Strip { offset: 0, count: 1, stride: 0, chunk: length });
                cursor.byte += length;
                if cursor.byte == strip.chunk {
                    (cursor.chunk, cursor.byte) = (cursor.chunk + 1, 0);
                }
                length
            };
            cursor.at += done;
            if cursor.chunk == strip.count {
                cursor.chunk = 0;
                if !self.strips.advance(&mut cursor.here) {
                    cursor.here = self.strips.first();
                    cursor.carry(&self.levels);
                    if let (Some((piece, _)), Some(level)) = (cursor.along.last(), self.levels.last()) {
                        cursor.ahead = level[*piece].stride;
                    }
                }
            }
        }
    }
}

/// The strips of a message.
#[derive(Clone, Debug)]
enum Strips {
    Listed(Vec<Strip>),
    /// Many strips, stored as differences of a few bytes each: distances in units of `unit` bytes. See
    /// [`plan::redistribution::compact`].
    Packed {
        bytes: Vec<u8>,
        unit: i64,
    },
}

/// A strip, and the position of the one after it: its index in the list, or its first byte.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    strip: Strip,
    next: usize,
}

/// Number of strips from which on they are stored as differences, and limit of their offsets in units.
const MANY: usize = 8;
const REACH: i64 = 1 << 60;

impl Strips {
    fn new(mut strips: Vec<Strip>, element: usize) -> Strips {
        strips.shrink_to_fit();
        let unit = element.max(1) as i64;
        let fits = |strip: &Strip| strip.offset % unit == 0 && (-REACH..REACH).contains(&(strip.offset / unit));
        if strips.len() < MANY || !strips.iter().all(fits) {
            return Strips::Listed(strips);
        }
        let (mut bytes, mut before) = (Vec::with_capacity(4 * strips.len()), Strip::default());
        // Two chunks are not a pattern: storing each by itself takes less.
        let each = |strip: &Strip| match strip.count {
            2 if strip.stride % unit == 0 => [0, strip.stride].map(|by| Some((strip.offset + by, 1, 0, strip.chunk))),
            _ => [Some((strip.offset, strip.count, strip.stride, strip.chunk)), None],
        };
        for (offset, count, stride, chunk) in strips.iter().flat_map(each).flatten() {
            let strip = Strip { offset, count, stride, chunk };
            let differs = (strip.count, strip.stride, strip.chunk) != (before.count, before.stride, before.chunk);
            let ahead = compact::zigzag((strip.offset - before.offset) / unit);
            // The lowest bit is 1 if the other fields follow.
            compact::write(&mut bytes, ahead << 1 | u64::from(differs));
            if differs {
                compact::write(&mut bytes, strip.count as u64);
                compact::write(&mut bytes, compact::zigzag(strip.stride));
                compact::write(&mut bytes, strip.chunk as u64);
            }
            before = strip;
        }
        bytes.shrink_to_fit();
        Strips::Packed { bytes, unit }
    }

    /// The first strip; a strip of no bytes if there is none.
    fn first(&self) -> At {
        let mut at = At::default();
        self.advance(&mut at);
        at
    }

    /// Advances to the next strip. Returns false if there is none.
    #[inline]
    fn advance(&self, at: &mut At) -> bool {
        match self {
            Strips::Listed(strips) => {
                let Some(strip) = strips.get(at.next) else { return false };
                *at = At { strip: *strip, next: at.next + 1 };
            }
            Strips::Packed { bytes, unit } => {
                let mut rest = &bytes[at.next..];
                // `Strips::new` has written these bytes.
                let mut number = || compact::read(&mut rest);
                let Some(code) = number() else { return false };
                at.strip.offset += compact::unzigzag(code >> 1) * unit;
                if code & 1 == 1 {
                    at.strip.count = number().unwrap_or(0) as usize;
                    at.strip.stride = compact::unzigzag(number().unwrap_or(0));
                    at.strip.chunk = number().unwrap_or(0) as usize;
                }
                at.next = bytes.len() - rest.len();
            }
        }
        true
    }
}

/// A position in a message up to which it has been copied.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// For each level, the current piece and the place in it.
    along: Vec<(usize, u64)>,
    /// Sum of their offsets.
    offset: i64,
    /// Distance from there to the next place of the last level.
    ahead: i64,
    here: At,
    chunk: usize,
    byte: usize,
    /// Bytes of the message before the cursor.
    at: usize,
}

impl Cursor {
    /// Bytes of the message before the cursor.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn place(&self, strip: &Strip) -> i64 {
        self.offset + strip.offset + self.chunk as i64 * strip.stride + self.byte as i64
    }

    /// Advances to the next place along the levels, as an odometer counts.
    fn carry(&mut self, levels: &[Vec<StridedRun>]) {
        for ((piece, at), level) in self.along.iter_mut().zip(levels).rev() {
            let StridedRun { start, count, stride } = level[*piece];
            *at += 1;
            if *at < count {
                self.offset += stride;
                return;
            }
            self.offset -= start + (count as i64 - 1) * stride;
            *at = 0;
            *piece = (*piece + 1) % level.len();
            self.offset += level[*piece].start;
            if *piece > 0 {
                return;
            }
        }
    }
}

/// Bytes of these elements; `None`: more than memory can have.
fn bytes_of(elements: u64, element: usize) -> Option<usize> {
    Some(isize::try_from(elements).ok()?.checked_mul(isize::try_from(element).ok()?)? as usize)
}

/// Maximum bytes of one read through the buffer: they stay in a core's own cache.
const BOUNCE: usize = 128 << 10;

/// Bytes of a cache line of the processor.
const LINE: usize = 64;
/// Chunks of these lengths are too short for the processor to foresee the next one, and long enough for prefetching to
/// matter.
const FORESEEN: std::ops::RangeInclusive<usize> = LINE..=64 * LINE;

impl Strip {
    /// Prefetches the bytes of such a strip `ahead` bytes from `place`, which need not exist.
    #[inline]
    fn fetch(&self, place: *const u8, ahead: i64) {
        if ahead == 0 || !FORESEEN.contains(&self.chunk) {
            return;
        }
        let place = place.wrapping_offset(ahead as isize);
        for chunk in 0..self.count as isize {
            let chunk = place.wrapping_offset(chunk * self.stride as isize);
            for line in (0..self.chunk).step_by(LINE) {
                fetch(chunk.wrapping_add(line));
            }
        }
    }

    fn new(offset: i64, count: usize, stride: i64, chunk: usize) -> Strip {
        match stride == chunk as i64 {
            true => Strip { offset, count: 1, stride: 0, chunk: count * chunk },
            false => Strip { offset, count, stride, chunk },
        }
    }
}

/// Joins chunks of the same length at equal distances into strips.
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

/// Prefetches a cache line.
#[inline]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching an address without memory does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Copies the chunks of a strip between two places, with these distances between chunks.
///
/// # Safety
/// All chunks can be read at `from` and written at `to`, and the two do not overlap.
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

/// As [`copy`], for a chunk length known at compile time.
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
mod tests;
