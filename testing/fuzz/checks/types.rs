//! Texts that users write: refused with an error that says where, or a value that satisfies its invariants.

use types::quantity::{parse_bytes, parse_duration, parse_rate};
use types::roster::{RankPlace, is_name};
use types::sites::Fingerprint;
use types::{Rank, Roster, SitesFile};

pub fn sites_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match SitesFile::parse(text, "sites.toml") {
        Ok(file) => {
            assert!(!file.sites.is_empty());
            for (index, site) in file.sites.iter().enumerate() {
                assert!(is_name(&site.name) && !site.gateways.is_empty(), "{site:?}");
                assert_eq!(site.nodes.is_empty(), site.starter.allocates(), "{site:?}");
                assert_eq!(file.site(&site.name).map(|(id, _)| usize::from(id.0)), Some(index), "{}", site.name);
                assert_eq!(site.fingerprint.to_string().parse(), Ok(site.fingerprint));
            }
        }
        Err(error) => assert!(error.to_string().starts_with("sites.toml: "), "{error}"),
    }
}

/// The one-line form of a roster.
pub fn roster(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(roster) = text.parse::<Roster>() else { return };
    assert_eq!(roster.to_string().parse().as_ref(), Ok(&roster));
    let size = roster.size();
    assert_eq!(roster.place(Rank(size)), None);
    for (site, node, first, entry) in roster.nodes() {
        assert_eq!(roster.site(site).map(|site| site.nodes[node.0 as usize].clone()).as_ref(), Some(entry));
        if let Some(last) = entry.ranks.checked_sub(1) {
            let place = roster.place(Rank(first.0 + last));
            assert!(
                matches!(
                    place,
                    Some(RankPlace { site: s, node: n, local_rank, .. }) if (s, n, local_rank) == (site, node, last)
                ),
                "{roster}: rank {} is at {place:?}",
                first.0 + last
            );
        }
    }
}

/// A size, a rate, a time.
pub fn quantity(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(size) = parse_bytes(text) {
        assert!(size < 1 << 63, "{text} became {size} bytes");
    }
    if let Ok(rate) = parse_rate(text) {
        assert!(rate < 1 << 63, "{text} became {rate} bit/s");
    }
    if let Ok(time) = parse_duration(text) {
        assert!(time.as_secs() <= 1_000_000_000, "{text} became {time:?}");
    }
}

/// A key's fingerprint.
pub fn fingerprint(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string(), text.to_ascii_lowercase());
    }
}
