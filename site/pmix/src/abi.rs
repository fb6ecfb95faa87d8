//! The part of libpmix's C interface that this crate uses.
//!
//! Layouts and numbers are from `pmix_common.h` and `pmix_server.h` of 4.0; they are the same in 4.1, 4.2, 5.0, 6.0 and
//! 6.1. Later versions only add pointers to the union (within its size), functions at the end of the module, and status
//! codes.

use std::ffi::{c_char, c_int, c_void};

pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const ERROR: Status = -1;
pub(crate) const ERR_NOT_FOUND: Status = -46;
pub(crate) const ERR_NOT_SUPPORTED: Status = -47;
/// The operation completed before the call returned; there will be no callback.
pub(crate) const OPERATION_SUCCEEDED: Status = -157;

pub(crate) const GROUP_CONSTRUCT: c_int = 0;

pub(crate) const RANK_WILDCARD: u32 = u32::MAX - 1;

/// Longest namespace in bytes, without the NUL.
pub(crate) const MAX_NAMESPACE: usize = 255;
/// Longest key in bytes, without the NUL.
pub(crate) const MAX_KEY: usize = 511;

/// `pmix_data_type_t`.
pub(crate) mod kind {
    pub(crate) const BOOL: u16 = 1;
    pub(crate) const STRING: u16 = 3;
    pub(crate) const SIZE: u16 = 4;
    pub(crate) const UINT16: u16 = 13;
    pub(crate) const UINT32: u16 = 14;
    pub(crate) const PROC: u16 = 22;
    pub(crate) const INFO: u16 = 24;
    pub(crate) const BYTE_OBJECT: u16 = 27;
    pub(crate) const DATA_ARRAY: u16 = 39;
    pub(crate) const PROC_RANK: u16 = 40;
}

/// Attribute names.
pub(crate) mod key {
    use std::ffi::CStr;

    pub(crate) const SERVER_TMPDIR: &CStr = c"pmix.srvr.tmpdir";
    pub(crate) const SYSTEM_TMPDIR: &CStr = c"pmix.sys.tmpdir";
    pub(crate) const SERVER_NSPACE: &CStr = c"pmix.srv.nspace";
    pub(crate) const SERVER_RANK: &CStr = c"pmix.srv.rank";
    pub(crate) const SERVER_TOOL_SUPPORT: &CStr = c"pmix.srvr.tool";
    pub(crate) const IOF_LOCAL_OUTPUT: &CStr = c"pmix.iof.local";
    pub(crate) const HOSTNAME: &CStr = c"pmix.hname";
    pub(crate) const JOBID: &CStr = c"pmix.jobid";
    pub(crate) const JOB_SIZE: &CStr = c"pmix.job.size";
    pub(crate) const JOB_NUM_APPS: &CStr = c"pmix.job.napps";
    pub(crate) const UNIV_SIZE: &CStr = c"pmix.univ.size";
    pub(crate) const MAX_PROCS: &CStr = c"pmix.max.size";
    pub(crate) const NUM_NODES: &CStr = c"pmix.num.nodes";
    pub(crate) const NODE_MAP: &CStr = c"pmix.nmap";
    pub(crate) const PROC_MAP: &CStr = c"pmix.pmap";
    pub(crate) const NODE_SIZE: &CStr = c"pmix.node.size";
    pub(crate) const LOCAL_SIZE: &CStr = c"pmix.local.size";
    pub(crate) const LOCAL_PEERS: &CStr = c"pmix.lpeers";
    pub(crate) const TMPDIR: &CStr = c"pmix.tmpdir";
    pub(crate) const NSDIR: &CStr = c"pmix.nsdir";
    pub(crate) const PROCDIR: &CStr = c"pmix.pdir";
    pub(crate) const TDIR_RMCLEAN: &CStr = c"pmix.tdir.rmclean";
    pub(crate) const PROC_DATA: &CStr = c"pmix.pdata";
    pub(crate) const RANK: &CStr = c"pmix.rank";
    pub(crate) const GLOBAL_RANK: &CStr = c"pmix.grank";
    pub(crate) const LOCAL_RANK: &CStr = c"pmix.lrank";
    pub(crate) const NODE_RANK: &CStr = c"pmix.nrank";
    pub(crate) const NODEID: &CStr = c"pmix.nodeid";
    pub(crate) const APPNUM: &CStr = c"pmix.appnum";
    pub(crate) const APP_INFO_ARRAY: &CStr = c"pmix.app.arr";
    pub(crate) const APP_SIZE: &CStr = c"pmix.app.size";
    pub(crate) const APP_LEADER: &CStr = c"pmix.aldr";
    pub(crate) const GROUP_MEMBERSHIP: &CStr = c"pmix.grp.mbrs";
    pub(crate) const GROUP_CONTEXT_ID: &CStr = c"pmix.grp.ctxid";
    pub(crate) const GROUP_ENDPT_DATA: &CStr = c"pmix.grp.endpt";
    pub(crate) const GROUP_LOCAL_ONLY: &CStr = c"pmix.grp.lcl";
}

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Proc {
    pub namespace: [c_char; MAX_NAMESPACE + 1],
    pub rank: u32,
}

