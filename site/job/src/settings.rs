//! Checks the variables that change how ranks work, before a job starts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use thiserror::Error;
use types::settings::SettingError;
use types::untrusted::printable;

use crate::mpi::layer::TREES_VARIABLE;

/// A variable whose value no rank could use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WrongSetting {
    #[error(transparent)]
    Value(#[from] SettingError),
    /// `LANDBRIDGE_TREES` names no algorithm.
    #[error("{TREES_VARIABLE}={value}: {problem}")]
    Trees { value: String, problem: plan::UnknownAlgorithm },
}

impl WrongSetting {
    /// The variable.
    pub fn name(&self) -> &'static str {
        match self {
            WrongSetting::Value(error) => error.name,
            WrongSetting::Trees { .. } => TREES_VARIABLE,
        }
    }
}

/// The variables with wrong values, by name. Of several values of a variable the last one counts. An empty value means
/// the default.
pub fn wrong<'a>(variables: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<WrongSetting> {
    let last: BTreeMap<Cow<'_, str>, Cow<'_, str>> =
        variables.map(|(name, value)| (String::from_utf8_lossy(name), String::from_utf8_lossy(value))).collect();
    last.iter().filter_map(|(name, value)| check(name, value).err()).collect()
}

fn check(name: &str, value: &str) -> Result<(), WrongSetting> {
    if name == TREES_VARIABLE && !value.is_empty() {
        let value = printable(value);
        return match plan::Algorithm::by_name(&value) {
            Ok(_) => Ok(()),
            Err(problem) => Err(WrongSetting::Trees { value, problem }),
        };
    }
    Ok(types::settings::check(name, value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Vec<String> {
        let bytes = variables.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        wrong(bytes).iter().map(|wrong| format!("{} {wrong}", wrong.name())).collect()
    }

    #[test]
    fn wrong_values_are_found_and_the_last_value_counts() {
        let all = found(&[
            ("LANDBRIDGE_SPIN", "often"),
            ("LANDBRIDGE_TREES", "oak"),
            ("LANDBRIDGE_BIND", "socket"),
            ("LANDBRIDGE_EAGER", "64KiB"),
            ("LANDBRIDGE_BIND", "core"),
            ("PATH", "often"),
        ]);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].starts_with("LANDBRIDGE_SPIN LANDBRIDGE_SPIN=often: give microseconds"), "{all:?}");
        assert!(all[1].starts_with("LANDBRIDGE_TREES LANDBRIDGE_TREES=oak: no algorithm is named `oak`; there are"));
        let defaults = ["SPIN", "TREES", "BIND"].map(|name| format!("LANDBRIDGE_{name}"));
        assert_eq!(found(&defaults.each_ref().map(|name| (name.as_str(), ""))), [""; 0]);
    }
}
