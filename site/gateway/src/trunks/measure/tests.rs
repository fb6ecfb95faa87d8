use super::*;

fn at(start: Instant, milliseconds: u64) -> Instant {
    start + Duration::from_millis(milliseconds)
}

#[test]
fn the_later_half_counts() {
    let start = Instant::now();
    let mut transfer = TimedTransfer::new(JobId(1), u64::MAX, start);
    assert_eq!(transfer.rate(), None, "nothing was acknowledged");
    transfer.sent = 100;
    // A slow beginning, then ten frames every ten milliseconds.
    (0..4).for_each(|_| transfer.acknowledged(at(start, 400)));
    assert_eq!(transfer.rate(), Some((4 * FRAME, Duration::from_millis(400))), "nothing better is known");
    for turn in 1..=5 {
        (0..10).for_each(|_| transfer.acknowledged(at(start, 400 + turn * 10)));
    }
    assert_eq!((transfer.acknowledged, transfer.marks.len()), (54, 7));
    assert_eq!(transfer.rate(), Some((30 * FRAME, Duration::from_millis(30))));
}

#[test]
fn no_more_is_acknowledged_than_was_sent() {
    let start = Instant::now();
    let mut transfer = TimedTransfer::new(JobId(1), u64::MAX, start);
    transfer.sent = 2;
    (1..1000).for_each(|time| transfer.acknowledged(at(start, time)));
    assert_eq!((transfer.acknowledged, transfer.marks.len()), (2, 3));
}

#[test]
fn one_measurement_at_a_time_and_results_of_strangers_are_ignored() {
    let measuring = &crate::tests::gateway("h:1").trunks.measuring;
    let turn = measuring.turn();
    // A refused request does not take the turn from its holder.
    assert!(turn.is_some() && measuring.turn().is_none() && measuring.turn().is_none());
    let (answer, mut answered) = oneshot::channel();
    let (from, to) = ("b".to_owned(), "c".to_owned());
    measuring.order.replace(Some(MeasurementOrder { trunk: TrunkId(1), from, to, answer }));
    measuring.measured(TrunkId(0), "b", "c", Measurement::Busy);
    measuring.measured(TrunkId(1), "b", "a", Measurement::Busy);
    assert!(answered.try_recv().is_err());
    measuring.measured(TrunkId(1), "b", "c", Measurement::Busy);
    measuring.measured(TrunkId(1), "b", "c", Measurement::Busy);
    assert_eq!(answered.try_recv(), Ok(Measurement::Busy));
    measuring.acknowledged(JobId(1), Instant::now());
    drop(turn);
    assert!(measuring.turn().is_some());
}
