//! Redistributions where no layout says who has what: ranks ask each other, by letters that the caller carries. Each
//! rank writes one to each; what they all have written is read, twice.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use couple::Packing;
use plan::redistribution::Description;
use plan::redistribution::directory::{Part, Segment, Span, elements, matched};

use crate::error::{Code, Problem, at_border};
use crate::layout::LayoutOf;
use crate::pointers::{natural32, slice};
use crate::transfer::{Bound, Moves};

/// A layout of which this process knows its own part alone.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) shape: Vec<u64>,
    pub(crate) size: u32,
    part: Part,
}

impl Own {
    /// `runs`: first elements and counts.
    pub(crate) fn new(shape: Vec<u64>, size: u32, runs: impl Iterator<Item = (u64, u64)>) -> Result<Own, Problem> {
        let mut local = 0;
        let segment = |(start, length): (u64, u64)| {
            let at = local;
            local += length;
            Segment { start, length, local: at }
        };
        let all = elements(&shape).map_err(Problem::invalid)?;
        let part = Part::new(runs.map(segment).collect(), all).map_err(Problem::invalid)?;
        Ok(Own { shape, size, part })
    }
}

/// What is known of such a redistribution.
pub(crate) struct Asked {
    /// Of the source, and of the target.
    sides: [Side; 2],
    ranks: u32,
    letters: Vec<Vec<u8>>,
    /// Whether keepers have been told.
    told: bool,
}

struct Side {
    layout: LayoutOf,
    process: Option<u32>,
    part: Option<Part>,
    /// Elements of this rank's messages, by peer.
    found: Vec<(u32, Vec<Span>)>,
}

/// The processes at the other end of messages, how these are packed, and the array's shape and strides.
type Messages = (Vec<(u32, Packing)>, Vec<u64>, Vec<i64>);
type Spans = Vec<(u64, u64, u64)>;
/// What a rank tells a keeper of each side: its process, and what that has, or wants.
type Told = [Option<(u32, Spans)>; 2];
/// What a keeper tells a rank: of which side it is, the process at the other end, and which elements.
type Found = Vec<(bool, u32, Spans)>;

impl Asked {
    pub(crate) fn new(source: LayoutOf, target: LayoutOf, ranks: u32) -> Asked {
        let side = |layout| Side { layout, process: None, part: None, found: Vec::new() };
        Asked { sides: [side(source), side(target)], ranks, letters: Vec::new(), told: false }
    }

    fn begin(&mut self, processes: [Option<u32>; 2]) -> Result<(), Problem> {
        let mut told: Vec<Told> = vec![[None, None]; self.ranks as usize];
        for (at, (side, process)) in self.sides.iter_mut().zip(processes).enumerate() {
            side.process = process;
            let Some(process) = process else { continue };
            let part = match &side.layout {
                LayoutOf::Known(layout) => Part::of(layout, process, at == 0).map_err(Problem::invalid)?,
                LayoutOf::Own(own) => own.part.clone(),
            };
            for (told, spans) in told.iter_mut().zip(part.told(self.ranks)) {
                told[at] = Some((process, spans.iter().map(numbers).collect()));
            }
            side.part = Some(part);
        }
        self.letters = told.iter().map(written).collect();
        Ok(())
    }

    fn read(&mut self, ranks: &[Vec<u32>; 2], letters: &[&[u8]]) -> Result<(), Problem> {
        match self.told {
            false => self.match_told(ranks, letters),
            true => self.learn(letters),
        }
    }

    fn match_told(&mut self, ranks: &[Vec<u32>; 2], letters: &[&[u8]]) -> Result<(), Problem> {
        let mut sides: [Vec<(u32, Vec<Span>)>; 2] = Default::default();
        for letter in letters {
            for (side, told) in sides.iter_mut().zip(read::<Told>(letter)?) {
                side.extend(told.map(|(process, spans)| (process, spans.into_iter().map(span).collect())));
            }
        }
        let mut found = matched(&sides[0], &sides[1]).map_err(Problem::invalid)?;
        found.sort_unstable_by_key(|found| (found.source, found.target, found.span));
        let mut out: Vec<Found> = vec![Vec::new(); self.ranks as usize];
        for pair in found.chunk_by(|one, other| (one.source, one.target) == (other.source, other.target)) {
            let (source, target) = (pair[0].source, pair[0].target);
            let spans: Spans = pair.iter().map(|found| numbers(&found.span)).collect();
            // The ranks were compared with the layouts.
            out[ranks[0][source as usize] as usize].push((true, target, spans.clone()));
            out[ranks[1][target as usize] as usize].push((false, source, spans));
        }
        self.letters = out.iter().map(written).collect();
        self.told = true;
        Ok(())
    }

    fn learn(&mut self, letters: &[&[u8]]) -> Result<(), Problem> {
        let mut all: [BTreeMap<u32, Vec<Span>>; 2] = Default::default();
        for letter in letters {
            for (sends, peer, spans) in read::<Found>(letter)? {
                all[usize::from(!sends)].entry(peer).or_default().extend(spans.into_iter().map(span));
            }
        }
        for (side, found) in self.sides.iter_mut().zip(all) {
            side.found = found.into_iter().collect();
        }
        self.letters = Vec::new();
        Ok(())
    }

