//! `landbridge key`.

use std::io::Write;

use anyhow::{Result, bail};

use crate::args::KeyArgs;

/// Makes or shows a key, and returns the exit code.
pub(crate) fn key(args: &KeyArgs) -> Result<i32> {
    let (path, made) = match (&args.out, &args.file) {
        (Some(out), _) => (out, true),
        (None, Some(file)) => (file, !file.exists()),
        (None, None) => bail!("which file?"),
    };
    let key = if made { client::key::generate(path)? } else { client::key::load(path)? };
    let fingerprint = key.fingerprint().to_string();
    let mut out = std::io::stdout();
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
