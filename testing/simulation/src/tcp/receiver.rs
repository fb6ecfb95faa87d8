use super::Segment;

/// The receiving half of a connection. Acknowledges every segment at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiver {
    next: u64,
    /// Ranges beyond `next` that have arrived, ascending and separated by gaps.
    early: Vec<(u64, u64)>,
}

impl Receiver {
    /// The number of bytes that have arrived in order. The receiver acknowledges them, and the application has read
    /// them.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn arrived(&mut self, segment: Segment) {
        let (mut start, mut end) = (segment.start, segment.start + u64::from(segment.bytes));
        if end <= self.next {
            return;
        }
        if start <= self.next {
            self.next = end;
            while let Some(&(first, last)) = self.early.first() {
                if first > self.next {
                    break;
                }
                self.next = self.next.max(last);
                self.early.remove(0);
            }
            return;
        }
        self.early.retain(|&(first, last)| {
            let touches = first <= end && last >= start;
            if touches {
                start = start.min(first);
                end = end.max(last);
            }
            !touches
        });
        let place = self.early.partition_point(|&(first, _)| first < start);
        self.early.insert(place, (start, end));
    }
}
