//! Constants of `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h` and `fi_errno.h`, under libfabric's names.

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

// Capabilities, operation flags and completion flags share one bit space.
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_PEER: u64 = 1 << 43;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_CLAIM: u64 = 1 << 59;
/// A flag of `fi_ep_bind`.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// A flag of address vectors.
pub const FI_SYNC_ERR: u64 = 1 << 58;
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// `FI_EVENT` is `FI_COMPLETION`: asynchronous address vectors and counters.
pub const FI_EVENT: u64 = FI_COMPLETION;
/// Flags of `fi_query_atomic`.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
/// `FI_ORDER_ATOMIC_RAR`, `_RAW`, `_WAR` and `_WAW`.
pub const FI_ORDER_ATOMIC_ALL: u64 = 0xF << 36;

pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;

pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_ADDR_STR: u32 = 9;
/// Since 1.18; either internet family.
pub const FI_SOCKADDR_IP: u32 = 18;

pub const FI_EP_UNSPEC: i32 = 0;
pub const FI_EP_RDM: i32 = 3;
/// The high bit marks a provider's own protocol. Spells "LB".
pub const LANDBRIDGE_PROTOCOL: u32 = 1 << 31 | 0x4C42;
pub const FI_TAG_GENERIC: u64 = 0xAAAA_AAAA_AAAA_AAAA;
/// Since 2.0: smaller values of `mem_tag_format` name a format, the others are bit patterns.
pub const FI_TAG_MAX_FORMAT: u64 = 1 << 16;

pub const FI_AV_UNSPEC: i32 = 0;
pub const FI_AV_TABLE: i32 = 2;
pub const FI_MR_BASIC: i32 = 1;
pub const FI_MR_SCALABLE: i32 = 2;
pub const FI_MR_VIRT_ADDR: i32 = 1 << 4;
pub const FI_MR_PROV_KEY: i32 = 1 << 6;
pub const FI_PROGRESS_AUTO: i32 = 1;
pub const FI_PROGRESS_MANUAL: i32 = 2;
pub const FI_THREAD_SAFE: i32 = 1;
pub const FI_RM_ENABLED: i32 = 2;

pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

pub const FI_WAIT_NONE: i32 = 0;
pub const FI_WAIT_UNSPEC: i32 = 1;
pub const FI_WAIT_FD: i32 = 3;
pub const FI_WAIT_YIELD: i32 = 5;
pub const FI_CQ_FORMAT_UNSPEC: i32 = 0;
pub const FI_CQ_FORMAT_CONTEXT: i32 = 1;
pub const FI_CQ_FORMAT_MSG: i32 = 2;
pub const FI_CQ_FORMAT_DATA: i32 = 3;
pub const FI_CQ_FORMAT_TAGGED: i32 = 4;
pub const FI_CNTR_EVENTS_COMP: i32 = 0;
pub const FI_CNTR_EVENTS_BYTES: i32 = 1;

// Commands of `fi_control`.
pub const FI_GETOPSFLAG: i32 = 2;
pub const FI_SETOPSFLAG: i32 = 3;
pub const FI_GETWAIT: i32 = 5;
pub const FI_ENABLE: i32 = 6;
pub const FI_REFRESH: i32 = 14;
pub const FI_GETWAITOBJ: i32 = 16;

pub const FI_OPT_ENDPOINT: i32 = 0;
pub const FI_OPT_MIN_MULTI_RECV: i32 = 0;
pub const FI_OPT_CM_DATA_SIZE: i32 = 1;
pub const FI_OPT_TX_SIZE: i32 = 6;
pub const FI_OPT_RX_SIZE: i32 = 7;
pub const FI_OPT_CUDA_API_PERMITTED: i32 = 10;
pub const FI_OPT_SHARED_MEMORY_PERMITTED: i32 = 11;
pub const FI_OPT_MAX_MSG_SIZE: i32 = 12;
pub const FI_OPT_MAX_TAGGED_SIZE: i32 = 13;
pub const FI_OPT_MAX_RMA_SIZE: i32 = 14;
pub const FI_OPT_MAX_ATOMIC_SIZE: i32 = 15;
pub const FI_OPT_INJECT_MSG_SIZE: i32 = 16;
pub const FI_OPT_INJECT_TAGGED_SIZE: i32 = 17;
pub const FI_OPT_INJECT_RMA_SIZE: i32 = 18;
pub const FI_OPT_INJECT_ATOMIC_SIZE: i32 = 19;

// Requests of a consumer.
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_CONTEXT2: u64 = 1 << 52;
pub const FI_THREAD_DOMAIN: i32 = 3;
pub const FI_MR_LOCAL: i32 = 1 << 2;
pub const FI_MR_ALLOCATED: i32 = 1 << 5;
pub const FI_MR_ENDPOINT: i32 = 1 << 9;
