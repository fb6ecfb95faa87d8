use proptest::prelude::*;
use types::JobId;

use super::*;

const ROOT: SiteId = SiteId(0);

fn leaf(slots: &[u32]) -> Tree {
    Tree { receivers: slots.iter().map(|slot| Slot(*slot)).collect(), branches: Vec::new() }
}

/// Root → 1 (two receivers) → 3 (one), root → 2 (one).
fn tree() -> Tree {
    let one = Tree { branches: vec![(SiteId(3), leaf(&[9]))], ..leaf(&[4, 5]) };
    Tree { receivers: Vec::new(), branches: vec![(SiteId(1), one), (SiteId(2), leaf(&[7]))] }
}

fn is_refused(bytes: &[u8], at: u16) -> String {
    Block::split(bytes, SiteId(at), ROOT).unwrap_err().to_string()
}

#[test]
fn a_tree_is_taken_apart_site_by_site() {
    let mut template = tree().template(ROOT).unwrap();
    let receivers: Vec<(u16, u32)> = template.receivers().map(|to| (to.site.0, to.slot.0)).collect();
    assert_eq!(receivers, [(1, 4), (1, 5), (3, 9), (2, 7)]);
    let mut payload = template.fill([10, 20, 30, 40]).to_vec();
    payload.extend_from_slice(b"data");
    let (block, data) = Block::split(&payload, ROOT, ROOT).unwrap();
    assert_eq!((data, block.receivers().count()), (&b"data"[..], 0));
    let mut all = Vec::new();
    let add = &mut |site: SiteId, receiver: BlockReceiver| -> Result<(), ()> {
        all.push((site.0, receiver.slot.0, receiver.sequence));
        Ok(())
    };
    block.each(ROOT, add).unwrap();
    assert_eq!(all, [(1, 4, 10), (1, 5, 20), (3, 9, 30), (2, 7, 40)]);
    let branches: Vec<(SiteId, Block<'_>)> = block.branches().collect();
    assert_eq!(branches.len(), 2);
    // A branch's payload is read at the next site like any other.
    let onward = [branches[0].1.bytes(), data].concat();
    let (at_one, data) = Block::split(&onward, SiteId(1), ROOT).unwrap();
    assert_eq!((data, at_one.receivers().count(), at_one.branches().count()), (&b"data"[..], 2, 1));

    let identity = |site, slot| Identity { site: SiteId(site), slot };
    let plain = FrameHeader::plain(FrameKind::Many, JobId(3), identity(0, Slot(1)), identity(0, Slot::GATEWAY));
    let header = FrameHeader { route: 65, length: payload.len() as u32, ..plain };
    let onward = header.onward(SiteId(1), onward.len());
    assert_eq!((onward.to, onward.kind, onward.route), (identity(1, Slot::GATEWAY), FrameKind::Many, 65));
    let receiver = at_one.receivers().next().unwrap();
    let data = onward.data_of_many(SiteId(1), receiver, 4);
    assert_eq!((data.to, data.from, data.sequence, data.route), (identity(1, Slot(4)), header.from, 10, 65));
    assert!(data.relayed && data.kind == FrameKind::Data && data.length == 4);
    let astray = header.astray(identity(3, Slot(9)), 30);
    assert_eq!((astray.to, astray.from, astray.sequence), (header.from, identity(3, Slot(9)), 30));
}

#[test]
fn a_block_that_breaks_a_rule_is_refused_by_name() {
    let good = tree().template(ROOT).unwrap().bytes;
    for cut in 0..good.len() {
        assert!(is_refused(&good[..cut], 0).contains("truncated"), "cut at {cut}");
    }
    assert!(is_refused(&[1, 0, 1, 0, 0, 0, 0, 0, 0, 0], 0).contains("root's own site"));
    assert!(is_refused(&[0, 0], 1).contains("without receivers"));
    let one = |site: u8| [&[0, 1, site, 0, 10, 0, 1, 0][..], &[0; 8]].concat();
    assert!(Block::split(&one(2), SiteId(1), ROOT).is_ok());
    assert!(is_refused(&one(0), 1).contains("site #0 twice"), "back to the root");
    assert!(is_refused(&one(1), 1).contains("site #1 twice"), "the site where it is");
    let mut twice = tree();
    twice.branches[1].0 = SiteId(3);
    assert!(twice.template(ROOT).unwrap_err().to_string().contains("site #3 twice"));
    let mut trailing = [&[0, 1, 2, 0, 11, 0, 1, 0][..], &[0; 9]].concat();
    assert!(is_refused(&trailing, 1).contains("1 bytes too many"));
    trailing[4] = 10;
    assert_eq!(Block::split(&trailing, SiteId(1), ROOT).unwrap().1, [0], "a byte of data");
    let crowd = Tree { branches: vec![(SiteId(1), leaf(&[1; MAX_RECEIVERS + 1]))], ..Tree::default() };
    assert!(crowd.template(ROOT).unwrap_err().to_string().contains("64 receivers"));
    let full = Tree { branches: vec![(SiteId(1), leaf(&[1; MAX_RECEIVERS]))], ..Tree::default() };
    assert!(full.template(ROOT).is_ok());
    let chain = |length: u16| {
        (1..length).rev().fold(leaf(&[1]), |below, site| Tree {
            receivers: vec![Slot(1)],
            branches: vec![(SiteId(site + 1), below)],
        })
    };
    let rooted = |length| Tree { branches: vec![(SiteId(1), chain(length))], ..Tree::default() };
    assert!(rooted(64).template(ROOT).is_ok());
    assert!(rooted(65).template(ROOT).is_err());
    let bare = |length: u16| {
        (1..length)
            .rev()
            .fold(leaf(&[1]), |below, site| Tree { receivers: Vec::new(), branches: vec![(SiteId(site + 1), below)] })
    };
    let far = Tree { branches: vec![(SiteId(1), bare(MAX_SITES as u16 + 1))], ..Tree::default() };
    assert!(far.template(ROOT).unwrap_err().to_string().contains("64 sites"));
    // Longer than a block may be, although no byte of it is missing.
    let long = [&[0, 255][..], &[7; 4000]].concat();
    assert!(matches!(Block::split(&long, SiteId(1), ROOT), Err(WireError::TooLong { .. })));
}

#[test]
fn reports_of_lost_copies_survive() {
    for why in [Why::Absent, Why::Away, Why::Refused] {
        let astray = Astray { at: SiteId(3), towards: SiteId(700), why };
        assert_eq!(Astray::decode(&astray.encode()), Ok(astray));
    }
    assert!(Astray::decode(&[0; 4]).is_err() && Astray::decode(&[0; 6]).is_err() && Astray::decode(&[3; 5]).is_err());
}

/// Trees of at most 20 sites; a number picks the parent of each site.
fn any_tree() -> impl Strategy<Value = Tree> {
    prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u32>(), 1..4)), 1..20).prop_map(
        |sites| {
            fn below(at: usize, sites: &[(prop::sample::Index, Vec<u32>)]) -> Tree {
                let receivers = if at == 0 { Vec::new() } else { sites[at - 1].1.iter().map(|s| Slot(*s)).collect() };
                let is_below = |site: &usize| sites[*site - 1].0.index(*site) == at;
                let branches = (at + 1..=sites.len()).filter(is_below);
                Tree { receivers, branches: branches.map(|site| (SiteId(site as u16), below(site, sites))).collect() }
            }
            below(0, &sites)
        },
    )
}

