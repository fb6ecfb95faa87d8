//! The unit of transfer: a block holds part of a large file, or many small ones.

use std::ops::RangeInclusive;

use crate::error::StageError;
use crate::manifest::{EntryKind, Manifest};

/// BLAKE3 of a block's bytes.
pub type Hash = [u8; 32];

/// Bytes of one file in a block. An empty file has one piece without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePiece {
    /// The file's number in the manifest.
    pub entry: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// A manifest's data, cut into blocks. Both ends cut the same manifest and get the same blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    pieces: Vec<FilePiece>,
    /// First piece of each block.
    firsts: Vec<usize>,
    size: u32,
}

/// Permitted block sizes, in bytes.
pub const SIZES: RangeInclusive<u32> = 4 << 10..=1 << 30;

/// Maximum number of blocks, so that block numbers and per-block state fit. Enough for a petabyte in blocks of 4 MiB.
const MOST: u64 = 1 << 28;
/// The largest block on a node where other users compute: a mover keeps several blocks in memory.
pub(crate) const MOST_BESIDE: u32 = 64 << 20;

/// Maximum number of files in a block: the receiver creates each file, whatever its length.
const MOST_PIECES: usize = 4096;

impl Blocks {
    /// Cuts all data into blocks of at most `size` bytes. `size` must not be 0.
    ///
    /// # Errors
    /// [`StageError::Manifest`] if this takes more than 2^28 blocks.
    pub fn cut(manifest: &Manifest, size: u32) -> Result<Blocks, StageError> {
        if manifest.bytes() / u64::from(size) > MOST {
            let problem = format!("{} bytes in blocks of {size} are too many blocks", manifest.bytes());
            return Err(StageError::Manifest(problem));
        }
        let mut blocks = Blocks { pieces: Vec::new(), firsts: Vec::new(), size };
        let mut room = 0;
        for (entry, found) in (0u32..).zip(&manifest.entries) {
            if !matches!(found.kind, EntryKind::File { .. }) {
                continue;
            }
            let is_empty = found.data().next().is_none();
            let empty = is_empty.then_some((0, 0));
            for (mut offset, mut length) in found.data().chain(empty) {
                loop {
                    let full = blocks.firsts.last().is_none_or(|first| blocks.pieces.len() - first >= MOST_PIECES);
                    if full || (room == 0 && length > 0) {
                        blocks.firsts.push(blocks.pieces.len());
                        room = u64::from(size);
                    }
                    let part = length.min(room);
                    blocks.pieces.push(FilePiece { entry, offset, length: part as u32 });
                    room -= part;
                    offset += part;
                    length -= part;
                    if length == 0 {
                        break;
                    }
                }
            }
        }
        Ok(blocks)
    }

    /// Number of blocks.
    pub fn count(&self) -> u32 {
        self.firsts.len() as u32
    }

    /// Maximum size of a block, in bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The pieces of a block, in order. Empty if there is no such block.
    pub fn pieces(&self, block: u32) -> &[FilePiece] {
        let at = block as usize;
        match self.firsts.get(at) {
            Some(first) => {
                let end = self.firsts.get(at + 1).copied().unwrap_or(self.pieces.len());
                &self.pieces[*first..end]
            }
            None => &[],
        }
    }

    /// Bytes of a block.
    pub fn bytes(&self, block: u32) -> u64 {
        self.pieces(block).iter().map(|piece| u64::from(piece.length)).sum()
    }
}

/// The set of blocks that have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    count: u32,
    set: u32,
}

impl Bitmap {
    /// An empty set for `count` blocks.
    pub fn new(count: u32) -> Bitmap {
        Bitmap { words: vec![0; count.div_ceil(64) as usize], count, set: 0 }
    }

    /// Adds a block. Returns true if it is new. Ignores a number beyond the last block.
    pub fn insert(&mut self, block: u32) -> bool {
        if block >= self.count || self.contains(block) {
            return false;
        }
        self.words[(block / 64) as usize] |= 1 << (block % 64);
        self.set += 1;
        true
    }

    /// Removes a block from the set.
    pub fn remove(&mut self, block: u32) {
        if self.contains(block) {
            self.words[(block / 64) as usize] &= !(1 << (block % 64));
            self.set -= 1;
        }
    }

