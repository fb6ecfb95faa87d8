//! Races several attempts and uses the first that succeeds, such as connecting to one of several addresses or gateways.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

/// Starts the attempts one after the other and returns the result of the first that succeeds; the others are cancelled.
/// Each attempt has a head start: the next one starts after it, or as soon as one fails. An attempt is made only when
/// its turn comes.
///
/// # Errors
/// The errors of all attempts, in the order in which they failed; empty if there were no attempts.
pub async fn race<T, E, A>(attempts: impl IntoIterator<Item = A>, head_start: Duration) -> Result<T, Vec<E>>
where
    A: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut waiting = attempts.into_iter().fuse();
    // Dropping the set cancels the attempts that lost.
    let mut running = JoinSet::new();
    let mut failed = Vec::new();
    let mut more = true;
    loop {
        match waiting.next() {
            Some(attempt) => drop(running.spawn(attempt)),
            None => more = false,
        }
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(Ok(won))) => return Ok(won),
                Some(Ok(Err(error))) => failed.push(error),
                Some(Err(_)) => {}
                None => return Err(failed),
            },
            () = sleep(head_start), if more => {}
        }
    }
}
