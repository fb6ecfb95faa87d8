//! Check whether elements of a receiving array share memory.

use crate::error::Problem;

/// # Errors
/// Two elements of an array of this shape, with these strides in bytes, have a byte in common.
pub(crate) fn check_apart(shape: &[u64], strides: &[i64], element: usize) -> Result<(), Problem> {
    if shape.contains(&0) || !overlaps(shape, strides, element as u64) {
        return Ok(());
    }
    let text = format_args!("into has elements that share memory: shape {shape:?}, strides {strides:?} in bytes");
    Err(Problem::invalid(text))
}

fn overlaps(shape: &[u64], strides: &[i64], element: u64) -> bool {
    let long = shape.iter().zip(strides).filter(|(extent, _)| **extent > 1);
    let mut axes: Vec<(u64, u64)> = long.map(|(extent, stride)| (stride.unsigned_abs(), *extent)).collect();
    axes.sort_unstable();
    let mut reach = element;
    let nested = axes.iter().all(|(stride, extent)| {
        let apart = *stride >= reach;
        reach = reach.saturating_add(stride.saturating_mul(extent - 1));
        apart
    });
    // The axes interlace, so every element's place is checked.
    !nested && {
        let mut places = vec![0_u64];
        for (stride, extent) in axes {
            let along = |place: u64| (0..extent).map(move |at| place.saturating_add(at.saturating_mul(stride)));
            places = places.into_iter().flat_map(along).collect();
        }
        places.sort_unstable();
        places.windows(2).any(|pair| pair[1] - pair[0] < element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_share_memory_are_found() {
        for (shape, strides, apart) in [
            (&[6, 2][..], &[16, 8][..], true),
            (&[6, 2], &[8, 48], true),
            (&[6, 2], &[-16, 8], true),
            (&[6, 2], &[16, 24], true),
            (&[6, 1], &[8, 0], true),
            (&[0, 2], &[0, 0], true),
            (&[6, 2], &[8, 0], false),
            (&[6, 2], &[8, 16], false),
            (&[6, 2], &[8, 4], false),
        ] {
            assert_eq!(check_apart(shape, strides, 8).is_ok(), apart, "{shape:?} {strides:?}");
        }
    }
}
