//! The simplex method for packing programs: maximise Σ x subject to A x ≤ 1 and x ≥ 0, where A has no negative entries.
//! Columns are generated on demand.
//!
//! Only the core of the basis is stored: the columns in use and the same number of rows, the tight ones. Its factors
//! are recomputed at each step, so errors do not add up; a step with k columns costs O(k³ + k · entries of a column).
//! Right sides are 1 plus a tiny amount that differs from row to row, without which degenerate programs could cycle
//! (Charnes); the reported solution is for right sides of exactly 1.

use crate::dense::Factors;

/// Entries of a column, (row, value). A row may occur once.
pub(crate) type Column = Vec<(usize, f64)>;

/// Values up to this size count as 0.
const ZERO: f64 = 1e-10;

pub(crate) struct Simplex {
    rows: usize,
    right: Vec<f64>,
    /// The columns in use: number and entries.
    columns: Vec<(usize, Column)>,
    /// The tight rows, one per column in use.
    tight: Vec<usize>,
    /// By row: its place among the tight ones.
    place: Vec<Option<usize>>,
    factors: Factors,
    values: Vec<f64>,
    prices: Vec<f64>,
}

impl Simplex {
    /// A program with this number of rows and no columns.
    pub(crate) fn new(rows: usize) -> Simplex {
        // Multiples of the golden ratio are spread evenly, so no two rows are alike.
        let right = (1..=rows).map(|row| 1.0 + 1e-8 * (0.5 + (row as f64 * 0.618_033_988_749_895).fract())).collect();
        Simplex {
            rows,
            right,
            columns: Vec::new(),
            tight: Vec::new(),
            place: vec![None; rows],
            factors: Factors::default(),
            values: Vec::new(),
            prices: vec![0.0; rows],
        }
    }

    /// Σ x of the current solution.
    pub(crate) fn value(&self) -> f64 {
        self.values.iter().sum()
    }

    /// Dual price of each row: the value of one more unit of its right side. No price is negative if
    /// [`Simplex::drop_negative_price`] found none.
    pub(crate) fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// Each column in use with its value, for right sides of exactly 1.
    pub(crate) fn solution(&self) -> Vec<(usize, f64)> {
        let values = self.factors.solve(vec![1.0; self.tight.len()]);
        self.columns.iter().zip(values).map(|((number, _), value)| (*number, value.max(0.0))).collect()
    }

    /// The columns in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|(number, _)| *number)
    }

    /// Multiplies each column in use by a positive factor. Its value is divided by that factor, so the solution stays
    /// feasible. Returns false if the new basis is singular, which only rounding can cause.
    pub(crate) fn scale(&mut self, factor: impl Fn(usize) -> f64) -> bool {
        for (number, column) in &mut self.columns {
            let factor = factor(*number);
            column.iter_mut().for_each(|(_, value)| *value *= factor);
        }
        self.factor()
    }

    /// Brings a column into use. Its entries, weighted by the prices, must add up to less than 1. Returns false if no
    /// step is possible, which only rounding can cause.
    pub(crate) fn enter(&mut self, number: usize, column: Column) -> bool {
        let mut on_tight = vec![0.0; self.tight.len()];
        let mut on_rows = vec![0.0; self.rows];
        for &(row, value) in &column {
            match self.place[row] {
                Some(place) => on_tight[place] = value,
                None => on_rows[row] = value,
            }
        }
        let change = self.factors.solve(on_tight);
        match self.leaving(&change, &mut on_rows) {
            Some(Leaving::Column(place)) => self.columns[place] = (number, column),
            Some(Leaving::Row(row)) => {
                self.columns.push((number, column));
                self.tight.push(row);
            }
            None => return false,
        }
        self.factor()
    }

    /// Loosens the tight row with the lowest price if that price is negative. Returns false if none is negative, or if
    /// no step is possible.
    pub(crate) fn drop_negative_price(&mut self) -> bool {
        let lowest = self.tight.iter().copied().min_by(|&a, &b| self.prices[a].total_cmp(&self.prices[b]));
        let Some(row) = lowest.filter(|&row| self.prices[row] < -ZERO) else {
            self.prices.iter_mut().for_each(|price| *price = price.max(0.0));
            return false;
        };
        let Some(place) = self.place[row] else { return false };
        let mut unit = vec![0.0; self.tight.len()];
        unit[place] = 1.0;
        let change = self.factors.solve(unit);
        match self.leaving(&change, &mut vec![0.0; self.rows]) {
            Some(Leaving::Column(column)) => {
                self.columns.swap_remove(column);
                self.tight.swap_remove(place);
            }
            Some(Leaving::Row(other)) => self.tight[place] = other,
            None => return false,
        }
        self.factor()
    }

    /// The variable that reaches 0 first while the entering variable grows. Columns in use fall by `change`; the slack
    /// of loose rows falls by `on_rows` minus the load that the columns release.
    fn leaving(&self, change: &[f64], on_rows: &mut [f64]) -> Option<Leaving> {
        let mut load = vec![0.0; self.rows];
        for (((_, column), change), value) in self.columns.iter().zip(change).zip(&self.values) {
            for &(row, part) in column {
                on_rows[row] -= part * change;
                load[row] += part * value;
            }
        }
        let mut first: Option<(f64, f64, Leaving)> = None;
        let mut consider = |step: f64, pivot: f64, leaving: Leaving| {
            let is_better = first
                .as_ref()
                .is_none_or(|(least, size, _)| step < least - 1e-13 || (step < least + 1e-13 && pivot > *size));
            if is_better {
                first = Some((step, pivot, leaving));
            }
        };
        for (place, (&change, &value)) in change.iter().zip(&self.values).enumerate() {
            if change > ZERO {
                consider(value.max(0.0) / change, change, Leaving::Column(place));
            }
        }
        for row in (0..self.rows).filter(|&row| self.place[row].is_none()) {
            if on_rows[row] > ZERO {
                consider((self.right[row] - load[row]).max(0.0) / on_rows[row], on_rows[row], Leaving::Row(row));
            }
        }
        first.map(|(_, _, leaving)| leaving)
    }

    /// Computes the values and prices of the current basis. Returns false if it is singular, which only rounding can
    /// cause; the previous values and prices then stay.
    fn factor(&mut self) -> bool {
        let size = self.tight.len();
        self.place.fill(None);
        for (place, &row) in self.tight.iter().enumerate() {
            self.place[row] = Some(place);
        }
        let mut core = vec![0.0; size * size];
        for (at, (_, column)) in self.columns.iter().enumerate() {
            for &(row, part) in column {
                if let Some(place) = self.place[row] {
                    core[place * size + at] = part;
                }
            }
        }
        let Some(factors) = Factors::new(core, size) else { return false };
        self.factors = factors;
        self.values = self.factors.solve(self.tight.iter().map(|&row| self.right[row]).collect());
        self.prices.fill(0.0);
        for (&row, price) in self.tight.iter().zip(self.factors.solve_transposed(vec![1.0; size])) {
            self.prices[row] = price;
        }
        true
    }
}

enum Leaving {
    /// The column at this place among the columns in use.
    Column(usize),
    /// The slack of this row.
    Row(usize),
}
