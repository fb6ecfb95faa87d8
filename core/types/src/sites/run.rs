//! Settings for running programs at one site: the `[site.run]` table.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::wrong::Wrong;

/// Settings of programs at one site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSettings {
    /// Replacements for the program on the command line, by its name there.
    pub programs: BTreeMap<String, String>,
    /// The working directory. `None`: the directory in which `run` was started.
    pub directory: Option<String>,
    /// Environment modules to load, in this order.
    pub modules: Vec<String>,
    /// Variables to set, after the modules are loaded.
    pub environment: BTreeMap<String, String>,
}

/// The table as written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    #[serde(default)]
    programs: BTreeMap<String, String>,
    directory: Option<String>,
    #[serde(default)]
    modules: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

impl Raw {
    pub(super) fn check(self) -> Result<RunSettings, Wrong> {
        let wrong = |place: String, message: String| Err(Wrong::new(place, message).within("run"));
        if let Some((typed, _)) = self.programs.iter().find(|(typed, put)| !is_text(typed) || !is_text(put)) {
            return wrong(format!("programs: `{typed}`"), "both must be programs: a path, or a name in PATH".into());
        }
        let directory = self.directory.map(|path| super::folder("directory", path)).transpose();
        let directory = directory.map_err(|wrong| wrong.within("run"))?;
        if let Some(module) = self.modules.iter().find(|name| !is_text(name) || name.starts_with('-')) {
            return wrong("modules".into(), format!("`{}` is not the name of a module", module.escape_debug()));
        }
        let unfit = |name: &str| name.is_empty() || name.contains(['=', '\0']);
        if let Some((name, _)) = self.environment.iter().find(|(name, value)| unfit(name) || value.contains('\0')) {
            return wrong("environment".into(), format!("`{}` cannot be set", name.escape_debug()));
        }
        let Raw { programs, modules, environment, .. } = self;
        Ok(RunSettings { programs, directory, modules, environment })
    }
}

fn is_text(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}
