//! Redistributions without a common layout: ranks ask each other which elements go where, by letters that the caller
//! carries. In each of two rounds, each rank writes a letter to each rank and reads the letters of all ranks. First,
//! processes report the elements they have and want to keepers; then the keepers answer with the destinations. See
//! [`plan::redistribution::directory`].

use std::collections::BTreeMap;

use plan::redistribution::compact::{Spans, read, write};
use plan::redistribution::directory::{DirectoryError, Part, matched};
use thiserror::Error;

use crate::pack::Packing;

/// One rank's state of such a redistribution.
#[derive(Debug)]
pub struct Directory {
    /// This rank on the source's side, and on the target's.
    sides: [DirectorySide; 2],
    /// Ranks of the processes of the source, and of the target.
    ranks: [Vec<u32>; 2],
    size: u32,
    letters: Vec<Vec<u8>>,
    /// True once this rank has read the letters of the first round.
    has_read: bool,
}

#[derive(Debug, Default)]
struct DirectorySide {
    /// This rank's process, and the elements that the process has or wants.
    own: Option<(u32, Part)>,
    /// Elements of its messages, by peer, in the order of sending.
    found: Vec<(u32, Spans)>,
}

/// Reasons why a rank cannot find its messages.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AskError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{0} letters, but there are {1} ranks")]
    Letters(usize, u32),
    #[error("a letter of rank {rank}: {text}")]
    Letter { rank: usize, text: String },
}

/// A rank's letter to a keeper: for each side, its process and the bytes of the elements the process has or wants.
type Letter = [Option<(u32, Vec<u8>)>; 2];

/// A keeper's answer to a rank as a process of one side: elements, and the process at the other end of each.
#[derive(Clone, Debug, Default)]
struct Found {
    peers: Vec<u8>,
    spans: Spans,
}

impl Directory {
    /// `parts`: this rank's process of the source and of the target, with the elements it has or wants. `ranks`: ranks
    /// of the processes of source and target, out of `size`.
    pub fn new(parts: [Option<(u32, Part)>; 2], ranks: [Vec<u32>; 2], size: u32) -> Directory {
        let mut letters: Vec<Letter> = vec![[None, None]; size as usize];
        for (at, part) in parts.iter().enumerate() {
            let Some((process, part)) = part else { continue };
            for (letter, spans) in letters.iter_mut().zip(part.spans_of_keepers(size)) {
                letter[at] = Some((*process, spans.bytes().to_vec()));
            }
        }
        let letters = letters.iter().map(written).collect();
        let sides = parts.map(|own| DirectorySide { own, found: Vec::new() });
        Directory { sides, ranks, size, letters, has_read: false }
    }

    /// The letter to a rank in this round; empty: no round is left.
    pub fn letter(&self, to: u32) -> &[u8] {
        self.letters.get(to as usize).map_or(&[], Vec::as_slice)
    }

    /// Reads the letters of all ranks to this one.
    ///
    /// # Errors
    /// [`AskError`]. This rank's messages, or its answers as a keeper, are then empty; other ranks may have the same
    /// error, or none.
    pub fn read(&mut self, letters: &[&[u8]]) -> Result<(), AskError> {
        if letters.len() != self.size as usize {
            return Err(AskError::Letters(letters.len(), self.size));
        }
        self.letters = Vec::new();
        if std::mem::replace(&mut self.has_read, true) {
            return self.learn(letters);
        }
        let answers = self.matches(letters);
        let nothing = || vec![[Found::default(), Found::default()]; self.size as usize];
        let (answers, problem) = match answers {
            Ok(answers) => (answers, Ok(())),
            Err(problem) => (nothing(), Err(problem)),
        };
        let written = |of: [Found; 2]| written(&of.map(|Found { peers, spans }| (peers, spans.bytes().to_vec())));
        self.letters = answers.into_iter().map(written).collect();
        problem
    }

