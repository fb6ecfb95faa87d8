//! Carries bytes between two gateways that have met, unchanged, both ways, until one of them closes.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use crate::path::Path;
use crate::path::outlet::{LINGER, Outlet};

/// Bytes read at once.
const PIECE: usize = 64 << 10;
/// Number of queued bytes above which the gateway stops reading from the sender.
const BACKED_UP: usize = 16 << 10;
/// Most memory that a pair can make the gateway hold: both directions, each with the spare room of a queue's chunk.
pub(crate) const MOST_HELD: u64 = 2 * (BACKED_UP + 2 * PIECE) as u64;

/// Carries bytes until one side closes, and then for a moment the bytes that the other still sends. Returns the number
/// of bytes. Only the kernel's buffers, and at most [`MOST_HELD`] bytes here, lie between the two, so a slow reader
/// stops the writer.
pub(crate) async fn carry(path: &Path, streams: [TcpStream; 2]) -> u64 {
    let [(mut read_one, write_one), (mut read_two, write_two)] = streams.map(TcpStream::into_split);
    let outlets = [write_one, write_two].map(|write| Outlet::new(write, Arc::clone(&path.counters), BACKED_UP));
    let bytes = Cell::new(0);
    {
        let there = one_way(path, &mut read_one, &outlets[1], &bytes);
        let back = one_way(path, &mut read_two, &outlets[0], &bytes);
        tokio::pin!(there, back);
        // A broken connection has nothing left to deliver, so the other direction is not waited for.
        tokio::select! {
            ended = &mut there => if ended.is_ok() { let _ = timeout(LINGER, back).await; },
            ended = &mut back => if ended.is_ok() { let _ = timeout(LINGER, there).await; },
        }
    }
    bytes.get()
}

async fn one_way(path: &Path, from: &mut OwnedReadHalf, to: &Outlet, bytes: &Cell<u64>) -> io::Result<()> {
    let reading = async {
        loop {
            let turn = poll_fn(|cx| {
                let mut scratch = path.cipher.borrow_mut();
                let mut buf = ReadBuf::new(&mut scratch[..PIECE]);
                std::task::ready!(Pin::new(&mut *from).poll_read(cx, &mut buf))?;
                to.send(&[IoSlice::new(buf.filled())]);
                Poll::Ready(io::Result::Ok(buf.filled().len()))
            });
            match turn.await? {
                0 => return io::Result::Ok(()),
                count => bytes.set(bytes.get() + count as u64),
            }
            to.drained().await;
        }
    };
    tokio::select! {
        ended = reading => ended?,
        error = to.run(|| {}) => return Err(error),
    }
    to.finish(|| {}).await;
    Ok(())
}
