//! The words of the command line as they were typed, made such as clap and a site to which a job is carried understand them alike.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// The words with `--` before the program of `run`, wherever it begins, and `-n` for mpiexec's `-np`.
pub(crate) fn plain(words: impl Iterator<Item = OsString>, cli: &Command) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let Some(run) = cli.find_subcommand("run").filter(|_| words.get(1).is_some_and(|word| word == "run")) else {
        return words;
    };
    let mut at = 2;
    while let Some(word) = words.get(at) {
        match word.as_bytes() {
            b"--" => break,
            b"-np" => words[at] = "-n".into(),
            option if option.len() > 1 && option.starts_with(b"-") => {}
            _ => {
                words.insert(at, "--".into());
                break;
            }
        }
        at += if takes_next(words[at].as_bytes(), run) { 2 } else { 1 };
    }
    words
}

/// Whether the word after this option belongs to it.
fn takes_next(option: &[u8], command: &Command) -> bool {
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = option.strip_prefix(b"--") {
        // With `=` no name fits, and nothing follows.
        let named = |arg: &&Arg| {
            let names = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
            names.into_iter().any(|name| name.as_bytes() == long)
        };
        return command.get_arguments().find(named).is_some_and(takes);
    }
    // Of several in one word, what follows the first that takes a value is the value.
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
            ("lb lab -- lb run -np 4 prog", "lb lab -- lb run -np 4 prog"),
        ] {
            let words = plain(typed.split(' ').map(OsString::from), &crate::args::Cli::command());
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), expected, "{typed}");
        }
    }
}
