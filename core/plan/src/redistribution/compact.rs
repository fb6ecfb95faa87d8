//! Compact lists of runs: each run is encoded as its difference from the one before, in numbers of one byte per 7 bits
//! (LEB128). A run of scattered elements then takes two or three bytes instead of 24.

use crate::redistribution::directory::{MOST, Segment, Span};

/// Appends a number in LEB128.
pub fn write(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads and removes the next number; `None` if there is none, or it has more than 64 bits.
#[inline]
pub fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Maps differences of small magnitude, positive or negative, to small numbers.
pub fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Compact spans in any order; ascending elements take the fewest bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    bytes: Vec<u8>,
    last: Before,
    elements: u64,
}

/// The previous span: the next one begins near its end and most likely has the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Before {
    end: u64,
    length: u64,
    layer: u64,
}

impl Default for Before {
    fn default() -> Before {
        Before { end: 0, length: 1, layer: 0 }
    }
}

impl Spans {
    /// Appends a span of an array that has at most [`super::directory::MOST`] elements.
    pub fn push(&mut self, span: Span) {
        let Before { end, length, layer } = self.last;
        let differs = (span.length, span.layer) != (length, layer);
        let ahead = zigzag(span.start.wrapping_sub(end) as i64);
        // The lowest bit is set if length and layer follow.
        write(&mut self.bytes, ahead << 1 | u64::from(differs));
        if differs {
            write(&mut self.bytes, span.length);
            write(&mut self.bytes, span.layer);
        }
        self.last = Before { end: span.start.wrapping_add(span.length), length: span.length, layer: span.layer };
        self.elements += span.length;
    }

    /// The spans in the order of appending.
    pub fn iter(&self) -> Iter<'_> {
        Iter { bytes: &self.bytes, before: Before::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number of elements in all spans together.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The encoded bytes, to send to another process.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes received bytes; `None` if they are not spans of an array of at most [`super::directory::MOST`] elements.
    pub fn received(bytes: Vec<u8>) -> Option<Spans> {
        let (mut spans, mut elements) = (Iter { bytes: &bytes, before: Before::default() }, 0u64);
        for span in &mut spans {
            span.start.checked_add(span.length).filter(|end| span.length > 0 && *end <= MOST)?;
            elements = elements.checked_add(span.length)?;
        }
        let (left, last) = (spans.bytes.len(), spans.before);
        (left == 0).then_some(Spans { bytes, last, elements })
    }

    /// Frees memory reserved for further spans.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

impl FromIterator<Span> for Spans {
    fn from_iter<I: IntoIterator<Item = Span>>(all: I) -> Spans {
        let mut spans = Spans::default();
        all.into_iter().for_each(|span| spans.push(span));
        spans
    }
}

/// The iterator of [`Spans::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    bytes: &'a [u8],
    before: Before,
}

impl Iterator for Iter<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        // On failure the bytes stay unread.
        let mut bytes = self.bytes;
        let code = read(&mut bytes)?;
        let Before { end, mut length, mut layer } = self.before;
        if code & 1 == 1 {
            length = read(&mut bytes)?;
            layer = read(&mut bytes)?;
        }
        let start = end.wrapping_add(unzigzag(code >> 1) as u64);
        self.bytes = bytes;
        self.before = Before { end: start.wrapping_add(length), length, layer };
        Some(Span { layer, start, length })
    }
}

/// The segments of a layer, by ascending elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    bytes: Vec<u8>,
    /// For every [`EACH`]th segment: its first element, the segment before it, and the offset of its bytes.
    index: Vec<(u64, Segment, usize)>,
    count: usize,
    last: Segment,
}

/// The most segments read to find one.
const EACH: usize = 64;

impl Segments {
    /// The element after the last segment.
    pub(crate) fn end(&self) -> u64 {
        self.last.start + self.last.length
    }

