//! Exclusive changes of a sites file: from reading the file until writing it, no other command changes it.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use folder::{Fresh, Named};
use rustix::fs::Mode;
use tokio::time::{Instant, sleep};
use types::UntrustedText;

use crate::here::{HereError, folders};
use crate::{Progress, SetupError};
use job::host_name;

/// Time limit for another command to finish: it may copy programs over a slow line, and ask for passwords.
const LIMIT: Duration = Duration::from_secs(600);
/// Time between two attempts.
const LOOK: Duration = Duration::from_millis(100);

/// The exclusive right to change a sites file. Dropping it releases the right. It is a locked file beside the sites
/// file, which the system unlocks when this process ends in any way.
#[derive(Debug)]
pub(crate) struct ChangeTurn {
    lock: Fresh,
}

impl ChangeTurn {
    /// Waits until no other process holds the right.
    ///
    /// # Errors
    /// No file can be made beside the sites file, which then cannot be replaced either; or another process still holds
    /// the right after [`LIMIT`].
    pub(crate) async fn take(path: &Path, progress: &mut dyn Progress) -> Result<ChangeTurn, SetupError> {
        let wrong = |error| SetupError::SitesFile(Box::new(HereError::file(path)(error)));
        let named = Named::resolve_or_make(path, Mode::from_raw_mode(0o700)).map_err(wrong)?;
        let name = [b".", &named.name[..], b".lock"].concat();
        let beside = path.with_file_name(format!(".{}.lock", String::from_utf8_lossy(&named.name)));
        let holder = || {
            let text = folders::read(&beside).ok().flatten().unwrap_or_default();
            UntrustedText::from(text.trim()).to_string()
        };
        let mut until = None;
        loop {
            match Fresh::make(&named.folder, &name) {
                Ok(mut lock) => {
                    let process = std::process::id();
                    // On a full disk, the name of the holder is not written.
                    let _ = writeln!(lock.file, "process {process} on {}", host_name());
                    return Ok(ChangeTurn { lock });
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(wrong(error)),
                Err(_) => {}
            }
            match until {
                None => {
                    let text =
                        format!("another command ({}) changes {}: waiting for its end", holder(), path.display());
                    progress.step("sites", &text);
                    until = Some(Instant::now() + LIMIT);
                }
                Some(until) if Instant::now() >= until => {
                    return Err(SetupError::Request(format!(
                        "another command ({}) has been changing {} for {} s: wait for its end, or end it",
                        holder(),
                        path.display(),
                        LIMIT.as_secs()
                    )));
                }
                Some(_) => {}
            }
            sleep(LOOK).await;
        }
    }

    /// Returns false if the lock file was removed or replaced, so that another process may hold the right too.
    pub(crate) fn is_held(&self) -> bool {
        self.lock.is_held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::book::Book;

    fn site(name: &str) -> Book {
        let text = format!(
            "[[site]]\nname = \"{name}\"\nfingerprint = \"sha256:{}\"\n[[site.gateway]]\nname = \"gw1\"\n\
             advertise = \"{name}:1\"\n[[site.node]]\nname = \"n1\"\n",
            "0".repeat(64)
        );
        Book::of(Path::new("x"), &text).unwrap()
    }

    /// A sites file that another command changes while the first one has it open for a change.
    #[tokio::test]
    async fn a_command_whose_lock_is_removed_loses_nothing_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = (folder.path().join("sites.toml"), folder.path().join(".sites.toml.lock"));
        let mut first = Book::change(&path, &mut Silent).await.unwrap();
        first.append(&site("lyon"), "lyon").unwrap();
        std::fs::remove_file(&lock).unwrap();
        let error = first.check().unwrap_err().to_string();
        assert!(error.contains("its lock file was removed or replaced"), "{error}");
        let mut second = Book::change(&path, &mut Silent).await.unwrap();
        second.append(&site("kyoto"), "kyoto").unwrap();
        second.save().unwrap();
        let error = first.save().unwrap_err().to_string();
        assert!(error.contains("its lock file was removed or replaced") && error.contains("sites.toml"), "{error}");
        drop(first);
        assert!(lock.exists(), "it belongs to the second");
        drop(second);
        assert_eq!(Book::open(&path).unwrap().sites().unwrap().names(), "kyoto");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn an_edit_by_hand_survives_a_command_that_began_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sites.toml");
        let mut book = Book::change(&path, &mut Silent).await.unwrap();
        book.append(&site("lyon"), "lyon").unwrap();
        // This command's own copy, which a site on this machine has put there.
        std::fs::write(&path, book.text()).unwrap();
        assert!(book.check().is_err());
        book.expect(&book.text());
        book.save().unwrap();
        std::fs::write(&path, site("kyoto").text()).unwrap();
        book.append(&site("nancy"), "nancy").unwrap();
        let error = book.save().unwrap_err().to_string();
        assert!(error.contains("another command or an editor has changed it"), "{error}");
        // An empty file is removed, and so is what this would remove.
        for name in ["lyon", "nancy"] {
            book.remove(name).unwrap();
        }
        book.save().unwrap_err();
        assert_eq!(Book::open(&path).unwrap().sites().unwrap().names(), "kyoto");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_command_waits_and_names_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/sites.toml");
        let turn = ChangeTurn::take(&path, &mut Silent).await.unwrap();
        let error = ChangeTurn::take(&path, &mut Silent).await.unwrap_err().to_string();
        assert!(error.contains(&format!("process {} on ", std::process::id())), "{error}");
        assert!(error.contains(&path.display().to_string()) && error.contains("for 600 s"), "{error}");
        let end = async {
            sleep(LOOK * 10).await;
            drop(turn);
        };
        let mut silent = Silent;
        let (next, ()) = tokio::join!(ChangeTurn::take(&path, &mut silent), end);
        drop(next.unwrap());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn what_a_killed_command_left_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sites.toml");
        std::fs::write(folder.path().join(".sites.toml.lock"), "process 1 on h\n").unwrap();
        ChangeTurn::take(&path, &mut Silent).await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_takes_no_file_is_named() {
        let error = ChangeTurn::take(Path::new("/proc/sites.toml"), &mut Silent).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("/proc/sites.toml: "), "{source}");
    }
}
