//! Small dense systems of linear equations.

/// A square matrix as P A = L U, by Gaussian elimination with partial pivoting.
#[derive(Default)]
pub(crate) struct Factors {
    size: usize,
    /// L below the diagonal, U on it and above, row by row.
    cells: Vec<f64>,
    /// By row of the factors: the row of the matrix.
    rows: Vec<usize>,
}

impl Factors {
    /// The factors of a matrix given row by row; none if it is singular. O(size³).
    pub(crate) fn new(mut cells: Vec<f64>, size: usize) -> Option<Factors> {
        let mut rows: Vec<usize> = (0..size).collect();
        for at in 0..size {
            let largest = |row: &usize| cells[row * size + at].abs();
            let pivot = (at..size).max_by(|a, b| largest(a).total_cmp(&largest(b)))?;
            if cells[pivot * size + at].abs() < 1e-13 {
                return None;
            }
            if pivot != at {
                rows.swap(at, pivot);
                for column in 0..size {
                    cells.swap(at * size + column, pivot * size + column);
                }
            }
            let (above, below) = cells.split_at_mut((at + 1) * size);
            let pivot_row = &above[at * size..];
            for row in below.chunks_exact_mut(size) {
                let factor = row[at] / pivot_row[at];
                row[at] = factor;
                if factor != 0.0 {
                    for (cell, pivot) in row[at + 1..].iter_mut().zip(&pivot_row[at + 1..]) {
                        *cell -= factor * pivot;
                    }
                }
            }
        }
        Some(Factors { size, cells, rows })
    }

    /// Solves A x = b for x.
    pub(crate) fn solve(&self, b: Vec<f64>) -> Vec<f64> {
        let mut x: Vec<f64> = self.rows.iter().map(|&row| b[row]).collect();
        for at in 0..self.size {
            let row = &self.cells[at * self.size..(at + 1) * self.size];
            let below: f64 = row[..at].iter().zip(&x).map(|(cell, x)| cell * x).sum();
            x[at] -= below;
        }
        for at in (0..self.size).rev() {
            let row = &self.cells[at * self.size..(at + 1) * self.size];
            let above: f64 = row[at + 1..].iter().zip(&x[at + 1..]).map(|(cell, x)| cell * x).sum();
            x[at] = (x[at] - above) / row[at];
        }
        x
    }

    /// Solves Aᵀ y = c for y.
    pub(crate) fn solve_transposed(&self, mut c: Vec<f64>) -> Vec<f64> {
        let cell = |row: usize, column: usize| self.cells[row * self.size + column];
        for at in 0..self.size {
            c[at] /= cell(at, at);
            for after in at + 1..self.size {
                c[after] -= cell(at, after) * c[at];
            }
        }
        for at in (0..self.size).rev() {
            for before in 0..at {
                c[before] -= cell(at, before) * c[at];
            }
        }
        let mut y = vec![0.0; self.size];
        for (at, &row) in self.rows.iter().enumerate() {
            y[row] = c[at];
        }
        y
    }
}
