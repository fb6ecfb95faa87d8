//! One side of a coupling, run by a helper beside the side's processes. The helper holds the site's key, so that no
//! rank does.
//!
//! The side's first process starts the helper and exchanges lines of JSON with it ([`types::coupling`]). The helper
//! posts its side at the coupling's site, through all gateways of its own site. When two sides are there, one opens a
//! job without agents, in which all processes of both sides are ranks, and offers it to the other (`pairing`). The
//! coupling lasts as long as both helpers do; each helper ends with its process.

mod gateways;
mod opening;
mod pairing;
pub mod side;

use std::io;
use std::time::Duration;

use client::patience::core_time;
use thiserror::Error;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, Lines};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use types::coupling::{CouplingSite, HelperOrder, HelperReport};
use types::patience::CoreTime;
use types::sites::Inside;
use types::untrusted::UntrustedText;
use types::{Identity, JobId, SiteId, Slot};
use wire::control::coupling::{Coupling, RENEW_S};

use self::pairing::{Action, Pairing};
use self::side::{About, SideError, matched};
use crate::deadline::CLOSE;
use crate::{SessionError, Sites};
use gateways::Gateways;
use opening::{Opened, Opening, open, opened_next, opening_done, overdue};

/// Time limit for processes to connect to gateways once the sides are coupled, on a machine that is not overloaded.
const CONNECT: Duration = Duration::from_secs(8);
/// Time for the partner to appear on a board, for a side that leaves.
const LINGER: Duration = Duration::from_secs(4);
/// Longest time in which a helper need not run: boards have forgotten its side after 8 s, and its partner has given it
/// up soon after that.
const PAUSE: Duration = Duration::from_secs(12);
/// Time for which lost gateways are dialled again while none is connected.
const RETURN: Duration = Duration::from_secs(8);
/// The longest line from the process, in bytes.
const LONGEST: usize = 64 << 20;

/// A request to join a coupling.
#[derive(Clone, Debug)]
pub struct CouplingRequest {
    pub sites: Sites,
    /// The user's own site.
    pub home: String,
    pub coupling: Coupling,
}

/// Reasons why a coupling fails or ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CouplingError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Refused(String),
    #[error("{coupling} already has two sides, from {one} and {other}: take another name")]
    TwoSides { coupling: Coupling, one: String, other: UntrustedText },
    #[error("the other side, {home}: {source}")]
    Other { home: String, source: SideError },
    /// A trusted site has posted a side in the name of another site.
    #[error(
        "site {home} has posted the other side of {coupling}, which says that it is of site {said}: ask the \
         administrators of site {home}, or take another name"
    )]
    Posing { home: String, said: UntrustedText, coupling: Coupling },
    #[error("the processes of this side: {0}")]
    Own(#[from] SideError),
    #[error("site {site}: {reason}")]
    Site { site: String, reason: String },
    #[error("site {site}: did not open the coupling within {seconds} s; `landbridge sites check` shows what works")]
    Slow { site: String, seconds: u64 },
    #[error("the other side ({other}) has left: {reason}")]
    Left { other: String, reason: String },
    #[error("this side did not run for {seconds} s, so the other side has given it up")]
    Paused { seconds: u64 },
    #[error("no random numbers: {0}")]
    Random(String),
    #[error("bad line from the process: {0}")]
    Input(String),
}

