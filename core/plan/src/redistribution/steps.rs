//! The order of messages, such that each process sends and receives at most one message in each step.
//!
//! Along each axis, places that share elements form a bipartite graph, whose edges can be coloured with a number of
//! colours equal to its highest degree (König 1916). A message is a product of such edges, so the colours of its edges
//! together number its step: no two messages of a process get the same step, at either end. If the places with most
//! edges are on the same side along every axis, the number of steps is the largest number of messages of any process.
//! The same holds where rows become columns: along one axis targets have the most edges and sources have one, along the
//! other sources have the most and targets one. The two colours are then added, modulo the greater of their numbers.
//! Otherwise there are more steps, and some processes pause in some of them. Each process colours only the graphs of
//! the axes, which are small, and never sees the graph of all processes.

use std::collections::HashMap;

use crate::redistribution::transfer::{MessageRole, Transfer, TransferMessage};

/// The colours of one axis. Their number is its highest degree.
struct Colours {
    of: HashMap<(u32, u32), u32>,
    count: u32,
    /// The highest degree of a source, and of a target.
    degrees: [u32; 2],
}

/// The steps of a redistribution.
pub struct Steps<'a> {
    transfer: &'a Transfer,
    along: Vec<Colours>,
    /// The product of the colour counts over the axes where sources have the most edges, and over the other axes.
    counts: [u64; 2],
    /// True if along each axis either sources or targets have at most one edge.
    adds: bool,
}

impl<'a> Steps<'a> {
    /// Colours the axes. The time grows with the number of edges along each axis, at worst times its number of places.
    pub fn new(transfer: &'a Transfer) -> Steps<'a> {
        let along = (0..transfer.dimensions()).map(|dimension| {
            let (sources, targets) = transfer.places(dimension);
            Colours::new(sources, targets, &transfer.edges(dimension))
        });
        let along: Vec<Colours> = along.collect();
        let adds = along.iter().all(|colours| colours.degrees.iter().any(|degree| *degree <= 1));
        let mut counts = [1, 1];
        for colours in &along {
            counts[usize::from(!colours.is_of_sources())] *= u64::from(colours.count);
        }
        Steps { transfer, along, counts, adds }
    }

    /// The number of steps.
    pub fn count(&self) -> u64 {
        let copies = u64::from(self.transfer.target().grid().copies());
        let [of_sources, of_targets] = self.counts;
        copies
            * if self.adds && of_sources * of_targets > 0 {
                of_sources.max(of_targets)
            } else {
                of_sources * of_targets
            }
    }

    /// The step of a message that `process` sends or receives.
    pub fn of(&self, process: u32, message: &TransferMessage) -> u64 {
        let (from, to) = match message.end() {
            MessageRole::Sends => (process, message.peer),
            MessageRole::Receives => (message.peer, process),
        };
        let mut steps = [0, 0];
        for (dimension, colours) in self.along.iter().enumerate() {
            let edge = self.transfer.edge(dimension, from, to);
            let step = &mut steps[usize::from(!colours.is_of_sources())];
            *step = *step * u64::from(colours.count) + u64::from(colours.of.get(&edge).copied().unwrap_or(0));
        }
        let [of_sources, of_targets] = self.counts;
        let step = match self.adds {
            true => (steps[0] + steps[1]) % of_sources.max(of_targets).max(1),
            false => steps[0] * of_targets + steps[1],
        };
        let grid = self.transfer.target().grid();
        step * u64::from(grid.copies()) + u64::from(grid.copy(to))
    }
}

impl Colours {
    /// True if sources have the most edges.
    fn is_of_sources(&self) -> bool {
        self.degrees[0] >= self.degrees[1]
    }

    /// Colours edges one by one. If the two ends of an edge have no free colour in common, it swaps two colours along
    /// the path that alternates between a free colour of each end, which frees one of them.
    fn new(sources: u32, targets: u32, edges: &[(u32, u32)]) -> Colours {
        let mut degrees = [vec![0u32; sources as usize], vec![0u32; targets as usize]];
        for (source, target) in edges {
            degrees[0][*source as usize] += 1;
            degrees[1][*target as usize] += 1;
        }
        let highest = [0, 1].map(|end| degrees[end].iter().copied().max().unwrap_or(0));
        let count = highest[0].max(highest[1]);
        // By end, place and colour: the place at the other end.
        let mut used = degrees.map(|ends| vec![vec![u32::MAX; count as usize]; ends.len()]);
        for (source, target) in edges.iter().copied() {
            let free = |ends: &[Vec<u32>], place: u32| {
                ends[place as usize].iter().position(|other| *other == u32::MAX).unwrap_or(0)
            };
            let (at_source, at_target) = (free(&used[0], source), free(&used[1], target));
            if at_source != at_target {
                exchange(&mut used, target, at_source, at_target);
            }
            used[0][source as usize][at_source] = target;
            used[1][target as usize][at_source] = source;
        }
        let of = used[0].iter().zip(0..).flat_map(|(colours, source)| {
            colours
                .iter()
                .zip(0..)
                .filter(|(target, _)| **target != u32::MAX)
                .map(move |(target, colour)| ((source, *target), colour))
        });
        Colours { of: of.collect(), count, degrees: highest }
    }
}

/// Swaps two colours along the path that begins at a target with an edge of colour `wanted`, which becomes free there.
fn exchange(used: &mut [Vec<Vec<u32>>; 2], target: u32, wanted: usize, free: usize) {
    let (mut path, mut end, mut place, mut colour) = (Vec::new(), 1, target, wanted);
    loop {
        let other = used[end][place as usize][colour];
        if other == u32::MAX {
            break;
        }
        path.push((end, place, other, colour));
        (end, place, colour) = (1 - end, other, if colour == wanted { free } else { wanted });
    }
    for (end, place, other, colour) in &path {
        used[*end][*place as usize][*colour] = u32::MAX;
        used[1 - end][*other as usize][*colour] = u32::MAX;
    }
    for (end, place, other, colour) in path {
        let colour = if colour == wanted { free } else { wanted };
        used[end][place as usize][colour] = other;
        used[1 - end][other as usize][colour] = place;
    }
}
