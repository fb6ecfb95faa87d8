//! The last step for a site that works: the command on its user's path, and automatic restarts of its gateway.

use watching::check::Finding;

use super::Prepared;
use crate::message::{KeepOutcome, Reply, SiteRequest};

impl Prepared {
    /// Takes the last step; returns true if every requested part of it works.
    pub(super) async fn settle(&mut self, findings: &mut Vec<Finding>) -> bool {
        let (site, keep) = (self.wish.name.clone(), self.wish.keep);
        match self.company.ask(&site, &SiteRequest::Settle { site: site.clone(), keep }).await {
            Ok(Reply::Settled { notes, kept, offer }) => {
                self.notes.extend(notes);
                if let Some(offer) = offer.filter(|_| self.new) {
                    self.notes.push(format!(
                        "after a reboot nothing starts its gateway by itself: `landbridge sites add {site} --keep` makes {offer} do it"
                    ));
                }
                let result = match kept {
                    None => return true,
                    Some(KeepOutcome::Installed(mechanism)) => Ok(mechanism),
                    Some(KeepOutcome::Refused(problem)) => Err(problem),
                };
                let ok = result.is_ok();
                findings.push(Finding::new(&site, "keep", result));
                ok
            }
            Ok(_) => true,
            Err(error) => {
                findings.push(Finding::new(&site, "keep", Err(error.to_string())));
                !keep
            }
        }
    }
}
