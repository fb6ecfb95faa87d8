//! libfabric's binary interface as a provider sees it: the structures of [`libfabric::abi`], and the border.
//!
//! The structures have the oldest layout in use. We read only its fields from a caller; structures that we allocate for
//! a caller are zeroed and longer (see [`border::allocate`]). Operation tables carry their size, which shows a newer
//! core which entries exist.
//!
//! Nothing here imports a symbol: the core calls us through `fi_prov_ini` and tables, and we never call back.

pub(crate) mod border;

pub(crate) use libfabric::abi::{constants, events, info, objects, transfers};
