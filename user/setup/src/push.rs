//! Copies a user's program to sites. Files that a site already has are not sent again.
//!
//! Items are sent in batches. The site reports the sums of its files of the same size. Files that differ follow, piece
//! by piece, so that neither end holds a file in memory. A file is replaced atomically or not at all.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};
use types::sites::Site;
use types::untrusted::printable;

use crate::company::whereabouts;
use crate::machine::{Machine, Way};
use crate::message::{Item, ItemKind, Reply, SiteRequest};
use crate::parcel::Parcel;
use crate::place::MachinePlace;
use crate::release::Release;
use crate::sums::{Sums, stamp};
use crate::{Progress, SetupError};

/// Largest number of items in a request, and of bytes that follow it unless a single file is longer.
const ITEMS: usize = 400;
const BYTES: u64 = 16 << 20;
const PIECE: usize = 64 << 10;

/// The result of a push to one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pushed {
    pub site: String,
    /// Number of files sent.
    pub sent: usize,
    /// The total length of the files sent, in bytes.
    pub bytes: u64,
    /// Number of files that were already there.
    pub unchanged: usize,
    /// The site is on the machine that pushes.
    pub here: bool,
    /// The reason why the push is not complete.
    pub problem: Option<String>,
}

/// Copies a parcel to each of these sites; a failure at one site does not stop the others.
///
/// # Errors
/// This release's files cannot be read.
pub async fn push(
    sites: &[&Site],
    parcel: &Parcel,
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<Vec<Pushed>, SetupError> {
    let release = Release::read(None)?;
    let (mut all, mut sums) = (Vec::new(), Sums::of_user());
    for site in sites {
        let mut pushed = Pushed { site: site.name.clone(), ..Pushed::default() };
        let done = push_to(site, parcel, &release, asking, &mut pushed, &mut sums, progress).await;
        pushed.problem = done.err().map(|error| error.to_string());
        all.push(pushed);
    }
    Ok(all)
}

async fn push_to(
    site: &Site,
    parcel: &Parcel,
    release: &Release,
    asking: bool,
    pushed: &mut Pushed,
    sums: &mut Sums,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    let name = &site.name;
    let place = match whereabouts(site)? {
        Some(MachinePlace::Here) => {
            pushed.here = true;
            return Ok(());
        }
        Some(place) => place,
        None => {
            return Err(SetupError::site(
                name,
                "cannot be reached by ssh from here: copy the program there yourself, or push it from a machine that reaches it",
            ));
        }
    };
    let way = Way { site: name, place: &place, folder: site.folder.as_deref(), asking };
    let mut machine = Machine::reach(&way, release, progress).await?;
    let mut sending =
        Sending { site: name, machine: &mut machine, pushed, total: parcel.bytes(), done: 0, progress, sums };
    for items in parcel.items.chunks(ITEMS) {
        sending.batch(items).await?;
    }
    // Folder modes are set last, so that a read-only folder can be filled first.
    let folders = parcel.items.iter().rev().filter_map(|(_, item)| match item.kind {
        ItemKind::Folder { mode } => Some(Item { kind: ItemKind::Mode { mode }, ..item.clone() }),
        _ => None,
    });
    let folders: Vec<Item> = folders.collect();
    for items in folders.chunks(ITEMS) {
        sending.place(items.to_vec(), &[]).await?;
    }
    Ok(())
}

/// A parcel that is being sent to one site.
struct Sending<'a> {
    site: &'a str,
    machine: &'a mut Machine,
    pushed: &'a mut Pushed,
    total: u64,
    done: u64,
    progress: &'a mut dyn Progress,
    sums: &'a mut Sums,
}

impl Sending<'_> {
    async fn batch(&mut self, items: &[(std::path::PathBuf, Item)]) -> Result<(), SetupError> {
        let offer = SiteRequest::Offer { items: items.iter().map(|(_, item)| item.clone()).collect() };
        let Reply::Has { sums } = self.machine.ask(&offer).await? else {
            return Err(SetupError::site(self.site, "an answer to another question"));
        };
        if sums.len() != items.len() {
            return Err(SetupError::site(self.site, "an answer to another question"));
        }
        let (mut wanted, mut sources, mut bytes) = (Vec::new(), Vec::new(), 0);
        for ((path, item), sum) in items.iter().zip(sums) {
            let mut item = item.clone();
            if let ItemKind::File { mode, length } = item.kind {
                if sum.is_some_and(|sum| self.sums.of(path).is_ok_and(|own| own == sum)) {
                    item.kind = ItemKind::Mode { mode };
                    self.pushed.unchanged += 1;
                    self.advance(length);
                } else {
                    sources.push(path.as_path());
                    bytes += length;
                    self.pushed.sent += 1;
                    self.pushed.bytes += length;
                }
            }
            wanted.push(item);
            if bytes >= BYTES {
                self.place(std::mem::take(&mut wanted), &std::mem::take(&mut sources)).await?;
                bytes = 0;
            }
        }
        self.place(wanted, &sources).await
    }

    /// Makes the items at the site. The content of each file among them follows the request.
    async fn place(&mut self, items: Vec<Item>, sources: &[&Path]) -> Result<(), SetupError> {
        if items.is_empty() {
            return Ok(());
        }
        let lengths = items.iter().filter_map(|item| match item.kind {
            ItemKind::File { length, .. } => Some(length),
            _ => None,
        });
        let lengths: Vec<u64> = lengths.collect();
        let request = SiteRequest::Place { items };
        self.machine.begin(&request).await?;
        for (path, length) in sources.iter().zip(lengths) {
            self.send(path, length).await?;
        }
        match self.machine.answer(&request).await? {
            Reply::Done { .. } => Ok(()),
            _ => Err(SetupError::site(self.site, "an answer to another question")),
        }
    }

    /// Sends the content of a file, then its sum.
    async fn send(&mut self, path: &Path, length: u64) -> Result<(), SetupError> {
        let wrong = |source| SetupError::File { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(wrong)?;
        let before = file.metadata().map_err(wrong)?;
        let (mut digest, mut left, mut piece) = (Sha256::new(), length, vec![0; PIECE]);
        while left > 0 {
            let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = file.read(&mut piece[..most]).map_err(wrong)?;
            if count == 0 {
                return Err(self.changed(path));
            }
            digest.update(&piece[..count]);
            self.machine.write(&piece[..count]).await?;
            left -= count as u64;
            self.advance(count as u64);
        }
        let after = file.metadata().map_err(wrong)?;
        if after.len() != length || stamp(&after) != stamp(&before) {
            return Err(self.changed(path));
        }
        self.machine.write(&digest.finalize()).await
    }

    /// The error for a file that changed. The site still expects the announced bytes and sum, so this connection is no
    /// longer usable.
    fn changed(&self, path: &Path) -> SetupError {
        SetupError::Request(format!(
            "{}: changed while it was sent to site {}: push it again when nobody writes to it",
            printable(&path.to_string_lossy()),
            self.site
        ))
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        self.progress.part(self.site, self.done, self.total);
    }
}
