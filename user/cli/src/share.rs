//! `landbridge share`: completions and man pages for a package's `share` folder, generated from the flags.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;

/// The place of each shell's completions below `share`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/landbridge"),
    (Shell::Fish, "fish/vendor_completions.d/landbridge.fish"),
    (Shell::Zsh, "zsh/site-functions/_landbridge"),
];

/// Writes all files below `folder`, and returns the exit code.
pub(crate) fn share(folder: &Path) -> Result<i32> {
    for (shell, place) in COMPLETIONS {
        let file = folder.join(place);
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown(&Cli::command()), "landbridge", &mut text);
        make(file.parent().unwrap_or(folder))?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    let manual = folder.join("man/man1");
    make(&manual)?;
    clap_mangen::generate_to(Cli::command(), &manual).with_context(|| manual.display().to_string())?;
    Ok(0)
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// A copy of the command for completions: without hidden subcommands, which clap_complete would offer, and without
/// texts that completions do not show.
fn shown(command: &Command) -> Command {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(shown);
    // Clap takes static names. Leaking them is harmless, because this process ends soon.
    Command::new(&*command.get_name().to_owned().leak())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(|_| crate::version::TEXT).unwrap_or_default())
        .disable_version_flag(command.get_version().is_none())
        .subcommand_negates_reqs(command.is_subcommand_negates_reqs_set())
        .args_conflicts_with_subcommands(command.is_args_conflicts_with_subcommands_set())
        .args(command.get_arguments().cloned())
        .subcommands(below.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shown_command_is_completed_and_described() {
        let folder = tempfile::tempdir().expect("a folder");
        share(folder.path()).expect("written");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
        for (shell, file) in COMPLETIONS {
            let text = read(file);
            for word in ["sites", "invite", "--ranks-per-node"] {
                assert!(text.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
            assert!(!text.contains("agent-worker"), "{shell}");
        }
        assert!(read("man/man1/landbridge-run.1").contains(r"\-\-timeout"));
        assert!(read("man/man1/landbridge-sites-add.1").contains("ssh"));
        assert!(!folder.path().join("man/man1/landbridge-agent.1").exists());
    }
}
