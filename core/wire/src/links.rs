//! A gateway's report to its members about the links between the sites of their job: the payload of a
//! [`crate::FrameKind::Links`] frame, a part of a [`LinkTable`].
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0–3 | `version` | of the table |
//! | 4–5 | `sites` | number of sites in the table |
//! | 6–7 | `first` | the first of this part's pairs: from × sites + to |
//! | 8– | | for each pair its round trip in seconds and its rate in bytes per second, each 32-bit float, 0: unknown |
//!
//! The parts of one table follow each other on the connection; the last one ends with the table's last pair.

use types::SiteId;
use types::links::{LinkFigures, LinkTable, MAX_SITES};

use crate::error::WireError;
use crate::reader::FieldReader;

const WHAT: &str = "link table";
const HEAD: usize = 8;
const PAIR: usize = 8;
/// Most pairs of a part: a payload is at most 4 KiB, the most that ranks accept in a frame that is not data.
const MOST: usize = (4096 - HEAD) / PAIR;

/// The payloads that carry a table.
pub fn parts(table: &LinkTable) -> Vec<Vec<u8>> {
    let figure = |value: Option<f64>| (value.unwrap_or(0.0) as f32).to_le_bytes();
    let part = |(at, rows): (usize, &[LinkFigures])| {
        let mut out = Vec::with_capacity(HEAD + rows.len() * PAIR);
        out.extend_from_slice(&table.version().to_le_bytes());
        out.extend_from_slice(&(table.sites() as u16).to_le_bytes());
        out.extend_from_slice(&((at * MOST) as u16).to_le_bytes());
        for figures in rows {
            out.extend_from_slice(&figure(figures.round_trip));
            out.extend_from_slice(&figure(figures.rate));
        }
        out
    };
    table.rows().chunks(MOST).enumerate().map(part).collect()
}

/// A table under assembly from its parts.
#[derive(Debug, Default)]
pub struct Assembly {
    /// The table so far, and the index of its next pair.
    begun: Option<(LinkTable, usize)>,
}

impl Assembly {
    /// Takes the next part; returns the table once it is whole. `sites`: number of sites in the job.
    ///
    /// # Errors
    /// The part does not follow the last one, is for another number of sites, or has an invalid figure: negative,
    /// infinite or not a number. The assembly is then empty again.
    pub fn take(&mut self, bytes: &[u8], sites: usize) -> Result<Option<LinkTable>, WireError> {
        let begun = self.begun.take();
        let mut reader = FieldReader::new(WHAT, bytes);
        let (version, stated, first) = (reader.u32()?, reader.u16()?, usize::from(reader.u16()?));
        if usize::from(stated) != sites || sites > MAX_SITES {
            return Err(invalid(format!("{stated} sites; the job has {sites}, and at most {MAX_SITES} are allowed")));
        }
        let (mut table, mut next) = match begun {
            Some((table, next)) if first > 0 && table.version() == version => (table, next),
            _ => (LinkTable::unknown(sites).numbered(version), 0),
        };
        if first != next {
            return Err(invalid(format!("pair {first} where pair {next} is next")));
        }
        while !reader.is_empty() {
            if next >= sites * sites {
                return Err(invalid(format!("more than {} pairs", sites * sites)));
            }
            let figures = LinkFigures { round_trip: figure(&mut reader)?, rate: figure(&mut reader)? };
            table.set(SiteId((next / sites) as u16), SiteId((next % sites) as u16), figures);
            next += 1;
        }
        if next == first {
            return Err(invalid("no pairs".to_owned()));
        }
        if next == sites * sites {
            return Ok(Some(table));
        }
        self.begun = Some((table, next));
        Ok(None)
    }
}

fn figure(reader: &mut FieldReader<'_>) -> Result<Option<f64>, WireError> {
    let value = f32::from_bits(reader.u32()?);
    if !value.is_finite() || value < 0.0 {
        return Err(invalid(format!("{value} is neither a round trip nor a rate")));
    }
    Ok((value > 0.0).then_some(f64::from(value)))
}

fn invalid(problem: String) -> WireError {
    WireError::Invalid { what: WHAT, problem }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(sites: usize) -> LinkTable {
        let mut table = LinkTable::unknown(sites).numbered(9);
        for from in 0..sites as u16 {
            for to in (0..sites as u16).filter(|to| (from + to) % 3 > 0) {
                let figures = LinkFigures { round_trip: Some(0.25), rate: Some(f64::from(from) * 1024.0 + 512.0) };
                table.set(SiteId(from), SiteId(to), figures);
            }
        }
        table
    }

    #[test]
    fn tables_survive_whatever_their_size() {
        for sites in [1, 2, 3, 22, 23, MAX_SITES] {
            let (table, mut assembly) = (table(sites), Assembly::default());
            let parts = parts(&table);
            assert!(parts.iter().all(|part| part.len() <= 4096));
            let (last, before) = parts.split_last().unwrap();
            for part in before {
                assert_eq!(assembly.take(part, sites), Ok(None));
            }
            assert_eq!(assembly.take(last, sites), Ok(Some(table)), "{sites} sites");
        }
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        let good = parts(&table(3)).remove(0);
        let mut assembly = Assembly::default();
        for (at, value) in [(8, f32::NAN), (8, -1.0), (12, f32::INFINITY), (12, f32::NEG_INFINITY)] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(assembly.take(&bad, 3).unwrap_err().to_string().contains("neither a round trip"), "{value}");
        }
        assert!(assembly.take(&good, 4).unwrap_err().to_string().contains("the job has 4"));
        assert!(assembly.take(&[good.as_slice(), &[0; 8]].concat(), 3).is_err());
        assert!(assembly.take(&good[..8], 3).is_err() && assembly.take(&good[..13], 3).is_err());
        let mut later = good.clone();
        later[6] = 1;
        assert!(assembly.take(&later, 3).unwrap_err().to_string().contains("where pair 0 is next"));
        assert_eq!(assembly.take(&good, 3).unwrap().map(|table| table.version()), Some(9));
    }

    #[test]
    fn a_new_table_replaces_one_that_was_cut_off() {
        let (old, new) = (parts(&table(40)), parts(&table(40).numbered(10)));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(&old[0], 40), Ok(None));
        assert_eq!(assembly.take(&new[0], 40), Ok(None));
        assert!(assembly.take(&old[1], 40).is_err(), "of another version");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, sites in 0usize..200) {
            let _ = Assembly::default().take(&bytes, sites);
        }
    }
}