    /// Appends a segment that begins at [`Segments::end`] or after it.
    pub(crate) fn push(&mut self, segment: Segment) {
        if self.count.is_multiple_of(EACH) {
            self.index.push((segment.start, self.last, self.bytes.len()));
        }
        let Segment { start, length, local } = self.last;
        let differs = segment.length != length || segment.local != local.wrapping_add(length);
        write(&mut self.bytes, (segment.start - (start + length)) << 1 | u64::from(differs));
        if differs {
            write(&mut self.bytes, segment.length);
            write(&mut self.bytes, zigzag(segment.local.wrapping_sub(local.wrapping_add(length)) as i64));
        }
        self.last = segment;
        self.count += 1;
    }

    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.index.shrink_to_fit();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Segment> + '_ {
        self.read_on(Segment::default(), 0)
    }

    /// The segments that end after this element.
    pub(crate) fn from(&self, element: u64) -> impl Iterator<Item = Segment> + '_ {
        let at = self.index.partition_point(|(start, ..)| *start <= element).saturating_sub(1);
        let (_, before, begin) = self.index.get(at).copied().unwrap_or_default();
        self.read_on(before, begin).skip_while(move |segment| segment.start + segment.length <= element)
    }

    fn read_on(&self, mut before: Segment, begin: usize) -> impl Iterator<Item = Segment> + '_ {
        let mut bytes = &self.bytes[begin..];
        std::iter::from_fn(move || {
            let code = read(&mut bytes)?;
            let (end, next) = (before.start + before.length, before.local.wrapping_add(before.length));
            before = Segment { start: end + (code >> 1), length: before.length, local: next };
            if code & 1 == 1 {
                before.length = read(&mut bytes)?;
                before.local = next.wrapping_add(unzigzag(read(&mut bytes)?) as u64);
            }
            Some(before)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redistribution::testing::Chance;

    #[test]
    fn numbers_come_back() {
        let mut bytes = Vec::new();
        let numbers: Vec<u64> = (0..64).flat_map(|bits| [1 << bits, (1 << bits) - 1, u64::MAX >> bits]).collect();
        numbers.iter().for_each(|number| write(&mut bytes, *number));
        let mut rest = &bytes[..];
        assert!(numbers.iter().all(|number| read(&mut rest) == Some(*number)));
        assert_eq!(read(&mut rest), None);
        assert_eq!(read(&mut &[0xff; 9][..]), None);
        assert_eq!(read(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]), None);
        for difference in [0, 1, -1, 77, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(difference)), difference);
        }
    }

    #[test]
    fn spans_and_segments_come_back() {
        for seed in 0..500 {
            let mut chance = Chance::new(seed);
            let most = [10, 1000, MOST - 5][chance.below(3) as usize];
            let spans: Vec<Span> = (0..chance.below(200))
                .map(|_| Span { layer: chance.below(3), start: chance.below(most), length: 1 + chance.below(5) })
                .collect();
            let compact: Spans = spans.iter().copied().collect();
            assert_eq!(compact.iter().collect::<Vec<_>>(), spans, "seed {seed}");
            assert_eq!(Spans::received(compact.bytes().to_vec()).as_ref(), Some(&compact));
            let (mut segments, mut all, mut start) = (Segments::default(), Vec::new(), 0);
            for _ in 0..chance.below(300) {
                start += chance.below(3);
                let local = if chance.below(2) == 0 { start } else { chance.below(1 << 40) };
                all.push(Segment { start, length: 1 + chance.below(4), local });
                start += all[all.len() - 1].length;
            }
            all.iter().for_each(|segment| segments.push(*segment));
            assert!(segments.iter().eq(all.iter().copied()), "seed {seed}");
            for element in [0, chance.below(start + 3), start] {
                let ends_behind = |segment: &&Segment| segment.start + segment.length > element;
                assert!(segments.from(element).eq(all.iter().filter(ends_behind).copied()), "seed {seed}, {element}");
            }
        }
    }

    #[test]
    fn elements_that_are_anywhere_take_few_bytes() {
        let mut chance = Chance::new(1);
        let (mut spans, mut segments, mut start) = (Spans::default(), Segments::default(), 0);
        for local in 0..10_000 {
            start += 1 + chance.below(2000);
            spans.push(Span { layer: 0, start, length: 1 });
            segments.push(Segment { start, length: 1, local });
            start += 1;
        }
        assert!(spans.bytes().len() <= 20_100 && segments.bytes.len() <= 20_100);
    }

    #[test]
    fn bytes_that_are_no_spans_are_refused() {
        assert!(Spans::received(Vec::new()).is_some_and(|spans| spans.is_empty()));
        for bytes in [&[0x80][..], &[1], &[1, 2], &[1, 0, 0], &[2, 4, 0x80], &[0xff; 30]] {
            assert_eq!(Spans::received(bytes.to_vec()), None, "{bytes:?}");
        }
        let mut far = Vec::new();
        write(&mut far, zigzag(MOST as i64 - 1) << 1 | 1);
        far.extend([2, 0]);
        assert_eq!(Spans::received(far), None);
    }
}
