//! Several programs in one job: the ranks that run each of them. Pure.

use thiserror::Error;
use types::SitesFile;

use crate::spread::SpreadError;

/// The number of ranks that the user wants for one of the programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartWish {
    /// The program as it was typed, for messages.
    pub program: String,
    /// `None`: the sum of `per_site`.
    pub ranks: Option<u32>,
    /// Ranks at each named site, in the order in which they were typed.
    pub per_site: Vec<(String, u32)>,
}

/// The number of ranks of all programs together, and the sites of these ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// `None`: the sum of `per_site`, or a number that is not known yet.
    pub ranks: Option<u32>,
    /// Empty: ranks are spread over all sites.
    pub per_site: Vec<(String, u32)>,
    /// The first rank of each program.
    pub firsts: Vec<u32>,
}

/// Numbers that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartError {
    #[error("program {number} ({program}): {problem}")]
    Part { number: usize, program: String, problem: SpreadError },
    #[error(
        "program {number} ({program}) has no --site, and another one has: give --site NAME=N for every program, or for none"
    )]
    NoSite { number: usize, program: String },
    #[error(
        "--site {site}: the ranks of a site have successive numbers, but programs between those at {site} are at other \
         sites: type the programs of a site one after the other"
    )]
    Scattered { site: String },
    #[error("all programs together have more than {} ranks", u32::MAX)]
    TooMany,
}

/// Numbers the ranks of all programs, one program after the other. With several programs, sites are sorted in the order
/// in which they were typed, in `file` too. A single program leaves `file` unchanged.
///
/// # Errors
/// [`PartError`], which names the program.
pub fn join(file: &mut SitesFile, parts: &[PartWish]) -> Result<Joined, PartError> {
    if let [only] = parts {
        return Ok(Joined { ranks: only.ranks, per_site: only.per_site.clone(), firsts: vec![0] });
    }
    let named = parts.iter().any(|part| !part.per_site.is_empty());
    let (mut next, mut firsts, mut per_site) = (0u32, Vec::new(), Vec::<(String, u32)>::new());
    for (at, part) in parts.iter().enumerate() {
        let (number, program) = (at + 1, part.program.clone());
        if named && part.per_site.is_empty() {
            return Err(PartError::NoSite { number, program });
        }
        let ranks = size(part).map_err(|problem| PartError::Part { number, program, problem })?;
        firsts.push(next);
        next = next.checked_add(ranks).ok_or(PartError::TooMany)?;
        for (site, ranks) in part.per_site.iter().filter(|(_, ranks)| *ranks > 0) {
            let last = per_site.len().checked_sub(1);
            match per_site.iter().position(|(other, _)| other == site) {
                None => per_site.push((site.clone(), *ranks)),
                Some(at) if Some(at) == last => per_site[at].1 += ranks,
                Some(_) => return Err(PartError::Scattered { site: site.clone() }),
            }
        }
    }
    let place = |name: &str| per_site.iter().position(|(site, _)| site == name).unwrap_or(per_site.len());
    file.sites.sort_by_key(|site| place(&site.name));
    Ok(Joined { ranks: Some(next), per_site, firsts })
}

/// The number of ranks of one program.
fn size(part: &PartWish) -> Result<u32, SpreadError> {
    let sum: u64 = part.per_site.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
    for (at, (site, _)) in part.per_site.iter().enumerate() {
        if part.per_site[..at].iter().any(|(other, _)| other == site) {
            return Err(SpreadError::Twice(site.clone()));
        }
    }
    match (part.ranks, part.per_site.is_empty()) {
        (None, true) => Err(SpreadError::NoNumber),
        (Some(ranks), false) if u64::from(ranks) != sum => Err(SpreadError::Sum { ranks, sum }),
        (Some(0), _) => Err(SpreadError::Zero),
        (Some(ranks), _) => Ok(ranks),
        (None, false) if sum == 0 => Err(SpreadError::Zero),
        (None, false) => Ok(u32::try_from(sum).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> SitesFile {
        let mut text = String::new();
        for name in ["a", "b", "c"] {
            let print = "0".repeat(64);
            text += &format!(
                "[[site]]\nname=\"{name}\"\nfingerprint=\"sha256:{print}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\nnode=[{{name=\"n\"}}]\n"
            );
        }
        SitesFile::parse(&text, "x.toml").unwrap()
    }

    fn part(program: &str, ranks: Option<u32>, sites: &[(&str, u32)]) -> PartWish {
        let per_site = sites.iter().map(|(site, ranks)| ((*site).to_owned(), *ranks)).collect();
        PartWish { program: program.into(), ranks, per_site }
    }

    #[test]
    fn ranks_are_numbered_program_by_program() {
        let mut file = file();
        let parts = [part("x", Some(1), &[]), part("y", Some(3), &[]), part("z", Some(2), &[])];
        let joined = join(&mut file, &parts).unwrap();
        assert_eq!((joined.ranks, joined.firsts, file.names()), (Some(6), vec![0, 1, 4], "a, b, c".to_owned()));
        let parts = [part("x", None, &[("c", 2)]), part("y", Some(5), &[("c", 1), ("a", 4)])];
        let joined = join(&mut file, &parts).unwrap();
        assert_eq!(joined.per_site, [("c".to_owned(), 3), ("a".to_owned(), 4)]);
        assert_eq!((joined.ranks, joined.firsts, file.names()), (Some(7), vec![0, 2], "c, a, b".to_owned()));
        let one = join(&mut file, &[part("x", None, &[("a", 2)])]).unwrap();
        assert_eq!((one.ranks, one.firsts, file.names()), (None, vec![0], "c, a, b".to_owned()));
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        for (parts, expected) in [
            ([part("x", None, &[]), part("y", Some(1), &[])], "program 1 (x): how many ranks?"),
            ([part("x", Some(1), &[]), part("y", None, &[("a", 1)])], "program 1 (x) has no --site"),
            ([part("x", None, &[("a", 1)]), part("y", Some(3), &[("b", 2)])], "program 2 (y): -n 3 is not the sum"),
            ([part("x", None, &[("a", 1), ("b", 1)]), part("y", None, &[("a", 1)])], "--site a: the ranks of a site"),
            (
                [part("x", None, &[("a", 1), ("a", 1)]), part("y", None, &[("a", 1)])],
                "program 1 (x): --site a is given",
            ),
            ([part("x", None, &[("a", 0)]), part("y", None, &[("a", 1)])], "program 1 (x): 0 ranks"),
            ([part("x", Some(u32::MAX), &[]), part("y", Some(1), &[])], "more than 4294967295 ranks"),
        ] {
            let error = join(&mut file(), &parts).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
