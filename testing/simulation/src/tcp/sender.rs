use super::{Segment, TcpSettings};
use crate::time::Time;

/// Timeout in seconds before the first round trip is measured (RFC 6298, 2.1).
const FIRST_TIMEOUT: f64 = 1.0;
const GREATEST_TIMEOUT: f64 = 60.0;
/// The number of duplicate acknowledgements that signals a loss.
const DUPLICATES: u32 = 3;

/// The sending half of a connection: slow start, congestion avoidance, NewReno's fast retransmit and recovery (RFC
/// 5681, RFC 6582), limited transmit (RFC 3042), timeouts with backoff (RFC 6298).
///
/// Simplified: connections are open from the start and never close; timestamps measure the round trip of every
/// acknowledged segment (RFC 7323); the receiver's window is constant; no SACK, no ECN, no Nagle, no delayed
/// acknowledgements. The window grows only while it limits the sender.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    settings: TcpSettings,
    /// First unacknowledged byte.
    first: u64,
    /// Next byte to send; less than `most` after a timeout.
    next: u64,
    /// One beyond the last byte ever sent.
    most: u64,
    /// One beyond the last byte that the application has written.
    end: u64,
    /// Congestion window in bytes.
    window: f64,
    threshold: f64,
    duplicates: u32,
    /// The byte at which the current fast recovery ends.
    recovery: Option<u64>,
    /// True if a partial acknowledgement has arrived in this recovery.
    is_partial: bool,
    /// End of the bytes sent before the last timeout. Duplicate acknowledgements up to here start no recovery, because
    /// segments sent twice may have caused them.
    ignored_below: Option<u64>,
    resends: bool,
    /// Smoothed round trip and its deviation, in seconds.
    round_trip: Option<(f64, f64)>,
    timeout: f64,
    deadline: Option<Time>,
    last_sent: Time,
    timeouts: u64,
    retransmitted: u64,
}

impl Sender {
    pub(crate) fn new(settings: TcpSettings) -> Sender {
        Sender {
            settings,
            first: 0,
            next: 0,
            most: 0,
            end: 0,
            window: f64::from(settings.initial_segments) * f64::from(settings.segment_bytes),
            threshold: f64::INFINITY,
            duplicates: 0,
            recovery: None,
            is_partial: false,
            ignored_below: None,
            resends: false,
            round_trip: None,
            timeout: FIRST_TIMEOUT,
            deadline: None,
            last_sent: Time::ZERO,
            timeouts: 0,
            retransmitted: 0,
        }
    }

    /// Queues bytes written by the application; the socket's buffer is unlimited.
    pub(crate) fn write(&mut self, bytes: u64) {
        self.end = self.end.saturating_add(bytes);
    }

    /// The time at which to call [`Sender::timed_out`].
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    pub(crate) fn acknowledged_bytes(&self) -> u64 {
        self.first
    }

    /// True if all written bytes have been sent at least once.
    pub(crate) fn is_drained(&self) -> bool {
        self.most == self.end
    }

    /// The numbers of timeouts and of retransmitted segments.
    pub(crate) fn losses(&self) -> (u64, u64) {
        (self.timeouts, self.retransmitted)
    }

    /// The next segment to send now. Call until it returns `None`.
    pub(crate) fn next_segment(&mut self, now: Time) -> Option<Segment> {
        if self.resends {
            self.resends = false;
            let segment = self.cut(self.first, self.most);
            return Some(self.sent(segment, now));
        }
        if self.next >= self.end {
            return None;
        }
        if self.first == self.most && (now - self.last_sent).seconds() > self.timeout {
            self.window = self.window.min(self.initial());
        }
        let limited = if self.recovery.is_none() && self.duplicates < DUPLICATES { self.duplicates } else { 0 };
        let window = (self.window + f64::from(limited) * self.segment()) as u64;
        let limit = self.first + window.min(self.settings.window_bytes);
        let segment = self.cut(self.next, self.end);
        let end = segment.start + u64::from(segment.bytes);
        // A window below one segment must not stop the connection.
        if end > limit && self.next > self.first {
            return None;
        }
        self.next = end;
        Some(self.sent(segment, now))
    }

