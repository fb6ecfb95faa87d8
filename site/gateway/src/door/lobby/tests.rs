use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use types::JobId;

use super::*;

const JOB: Credential = Credential::Job(JobId(7));

fn goes(place: &LobbySeat) -> bool {
    pin!(place.must_go()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn seconds(count: u32) -> Duration {
    count * Duration::from_secs(1)
}

/// A lobby with this many places, and the time at which it opens.
fn lobby(most: usize) -> (Rc<Lobby>, Instant) {
    (Rc::new(Lobby::new(most)), Instant::now())
}

/// A connection that has sent its first message without a token.
fn unproven(lobby: &Rc<Lobby>, from: &str, now: Instant) -> Option<LobbySeat> {
    let place = lobby.enter(ip(from), now);
    place.proved_nothing(ip(from), now).then_some(place)
}

fn proven(lobby: &Rc<Lobby>, credential: Credential, now: Instant) -> Option<LobbySeat> {
    let place = lobby.enter(ip("10.0.0.1"), now);
    place.proved(credential, now).then_some(place)
}

fn len(lobby: &Lobby) -> [usize; 3] {
    let rooms = lobby.rooms.borrow();
    [rooms.arrivals.len, rooms.proven.len, rooms.unproven.len]
}

#[test]
fn who_has_most_makes_room_and_others_stay() {
    let (lobby, start) = lobby(5);
    let enter = |from, at| unproven(&lobby, from, start + seconds(at)).unwrap();
    let friends = [enter("10.0.0.1", 0), enter("10.0.0.2", 0)];
    let loris: Vec<LobbySeat> = (0..20).map(|n| enter("192.0.2.66", n)).collect();
    assert_eq!(len(&lobby), [0, 0, 5]);
    let gone: Vec<bool> = loris.iter().map(goes).collect();
    assert_eq!(gone, [[true; 17].as_slice(), &[false; 3]].concat(), "the oldest first");
    // A newcomer from another address replaces even a connection that has just entered.
    let another = enter("10.0.0.3", 17);
    assert!(!friends.iter().chain([&another]).any(goes) && goes(&loris[17]));
    drop((friends, another));
    assert_eq!(len(&lobby), [0, 0, 2]);
    drop(loris);
    assert_eq!(len(&lobby), [0, 0, 0]);
    let rooms = lobby.rooms.borrow();
    assert!([&rooms.arrivals, &rooms.proven, &rooms.unproven].iter().all(|room| room.groups.is_empty()));
}

#[test]
fn who_come_at_once_from_one_address_do_not_push_each_other_out() {
    let (lobby, start) = lobby(5);
    let mut ranks: Vec<Option<LobbySeat>> = (0..8).map(|_| unproven(&lobby, "10.0.0.1", start)).collect();
    assert_eq!(ranks.iter().flatten().count(), 5);
    assert!(!ranks.iter().flatten().any(goes));
    ranks[0] = None;
    assert!(unproven(&lobby, "10.0.0.1", start).is_some(), "a place is free again");
}

#[test]
fn ranks_of_one_job_that_come_at_once_do_not_push_each_other_out() {
    let (lobby, start) = lobby(16);
    let ranks: Vec<Option<LobbySeat>> = (0..20).map(|_| proven(&lobby, JOB, start)).collect();
    assert_eq!((ranks.iter().flatten().count(), len(&lobby)), (14, [0, 14, 0]), "two places are not theirs");
    assert!(!ranks.iter().flatten().any(goes));
}

#[test]
fn who_proves_a_secret_takes_a_place_from_one_who_proves_nothing_at_the_same_address() {
    let (lobby, start) = lobby(16);
    let strangers: Vec<LobbySeat> = (0..16).map(|_| unproven(&lobby, "10.0.0.1", start).unwrap()).collect();
    assert!(unproven(&lobby, "10.0.0.1", start).is_none());
    let honest: Vec<LobbySeat> = (0..14).map(|_| proven(&lobby, JOB, start).unwrap()).collect();
    assert_eq!(len(&lobby), [0, 14, 2]);
    assert!(strangers[..14].iter().all(goes) && !strangers[14..].iter().chain(&honest).any(goes));
    // No stranger takes one back, regardless of the age of the proven connection.
    let later = start + seconds(60);
    let more: Vec<Option<LobbySeat>> = (0..20).map(|_| unproven(&lobby, "10.9.9.9", later)).collect();
    assert!(more.iter().any(Option::is_some) && !honest.iter().any(goes));
}

#[test]
fn one_job_does_not_keep_another_or_the_users_out() {
    let (lobby, start) = lobby(16);
    let greedy: Vec<LobbySeat> = (0..14).map(|_| proven(&lobby, JOB, start).unwrap()).collect();
    let others = [Credential::Job(JobId(8)), Credential::User, Credential::User];
    let others: Vec<LobbySeat> = others.iter().map(|one| proven(&lobby, *one, start).unwrap()).collect();
    assert!(greedy[..3].iter().all(goes) && !greedy[3..].iter().chain(&others).any(goes));
}

#[test]
fn an_arrival_always_gets_in_and_the_oldest_of_the_address_with_most_goes() {
    let (lobby, start) = lobby(16);
    let friend = lobby.enter(ip("10.0.0.2"), start);
    let silent: Vec<LobbySeat> = (0..20).map(|_| lobby.enter(ip("10.0.0.1"), start)).collect();
    assert_eq!(len(&lobby), [4, 0, 0]);
    assert!(silent[..17].iter().all(goes) && !silent[17..].iter().chain([&friend]).any(goes));
    // The replaced connection proves its secret too late.
    assert!(!silent[0].proved(JOB, start) && len(&lobby) == [4, 0, 0]);
    // Silent newcomers take no place from connections that have sent something.
    let proven = proven(&lobby, JOB, start).unwrap();
    let unproven = unproven(&lobby, "10.0.0.1", start).unwrap();
    let _more: Vec<LobbySeat> = (0..20).map(|_| lobby.enter(ip("10.0.0.1"), start + seconds(9))).collect();
    assert!(!goes(&proven) && !goes(&unproven));
}

#[test]
fn one_who_proves_a_secret_later_is_proven_from_then_on() {
    let (lobby, start) = lobby(16);
    let early = unproven(&lobby, "10.0.0.1", start).unwrap();
    assert!(early.proved(JOB, start) && len(&lobby) == [0, 1, 0]);
    drop(early);
    assert_eq!(len(&lobby), [0, 0, 0]);
}

#[test]
fn places_follow_memory_and_descriptors() {
    assert_eq!(places(16 << 20, 2048), 512);
    assert_eq!(places(16 << 20, 1 << 20), 512);
    assert_eq!(places(256 << 20, 1 << 20), 1024);
    assert_eq!(places(1 << 40, u64::MAX), 4096);
    assert_eq!(places(1 << 30, 256), 102, "with a quarter more, half of the descriptors");
}

#[test]
fn addresses_of_one_network_are_one() {
    let (lobby, start) = lobby(4);
    let enter = |from: &str, at| unproven(&lobby, from, start + seconds(at)).unwrap();
    let friend = enter("10.0.0.1", 0);
    let same = enter("::ffff:10.0.0.1", 0);
    let places: Vec<LobbySeat> = (0..9).map(|n| enter(&format!("2001:db8::{n}"), n)).collect();
    assert!(!goes(&friend) && !goes(&same) && places[..7].iter().all(goes) && len(&lobby) == [0, 0, 4]);
}
