//! Invalid settings in this process's environment.

use std::fmt;
use std::num::ParseIntError;

use ::endpoint::ConfigError;
use types::settings;

/// An environment variable with an invalid value. The user who starts the program must correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum SettingError {
    /// An invalid setting of the endpoint.
    Endpoint(ConfigError),
    /// A value that a user's variable does not accept.
    Value(settings::SettingError),
    /// `LANDBRIDGE_CROWDED`: its value, and the reason why it is not a number.
    Crowded(String, ParseIntError),
    /// `LANDBRIDGE_CROWDED` is 0.
    NotCrowded,
    /// `LANDBRIDGE_MPI_SHM`: its value.
    OwnMemory(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Endpoint(error) => error.fmt(f),
            SettingError::Value(error) => error.fmt(f),
            SettingError::Crowded(value, error) => {
                write!(f, "LANDBRIDGE_CROWDED={value}: {error}; give the number of ranks to a core")
            }
            SettingError::NotCrowded => f.write_str("LANDBRIDGE_CROWDED=0: at least one rank runs on a core"),
            SettingError::OwnMemory(value) => {
                write!(f, "LANDBRIDGE_MPI_SHM={value}: give \"windows\" or \"messages\"")
            }
        }
    }
}

impl std::error::Error for SettingError {}

impl From<ConfigError> for SettingError {
    fn from(error: ConfigError) -> SettingError {
        SettingError::Endpoint(error)
    }
}

impl From<settings::SettingError> for SettingError {
    fn from(error: settings::SettingError) -> SettingError {
        SettingError::Value(error)
    }
}
