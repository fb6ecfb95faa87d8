//! The libfabric provider: libfabric's C ABI in front of [`Endpoint`](::endpoint::Endpoint).
//!
//! libfabric's core loads the provider through `FI_PROVIDER_PATH`, calls [`fi_prov_ini`], and reaches all other
//! functions through the tables that it returns. This crate owns the ABI (`abi`), negotiation (`info`), address
//! vectors, completion queues, counters and the translation of calls to operations. It knows nothing of matching,
//! protocols or links. There is one file per libfabric object: start reading at `endpoint`.
//!
//! Environment: the variables of [`Config`](::endpoint::Config), and
//! - `LANDBRIDGE_SECRET_FD`: the descriptor of a file with the job's secret.
//! - `LANDBRIDGE_SPIN`: time to poll before a nap, in microseconds, or `always`.
//! - `LANDBRIDGE_CONFIRM_SENDS`: with `no`, a send completes when it has been sent, even on an endpoint opened for
//!   confirmed delivery.
//! - `LANDBRIDGE_LOG_FILE`: a file for the log; by default nothing is logged.

#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod atomic;
mod av;
mod bound;
mod cntr;
mod collectives_door;
mod cq;
mod domain;
mod driver;
mod endpoint;
mod eq;
mod errno;
#[path = "fabric.rs"]
mod fabric_object;
mod info;
mod log;
mod mr;
mod msg;
mod opened;
mod progress;
mod rma;
mod secret;
mod setting;
mod tagged;
mod transfer;
mod wait_fd;
mod waitable;

use std::ffi::c_void;
use std::ptr::null_mut;

use abi::constants::version;
use abi::info::fi_provider;

/// Our own version: 0.1.
const VERSION: u32 = version(0, 1);

/// API version we claim. libfabric refuses a provider that claims less than the application's version. A higher claim
/// is harmless: structures are compatible upwards (see `abi`).
const CLAIMED: u32 = version(9, 99);

/// Describes the provider; libfabric's core calls this first.
///
/// Safe to call from C at any time. Each call returns a new description, which lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    // Before the program starts anything that would inherit it.
    secret::take();
    let provider = fi_provider {
        version: VERSION,
        fi_version: CLAIMED,
        context: [null_mut(); 4],
        name: c"landbridge".as_ptr(),
        getinfo: info::getinfo,
        fabric: fabric_object::open,
        cleanup,
    };
    Box::into_raw(Box::new(provider)).cast()
}

/// There is nothing to clean up: everything belongs to objects that their users close.
unsafe extern "C" fn cleanup() {}
