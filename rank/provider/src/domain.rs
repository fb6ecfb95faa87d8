//! `fid_domain`: shared by the endpoints opened from it, with the memory that peers may access.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ::endpoint::Config;
use memory::Regions;
use types::settings;

use crate::abi::border::{Behind, Object, behind, guard, hand_out, take_back, write_out};
use crate::abi::constants::{FI_CLASS_DOMAIN, FI_MR_BASIC, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_PROGRESS_AUTO};
use crate::abi::info::fi_info;
use crate::abi::objects::{fi_ops, fi_ops_domain, fid, fid_domain, fid_fabric};
use crate::av::Format;
use crate::driver::Driver;
use crate::errno::{Code, EBUSY, EINVAL, Errno};
use crate::fabric_object::{Fabric, fabric_behind};
use crate::progress::WaitSettings;
use crate::secret;
use crate::setting::SettingError;
use crate::{atomic, av, cntr, cq, endpoint, log, mr};

/// State shared by the endpoints of one domain.
pub(crate) struct Domain {
    /// The API version that its user was compiled for.
    pub api: u32,
    /// Registered memory.
    pub regions: Arc<Regions>,
    /// If true, peers address registered memory by virtual address, else by offset.
    pub virtual_addresses: bool,
    /// If true, we choose the keys, else the user does.
    pub provider_keys: bool,
    /// Configuration of the endpoints.
    pub config: Config,
    /// Settings for waiting readers.
    pub waiting: WaitSettings,
    /// If false, `FI_DELIVERY_COMPLETE` among an endpoint's default flags does not apply to its sends.
    pub confirms_sends: bool,
    /// Drives the endpoints, if the user asked for automatic progress.
    pub driver: Option<Driver>,
    /// The format of addresses: `FI_SOCKADDR_IN`, `FI_SOCKADDR_IN6` or `FI_ADDR_STR`.
    pub format: Format,
    /// Kept so that the fabric closes after the domain.
    _fabric: Arc<Fabric>,
}

#[cfg(test)]
impl Domain {
    /// A domain that was not opened through libfabric.
    pub(crate) fn for_tests() -> Domain {
        Domain {
            api: 0,
            regions: Arc::default(),
            virtual_addresses: false,
            provider_keys: false,
            config: Config::from_env(|_| None).unwrap(),
            waiting: WaitSettings::from_env(|_| None).unwrap(),
            confirms_sends: true,
            driver: None,
            format: Format::Ipv4,
            _fabric: Arc::default(),
        }
    }
}

impl Behind for Arc<Domain> {
    const CLASS: usize = FI_CLASS_DOMAIN;
    type Fid = fid_domain;
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::REFUSING };
static OPS: fi_ops_domain = fi_ops_domain {
    av_open: av::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    endpoint2: endpoint::open2,
    cntr_open: cntr::open,
    query_atomic: atomic::query,
    ..fi_ops_domain::REFUSING
};

/// Reads the configuration from this process's environment.
///
/// # Errors
/// `FI_EINVAL`; the reason goes to standard error.
pub(crate) fn configuration() -> Result<(Config, WaitSettings, bool), Errno> {
    let lookup = |name: &str| match name {
        "LANDBRIDGE_SECRET" => secret::take(),
        name => std::env::var(name).ok(),
    };
    let read = || {
        let config = Config::from_env(lookup)?;
        Ok((config, WaitSettings::from_env(lookup)?, confirms_sends(lookup)?))
    };
    read().map_err(|error: SettingError| {
        log::fatal(format_args!("{error}"));
        EINVAL
    })
}

/// Reads `LANDBRIDGE_CONFIRM_SENDS`: `no` is for programs that ask for confirmation of all operations but need it for
/// one-sided ones only, as MPICH and Intel MPI do (see MPICH's `ofi_init.c`).
fn confirms_sends(lookup: impl Fn(&str) -> Option<String>) -> Result<bool, SettingError> {
    Ok(settings::confirm_sends(&lookup(settings::CONFIRM_SENDS).unwrap_or_default())?)
}

/// `fi_domain`.
///
/// # Errors
/// `FI_EINVAL`: a null argument, or an invalid setting in the environment.
///
/// # Safety
/// Called through libfabric with valid arguments.
pub(crate) unsafe fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: libfabric's caller promises a live fabric.
    let (fabric, api) = unsafe { fabric_behind(fabric) }?;
    // SAFETY: the caller passes a valid fi_info.
    let info = unsafe { info.as_ref() }.ok_or(EINVAL)?;
    // SAFETY: its attributes are null or valid.
    let attr = unsafe { info.domain_attr.as_ref() }.ok_or(EINVAL)?;
    let mr_mode = attr.mr_mode;
    // Control operations (addresses, registration) never need the thread: they are done when their calls return.
    let driver = (attr.data_progress == FI_PROGRESS_AUTO).then(Driver::start).transpose()?;
    let (config, waiting, confirms_sends) = configuration()?;
    let domain = Domain {
        api,
        regions: Arc::default(),
        virtual_addresses: mr_mode & (FI_MR_BASIC | FI_MR_VIRT_ADDR) != 0,
        provider_keys: mr_mode & (FI_MR_BASIC | FI_MR_PROV_KEY) != 0,
        format: Format::of(info.addr_format, config.ipv6),
        config,
        waiting,
        confirms_sends,
        driver,
        _fabric: fabric.clone(),
    };
    log::note(format_args!("domain opened, API {}.{}, mr_mode {mr_mode:#x}", api >> 16, api & 0xFFFF));
    let fid = fid { fclass: FI_CLASS_DOMAIN, context, ops: &FID_OPS };
    // SAFETY: the caller passes a place for the result.
    unsafe { write_out(out, hand_out(fid_domain { fid, ops: &OPS, mr: &mr::OPS }, Arc::new(domain))) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let object: &Object<Arc<Domain>> = unsafe { behind(fid) }?;
        if Arc::strong_count(&object.inner) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: closing is the last use of an object.
        unsafe { take_back::<Arc<Domain>>(fid) }.map(drop)
    })
    .code()
}