/// Runs the coupling until one side ends it. `say` passes lines to the process.
///
/// # Errors
/// The reason why the coupling ended, unless the process ended it.
pub async fn run<R: AsyncBufRead + Unpin>(
    request: CouplingRequest,
    input: R,
    mut say: impl FnMut(HelperReport) -> io::Result<()>,
) -> Result<(), CouplingError> {
    let mut input = input.lines();
    let said = |result: io::Result<()>| result.map_err(|e| CouplingError::Input(e.to_string()));
    said(say(HelperReport::Waiting(format!("no gateway of site {} has answered yet", request.home))))?;
    let gateways = tokio::select! {
        gateways = Gateways::connect(&request) => gateways?,
        line = next(&mut input) => match line? {
            Some(HelperOrder::Leave(_)) | None => return Ok(()),
            Some(HelperOrder::Processes(_)) => return Err(CouplingError::Input("processes before they were asked for".into())),
        },
    };
    said(say(home(&request)))?;
    let processes = match next(&mut input).await? {
        Some(HelperOrder::Processes(processes)) => processes,
        Some(HelperOrder::Leave(_)) | None => return Ok(()),
    };
    let side = getrandom::u64().map_err(|e| CouplingError::Random(e.to_string()))?;
    let about = About::new(&request.home, &processes);
    matched(&about, &about)?;
    let pairing = Pairing::new(request.coupling.clone(), side, about);
    let mut helper = Helper { request, gateways, pairing, opening: None, opened: None, absent: None, refused: None };
    let result = helper.couple(&mut input, &mut |line| said(say(line))).await;
    let reason = match &result {
        Ok(reason) => reason.clone(),
        Err(error) => {
            // The process need not wait until the partner has been told. It may have ended.
            let _ = say(HelperReport::Over(error.to_string()));
            error.to_string()
        }
    };
    let lost = matches!(result, Err(CouplingError::Session(_))) || helper.gateways.outage.is_some();
    helper.leave(reason, lost).await;
    result.map(drop)
}

fn home(request: &CouplingRequest) -> HelperReport {
    let place = |site: &types::sites::Site| CouplingSite {
        name: site.name.clone(),
        gateways: site.gateways.iter().map(|gateway| (gateway.name.clone(), gateway.inside.clone())).collect(),
        keys: match site.inside {
            Inside::Encrypted => {
                let keys = site.keys();
                std::iter::once(keys.current).chain(keys.next).map(|key| key.to_string()).collect()
            }
            _ => Vec::new(),
        },
    };
    HelperReport::Home { site: request.home.clone(), sites: request.sites.file.sites.iter().map(place).collect() }
}

/// The process's next line; `None` at its end.
pub(super) async fn next<R: AsyncBufRead + Unpin>(input: &mut Lines<R>) -> Result<Option<HelperOrder>, CouplingError> {
    match input.next_line().await {
        Ok(None) => Ok(None),
        Ok(Some(line)) if line.len() > LONGEST => Err(CouplingError::Input(format!("a line of {} bytes", line.len()))),
        Ok(Some(line)) => serde_json::from_str(&line).map(Some).map_err(|e| CouplingError::Input(e.to_string())),
        Err(error) => Err(CouplingError::Input(error.to_string())),
    }
}

struct Helper {
    request: CouplingRequest,
    gateways: Gateways,
    pairing: Pairing,
    opening: Option<Opening>,
    opened: Option<Opened>,
    /// The beginnings of [`Pairing::absent`] and [`Pairing::refused`], with this process's core time then.
    absent: Option<(Instant, CoreTime)>,
    refused: Option<(Instant, CoreTime)>,
}