    /// This rank's messages for an array of these strides (by default it is dense), in the order in which they are
    /// sent: each process begins with the next one, so that not all send to the same. `None`: one has more bytes than
    /// memory can.
    pub(crate) fn messages(&self, sends: bool, strides: Option<&[i64]>, element: usize) -> Option<Messages> {
        let side = &self.sides[usize::from(!sends)];
        let (process, part) = (side.process?, side.part.as_ref()?);
        let (shape, dense) = match &side.layout {
            LayoutOf::Known(layout) => (layout.local_shape(process), layout.strides(process, element)),
            LayoutOf::Own(_) => (vec![part.count()], vec![element as i64]),
        };
        let strides = strides.map_or(dense, <[i64]>::to_vec);
        let size = self.sides[1].layout.processes().max(1);
        let step = |peer: &u32| match sends {
            true => (peer + size - process % size) % size,
            false => (process + size - peer % size) % size,
        };
        let mut peers: Vec<_> = side.found.iter().collect();
        peers.sort_by_key(|(peer, _)| (step(peer), *peer));
        let packed = |(peer, spans): &(u32, Vec<Span>)| {
            let places = part.places(spans.clone(), sends);
            Some((*peer, Packing::of_places(&places, &shape, &strides, element)?))
        };
        let messages = peers.into_iter().map(packed).collect::<Option<Vec<_>>>()?;
        Some((messages, shape, strides))
    }

    /// How many axes this rank's array has.
    pub(crate) fn axes(&self, sends: bool) -> usize {
        match &self.sides[usize::from(!sends)].layout {
            LayoutOf::Known(layout) => layout.axes(),
            LayoutOf::Own(_) => 1,
        }
    }
}

/// Layouts that differ in no more than what only their own process knows are the same here.
pub(crate) fn summary(layout: &LayoutOf) -> (Option<Description>, Vec<u64>, u32) {
    match layout {
        LayoutOf::Known(layout) => (Some(Description::of(layout)), layout.shape().to_vec(), layout.processes()),
        LayoutOf::Own(own) => (None, own.shape.clone(), own.size),
    }
}

fn numbers(span: &Span) -> (u64, u64, u64) {
    (span.layer, span.start, span.length)
}

fn span((layer, start, length): (u64, u64, u64)) -> Span {
    Span { layer, start, length }
}

fn written(letter: &impl serde::Serialize) -> Vec<u8> {
    // Numbers can always be written.
    postcard::to_stdvec(letter).unwrap_or_default()
}

fn read<T: serde::de::DeserializeOwned>(letter: &[u8]) -> Result<T, Problem> {
    postcard::from_bytes(letter).map_err(|error| Problem::invalid(format_args!("a letter of another rank: {error}")))
}

fn asked(bound: Option<&mut Bound>) -> Option<(&mut Asked, &[Vec<u32>; 2])> {
    let bound = bound?;
    match &mut bound.moves {
        Moves::Asked(asked) => Some((asked, &bound.ranks)),
        Moves::Known(_) => None,
    }
}

/// # Safety
/// As `landbridge.h` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_asks(transfer: *const Bound) -> i32 {
    // SAFETY: the caller's promise.
    let transfer = unsafe { transfer.as_ref() };
    i32::from(transfer.is_some_and(|bound| matches!(bound.moves, Moves::Asked(_))))
}

/// # Safety
/// As `landbridge.h` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_ask(transfer: *mut Bound, rank: i32) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let bound = unsafe { transfer.as_mut() };
        let bound = bound.ok_or_else(|| Problem::invalid("transfer is NULL"))?;
        let rank = natural32(rank, "rank")?;
        let processes = [true, false].map(|sends| bound.process(sends, rank));
        match asked(Some(bound)) {
            Some((asked, _)) => asked.begin(processes),
            None => Ok(()),
        }
    })
}

/// # Safety
/// As `landbridge.h` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_letter(transfer: *const Bound, to: i32, letter: *mut *const c_void) -> i64 {
    // SAFETY: the caller's promise.
    let Some(Bound { moves: Moves::Asked(asked), .. }) = (unsafe { transfer.as_ref() }) else { return 0 };
    let Some(own) = usize::try_from(to).ok().and_then(|to| asked.letters.get(to)) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { letter.write(own.as_ptr().cast()) };
    own.len() as i64
}

/// # Safety
/// As `landbridge.h` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_read(
    transfer: *mut Bound,
    letters: *const c_void,
    lengths: *const i64,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let Some((asked, ranks)) = asked(unsafe { transfer.as_mut() }) else { return Ok(()) };
        // SAFETY: the caller's promise.
        let lengths = unsafe { slice(lengths, asked.ranks as usize, "lengths") }?;
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
        asked.read(ranks, &letters)
    })
}
