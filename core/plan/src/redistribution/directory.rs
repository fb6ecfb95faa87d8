//! A directory that finds the messages between processes if each process knows only its own part of a layout: any
//! elements, in any order.
//!
//! Elements are numbered row-major over the array. The numbers are split among *keepers* in equal ranges. Each process
//! sends each keeper the elements of the keeper's range that it has or wants; the keepers match both and send the
//! matches to the processes. So each process needs memory only for its own part of the array and one keeper's range (a
//! distributed directory: Pinar and Hendrickson, "Communication Support for Adaptive Computation", 2001).

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;

use thiserror::Error;

use crate::redistribution::compact::{Iter, Segments, Spans};
use crate::redistribution::layout::Layout;

/// The most elements of an array.
pub const MOST: u64 = 1 << 62;

/// Consecutive elements that a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The number of the first element in the array.
    pub start: u64,
    pub length: u64,
    /// The row-major number of the first element in the process's part.
    pub local: u64,
}

/// Consecutive elements, as sent to keepers and by them.
///
/// A process may want an element for several places, as with periodic halos. Its segments are sorted into *layers*, as
/// few as possible, so that no two segments of a layer overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The layer of the receiving process.
    pub layer: u64,
    pub start: u64,
    pub length: u64,
}

/// A process's part of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    layers: Vec<Segments>,
    elements: u64,
}

/// Reasons why the parts do not form the array that the targets want.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    #[error("an array of more elements than can be numbered (2^62)")]
    TooMany,
    #[error("elements {start} to {last}: the array has {elements}")]
    Outside { start: u64, last: u128, elements: u64 },
    #[error("element {element} is owned twice by process {process}")]
    Twice { element: u64, process: u32 },
    #[error("element {element} is owned by process {one} and by process {other}")]
    TwoOwners { element: u64, one: u32, other: u32 },
    #[error("element {element}, which process {process} of the target wants, is owned by nobody")]
    NoOwner { element: u64, process: u32 },
}

impl Part {
    /// A part made of these segments. `elements` is the number of elements of the array.
    ///
    /// # Errors
    /// A segment lies outside the array.
    pub fn new(mut segments: Vec<Segment>, elements: u64) -> Result<Part, DirectoryError> {
        segments.retain(|segment| segment.length > 0);
        for Segment { start, length, .. } in &segments {
            let end = u128::from(*start) + u128::from(*length);
            if end > elements.into() {
                return Err(DirectoryError::Outside { start: *start, last: end - 1, elements });
            }
        }
        segments.sort_unstable_by_key(|segment| (segment.start, segment.local));
        let mut layers: Vec<Segments> = Vec::new();
        for segment in segments {
            let at = layers.iter().position(|layer| layer.end() <= segment.start).unwrap_or(layers.len());
            if at == layers.len() {
                layers.push(Segments::default());
            }
            layers[at].push(segment);
        }
        layers.iter_mut().for_each(Segments::shrink);
        Ok(Part { layers, elements })
    }

    /// The part of a layout's process: the elements it owns if `owned` is true, otherwise all that it holds. Among
    /// copies only the first one owns elements.
    ///
    /// # Errors
    /// The array has too many elements.
    pub fn of(layout: &Layout, process: u32, owned: bool) -> Result<Part, DirectoryError> {
        let elements = elements(layout.shape())?;
        let shape = layout.local_shape(process);
        if shape.contains(&0) || (owned && layout.grid().copy(process) > 0) {
            return Part::new(Vec::new(), elements);
        }
        // The elements along the axes so far: their numbers in the array and in the part.
        let mut segments = vec![Segment { start: 0, length: 1, local: 0 }];
        for (axis, extent) in layout.shape().iter().enumerate() {
            let place = layout.grid().place(process, axis);
            let pattern = if owned { layout.owned(axis, place) } else { layout.held(axis, place) };
            let along: Vec<_> = pattern.all().collect();
            let each = |before: &Segment| {
                (before.start..before.start + before.length).zip(before.local..).collect::<Vec<(u64, u64)>>()
            };
            let places: Vec<(u64, u64)> = segments.iter().flat_map(each).collect();
            segments = places
                .into_iter()
                .flat_map(|(start, local)| {
                    let (start, local) = (start * extent, local * shape[axis]);
                    along.iter().map(move |run| {
                        let (at, local) = (start + run.at, local + run.local as u64);
                        Segment { start: at, length: run.length, local }
                    })
                })
                .collect();
        }
        Part::new(segments, elements)
    }

    /// The number of elements.
    pub fn count(&self) -> u64 {
        self.layers.iter().flat_map(Segments::iter).map(|segment| segment.length).sum()
    }

    /// The spans to send to each keeper; `keepers` is their number.
    pub fn spans_of_keepers(&self, keepers: u32) -> Vec<Spans> {
        let mut told = vec![Spans::default(); keepers as usize];
        let each = self.elements.div_ceil(keepers.max(1).into()).max(1);
        let mut tell = |span: Span| {
            let (mut start, end) = (span.start, span.start + span.length);
            while start < end {
                let keeper = start / each;
                let until = end.min((keeper + 1).saturating_mul(each));
                told[keeper as usize].push(Span { start, length: until - start, ..span });
                start = until;
            }
        };
        for (layer, segments) in (0..).zip(&self.layers) {
            let mut last: Option<Span> = None;
            for Segment { start, length, .. } in segments.iter() {
                match &mut last {
                    Some(last) if last.start + last.length == start => last.length += length,
                    _ => last.replace(Span { layer, start, length }).into_iter().for_each(&mut tell),
                }
            }
            last.into_iter().for_each(&mut tell);
        }
        told
    }

