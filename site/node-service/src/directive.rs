//! The requests in a job script: lines `#BB_LUA landbridge stage_in=SRC=DST …`. Pure.

use std::ffi::OsStr;
use std::path::Path;

use stage::{NodeChoice, Place, PlaceError, means_into};
use thiserror::Error;
use types::UntrustedText;
use types::quantity::{QuantityError, parse_byte_rate};

/// The start of such a line, as `burst_buffer.conf` configures it.
pub const DIRECTIVE: &str = "#BB_LUA";
const OURS: &str = "landbridge";
const WORDS: &str = "stage_in=SRC=DST, stage_out=SRC=DST, rate=RATE, harm=PERCENT, \
                     allow_other_owner, keep, pin and pin=cheaper";

/// The transfers of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub inputs: Vec<DirectiveTransfer>,
    pub outputs: Vec<DirectiveTransfer>,
    /// Bytes per second at each target, as the user wrote it.
    pub rate: Option<String>,
    /// Percent, as the user wrote it.
    pub harm: Option<String>,
    /// Transfers may write into folders that belong to other users.
    pub other_owner: bool,
    /// Inputs stay on the nodes where the job has run.
    pub keep: bool,
    pub pin: Pin,
}

/// When a job is pinned to the nodes that have its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    #[default]
    Never,
    /// If copying the input to other nodes would take longer than the job waits for these.
    Cheaper,
    Always,
}

/// One source and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectiveTransfer {
    /// For an input: a place, or an absolute path that each of the job's nodes reads itself. For an output: an absolute
    /// path on the job's first node, or on all its nodes if `to` distinguishes them by [`NODE`].
    pub from: String,
    /// As `from`, with input and output exchanged.
    pub to: String,
}

/// In the target of an output, stands for the name of the node that it comes from. Slurm removes `%n` from these lines.
pub const NODE: &str = "{node}";

/// An error in a line, for the user who submits the job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line} of the job script: `{word}`: {reason}")]
#[non_exhaustive]
pub struct DirectiveError {
    /// The directive's first line in the script.
    pub line: usize,
    pub word: UntrustedText,
    pub reason: WordError,
}

/// Reasons for refusing a word of a directive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WordError {
    #[error("it is unknown; there are {WORDS}")]
    Unknown,
    /// The word or its value does not have the accepted form.
    #[error("{0}")]
    Form(&'static str),
    #[error(transparent)]
    Rate(#[from] QuantityError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A place that cannot stand here.
    #[error("{place} {reason}")]
    Unusable { place: String, reason: &'static str },
}

/// Parses a job script to the point where Slurm stops, by Slurm's rules.
///
/// # Errors
/// [`DirectiveError`].
pub fn parse(script: &[u8]) -> Result<Plan, DirectiveError> {
    let mut plan = Plan::default();
    for Directive { line, text } in directives(script) {
        let wrong = |word: &str, reason| DirectiveError { line, word: word.into(), reason };
        let Ok(text) = std::str::from_utf8(&text) else {
            return Err(wrong(&String::from_utf8_lossy(&text), WordError::Form("it is not UTF-8")));
        };
        let mut words = text.split_whitespace();
        if words.next() != Some(OURS) {
            continue;
        }
        for word in words {
            plan.add(word).map_err(|reason| wrong(word, reason))?;
        }
    }
    Ok(plan)
}

/// A directive without its first word, with its continuation lines.
struct Directive {
    /// The number of its first line.
    line: usize,
    text: Vec<u8>,
}

/// Finds the directives of a script by Slurm's rules (`_xlate_batch` in its `burst_buffer_lua.c`): empty lines are
/// ignored; the first line that does not begin with `#`, even one of only blanks, ends the search. A directive that
/// ends in a backslash continues in the next directive, unless another comment stands between them. If a blank precedes
/// the backslash, leading blanks of the next part are dropped.
fn directives(script: &[u8]) -> Vec<Directive> {
    let script = script.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut found: Vec<Directive> = Vec::new();
    let (mut continues, mut drops_blanks) = (false, false);
    for (line, text) in (1..).zip(script.split(|byte| *byte == b'\n')).filter(|(_, text)| !text.is_empty()) {
        if text[0] != b'#' {
            break;
        }
        let Some(mut text) = text.strip_prefix(DIRECTIVE.as_bytes()) else {
            continues = false;
            continue;
        };
        if continues && drops_blanks {
            text = &text[text.iter().take_while(|byte| is_blank(**byte)).count()..];
        }
        let is_continued = text.last() == Some(&b'\\');
        if is_continued {
            text = &text[..text.len() - 1];
            drops_blanks = text.last().is_some_and(|byte| is_blank(*byte));
        }
        match found.last_mut() {
            Some(directive) if continues => directive.text.extend_from_slice(text),
            _ => found.push(Directive { line, text: text.to_vec() }),
        }
        continues = is_continued;
    }
    found
}

/// C's `isspace`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

impl Plan {
    /// True if nothing is moved.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    fn add(&mut self, word: &str) -> Result<(), WordError> {
        match word.split_once('=') {
            Some(("stage_in", value)) => {
                let mut transfer = transfer(value)?;
                place(&transfer.from)?;
                on_nodes(&transfer.to)?;
                transfer.to = named(&transfer)?;
                self.inputs.push(transfer);
            }
            Some(("stage_out", value)) => {
                let transfer = transfer(value)?;
                on_nodes(&transfer.from)?;
                place(&transfer.to)?;
                if transfer.to.contains("%n") {
                    return Err(WordError::Form("for the node's name write {node}: Slurm takes % for itself"));
                }
                self.outputs.push(transfer);
            }
            Some(("rate", value)) => {
                parse_byte_rate(value)?;
                self.rate = Some(value.to_owned());
            }
            Some(("harm", value)) => {
                let percent = value.parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent));
                percent.ok_or(WordError::Form("it must be a number from 0 to 100"))?;
                self.harm = Some(value.to_owned());
            }
            None if word == "allow_other_owner" => self.other_owner = true,
            None if word == "keep" => self.keep = true,
            None if word == "pin" => self.pin = Pin::Always,
            Some(("pin", "cheaper")) => self.pin = Pin::Cheaper,
            _ => return Err(WordError::Unknown),
        }
        Ok(())
    }
}

