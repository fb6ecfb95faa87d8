//! `landbridge couple`: the helper of one side of a coupling, started by the program's first process.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use commands::runtime::runtime;
use commands::sites_file;
use launcher::coupling::{CouplingRequest, run};
use types::coupling::{HelperReport, NameError, name_and_site};
use wire::control::Coupling;

use crate::sites::file::SitesFileArgs;

/// Couple this program with another one, to exchange arrays
#[derive(Debug, Args)]
#[command(
    hide = true,
    long_about = "Started by the first process of a program that has called landbridge.join: finds the other program, opens \
        a job for both, and watches it. Speaks in lines of JSON on standard input and output; ends with its input."
)]
pub(crate) struct CoupleArgs {
    /// The coupling, and the site at whose gateway both programs meet
    #[arg(value_name = "NAME@SITE", value_parser = coupling)]
    pub coupling: Coupling,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

fn coupling(text: &str) -> Result<Coupling, NameError> {
    let (name, site) = name_and_site(text)?;
    Ok(Coupling { name: name.to_owned(), site: site.to_owned() })
}

/// Couples until this or the other program ends it; returns the exit code.
pub(crate) fn couple(args: CoupleArgs) -> Result<i32> {
    let say = |said: HelperReport| {
        let mut line = serde_json::to_string(&said)?;
        line.push('\n');
        let mut out = crate::output::stdout();
        out.write_all(line.as_bytes())?;
        out.flush()
    };
    // Report all errors on standard output, where the process reads them.
    match try_to(args, say) {
        Ok(()) => Ok(0),
        Err(error) => {
            say(HelperReport::Over(crate::error::whole(&error)))?;
            Ok(1)
        }
    }
}

fn try_to(args: CoupleArgs, say: impl FnMut(HelperReport) -> std::io::Result<()>) -> Result<()> {
    let (_, sites) = args.sites.read()?;
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    sites.site(&args.coupling.site)?;
    let request = CouplingRequest { sites, home, coupling: args.coupling };
    let runtime = runtime()?;
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    let result = runtime.block_on(run(request, input, say));
    // Do not wait for a read of standard input that may never end.
    runtime.shutdown_background();
    Ok(result?)
}