    /// Handles an acknowledgement of all bytes before `to`. `echo` is the time at which the segment that caused it was
    /// sent.
    pub(crate) fn acknowledged(&mut self, to: u64, echo: Time, now: Time) {
        if to > self.first {
            self.advanced(to, echo, now);
        } else if to == self.first && self.most > self.first {
            self.duplicate();
        }
    }

    /// Handles a retransmission timeout.
    pub(crate) fn timed_out(&mut self, now: Time) {
        self.timeouts += 1;
        // During a recovery many unacknowledged bytes have arrived. Half of all would overshoot again and again.
        self.threshold = if self.recovery.is_some() { self.threshold.min(self.halved()) } else { self.halved() };
        self.window = self.segment();
        self.next = self.first;
        self.recovery = None;
        self.ignored_below = Some(self.most);
        self.resends = false;
        self.duplicates = 0;
        self.timeout = (self.timeout * 2.0).min(GREATEST_TIMEOUT);
        self.deadline = Some(now + Time::from_seconds(self.timeout));
    }

    fn advanced(&mut self, to: u64, echo: Time, now: Time) {
        let acknowledged = (to - self.first) as f64;
        let was_limiting = (self.next - self.first) as f64 + self.segment() > self.window;
        self.first = to;
        self.next = self.next.max(to);
        self.measure((now - echo).seconds());
        let restarts = match self.recovery {
            Some(end) if to >= end => {
                let in_flight = (self.next - self.first) as f64;
                self.window = self.threshold.min(in_flight.max(self.segment()) + self.segment());
                self.recovery = None;
                self.duplicates = 0;
                true
            }
            Some(_) => {
                // Only the first partial acknowledgement restarts the timer (RFC 6582's impatient variant).
                self.resends = true;
                let regained = if acknowledged >= self.segment() { self.segment() } else { 0.0 };
                self.window = (self.window - acknowledged + regained).max(self.segment());
                !std::mem::replace(&mut self.is_partial, true)
            }
            None => {
                self.duplicates = 0;
                if was_limiting && self.window < self.threshold {
                    self.window += acknowledged.min(self.segment());
                } else if was_limiting {
                    self.window += self.segment() * self.segment() / self.window;
                }
                true
            }
        };
        if self.first == self.most {
            self.deadline = None;
        } else if restarts {
            self.deadline = Some(now + Time::from_seconds(self.timeout));
        }
    }

    fn duplicate(&mut self) {
        self.duplicates += 1;
        if self.recovery.is_some() {
            self.window += self.segment();
        } else if self.duplicates == DUPLICATES && self.ignored_below.is_none_or(|below| self.first > below) {
            self.threshold = self.halved();
            self.window = self.threshold + f64::from(DUPLICATES) * self.segment();
            self.recovery = Some(self.most);
            self.is_partial = false;
            self.resends = true;
        }
    }

    /// Half of the bytes in flight, the new threshold after a loss.
    fn halved(&self) -> f64 {
        ((self.most - self.first) as f64 / 2.0).max(2.0 * self.segment())
    }

    fn measure(&mut self, seconds: f64) {
        let (smoothed, deviation) = match self.round_trip {
            None => (seconds, seconds / 2.0),
            Some((smoothed, deviation)) => {
                (smoothed + (seconds - smoothed) / 8.0, deviation + ((smoothed - seconds).abs() - deviation) / 4.0)
            }
        };
        self.round_trip = Some((smoothed, deviation));
        let least = self.settings.least_timeout_seconds;
        self.timeout = (smoothed + (4.0 * deviation).max(0.001)).clamp(least, GREATEST_TIMEOUT);
    }

    fn sent(&mut self, segment: Segment, now: Time) -> Segment {
        let end = segment.start + u64::from(segment.bytes);
        self.retransmitted += u64::from(segment.start < self.most);
        self.most = self.most.max(end);
        self.last_sent = now;
        self.deadline.get_or_insert(now + Time::from_seconds(self.timeout));
        segment
    }

    /// The segment that starts at `start` and ends at `end` or earlier.
    fn cut(&self, start: u64, end: u64) -> Segment {
        Segment { start, bytes: (end - start).min(u64::from(self.settings.segment_bytes)) as u32 }
    }

    fn segment(&self) -> f64 {
        f64::from(self.settings.segment_bytes)
    }

    fn initial(&self) -> f64 {
        f64::from(self.settings.initial_segments) * self.segment()
    }
}
