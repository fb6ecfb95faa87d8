//! The programs of a job, separated as for mpiexec: `-n 1 ./a : -n 3 ./b`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::Result;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use commands::run::ProgramRequest;
use job::environment::setting;

use crate::args::Cli;
use crate::run::args::RunArgs;
use crate::words;

/// Options that each program may set for itself; all others apply to the whole job.
const OWN: [&str; 5] = ["ranks", "per_site", "variables", "wdir", "program"];

/// The programs of a job.
///
/// # Errors
/// The options of one program are wrong.
pub(crate) fn parts(args: &RunArgs) -> Result<Vec<ProgramRequest>, clap::Error> {
    let cli = Cli::command();
    let Some(run) = cli.find_subcommand("run") else { return Ok(Vec::new()) };
    let mut programs = words::programs(&args.program, run).into_iter();
    let first = ProgramRequest {
        ranks: args.ranks,
        per_site: args.per_site.clone(),
        variables: args.variables.clone(),
        wdir: args.wdir.clone(),
        command: programs.next().unwrap_or_default().to_vec(),
    };
    std::iter::once(Ok(first)).chain(programs.map(part)).collect()
}

/// Parses a program that follows another. `typed`: its options, `--`, and the program with its arguments.
fn part(typed: &[OsString]) -> Result<ProgramRequest, clap::Error> {
    let mut run = Cli::command();
    let run = run.find_subcommand_mut("run").map(std::mem::take).unwrap_or_default();
    let mut run = run.bin_name("landbridge run");
    let words = std::iter::once(OsStr::new("landbridge run")).chain(typed.iter().map(OsString::as_os_str));
    let matches = run.try_get_matches_from_mut(words)?;
    let given = |id: &clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let foreign = matches.ids().find(|id| given(id) && !OWN.contains(&id.as_str()) && run_has(&run, id));
    if let Some(id) = foreign {
        let option = run.get_arguments().find(|arg| arg.get_id() == id);
        let option = option.map_or(String::new(), ToString::to_string);
        let text = format!(
            "{option} holds for the whole job: give it before the first program. After `:` a program may have -n, --site, -x \
             and --wdir of its own"
        );
        return Err(run.error(ErrorKind::ArgumentConflict, text));
    }
    let args = RunArgs::from_arg_matches(&matches)?;
    let RunArgs { ranks, per_site, variables, wdir, program, .. } = args;
    Ok(ProgramRequest { ranks, per_site, variables, wdir, command: program })
}

/// Returns true if the id is that of an argument, not of a group of arguments.
fn run_has(run: &clap::Command, id: &clap::Id) -> bool {
    run.get_arguments().any(|arg| arg.get_id() == id)
}

/// Adds the local value to each `-x NAME` of later programs, so that the command line has the same meaning on another
/// machine. `words` have `--` before each program.
///
/// # Errors
/// A variable is not set here.
pub(crate) fn with_values(words: Vec<OsString>) -> Result<Vec<OsString>> {
    let cli = Cli::command();
    let Some(run) = cli.find_subcommand("run") else { return Ok(words) };
    let Some(begin) = words.iter().position(|word| word == "--") else { return Ok(words) };
    let (options, programs) = words.split_at(begin + 1);
    let mut all = options.to_vec();
    for (number, program) in words::programs(programs, run).into_iter().enumerate() {
        if number == 0 {
            all.extend_from_slice(program);
            continue;
        }
        all.push(":".into());
        let end = program.iter().position(|word| word == "--").unwrap_or(program.len());
        let mut before = OsStr::new("");
        for word in &program[..end] {
            let typed = match word.as_bytes().strip_prefix(b"-x") {
                _ if before == "-x" => Some((&b""[..], word.as_os_str())),
                Some(rest) if !rest.is_empty() => Some((&b"-x"[..], OsStr::from_bytes(rest))),
                _ => None,
            };
            all.push(match typed {
                None => word.clone(),
                Some((option, typed)) => {
                    let (name, value) = setting(typed, |name| std::env::var_os(name)).map_err(crate::error::wrong)?;
                    OsString::from_vec([option, &name, b"=", &value].concat())
                }
            });
            before = if before == "-x" { OsStr::new("") } else { word };
        }
        all.extend_from_slice(&program[end..]);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn typed(line: &str) -> Result<Vec<ProgramRequest>, clap::Error> {
        let words = words::plain(line.split(' ').map(OsString::from), &Cli::command());
        let crate::args::Command::Run(args) = Cli::try_parse_from(words)?.command else { panic!("{line}") };
        parts(&args)
    }

    #[test]
    fn each_program_has_options_of_its_own() {
        let all = typed("lb run -np 1 --prefix --wdir /w ./a x : -np 3 -x A=1 --site b=3:./c ./b -n 5 : --ranks 2 d")
            .unwrap();
        let shown: Vec<_> = all.iter().map(|part| (part.ranks, part.command.join(OsStr::new(" ")))).collect();
        let expected = [(Some(1), "./a x"), (Some(3), "./b -n 5"), (Some(2), "d")];
        assert_eq!(shown, expected.map(|(ranks, command)| (ranks, OsString::from(command))));
        assert_eq!((all[1].variables.len(), all[0].variables.len(), all[1].wdir.is_none()), (1, 0, true));
        assert_eq!(all[1].wish().per_site, [("b".to_owned(), 3)]);
    }

    #[test]
    fn what_holds_for_the_whole_job_is_refused_after_a_colon() {
        for (line, expected) in [
            ("lb run -n 1 a : -n 3 --prefix b", "--prefix holds for the whole job"),
            ("lb run -n 1 a : -n 3 --host a/n1 b", "--host <SITE/NODE[:N],…> holds for the whole job"),
            ("lb run -n 1 a : --json -n 3 b", "--json[=<FILE>] holds for the whole job"),
            ("lb run -n 1 a : -n 0 b", "invalid value '0' for '--ranks <N>'"),
            ("lb run -n 1 a : -n 2", "PROGRAM"),
        ] {
            let error = typed(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn variables_of_later_programs_travel_with_their_values() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let path = std::env::var("PATH").unwrap();
        let line = "lb run -n 1 -x PATH -- a -x PATH : -n 2 -x PATH -xA=1 --wdir -x -- b -x PATH";
        let expected = format!("lb run -n 1 -x PATH -- a -x PATH : -n 2 -x PATH={path} -xA=1 --wdir -x -- b -x PATH");
        assert_eq!(with_values(words(line)).unwrap().join(OsStr::new(" ")), OsString::from(expected));
        assert!(with_values(words("lb run -- a : -x NO_SUCH_THING -- b")).is_err());
    }
}
