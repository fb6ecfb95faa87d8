//! libfabric's objects: each starts with a `fid` and points to tables of operations.
//!
//! Every table has `REFUSING`, in which every operation returns `-FI_ENOSYS`: callers do not check entries for null.

use std::ffi::{c_char, c_int, c_void};

use super::events::{
    fi_atomic_attr, fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_eq_attr, fi_eq_err_entry, fi_mr_attr,
};
use super::info::fi_info;
use super::transfers::{fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma, fi_msg_tagged, iovec};

/// Return value of an operation that is not implemented.
trait NotImplemented {
    const REFUSED: Self;
}

impl NotImplemented for c_int {
    const REFUSED: c_int = -libc::ENOSYS;
}

impl NotImplemented for isize {
    const REFUSED: isize = -(libc::ENOSYS as isize);
}

impl NotImplemented for u64 {
    const REFUSED: u64 = 0;
}

impl NotImplemented for *const c_char {
    const REFUSED: *const c_char = c"not supported".as_ptr();
}

macro_rules! tables {
    ($($table:ident { $($entry:ident($($argument:ty),* $(,)?) -> $result:ty;)* })*) => {$(
        #[repr(C)]
        pub struct $table {
            pub size: usize,
            $(pub $entry: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            pub const REFUSING: $table = {
                $(unsafe extern "C" fn $entry($(_: $argument),*) -> $result {
                    <$result as NotImplemented>::REFUSED
                })*
                $table { size: size_of::<$table>(), $($entry),* }
            };
        }
    )*};
}

type Text = *const c_char;
type Bytes = *const c_void;
type Memory = *mut c_void;
/// Descriptor of a buffer's registration; we need none.
type Desc = *mut c_void;
type Descs = *mut *mut c_void;
type Context = *mut c_void;
/// `fi_addr_t`.
type Addr = u64;

tables! {
    fi_ops {
        close(*mut fid) -> c_int;
        bind(*mut fid, *mut fid, u64) -> c_int;
        control(*mut fid, c_int, Memory) -> c_int;
        ops_open(*mut fid, Text, u64, *mut *mut c_void, Context) -> c_int;
        tostr(*const fid, *mut c_char, usize) -> c_int;
        ops_set(*mut fid, Text, u64, Memory, Context) -> c_int;
    }
    fi_ops_fabric {
        domain(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, Context) -> c_int;
        passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut c_void, Context) -> c_int;
        eq_open(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, Context) -> c_int;
        wait_open(*mut fid_fabric, Memory, *mut *mut c_void) -> c_int;
        trywait(*mut fid_fabric, *mut *mut fid, c_int) -> c_int;
        domain2(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, Context) -> c_int;
    }
    fi_ops_domain {
        av_open(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, Context) -> c_int;
        cq_open(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, Context) -> c_int;
        endpoint(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, Context) -> c_int;
        scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, Context) -> c_int;
        cntr_open(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, Context) -> c_int;
        poll_open(*mut fid_domain, Memory, *mut *mut c_void) -> c_int;
        stx_ctx(*mut fid_domain, Memory, *mut *mut c_void, Context) -> c_int;
        srx_ctx(*mut fid_domain, Memory, *mut *mut fid_ep, Context) -> c_int;
        query_atomic(*mut fid_domain, c_int, c_int, *mut fi_atomic_attr, u64) -> c_int;
        query_collective(*mut fid_domain, c_int, Memory, u64) -> c_int;
        endpoint2(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, Context) -> c_int;
    }
    fi_ops_mr {
        reg(*mut fid, Bytes, usize, u64, u64, u64, u64, *mut *mut fid_mr, Context) -> c_int;
        regv(*mut fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut fid_mr, Context) -> c_int;
        regattr(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int;
    }
    fi_ops_av {
        insert(*mut fid_av, Bytes, usize, *mut Addr, u64, Context) -> c_int;
        insertsvc(*mut fid_av, Text, Text, *mut Addr, u64, Context) -> c_int;
        insertsym(*mut fid_av, Text, usize, Text, usize, *mut Addr, u64, Context) -> c_int;
        remove(*mut fid_av, *mut Addr, usize, u64) -> c_int;
        lookup(*mut fid_av, Addr, Memory, *mut usize) -> c_int;
        straddr(*mut fid_av, Bytes, *mut c_char, *mut usize) -> Text;
        av_set(*mut fid_av, Memory, *mut *mut c_void, Context) -> c_int;
    }
    fi_ops_cq {
        read(*mut fid_cq, Memory, usize) -> isize;
        readfrom(*mut fid_cq, Memory, usize, *mut Addr) -> isize;
        readerr(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize;
        sread(*mut fid_cq, Memory, usize, Bytes, c_int) -> isize;
        sreadfrom(*mut fid_cq, Memory, usize, *mut Addr, Bytes, c_int) -> isize;
        signal(*mut fid_cq) -> c_int;
        strerror(*mut fid_cq, c_int, Bytes, *mut c_char, usize) -> Text;
    }
    fi_ops_cntr {
        read(*mut fid_cntr) -> u64;
        readerr(*mut fid_cntr) -> u64;
        add(*mut fid_cntr, u64) -> c_int;
        set(*mut fid_cntr, u64) -> c_int;
        wait(*mut fid_cntr, u64, c_int) -> c_int;
        adderr(*mut fid_cntr, u64) -> c_int;
        seterr(*mut fid_cntr, u64) -> c_int;
    }
    fi_ops_eq {
        read(*mut fid_eq, *mut u32, Memory, usize, u64) -> isize;
        readerr(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize;
        write(*mut fid_eq, u32, Bytes, usize, u64) -> isize;
        sread(*mut fid_eq, *mut u32, Memory, usize, c_int, u64) -> isize;
        strerror(*mut fid_eq, c_int, Bytes, *mut c_char, usize) -> Text;
    }
    fi_ops_ep {
        cancel(*mut fid, Context) -> isize;
        getopt(*mut fid, c_int, c_int, Memory, *mut usize) -> c_int;
        setopt(*mut fid, c_int, c_int, Bytes, usize) -> c_int;
        tx_ctx(*mut fid_ep, c_int, Memory, *mut *mut fid_ep, Context) -> c_int;
        rx_ctx(*mut fid_ep, c_int, Memory, *mut *mut fid_ep, Context) -> c_int;
        rx_size_left(*mut fid_ep) -> isize;
        tx_size_left(*mut fid_ep) -> isize;
    }
    fi_ops_cm {
        setname(*mut fid, Memory, usize) -> c_int;
        getname(*mut fid, Memory, *mut usize) -> c_int;
        getpeer(*mut fid_ep, Memory, *mut usize) -> c_int;
        connect(*mut fid_ep, Bytes, Bytes, usize) -> c_int;
        listen(Memory) -> c_int;
        accept(*mut fid_ep, Bytes, usize) -> c_int;
        reject(Memory, *mut fid, Bytes, usize) -> c_int;
        shutdown(*mut fid_ep, u64) -> c_int;
        join(*mut fid_ep, Bytes, u64, *mut *mut c_void, Context) -> c_int;
    }
    fi_ops_msg {
        recv(*mut fid_ep, Memory, usize, Desc, Addr, Context) -> isize;
        recvv(*mut fid_ep, *const iovec, Descs, usize, Addr, Context) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        send(*mut fid_ep, Bytes, usize, Desc, Addr, Context) -> isize;
        sendv(*mut fid_ep, *const iovec, Descs, usize, Addr, Context) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        inject(*mut fid_ep, Bytes, usize, Addr) -> isize;
        senddata(*mut fid_ep, Bytes, usize, Desc, u64, Addr, Context) -> isize;
        injectdata(*mut fid_ep, Bytes, usize, u64, Addr) -> isize;
    }
    fi_ops_tagged {
        recv(*mut fid_ep, Memory, usize, Desc, Addr, u64, u64, Context) -> isize;
        recvv(*mut fid_ep, *const iovec, Descs, usize, Addr, u64, u64, Context) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        send(*mut fid_ep, Bytes, usize, Desc, Addr, u64, Context) -> isize;
        sendv(*mut fid_ep, *const iovec, Descs, usize, Addr, u64, Context) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        inject(*mut fid_ep, Bytes, usize, Addr, u64) -> isize;
        senddata(*mut fid_ep, Bytes, usize, Desc, u64, Addr, u64, Context) -> isize;
        injectdata(*mut fid_ep, Bytes, usize, u64, Addr, u64) -> isize;
    }
    fi_ops_rma {
        read(*mut fid_ep, Memory, usize, Desc, Addr, u64, u64, Context) -> isize;
        readv(*mut fid_ep, *const iovec, Descs, usize, Addr, u64, u64, Context) -> isize;
        readmsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        write(*mut fid_ep, Bytes, usize, Desc, Addr, u64, u64, Context) -> isize;
        writev(*mut fid_ep, *const iovec, Descs, usize, Addr, u64, u64, Context) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        inject(*mut fid_ep, Bytes, usize, Addr, u64, u64) -> isize;
        writedata(*mut fid_ep, Bytes, usize, Desc, u64, Addr, u64, u64, Context) -> isize;
        injectdata(*mut fid_ep, Bytes, usize, u64, Addr, u64, u64) -> isize;
    }
    fi_ops_atomic {
        write(*mut fid_ep, Bytes, usize, Desc, Addr, u64, u64, c_int, c_int, Context) -> isize;
        writev(*mut fid_ep, *const fi_ioc, Descs, usize, Addr, u64, u64, c_int, c_int, Context) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_atomic, u64) -> isize;
        inject(*mut fid_ep, Bytes, usize, Addr, u64, u64, c_int, c_int) -> isize;
        readwrite(
            *mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, u64, u64, c_int, c_int, Context,
        ) -> isize;
        readwritev(
            *mut fid_ep, *const fi_ioc, Descs, usize, *mut fi_ioc, Descs, usize, Addr, u64, u64, c_int, c_int, Context,
        ) -> isize;
        readwritemsg(*mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, Descs, usize, u64) -> isize;
        compwrite(
            *mut fid_ep, Bytes, usize, Desc, Bytes, Desc, Memory, Desc, Addr, u64, u64, c_int, c_int, Context,
        ) -> isize;
        compwritev(
            *mut fid_ep, *const fi_ioc, Descs, usize, *const fi_ioc, Descs, usize, *mut fi_ioc, Descs, usize, Addr,
            u64, u64, c_int, c_int, Context,
        ) -> isize;
        compwritemsg(
            *mut fid_ep, *const fi_msg_atomic, *const fi_ioc, Descs, usize, *mut fi_ioc, Descs, usize, u64,
        ) -> isize;
        writevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
        readwritevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
        compwritevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
    }
    fi_ops_collective {
        barrier(*mut fid_ep, Addr, Context) -> isize;
        broadcast(*mut fid_ep, Memory, usize, Desc, Addr, Addr, c_int, u64, Context) -> isize;
        alltoall(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, c_int, u64, Context) -> isize;
        allreduce(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, c_int, c_int, u64, Context) -> isize;
        allgather(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, c_int, u64, Context) -> isize;
        reduce_scatter(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, c_int, c_int, u64, Context) -> isize;
        reduce(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, Addr, c_int, c_int, u64, Context) -> isize;
        scatter(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, Addr, c_int, u64, Context) -> isize;
        gather(*mut fid_ep, Bytes, usize, Desc, Memory, Desc, Addr, Addr, c_int, u64, Context) -> isize;
        msg(*mut fid_ep, Bytes, *mut fi_ioc, Descs, usize, u64) -> isize;
        barrier2(*mut fid_ep, Addr, u64, Context) -> isize;
    }
}

#[repr(C)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const fi_ops,
}

#[repr(C)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *const fi_ops_fabric,
    /// Written by the core after we return the fabric.
    pub api_version: u32,
}

#[repr(C)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}

#[repr(C)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

#[repr(C)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

#[repr(C)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *const fi_ops_cntr,
}

#[repr(C)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

#[repr(C)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const fi_ops_atomic,
    pub collective: *const fi_ops_collective,
}
