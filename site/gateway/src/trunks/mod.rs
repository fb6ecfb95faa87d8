//! Everything between this gateway and another: links, control messages, measurements, figures of the network,
//! couplings, and meetings where neither gateway can be dialled.
//!
//! A [`trunk::Trunk`] is the state of one, and [`list::TrunkList`] holds all. On it stand the parts that talk to other
//! gateways: `measure`, `survey`, `couplings`, `meeting`. [`Trunks`] joins them: `links` keeps the links up, `arrived`
//! handles the frames that arrive on them.

use std::rc::Rc;
use std::sync::Arc;

use gateway_tasks::Tunneller;

use crate::config::GatewayConfig;
use crate::path::Path;
use crate::sites::Sites;
use crate::trunks::couplings::Couplings;
use crate::trunks::list::TrunkList;
use crate::trunks::measure::Measuring;
use crate::trunks::meeting::host::Host;
use crate::trunks::meeting::visit::Visits;
use crate::trunks::survey::Survey;

mod arrived;
pub(crate) mod board;
mod control;
pub(crate) mod couplings;
pub(crate) mod error;
pub(crate) mod handshake;
mod links;
pub(crate) mod list;
pub(crate) mod measure;
pub(crate) mod meeting;
pub(crate) mod survey;
pub(crate) mod trunk;
mod tunnel;

/// All trunks of this gateway, with the state of measurements, meetings and tunnels.
pub(crate) struct Trunks {
    pub path: Rc<Path>,
    pub sites: Rc<Sites>,
    pub list: Rc<TrunkList>,
    pub measuring: Rc<Measuring>,
    /// The figures of the network between sites.
    pub survey: Rc<Survey>,
    pub couplings: Couplings,
    /// Meetings that this gateway hosts for others, and its own at other gateways.
    pub host: Rc<Host>,
    pub visits: Visits,
    /// Opens tunnels to gateways that are reached through ssh.
    tunneller: Option<Arc<dyn Tunneller>>,
}

impl Trunks {
    /// `list`: the trunks of the gateway with this configuration.
    pub(crate) fn new(config: &GatewayConfig, list: Rc<TrunkList>) -> Trunks {
        let measuring = Rc::new(Measuring::new(list.clone()));
        Trunks {
            path: list.path.clone(),
            sites: list.sites.clone(),
            survey: Rc::new(Survey::new(list.clone(), measuring.clone())),
            measuring,
            couplings: Couplings::new(list.clone()),
            host: Rc::new(Host::new(list.clone())),
            visits: Visits::new(list.clone()),
            tunneller: config.tunneller.clone(),
            list,
        }
    }
}
