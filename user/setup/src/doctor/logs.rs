//! The ends of the logs of gateways, detached jobs and a rank.

use std::fs::OpenOptions;
use std::io::{Error, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use types::untrusted::visible;

use super::report::{Question, Report};
use crate::here::folders::Folders;

/// Number of bytes kept of one log.
const TAIL_BYTES: u64 = 32 << 10;
/// Number of logs kept of one kind, newest first.
const MOST: usize = 5;

pub(super) fn examine(question: &Question, folders: &Folders, report: &mut Report) {
    let mut logs = newest(entries(&folders.state).filter(|path| {
        let name = path.to_string_lossy();
        name.ends_with(".log") || name.ends_with(".log.old")
    }));
    logs.extend(newest(entries(&folders.state.join("jobs")).map(|job| job.join("output"))));
    logs.extend(question.variable("LANDBRIDGE_LOG_FILE").map(PathBuf::from));
    for path in logs {
        match tail(&path) {
            Ok(text) => report.section(format!("end of {}", path.display()), &text),
            Err(error) => report.section(format!("end of {}", path.display()), &error.to_string()),
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The files that exist, newest first, at most [`MOST`] of them.
fn newest(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut dated: Vec<_> =
        paths.filter_map(|path| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path))).collect();
    dated.sort_by(|one, other| other.cmp(one));
    dated.into_iter().map(|(_, path)| path).take(MOST).collect()
}

/// The last lines of a file. Terminal control characters are escaped: the report is for people to read.
fn tail(path: &Path) -> std::io::Result<String> {
    // Opening a pipe without a writer would block.
    let mut file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(Error::other("not a file"));
    }
    let length = about.len();
    let cut = length > TAIL_BYTES;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.split_once('\n').filter(|_| cut).map_or(&*text, |(_, rest)| rest);
    Ok(visible(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        std::fs::write(&path, "short\n").unwrap();
        assert_eq!(tail(&path).unwrap(), "short\n");
        std::fs::write(&path, "a\x1b[2Jb\n").unwrap();
        assert_eq!(tail(&path).unwrap(), "a\\u{1b}[2Jb\n");
        let pipe = folder.path().join("pipe.log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(tail(&pipe).unwrap_err().to_string(), "not a file");
        let long: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, long).unwrap();
        let kept = tail(&path).unwrap();
        assert!(kept.starts_with("line ") && kept.ends_with("line 9999\n") && kept.len() <= TAIL_BYTES as usize);
        assert_eq!(newest([path.clone(), folder.path().join("gone")].into_iter()), [path]);
    }
}