/// `pmix_data_array_t`.
#[repr(C)]
pub(crate) struct DataArray {
    pub kind: u16,
    pub size: usize,
    pub array: *const c_void,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ByteObject {
    pub bytes: *const c_char,
    pub size: usize,
}

/// The union in `pmix_value_t`. Its largest member is `pmix_envar_t`: two pointers and a char.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    pub flag: bool,
    pub string: *const c_char,
    pub size: usize,
    pub bytes: ByteObject,
    pub uint16: u16,
    pub uint32: u32,
    pub array: *const DataArray,
    pub room: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Value {
    pub kind: u16,
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub key: [c_char; MAX_KEY + 1],
    pub flags: u32,
    pub value: Value,
}

/// `pmix_app_t`.
#[repr(C)]
pub(crate) struct App {
    pub command: *const c_char,
    pub arguments: *const *const c_char,
    pub environment: *const *const c_char,
    pub directory: *const c_char,
    pub count: c_int,
    pub infos: *const Info,
    pub info_count: usize,
}

pub(crate) type OpCallback = unsafe extern "C" fn(Status, *mut c_void);
pub(crate) type ReleaseCallback = unsafe extern "C" fn(*mut c_void);
pub(crate) type ModexCallback =
    unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, Option<ReleaseCallback>, *mut c_void);
pub(crate) type InfoCallback =
    unsafe extern "C" fn(Status, *mut Info, usize, *mut c_void, Option<ReleaseCallback>, *mut c_void);
pub(crate) type SpawnCallback = unsafe extern "C" fn(Status, *const c_char, *mut c_void);
pub(crate) type DmodexResponse = unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void);

pub(crate) type ClientFn = unsafe extern "C" fn(*const Proc, *mut c_void, Option<OpCallback>, *mut c_void) -> Status;
pub(crate) type Client2Fn =
    unsafe extern "C" fn(*const Proc, *mut c_void, *mut Info, usize, Option<OpCallback>, *mut c_void) -> Status;
pub(crate) type AbortFn = unsafe extern "C" fn(
    *const Proc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut Proc,
    usize,
    Option<OpCallback>,
    *mut c_void,
) -> Status;
pub(crate) type FenceFn = unsafe extern "C" fn(
    *const Proc,
    usize,
    *const Info,
    usize,
    *mut c_char,
    usize,
    Option<ModexCallback>,
    *mut c_void,
) -> Status;
pub(crate) type DmodexFn =
    unsafe extern "C" fn(*const Proc, *const Info, usize, Option<ModexCallback>, *mut c_void) -> Status;
/// Publish: the process, its information, and the callback.
pub(crate) type PublishFn =
    unsafe extern "C" fn(*const Proc, *const Info, usize, Option<OpCallback>, *mut c_void) -> Status;
/// Look up or unpublish: the process, the names, information, and the callback. For looking up, the real callback has
/// another type; it is never called.
pub(crate) type NamesFn =
    unsafe extern "C" fn(*const Proc, *mut *mut c_char, *const Info, usize, Option<OpCallback>, *mut c_void) -> Status;
pub(crate) type SpawnFn = unsafe extern "C" fn(
    *const Proc,
    *const Info,
    usize,
    *const App,
    usize,
    Option<SpawnCallback>,
    *mut c_void,
) -> Status;
/// The first argument is `pmix_group_operation_t`, an enumeration: [`GROUP_CONSTRUCT`] or not.
pub(crate) type GroupFn = unsafe extern "C" fn(
    c_int,
    *mut c_char,
    *const Proc,
    usize,
    *const Info,
    usize,
    Option<InfoCallback>,
    *mut c_void,
) -> Status;
/// A function that the module leaves out; the library then answers its clients "not supported".
pub(crate) type Absent = Option<unsafe extern "C" fn()>;

/// `pmix_server_module_t`, with room for functions that later versions append.
#[repr(C)]
pub(crate) struct Module {
    pub client_connected: Absent,
    pub client_finalized: Option<ClientFn>,
    pub abort: Option<AbortFn>,
    pub fence_nb: Option<FenceFn>,
    pub direct_modex: Option<DmodexFn>,
    pub publish: Option<PublishFn>,
    pub lookup: Option<NamesFn>,
    pub unpublish: Option<NamesFn>,
    pub spawn: Option<SpawnFn>,
    pub connect_to_stdin: [Absent; 16],
    pub group: Option<GroupFn>,
    pub fabric: Absent,
    pub client_connected2: Option<Client2Fn>,
    pub later: [Absent; 36],
}

/// The functions of the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub error_string: unsafe extern "C" fn(Status) -> *const c_char,
    pub server_init: unsafe extern "C" fn(*mut Module, *mut Info, usize) -> Status,
    pub server_finalize: unsafe extern "C" fn() -> Status,
    pub register_nspace:
        unsafe extern "C" fn(*const c_char, c_int, *mut Info, usize, Option<OpCallback>, *mut c_void) -> Status,
    pub register_client: unsafe extern "C" fn(
        *const Proc,
        libc::uid_t,
        libc::gid_t,
        *mut c_void,
        Option<OpCallback>,
        *mut c_void,
    ) -> Status,
    pub setup_fork: unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> Status,
    pub dmodex_request: unsafe extern "C" fn(*const Proc, Option<DmodexResponse>, *mut c_void) -> Status,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!((size_of::<Proc>(), offset_of!(Proc, rank)), (260, 256));
        assert_eq!((size_of::<DataArray>(), offset_of!(DataArray, array)), (24, 16));
        assert_eq!((size_of::<Value>(), offset_of!(Value, data)), (32, 8));
        assert_eq!((size_of::<Info>(), offset_of!(Info, flags), offset_of!(Info, value)), (552, 512, 520));
        assert_eq!((size_of::<App>(), offset_of!(App, count), offset_of!(App, info_count)), (56, 32, 48));
        let slot = size_of::<Absent>();
        assert_eq!(offset_of!(Module, direct_modex), 4 * slot);
        assert_eq!(offset_of!(Module, lookup), 6 * slot);
        assert_eq!(offset_of!(Module, spawn), 8 * slot);
        assert_eq!(offset_of!(Module, group), 25 * slot);
        assert_eq!(offset_of!(Module, client_connected2), 27 * slot);
    }
}
