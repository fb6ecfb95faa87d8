use std::collections::HashMap;

use plan::redistribution::testing::{Case, Chance};
use plan::redistribution::{Steps, Transfer, TransferMessage};

use super::Buffers;
use super::*;
use crate::beside::Beside;
use std::sync::Mutex;

const ELEMENT: usize = 4;

/// A process with its dense arrays.
struct Process {
    _array: Vec<u8>,
    into: Vec<u8>,
    pieces: Pieces,
}

fn dense(shape: &[u64]) -> (Vec<i64>, usize) {
    let mut size = ELEMENT as i64;
    let mut strides = vec![0; shape.len()];
    for (stride, extent) in strides.iter_mut().zip(shape).rev() {
        *stride = size;
        size *= *extent as i64;
    }
    (strides, size.max(0) as usize)
}

/// The messages of a process with their packings, in the order of the steps.
fn messages(transfer: &Transfer, process: u32, sends: bool) -> Vec<(TransferMessage, Arc<Packing>)> {
    let steps = Steps::new(transfer);
    let layout = if sends { transfer.source() } else { transfer.target() };
    if process >= layout.processes() {
        return Vec::new();
    }
    let mut messages = if sends { transfer.sends(process) } else { transfer.receives(process) };
    messages.sort_by_cached_key(|message| steps.of(process, message));
    let (strides, _) = dense(&layout.local_shape(process));
    let packed = |message: TransferMessage| {
        let packing = Packing::new(&message, &strides, ELEMENT).unwrap();
        (message, Arc::new(packing))
    };
    messages.into_iter().map(packed).collect()
}

/// The expected array of each process, from copying messages whole.
fn expected(transfer: &Transfer, arrays: &[Vec<u8>], intos: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut on_the_way = HashMap::new();
    for process in 0..transfer.source().processes() {
        for (message, packing) in messages(transfer, process, true) {
            let mut bytes = vec![0; packing.bytes()];
            // SAFETY: the array has the shape that the message is for.
            unsafe { packing.pack(arrays[process as usize].as_ptr(), bytes.as_mut_ptr()) };
            on_the_way.insert((process, message.peer), bytes);
        }
    }
    let mut intos = intos.to_vec();
    for process in 0..transfer.target().processes() {
        for (message, packing) in messages(transfer, process, false) {
            let bytes = &on_the_way[&(message.peer, process)];
            // SAFETY: as above.
            unsafe { packing.unpack(bytes.as_ptr(), intos[process as usize].as_mut_ptr()) };
        }
    }
    intos
}

#[test]
fn a_run_goes_on_with_room_for_one_piece() {
    for seed in 0..3000 {
        let mut chance = Chance::new(seed);
        let transfer = Case::new(&mut chance).transfer;
        let (sources, targets) = (transfer.source().processes(), transfer.target().processes());
        let shape = |layout: &plan::redistribution::Layout, process| match process < layout.processes() {
            true => dense(&layout.local_shape(process)).1,
            false => 0,
        };
        let mut bytes = |length: usize| -> Vec<u8> { (0..length).map(|_| chance.below(256) as u8).collect() };
        let all = sources.max(targets);
        let arrays: Vec<Vec<u8>> = (0..all).map(|process| bytes(shape(transfer.source(), process))).collect();
        let intos: Vec<Vec<u8>> = (0..all).map(|process| bytes(shape(transfer.target(), process))).collect();
        let wanted = expected(&transfer, &arrays, &intos);
        let hold = chance.below(4) == 0;
        let budget = (chance.below(8) > 0).then_some(20 * chance.below(8) as usize);
        let is_away = chance.below(4) == 0;
        let piece = 10 + 15 * chance.below(3) as usize;
        let besides: Vec<Arc<Beside>> = (0..all).map(|_| Arc::new(Beside::of(1 + chance.below(6), 40))).collect();
        for (from, to) in (0..all).flat_map(|from| (0..all).map(move |to| (from, to))) {
            if seed % 4 == 0
                && chance.below(2) == 0
                && besides[to as usize].open(from, &besides[from as usize].address())
            {
                besides[from as usize].allow(to);
            }
        }
        let process = |(own, (array, mut into)): (u32, (Vec<u8>, Vec<u8>))| {
            let flow = |of: &(TransferMessage, Arc<Packing>)| MessageFlow {
                rank: of.0.peer,
                packing: of.1.clone(),
                elements: (ELEMENT, ELEMENT),
                converts: false,
            };
            let keeps = |messages: &[(TransferMessage, Arc<Packing>)]| {
                let kept = messages.iter().find(|(message, _)| message.peer == own && !hold);
                kept.map(|(_, packing)| packing.clone())
            };
            let (out, come) = (messages(&transfer, own, true), messages(&transfer, own, false));
            let kept = keeps(&out).zip(keeps(&come));
            let goes = |(message, _): &&(TransferMessage, Arc<Packing>)| kept.is_none() || message.peer != own;
            let flows = (out.iter().filter(goes).map(flow).collect(), come.iter().filter(goes).map(flow).collect());
            let spare = Mutex::default();
            let buffers = Arc::new(Buffers { piece, least: 20, spare, beside: besides[own as usize].clone() });
            let places = (Some(array.as_ptr()), Some(into.as_mut_ptr()));
            let budget = budget.filter(|_| !is_away || own > 0);
            // SAFETY: the arrays have the shapes of their layouts, and live as long.
            let pieces = unsafe { Pieces::new(places, flows, kept, hold, budget, buffers) };
            Process { _array: array, into, pieces }
        };
        let mut processes: Vec<Process> = (0..).zip(arrays.into_iter().zip(intos)).map(process).collect();
        run(&mut processes, &mut chance, seed, is_away);
        let got: Vec<&Vec<u8>> = processes.iter().map(|process| &process.into).collect();
        assert_eq!(got, wanted.iter().collect::<Vec<_>>(), "seed {seed}");
    }
}