    /// The places of a message's elements in the part, in message order: first places and counts. `spans` are the spans
    /// that the keepers sent for one peer, in any order. A sending process has one layer.
    pub fn places(&self, spans: &Spans, sends: bool) -> Vec<(u64, u64)> {
        let mut spans: Vec<Span> = spans.iter().collect();
        spans.sort_unstable();
        let mut places: Vec<(u64, u64)> = Vec::new();
        for Span { layer, start, length } in spans {
            let Some(segments) = self.layers.get(if sends { 0 } else { layer as usize }) else { continue };
            for segment in segments.from(start).take_while(|segment| segment.start < start + length) {
                let (from, to) = (start.max(segment.start), (start + length).min(segment.start + segment.length));
                let local = segment.local + (from - segment.start);
                match places.last_mut() {
                    Some((at, count)) if *at + *count == local => *count += to - from,
                    _ => places.push((local, to - from)),
                }
            }
        }
        places
    }
}

/// Matches the owned and wanted elements of a keeper's range. Calls `found` with the source process, the target process
/// and the elements, in ascending order of elements. Apart from its input, its memory grows only with the number of
/// processes.
///
/// # Errors
/// An element has two owners, or a wanted element has none. Discard all matches reported before.
pub fn matched(
    sources: &[(u32, Spans)],
    targets: &[(u32, Spans)],
    found: &mut dyn FnMut(u32, u32, Span),
) -> Result<(), DirectoryError> {
    let mut owned = Ascending::new(sources);
    // Owned spans that later targets may still want, with their owners. Later targets begin no earlier.
    let mut near: VecDeque<(Span, u32)> = VecDeque::new();
    let mut before: Option<(u64, u32)> = None;
    let mut next = |near: &mut VecDeque<(Span, u32)>| {
        let Some((span, process)) = owned.next() else { return Ok(()) };
        let element = span.start;
        if let Some((_, one)) = before.filter(|(end, _)| element < *end) {
            return Err(match one == process {
                true => DirectoryError::Twice { element, process },
                false => DirectoryError::TwoOwners { element, one: one.min(process), other: one.max(process) },
            });
        }
        before = Some((span.start + span.length, process));
        near.push_back((span, process));
        Ok(())
    };
    next(&mut near)?;
    for (Span { layer, start, length }, target) in Ascending::new(targets) {
        let (mut at, end) = (start, start + length);
        loop {
            // The last span stays: it marks how far the owned spans have been read.
            while near.len() > 1 && near.front().is_some_and(|(span, _)| span.start + span.length <= start) {
                near.pop_front();
            }
            let read = near.len();
            if near.back().is_some_and(|(span, _)| span.start + span.length < end) {
                next(&mut near)?;
            }
            if near.len() == read {
                break;
            }
        }
        for (span, source) in &near {
            let until = (span.start + span.length).min(end);
            if span.start > at || at == end {
                break;
            }
            if until > at {
                found(*source, target, Span { layer, start: at, length: until - at });
                at = until;
            }
        }
        if at < end {
            return Err(DirectoryError::NoOwner { element: at, process: target });
        }
    }
    // Check the unwanted rest for elements with two owners.
    loop {
        near.clear();
        next(&mut near)?;
        if near.is_empty() {
            return Ok(());
        }
    }
}

/// Iterates over the spans of several processes by ascending first element.
struct Ascending<'a> {
    /// The next span of each stream; each stream ascends. `rest` holds the spans that follow.
    next: BinaryHeap<Reverse<NextSegment>>,
    rest: Vec<Peekable<Iter<'a>>>,
}

/// The derived order compares `start` first because it is the first field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NextSegment {
    start: u64,
    length: u64,
    layer: u64,
    process: u32,
    stream: usize,
}

impl NextSegment {
    fn new(Span { layer, start, length }: Span, process: u32, stream: usize) -> Reverse<NextSegment> {
        Reverse(NextSegment { start, length, layer, process, stream })
    }
}

impl<'a> Ascending<'a> {
    fn new(all: &'a [(u32, Spans)]) -> Ascending<'a> {
        let (mut next, mut rest) = (BinaryHeap::new(), Vec::new());
        for (process, spans) in all {
            // A stream ends if the next span begins before the end of the last one, as a span of another layer may.
            let mut spans = spans.iter();
            let mut end = None;
            loop {
                let from = spans.clone();
                let Some(span) = spans.next() else { break };
                if end.is_none_or(|end| span.start < end) {
                    let mut stream = from.peekable();
                    stream.next();
                    next.push(NextSegment::new(span, *process, rest.len()));
                    rest.push(stream);
                }
                end = Some(span.start + span.length);
            }
        }
        Ascending { next, rest }
    }
}

impl Iterator for Ascending<'_> {
    type Item = (Span, u32);

    fn next(&mut self) -> Option<(Span, u32)> {
        let mut first = self.next.peek_mut()?;
        let Reverse(NextSegment { start, length, layer, process, stream }) = *first;
        match self.rest[stream].next_if(|span| span.start >= start + length) {
            Some(span) => *first = NextSegment::new(span, process, stream),
            None => drop(PeekMut::pop(first)),
        }
        Some((Span { layer, start, length }, process))
    }
}

/// The number of elements of an array of this shape.
///
/// # Errors
/// [`DirectoryError::TooMany`] if it exceeds [`MOST`].
pub fn elements(shape: &[u64]) -> Result<u64, DirectoryError> {
    let all = shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent));
    all.filter(|all| *all <= MOST).ok_or(DirectoryError::TooMany)
}

#[cfg(test)]
mod tests;
