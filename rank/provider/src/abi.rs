//! libfabric's binary interface as a provider sees it: the structures of [`libfabric::abi`], and the border.
//!
//! They are the oldest layout in use: that is all we read from a caller, and what we allocate for a caller is zeroed
//! and longer (see [`border::allocate`]). Operation tables carry their size, which tells a newer core which entries
//! exist.
//!
//! Nothing here imports a symbol: the core calls us through `fi_prov_ini` and tables, and we never call back.

pub(crate) mod border;

pub(crate) use libfabric::abi::{constants, events, info, objects, transfers};
