//! Layouts in the text form that users type: `4096x4096/8:block(4),whole`.
//!
//! The text gives a shape, the bytes of an element, and the distribution of each axis: `whole` or `*`, `block(P)`,
//! `block(N+N+…)` with the number of indices of each process, `cyclic(P,BLOCK)` or `cyclic(P,BLOCK,FIRST)`; `~K` or
//! `~K+L` after `whole` and `block` is a halo of K indices before and L after (K if L is left out). `:fortran` at the
//! end makes the first axis contiguous.

use thiserror::Error;

use crate::redistribution::axis::{Axis, AxisKind, AxisParameters, Halo};
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
    let (name, values) = match kind.strip_suffix(')').and_then(|kind| kind.split_once('(')) {
        None if kind == "*" => ("whole", Vec::new()),
        None => (kind, Vec::new()),
        Some((name, values)) => (name, values.split(',').collect()),
    };
    let mut values = Values { text: text.trim(), values, used: 0 };
    let kind = AxisKind::named(name).ok_or_else(|| values.wrong())?;
    let axis = Axis::described(kind, &mut values)?;
    if values.used < values.values.len() {
        return Err(values.wrong());
    }
    Ok((axis, halo))
}

/// The values in the parentheses of an axis, in the order in which [`AxisParameters`] lists them.
struct Values<'a> {
    /// The whole axis.
    text: &'a str,
    values: Vec<&'a str>,
    /// The number of values that have been read.
    used: usize,
}

impl<'a> Values<'a> {
    fn wrong(&self) -> TextError {
        TextError::Axis(self.text.to_owned())
    }

    fn at(&mut self, place: usize) -> Option<&'a str> {
        let value = self.values.get(place)?;
        self.used = self.used.max(place + 1);
        Some(value)
    }

    fn process(&self, text: &str) -> Result<u32, TextError> {
        u32::try_from(number(text)?).map_err(|_| self.wrong())
    }
}

impl AxisParameters for Values<'_> {
    type Error = TextError;

    fn over(&mut self) -> Result<u32, TextError> {
        match self.sizes()? {
            Some(sizes) => u32::try_from(sizes.len()).map_err(|_| self.wrong()),
            None => {
                let over = self.at(0).ok_or_else(|| self.wrong())?;
                self.process(over)
            }
        }
    }

    fn sizes(&mut self) -> Result<Option<Vec<u64>>, TextError> {
        let sizes = self.at(0).filter(|value| value.contains('+'));
        sizes.map(|sizes| sizes.split('+').map(number).collect()).transpose()
    }

    fn block(&mut self) -> Result<u64, TextError> {
        number(self.at(1).ok_or_else(|| self.wrong())?)
    }

    fn first(&mut self) -> Result<u32, TextError> {
        self.at(2).map_or(Ok(0), |first| self.process(first))
    }

    fn lists(&mut self) -> Result<Vec<Vec<u64>>, TextError> {
        Err(self.wrong())
    }
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
            ("4/8:cyclic(2,1,0,0)", "`cyclic(2,1,0,0)` is no axis"),
            ("4/8:block(2,1)", "`block(2,1)` is no axis"),
            ("4/8:block", "`block` is no axis"),
            ("4/8:*(2)", "`*(2)` is no axis"),
            ("4/8:whole(1)", "`whole(1)` is no axis"),
            ("4/8:lists(0)", "`lists(0)` is no axis"),
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