const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Helper {
    /// Returns the process's reason for leaving.
    async fn couple<R: AsyncBufRead + Unpin>(
        &mut self,
        input: &mut Lines<R>,
        say: &mut impl FnMut(HelperReport) -> Result<(), CouplingError>,
    ) -> Result<String, CouplingError> {
        let mut renew = interval(Duration::from_secs(RENEW_S));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        self.gateways.post(&self.pairing.post());
        loop {
            let gone = overdue(self.absent, self.pairing.absent());
            let refused = overdue(self.refused, self.pairing.refused());
            let actions = tokio::select! {
                biased;
                told = next(input) => match told? {
                    Some(HelperOrder::Leave(reason)) => return Ok(reason),
                    Some(HelperOrder::Processes(_)) => return Err(CouplingError::Input("processes again".into())),
                    None => return Ok("its first process has ended".into()),
                },
                message = self.gateways.next() => match message? {
                    Some(message) => self.pairing.heard(message, Instant::now())?,
                    None => {
                        self.pairing.forget_boards();
                        continue;
                    }
                },
                incoming = opened_next(self.opened.as_mut()) => {
                    if let Some(opened) = &mut self.opened {
                        opened.incoming(incoming?)?;
                    }
                    continue;
                }
                result = opening_done(self.opening.as_mut()) => {
                    let (opened, offer) = result?;
                    (self.opening, self.opened) = (None, Some(opened));
                    self.pairing.opened(offer)
                }
                _ = renew.tick() => {
                    let pause = std::mem::replace(&mut renewed, Instant::now()).elapsed();
                    if pause > PAUSE && self.pairing.is_coupled() {
                        return Err(CouplingError::Paused { seconds: pause.as_secs() });
                    }
                    self.gateways.send(&self.pairing.renewal());
                    continue;
                }
                () = gone => return Err(match self.gateways.outage.take() {
                    // The other side could post its reason nowhere.
                    Some(reason) => {
                        let reason = format!("all its gateways were lost, and the coupling with them: {reason}");
                        CouplingError::Site { site: self.gateways.site.clone(), reason }
                    }
                    None => self.pairing.gone(),
                }),
                () = refused => return Err(self.pairing.refusal()),
            };
            for action in actions {
                self.act(action, say).await?;
            }
            if !self.pairing.lacks_partner() {
                self.gateways.outage = None;
            }
            note(&mut self.absent, self.pairing.absent());
            note(&mut self.refused, self.pairing.refused());
        }
    }

    async fn act(
        &mut self,
        action: Action,
        say: &mut impl FnMut(HelperReport) -> Result<(), CouplingError>,
    ) -> Result<(), CouplingError> {
        match action {
            Action::Post => self.gateways.post(&self.pairing.post()),
            Action::Open { roster, to } => {
                self.abandon().await;
                let request = self.request.clone();
                self.opening = Some(Box::pin(async move {
                    match open(&request, &roster, to).await {
                        // A gateway may have been lost meanwhile that others of its site stand in for.
                        Err(_) => open(&request, &roster, to).await,
                        opened => opened,
                    }
                }));
            }
            Action::Abandon => self.abandon().await,
            Action::Say(line) => {
                if let (HelperReport::Coupled(_), Some(opened)) = (&line, &mut self.opened) {
                    opened.session.question_ranks(CONNECT);
                }
                say(line)?;
            }
        }
        Ok(())
    }

    async fn abandon(&mut self) {
        self.opening = None;
        if let Some(stale) = self.opened.take() {
            stale.session.end(CLOSE).await;
        }
    }

    /// Waits until a board names the partner.
    async fn meet_partner(&mut self) {
        self.pairing.forget_boards();
        while self.pairing.lacks_partner() {
            match self.gateways.next().await {
                Ok(Some(message)) => self.pairing.note(&message, Instant::now()),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Posts the reason for leaving, and leaves. `lost`: the gateways of the job were lost, and perhaps the partner's
    /// post with them.
    async fn leave(mut self, reason: String, lost: bool) {
        self.pairing.end(reason);
        self.gateways.post(&self.pairing.post());
        if lost {
            // The partner learns the reason once a gateway is back.
            let _ = timeout(LINGER, self.meet_partner()).await;
        }
        self.gateways.send(&self.pairing.leave());
        self.gateways.connections.goodbye(JobId::default(), CLOSE).await;
        if let Some(opened) = self.opened.take() {
            opened.session.end(CLOSE).await;
        }
    }
}

/// Notes the beginning of a wait, and this process's core time then.
fn note(begun: &mut Option<(Instant, CoreTime)>, wait: Option<(Instant, Duration)>) {
    let since = wait.map(|(since, _)| since);
    if since != begun.map(|(since, _)| since) {
        *begun = since.map(|since| (since, core_time()));
    }
}
