//! Layouts in the text form that users type: `4096x4096/8:block(4),whole`.
//!
//! The text gives a shape, the bytes of an element, and the distribution of each axis: `whole` or `*`, `block(P)`,
//! `block(N+N+…)` with the number of indices of each process, `cyclic(P,BLOCK)` or `cyclic(P,BLOCK,FIRST)`; `~K` or
//! `~K+L` after `whole` and `block` is a halo of K indices before and L after (K if L is left out). `:fortran` at the
//! end makes the first axis contiguous.

use thiserror::Error;

use crate::redistribution::axis::{Axis, Halo};
use crate::redistribution::layout::{Layout, LayoutError, MemoryOrder};

/// Reasons why a text is not a layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TextError {
    #[error("`{0}` is not SHAPE/BYTES:AXIS,AXIS,…, such as 4096x4096/8:block(4),whole")]
    Form(String),
    #[error("`{0}` is no axis: whole, block(4), block(10+20), cyclic(4,64), perhaps with a halo as in block(4)~1")]
    Axis(String),
    #[error("`{0}` is no number")]
    Number(String),
    #[error("an element of {0} bytes: from 1 to 4096 are possible")]
    Element(u64),
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The most bytes of an element.
const LARGEST: u64 = 4096;

/// Parses a layout and the bytes of an element.
///
/// # Errors
/// [`TextError`].
pub fn parse(text: &str) -> Result<(Layout, u64), TextError> {
    let form = || TextError::Form(text.to_owned());
    let (array, axes) = text.split_once(':').ok_or_else(form)?;
    let (shape, element) = array.split_once('/').ok_or_else(form)?;
    let shape = shape.split('x').map(number).collect::<Result<Vec<_>, _>>()?;
    let element = number(element)?;
    if !(1..=LARGEST).contains(&element) {
        return Err(TextError::Element(element));
    }
    let (axes, order) = match axes.split_once(':') {
        None => (axes, MemoryOrder::C),
        Some((axes, "fortran")) => (axes, MemoryOrder::Fortran),
        Some(_) => return Err(form()),
    };
    let described = split(axes).into_iter().map(axis).collect::<Result<Vec<_>, _>>()?;
    let (axes, halos): (Vec<Axis>, Vec<Halo>) = described.into_iter().unzip();
    let mut layout = Layout::new(shape, axes)?;
    for (axis, halo) in halos.into_iter().enumerate() {
        layout = layout.with_halo(axis, halo)?;
    }
    Ok((layout.in_order(order), element))
}

fn number(text: &str) -> Result<u64, TextError> {
    text.trim().parse().map_err(|_| TextError::Number(text.to_owned()))
}

/// Splits at the commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0i32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn axis(text: &str) -> Result<(Axis, Halo), TextError> {
    let (kind, halo) = match text.trim().split_once('~') {
        None => (text.trim(), Halo::default()),
        Some((kind, halo)) => {
            let (before, after) = halo.split_once('+').unwrap_or((halo, halo));
            (kind.trim(), Halo { before: number(before)?, after: number(after)?, periodic: false })
        }
    };
    let wrong = || TextError::Axis(text.trim().to_owned());
    let over = |text: &str| number(text).and_then(|over| u32::try_from(over).map_err(|_| wrong()));
    let axis = match kind.strip_suffix(')').and_then(|kind| kind.split_once('(')) {
        None if matches!(kind, "whole" | "*") => Axis::Whole,
        None => return Err(wrong()),
        Some(("block", inner)) if inner.contains('+') => {
            let sizes = inner.split('+').map(number).collect::<Result<Vec<_>, _>>()?;
            Axis::Block { over: u32::try_from(sizes.len()).map_err(|_| wrong())?, sizes: Some(sizes) }
        }
        Some(("block", inner)) => Axis::Block { over: over(inner)?, sizes: None },
        Some(("cyclic", inner)) => {
            let parts: Vec<&str> = inner.split(',').collect();
            let (count, block, first) = match parts[..] {
                [count, block] => (count, block, "0"),
                [count, block, first] => (count, block, first),
                _ => return Err(wrong()),
            };
            Axis::Cyclic { over: over(count)?, block: number(block)?, first: over(first)? }
        }
        Some(_) => return Err(wrong()),
    };
    Ok((axis, halo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_they_are_typed() {
        let (layout, element) = parse("10x20/8:block(3+7)~1,cyclic(2,4,1)").unwrap();
        assert_eq!((layout.shape(), element, layout.processes()), (&[10, 20][..], 8, 4));
        assert_eq!(layout.axis(0), &Axis::Block { over: 2, sizes: Some(vec![3, 7]) });
        assert_eq!(layout.halo(0), Halo { before: 1, after: 1, periodic: false });
        assert_eq!(layout.axis(1), &Axis::Cyclic { over: 2, block: 4, first: 1 });
        let (layout, _) = parse("6/1:block(2)~0+2").unwrap();
        assert_eq!(layout.halo(0), Halo { before: 0, after: 2, periodic: false });
        assert_eq!(parse("4x4/4:*,whole:fortran").unwrap().0.order(), MemoryOrder::Fortran);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, problem) in [
            ("4x4", "is not SHAPE/BYTES"),
            ("4x4/8:block(2)", "1 axes are described, but the array has 2"),
            ("4x4/0:*,*", "0 bytes"),
            ("4xa/8:*,*", "`a` is no number"),
            ("4/8:blocks(2)", "`blocks(2)` is no axis"),
            ("4/8:cyclic(2)", "`cyclic(2)` is no axis"),
            ("4/8:cyclic(2,1)~1", "only a block axis"),
            ("9/8:block(4+4)", "add up to 8"),
            ("4/8:*:c", "is not SHAPE"),
            ("4/8:block(0)", "0 processes"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
