//! PMI-1 commands: parsing bytes into words.

use thiserror::Error;

/// Most bytes of a line that a rank may send. MPICH's own buffers are smaller.
const MAX_LINE: usize = 64 << 10;

/// Most lines of a multi-line command. A spawn has one for each argument and hint.
const MAX_WORDS: usize = 4096;

/// One command: a name and `key=value` words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub name: String,
    words: Vec<(String, String)>,
}

impl Command {
    /// The value of the word `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.words.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The value of the word `key`, as a number.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// Parses one line. The last word may contain blanks if it is `value`, `error_msg` or `message`.
    fn parse(line: &str) -> Option<Command> {
        let mut words = Vec::new();
        let mut rest = line.trim_end_matches(['\r', ' ']);
        while !rest.is_empty() {
            rest = rest.trim_start();
            let (key, tail) = rest.split_once('=')?;
            let end = match key {
                "value" | "error_msg" | "message" => tail.len(),
                _ => tail.find(' ').unwrap_or(tail.len()),
            };
            words.push((key.to_owned(), tail[..end].to_owned()));
            rest = &tail[end..];
        }
        let (first, name) = words.first().cloned()?;
        (first == "cmd" || first == "mcmd").then_some(Command { name, words })
    }
}

/// Input that is not PMI-1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PmiError {
    /// A line that does not end.
    #[error("a PMI-1 line longer than {MAX_LINE} bytes")]
    LongLine,
    /// A command that does not end.
    #[error("a PMI-1 command of more than {MAX_WORDS} lines")]
    LongCommand,
    /// A line that is not a command.
    #[error("`{0}` is not a PMI-1 command")]
    NoCommand(String),
}

/// Splits the bytes of a rank into commands.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    multi: Option<Command>,
}

impl Lines {
    /// Takes bytes and returns the commands that they complete.
    ///
    /// # Errors
    /// The input is not PMI-1.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Command>, PmiError> {
        self.buffer.extend_from_slice(bytes);
        let mut commands = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            if end > MAX_LINE {
                return Err(PmiError::LongLine);
            }
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            if let Some(command) = self.line(&line)? {
                commands.push(command);
            }
        }
        if self.buffer.len() > MAX_LINE {
            return Err(PmiError::LongLine);
        }
        Ok(commands)
    }

    fn line(&mut self, line: &str) -> Result<Option<Command>, PmiError> {
        let wrong = || PmiError::NoCommand(line.chars().take(80).collect());
        if let Some(command) = &mut self.multi {
            if line == "endcmd" {
                return Ok(self.multi.take());
            }
            if command.words.len() >= MAX_WORDS {
                return Err(PmiError::LongCommand);
            }
            // Each line is one word, and its value may contain blanks.
            let (key, value) = line.split_once('=').ok_or_else(wrong)?;
            command.words.push((key.to_owned(), value.to_owned()));
            return Ok(None);
        }
        if line.starts_with("mcmd=") {
            self.multi = Some(Command::parse(line).ok_or_else(wrong)?);
            return Ok(None);
        }
        Command::parse(line).map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_may_arrive_in_pieces() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"cmd=put kvsname=k key=a va").unwrap(), vec![]);
        let commands = lines.feed(b"lue=x y z\ncmd=finalize\n").unwrap();
        assert_eq!(commands[0].get("value"), Some("x y z"));
        assert_eq!((commands[0].name.as_str(), commands[0].get("key")), ("put", Some("a")));
        assert_eq!(commands[1].name, "finalize");
    }

    #[test]
    fn a_spawn_ends_with_endcmd() {
        let mut lines = Lines::default();
        let commands = lines.feed(b"mcmd=spawn\nnprocs=2\nexecname=./x y\nendcmd\ncmd=get_maxes\n").unwrap();
        assert_eq!(commands.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["spawn", "get_maxes"]);
        assert_eq!(commands[0].get("execname"), Some("./x y"));
        assert!(Lines::default().feed(b"mcmd=spawn\nno word\n").is_err());
        let endless = b"mcmd=spawn\n".iter().chain(b"arg=x\n".repeat(MAX_WORDS).iter()).copied().collect::<Vec<_>>();
        assert!(Lines::default().feed(&endless).is_err());
    }

    #[test]
    fn other_protocols_are_refused() {
        assert!(Lines::default().feed(b"GET / HTTP/1.1\n").unwrap_err().to_string().contains("GET / HTTP"));
        let long = [b"cmd=get_maxes a=".as_slice(), &vec![b'x'; MAX_LINE], b"\n"].concat();
        for arrived in [&long[..=MAX_LINE], &long] {
            assert!(matches!(Lines::default().feed(arrived), Err(PmiError::LongLine)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Lines::default().feed(&bytes);
        }
    }
}
