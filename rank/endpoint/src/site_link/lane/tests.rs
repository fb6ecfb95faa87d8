use std::sync::Arc;

use memory::Buffer;
use types::{Address, SiteId};

use super::*;
use crate::config::EndpointLimits;
use crate::operation::{Match, RecvOp, UserData};
use crate::protocol::Protocol;

fn protocol() -> Protocol {
    Protocol::new(EndpointLimits::default(), 1 << 20, SiteId(0), Arc::new(Regions::default()))
}

fn start(tag: u64) -> Outgoing {
    let (id, tagged, data) = (tag as u32, true, None);
    Outgoing::header(Message::Start { id, tagged, tag, total: 0, promised: 0, data, wants_done: false })
}

fn frames(lane: &mut Lane, count: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for tag in 0..count {
        let mut bytes = vec![0; 1024];
        let (length, last) = lane.write_frame(77, &mut start(tag), &Regions::default(), &mut bytes);
        assert!(last);
        frames.push(bytes[..length].to_vec());
    }
    frames
}

#[test]
fn frames_reported_out_of_order_are_taken_in_order() {
    let (mut sender, mut receiver, mut protocol) = (Lane::new(1), Lane::new(77), protocol());
    let from = protocol.intern(Address::standalone("10.0.0.1:5".parse().unwrap()));
    for context in 0..6 {
        let matching = Match { from: None, tagged: true, tag: 0, ignore: u64::MAX };
        let user = UserData { context, flags: 0 };
        protocol.receive(RecvOp { matching, buffer: Buffer::empty(), multi: None, user }).unwrap();
    }
    let mut frames = frames(&mut sender, 6);
    let mut bye = vec![0; 1024];
    let length = sender.write_goodbye(77, &mut bye);
    frames.push(bye[..length].to_vec());
    let mut goodbyes = Vec::new();
    for at in [6, 2, 1, 0, 4, 5, 3] {
        assert_eq!(token_of(&frames[at]), Some(77));
        goodbyes.push(receiver.take(&frames[at], from, &mut protocol).unwrap());
    }
    let tags: Vec<u64> = protocol.completions.iter().map(|done| done.tag).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5]);
    assert_eq!(goodbyes, [false, false, false, false, false, false, true]);
}

#[test]
fn nonsense_ends_the_lane_and_nothing_else() {
    let mut protocol = protocol();
    let from = protocol.intern(Address::standalone("10.0.0.1:5".parse().unwrap()));
    let good = frames(&mut Lane::new(1), 1).remove(0);
    let change = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    let old = frames(&mut Lane::new(1), 2).remove(0);
    for frame in [change(11, 9), change(12, 7), change(PREFIX, 99), good[..PREFIX].to_vec()] {
        assert!(Lane::new(77).take(&frame, from, &mut protocol).is_err(), "{frame:?}");
    }
    let mut lane = Lane::new(77);
    assert_eq!(lane.take(&old, from, &mut protocol), Ok(false));
    assert!(lane.take(&old, from, &mut protocol).is_err(), "twice");
    assert_eq!(token_of(&good[..PREFIX - 1]), None);
}
