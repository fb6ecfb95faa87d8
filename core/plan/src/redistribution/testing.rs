//! Random layouts and redistributions, for tests here and in the crates that execute redistributions.

use crate::redistribution::axis::AxisKind;
use crate::redistribution::{Axis, Grid, Halo, Layout, Mapping, MemoryOrder, Pick, Transfer};

/// A seeded random number generator (xorshift, Marsaglia 2003), so a failure can report its seed.
pub struct Chance(u64);

impl Chance {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    /// The numbers `0..count` in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|at| order.swap(at, self.below(at as u64 + 1) as usize));
        order
    }

    /// A random axis of this extent.
    pub fn axis(&mut self, extent: u64) -> Axis {
        let over = 1 + self.below(4) as u32;
        let (_, kind) = AxisKind::ALL[self.below(AxisKind::ALL.len() as u64) as usize];
        match kind {
            AxisKind::Whole => Axis::Whole,
            AxisKind::Block if self.below(2) == 0 => Axis::Block { over, sizes: None },
            AxisKind::Block => {
                let mut cuts: Vec<u64> = (1..over).map(|_| self.below(extent + 1)).collect();
                cuts.sort_unstable();
                let ends = cuts.iter().copied().chain([extent]);
                let starts = [0].into_iter().chain(cuts.iter().copied());
                Axis::Block { over, sizes: Some(ends.zip(starts).map(|(end, start)| end - start).collect()) }
            }
            AxisKind::Cyclic => {
                let first = self.below(over.into()) as u32;
                Axis::Cyclic { over, block: 1 + self.below(4) + self.below(2) * self.below(20), first }
            }
            AxisKind::Lists => {
                let mut lists = vec![Vec::new(); over as usize];
                for index in self.shuffled(extent as usize) {
                    lists[self.below(over.into()) as usize].push(index as u64);
                }
                Axis::Lists(lists)
            }
        }
    }

    /// A random layout of this shape, and its halos.
    pub fn layout(&mut self, shape: &[u64]) -> (Layout, Vec<Halo>) {
        let axes: Vec<Axis> = shape.iter().map(|extent| self.axis(*extent)).collect();
        let mut layout = Layout::new(shape.to_vec(), axes.clone()).unwrap();
        if self.below(2) == 0 {
            // The dimensions of the grid in random order, with one that no axis uses.
            let order = self.shuffled(axes.len() + 1);
            let mut grid = Grid { dimensions: vec![0; order.len()], axes: Vec::new() };
            for (axis, at) in axes.iter().zip(&order) {
                grid.dimensions[*at] = axis.over();
                grid.axes.push(vec![*at]);
            }
            grid.dimensions[order[axes.len()]] = 1 + self.below(3) as u32;
            layout = layout.over(grid).unwrap();
        }
        let mut halos = vec![Halo::default(); axes.len()];
        for (number, axis) in axes.iter().enumerate() {
            if self.below(2) == 0 && axis.is_block() {
                let halo = Halo { before: self.below(3), after: self.below(3), periodic: self.below(2) == 0 };
                layout = layout.with_halo(number, halo).unwrap();
                halos[number] = halo;
            }
        }
        (layout.in_order(if self.below(2) == 0 { MemoryOrder::C } else { MemoryOrder::Fortran }), halos)
    }

    /// `count` indices at equal distances in an axis that is exactly long enough or a little longer.
    fn slice(&mut self, count: u64) -> (Pick, u64) {
        let wide = 1 + self.below(3);
        let (before, after) = (self.below(4), self.below(4));
        let extent = before + after + if count == 0 { 0 } else { wide * (count - 1) + 1 };
        if self.below(2) == 0 || count == 0 {
            return (Pick::Slice { start: before.min(extent.saturating_sub(1)), step: wide as i64, count }, extent);
        }
        (Pick::Slice { start: before + wide * (count - 1), step: -(wide as i64), count }, extent)
    }

    /// A random mapping between parts of two arrays, and the shapes of the arrays.
    pub fn mapping(&mut self, counts: &[u64]) -> (Mapping, Vec<u64>, Vec<u64>) {
        let order = self.shuffled(counts.len());
        let shifts = counts.iter().map(|count| self.below(2) * self.below(count + 2)).collect();
        let (from, source) = self.picks(counts);
        let (to, target) = self.picks(&order.iter().map(|at| counts[*at]).collect::<Vec<_>>());
        (Mapping { from, to, order, shifts }, source, target)
    }

    fn picks(&mut self, counts: &[u64]) -> (Vec<Pick>, Vec<u64>) {
        let mut all = Vec::new();
        for count in counts {
            if self.below(6) == 0 {
                let extent = 1 + self.below(4);
                all.push((Pick::Index(self.below(extent)), extent));
            }
            all.push(self.slice(*count));
        }
        all.into_iter().unzip()
    }
}

/// A random redistribution.
pub struct Case {
    pub transfer: Transfer,
    pub mapping: Mapping,
    /// The halos of the source and of the target.
    pub halos: [Vec<Halo>; 2],
}

impl Case {
    /// A random case. Both parts have up to three axes, some of them empty.
    pub fn new(chance: &mut Chance) -> Case {
        let dimensions = chance.below(4) as usize;
        let counts: Vec<u64> = (0..dimensions).map(|_| chance.below(9) * chance.below(8).min(1)).collect();
        let (mapping, source, target) = chance.mapping(&counts);
        let (source, source_halos) = chance.layout(&source);
        let (target, target_halos) = chance.layout(&target);
        let transfer = Transfer::new(source, target, &mapping).unwrap();
        Case { transfer, mapping, halos: [source_halos, target_halos] }
    }
}