proptest! {
    #[test]
    fn trees_survive(tree in any_tree(), data: Vec<u8>) {
        let mut template = tree.template(ROOT).unwrap();
        let count = template.receivers().count() as u32;
        let payload = [template.fill(0..count), &data].concat();
        let (block, rest) = Block::split(&payload, ROOT, ROOT).unwrap();
        prop_assert_eq!((rest, block.bytes().len()), (&data[..], template.length()));
        let mut all = Vec::new();
        let add = &mut |site: SiteId, receiver: BlockReceiver| -> Result<(), ()> {
            all.push((Identity { site, slot: receiver.slot }, receiver.sequence));
            Ok(())
        };
        block.each(ROOT, add).unwrap();
        prop_assert_eq!(all, template.receivers().zip(0..).collect::<Vec<_>>());
        for (site, below) in block.branches() {
            prop_assert_eq!(Block::split(below.bytes(), site, ROOT).unwrap().0, below);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(0u8..6, 0..200), at in 0u16..3) {
        if let Ok((block, data)) = Block::split(&bytes, SiteId(at), ROOT) {
            prop_assert_eq!(block.bytes().len() + data.len(), bytes.len());
            let mut count = 0;
            let add = &mut |_: SiteId, _: BlockReceiver| -> Result<(), ()> {
                count += 1;
                Ok(())
            };
            block.each(SiteId(at), add).unwrap();
            prop_assert!((1..=MAX_RECEIVERS).contains(&count));
        }
    }
}
