//! The words of the command line: converts the user's form into one that clap, and a site that a job is carried to, can
//! parse.
//!
//! `run` has mpiexec's syntax: no `--` before the program, `-np` for `-n`, and several programs separated by `:`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// The separator between programs of a job.
const SEPARATOR: &str = ":";

/// Inserts `--` before each program of `run`, and replaces mpiexec's `-np` by `-n`.
pub(crate) fn plain(words: impl Iterator<Item = OsString>, cli: &Command) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let Some(run) = cli.find_subcommand("run").filter(|_| words.get(1).is_some_and(|word| word == "run")) else {
        return words;
    };
    let mut at = 2;
    loop {
        mark_program(&mut words, &mut at, run);
        match (at..words.len()).find(|at| separates(&words[*at..], run)) {
            Some(separator) => at = separator + 1,
            None => return words,
        }
    }
}

/// The programs of a job with their arguments: the words from the first program on, split at each `:` that precedes an
/// option of `run`. All but the first begin with their own options.
pub(crate) fn programs<'a>(words: &'a [OsString], run: &Command) -> Vec<&'a [OsString]> {
    let (mut programs, mut begin) = (Vec::new(), 0);
    for at in (0..words.len()).filter(|at| separates(&words[*at..], run)) {
        programs.push(&words[begin..at]);
        begin = at + 1;
    }
    programs.push(&words[begin..]);
    programs
}

/// Returns true if the first word separates two programs. A `:` that no option follows is an argument.
fn separates(words: &[OsString], run: &Command) -> bool {
    words.first().is_some_and(|word| word == SEPARATOR) && words.get(1).is_some_and(|word| is_option(word, run))
}

/// Inserts `--` before the program whose options begin at `at`, and moves `at` to the program.
fn mark_program(words: &mut Vec<OsString>, at: &mut usize, run: &Command) {
    while let Some(word) = words.get(*at) {
        match word.as_bytes() {
            b"--" => {
                *at += 1;
                return;
            }
            b"-np" => words[*at] = "-n".into(),
            option if option.len() > 1 && option.starts_with(b"-") => {}
            _ => {
                words.insert(*at, "--".into());
                *at += 1;
                return;
            }
        }
        *at += if takes_next(words[*at].as_bytes(), run) { 2 } else { 1 };
    }
}

/// Returns true if the word is an option of this command, with or without its value.
fn is_option(word: &OsStr, command: &Command) -> bool {
    match (word.as_bytes(), word.as_bytes().strip_prefix(b"--")) {
        (b"-np", _) => true,
        (_, Some(long)) => {
            let name = long.split(|byte| *byte == b'=').next().unwrap_or_default();
            command.get_arguments().any(|arg| has_long(arg, name))
        }
        ([b'-', short, ..], None) => command.get_arguments().any(|arg| arg.get_short() == Some(char::from(*short))),
        _ => false,
    }
}

fn has_long(arg: &Arg, name: &[u8]) -> bool {
    let names = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
    names.into_iter().any(|known| known.as_bytes() == name)
}

/// Returns true if the word after this option is its value.
fn takes_next(option: &[u8], command: &Command) -> bool {
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = option.strip_prefix(b"--") {
        // An option with `=` matches no name, and has its value in the same word.
        return command.get_arguments().find(|arg| has_long(arg, long)).is_some_and(takes);
    }
    // In a group of short options, the first one that takes a value gets the rest of the word, or else the next word.
    for (at, short) in option.iter().enumerate().skip(1) {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(char::from(*short)));
        if arg.is_some_and(takes) {
            return at + 1 == option.len();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_program_of_run_begins_where_options_end() {
        for (typed, expected) in [
            ("lb run -n 4 prog -n 5 --json", "lb run -n 4 -- prog -n 5 --json"),
            ("lb run -n 4 -- prog", "lb run -n 4 -- prog"),
            ("lb run -np 4 prog -np 2", "lb run -n 4 -- prog -np 2"),
            ("lb run --np 4 --prefix prog", "lb run --np 4 --prefix -- prog"),
            ("lb run -n4 --site=a=2 --json prog --", "lb run -n4 --site=a=2 --json -- prog --"),
            ("lb run --site a=2 -x A=1 --json=f prog", "lb run --site a=2 -x A=1 --json=f -- prog"),
            ("lb run --mpi intel - x", "lb run --mpi intel -- - x"),
            ("lb run --nonsense 4 prog", "lb run --nonsense -- 4 prog"),
            ("lb run -n", "lb run -n"),
            ("lb run", "lb run"),
            ("lb run -np 1 a x : -np 3 -x A=1 b -np 2", "lb run -n 1 -- a x : -n 3 -x A=1 -- b -np 2"),
            ("lb run -n 1 -- a : -n 3 -- b : -n 1 c", "lb run -n 1 -- a : -n 3 -- b : -n 1 -- c"),
            ("lb run -n 1 a : --wdir=/w --site a=3 b", "lb run -n 1 -- a : --wdir=/w --site a=3 -- b"),
            ("lb run -n 1 a 2 : -5 : b : --size :", "lb run -n 1 -- a 2 : -5 : b : --size :"),
            ("lb lab -- lb run -np 4 prog", "lb lab -- lb run -np 4 prog"),
        ] {
            let words = plain(typed.split(' ').map(OsString::from), &crate::args::Cli::command());
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), expected, "{typed}");
            let again = plain(expected.split(' ').map(OsString::from), &crate::args::Cli::command());
            assert_eq!(again.len(), words.len(), "{expected}: what is plain stays as it is");
        }
    }

    #[test]
    fn programs_are_cut_at_colons_before_options() {
        let cli = crate::args::Cli::command();
        let run = cli.find_subcommand("run").unwrap();
        let words: Vec<OsString> = "a : x : -n 3 -- b : -5 : --site=a=1 -- c".split(' ').map(OsString::from).collect();
        let shown: Vec<String> = programs(&words, run)
            .iter()
            .map(|words| words.join(OsStr::new(" ")).to_string_lossy().into_owned())
            .collect();
        assert_eq!(shown, ["a : x", "-n 3 -- b : -5", "--site=a=1 -- c"]);
    }
}