fn transfer(value: &str) -> Result<DirectiveTransfer, WordError> {
    let pair = value.split_once('=').filter(|(from, to)| !from.is_empty() && !to.is_empty());
    let (from, to) = pair.ok_or(WordError::Form("give SRC=DST"))?;
    Ok(DirectiveTransfer { from: from.to_owned(), to: to.to_owned() })
}

/// The path of an input itself: a path that ends in a slash is a folder, in which the source keeps its own name.
fn named(DirectiveTransfer { from, to }: &DirectiveTransfer) -> Result<String, WordError> {
    if !means_into(Path::new(to)) {
        return Ok(to.clone());
    }
    let from = Place::parse(OsStr::new(from))?;
    let name = from.path.file_name().and_then(OsStr::to_str);
    let name =
        name.ok_or_else(|| unusable(&from.to_string(), "has no name: write DST with the name that it should get"))?;
    Ok(format!("{}/{name}", to.trim_end_matches(['/', '.'])))
}

/// Accepts a place of another site, or an absolute path: there is no working directory yet.
fn place(text: &str) -> Result<(), WordError> {
    let place = Place::parse(OsStr::new(text))?;
    if place.is_several() {
        return Err(unusable(text, "is on several nodes"));
    }
    match place.site {
        Some(_) => Ok(()),
        None => on_nodes(text),
    }
}

/// Accepts a path on the job's own nodes.
fn on_nodes(text: &str) -> Result<(), WordError> {
    let place = Place::parse(OsStr::new(text))?;
    if place.site.is_some() || place.node != NodeChoice::Any {
        return Err(unusable(text, "names a site: here it must be a path on the job's own nodes"));
    }
    match place.path.is_absolute() {
        true => Ok(()),
        false => Err(unusable(text, "is no absolute path")),
    }
}

