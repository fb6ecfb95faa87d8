//! Lists of node names, as users and schedulers write them: `n[1-4,7],login`.

use thiserror::Error;

/// Largest number of names in a list.
const MOST: usize = 16384;

/// A list of nodes that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("nodes `{list}`: {problem}; write for example n[1-4,7],big1")]
#[non_exhaustive]
pub struct NodesError {
    pub list: String,
    /// The problem in the list.
    pub problem: ListProblem,
}

/// The problem in a list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListProblem {
    /// It is empty.
    #[error("no name")]
    Empty,
    /// A bracket is unmatched or nested.
    #[error("brackets do not match")]
    Brackets,
    /// The text between brackets is not a list of numbers and ranges.
    #[error("`{0}` is not a range of numbers")]
    Range(String),
    /// The end of a range is before its beginning.
    #[error("`{0}` runs backwards")]
    Backwards(String),
    /// The text cannot be a host's name.
    #[error("`{0}` is not a name")]
    Name(String),
    /// A node is named twice.
    #[error("`{0}` appears twice")]
    Twice(String),
    /// The list has more names than any site has nodes.
    #[error("more than {MOST} names")]
    TooMany,
}

/// The names in a list, in its order.
///
/// # Errors
/// [`NodesError`], which quotes the list and names the problem.
pub fn expand(list: &str) -> Result<Vec<String>, NodesError> {
    let wrong = |problem| NodesError { list: list.to_owned(), problem };
    let mut names = Vec::new();
    for word in words(list).map_err(wrong)? {
        for name in expand_word(word).map_err(wrong)? {
            if !types::sites::is_name(&name) {
                return Err(wrong(ListProblem::Name(name)));
            }
            if names.contains(&name) {
                return Err(wrong(ListProblem::Twice(name)));
            }
            names.push(name);
            if names.len() > MOST {
                return Err(wrong(ListProblem::TooMany));
            }
        }
    }
    if names.is_empty() { Err(wrong(ListProblem::Empty)) } else { Ok(names) }
}

/// The parts of the list, split at commas outside brackets.
fn words(list: &str) -> Result<Vec<&str>, ListProblem> {
    let (mut words, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                words.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(ListProblem::Brackets);
        }
    }
    if depth != 0 {
        return Err(ListProblem::Brackets);
    }
    words.push(&list[start..]);
    Ok(words.into_iter().map(str::trim).filter(|word| !word.is_empty()).collect())
}

fn expand_word(word: &str) -> Result<Vec<String>, ListProblem> {
    let Some((before, rest)) = word.split_once('[') else { return Ok(vec![word.to_owned()]) };
    let Some((inside, after)) = rest.split_once(']') else { return Err(ListProblem::Brackets) };
    let tails = expand_word(after)?;
    let mut names = Vec::new();
    for range in inside.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| digits).ok_or_else(|| ListProblem::Range(range.to_owned()))
        };
        let (first, last) = (number(low)?, number(high)?);
        if last < first {
            return Err(ListProblem::Backwards(range.to_owned()));
        }
        // Check the count before making any name: `n[0-4294967295]` must not fill the memory.
        if (last - first) as usize >= MOST || names.len() + (last - first) as usize * tails.len() > MOST {
            return Err(ListProblem::TooMany);
        }
        for number in first..=last {
            // Leading zeros are kept, as schedulers keep them.
            names.extend(tails.iter().map(|tail| format!("{before}{number:0width$}{tail}", width = low.len())));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_as_schedulers_write_them() {
        for (list, names) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10,12],login", "n08 n09 n10 n12 login"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
            (" a , b ", "a b"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_quoted() {
        for (list, problem) in [
            ("", "no name"),
            ("n[1-", "brackets"),
            ("n1]", "brackets"),
            ("n[[1]]", "brackets"),
            ("n[3-1]", "backwards"),
            ("n[a-b]", "not a range"),
            ("n[+1]", "not a range"),
            ("n[0-4294967295]", "more than"),
            ("r[1-9999]n[1-9999]", "more than"),
            ("n1,n1", "twice"),
            ("n1;rm", "not a name"),
            ("$(x)", "not a name"),
        ] {
            let error = expand(list).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(list), "{list}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[n0-9\\[\\],-]{0,40}") {
            let _ = expand(&text);
        }
    }
}