    /// This rank's answers as a keeper, one for each rank.
    fn matches(&self, letters: &[&[u8]]) -> Result<Vec<[Found; 2]>, AskError> {
        let mut sides: [Vec<(u32, Spans)>; 2] = Default::default();
        for (rank, letter) in letters.iter().enumerate() {
            for (at, part) in letter_of::<Letter>(rank, letter)?.into_iter().enumerate() {
                let Some((process, bytes)) = part else { continue };
                if self.ranks[at].get(process as usize).is_none_or(|of| *of as usize != rank) {
                    return Err(AskError::Letter { rank, text: format!("it is not process {process}") });
                }
                sides[at].push((process, spans_of(rank, bytes)?));
            }
        }
        let mut out = vec![[Found::default(), Found::default()]; self.size as usize];
        matched(&sides[0], &sides[1], &mut |source, target, span| {
            // Each process number was checked against the rank that reported it.
            for (at, own, peer) in [(0, source, target), (1, target, source)] {
                let found = &mut out[self.ranks[at][own as usize] as usize][at];
                write(&mut found.peers, peer.into());
                found.spans.push(span);
            }
        })?;
        Ok(out)
    }

    fn learn(&mut self, letters: &[&[u8]]) -> Result<(), AskError> {
        let mut all: [BTreeMap<u32, Spans>; 2] = Default::default();
        for (rank, letter) in letters.iter().enumerate() {
            for (at, (peers, spans)) in letter_of::<[(Vec<u8>, Vec<u8>); 2]>(rank, letter)?.into_iter().enumerate() {
                let mut peers = &peers[..];
                for span in spans_of(rank, spans)?.iter() {
                    let peer = read(&mut peers).and_then(|peer| u32::try_from(peer).ok());
                    let peer = peer.filter(|peer| (*peer as usize) < self.ranks[1 - at].len());
                    let peer =
                        peer.ok_or_else(|| AskError::Letter { rank, text: "there is no such process".into() })?;
                    all[at].entry(peer).or_default().push(span);
                }
            }
        }
        let size = self.steps() as u32;
        for (at, (side, found)) in self.sides.iter_mut().zip(all).enumerate() {
            let own = side.own.as_ref().map_or(0, |(process, _)| *process);
            side.found = found.into_iter().collect();
            side.found.iter_mut().for_each(|(_, spans)| spans.shrink());
            // Each process starts with the peer of its own number, so that not all send to the same one.
            side.found.sort_by_key(|(peer, _)| match at {
                0 => ((peer + size - own % size) % size, *peer),
                _ => ((own + size - peer % size) % size, *peer),
            });
        }
        Ok(())
    }

    /// Number of steps in which all ranks can send, if no rank sends two messages at a time.
    pub fn steps(&self) -> usize {
        self.ranks[1].len().max(1)
    }

    /// Number of elements that this rank has (`sends`) or wants.
    pub fn count(&self, sends: bool) -> u64 {
        self.sides[usize::from(!sends)].own.as_ref().map_or(0, |(_, part)| part.count())
    }

    /// This rank's messages in the order of sending: the process at the other end, and the number of elements.
    pub fn messages(&self, sends: bool) -> impl Iterator<Item = (u32, u64)> + '_ {
        let found = self.sides[usize::from(!sends)].found.iter();
        found.map(|(peer, spans)| (*peer, spans.elements()))
    }

    /// The packings of these messages, from or to an array of this shape and these strides (in bytes). `None`: a
    /// message has more bytes than memory can have.
    pub fn packings(&self, sends: bool, shape: &[u64], strides: &[i64], element: usize) -> Option<Vec<Packing>> {
        let DirectorySide { own, found } = &self.sides[usize::from(!sends)];
        let Some((_, part)) = own else { return Some(Vec::new()) };
        let places = found.iter().map(|(_, spans)| part.places(spans, sends));
        places.map(|places| Packing::of_places(&places, shape, strides, element)).collect()
    }
}

fn written(letter: &impl serde::Serialize) -> Vec<u8> {
    // Serializing numbers to memory cannot fail.
    postcard::to_stdvec(letter).unwrap_or_default()
}

fn letter_of<T: serde::de::DeserializeOwned>(rank: usize, letter: &[u8]) -> Result<T, AskError> {
    postcard::from_bytes(letter).map_err(|error| AskError::Letter { rank, text: error.to_string() })
}

fn spans_of(rank: usize, bytes: Vec<u8>) -> Result<Spans, AskError> {
    Spans::received(bytes).ok_or_else(|| AskError::Letter { rank, text: "its elements cannot be read".into() })
}

#[cfg(test)]
mod tests {
    use plan::redistribution::directory::Segment;

    use super::*;

    fn part(numbers: &[u64], elements: u64) -> Part {
        let segment = |(local, start): (u64, &u64)| Segment { start: *start, length: 1, local };
        Part::new((0..).zip(numbers).map(segment).collect(), elements).unwrap()
    }

