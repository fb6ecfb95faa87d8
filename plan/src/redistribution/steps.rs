//! In which order messages go, so that at each moment a process sends one and receives one.
//!
//! Along each axis, places that share something form a bipartite graph, whose edges can be coloured with as many
//! colours as its highest degree (König 1916). Messages are products of such edges, so the colours of their edges
//! together number the steps: no two messages of a process have the same ones, at either end. There are as many steps
//! as the process with the most messages has, if the places with most edges are on the same side along every axis;
//! otherwise there are more, and some processes pause in some. Each process colours the graphs of the axes, which are
//! small, and never sees that of all processes.

use std::collections::HashMap;

use crate::redistribution::transfer::{End, Message, Transfer};

/// The colours of one axis: as many as its highest degree.
struct Colours {
    of: HashMap<(u32, u32), u32>,
    count: u32,
}

/// The steps of a redistribution.
pub struct Steps<'a> {
    transfer: &'a Transfer,
    along: Vec<Colours>,
}

impl<'a> Steps<'a> {
    /// Colours the axes: in time that grows with the edges along each, times its places at worst.
    pub fn new(transfer: &'a Transfer) -> Steps<'a> {
        let along = (0..transfer.dimensions()).map(|dimension| {
            let (sources, targets) = transfer.places(dimension);
            Colours::new(sources, targets, &transfer.edges(dimension))
        });
        Steps { transfer, along: along.collect() }
    }

    /// How many steps there are.
    pub fn count(&self) -> u64 {
        let copies = u64::from(self.transfer.target().grid().copies());
        self.along.iter().map(|colours| u64::from(colours.count)).product::<u64>() * copies
    }

    /// The step of a message that `process` sends or receives.
    pub fn of(&self, process: u32, message: &Message) -> u64 {
        let (from, to) = match message.end() {
            End::Sends => (process, message.peer),
            End::Receives => (message.peer, process),
        };
        let step = self.along.iter().enumerate().fold(0, |step, (dimension, colours)| {
            let edge = self.transfer.edge(dimension, from, to);
            step * u64::from(colours.count) + u64::from(colours.of.get(&edge).copied().unwrap_or(0))
        });
        let grid = self.transfer.target().grid();
        step * u64::from(grid.copies()) + u64::from(grid.copy(to))
    }
}

impl Colours {
    /// Colours edges one by one. Where the two ends of an edge have no free colour in common, the colours on the path
    /// that alternates between a free one of each are exchanged, which frees one.
    fn new(sources: u32, targets: u32, edges: &[(u32, u32)]) -> Colours {
        let mut degrees = [vec![0u32; sources as usize], vec![0u32; targets as usize]];
        for (source, target) in edges {
            degrees[0][*source as usize] += 1;
            degrees[1][*target as usize] += 1;
        }
        let count = degrees.iter().flatten().copied().max().unwrap_or(0);
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
        Colours { of: of.collect(), count }
    }
}

/// Exchanges two colours on the path that begins at a target with an edge of colour `wanted`, which becomes free there.
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
