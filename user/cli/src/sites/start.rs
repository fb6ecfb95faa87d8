//! `landbridge sites start`.

use std::io::Write;

use anyhow::Result;
use commands::runtime::runtime;

use crate::bar::{Bar, asking};
use crate::sites::args::StartArgs;

/// Starts gateways that are down, and returns the exit code.
pub(crate) fn start(args: &StartArgs) -> Result<i32> {
    let (_, sites) = args.sites.read()?;
    let all = args.names.is_empty();
    let named = args.names.iter().map(|name| sites.site(name)).collect::<Result<Vec<_>, _>>()?;
    let wanted = if all { sites.file.sites.iter().collect() } else { named };
    let runtime = runtime()?;
    let mut failed = 0;
    for site in wanted {
        match runtime.block_on(setup::start::start(site, asking(), &mut Bar::new())) {
            Ok(note) => writeln!(crate::output::stdout(), "{}: {note}", site.name)?,
            Err(error) => {
                failed += 1;
                crate::output::note(&error.to_string());
            }
        }
    }
    Ok(i32::from(failed > 0))
}
