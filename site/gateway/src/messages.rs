//! Control messages of members: to which part each goes, and those about jobs.

use std::rc::Rc;

use types::{JobId, Slot};
use wire::Control;
use wire::control::JobMessage;

use crate::gateway::Gateway;
use crate::log::short;
use crate::path::member::Member;
use crate::status::observe;
use crate::table::error::{Refused, Violation};

impl Gateway {
    /// Handles a control message of a member.
    ///
    /// # Errors
    /// The member may not send it: close its connection.
    pub(crate) fn handle_member_message(&self, member: &Rc<Member>, message: Control) -> Result<(), Violation> {
        match message {
            Control::Job(message) => self.job_from_member(member, message),
            Control::Allocation(message) => self.services.nodes.handle_member_message(member, message),
            Control::Measurement(message) => self.trunks.measuring.handle_member_message(member, message),
            Control::Observation(message) => observe::handle_member_message(self, member, message),
            Control::Joining(message) => self.services.joining.handle_member_message(member, message),
            Control::Links(message) => self.trunks.survey.handle_member_message(member, message),
            Control::Coupling(message) => self.trunks.couplings.handle_member_message(member, message),
            Control::Meeting(_) => Err("only gateways may send meeting messages".into()),
        }
    }

    fn job_from_member(&self, member: &Rc<Member>, message: JobMessage) -> Result<(), Violation> {
        let (table, job) = (&self.path.table, member.job.get());
        match message {
            JobMessage::Open { job: new, part, .. } if job == new && !part.leads() => {
                table.change(|table| table.job_from_launcher(job, &message))
            }
            JobMessage::Open { .. } if job != JobId::default() => {
                Err(Violation(format!("this connection already belongs to job {job}")))
            }
            JobMessage::Open { job: new, secret, roster, home, part } => {
                self.trunks.list.kick();
                let opened = table.change(|table| {
                    let identity = table.open(new, secret, roster, &home, part, member.clone())?;
                    // Must happen before anything is sent to the member.
                    member.becomes(new, identity);
                    Ok(())
                });
                if let Err(Refused { site, why }) = opened {
                    let reason = why.to_string();
                    tracing::warn!(peer = %member.address, job = %new, site, reason = short(&reason), "job refused");
                    member.send_control(&self.path, JobMessage::Refused { job: new, site, reason });
                }
                Ok(())
            }
            JobMessage::Close { job: unopened, .. } if job == JobId::default() => {
                if !table.change(|table| table.abandoned_by(unopened, member)) {
                    // The job was refused, or lost its nodes, after the launcher sent this.
                    member.dismiss(&format!("job {unopened} is not open at site {}", self.sites.site));
                }
                Ok(())
            }
            JobMessage::Stopped { job: own, stopped } if own == job && member.identity.get().slot == Slot::LAUNCHER => {
                member.stops(stopped);
                member.send_control(&self.path, JobMessage::Stopped { job, stopped });
                Ok(())
            }
            message => table.change(|table| table.job_from_launcher(job, &message)),
        }
    }
}
