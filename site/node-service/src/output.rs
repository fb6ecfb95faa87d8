//! What a started program prints: its first bytes, or its last ones, while it is read to its end.

use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long what a program has printed may take to be read after its end, while others still have its pipe open.
const LAST: Duration = Duration::from_millis(500);

/// What a program prints.
pub(crate) struct Printed {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Printed {
    /// Reads a pipe to its end, and keeps its `first` bytes, or its `last` ones if there are any.
    pub(crate) fn read(pipe: Option<impl Read + Send + 'static>, first: usize, last: usize) -> Printed {
        let (kept, (tell, ended)) = (Arc::new(Mutex::new(Vec::new())), channel());
        let keep = kept.clone();
        let read = move || {
            let (Some(mut pipe), mut buffer) = (pipe, [0; 4096]) else { return };
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                let room = if last > 0 { count } else { count.min(first - kept.len()) };
                kept.extend_from_slice(&buffer[..room]);
                let over = if last > 0 { kept.len().saturating_sub(last) } else { 0 };
                kept.drain(..over);
            }
            // If nobody waits any more, nothing is lost.
            let _ = tell.send(());
        };
        // Without a thread the program's pipe is closed, and its output lost.
        let _ = std::thread::Builder::new().name("output".into()).spawn(read);
        Printed { kept, ended }
    }

    /// What was kept, after the program has ended.
    pub(crate) fn text(&self) -> String {
        // Others may still have the pipe open.
        let _ = self.ended.recv_timeout(LAST);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}
