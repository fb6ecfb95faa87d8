//! Large reductions: the elements cross trunks in strips, each by the network card of another node.
//!
//! The ranks of a node share its network card, so each node first combines its own elements in memory. The first rank
//! of each node at a site, its head, takes part in the rest: the heads divide the elements into strips. Each strip's
//! carrier combines its part from all nodes, exchanges it with the carriers of the same strip at other sites, and sends
//! the result to the other heads. So with n bytes, k nodes a site and two sites, a card carries n (k - 1) / k to its
//! own site, n / k to the other one and n (k - 1) / k back: as little as reduce-scatter and allgather over all nodes
//! (Rabenseifner, "Optimization of Collective Reduction Operations", 2004), with one trip between sites instead of two.
//! Elements move in chunks, so that trips and the combining of one chunk overlap with the transfer of others.

use std::ffi::c_int;

use crate::abi::Handle;
use crate::calls::Elements;
use crate::communicator::Plan;
use crate::group::SiteGroup;
use crate::mpi::{Fault, Mpi, Pointer};
use crate::reduce::combined;
use crate::requests::Requests;
use crate::span::Span;

/// Maximum number of strips. More gain little, and each costs a message to each other site.
const MOST_STRIPS: usize = 8;
/// Limits of the length of one strip's part of a chunk, in bytes. Within them it is 1/`CHUNKS` of the strip's part of
/// all elements. Each part costs every head some 50 µs a message.
const SHORTEST_PART: i64 = 64 << 10;
const LONGEST_PART: i64 = 512 << 10;
const CHUNKS: i64 = 4;
/// Maximum bytes of elements in flight: received elements stay in memory until they are combined.
const MOST_AT_ONCE: i64 = 32 << 20;
/// Minimum length of a part that carriers divide, in bytes. With more than two sites, each carrier then combines only
/// its share of the part, so its traffic does not grow with the number of sites. This costs a second trip.
const SHARED: i64 = 16 << 10;

/// The ranks' roles in one call.
struct Strips<'a> {
    mpi: &'a Mpi,
    plan: &'a Plan,
    /// The head of each node of each site.
    heads: Vec<Vec<u32>>,
    strips: usize,
    own_site: usize,
    /// The only rank that wants the result, in `MPI_Reduce`.
    root: Option<u32>,
    operation: Handle,
    /// Distance between elements, in bytes.
    extent: i64,
    /// Length of an element's data, in bytes.
    size: i64,
}

/// The part of a chunk that this rank carries in one strip.
struct StripPart<'a> {
    strip: usize,
    /// Memory for the result; before, it holds this node's combined elements.
    place: Elements,
    /// This site's combined elements.
    total: Elements,
    /// Elements received from other nodes, then from other sites.
    near: Vec<(usize, Span)>,
    far: Vec<(usize, Span)>,
    requests: Requests<'a>,
}

/// Data that a chunk waits for. The stage's number is the tag of its messages.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The combined elements of this site's other nodes.
    Node,
    /// The elements of other sites.
    Site,
    /// The shares of the result that other sites' carriers combine.
    Others,
    /// The result, of all strips.
    Result,
}

/// A chunk of elements in flight, at a head.
struct Chunk<'a> {
    /// Memory for the result.
    place: Elements,
    parts: Vec<StripPart<'a>>,
    /// Messages of strips with other carriers.
    requests: Requests<'a>,
}

/// `MPI_Allreduce`, or `MPI_Reduce` to `root`, of `from` into `to`.
///
/// # Safety
/// Both are as MPI demands; they may be the same.
pub(crate) unsafe fn in_strips(
    mpi: &Mpi,
    plan: &Plan,
    from: Elements,
    to: Pointer,
    operation: Handle,
    root: Option<u32>,
) -> Result<(), Fault> {
    let strips = Strips::new(mpi, plan, from.datatype, operation, root)?;
    let at_once = elements_in(MOST_AT_ONCE, strips.size);
    let mut room = None;
    if root.is_some_and(|root| root != plan.rank) && strips.leads() {
        room = Some(Span::new(mpi, at_once.min(from.count), from.datatype)?);
    }
    for (first, count) in divided(from.count, at_once) {
        let some = strips.slice(from, first, count);
        let to = match &mut room {
            Some(room) => Elements { count, ..room.elements() },
            None => strips.slice(Elements { start: to, ..from }, first, count),
        };
        // SAFETY: the caller's promise; a head that keeps no result has room of its own.
        unsafe { strips.reduce(some, to) }?;
    }
    Ok(())
}

