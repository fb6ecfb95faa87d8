//! Composes the text of `--version`: the package's version, the commit, and the omitted features.
//!
//! The commit comes from `LANDBRIDGE_COMMIT` (set by `make dist`), else from this git repository, else from
//! `scripts/packaging/commit`, which `git archive` fills in. Without any of these, the version has no commit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const COMMIT: &str = "LANDBRIDGE_COMMIT";
const FEATURES: [&str; 3] = ["lab", "share", "top"];

fn main() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = root.ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf();
    let commit = env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| of_repository(&root)).or_else(|| of_archive(&root));
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some();
    let missing: Vec<&str> = FEATURES.into_iter().filter(|feature| !has(feature)).collect();
    let without = if missing.is_empty() { None } else { Some(format!("without {}", missing.join(" and "))) };
    let more: Vec<String> = commit.into_iter().chain(without).collect();
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let text = if more.is_empty() { version } else { format!("{version} ({})", more.join(", ")) };
    println!("cargo:rustc-env=LANDBRIDGE_VERSION_TEXT={text}");
}

/// The commit according to git, if this is the root of its repository and not a folder inside another one.
fn of_repository(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if fs::canonicalize(top).ok()? != fs::canonicalize(root).ok()? {
        return None;
    }
    // A commit changes the branch's file, a checkout changes HEAD; `git pack-refs` moves branches into `packed-refs`.
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let file = git(root, &["rev-parse", "--git-path", name]).map(|file| root.join(file));
        if let Some(file) = file.filter(|file| file.exists()) {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
    git(root, &["rev-parse", "--short=12", "HEAD"])
}

/// The commit that `git archive` put in place of `$Format:%h$`.
fn of_archive(root: &Path) -> Option<String> {
    let file = root.join("scripts/packaging/commit");
    println!("cargo:rerun-if-changed={}", file.display());
    let text = fs::read_to_string(file).ok()?;
    let commit = text.trim();
    (!commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| commit.to_owned())
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
