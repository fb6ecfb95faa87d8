//! A square matrix of numbers, by (sender, receiver).

use std::ops::{Index, IndexMut};

/// A square matrix, row by row. An index out of range panics, as a slice's does.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    size: usize,
    cells: Vec<f64>,
}

impl Matrix {
    /// The `size` × `size` matrix whose cell (i, j) is `cell(i, j)`.
    pub fn from_fn(size: usize, mut cell: impl FnMut(usize, usize) -> f64) -> Matrix {
        let mut cells = Vec::with_capacity(size * size);
        for i in 0..size {
            cells.extend((0..size).map(|j| cell(i, j)));
        }
        Matrix { size, cells }
    }

    /// The number of rows.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Row `i`: the values of sender `i` for each receiver.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f64] {
        &self.cells[i * self.size..(i + 1) * self.size]
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.cells[i * self.size + j]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.cells[i * self.size + j]
    }
}
