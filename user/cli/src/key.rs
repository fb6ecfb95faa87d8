//! `landbridge key`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

/// Make a site's key, or show the fingerprint of one
#[derive(Debug, Args)]
#[command(
    long_about = "Make a site's key, or show the fingerprint of one.\n\n\
        If FILE does not exist, makes a key there that only you can read. An existing one is left alone. Prints the key's \
        fingerprint, which goes into everybody's sites file; the key itself stays at its site.",
    after_help = "Examples:\n  landbridge key lyon.key         make it, or show it\n  \
        landbridge key --out lyon.key   make it; an error if it exists"
)]
pub(crate) struct KeyArgs {
    /// The key file
    #[arg(value_name = "FILE", required_unless_present = "out", conflicts_with = "out")]
    pub file: Option<PathBuf>,
    /// Make a new key in this file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Makes or shows a key, and returns the exit code.
pub(crate) fn key(args: &KeyArgs) -> Result<i32> {
    let (path, made) = match (&args.out, &args.file) {
        (Some(out), _) => (out, true),
        (None, Some(file)) => (file, client::key::is_missing(file)),
        (None, None) => bail!("which file?"),
    };
    let key = if made { client::key::generate(path)? } else { client::key::load(path)? };
    let fingerprint = key.fingerprint().to_string();
    let mut out = crate::output::stdout();
    if args.json {
        let file = path.display().to_string();
        writeln!(
            out,
            "{}",
            crate::json::object(serde_json::json!({ "file": file, "fingerprint": fingerprint, "made": made }))?
        )?;
    } else {
        writeln!(out, "fingerprint = \"{fingerprint}\"")?;
    }
    Ok(0)
}
