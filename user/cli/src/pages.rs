//! Checks the commands, settings and file names in the documentation pages against this program and this tree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use types::SitesFile;

use crate::args::{Cli, Command};
use crate::run::parts;
use crate::words;

/// Placeholders in the pages, and values for them.
const PLACEHOLDERS: [(&str, &str); 9] = [
    ("=N", "=2"),
    (" N", " 2"),
    (" TIME", " 1h"),
    (" RATE", " 1MB/s"),
    (" SIZE", " 1MiB"),
    (" PERCENT", " 5"),
    (" ID", " 3"),
    (" PORT", " 8080"),
    ("SITE=2:PATH", "site=2:./path"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The documentation pages for users, with their paths.
fn pages() -> Vec<(String, String)> {
    let root = root();
    let below = |folder: &str| std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let examples = below("examples").map(|folder| folder.join("README.md")).filter(|path| path.exists());
    let paths = [root.join("README.md")].into_iter().chain(below("docs")).chain(examples);
    let pages = paths.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let page = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    pages.map(page).collect()
}

/// A piece of code in a page.
struct Code {
    line: usize,
    /// The word after the fence; `None`: inline code.
    kind: Option<String>,
    text: String,
}

/// Fenced and indented blocks, and inline code.
fn code(page: &str) -> Vec<Code> {
    let (mut found, mut prose, mut open) = (Vec::new(), String::new(), None::<Code>);
    for (line, text) in page.lines().enumerate() {
        let fence = text.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.text += &format!("{text}\n"),
            (None, Some(kind)) => {
                open = Some(Code { line: line + 2, kind: Some(kind.to_owned()), text: String::new() });
            }
            (None, None) => match text.strip_prefix("    ") {
                Some(text) if !text.starts_with([' ', '-']) => {
                    found.push(Code { line: line + 1, kind: Some(String::new()), text: text.to_owned() });
                }
                _ => {}
            },
        }
        let is_prose = open.is_none() && fence.is_none() && !text.starts_with("    ");
        prose += &format!("{}\n", if is_prose { text } else { "" });
    }
    let mut line = 1;
    for (at, text) in prose.split('`').enumerate() {
        if at % 2 == 1 {
            found.push(Code { line, kind: None, text: text.replace('\n', " ") });
        }
        line += text.matches('\n').count();
    }
    found
}

/// Splits a line into words as a shell does, up to the first character with a meaning for the shell.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, '|' | ';' | '&' | '>' | '<') => break,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command lines of this program in a page: line number, words, and whether the command is complete.
fn commands(page: &str) -> Vec<(usize, Vec<String>, bool)> {
    let mut found = Vec::new();
    for Code { line, kind, text } in code(page) {
        let whole = kind.is_some();
        if !matches!(kind.as_deref(), None | Some("" | "sh" | "bash" | "console")) {
            continue;
        }
        for (at, text) in text.lines().enumerate() {
            let text = text.strip_prefix("$ ").unwrap_or(text);
            // Skip syntax descriptions and abbreviated commands.
            if !text.starts_with("landbridge ") || text.contains(['…', '[', '$', '{']) {
                continue;
            }
            // An explanation follows after a wide gap.
            let text = text.split("  ").next().unwrap_or_default();
            let text = PLACEHOLDERS.iter().fold(format!("{text} "), |text, (name, value)| {
                text.replace(&format!("{name} "), &format!("{value} "))
                    .replace(&format!("{name}:"), &format!("{value}:"))
            });
            found.push((line + at, shell_words(&text), whole));
        }
    }
    found
}

/// The reason why this program rejects a command line.
fn fault(typed: &[String], whole: bool) -> Option<String> {
    let words = words::plain(typed.iter().map(OsString::from), &Cli::command());
    let error = match Cli::try_parse_from(&words).map(|cli| cli.command) {
        Ok(Command::Run(args)) => parts::parts(&args).err(),
        Ok(Command::Lab(args)) => {
            let inner: Vec<String> = args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            return inner.first().filter(|word| *word == "landbridge").and_then(|_| fault(&inner, whole));
        }
        Ok(_) => None,
        Err(error) => Some(error),
    }?;
    let kind = error.kind();
    let is_part = matches!(
        kind,
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::TooFewValues
    );
    let is_fine = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) || (is_part && !whole);
    (!is_fine).then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[test]
fn every_command_in_the_pages_is_understood() {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (name, page) in pages() {
        for (line, typed, whole) in commands(&page) {
            seen += 1;
            faults.extend(fault(&typed, whole).map(|fault| format!("{name}:{line}: {}: {fault}", typed.join(" "))));
        }
    }
    assert!(seen > 100, "only {seen} commands: have the pages another layout now?");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    // Test the check itself: it must find wrong commands.
    let wrong = "    landbridge run -n 4\n```sh\nlandbridge sites ad lyon me@x\n```\n`landbridge stage\nmove --to x`";
    let found = commands(wrong);
    let found: Vec<_> = found.iter().map(|(line, typed, whole)| (*line, fault(typed, *whole).is_some())).collect();
    assert_eq!(found, [(1, true), (3, true), (5, true)]);
}

/// Completes a part of a sites file.
fn completed(part: &str) -> String {
    let fingerprint = format!("fingerprint = \"sha256:{}\"\n", "0".repeat(64));
    let part: String = part.lines().filter(|line| line.trim() != "…").map(|line| format!("{line}\n")).collect();
    let begin = if part.contains("[[site]]") { "" } else { "[[site]]\nname = \"lyon\"\n" };
    let mut text = format!("{begin}{part}");
    // In TOML, single values must precede tables.
    if !part.contains("fingerprint") {
        let first = text.find("name = ").unwrap();
        text.insert_str(first, &fingerprint);
    }
    if !part.contains("[[site.gateway]]") {
        text += "[[site.gateway]]\nname = \"gw1\"\ninside = \"10.0.0.1:7700\"\n";
    }
    if !part.contains("advertise") && !part.contains("inside") && part.contains("[[site.gateway]]") {
        text = text.replace("[[site.gateway]]\n", "[[site.gateway]]\ninside = \"10.0.0.1:7700\"\n");
    }
    // A site with a batch system must not list its nodes; any other must.
    if !part.contains("[[site.node]]") && SitesFile::parse(&text, "x").is_err() {
        text += "[[site.node]]\nname = \"n1\"\n";
    }
    text
}

#[test]
fn every_part_of_a_sites_file_in_the_pages_is_accepted() {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (name, page) in pages() {
        let (mut parts, mut indented) = (Vec::new(), (0, String::new()));
        for Code { line, kind, text } in code(&page) {
            match kind.as_deref() {
                Some("toml") => parts.push((line, text)),
                // A table in an indented block.
                Some("") if text.starts_with("[site") => indented = (line, text + "\n"),
                Some("") if line == indented.0 + indented.1.lines().count() => indented.1 += &(text + "\n"),
                _ => {}
            }
        }
        parts.extend(Some(indented).filter(|(line, _)| *line > 0));
        for (line, part) in parts.into_iter().filter(|(_, part)| part.contains("[site") || part.contains("[[site")) {
            seen += 1;
            let parsed = SitesFile::parse(&completed(&part), &format!("{name}:{line}"));
            faults.extend(parsed.err().map(|error| error.to_string()));
        }
    }
    assert!(seen >= 10, "only {seen}");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    let wrong = completed("[site.starter]\nkind = \"slurm\"\nnodeservice = 7760\n");
    assert!(SitesFile::parse(&wrong, "x").unwrap_err().to_string().contains("nodeservice"));
}

/// Paths in this tree that a page's code mentions.
fn paths(page: &str) -> Vec<(usize, String)> {
    let folders: Vec<String> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // Commands create these folders.
        .filter(|name| !["target", "out"].contains(&name.as_str()))
        .collect();
    let in_tree = |word: &&str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        let first = word.split_once('/').map(|(first, rest)| (first, rest.split('/').next().unwrap_or_default()));
        plain && first.is_some_and(|(first, rest)| folders.iter().any(|folder| folder == first) && rest != "...")
    };
    let mut found = Vec::new();
    for Code { line, text, .. } in code(page) {
        for (at, text) in text.lines().enumerate() {
            let words = text.split([' ', '`', '"', '\'', '(', ')', ',', ':', '=']);
            let words = words.map(|word| word.trim_end_matches(['.', ';'])).filter(in_tree);
            found.extend(words.map(|word| (line + at, word.to_owned())));
        }
    }
    found
}

#[test]
fn every_file_of_the_tree_that_a_page_names_is_there() {
    // A `make` command in the page builds these.
    let built = ["examples/poisson/poisson", "python/dist"];
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (name, page) in pages() {
        let folder = root().join(&name).parent().unwrap().to_owned();
        for (line, path) in paths(&page) {
            seen += 1;
            let there = root().join(&path).exists() || folder.join(&path).exists();
            if !there && !built.contains(&path.as_str()) {
                faults.push(format!("{name}:{line}: there is no {path}"));
            }
        }
    }
    assert!(seen >= 10, "only {seen}");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert_eq!(paths("see `examples/no/such.py`"), [(1, "examples/no/such.py".to_owned())]);
}

#[test]
fn the_pages_name_every_file_of_an_installation() {
    let files = [
        setup::release::COMMAND_FILE,
        job::mpi::PROVIDER_FILE,
        job::mpi::layer::LAYER_FILE,
        job::mpi::layer::LARGE_LAYER_FILE,
    ];
    for page in ["README.md", "docs/administrators.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let missing: Vec<_> = files.iter().filter(|file| !text.contains(&format!("`{file}`"))).collect();
        assert!(missing.is_empty(), "{page} does not name {missing:?}");
    }
}
