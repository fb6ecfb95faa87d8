//! Moving between two places of one machine.

use crate::error::StageError;
use crate::source::Source;
use crate::target::{Report, Target};

/// Told after each block, with the bytes that have arrived, those of earlier transfers among them; may wait there.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> Result<(), StageError>;

/// Reads and writes what is missing, then puts all in place.
///
/// # Errors
/// [`StageError`]; what has arrived is kept.
pub fn local(source: &mut Source, mut target: Target, progress: Progress<'_>) -> Result<Report, StageError> {
    let missing: Vec<u32> = target.done().missing().collect();
    let mut arrived = target.resumed();
    let mut bytes = Vec::new();
    progress(arrived)?;
    for block in missing {
        let hash = source.read(target.blocks().pieces(block), &mut bytes)?;
        target.write(block, &bytes, &hash)?;
        arrived += bytes.len() as u64;
        progress(arrived)?;
    }
    source.check()?;
    target.place()
}
