//! Standard input of a node's ranks: queued from the launcher's message until the ranks' pipes take it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::rank::Feed;
use job::message::InputTo;

/// The feeds of the node's ranks that get standard input.
#[derive(Debug, Default)]
pub(super) struct Inputs(Vec<Input>);

#[derive(Debug)]
struct Input {
    /// The rank's number on the node.
    local: u32,
    /// `None` after the end of the file.
    sender: Option<mpsc::UnboundedSender<Arc<[u8]>>>,
    /// Taken when the rank starts.
    feed: Option<Feed>,
}

impl Inputs {
    /// The feeds of `count` ranks, of which the first is rank `first`.
    pub(super) fn new(to: InputTo, first: u32, count: u32) -> Inputs {
        let locals = (0..count).filter(|local| to.reaches(first + local));
        let inputs = locals.map(|local| {
            let (sender, feed) = mpsc::unbounded_channel();
            Input { local, sender: Some(sender), feed: Some(feed) }
        });
        Inputs(inputs.collect())
    }

    /// The feed of a rank that is about to start. `None`: its standard input is empty.
    pub(super) fn take(&mut self, local: u32) -> Option<Feed> {
        self.0.iter_mut().find(|input| input.local == local)?.feed.take()
    }

    /// Passes the next bytes on. Empty means the end of the file.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        let bytes: Arc<[u8]> = bytes.into();
        for input in &mut self.0 {
            if bytes.is_empty() {
                input.sender = None;
            } else if let Some(sender) = &input.sender {
                // A failed send means that the rank has ended or closed its standard input.
                let _ = sender.send(bytes.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_with_input_gets_all_of_it_and_then_the_end() {
        let mut inputs = Inputs::new(InputTo::All, 4, 2);
        inputs.push(b"one".to_vec());
        let mut feeds = [inputs.take(0).unwrap(), inputs.take(1).unwrap()];
        assert!(inputs.take(1).is_none() && inputs.take(2).is_none());
        inputs.push(b"two".to_vec());
        inputs.push(Vec::new());
        inputs.push(b"late".to_vec());
        for feed in &mut feeds {
            let got: Vec<_> = std::iter::from_fn(|| feed.blocking_recv()).map(|bytes| bytes.to_vec()).collect();
            assert_eq!(got, [b"one".to_vec(), b"two".to_vec()]);
        }
    }

    #[test]
    fn a_single_rank_gets_it() {
        let mut inputs = Inputs::new(InputTo::Rank(5), 4, 2);
        assert!(inputs.take(0).is_none() && inputs.take(1).is_some());
        assert!(Inputs::new(InputTo::Rank(9), 4, 2).take(0).is_none());
    }
}
