//! libfabric's C interface, for both sides.
//!
//! [`abi`] is the binary layout, which our provider implements and a consumer calls. The rest is that consumer: it
//! finds a libfabric ([`Libfabric`]) that offers the provider chosen by a site ([`ProviderOffer`]) and opens an
//! endpoint on it ([`Port`]) that carries frames. It knows nothing about the content of frames, nor about MPI. Start
//! reading at [`port`].
//!
//! This code itself runs inside a libfabric provider, called by an MPI library that uses libfabric. Two rules follow.
//! [`library`] decides which libfabric to use. And we change no environment variable to choose a provider: the process
//! has other threads that read it, and MPI's choice depends on it. [`offer`] describes the alternative.

#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod abi;
mod call;
mod frames;
pub mod library;
pub mod offer;
pub mod port;

pub use call::Fault;
pub use library::{FindError, Libfabric};
pub use offer::ProviderOffer;
pub use port::{PeerAddress, Port, PortEvent, Posted, Staged};
