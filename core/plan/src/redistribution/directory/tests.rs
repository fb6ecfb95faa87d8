use super::*;
use crate::redistribution::testing::{Case, Chance};
use crate::redistribution::{Mapping, Transfer};

/// Runs the directory on the parts of all processes. Returns for each target process its local places, each with
/// the number in the array of the element that arrives there.
fn moved(sources: &[Part], targets: &[Part], keepers: u32) -> Result<Vec<Vec<(u64, u64)>>, DirectoryError> {
    let told = |parts: &[Part], keeper: usize| -> Vec<(u32, Spans)> {
        (0..).zip(parts).map(|(process, part)| (process, part.spans_of_keepers(keepers)[keeper].clone())).collect()
    };
    let mut matches = Vec::new();
    for keeper in 0..keepers as usize {
        matched(&told(sources, keeper), &told(targets, keeper), &mut |source, target, span| {
            matches.push((source, target, span));
        })?;
    }
    let mut all = Vec::new();
    for (process, target) in (0..).zip(targets) {
        let mut got = Vec::new();
        for (from, source) in (0..).zip(sources) {
            let of_pair = |(source, target, _): &&(u32, u32, Span)| (*source, *target) == (from, process);
            let spans: Spans = matches.iter().filter(of_pair).map(|(.., span)| *span).collect();
            let each = |places: Vec<(u64, u64)>| places.into_iter().flat_map(|(at, count)| at..at + count);
            let sent: Vec<u64> = each(source.places(&spans, true)).collect();
            let received: Vec<u64> = each(target.places(&spans, false)).collect();
            assert_eq!(sent.len(), received.len());
            let number = |local: &u64| {
                let holds = |segment: &&Segment| (segment.local..segment.local + segment.length).contains(local);
                let segment = source.layers[0].iter().find(|segment| holds(&segment)).unwrap();
                segment.start + (local - segment.local)
            };
            got.extend(received.into_iter().zip(sent.iter().map(number)));
        }
        got.sort_unstable();
        all.push(got);
    }
    Ok(all)
}

#[test]
fn layouts_have_the_same_messages_through_a_directory() {
    for seed in 0..1500 {
        let mut chance = Chance::new(seed);
        let case = Case::new(&mut chance);
        let source = case.transfer.source().clone();
        let (target, _) = chance.layout(source.shape());
        let parts = |layout: &Layout, owned| -> Vec<Part> {
            (0..layout.processes()).map(|process| Part::of(layout, process, owned).unwrap()).collect()
        };
        let (sources, targets) = (parts(&source, true), parts(&target, false));
        let got = moved(&sources, &targets, 1 + chance.below(5) as u32).unwrap();
        let transfer = Transfer::new(source.clone(), target.clone(), &Mapping::all(&source, &target)).unwrap();
        for (process, got) in (0..).zip(got) {
            let shape = target.local_shape(process);
            let strides: Vec<i64> =
                (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<u64>() as i64).collect();
            let places = transfer.receives(process).into_iter().flat_map(|message| {
                let mut places = Vec::new();
                message.for_each_piece(&strides, &mut |piece| {
                    places.extend((0..piece.count as i64).map(|at| (piece.start + at * piece.stride) as u64));
                });
                places
            });
            let mut expected: Vec<u64> = places.collect();
            expected.sort_unstable();
            assert_eq!(got.iter().map(|(local, _)| *local).collect::<Vec<_>>(), expected, "seed {seed}");
            let held = &targets[process as usize];
            for (local, number) in got {
                let is_at = |segment: &&Segment| (segment.local..segment.local + segment.length).contains(&local);
                let segment = held.layers.iter().flat_map(Segments::iter).find(|segment| is_at(&segment)).unwrap();
                assert_eq!(number, segment.start + (local - segment.local), "seed {seed}");
            }
        }
    }
}

#[test]
fn any_elements_in_any_order_arrive() {
    for seed in 0..1000 {
        let mut chance = Chance::new(seed);
        let elements = 1 + chance.below(60);
        let mut part = |numbers: Vec<u64>| {
            let mut segments: Vec<Segment> = Vec::new();
            for (local, start) in (0..).zip(numbers) {
                match segments.last_mut() {
                    Some(last) if last.start + last.length == start && chance.below(4) > 0 => last.length += 1,
                    _ => segments.push(Segment { start, length: 1, local }),
                }
            }
            Part::new(segments, elements).unwrap()
        };
        let mut owned = vec![Vec::new(); 3];
        let mut dice = Chance::new(seed + 7);
        for number in dice.shuffled(elements as usize) {
            owned[dice.below(3) as usize].push(number as u64);
        }
        // Some elements are wanted twice, some not at all.
        let wanted: Vec<Vec<u64>> =
            (0..4).map(|_| (0..dice.below(40)).map(|_| dice.below(elements)).collect()).collect();
        let sources: Vec<Part> = owned.into_iter().map(&mut part).collect();
        let targets: Vec<Part> = wanted.iter().cloned().map(&mut part).collect();
        let got = moved(&sources, &targets, 1 + dice.below(6) as u32).unwrap();
        for (got, wanted) in got.into_iter().zip(wanted) {
            assert_eq!(got, (0..).zip(wanted).collect::<Vec<(u64, u64)>>(), "seed {seed}");
        }
    }
}

#[test]
fn parts_that_make_no_array_are_refused() {
    let part = |spans: &[(u64, u64)]| {
        let segments = spans.iter().map(|(start, length)| Segment { start: *start, length: *length, local: 0 });
        Part::new(segments.collect(), 20).unwrap()
    };
    let outcome = |sources: &[Part], targets: &[Part]| moved(sources, targets, 2).unwrap_err();
    let all = part(&[(0, 20)]);
    assert_eq!(
        outcome(&[part(&[(0, 12)]), part(&[(11, 9)])], std::slice::from_ref(&all)),
        DirectoryError::TwoOwners { element: 11, one: 0, other: 1 }
    );
    assert_eq!(
        outcome(&[part(&[(0, 5), (4, 16)])], std::slice::from_ref(&all)),
        DirectoryError::Twice { element: 4, process: 0 }
    );
    assert_eq!(
        outcome(&[part(&[(0, 5), (6, 14)])], &[part(&[(0, 5)]), all]),
        DirectoryError::NoOwner { element: 5, process: 1 }
    );
    let outside = Segment { start: 19, length: 2, local: 0 };
    assert_eq!(Part::new(vec![outside], 20), Err(DirectoryError::Outside { start: 19, last: 20, elements: 20 }));
    assert_eq!(elements(&[1 << 40, 1 << 40]), Err(DirectoryError::TooMany));
}

/// 1,000 processes and keepers with 10^6 elements that alternate one by one: each process sends every keeper one
/// span.
#[test]
fn nobody_has_more_than_its_share() {
    let (processes, elements) = (1000u64, 1_000_000u64);
    let part = |process: u64| {
        let each = |at: u64| Segment { start: at * processes + process, length: 1, local: at };
        Part::new((0..elements / processes).map(each).collect(), elements).unwrap()
    };
    let told = part(17).spans_of_keepers(processes as u32);
    assert_eq!(told.len() as u64, processes);
    assert!(told.iter().all(|spans| spans.iter().count() == 1));
    let of_keeper: Vec<(u32, Spans)> = (0..processes)
        .map(|process| (process as u32, part(process).spans_of_keepers(processes as u32)[3].clone()))
        .collect();
    let mut found = 0;
    matched(&of_keeper, &of_keeper, &mut |_, _, _| found += 1).unwrap();
    assert_eq!(found, elements / processes);
}
