use super::*;

const FI_HMEM: u64 = 1 << 47;
const FI_RMA_EVENT: u64 = 1 << 56;
const FI_THREAD_DOMAIN: i32 = 3;
const FI_AV_MAP: i32 = 1;

fn mpich() -> Hints {
    Hints {
        caps: FI_MSG | FI_MULTI_RECV | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA | FI_ATOMIC,
        threading: FI_THREAD_DOMAIN,
        control_progress: FI_PROGRESS_MANUAL,
        data_progress: FI_PROGRESS_MANUAL,
        av_type: FI_AV_TABLE,
        mr_mode: 1 << 9,
        cq_data_size: 4,
        msg_order: FI_ORDER_SAS | 0xF << 36,
        ep_type: FI_EP_RDM,
        tx_op_flags: FI_COMPLETION,
        ..Hints::default()
    }
}

#[test]
fn mpich_gets_what_it_asks_for() {
    let all = negotiate(version(2, 5), None, false).unwrap();
    assert_eq!((all.caps, all.threading, all.av_type), (ALL, FI_THREAD_SAFE, FI_AV_UNSPEC));
    let offer = negotiate(version(2, 5), Some(&mpich()), false).unwrap();
    assert_eq!(offer.caps & mpich().caps, mpich().caps);
    assert_eq!(offer.caps & DIRECTIONS, DIRECTIONS);
    assert_eq!((offer.threading, offer.mr_mode, offer.tx_op_flags), (FI_THREAD_DOMAIN, 0, FI_COMPLETION));
}

#[test]
fn intel_gets_what_it_asks_for() {
    let hints = Hints {
        caps: FI_MSG | FI_MULTI_RECV | FI_TAGGED | ALWAYS,
        addr_format: FI_SOCKADDR_IN,
        threading: FI_THREAD_DOMAIN,
        mr_mode: FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | 1 << 5,
        msg_order: FI_ORDER_SAS,
        ..Hints::default()
    };
    let offer = negotiate(version(1, 5), Some(&hints), false).unwrap();
    assert_eq!((offer.mr_mode, offer.mem_tag_format), (0, FI_TAG_GENERIC));
    assert_eq!(offer.caps & (FI_RMA | FI_DIRECTED_RECV | FI_SOURCE | FI_READ), 0, "not asked for");
    assert_eq!(offer.caps & (FI_SEND | FI_RECV), FI_SEND | FI_RECV);
}

#[test]
fn open_mpi_gets_what_it_asks_for_without_device_memory() {
    let caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | ALWAYS;
    let hints =
        |caps| Hints { caps, threading: FI_THREAD_SAFE, av_type: FI_AV_MAP, cq_data_size: 4, ..Hints::default() };
    assert!(negotiate(version(1, 18), Some(&hints(caps | FI_HMEM)), false).is_err());
    let offer = negotiate(version(1, 18), Some(&hints(caps)), false).unwrap();
    assert_eq!((offer.threading, offer.av_type), (FI_THREAD_SAFE, FI_AV_MAP));
    assert_eq!((offer.control_progress, offer.data_progress), (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL));
}

#[test]
fn what_we_do_not_have_is_refused() {
    let refused: [fn(&mut Hints); 14] = [
        |h| h.msg_order |= 1 << 6, // FI_ORDER_SAR
        |h| h.caps |= FI_RMA_EVENT,
        |h| h.tx_caps |= FI_RECV,
        |h| h.rx_caps |= FI_SEND,
        |h| h.domain_caps |= 1 << 53,
        |h| h.addr_format = 4, // FI_SOCKADDR_IB
        |h| h.ep_type = 1,
        |h| h.protocol = 7,
        |h| h.comp_order = 1,
        |h| h.inject_size = INJECT_SIZE + 1,
        |h| h.rma_iov_limit = 2,
        |h| h.contexts = usize::MAX,
        |h| h.cq_data_size = 9,
        |h| h.mr_mode = FI_MR_BASIC | FI_MR_SCALABLE,
    ];
    for (index, spoil) in refused.iter().enumerate() {
        let mut hints = mpich();
        spoil(&mut hints);
        assert!(negotiate(version(2, 5), Some(&hints), false).is_err(), "case {index}");
    }
}

#[test]
fn registration_modes_of_old_and_new_applications() {
    let mode = |api, asked| mr_mode(api, asked).unwrap();
    assert_eq!(mode(version(1, 4), 0), FI_MR_SCALABLE);
    assert_eq!(mode(version(1, 4), FI_MR_BASIC), FI_MR_BASIC);
    assert_eq!(mode(version(1, 17), FI_MR_BASIC), FI_MR_BASIC);
    assert_eq!(mode(version(1, 17), FI_MR_SCALABLE), FI_MR_SCALABLE);
    assert_eq!(mode(version(1, 17), FI_MR_VIRT_ADDR), 0);
}

#[test]
fn what_belongs_to_a_domain_is_none_of_its_sides() {
    // fi_getinfo(3): FI_LOCAL_COMM and FI_REMOTE_COMM belong to a domain; asking for them on a side does no harm.
    assert_eq!((TX_CAPS & ALWAYS, RX_CAPS & ALWAYS), (0, 0));
    let hints = Hints { tx_caps: FI_MSG | ALWAYS, rx_caps: FI_MSG | ALWAYS, ..mpich() };
    assert!(negotiate(version(2, 5), Some(&hints), false).is_ok());
}

#[test]
fn directions_and_formats() {
    assert_eq!(capabilities(FI_TAGGED | FI_SEND) & DIRECTIONS, FI_SEND);
    assert_eq!(capabilities(FI_RMA | FI_REMOTE_READ) & DIRECTIONS, FI_REMOTE_READ);
    let format = |mem_tag_format| {
        let hints = Hints { mem_tag_format, ..Hints::default() };
        negotiate(version(2, 5), Some(&hints), false).unwrap().mem_tag_format
    };
    assert_eq!(format(1), 1, "FI_TAG_MPI");
    assert_eq!(format(0x00FF_0000_0000_FFFF), FI_TAG_GENERIC);
}

#[test]
fn automatic_progress_and_text_are_given_to_those_who_ask() {
    let all = negotiate(version(2, 5), None, false).unwrap();
    assert_eq!((all.control_progress, all.data_progress), (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL));
    assert_eq!(all.addr_format, Format::Ipv4);
    // ADIOS2's SST asks for automatic control progress only.
    let control = Hints { control_progress: FI_PROGRESS_AUTO, ..mpich() };
    let control = Hints { data_progress: 0, ..control };
    let offer = negotiate(version(1, 5), Some(&control), false).unwrap();
    assert_eq!((offer.control_progress, offer.data_progress), (FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL));
    let both = Hints { data_progress: FI_PROGRESS_AUTO, addr_format: FI_ADDR_STR, ..control };
    let offer = negotiate(version(1, 5), Some(&both), false).unwrap();
    assert_eq!((offer.data_progress, offer.addr_format), (FI_PROGRESS_AUTO, Format::Text));
}
