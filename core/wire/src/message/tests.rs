use super::*;
use proptest::prelude::*;

fn survives(message: Message, following: u32) {
    let encoded = message.encode(following.into());
    let length = encoded.as_slice().len();
    assert_eq!(Message::decode(encoded.as_slice(), length as u32 + following), Ok((message, length)));
}

proptest! {
    #[test]
    fn starts_survive(
        id: u32, tagged: bool, tag: u64, here in 0u32..1_000_000, more: u32, rest: u32, data: Option<u64>,
        wants_done: bool,
    ) {
        let promised = u64::from(here) + u64::from(more);
        let total = promised + u64::from(rest);
        survives(Message::Start { id, tagged, tag, total, promised, data, wants_done }, here);
    }

    #[test]
    fn others_survive(
        id: u32, key: u64, address: u64, total: u64, data: Option<u64>, count: u32, datatype: u8, operation: u8,
        reply: bool,
    ) {
        survives(Message::More { id, offset: total, reply }, 5);
        survives(Message::Go { id, limit: total }, 0);
        survives(Message::Done { id, status: Status::OutOfBounds }, 0);
        survives(Message::Write { id, key, address, total, data }, 7);
        survives(Message::Read { id, key, address, total }, 0);
        for form in [AtomicForm::Write, AtomicForm::Fetch, AtomicForm::Compare] {
            survives(Message::Atomic { id, key, address, datatype, operation, form, count }, 8);
        }
        survives(Message::Fetched { id, status: Status::Gone }, 8);
        survives(Message::Credit { bytes: total }, 0);
        survives(Message::Ready { key, bytes: total }, 0);
        survives(Message::Share { key, offset: address, total }, count);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, frame_length: u32) {
        let _ = Message::decode(&bytes, frame_length);
    }
}

#[test]
fn a_short_tagged_message_costs_sixteen_bytes() {
    let start = Message::Start { id: 1, tagged: true, tag: 2, total: 8, promised: 8, data: None, wants_done: false };
    assert_eq!(start.encode(8).as_slice().len(), 16);
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let start = Message::Start { id: 1, tagged: true, tag: 2, total: 4, promised: 8, data: None, wants_done: false };
    assert!(matches!(Message::decode(start.encode(0).as_slice(), 32), Err(WireError::Invalid { .. })));
}