/// For each pair of a sender and a receiver, the pieces that have begun at each.
type Begun = HashMap<(u32, u32), [VecDeque<NextPiece>; 2]>;

fn enter(begun: &mut Begun, own: usize, next: NextPiece) {
    let pair = if next.sends { (own as u32, next.rank) } else { (next.rank, own as u32) };
    begun.entry(pair).or_default()[usize::from(!next.sends)].push_back(next);
}

/// Matches sends and receives of two processes in order, as MPI does; they complete in any order. `is_away`: the first
/// process begins its messages, and then waits for something else until the others are done.
fn run(processes: &mut [Process], chance: &mut Chance, seed: u64, mut is_away: bool) {
    let mut begun = Begun::new();
    while is_away && let Some(next) = processes[0].pieces.begin() {
        enter(&mut begun, 0, next);
    }
    let mut ends: Vec<(usize, usize, usize)> = Vec::new();
    // Chance may leave all processes idle, but rarely many times in a row.
    let mut idle = 0;
    loop {
        let mut moved = false;
        for own in chance.shuffled(processes.len()) {
            if is_away && own == 0 {
                continue;
            }
            let pieces = &mut processes[own].pieces;
            while chance.below(5) > 0
                && let Some(next) = pieces.begin()
            {
                enter(&mut begun, own, next);
                moved = true;
                let (held, most) = (pieces.lent.len(), pieces.most.unwrap_or(usize::MAX));
                assert!(held <= most, "seed {seed}: {held} pieces are lent of at most {most}");
                assert!(held + pieces.sends.in_flight <= most.saturating_add(1), "seed {seed}");
            }
            moved |= chance.below(2) == 0 && pieces.copy_own();
            while let Some(Ripe { slot, at, .. }) = pieces.ripe() {
                // SAFETY: the pointer is the place of the piece.
                unsafe { pieces.unpack(slot, at) };
                moved = true;
            }
        }
        for ((from, to), [sends, receives]) in &mut begun {
            while let (Some(send), Some(receive)) = (sends.front(), receives.front()) {
                let told = send.bytes == Lent::BYTES && receive.bytes >= 20;
                assert!(told || send.bytes == receive.bytes, "seed {seed}");
                // SAFETY: `Pieces::begin` has returned both addresses for as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(send.at, receive.at, send.bytes) };
                let ended = |of: u32, slot| (of as usize, slot, send.bytes);
                ends.extend([ended(*from, send.slot), ended(*to, receive.slot)]);
                sends.pop_front();
                receives.pop_front();
            }
        }
        for _ in 0..chance.below(4) {
            // MPI completes messages of the first process too, but that does not notice.
            let here = |at: &usize| !is_away || ends[*at].0 > 0;
            let noticed: Vec<usize> = (0..ends.len()).filter(here).collect();
            if !noticed.is_empty() {
                let at = noticed[chance.below(noticed.len() as u64) as usize];
                let (own, slot, bytes) = ends.swap_remove(at);
                processes[own].pieces.over(slot, bytes);
                moved = true;
            }
        }
        is_away &= processes[1..].iter().any(|process| !process.pieces.is_over());
        if processes.iter().all(|process| process.pieces.is_over()) {
            return;
        }
        idle = if moved { 0 } else { idle + 1 };
        if is_away && idle == 50 {
            processes.iter_mut().for_each(|process| process.pieces.expect_nothing_back());
        }
        assert!(idle < 200, "seed {seed}: nothing moves");
    }
}
