//! A user's settings for Slurm when adding a site: `--slurm KEY=VALUE`, each a field of the site's `[site.starter]`.

use std::str::FromStr;

use thiserror::Error;
use toml_edit::{Array, Item, Table, value};

/// The fields of a starter of kind `slurm`.
const KEYS: [&str; 7] = ["partition", "account", "qos", "time", "options", "landbridge", PORT];
/// The field that is a number.
const PORT: &str = "node_service";
/// The field that is a list; `--slurm` is repeated for it.
const LIST: &str = "options";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmSetting {
    key: &'static str,
    value: String,
}

/// A text that is not a Slurm setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlurmSettingError {
    /// The text has no `=`, or nothing after it.
    #[error("`{0}` is not KEY=VALUE, such as account=physics or partition=main")]
    NotASetting(String),
    /// No field has this name.
    #[error("`{0}` is unknown; known are {known}", known = KEYS.join(", "))]
    UnknownKey(String),
    /// The value is not a port.
    #[error("{key}: `{value}` is not a port, from 1 to 65535")]
    NotAPort { key: &'static str, value: String },
    /// The value would become several words on a command line.
    #[error("{key}: `{value}` has a blank in it")]
    Blank { key: &'static str, value: String },
}

impl FromStr for SlurmSetting {
    type Err = SlurmSettingError;

    fn from_str(text: &str) -> Result<SlurmSetting, SlurmSettingError> {
        let parts = text.split_once('=').filter(|(_, value)| !value.is_empty());
        let (key, value) = parts.ok_or_else(|| SlurmSettingError::NotASetting(text.to_owned()))?;
        let known = KEYS.into_iter().find(|known| *known == key);
        let key = known.ok_or_else(|| SlurmSettingError::UnknownKey(key.to_owned()))?;
        if value.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(SlurmSettingError::Blank { key, value: value.to_owned() });
        }
        if key == PORT && !value.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(SlurmSettingError::NotAPort { key, value: value.to_owned() });
        }
        Ok(SlurmSetting { key, value: value.to_owned() })
    }
}

/// Writes the settings into a site's table. Other fields stay if the starter is already of kind `slurm`.
pub(crate) fn apply(settings: &[SlurmSetting], site: &mut Table) {
    let kind = site.get("starter").and_then(|starter| starter.get("kind")).and_then(Item::as_str);
    if kind != Some("slurm") {
        let mut starter = Table::new();
        starter["kind"] = value("slurm");
        site["starter"] = Item::Table(starter);
    }
    for setting in settings.iter().filter(|setting| setting.key != LIST) {
        site["starter"][setting.key] = match setting.value.parse::<i64>() {
            Ok(port) if setting.key == PORT => value(port),
            _ => value(&setting.value),
        };
    }
    let options: Array = settings.iter().filter(|setting| setting.key == LIST).map(|setting| &setting.value).collect();
    if !options.is_empty() {
        site["starter"][LIST] = value(options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_field_and_one_word() {
        let error = |text: &str| text.parse::<SlurmSetting>().unwrap_err().to_string();
        assert!(error("account").contains("not KEY=VALUE"));
        assert!(error("account=").contains("not KEY=VALUE"));
        assert!(error("acount=x").contains("`acount` is unknown; known are partition, account"));
        assert!(error("time=1 hour").contains("has a blank"));
        assert!(error("node_service=x").contains("not a port") && error("node_service=0").contains("not a port"));
        let setting: SlurmSetting = "options=--constraint=gpu".parse().unwrap();
        assert_eq!((setting.key, setting.value.as_str()), ("options", "--constraint=gpu"));
    }

    #[test]
    fn what_is_not_typed_again_stays() {
        let mut document: toml_edit::DocumentMut =
            "starter = { kind = \"slurm\", qos = \"long\" } # mine\n".parse().unwrap();
        let settings = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        apply(&settings(&["account=x", "options=-Cgpu", "options=--exclusive"]), &mut document);
        apply(&settings(&["account=y"]), &mut document);
        let text = document.to_string();
        assert!(text.contains("qos = \"long\"") && text.contains("account = \"y\""), "{text}");
        assert!(text.contains("options = [\"-Cgpu\", \"--exclusive\"]") && text.contains("# mine"), "{text}");
        let mut document: toml_edit::DocumentMut = "[starter]\nkind = \"ssh\"\nuser = \"me\"\n".parse().unwrap();
        apply(&settings(&["account=x", "node_service=7760"]), &mut document);
        let expected = "[starter]\nkind = \"slurm\"\naccount = \"x\"\nnode_service = 7760\n";
        assert_eq!(document.to_string(), expected);
    }
}
