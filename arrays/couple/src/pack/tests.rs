use super::*;
use plan::redistribution::testing::{Case, Chance};

#[test]
fn what_is_packed_is_what_the_message_says() {
    for seed in 0..4000 {
        let mut chance = Chance::new(seed);
        let case = Case::new(&mut chance);
        let element = [1, 2, 4, 8, 12, 16, 40, 64][chance.below(8) as usize];
        for process in 0..case.transfer.source().processes() {
            let shape = case.transfer.source().local_shape(process);
            let messages = case.transfer.sends(process);
            check(&messages, &shape, element, &mut chance, seed);
        }
        for process in 0..case.transfer.target().processes() {
            let shape = case.transfer.target().local_shape(process);
            let messages = case.transfer.receives(process);
            check(&messages, &shape, element, &mut chance, seed);
        }
    }
}

#[test]
fn long_messages_are_read_piece_by_piece() {
    let mut chance = Chance::new(3);
    for (shape, gap) in [([7, 40_000], 0), ([7, 40_000], 3), ([300, 1000], 5), ([1, 700_001], 0), ([9_000, 3], 8)] {
        let row = shape[1] as i64 * 8 + gap * 8;
        let packing = Packing::of_array(&shape, &[row, 8], 8).unwrap();
        let memory: Vec<u8> = (0..row as u64 * shape[0]).map(|_| chance.below(256) as u8).collect();
        let mut buffer = vec![0; packing.bytes()];
        let mut got = vec![0; memory.len()];
        let mut sizes = Vec::new();
        // SAFETY: the array is in the memory.
        unsafe {
            packing.pack(memory.as_ptr(), buffer.as_mut_ptr());
            let mut rest = &buffer[..];
            let mut read = |into: &mut [u8]| {
                sizes.push(into.len());
                io::Read::read_exact(&mut rest, into)
            };
            let (mut cursor, mut between) = (packing.begin(), Vec::new());
            while cursor.at() < packing.bytes() {
                packing.unpack_some(&mut cursor, &mut between, &mut read, got.as_mut_ptr()).unwrap();
            }
        }
        for at in 0..shape[0] as usize {
            let own = at * row as usize..at * row as usize + shape[1] as usize * 8;
            assert_eq!(got[own.clone()], memory[own]);
        }
        assert_eq!(sizes.iter().sum::<usize>(), packing.bytes());
        assert!(sizes.len() <= 2 + 2 * packing.bytes() / (BOUNCE / 4), "{} reads", sizes.len());
    }
}

#[test]
fn places_are_found_in_arrays_of_any_strides() {
    for seed in 0..500 {
        let mut chance = Chance::new(seed);
        let shape: Vec<u64> = (0..chance.below(4)).map(|_| 1 + chance.below(5)).collect();
        let mut strides = vec![0; shape.len()];
        let mut size = 8;
        for axis in chance.shuffled(shape.len()) {
            size += 8 * chance.below(2) as i64;
            strides[axis] = size;
            size *= shape[axis] as i64;
        }
        let memory: Vec<u8> = (0..size as u64 + 8).map(|_| chance.below(256) as u8).collect();
        let all: u64 = shape.iter().product();
        let place = |chance: &mut Chance| {
            let first = chance.below(all);
            (first, chance.below(all - first + 1))
        };
        let most = [5, 200][chance.below(2) as usize];
        let places: Vec<(u64, u64)> = (0..chance.below(most)).map(|_| place(&mut chance)).collect();
        let mut expected = Vec::new();
        for number in places.iter().flat_map(|(first, count)| *first..first + count) {
            let along = |axis: usize| number / shape[axis + 1..].iter().product::<u64>() % shape[axis];
            let offset: i64 = (0..shape.len()).map(|axis| along(axis) as i64 * strides[axis]).sum();
            expected.extend_from_slice(&memory[offset as usize..offset as usize + 8]);
        }
        let packing = Packing::of_places(&places, &shape, &strides, 8).unwrap();
        let mut buffer = vec![0; packing.bytes()];
        // SAFETY: every element is in the memory, as the slices above have shown.
        unsafe { packing.pack(memory.as_ptr(), buffer.as_mut_ptr()) };
        assert_eq!(buffer, expected, "seed {seed}");
        // Piece by piece, too.
        let mut pieces = vec![0; packing.bytes()];
        let mut cursor = packing.begin();
        while cursor.at() < packing.bytes() {
            let (at, length) = (cursor.at(), (1 + chance.below(100) as usize).min(packing.bytes() - cursor.at()));
            // SAFETY: as above.
            unsafe { packing.pack_next(&mut cursor, memory.as_ptr(), pieces[at..].as_mut_ptr(), length) };
        }
        assert_eq!(pieces, expected, "seed {seed}");
    }
}

