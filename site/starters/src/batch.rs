//! The interface to batch systems. Each is a folder beside this file; [`crate::batch_system`] knows them all.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;

use rustix::fs::OFlags;
use thiserror::Error;
use types::roster::is_name;
use wire::control::AllocatedNode;

/// Largest size of a file of nodes, in bytes.
const MOST_BYTES: u64 = 16 << 20;
/// The longest part of a file's line in an error, in characters.
const LONGEST_SHOWN: usize = 200;

/// Reads a variable of the environment; `None` if it is not set or empty.
pub(crate) type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// The nodes of a job, or the problem of its environment.
pub(crate) type JobNodes<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<AllocatedNode>, Box<dyn Error + Send + Sync>>> + 'a>>;

/// A batch system, as the script of one of its jobs sees it.
pub(crate) trait BatchSystem {
    /// The number of the job around this process, if there is one.
    fn job(&self, variables: Variables<'_>) -> Option<String>;

    /// The nodes of the job around this process.
    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a>;
}

/// Problems of the file in which a batch system lists the nodes of a job.
#[derive(Debug, Error)]
pub(crate) enum NodeFileError {
    /// The file cannot be read.
    #[error("{variable} {path}: {problem}")]
    Unread { variable: &'static str, path: String, problem: io::Error },
    /// A line has another form.
    #[error(
        "{variable} {path}, line {line}: `{text}` is not {form} (names are 1 to 64 letters, digits, `.`, `_` and `-`)"
    )]
    Malformed { variable: &'static str, path: String, line: usize, text: String, form: &'static str },
    /// The file has no line.
    #[error("{variable} {path} names no node")]
    Empty { variable: &'static str, path: String },
}

/// A file in which a batch system lists the nodes of a job.
pub(crate) struct NodeFile {
    /// The variable that holds the file's path.
    pub(crate) variable: &'static str,
    /// The form of a line, for errors.
    pub(crate) form: &'static str,
    /// Takes a node's name and slots from a line, or `None` if it has another form.
    pub(crate) line: fn(&str) -> Option<(&str, u32)>,
}

impl NodeFile {
    /// Reads the file. Nodes keep the order of their first lines; a node's slots are the sum over its lines.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<AllocatedNode>, NodeFileError> {
        let variable = self.variable;
        let path_name = || path.escape_debug().to_string();
        let unread = |problem| NodeFileError::Unread { variable, path: path_name(), problem };
        let text = text_of(Path::new(path)).map_err(unread)?;
        let mut nodes: Vec<AllocatedNode> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let malformed = || {
                let text = text.escape_debug().take(LONGEST_SHOWN).collect();
                NodeFileError::Malformed { variable, path: path_name(), line, text, form: self.form }
            };
            let (name, slots) = (self.line)(text).filter(|(name, _)| is_name(name)).ok_or_else(malformed)?;
            match places.get(name) {
                Some(&place) => nodes[place].slots = nodes[place].slots.saturating_add(slots),
                None => {
                    places.insert(name, nodes.len());
                    nodes.push(AllocatedNode::new(name, slots));
                }
            }
        }
        if nodes.is_empty() {
            return Err(NodeFileError::Empty { variable, path: path_name() });
        }
        Ok(nodes)
    }
}

/// Reads a file whose path comes from the environment. Bytes that are no text become characters that no name has.
fn text_of(path: &Path) -> io::Result<String> {
    // A pipe without a writer would block the call otherwise.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    if file.take(MOST_BYTES + 1).read_to_end(&mut bytes)? as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("more than {} MiB", MOST_BYTES >> 20)));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<AllocatedNode>, NodeFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let nodes = NodeFile {
            variable: "NODES",
            form: "a node and its slots",
            line: |line| line.split_once(' ').and_then(|(name, slots)| Some((name, slots.parse().ok()?))),
        };
        nodes.read(file.path().to_str().unwrap())
    }

    #[test]
    fn slots_of_a_nodes_lines_are_added() {
        let nodes = read("n1 2\n\nn2 1\n \nn1 4294967295\n").unwrap();
        assert_eq!(nodes, [("n1", u32::MAX), ("n2", 1)].map(|(name, slots)| AllocatedNode::new(name, slots)));
    }

    #[test]
    fn other_files_are_refused_with_the_line() {
        for (text, problem) in [
            ("", "names no node"),
            ("\n \n", "names no node"),
            ("n1 2\nn2\n", "line 2: `n2` is not a node and its slots"),
            ("\u{1b}[2J\n", "line 1: `\\u{1b}[2J`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("NODES /") && error.contains(problem), "{error}");
        }
        assert!(read(&"x".repeat(100_000)).unwrap_err().to_string().len() < 500);
        assert!(read(&format!("{} 1\n", "x".repeat(65))).unwrap_err().to_string().contains("1 to 64 letters"));
        let text = "n1 2\n".repeat(MOST_BYTES as usize / 5 + 1);
        assert!(read(&text).unwrap_err().to_string().ends_with("more than 16 MiB"));
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            assert!(text_of(path).unwrap_err().to_string().contains("not a regular file"), "{}", path.display());
        }
    }
}