    /// Carries the letters of both rounds. Returns each rank's errors.
    fn asked(all: &mut [Directory]) -> Vec<Vec<AskError>> {
        let mut errors = vec![Vec::new(); all.len()];
        for _ in 0..2 {
            let letters: Vec<Vec<Vec<u8>>> =
                all.iter().map(|one| (0..all.len() as u32).map(|to| one.letter(to).to_vec()).collect()).collect();
            for (rank, one) in all.iter_mut().enumerate() {
                let come: Vec<&[u8]> = letters.iter().map(|from| from[rank].as_slice()).collect();
                errors[rank].extend(one.read(&come).err());
            }
        }
        errors
    }

    /// Three ranks: 0 and 2 are processes 1 and 0 of the source; 1 and 0 are processes 0 and 1 of the target.
    fn three(owned: [&[u64]; 2], wanted: [&[u64]; 2]) -> Vec<Directory> {
        let ranks = [vec![2, 0], vec![1, 0]];
        let own = |rank: u32| {
            let of = |at: usize, parts: [&[u64]; 2]| {
                let process = ranks[at].iter().position(|of| *of == rank)?;
                Some((process as u32, part(parts[process], 7)))
            };
            [of(0, owned), of(1, wanted)]
        };
        (0..3).map(|rank| Directory::new(own(rank), ranks.clone(), 3)).collect()
    }

    #[test]
    fn ranks_find_out_what_goes_where() {
        let (owned, wanted) = ([&[0, 6, 2][..], &[5, 1, 3, 4]], [&[6, 5, 4, 3][..], &[0, 1, 0]]);
        let mut all = three(owned, wanted);
        assert!(asked(&mut all).iter().all(Vec::is_empty));
        let messages = |rank: usize, sends| all[rank].messages(sends).collect::<Vec<_>>();
        assert_eq!((messages(2, true), messages(0, true)), (vec![(0, 1), (1, 2)], vec![(1, 1), (0, 3)]));
        assert_eq!((messages(1, false), messages(0, false)), (vec![(0, 1), (1, 3)], vec![(1, 1), (0, 2)]));
        assert_eq!((messages(1, true), all[1].count(true), all[1].count(false)), (vec![], 0, 4));
        let mut targets = [vec![9u8; 4], vec![9u8; 3]];
        for (from, source) in [(2, owned[0]), (0, owned[1])] {
            let held: Vec<u8> = source.iter().map(|number| *number as u8).collect();
            let sent = all[from].packings(true, &[held.len() as u64], &[1], 1).unwrap();
            for ((to, _), sent) in all[from].messages(true).zip(sent) {
                let mut bytes = vec![0; sent.bytes()];
                let rank = [1, 0][to as usize];
                let shape = [targets[to as usize].len() as u64];
                let own = u32::from(from == 0);
                let at = all[rank].messages(false).position(|(peer, _)| peer == own).unwrap();
                // SAFETY: both arrays have as many elements as their parts.
                unsafe {
                    sent.pack(held.as_ptr(), bytes.as_mut_ptr());
                    let into = all[rank].packings(false, &shape, &[1], 1).unwrap();
                    into[at].unpack(bytes.as_ptr(), targets[to as usize].as_mut_ptr());
                }
            }
        }
        assert_eq!(targets, [vec![6, 5, 4, 3], vec![0, 1, 0]]);
    }

    #[test]
    fn what_fits_nowhere_is_an_error_of_its_keeper_and_nobody_waits() {
        let mut all = three([&[0, 6], &[5, 1, 3, 4]], [&[2], &[]]);
        let missing = AskError::Directory(DirectoryError::NoOwner { element: 2, process: 0 });
        assert_eq!(asked(&mut all), [vec![missing], vec![], vec![]]);
        assert!(all.iter().all(|one| one.messages(true).count() + one.messages(false).count() == 0));
    }

    #[test]
    fn letters_that_are_none_are_named() {
        let mut all = three([&[0], &[1]], [&[1], &[0]]);
        assert_eq!(all[0].read(&[&[], &[]]), Err(AskError::Letters(2, 3)));
        let own = all[1].letter(0).to_vec();
        let error = all[0].read(&[&own, &own, &[7, 7]]).unwrap_err().to_string();
        assert_eq!(error, "a letter of rank 0: it is not process 0");
        let error = all[2].read(&[&[9], &[], &[]]).unwrap_err().to_string();
        assert!(error.starts_with("a letter of rank 0: "), "{error}");
    }
}
