//! Types of elements, in NumPy's notation.

use crate::error::Problem;

/// A type of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dtype {
    /// The notation of NumPy's `dtype.str`, such as `<f8`.
    pub text: String,
    /// Size of an element in bytes.
    pub size: usize,
}

impl Dtype {
    /// The notation that both sides of a coupling exchange.
    pub(crate) fn described(&self) -> String {
        format!("'{}'", self.text)
    }

    /// Reads `f8`, `<i4`, `c16`, `V24`; the default byte order is this machine's.
    pub(crate) fn read(text: &str) -> Result<Dtype, Problem> {
        let invalid = |why: &str| Problem::invalid(format_args!("dtype is `{text}`: {why}"));
        let (order, rest) = match text.chars().next() {
            Some(order @ ('<' | '>' | '|' | '=')) => (Some(order), &text[1..]),
            _ => (None, text),
        };
        let mut chars = rest.chars();
        let kind = chars.next().filter(|kind| "biufcmMSUV".contains(*kind));
        let (Some(kind), Ok(length)) = (kind, chars.as_str().parse::<usize>()) else {
            return Err(invalid("it must be a letter of b i u f c S U V and a number of bytes, such as f8"));
        };
        let sizes: &[usize] = match kind {
            'b' => &[1],
            'i' | 'u' => &[1, 2, 4, 8],
            'f' => &[2, 4, 8, 12, 16],
            'c' => &[8, 16, 24, 32],
            'm' | 'M' => &[8],
            _ => &[],
        };
        if length == 0 || (!sizes.is_empty() && !sizes.contains(&length)) {
            return Err(invalid("there is no such length"));
        }
        let size = if kind == 'U' { length.checked_mul(4) } else { Some(length) };
        let size = size.ok_or_else(|| invalid("it is too long"))?;
        let here = if cfg!(target_endian = "little") { '<' } else { '>' };
        let order = match order {
            _ if length == 1 && kind != 'U' || "SV".contains(kind) => '|',
            Some(order @ ('<' | '>')) => order,
            _ => here,
        };
        Ok(Dtype { text: format!("{order}{kind}{length}"), size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_as_numpy_does() {
        for (text, wanted, size) in [
            ("f8", "<f8", 8),
            ("=f8", "<f8", 8),
            (">i4", ">i4", 4),
            ("c16", "<c16", 16),
            ("i1", "|i1", 1),
            ("b1", "|b1", 1),
            ("V24", "|V24", 24),
            ("S10", "|S10", 10),
            ("U3", "<U3", 12),
        ] {
            let found = Dtype::read(text).unwrap();
            assert_eq!((found.text.as_str(), found.size), (wanted, size));
        }
    }

    #[test]
    fn what_is_no_type_is_named() {
        for text in ["", "f", "8", "f7", "O8", "f-8", "float64", "V0", "<"] {
            let problem = Dtype::read(text).unwrap_err().text;
            assert!(problem.starts_with(&format!("dtype is `{text}`")), "{problem}");
        }
    }
}
