//! The command to type when a site's gateway does not run: one sentence, shared by every command that notices it.

use std::path::Path;

use types::shell;
use types::sites::Site;

use crate::company::whereabouts;
use crate::here::folders::Folders;

/// The variable that names a sites file.
const VARIABLE: &str = "LANDBRIDGE_SITES";

/// The command that starts the site's gateway again, as a sentence without a full stop. `file`: the sites file.
pub fn remedy(site: &Site, file: &Path) -> String {
    let name = &site.name;
    let sites = if is_default(file) { String::new() } else { format!(" --sites {}", shell::path(file)) };
    match whereabouts(site) {
        Ok(Some(_)) => format!("`landbridge sites start {name}{sites}` starts it again"),
        // The site was made by hand or joined with a ticket: only its own machine can start the gateway.
        _ => format!(
            "on its own machine `landbridge sites start {name}` starts it again, or, if `sites add` did not make it, \
             `landbridge gateway --site {name}{sites}`"
        ),
    }
}

/// True if commands find this sites file without `--sites`.
fn is_default(file: &Path) -> bool {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(Into::into);
    let found = named.or_else(|| Folders::of_user().ok().map(|folders| folders.sites_file()));
    found.is_some_and(|found| same(&found, file))
}

/// True if two paths lead to the same file.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    canonical(one) == canonical(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::SitesFile;

    #[test]
    fn a_site_that_ssh_reaches_is_started_from_here() {
        let text = format!(
            "[[site]]\nname = \"far\"\nfingerprint = \"sha256:{}\"\nssh = \"me@far\"\n[[site.gateway]]\nname = \"gw1\"\n\
             advertise = \"h:1\"\n[[site.node]]\nname = \"n\"\n",
            "0".repeat(64)
        );
        let site = SitesFile::parse(&text, "x").unwrap().sites.remove(0);
        let said = remedy(&site, Path::new("/some/where.toml"));
        assert!(said.starts_with("`landbridge sites start far --sites /some/where.toml`"), "{said}");
        let alone = Site { ssh: None, ..site };
        assert!(remedy(&alone, Path::new("/some/where.toml")).starts_with("on its own machine"));
    }
}