impl<'a> Strips<'a> {
    fn new(
        mpi: &'a Mpi,
        plan: &'a Plan,
        datatype: Handle,
        operation: Handle,
        root: Option<u32>,
    ) -> Result<Strips<'a>, Fault> {
        let head = |ranks: &Vec<u32>| root.filter(|root| ranks.contains(root)).or(ranks.first().copied());
        let heads = plan.layout.nodes.members.iter().map(|nodes| nodes.iter().filter_map(head).collect()).collect();
        let (own_site, strips) =
            (usize::from(plan.layout.sites[plan.rank as usize]), plan.layout.nodes.most().min(MOST_STRIPS));
        let (extent, size) = (mpi.extent(datatype)?.1, mpi.type_size(datatype)?.max(1));
        Ok(Strips { mpi, plan, heads, strips, own_site, root, operation, extent, size })
    }

    /// Reduces `from` into `to`, which has room for as many elements at every head.
    ///
    /// # Safety
    /// As [`in_strips`].
    unsafe fn reduce(&self, from: Elements, to: Elements) -> Result<(), Fault> {
        let each = (to.count * self.size / self.strips as i64 / CHUNKS).clamp(SHORTEST_PART, LONGEST_PART);
        let most = elements_in(each * self.strips as i64, self.size);
        let mut chunks = Vec::new();
        let pieces: Vec<(i64, i64)> = divided(to.count, most).collect();
        for (first, count) in pieces.iter().copied() {
            let place = self.slice(to, first, count);
            // SAFETY: the caller's promise.
            unsafe { self.add_up_node(self.slice(from, first, count), place) }?;
            if self.leads() {
                // SAFETY: as above.
                chunks.push(unsafe { self.divide(place) }?);
            }
        }
        let node = if self.root.is_none() { self.node()? } else { None };
        let hand_on = |number: usize| {
            let (Some(node), (first, count)) = (&node, pieces[number]) else { return Ok(()) };
            // SAFETY: the program's room for the result, complete at the head.
            unsafe { node.broadcast(self.slice(to, first, count)) }
        };
        if self.leads() {
            // SAFETY: as above.
            return unsafe { self.advance(&mut chunks, hand_on) };
        }
        (0..pieces.len()).try_for_each(hand_on)
    }

    /// Moves chunks through their stages as soon as possible; calls `hand_on` for each chunk that has its result. In
    /// each stage chunks keep their order, which is the same at all heads, so each stage needs only one tag.
    ///
    /// # Safety
    /// As [`Strips::divide`].
    unsafe fn advance(
        &self,
        chunks: &mut [Chunk<'a>],
        hand_on: impl Fn(usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let stages = [Stage::Node, Stage::Site, Stage::Others, Stage::Result];
        // Number of chunks that each stage has finished.
        let mut done = [0; 4];
        while done[3] < chunks.len() {
            // Later stages go first: other ranks wait for them.
            for (at, stage) in stages.into_iter().enumerate().rev() {
                let come = if at == 0 { chunks.len() } else { done[at - 1] };
                while done[at] < come && self.has_all(&mut chunks[done[at]], stage)? {
                    let chunk = &mut chunks[done[at]];
                    // SAFETY: the caller's promise, and all data that the stage waits for has arrived.
                    unsafe {
                        match stage {
                            Stage::Node => self.cross(chunk),
                            Stage::Site => self.combine_sites(chunk),
                            Stage::Others => self.spread(chunk),
                            Stage::Result => hand_on(done[at]),
                        }
                    }?;
                    done[at] += 1;
                }
            }
        }
        Ok(())
    }

    /// Returns true if all receives and sends that a chunk waits for in this stage have completed.
    fn has_all(&self, chunk: &mut Chunk<'a>, stage: Stage) -> Result<bool, Fault> {
        let comm = self.plan.private;
        let others_lanes = matches!(stage, Stage::Node | Stage::Result);
        if others_lanes && !chunk.requests.have_ended(comm)? {
            return Ok(false);
        }
        for part in &mut chunk.parts {
            if !part.requests.have_ended(comm)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Combines the elements of this rank's node at its head.
    ///
    /// # Safety
    /// As [`in_strips`].
    unsafe fn add_up_node(&self, from: Elements, to: Elements) -> Result<(), Fault> {
        let kept = from.start == to.start;
        let Some(node) = self.node()? else {
            // SAFETY: the caller's promise.
            return if kept { Ok(()) } else { unsafe { self.mpi.copy(from, to, self.plan.rank, self.plan.private) } };
        };
        // SAFETY: the caller's promise.
        unsafe { node.reduce(from, to.start, self.operation) }
    }

    /// Begins to send each strip's part to its carrier at this site.
    ///
    /// # Safety
    /// `place` holds this node's combined elements.
    unsafe fn divide(&self, place: Elements) -> Result<Chunk<'a>, Fault> {
        let sites = self.heads.len();
        let mut requests = Requests::new(self.mpi, 2 * self.strips);
        let mut parts = Vec::new();
        for strip in 0..self.strips {
            let (own, carrier) = (self.share(place, strip, self.strips), self.carrier(self.own_site, strip));
            if carrier != self.plan.rank {
                // SAFETY: the caller's promise.
                unsafe { self.send(&mut requests, Stage::Node, own, carrier) }?;
                continue;
            }
            let others: Vec<(usize, u32)> = self.other_heads().collect();
            let mut part_requests = Requests::new(self.mpi, others.len().max(2 * sites));
            let near = others.iter().map(|(node, _)| Ok((*node, Span::new(self.mpi, own.count, own.datatype)?)));
            let mut near: Vec<(usize, Span)> = near.collect::<Result<_, Fault>>()?;
            for ((_, head), (_, span)) in others.iter().zip(&mut near) {
                // SAFETY: our own memory.
                unsafe { self.receive(&mut part_requests, Stage::Node, span.elements(), *head) }?;
            }
            parts.push(StripPart { strip, place: own, total: own, near, far: Vec::new(), requests: part_requests });
        }
        Ok(Chunk { place, parts, requests })
    }

    /// Combines the elements of this site's nodes, and begins to exchange the result with the other sites.
    ///
    /// # Safety
    /// As [`Strips::divide`].
    unsafe fn cross(&self, chunk: &mut Chunk<'a>) -> Result<(), Fault> {
        for strip in 0..self.strips {
            let carrier = self.carrier(self.own_site, strip);
            let awaited = self.root.is_none_or(|root| root == self.plan.rank) && carrier != self.plan.rank;
            if awaited {
                let place = self.share(chunk.place, strip, self.strips);
                // SAFETY: this place's old content has been sent.
                unsafe { self.receive(&mut chunk.requests, Stage::Result, place, carrier) }?;
            }
        }
        for part in &mut chunk.parts {
            let own = (self.plan.layout.nodes.own(self.plan.rank), part.total);
            let near = part.near.iter_mut().map(|(node, span)| (*node, span.elements()));
            // SAFETY: all elements have arrived, and nobody else overwrites them.
            part.total = unsafe { combined(self.mpi, near.chain([own]).collect(), self.operation) }?;
            // SAFETY: as above.
            unsafe { self.exchange(part) }?;
        }
        Ok(())
    }

    /// Begins to exchange a part with the strip's carriers at other sites.
    ///
    /// # Safety
    /// The part's total is complete.
    unsafe fn exchange(&self, part: &mut StripPart<'a>) -> Result<(), Fault> {
        let total = part.total;
        let shared = self.shares(total);
        if let Some(home) = self.home().filter(|home| *home != self.own_site) {
            // SAFETY: the caller's promise.
            return unsafe { self.send(&mut part.requests, Stage::Site, total, self.carrier(home, part.strip)) };
        }
        let mine = if shared { self.share(total, self.own_site, self.heads.len()) } else { total };
        for (site, carrier) in self.other_carriers(part.strip) {
            let mut span = Span::new(self.mpi, mine.count, mine.datatype)?;
            // SAFETY: our own memory.
            unsafe { self.receive(&mut part.requests, Stage::Site, span.elements(), carrier) }?;
            part.far.push((site, span));
            if self.root.is_none() {
                let theirs = if shared { self.share(total, site, self.heads.len()) } else { total };
                // SAFETY: the caller's promise.
                unsafe { self.send(&mut part.requests, Stage::Site, theirs, carrier) }?;
            }
        }
        Ok(())
    }

    /// Combines the elements received from other sites.
    ///
    /// # Safety
    /// As [`Strips::divide`].
    unsafe fn combine_sites(&self, chunk: &mut Chunk<'a>) -> Result<(), Fault> {
        for part in &mut chunk.parts {
            if part.far.is_empty() {
                continue;
            }
            let (shared, sites) = (self.shares(part.total), self.heads.len());
            let of_site = |all: Elements, site: usize| if shared { self.share(all, site, sites) } else { all };
            let own = (self.own_site, of_site(part.total, self.own_site));
            let far = part.far.iter_mut().map(|(site, span)| (*site, span.elements()));
            // SAFETY: all elements have arrived, and all sends have completed.
            let result = unsafe { combined(self.mpi, far.chain([own]).collect(), self.operation) }?;
            let place = of_site(part.place, self.own_site);
            if result.start != place.start {
                // SAFETY: as above.
                unsafe { self.mpi.copy(result, place, self.plan.rank, self.plan.private) }?;
            }
            if !shared {
                continue;
            }
            for (site, carrier) in self.other_carriers(part.strip) {
                // SAFETY: this place's old content has been sent.
                unsafe { self.receive(&mut part.requests, Stage::Others, of_site(part.place, site), carrier) }?;
                // SAFETY: the result, which no longer changes.
                unsafe { self.send(&mut part.requests, Stage::Others, place, carrier) }?;
            }
        }
        Ok(())
    }

    /// Begins to send the result to the other heads of this site, or to the root.
    ///
    /// # Safety
    /// As [`Strips::divide`].
    unsafe fn spread(&self, chunk: &mut Chunk<'a>) -> Result<(), Fault> {
        if self.home().is_some_and(|home| home != self.own_site) {
            return Ok(());
        }
        for part in &mut chunk.parts {
            let wanting = self.other_heads().map(|(_, head)| head);
            for head in wanting.filter(|head| self.root.is_none_or(|root| root == *head)) {
                // SAFETY: the result, which no longer changes.
                unsafe { self.send(&mut part.requests, Stage::Result, part.place, head) }?;
            }
        }
        Ok(())
    }

    /// Returns true if each carrier combines a share of a part, and sends the result to the others.
    fn shares(&self, part: Elements) -> bool {
        let sites = self.heads.len() as i64;
        self.root.is_none() && sites > 2 && part.count * self.size >= SHARED && part.count >= sites
    }

    /// The head of this rank's node.
    fn head(&self) -> u32 {
        self.heads[self.own_site][self.plan.layout.nodes.own(self.plan.rank)]
    }

    fn leads(&self) -> bool {
        self.head() == self.plan.rank
    }

    /// The ranks of this rank's node, with its head as root. `None`: the rank is alone on its node.
    fn node(&self) -> Result<Option<SiteGroup<'a>>, Fault> {
        let (mpi, plan) = (self.mpi, self.plan);
        let nodes = &plan.layout.nodes.members[self.own_site];
        let members = &nodes[plan.layout.nodes.own(plan.rank)];
        // All ranks of a site make their nodes' communicators together.
        let node = if nodes.iter().any(|node| node.len() > 1) { Some(plan.node(mpi)?) } else { None };
        let group = |comm| SiteGroup { mpi, plan, comm, members, root: self.head() };
        Ok(node.filter(|_| members.len() > 1).map(group))
    }

    /// Site of the rank that wants the result, if only one does.
    fn home(&self) -> Option<usize> {
        self.root.map(|root| usize::from(self.plan.layout.sites[root as usize]))
    }

    /// The carrier of a strip at a site. Strips are spread over the site's nodes.
    fn carrier(&self, site: usize, strip: usize) -> u32 {
        let heads = &self.heads[site];
        heads[strip * heads.len() / self.strips]
    }

    /// The other heads of this site, by node.
    fn other_heads(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.heads[self.own_site].iter().copied().enumerate().filter(|(_, head)| *head != self.plan.rank)
    }

    /// A strip's carriers at the other sites.
    fn other_carriers(&self, strip: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let others = (0..self.heads.len()).filter(|site| *site != self.own_site);
        others.map(move |site| (site, self.carrier(site, strip)))
    }

    fn slice(&self, all: Elements, first: i64, count: i64) -> Elements {
        Elements { start: all.start.wrapping_byte_offset((first * self.extent) as isize), count, ..all }
    }

    /// Share `number` of `shares` nearly equal shares.
    fn share(&self, all: Elements, number: usize, shares: usize) -> Elements {
        let bound = |number: usize| number as i64 * all.count / shares as i64;
        self.slice(all, bound(number), bound(number + 1) - bound(number))
    }

    /// # Safety
    /// As [`Mpi::send_elements`].
    unsafe fn send(&self, requests: &mut Requests<'_>, stage: Stage, from: Elements, to: u32) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { requests.send(from, (to, stage as c_int), self.plan.private) }
    }

    /// # Safety
    /// As [`Mpi::receive_elements`].
    unsafe fn receive(
        &self,
        requests: &mut Requests<'_>,
        stage: Stage,
        into: Elements,
        from: u32,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { requests.receive(into, (from, stage as c_int), self.plan.private) }
    }
}

/// Splits `count` elements into pieces of at most `most`: the first element and the length of each piece.
fn divided(count: i64, most: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..(count + most - 1) / most).map(move |piece| (piece * most, most.min(count - piece * most)))
}

/// Number of elements of `size` bytes that fit in about `bytes`, at least one.
fn elements_in(bytes: i64, size: i64) -> i64 {
    (bytes / size).max(1)
}