fn unusable(place: &str, reason: &'static str) -> WordError {
    WordError::Unusable { place: place.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_script_are_a_plan() {
        let script = b"#!/bin/sh\n#SBATCH -N2\n#BB_LUA pool=x\n\
            #BB_LUA landbridge stage_in=lyon:/data/run7=/tmp/run7 rate=50MB/s\n\
            #BB_LUA landbridge stage_in=/scratch/tables=/tmp/tables stage_out=/tmp/out=lyon/n3:results harm=2.5 keep pin \\\n\
            #BB_LUA allow_other_owner\n\
            echo hello\n#BB_LUA landbridge nonsense\n";
        let plan = parse(script).unwrap();
        let transfer = |from: &str, to: &str| DirectiveTransfer { from: from.into(), to: to.into() };
        let inputs = vec![transfer("lyon:/data/run7", "/tmp/run7"), transfer("/scratch/tables", "/tmp/tables")];
        assert_eq!((plan.inputs, plan.outputs), (inputs, vec![transfer("/tmp/out", "lyon/n3:results")]));
        assert_eq!(
            (plan.rate.as_deref(), plan.harm.as_deref(), plan.other_owner, plan.keep, plan.pin),
            (Some("50MB/s"), Some("2.5"), true, true, Pin::Always)
        );
        let into = parse(b"#BB_LUA landbridge stage_in=lyon:/data/run7/=/tmp/in/ stage_out=/tmp/out=lyon:results/\n");
        let into = into.unwrap();
        assert_eq!(
            into.inputs,
            [transfer("lyon:/data/run7/", "/tmp/in/run7")],
            "its name is known before it is copied"
        );
        assert_eq!(into.outputs, [transfer("/tmp/out", "lyon:results/")]);
        assert_eq!(parse(b"#BB_LUA landbridge pin=cheaper\n").unwrap().pin, Pin::Cheaper);
        assert!(parse(b"").unwrap().is_empty() && parse(b"#!/bin/sh\necho\n").unwrap().is_empty());
    }

    #[test]
    fn a_script_is_read_as_slurm_reads_it() {
        let inputs = |script: &str| {
            let plan = parse(script.as_bytes()).unwrap();
            plan.inputs.into_iter().map(|DirectiveTransfer { from, to }| format!("{from} {to}")).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        // Slurm splits at line breaks by strtok, which skips empty lines.
        assert_eq!(inputs("#!/bin/sh\n\n\n#BB_LUA landbridge stage_in=b:/x=/y\n"), ["b:/x /y"]);
        assert_eq!(inputs("\n#!/bin/sh\n#\n\n# text\n\n#BB_LUA landbridge stage_in=b:/x=/y"), ["b:/x /y"]);
        for end in [" \n", "\t\n", "\r\n", "set -e\n", " # text\n"] {
            assert_eq!(inputs(&format!("#!/bin/sh\n{end}#BB_LUA landbridge stage_in=b:/x=/y\n")), none, "{end:?}");
        }
        let two = ["b:/x /y", "b:/z /w"];
        assert_eq!(
            inputs("#BB_LUA landbridge stage_in=b:/x=/y \\\n#BB_LUA    stage_in=b:/z=/w\n"),
            two,
            "the directive's word is not repeated"
        );
        assert_eq!(inputs("#BB_LUA landbridge stage_in=b:/x=/y\\\n\n#BB_LUA stage_in=b:/z=/w\n"), two);
        assert_eq!(inputs("#BB_LUA landbridge stage_in=b:/x\\\n#BB_LUA=/y stage_in=b:/z=/w\n"), two, "within a word");
        let three = "#BB_LUA landbridge \\\n#BB_LUA stage_in=b:/x=/y \\\n#BB_LUA stage_in=b:/z=/w\n";
        assert_eq!(inputs(three), two);
        // A comment ends the continuation; the next line is a directive of its own, and not ours.
        let apart = "#BB_LUA landbridge stage_in=b:/x=/y \\\n# text\n#BB_LUA stage_in=b:/z=/w\n";
        assert_eq!(inputs(apart), ["b:/x /y"]);
        assert_eq!(inputs("#BB_LUAlandbridge stage_in=b:/x=/y\n"), ["b:/x /y"], "the word needs no blank behind it");
        assert_eq!(inputs("#BB_LUA landbridge stage_in=b:/x=/y \\"), ["b:/x /y"]);
        assert_eq!(inputs("#\0\n#BB_LUA landbridge stage_in=b:/x=/y\n"), none, "a script is a string of C");
        let error = parse(b"#!/bin/sh\n\n#BB_LUA landbridge \\\n#BB_LUA nonsense\n").unwrap_err().to_string();
        assert!(error.starts_with("line 3 of the job script: `nonsense`"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_word() {
        for (word, problem) in [
            ("stage-in=a:b=/c", "it is unknown; there are stage_in"),
            ("stage_in=lyon:/data", "give SRC=DST"),
            ("stage_in==/x", "give SRC=DST"),
            ("stage_in=data=/tmp/x", "data is no absolute path"),
            ("stage_in=lyon/*:/data=/tmp/x", "several nodes"),
            ("stage_in=lyon:/data=tmp/x", "tmp/x is no absolute path"),
            ("stage_in=lyon:/data=kyoto:/tmp/x", "names a site"),
            ("stage_in=lyon:=/x", "names no path"),
            ("stage_out=lyon:/x=/y", "names a site"),
            ("stage_out=/x/..=lyon:/y", "ends in `..`"),
            ("stage_out=/x=lyon:/y.%n", "write {node}"),
            ("rate=0", "0"),
            ("harm=101", "from 0 to 100"),
            ("harm=NaN", "from 0 to 100"),
            ("keep=yes", "unknown"),
            ("pin=sometimes", "unknown"),
            ("\u{1b}[2J", "unknown"),
        ] {
            let error = parse(format!("#!/bin/sh\n#BB_LUA landbridge {word}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of the job script: `") && error.contains(problem), "{error}");
            assert!(!error.contains('\u{1b}'));
        }
        assert!(parse(b"#BB_LUA landbridge \xff\n").unwrap_err().to_string().contains("not UTF-8"));
    }
}
