//! The output of a started program: its first or last bytes, while it is read to its end.

use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit for reading the remaining output after the program's end, while other processes still have its pipe open.
const LAST: Duration = Duration::from_millis(500);

/// The output of a program.
pub(crate) struct Printed {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Printed {
    /// Reads a pipe to its end, and keeps its `first` bytes, or if `last` is not 0 its `last` ones.
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
            // The receiver may be gone; then nothing is lost.
            let _ = tell.send(());
        };
        // Without a thread, the program's pipe is closed and its output lost.
        let _ = std::thread::Builder::new().name("output".into()).spawn(read);
        Printed { kept, ended }
    }

    /// The kept bytes as text, after the program has ended.
    pub(crate) fn text(&self) -> String {
        // Other processes may still have the pipe open.
        let _ = self.ended.recv_timeout(LAST);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}