    pub fn contains(&self, block: u32) -> bool {
        self.words.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Blocks that have not arrived, in ascending order.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).filter(|block| !self.contains(*block))
    }

    pub fn is_full(&self) -> bool {
        self.set == self.count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::{Entry, Stamp};

    fn file(data: Vec<(u64, u64)>) -> Entry {
        let size = data.last().map_or(0, |(offset, length)| offset + length);
        let stamp = Stamp { inode: 1, size, modified: 0, changed: 0, attempt: 0 };
        let kind = EntryKind::File { stamp, data };
        Entry { path: Vec::new(), kind, mode: 0o600, modified: (0, 0), attributes: Vec::new() }
    }

    fn extents() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0u64..50, 1u64..3000), 0..4).prop_map(|gaps| {
            let mut at = 0;
            gaps.into_iter()
                .map(|(gap, length)| {
                    let offset = at + gap;
                    at = offset + length;
                    (offset, length)
                })
                .collect()
        })
    }

    proptest! {
        /// Blocks hold each byte once and in order; no block is longer than allowed or shorter than necessary.
        #[test]
        fn blocks_cover_all_data_once(files in prop::collection::vec(extents(), 0..40), size in 1u32..2000) {
            let manifest = Manifest { entries: files.iter().cloned().map(file).collect() };
            let blocks = Blocks::cut(&manifest, size).unwrap();
            let mut covered: Vec<Vec<(u64, u64)>> = vec![Vec::new(); files.len()];
            let mut touched = vec![false; files.len()];
            for block in 0..blocks.count() {
                prop_assert!(!blocks.pieces(block).is_empty());
                prop_assert!(blocks.bytes(block) <= u64::from(size));
                if block + 1 < blocks.count() {
                    prop_assert_eq!(blocks.bytes(block), u64::from(size));
                }
                for piece in blocks.pieces(block) {
                    touched[piece.entry as usize] = true;
                    let ranges = &mut covered[piece.entry as usize];
                    match ranges.last_mut() {
                        _ if piece.length == 0 => {}
                        Some((offset, long)) if *offset + *long == piece.offset => *long += u64::from(piece.length),
                        _ => ranges.push((piece.offset, u64::from(piece.length))),
                    }
                }
            }
            prop_assert!(touched.iter().all(|touched| *touched));
            for (ranges, data) in covered.iter().zip(&files) {
                // Merge adjacent extents.
                let mut merged: Vec<(u64, u64)> = Vec::new();
                for (offset, length) in data {
                    match merged.last_mut() {
                        Some((before, long)) if *before + *long == *offset => *long += length,
                        _ => merged.push((*offset, *length)),
                    }
                }
                prop_assert_eq!(ranges, &merged);
            }
        }

        #[test]
        fn a_bitmap_knows_what_is_missing(count in 0u32..300, inserted in prop::collection::vec(0u32..320, 0..200)) {
            let mut bitmap = Bitmap::new(count);
            let mut model = std::collections::BTreeSet::new();
            for block in inserted {
                prop_assert_eq!(bitmap.insert(block), block < count && model.insert(block));
            }
            let missing: Vec<u32> = (0..count).filter(|block| !model.contains(block)).collect();
            prop_assert_eq!(bitmap.missing().collect::<Vec<_>>(), missing);
            prop_assert_eq!(bitmap.is_full(), model.len() == count as usize);
        }
    }

    #[test]
    fn more_blocks_than_can_be_numbered_are_refused() {
        let manifest = Manifest { entries: vec![file(vec![(0, 1 << 62)]), file(vec![(0, 1 << 62)])] };
        assert!(Blocks::cut(&manifest, 1 << 30).unwrap_err().to_string().contains("too many blocks"));
    }

    #[test]
    fn small_files_share_a_block() {
        let manifest = Manifest { entries: (0..10_000).map(|_| file(vec![(0, 100)])).collect() };
        let blocks = Blocks::cut(&manifest, 4 << 20).unwrap();
        assert_eq!((0..blocks.count()).map(|block| blocks.pieces(block).len()).collect::<Vec<_>>(), [4096, 4096, 1808]);
    }
}