#[test]
fn many_places_take_few_bytes() {
    let mut chance = Chance::new(5);
    let mut at = 0;
    let places: Vec<(u64, u64)> = (0..10_000)
        .map(|_| {
            at += 2 + chance.below(2000);
            (at, 1)
        })
        .collect();
    let packing = Packing::of_places(&places, &[at + 1], &[8], 8).unwrap();
    let Strips::Packed { bytes, .. } = &packing.strips else { panic!("{packing:?}") };
    assert!(bytes.len() < 20_100, "{}", bytes.len());
}

/// Packs and unpacks with strides that have gaps, some of them negative.
fn check(messages: &[TransferMessage], shape: &[u64], element: usize, chance: &mut Chance, seed: u64) {
    let (mut strides, mut base, mut size) = (vec![0; shape.len()], 0, element as i64);
    for (axis, extent) in shape.iter().enumerate().rev() {
        size += chance.below(2) as i64 * 3;
        strides[axis] = size;
        if chance.below(4) == 0 {
            base += size * (*extent as i64 - 1).max(0);
            strides[axis] = -size;
        }
        size *= (*extent as i64).max(1);
    }
    let memory: Vec<u8> = (0..size as u64 + 64).map(|_| chance.below(256) as u8).collect();
    for message in messages {
        let packing = Packing::new(message, &strides, element).unwrap();
        let mut offsets = Vec::new();
        message.for_each_piece(&strides, &mut |piece| {
            offsets.extend((0..piece.count as i64).map(|at| (base + piece.start + at * piece.stride) as usize));
        });
        let expected: Vec<u8> = offsets.iter().flat_map(|at| memory[*at..at + element].iter().copied()).collect();
        let mut buffer = vec![0; packing.bytes()];
        // SAFETY: every element of the message is in the memory, as the slices above have shown.
        unsafe { packing.pack(memory.as_ptr().offset(base as isize), buffer.as_mut_ptr()) };
        assert_eq!(buffer, expected, "seed {seed}");
        let mut wanted = vec![0; memory.len()];
        let mut got = wanted.clone();
        for (at, element_bytes) in offsets.iter().zip(expected.chunks(element)) {
            wanted[*at..at + element].copy_from_slice(element_bytes);
        }
        // SAFETY: as above.
        unsafe { packing.unpack(buffer.as_ptr(), got.as_mut_ptr().offset(base as isize)) };
        assert_eq!(got, wanted, "seed {seed}");
        got.fill(0);
        let mut rest = &buffer[..];
        let mut read = |into: &mut [u8]| io::Read::read_exact(&mut rest, into);
        let (mut cursor, mut between) = (packing.begin(), Vec::new());
        while cursor.at() < packing.bytes() {
            // SAFETY: as above.
            let at = unsafe { got.as_mut_ptr().offset(base as isize) };
            // SAFETY: as above.
            unsafe { packing.unpack_some(&mut cursor, &mut between, &mut read, at) }.unwrap();
        }
        assert_eq!(got, wanted, "seed {seed}");
    }
}
