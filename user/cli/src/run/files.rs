//! Output of ranks into separate files, as mpiexec's `--output-filename` does.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use job::message::Stream;

/// Files with a common prefix. Each is opened anew for each piece of output, so thousands of ranks need only one
/// descriptor.
pub(crate) struct Files {
    prefix: PathBuf,
    /// Number of digits of the highest rank, so that names sort by rank.
    width: usize,
    begun: HashSet<(u32, bool)>,
}

impl Files {
    /// Uses `given` as a folder if it exists as one or ends with a slash, else as the prefix of file names. Creates the
    /// folder.
    pub(crate) fn new(given: PathBuf) -> Result<Files> {
        let is_folder = given.is_dir() || given.as_os_str().as_encoded_bytes().ends_with(b"/");
        let prefix = if is_folder { given.join("rank") } else { given };
        let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--output-filename: cannot make {}", folder.display()))?;
        Ok(Files { prefix, width: 1, begun: HashSet::new() })
    }

    pub(crate) fn placed(&mut self, ranks: u32) {
        self.width = ranks.saturating_sub(1).to_string().len();
    }

    /// Writes a rank's output. The first write truncates the rank's file.
    pub(crate) fn write(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let (end, error) = if stream == Stream::Err { ("err", true) } else { ("out", false) };
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!(".{rank:0width$}.{end}", width = self.width));
        let first = self.begun.insert((rank, error));
        let file = OpenOptions::new().create(true).write(true).append(!first).truncate(first).open(&name);
        let named =
            |problem: io::Error| io::Error::new(problem.kind(), format!("{}: {problem}", Path::new(&name).display()));
        file.and_then(|mut file| file.write_all(bytes)).map_err(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_files_and_they_begin_anew() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        for round in ["one", "two"] {
            let mut files = Files::new(folder.path().join("deep/run")).unwrap_or_else(|error| panic!("{error}"));
            files.placed(11);
            for piece in [round, "\n"] {
                assert!(files.write(3, Stream::Out, piece.as_bytes()).is_ok());
            }
            assert!(files.write(10, Stream::Err, b"e").is_ok());
        }
        assert_eq!((read("deep/run.03.out"), read("deep/run.10.err")), ("two\n".to_owned(), "e".to_owned()));
        let mut files = Files::new(folder.path().to_owned()).unwrap_or_else(|error| panic!("{error}"));
        assert!(files.write(0, Stream::Out, b"x").is_ok());
        assert_eq!(read("rank.0.out"), "x");
    }
}
