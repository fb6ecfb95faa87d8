//! System calls that no safe crate wraps. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::UnshareFlags;

/// From linux/if_packet.h; libc does not have all of them.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Moves the calling, single-threaded process into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    if flags.contains(UnshareFlags::FILES) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the only hazard is UnshareFlags::FILES, which is refused above.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Gives the calling thread the real-time class SCHED_FIFO.
pub(crate) fn realtime(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is to a live local; pid 0 is the calling thread.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_option(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live local of the length given.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A non-blocking packet socket on one interface of this network namespace. It reads and writes whole frames with a
/// virtio header before them, does not receive its own packets, and bypasses the queueing discipline when sending.
pub(crate) fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Protocol 0 receives nothing until `bind` sets a protocol, so no packets of other interfaces arrive before.
    let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1)?;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // SO_RCVBUFFORCE and SO_SNDBUFFORCE need the initial user namespace; otherwise net.core.*mem_max caps the size,
        // which is fine.
        if set_option(&fd, libc::SOL_SOCKET, forced, 64 << 20).is_err() {
            set_option(&fd, libc::SOL_SOCKET, plain, 4 << 20)?;
        }
    }
    let index = rustix::net::netdevice::name_to_index(fd.as_fd(), interface)?;
    // SAFETY: sockaddr_ll is plain old data for which all zeroes is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as libc::c_int;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a live local of the length given.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// Packets that the kernel dropped on this packet socket since the last call.
pub(crate) fn packet_overruns(fd: &OwnedFd) -> io::Result<u32> {
    // struct tpacket_stats: packets, drops.
    let mut statistics = [0u32; 2];
    let mut length = size_of::<[u32; 2]>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, and the length is that of the buffer.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics[1]) }
}
