//! libfabric's error numbers, and the mapping of an endpoint's failures to them.

use std::ffi::c_int;

use endpoint::{Failure, NotBegun};
use memory::RegionError;
use wire::message::Status;

/// A positive error number of `rdma/fi_errno.h`; calls return it negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub c_int);

pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const EACCES: Errno = Errno(libc::EACCES);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EMFILE: Errno = Errno(libc::EMFILE);
pub(crate) const EMSGSIZE: Errno = Errno(libc::EMSGSIZE);
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
pub(crate) const ENOMSG: Errno = Errno(libc::ENOMSG);
pub(crate) const ENODATA: Errno = Errno(libc::ENODATA);
pub(crate) const ENOPROTOOPT: Errno = Errno(libc::ENOPROTOOPT);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
pub(crate) const EADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
pub(crate) const ECONNABORTED: Errno = Errno(libc::ECONNABORTED);
pub(crate) const ECONNRESET: Errno = Errno(libc::ECONNRESET);
pub(crate) const ENETUNREACH: Errno = Errno(libc::ENETUNREACH);
pub(crate) const ETIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
pub(crate) const ECANCELED: Errno = Errno(libc::ECANCELED);
pub(crate) const ETOOSMALL: Errno = Errno(257);
pub(crate) const EOPBADSTATE: Errno = Errno(258);
pub(crate) const EAVAIL: Errno = Errno(259);
pub(crate) const EBADFLAGS: Errno = Errno(260);
pub(crate) const ENOCQ: Errno = Errno(263);
pub(crate) const ETRUNC: Errno = Errno(265);
pub(crate) const ENOKEY: Errno = Errno(266);
pub(crate) const ENOAV: Errno = Errno(267);

/// Conversion to a call's return value.
pub(crate) trait Code {
    /// 0 or the negated error number, as `int` or `ssize_t`.
    fn code<T: From<i16> + std::ops::Neg<Output = T>>(self) -> T;
}

impl Code for Result<(), Errno> {
    fn code<T: From<i16> + std::ops::Neg<Output = T>>(self) -> T {
        match self {
            Ok(()) => T::from(0),
            // All error numbers are below 300.
            Err(errno) => -T::from(errno.0 as i16),
        }
    }
}

/// The error number for an operation that did not begin.
pub(crate) fn of_not_begun(reason: NotBegun) -> Errno {
    match reason {
        NotBegun::Again => EAGAIN,
        NotBegun::NotClaimed => ENOENT,
        NotBegun::TooLong => EMSGSIZE,
        NotBegun::Closed => EOPBADSTATE,
        _ => EINVAL,
    }
}

/// The error number for an operation that failed.
pub(crate) fn of_failure(failure: &Failure) -> Errno {
    match failure {
        Failure::Truncated { .. } => ETRUNC,
        Failure::Cancelled => ECANCELED,
        Failure::NoMessage => ENOMSG,
        Failure::PeerLost { .. } => ECONNRESET,
        Failure::Refused(status) => match status {
            Status::UnknownKey => ENOKEY,
            Status::NotPermitted => EACCES,
            Status::OutOfBounds => EINVAL,
            Status::Unsupported => EOPNOTSUPP,
            Status::Gone => ECONNABORTED,
            Status::Ok => EIO,
        },
        _ => EIO,
    }
}

/// The error number for a registration that failed.
pub(crate) fn of_region(error: RegionError) -> Errno {
    match error {
        RegionError::KeyTaken(_) => ENOKEY,
        RegionError::NotPermitted(_) => EACCES,
        _ => EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_return_the_negated_number() {
        assert_eq!(Ok(()).code::<c_int>(), 0);
        assert_eq!(Err(ETRUNC).code::<isize>(), -265);
        assert_eq!(Err(EAGAIN).code::<c_int>(), -libc::EAGAIN);
    }

    #[test]
    fn a_lost_peer_is_not_mistaken_for_the_users_fault() {
        let refused = |status| of_failure(&Failure::Refused(status));
        assert_eq!(of_failure(&Failure::Truncated { total: 9, kept: 4 }), ETRUNC);
        assert_eq!(refused(Status::UnknownKey), ENOKEY);
        assert_eq!(refused(Status::Gone), ECONNABORTED);
        assert_eq!(of_not_begun(NotBegun::Again), EAGAIN);
        assert_eq!(of_not_begun(NotBegun::UnknownPeer), EINVAL);
    }
}
