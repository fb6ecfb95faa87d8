use super::*;
use crate::abi::constants::FI_WAIT_NONE;
use crate::bound::tests::Noted;

fn entry(context: usize, error: Option<Errno>) -> CompletionEntry {
    let error = error.map(|errno| Box::new(Detail { errno, overflow: 3, text: "site a: why".into() }));
    CompletionEntry { context, flags: 0, len: 0, buf: 0, data: 0, tag: 0, source: FI_ADDR_NOTAVAIL, error }
}

#[test]
fn a_text_goes_where_the_caller_says_and_no_text_nowhere() {
    let mut room = [7u8; 8];
    // A leftover pointer from a caller that does not know about error texts.
    let nowhere = 0x10 as *mut c_void;
    for (text, place, length, expected) in
        [("", nowhere, 99, 0), ("why", room.as_mut_ptr().cast(), 8, 4), ("", room.as_mut_ptr().cast(), 8, 0)]
    {
        // SAFETY: zeros are a valid value of this plain structure.
        let mut out: fi_cq_err_entry_1_20 = unsafe { std::mem::zeroed() };
        let head: *mut fi_cq_err_entry = (&raw mut out).cast();
        let broken = entry(1, Some(crate::errno::ENOMSG));
        let text = CString::new(text).unwrap();
        // SAFETY: `out` is of this version, and `place` is valid wherever there is a text.
        unsafe {
            ((*head).err_data, (*head).err_data_size) = (place, length);
            put_error(head, version(2, 5), &broken, broken.error.as_deref().unwrap(), &text);
            assert_eq!(((*head).err_data, (*head).err_data_size), (place, expected));
        }
    }
    assert_eq!(&room, b"why\0\x07\x07\x07\x07");
}

#[test]
fn nobody_naps_with_completions_to_read() {
    let cq = Cq {
        bound: Bound::default(),
        entry_size: 8,
        api: version(2, 5),
        queue: Mutex::default(),
        count: AtomicUsize::new(0),
        signalled: AtomicBool::new(false),
        wait: WaitObject::new(FI_WAIT_NONE).unwrap(),
        _domain: Arc::new(Domain::for_tests()),
    };
    let noted = Arc::new(Noted::default());
    cq.bound.add(noted.clone());
    assert_eq!(cq.read(1, true, |_, _| ()), Err(EAGAIN));
    (0..10).for_each(|context| cq.push(entry(context, None)));
    (0..10).for_each(|_| assert_eq!(cq.read(1, true, |_, _| ()), Ok(1)));
    assert_eq!(cq.read(1, true, |_, _| ()), Err(EAGAIN));
    assert_eq!(*noted.polls.lock().unwrap(), [true, false, true]);
}

#[test]
fn an_error_stops_reading_until_it_is_taken() {
    let mut queue = CompletionQueue::default();
    let mut seen = Vec::new();
    let mut give = |index: usize, entry: &CompletionEntry| seen.push((index, entry.context));
    assert_eq!(queue.take(4, &mut give), Err(EAGAIN));
    queue.entries.extend([entry(1, None), entry(2, None), entry(3, Some(crate::errno::ETRUNC)), entry(4, None)]);
    assert_eq!(queue.take(1, &mut give), Ok(1));
    assert_eq!(queue.take(4, &mut give), Ok(1), "up to the error");
    assert_eq!(queue.take(4, &mut give), Err(EAVAIL));
    assert_eq!(queue.take(4, &mut give), Err(EAVAIL));
    queue.entries.pop_front();
    assert_eq!(queue.take(4, &mut give), Ok(1));
    assert_eq!(seen, [(0, 1), (0, 2), (0, 4)]);
}
