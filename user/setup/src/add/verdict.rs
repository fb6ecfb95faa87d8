//! Conclusions from an attempt's findings about a new site: whether it stays, and the next remedy before it is undone.

use watching::check::Finding;

use super::Wish;
use crate::book::SiteEntry;

/// Result of judging a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Everything about it works.
    Works,
    /// Its gateway and its trunks work; its nodes do not. The entry is right and can be completed.
    NodesFail,
    /// Something else does not work.
    Fails,
}

/// Another way to join a site to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// It dials the others, because they cannot dial it.
    DialOut,
    /// The others reach it through ssh, because neither side can dial the other.
    ThroughSsh,
    /// It reaches the others through ssh, because the others cannot log in to it either.
    ThroughTheirSsh,
}

/// Possible logins of gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Logins {
    /// Gateways of the other sites may log in at the new site.
    pub here: bool,
    /// The new site's gateway may log in at the others.
    pub there: bool,
}

/// Judges a site by the findings about it. Problems at other sites do not count, except their trunk from this site.
pub(super) fn verdict(site: &str, findings: &[Finding]) -> Verdict {
    let faults: Vec<&Finding> = findings.iter().filter(|finding| is_fault(site, finding)).collect();
    let of_nodes = |finding: &&Finding| finding.part == "nodes" || finding.part.starts_with("node ");
    match faults.iter().all(of_nodes) {
        true if faults.is_empty() => Verdict::Works,
        true => Verdict::NodesFail,
        false => Verdict::Fails,
    }
}

/// Chooses the next remedy after a failed attempt to add a new site. `tried`: the remedies tried after the entry as
/// planned.
pub(super) fn remedy(
    wish: &Wish,
    entry: &SiteEntry,
    logins: Logins,
    findings: &[Finding],
    tried: &[Remedy],
) -> Option<Remedy> {
    // A user who gives the address to dial has a reason.
    if wish.advertise.is_some() {
        return None;
    }
    let undialled = findings.iter().any(|finding| is_undialled(&wish.name, finding));
    if undialled && entry.advertise.is_some() && !tried.contains(&Remedy::DialOut) {
        return Some(Remedy::DialOut);
    }
    let apart = !cut_off(&wish.name, findings).is_empty();
    let through = [(Remedy::ThroughSsh, logins.here), (Remedy::ThroughTheirSsh, logins.there)];
    through.into_iter().find(|(remedy, may)| apart && *may && !tried.contains(remedy)).map(|(remedy, _)| remedy)
}

/// The other sites whose trunks with this one do not work.
pub(super) fn cut_off<'a>(site: &str, findings: &'a [Finding]) -> Vec<&'a str> {
    let from_it = format!("trunk from {site}");
    let failed = findings.iter().filter(|finding| !finding.ok);
    failed
        .filter_map(|finding| match finding.part.strip_prefix("trunk from ") {
            Some(other) if finding.site == site => Some(other),
            _ if finding.part == from_it => Some(finding.site.as_str()),
            _ => None,
        })
        .collect()
}

/// True if the finding reports that another site's gateway could not dial this site's.
fn is_undialled(site: &str, finding: &Finding) -> bool {
    !finding.ok && finding.site == site && finding.part.starts_with("trunk from ")
}

/// The port of an address.
pub(super) fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(_, port)| port)
}

pub(super) fn is_fault(site: &str, finding: &Finding) -> bool {
    !finding.ok && (finding.site == site || finding.part == format!("trunk from {site}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Start;

    fn finding(site: &str, part: &str, ok: bool) -> Finding {
        Finding { site: site.into(), part: part.into(), ok, detail: String::new() }
    }

    #[test]
    fn a_site_stays_if_only_its_nodes_fail() {
        let mut findings = vec![finding("kyoto", "gateway gw1", true), finding("lyon", "node n1", false)];
        assert_eq!(verdict("kyoto", &findings), Verdict::Works);
        findings.push(finding("kyoto", "nodes", false));
        findings.push(finding("kyoto", "node n1", false));
        assert_eq!(verdict("kyoto", &findings), Verdict::NodesFail);
        findings.push(finding("lyon", "trunk from kyoto", false));
        assert_eq!(verdict("kyoto", &findings), Verdict::Fails);
    }

    const NOWHERE: Logins = Logins { here: false, there: false };
    const HERE: Logins = Logins { here: true, there: false };

    #[test]
    fn dialling_out_is_tried_once_and_not_against_the_users_word() {
        let entry = SiteEntry {
            advertise: Some("h:7700".into()),
            ssh: None,
            inside: "h:7700".into(),
            listen: "[::]:7700".into(),
            nodes: Vec::new(),
            starter: Start::Slurm,
        };
        let wish = Wish { name: "kyoto".into(), ..Wish::default() };
        let findings = [finding("kyoto", "trunk from lyon", false)];
        let next =
            |entry: &SiteEntry, findings: &[Finding], tried: &[Remedy]| remedy(&wish, entry, NOWHERE, findings, tried);
        assert_eq!(next(&entry, &findings, &[]), Some(Remedy::DialOut));
        assert_eq!(next(&entry, &findings, &[Remedy::DialOut]), None);
        assert_eq!(next(&entry, &[finding("lyon", "trunk from kyoto", false)], &[]), None);
        assert_eq!(next(&SiteEntry { advertise: None, ..entry.clone() }, &findings, &[]), None);
        let named = Wish { advertise: Some("h".into()), ..wish.clone() };
        assert_eq!(remedy(&named, &entry, HERE, &findings, &[]), None);
        // ssh comes last, and only if gateways may log in.
        let through =
            |entry: &SiteEntry, findings: &[Finding], tried: &[Remedy]| remedy(&wish, entry, HERE, findings, tried);
        assert_eq!(through(&entry, &findings, &[]), Some(Remedy::DialOut));
        assert_eq!(through(&entry, &findings, &[Remedy::DialOut]), Some(Remedy::ThroughSsh));
        assert_eq!(through(&SiteEntry { advertise: None, ..entry.clone() }, &findings, &[]), Some(Remedy::ThroughSsh));
        assert_eq!(through(&entry, &findings, &[Remedy::DialOut, Remedy::ThroughSsh]), None);
        assert_eq!(through(&entry, &[finding("kyoto", "node n1", false)], &[]), None);
        let both = Logins { here: true, there: true };
        let tried = [Remedy::DialOut, Remedy::ThroughSsh];
        assert_eq!(remedy(&wish, &entry, both, &findings, &tried), Some(Remedy::ThroughTheirSsh));
        assert_eq!(remedy(&wish, &entry, both, &findings, &[tried[0], tried[1], Remedy::ThroughTheirSsh]), None);
        assert_eq!(cut_off("kyoto", &findings), ["lyon"]);
        let mixed = [finding("nancy", "trunk from kyoto", false), finding("lyon", "trunk from nancy", false)];
        assert_eq!(cut_off("kyoto", &mixed), ["nancy"]);
    }
}
